package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestServerDefaults gives a server defaults, and creates sandboxes as those who
// cannot name such settings do, through E2B's API: work keeps them awake, without
// work they sleep, and traffic wakes them. Those who can name the settings turn
// off what the defaults turn on.
func TestServerDefaults(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t, "--default-idle-timeout", "6s", "--default-on-idle", "pause", "--default-auto-resume", "--default-refresh-on-activity=requests")

	header := http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	got, err := s.raw(ctx, http.MethodPost, "/sandboxes", header, strings.NewReader(`{"templateID":"base","timeout":600}`))
	if err != nil || got.status != http.StatusCreated {
		t.Fatalf("create: status %d, %v: %s", got.status, err, got.body)
	}
	var made struct{ SandboxID string }
	if err := json.Unmarshal(got.body, &made); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.ids = append(s.ids, made.SandboxID)
	s.mu.Unlock()
	s.wantSettings(ctx, made.SandboxID, client.Settings{
		OnTimeout: client.Kill, IdleTimeout: 6 * time.Second, OnIdle: client.Pause, AutoResume: true, RefreshOnActivity: true, RefreshOnRequests: true,
	}, "idleTimeoutSeconds onIdle autoResume refreshOnActivity")

	sb, _, err := s.client.Open(ctx, made.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if exit, out := run(ctx, t, sb, "sh", "-c", "timeout 10 sh -c 'while :; do :; done'; echo done"); exit.Code != 0 || out != "done\n" {
		t.Errorf("work over its idle timeout: %v, %q", exit, out)
	}
	worked := time.Since(begin)
	if info, err := s.client.Get(ctx, sb.ID); err != nil || info.Generation != 1 {
		t.Errorf("after %s of work: %+v, %v", worked, info, err)
	}
	if err := poll(time.Minute, func() error {
		info, err := s.client.Get(ctx, sb.ID)
		if err == nil && info.State != client.Paused {
			err = fmt.Errorf("it is %s", info.State)
		}
		return err
	}); err != nil {
		t.Fatalf("without work: %v", err)
	}
	if exit, out := run(ctx, t, sb, "echo", "awake"); exit.Code != 0 || out != "awake\n" {
		t.Errorf("asleep: %v, %q", exit, out)
	}

	// All of it can be turned off, by the client and by the command line.
	off := client.Settings{OnTimeout: client.Kill, OnIdle: client.Kill}
	sb = s.create(ctx, client.CreateOptions{IdleTimeout: client.Never, OnIdle: client.Kill, AutoResume: new(false), RefreshOnActivity: new(false)})
	s.wantSettings(ctx, sb.ID, off, "")
	cmd := exec.CommandContext(ctx, drowseBinary, "create", "--idle-timeout", "none", "--on-idle", "kill", "--auto-resume=false", "--refresh-on-activity=false")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DROWSE_URL=http://" + s.addr, "DROWSE_API_KEY=" + apiKey}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("drowse create: %v: %s", err, out)
	}
	id := strings.TrimSpace(string(out))
	s.mu.Lock()
	s.ids = append(s.ids, id)
	s.mu.Unlock()
	s.wantSettings(ctx, id, off, "")
}

// wantSettings compares settings, and which of them the server's defaults gave.
func (s *server) wantSettings(ctx context.Context, id string, want client.Settings, fromServer string) {
	s.t.Helper()
	info, err := s.client.Get(ctx, id)
	if err != nil {
		s.t.Fatal(err)
	}
	got := info.Settings
	got.PauseMode, got.StallAfter, got.MaxLifetime, got.PausedRetention, got.CheckpointEvery = "", 0, 0, 0, 0
	if got != want {
		s.t.Errorf("settings of %s: %+v, want %+v", id, got, want)
	}
	given := map[string]bool{}
	for _, name := range info.FromServer {
		given[name] = true
	}
	for _, name := range []string{"idleTimeoutSeconds", "onIdle", "autoResume", "refreshOnActivity"} {
		if want := strings.Contains(fromServer, name); given[name] != want {
			s.t.Errorf("%s of %s: given by the server's defaults: %v, want %v (%v)", name, id, given[name], want, info.FromServer)
		}
	}
}
