package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const key = "e2b_0123456789abcdef0123456789abcdef01234567"

// newServer starts a fake server and returns a client of it.
func newServer(t *testing.T) (*client.Client, *fakeserver.Server) {
	t.Helper()
	fake := fakeserver.New(key, t.TempDir())
	srv := httptest.NewServer(fake)
	t.Cleanup(func() {
		fake.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return newClient(t, srv.URL), fake
}

func newClient(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: url, APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t *testing.T, c *client.Client, o client.CreateOptions) *client.Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestLifecycle(t *testing.T) {
	c, _ := newServer(t)
	ctx := t.Context()
	if err := c.Health(ctx); err != nil {
		t.Fatal(err)
	}
	sb := create(t, c, client.CreateOptions{
		Timeout: 90 * time.Second, OnTimeout: client.Pause, AutoResume: new(true),
		Metadata: map[string]string{"team": "a b&c=d%"}, NoInternet: true,
	})

	info, err := c.Get(ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if info.ID != sb.ID || info.State != client.Running || info.Settings.OnTimeout != client.Pause || !info.Settings.AutoResume {
		t.Errorf("got %+v", info)
	}
	if info.AllowInternet == nil || *info.AllowInternet {
		t.Errorf("the way out: got %v, want none", info.AllowInternet)
	}
	if info.Metadata["team"] != "a b&c=d%" || info.Timeout != 90*time.Second || info.Generation != 1 {
		t.Errorf("got metadata %v, timeout %v, generation %d", info.Metadata, info.Timeout, info.Generation)
	}
	if left := time.Until(info.EndAt); left < 80*time.Second || left > 90*time.Second {
		t.Errorf("%v left of 90s", left)
	}

	if err := c.Pause(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(ctx, sb.ID); !errors.Is(err, client.ErrConflict) {
		t.Errorf("second pause: got %v, want ErrConflict", err)
	}
	if err := c.SetTimeout(ctx, sb.ID, time.Minute); !errors.Is(err, client.ErrConflict) || !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("timeout of a paused sandbox: got %v, want ErrConflict and ErrNotRunning", err)
	}
	for i, want := range []bool{true, false} {
		got, err := c.Connect(ctx, sb.ID, time.Minute)
		if err != nil || got.Resumed != want || got.ID != sb.ID || got.Info.State != client.Running {
			t.Errorf("connect %d: got %+v, %v; want resumed %v", i, got, err, want)
		}
	}
	if err := c.SetTimeout(ctx, sb.ID, 61*time.Second+500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if info, _ = c.Get(ctx, sb.ID); time.Until(info.EndAt) < 60*time.Second || time.Until(info.EndAt) > 61500*time.Millisecond {
		t.Errorf("61.5s became %v", time.Until(info.EndAt))
	}
	if err := c.Kill(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	info, err = c.Get(ctx, sb.ID)
	if !errors.Is(err, client.ErrNotFound) || !strings.Contains(err.Error(), "Killed") || info.Tombstone == nil {
		t.Errorf("get after kill: got %+v, %v; want the tombstone and ErrNotFound", info.Tombstone, err)
	}
	if err := c.Kill(ctx, sb.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("second kill: got %v, want ErrNotFound", err)
	}
	info, err = c.Find(ctx, sb.ID)
	if err != nil || info.State != client.Terminated || info.Tombstone.Reason != "Killed" || info.Tombstone.Actor == "" || info.Tombstone.Remediation == "" {
		t.Errorf("find after kill: got %+v, %v", info.Tombstone, err)
	}
}

// TestEverySetting: what is asked for comes back, and can be changed.
func TestEverySetting(t *testing.T) {
	c, _ := newServer(t)
	o := client.CreateOptions{
		Timeout: 90 * time.Second, OnTimeout: client.Pause, IdleTimeout: 1500 * time.Millisecond, OnIdle: client.Kill,
		MaxLifetime: time.Hour, PausedRetention: 24 * time.Hour, AutoResume: new(true), RefreshOnActivity: new(true), FilesystemFallback: new(true),
		PauseMode: client.Memory, StallAfter: client.Never, CheckpointEvery: time.Minute, Ports: map[string]client.WakePolicy{"8000/healthz": client.Ignore, "22": client.Keep},
		Hooks: client.Hooks{PrePause: client.Hook{Command: "sync"}, PreKill: client.Hook{Command: "true", Timeout: 2 * time.Second}},
	}
	sb := create(t, c, o)
	info, err := c.Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := client.Settings{
		OnTimeout: client.Pause, OnIdle: client.Kill, AutoResume: true, IdleTimeout: 1500 * time.Millisecond, MaxLifetime: time.Hour,
		PausedRetention: 24 * time.Hour, RefreshOnActivity: true, FilesystemFallback: true, PauseMode: client.Memory, StallAfter: client.Never, CheckpointEvery: time.Minute,
	}
	if info.Settings != want {
		t.Errorf("got  %+v\nwant %+v", info.Settings, want)
	}
	if !maps.Equal(info.Ports, o.Ports) || info.Hooks.PrePause.Command != "sync" || info.Hooks.PreKill.Timeout != 2*time.Second || info.Hooks.PostResume.Command != "" {
		t.Errorf("got ports %v, hooks %+v", info.Ports, info.Hooks)
	}

	info, err = c.Patch(t.Context(), sb.ID, client.PatchOptions{
		OnIdle: new(client.Pause), IdleTimeout: new(time.Duration(0)), MaxLifetime: new(2 * time.Hour), RefreshOnActivity: new(false), FilesystemFallback: new(false),
		StallAfter: new(time.Minute), CheckpointEvery: new(time.Hour), Ports: map[string]client.WakePolicy{}, Metadata: map[string]string{"a": "b"},
	})
	want.OnIdle, want.IdleTimeout, want.MaxLifetime, want.RefreshOnActivity, want.StallAfter = client.Pause, 0, 2*time.Hour, false, time.Minute
	want.CheckpointEvery, want.FilesystemFallback = time.Hour, false
	if err != nil || info.Settings != want || len(info.Ports) != 0 || info.Metadata["a"] != "b" {
		t.Errorf("after the patch: got %+v, %v\nwant %+v", info, err, want)
	}
	if info, err = c.Patch(t.Context(), sb.ID, client.PatchOptions{StallAfter: new(client.Never)}); err != nil || info.Settings.StallAfter != client.Never {
		t.Errorf("stallAfter: got %v, %v; want Never", info.Settings.StallAfter, err)
	}
	if info, err = c.Patch(t.Context(), sb.ID, client.PatchOptions{RefreshOnRequests: true}); err != nil || !info.Settings.RefreshOnActivity || !info.Settings.RefreshOnRequests {
		t.Errorf("refreshed by requests: got %+v, %v", info.Settings, err)
	}
	if info, err = c.Patch(t.Context(), sb.ID, client.PatchOptions{RefreshOnActivity: new(true)}); err != nil || !info.Settings.RefreshOnActivity || info.Settings.RefreshOnRequests {
		t.Errorf("refreshed by all activity: got %+v, %v", info.Settings, err)
	}
	if info, err = c.Patch(t.Context(), sb.ID, client.PatchOptions{AllowInternet: new(true)}); err != nil || info.AllowInternet == nil || !*info.AllowInternet {
		t.Errorf("the way out: got %v, %v", info.AllowInternet, err)
	}
	// It refuses what contradicts, and says what to do.
	_, err = c.Patch(t.Context(), sb.ID, client.PatchOptions{OnTimeout: new(client.Kill), OnIdle: new(client.Kill)})
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != "auto_resume_needs_pause" || e.Remediation == "" || e.Context["sandbox"] != sb.ID {
		t.Errorf("got %#v", err)
	}
}

// TestInfoEncodesAsTheAPI: what a program prints of an Info can be read by one
// that knows the API.
func TestInfoEncodesAsTheAPI(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{
		Timeout: 90 * time.Second, IdleTimeout: 1500 * time.Millisecond, StallAfter: client.Never, Metadata: map[string]string{"a": "b"},
		Hooks: client.Hooks{PreKill: client.Hook{Command: "true"}}, Ports: map[string]client.WakePolicy{"80": client.Keep},
	})
	info, err := c.Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"timeoutSeconds":90`, `"idleTimeoutSeconds":1.5`, `"stallAfterSeconds":0`, `"ports":{"80":"keep"}`,
		`"preKill":{"command":"true","timeoutSeconds":5}`, `"limits":{"cpus":2`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if strings.Contains(string(text), "token") {
		t.Errorf("a token in %s", text)
	}
	var again client.Info
	if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, info) {
		t.Errorf("got %+v, %v\nwant %+v", again, err, info)
	}
}

// TestSleep: how a sandbox sleeps, and that it is left out of one that does not.
func TestSleep(t *testing.T) {
	c, _ := newServer(t)
	for template, want := range map[string]client.Sleep{"light": client.LightSleep, "base": client.DeepSleep} {
		sb := create(t, c, client.CreateOptions{Template: template})
		if text, err := json.Marshal(must(t, c, sb.ID)); err != nil || strings.Contains(string(text), `"sleep"`) {
			t.Errorf("awake: %s, %v", text, err)
		}
		if info, err := c.PauseWith(t.Context(), sb.ID, client.Memory); err != nil || info.Sleep != want {
			t.Errorf("paused: %q, %v; want %q", info.Sleep, err, want)
		}
		x, err := c.Explain(t.Context(), sb.ID)
		if got := must(t, c, sb.ID).Sleep; err != nil || got != want || x.Sleep != want {
			t.Errorf("got %q, explained %q, %v; want %q", got, x.Sleep, err, want)
		}
	}
}

// must returns what the server says of a sandbox.
func must(t *testing.T, c *client.Client, id string) client.Info {
	t.Helper()
	info, err := c.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestResumeTimeouts(t *testing.T) {
	c, _ := newServer(t)
	ctx := t.Context()
	sb := create(t, c, client.CreateOptions{Timeout: 90 * time.Second})
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		want    time.Duration // 0 for none
	}{
		{"the sandbox's own", 0, 90 * time.Second},
		{"given", 10 * time.Minute, 10 * time.Minute},
		{"none", client.Never, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if info, err := c.PauseWith(ctx, sb.ID, client.Memory); err != nil || info.State != client.Paused || info.Checkpoint.Bytes == 0 {
				t.Fatalf("got %+v, %v", info, err)
			}
			info, err := c.Resume(ctx, sb.ID, tt.timeout)
			if err != nil || info.State != client.Running {
				t.Fatalf("got %+v, %v", info, err)
			}
			if left := time.Until(info.EndAt); tt.want == 0 && !info.EndAt.IsZero() || tt.want > 0 && (left < tt.want-10*time.Second || left > tt.want) {
				t.Errorf("ends in %v (%v), want %v", left, info.EndAt, tt.want)
			}
		})
	}
	info, err := c.PauseWith(ctx, sb.ID, client.Filesystem)
	if err != nil || info.Checkpoint.Mode != client.Filesystem {
		t.Errorf("got %+v, %v", info.Checkpoint, err)
	}
	if _, err := c.PauseWith(ctx, sb.ID, "disk"); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("mode disk: got %v, want ErrInvalid", err)
	}
}

// TestSetTimeoutZeroIsNow: the sandbox has ended a moment later.
func TestSetTimeoutZeroIsNow(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{Timeout: time.Hour})
	if err := c.SetTimeout(t.Context(), sb.ID, 0); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "it has ended", func() bool {
		info, err := c.Find(t.Context(), sb.ID)
		return err == nil && info.Tombstone != nil && info.Tombstone.Reason == "TimeoutExpired"
	})
}

func TestPreviews(t *testing.T) {
	c, _ := newServer(t)
	ctx := t.Context()
	sb := create(t, c, client.CreateOptions{})
	made, err := c.CreatePreview(ctx, sb.ID, client.PreviewOptions{Port: 8000, For: time.Minute, Path: "/docs"})
	if err != nil || made.Port != 8000 || made.Token == "" || !strings.HasSuffix(made.URL, "/8000/docs?drowse_preview="+made.Token) {
		t.Fatalf("got %+v, %v", made, err)
	}
	if left := time.Until(made.ExpiresAt); left > time.Minute+time.Second || left < 30*time.Second {
		t.Errorf("expires in %s", left)
	}
	if p, err := c.CreatePreview(ctx, sb.ID, client.PreviewOptions{Port: 80}); err != nil || p.ExpiresAt.Before(time.Now().Add(59*time.Minute)) {
		t.Errorf("by default: %+v, %v", p, err)
	}
	list, err := c.Previews(ctx, sb.ID)
	if err != nil || len(list) != 2 || list[0].ID != made.ID || list[0].Token != "" || list[0].URL != "" {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := c.RevokePreview(ctx, sb.ID, made.ID); err != nil {
		t.Error(err)
	}
	if err := c.RevokePreview(ctx, sb.ID, made.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("again: %v, want ErrNotFound", err)
	}
	if _, err := c.CreatePreview(ctx, sb.ID, client.PreviewOptions{Port: 70000}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("port 70000: %v, want ErrInvalid", err)
	}
}

func TestHolds(t *testing.T) {
	c, _ := newServer(t)
	ctx := t.Context()
	sb := create(t, c, client.CreateOptions{IdleTimeout: time.Hour})
	h, err := c.Hold(ctx, sb.ID, client.HoldOptions{Reason: "nightly build", For: time.Minute})
	if err != nil || h.ID == "" || h.Kind != client.HoldLease || h.Detail != "nightly build" || !h.Counts {
		t.Fatalf("got %+v, %v", h, err)
	}
	longer, err := c.Hold(ctx, sb.ID, client.HoldOptions{ID: h.ID, Reason: "still", For: time.Hour})
	if err != nil || longer.ID != h.ID || !longer.Until.After(h.Until) {
		t.Errorf("got %+v, %v; want it prolonged", longer, err)
	}
	list, err := c.Holds(ctx, sb.ID)
	if err != nil || len(list) != 1 || list[0].Detail != "still" {
		t.Errorf("got %+v, %v", list, err)
	}
	x, err := c.Explain(ctx, sb.ID)
	if err != nil || !x.Busy || len(x.Holds) != 1 || !json.Valid(x.Raw) {
		t.Fatalf("got %+v, %v", x, err)
	}
	for _, clock := range x.Clocks {
		if isIdle := clock.Name == client.ClockIdle; (clock.Status == client.ClockOff) == isIdle || (clock.Limit == time.Hour) != isIdle {
			t.Errorf("got %+v", clock)
		}
	}
	if err := c.ReleaseHold(ctx, sb.ID, h.ID); err != nil {
		t.Error(err)
	}
	if err := c.ReleaseHold(ctx, sb.ID, h.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("second release: got %v, want ErrNotFound", err)
	}
	if x, err = c.Explain(ctx, sb.ID); err != nil || x.Busy || x.Next.Action != "kill" || x.Next.Clock != client.ClockIdle || len(x.Transitions) < 4 {
		t.Errorf("got %+v, %v", x, err)
	}
	if _, err := c.Hold(ctx, sb.ID, client.HoldOptions{For: time.Minute}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("no reason: got %v, want ErrInvalid", err)
	}
	if err := c.Pause(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hold(ctx, sb.ID, client.HoldOptions{Reason: "x", For: time.Minute}); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("asleep: got %v, want ErrNotRunning", err)
	}
}

func TestListReadsAllPages(t *testing.T) {
	c, fake := newServer(t)
	fake.PageSize = 2
	odd := map[string]string{"odd é&%": "+ /=x"}
	for i := range 5 {
		o := client.CreateOptions{}
		if i%2 == 1 {
			o.Metadata = odd
		}
		sb := create(t, c, o)
		if i == 3 {
			if err := c.Pause(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name string
		o    client.ListOptions
		want int
	}{
		{"all", client.ListOptions{}, 5},
		{"running", client.ListOptions{States: []client.State{client.Running}}, 4},
		{"both states", client.ListOptions{States: []client.State{client.Running, client.Paused}}, 5},
		{"metadata", client.ListOptions{Metadata: odd}, 2},
		{"metadata and state", client.ListOptions{Metadata: odd, States: []client.State{client.Paused}}, 1},
		{"none", client.ListOptions{Metadata: map[string]string{"x": "y"}}, 0},
		{"terminated", client.ListOptions{States: []client.State{client.Terminated}}, 0},
		{"template", client.ListOptions{Template: "base"}, 5},
		{"other template", client.ListOptions{Template: "other"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := c.List(t.Context(), tt.o)
			if err != nil || len(got) != tt.want || got == nil {
				t.Errorf("got %d (nil: %v), %v; want %d", len(got), got == nil, err, tt.want)
			}
		})
	}
}

// TestBadTimeouts are for the server to judge.
func TestBadTimeouts(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	for _, d := range []time.Duration{-2, -time.Second, 1 << 62} {
		if err := c.SetTimeout(t.Context(), sb.ID, d); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("SetTimeout(%v): got %v, want ErrInvalid", d, err)
		}
		if _, err := c.Create(t.Context(), client.CreateOptions{Timeout: d}); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("Create(%v): got %v, want ErrInvalid", d, err)
		}
	}
}

func TestRun(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{Env: map[string]string{"FROM_BOX": "box"}})
	for _, tt := range []struct {
		name           string
		cmd            client.Command
		stdout, stderr string
		exit           client.Exit
	}{
		{
			name:   "output and code",
			cmd:    client.Command{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}},
			stdout: "out\n", stderr: "err\n", exit: client.Exit{Code: 3, Status: "exit status 3"},
		},
		{
			name:   "arguments are not split",
			cmd:    client.Command{Args: []string{"printf", "%s|", "a b", "$HOME"}},
			stdout: "a b|$HOME|", exit: client.Exit{Status: "exit status 0"},
		},
		{
			name: "environment and directory",
			cmd: client.Command{Args: []string{"sh", "-c", "echo $FROM_BOX $FROM_CMD; basename $PWD"},
				Env: map[string]string{"FROM_CMD": "cmd"}, Dir: "/home"},
			stdout: "box cmd\nhome\n", exit: client.Exit{Status: "exit status 0"},
		},
		{
			name:   "input",
			cmd:    client.Command{Args: []string{"wc", "-c"}, Stdin: strings.NewReader(strings.Repeat("x", 100_000))},
			stdout: "100000\n", exit: client.Exit{Status: "exit status 0"},
		},
		{
			name: "no input",
			cmd:  client.Command{Args: []string{"cat"}},
			exit: client.Exit{Status: "exit status 0"},
		},
		{
			name: "input that is not wanted",
			cmd:  client.Command{Args: []string{"true"}, Stdin: strings.NewReader(strings.Repeat("x", 1<<20))},
			exit: client.Exit{Status: "exit status 0"},
		},
		{
			name: "signal",
			cmd:  client.Command{Args: []string{"sh", "-c", "kill -TERM $$"}},
			exit: client.Exit{Code: -1, Signal: syscall.SIGTERM, Status: "signal: terminated"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			tt.cmd.Stdout, tt.cmd.Stderr = &stdout, &stderr
			exit, err := sb.Run(t.Context(), tt.cmd)
			if err != nil {
				t.Fatal(err)
			}
			if strings.TrimLeft(stdout.String(), " ") != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("got stdout %q, stderr %q", &stdout, &stderr)
			}
			if exit != tt.exit {
				t.Errorf("got %+v, want %+v", exit, tt.exit)
			}
		})
	}
}

func TestAs(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	for user, want := range map[string]string{"": "user\n", "root": "root\n"} {
		var stdout bytes.Buffer
		_, err := sb.As(user).Run(t.Context(), client.Command{Args: []string{"printenv", "USER"}, Stdout: &stdout})
		if err != nil || stdout.String() != want {
			t.Errorf("as %q: got %q, %v", user, &stdout, err)
		}
	}
	_, err := sb.As("nobody").Run(t.Context(), client.Command{Args: []string{"true"}})
	if !errors.Is(err, client.ErrUnauthorized) {
		t.Errorf("as nobody: got %v, want ErrUnauthorized", err)
	}
}

func TestRunWhatCannotStart(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	_, err := sb.Run(t.Context(), client.Command{Args: []string{"no-such-command"}})
	e, ok := errors.AsType[*client.Error](err)
	if !ok || !errors.Is(err, client.ErrInvalid) || e.Code != client.CodeCommandNotFound || e.Message != "command 'no-such-command' not found in PATH" {
		t.Errorf("got %#v", err)
	}
	if _, err := sb.Run(t.Context(), client.Command{}); err == nil {
		t.Error("an empty command ran")
	}
}

// started runs a command that prints one line and then sleeps, and returns once
// the line is there.
func started(t *testing.T, ctx context.Context, sb *client.Sandbox, timeout time.Duration) *client.Process {
	t.Helper()
	p, err := sb.Start(ctx, client.Command{Args: []string{"sleep", "60"}, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func alive(p *client.Process) bool { return syscall.Kill(p.PID(), 0) == nil }

func TestRunKillsWhenTheContextEnds(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	out := writer(func([]byte) (int, error) { cancel(); return 0, nil })
	_, err := sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "echo > pid$$; echo; exec sleep 60"}, Stdout: out})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	var files bytes.Buffer
	script := "for f in pid*; do kill -0 ${f#pid} && echo alive; done"
	testmode.Eventually(t, "the command is dead", func() bool {
		files.Reset()
		_, err := sb.Run(t.Context(), client.Command{Args: []string{"sh", "-c", script}, Stdout: &files})
		return err == nil && files.Len() == 0
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestRunKillsWhenNobodyReads(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	closed := errors.New("closed")
	out := writer(func([]byte) (int, error) { return 0, closed })
	if _, err := sb.Run(t.Context(), client.Command{Args: []string{"yes"}, Stdout: out}); !errors.Is(err, closed) {
		t.Errorf("got %v", err)
	}
}

func TestStartedCommandOutlivesItsContext(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	p := started(t, ctx, sb, 0)
	cancel()
	if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	if !alive(p) {
		t.Error("the command died with its context")
	}
	if err := p.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	testmode.Eventually(t, "a signal finds no process", func() bool {
		return errors.Is(p.Kill(t.Context()), client.ErrNotFound)
	})
}

func TestDetach(t *testing.T) {
	c, _ := newServer(t)
	p := started(t, t.Context(), create(t, c, client.CreateOptions{}), 0)
	p.Detach()
	if !alive(p) {
		t.Error("the command died")
	}
}

func TestCommandTimeout(t *testing.T) {
	c, _ := newServer(t)
	p := started(t, t.Context(), create(t, c, client.CreateOptions{}), 500*time.Millisecond)
	if _, err := p.Wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	testmode.Eventually(t, "the command is dead", func() bool { return !alive(p) })
}

func TestInputThatBreaksOff(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	broken := errors.New("disk on fire")
	_, err := sb.Run(t.Context(), client.Command{
		Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("x"), errReader{broken}),
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestPauseCutsAndAccessWakes(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true)})
	p := started(t, t.Context(), sb, 0)
	if err := c.Pause(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); !errors.Is(err, client.ErrInterrupted) {
		t.Errorf("got %v, want ErrInterrupted", err)
	}
	if _, err := sb.Run(t.Context(), client.Command{Args: []string{"true"}}); err != nil {
		t.Errorf("a command did not wake it: %v", err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Errorf("the process did not survive the sleep: %v", err)
	}
}

func TestNotRunning(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	if err := c.Pause(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err := sb.Run(t.Context(), client.Command{Args: []string{"true"}})
	if !errors.Is(err, client.ErrNotRunning) || !strings.HasSuffix(err.Error(), "The sandbox was not found") {
		t.Errorf("run: got %v, want ErrNotRunning", err)
	}
	if _, err := sb.ReadFile(t.Context(), "x"); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("read: got %v, want ErrNotRunning", err)
	}
}

func TestShell(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	stdin, keyboard := io.Pipe()
	defer func() { _ = keyboard.Close() }()
	var screen bytes.Buffer
	p, err := sb.Shell(t.Context(), client.Command{Stdin: stdin, Stdout: &screen})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(t.Context(), client.Size{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(keyboard, "size\rexit 5\r") }()
	exit, err := p.Wait()
	if err != nil || exit.Code != 5 {
		t.Errorf("got %+v, %v; want code 5", exit, err)
	}
	if got, want := screen.String(), "size\r\n100x30\r\nexit 5\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFiles(t *testing.T) {
	c, _ := newServer(t)
	ctx := t.Context()
	sb := create(t, c, client.CreateOptions{})
	want := strings.Repeat("0123456789", 50_000)
	for _, path := range []string{"a b/c+d é.txt", "/tmp/x"} {
		if err := sb.WriteFile(ctx, path, strings.NewReader(want)); err != nil {
			t.Fatal(err)
		}
		r, err := sb.ReadFile(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || string(got) != want {
			t.Errorf("%s: got %d bytes, %v", path, len(got), err)
		}
	}
	_, err := sb.ReadFile(ctx, "missing")
	if !errors.Is(err, client.ErrNotFound) || !strings.Contains(err.Error(), "path 'missing' does not exist") {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestRequest(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	req, err := sb.Request(t.Context(), http.MethodGet, 8000, "/p%2Fq?x=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := req.URL.RequestURI(); got != "/p%2Fq?x=1" {
		t.Errorf("got target %q", got)
	}
	if req.Header.Get("X-API-Key") != "" || req.Header.Get("X-Access-Token") != "" {
		t.Errorf("a key went to the user's port: %v", req.Header)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if got, want := string(body), "hello from "+sb.ID+"/p/q\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestByName reaches into a sandbox of a server that goes by a name, where the
// one URL must do: there headers name no sandbox, so the path must.
func TestByName(t *testing.T) {
	fake := fakeserver.New(key, t.TempDir())
	defer fake.Close()
	srv := httptest.NewServer(fake)
	defer srv.Close()
	defer srv.CloseClientConnections()
	dial := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
	}}
	defer dial.CloseIdleConnections()
	c, err := client.New(client.Options{URL: "http://api.sandboxes.test/below", APIKey: key, HTTPClient: &http.Client{Transport: trimmed{dial}}})
	if err != nil {
		t.Fatal(err)
	}
	sb := create(t, c, client.CreateOptions{})

	var out bytes.Buffer
	exit, err := sb.Run(t.Context(), client.Command{Args: []string{"cat"}, Stdin: strings.NewReader("in"), Stdout: &out})
	if err != nil || exit.Code != 0 || out.String() != "in" {
		t.Errorf("run: %+v, %v, output %q", exit, err, &out)
	}
	if err := sb.WriteFile(t.Context(), "a b", strings.NewReader("content")); err != nil {
		t.Error(err)
	}
	file, err := sb.ReadFile(t.Context(), "a b")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(file); string(got) != "content" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	_ = file.Close()

	for target, want := range map[string]string{
		"/p%2Fq?x=1":          "/p%2Fq?x=1",
		"":                    "/",
		"/a/":                 "/a/",
		"/../../other/80/b":   "/other/80/b",
		"../../../other/80/b": "/other/80/b",
	} {
		req, err := sb.Request(t.Context(), http.MethodGet, 8000, target, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := req.URL.RequestURI(); got != "/below/s/"+sb.ID+"/8000"+want {
			t.Errorf("target %q: got %q", target, got)
		}
	}
}

// trimmed takes off the path that a proxy before the server has to itself.
type trimmed struct{ http.RoundTripper }

func (p trimmed) RoundTrip(r *http.Request) (*http.Response, error) {
	path, below := strings.CutPrefix(r.URL.EscapedPath(), "/below")
	u, err := r.URL.Parse(path)
	if err != nil || !below {
		return nil, fmt.Errorf("%s is not below the server's URL: %w", r.URL, err)
	}
	u.RawQuery = r.URL.RawQuery
	r = r.Clone(r.Context())
	r.URL = u
	return p.RoundTripper.RoundTrip(r)
}

// TestKeyStaysOutside looks at every request: the API key goes to the control
// plane only.
func TestKeyStaysOutside(t *testing.T) {
	fake := fakeserver.New(key, t.TempDir())
	defer fake.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside := r.Header.Get("E2b-Sandbox-Id") != "" || strings.HasPrefix(r.URL.Path, "/s/")
		if got := r.Header.Get("X-API-Key") != ""; got == inside {
			t.Errorf("%s %s: key sent: %v", r.Method, r.URL.Path, got)
		}
		fake.ServeHTTP(w, r)
	}))
	defer srv.Close()
	c := newClient(t, srv.URL)
	sb := create(t, c, client.CreateOptions{})
	if _, err := sb.Run(t.Context(), client.Command{Args: []string{"cat"}, Stdin: strings.NewReader("x")}); err != nil {
		t.Error(err)
	}
	if err := sb.WriteFile(t.Context(), "x", strings.NewReader("y")); err != nil {
		t.Error(err)
	}
	if text := fmt.Sprintf("%v %+v %s", sb, sb, sb); strings.Contains(text, "token") || text != sb.ID+" "+sb.ID+" "+sb.ID {
		t.Errorf("printed: %s", text)
	}
}

func TestImportOnce(t *testing.T) {
	c, _ := newServer(t)
	sb := create(t, c, client.CreateOptions{})
	if err := c.Pause(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := c.Export(t.Context(), sb.ID, &file); err != nil {
		t.Fatal(err)
	}
	o := client.ImportOptions{NewID: true, IdempotencyKey: "job-1"}
	var ids []string
	for range 2 {
		info, err := c.Import(t.Context(), bytes.NewReader(file.Bytes()), o)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.ID)
	}
	if ids[0] != ids[1] || ids[0] == sb.ID {
		t.Errorf("two imports of %s made %v", sb.ID, ids)
	}
}

func TestCreateOnce(t *testing.T) {
	c, _ := newServer(t)
	o := client.CreateOptions{Timeout: time.Minute, IdempotencyKey: "job-1"}
	first := create(t, c, o)
	if again := create(t, c, o); again.ID != first.ID {
		t.Errorf("a second sandbox: %s beside %s", again.ID, first.ID)
	}
	o.Timeout = time.Hour
	_, err := c.Create(t.Context(), o)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "idempotency_key_reused" || !errors.Is(err, client.ErrInvalid) {
		t.Errorf("other options: %v", err)
	}
}
