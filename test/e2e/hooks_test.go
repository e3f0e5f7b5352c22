package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestHooks has each hook leave a note, and looks at when and where it did.
func TestHooks(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	const note = `echo "$(id -un) $(cat /run/drowse/generation) $(date +%s.%N)" >>/home/user/`
	sb := s.create(ctx, client.CreateOptions{
		OnTimeout: client.Pause, AutoResume: new(true),
		Hooks: client.Hooks{
			PrePause:   client.Hook{Command: note + "pre_pause"},
			PostResume: client.Hook{Command: note + "post_resume"},
			// Where it is seen from outside, for as long as the hook runs.
			PreKill: client.Hook{Command: note + "pre_kill; sync; sleep 3"},
		},
	})
	if exit, out := run(ctx, t, sb, "sh", "-c", "cat pre_pause post_resume pre_kill 2>/dev/null; true"); out != "" {
		t.Errorf("notes before anything happened (%s): %s", exit.Status, out)
	}

	s.pause(ctx, sb.ID)
	_, out := run(ctx, t, sb, "cat", "pre_pause", "post_resume") // wakes it
	pausing, paused := s.entries(ctx, sb.ID, "pausing")[0], s.entries(ctx, sb.ID, "paused")[0]
	resuming, resumed := s.entries(ctx, sb.ID, "resuming")[0], s.entries(ctx, sb.ID, "resumed")[0]
	notes := strings.SplitAfter(out, "\n")
	if len(notes) != 3 {
		t.Fatalf("notes of a pause and a resume: %q", out)
	}
	checkNote(t, "pre_pause", notes[0], 1, pausing.Time, paused.Time)
	checkNote(t, "post_resume", notes[1], 2, resuming.Time, resumed.Time)

	killed := make(chan error, 1)
	go func() { killed <- s.client.Kill(ctx, sb.ID) }()
	var left []byte
	eventually(t, 10*time.Second, "the note of pre_kill", func() error {
		found := s.glob("run/rootfs", sb.ID+"*", "home/user/pre_kill")
		if len(found) != 1 {
			return fmt.Errorf("%w: %q", fs.ErrNotExist, found)
		}
		var err error
		if left, err = os.ReadFile(found[0]); err == nil && len(left) == 0 {
			err = fs.ErrNotExist
		}
		return err
	})
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	ended := s.entries(ctx, sb.ID, "terminated")[0]
	checkNote(t, "pre_kill", string(left), 2, ended.Time, time.Now())
}

// checkNote checks who wrote a note, in which generation, and when.
func checkNote(t testing.TB, hook, note string, generation int, from, to time.Time) {
	t.Helper()
	var user, at string
	var in int
	if _, err := fmt.Sscan(note, &user, &in, &at); err != nil {
		t.Fatalf("%s left %q: %v", hook, note, err)
	}
	if user != "root" || in != generation {
		t.Errorf("%s ran as %s in generation %d, want root in %d", hook, user, in, generation)
	}
	if ran := unixTime(t, at); ran.Before(from.Add(-maxClockError)) || ran.After(to.Add(maxClockError)) {
		t.Errorf("%s ran at %s, want between %s and %s", hook, ran, from, to)
	}
}

// TestHooksThatHang gives hooks a second. Then they are killed, with what they
// have started, and what was asked for goes on.
func TestHooksThatHang(t *testing.T) {
	t.Parallel()
	const budget = time.Second
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	hangs := func(name string) client.Hook {
		return client.Hook{Command: "echo " + name + " >>/home/user/began; sleep 600; echo " + name + " >>/home/user/ended", Timeout: budget}
	}
	sb := s.create(ctx, client.CreateOptions{
		OnTimeout: client.Pause, AutoResume: new(true),
		Hooks: client.Hooks{PrePause: hangs("pre_pause"), PostResume: hangs("post_resume"), PreKill: hangs("pre_kill")},
	})
	for cycle := range 3 {
		if took := s.pause(ctx, sb.ID); took < budget {
			t.Errorf("cycle %d: the pause took %s: the hook did not have its time", cycle+1, took)
		}
		begin := time.Now()
		_, out := run(ctx, t, sb, "sh", "-c", "cat began; cat ended; pgrep -x sleep; true") // wakes it
		if took := time.Since(begin); took < budget {
			t.Errorf("cycle %d: the wake took %s: the hook did not have its time", cycle+1, took)
		}
		want := strings.Repeat("pre_pause\npost_resume\n", cycle+1) + "cat: ended: No such file or directory\n"
		if out != want {
			t.Errorf("cycle %d: hooks and what is left of them: %q, want %q", cycle+1, out, want)
		}
	}
	begin := time.Now()
	if err := s.client.Kill(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	s.waitGone(sb.ID)
	if took := time.Since(begin); took < budget {
		t.Errorf("everything was gone after %s: the hook did not have its time", took)
	}
}

// TestHookOfCanceledPause lets a request cancel an automatic pause whose hook
// still runs. The request must not wait for the hook, nor the hook go on.
func TestHookOfCanceledPause(t *testing.T) {
	t.Parallel()
	const budget = 20 * time.Second
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	sb := s.create(ctx, client.CreateOptions{
		OnTimeout: client.Pause, AutoResume: new(true),
		Hooks: client.Hooks{PrePause: client.Hook{Command: "touch /home/user/began; sync; sleep 600", Timeout: budget}},
	})
	if err := s.client.SetTimeout(ctx, sb.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the hook runs", func() error {
		if len(s.glob("run/rootfs", sb.ID+"*", "home/user/began")) == 0 {
			return fs.ErrNotExist
		}
		return nil
	})
	begin := time.Now()
	if exit, out := run(ctx, t, sb, "pgrep", "-x", "sleep"); out != "" {
		t.Errorf("the hook goes on (%s): sleep is process %s", exit.Status, out)
	}
	if took := time.Since(begin); took >= budget {
		t.Errorf("the request waited %s for the hook", took)
	}
	if x := s.explain(ctx, sb.ID); x.State != client.Running || x.Generation != 1 || len(s.entries(ctx, sb.ID, "pause_cancelled")) != 1 {
		t.Errorf("it is %s in generation %d with transitions %+v; want one pause_cancelled in generation 1", x.State, x.Generation, x.Transitions)
	}
}

// TestHookOfKillDuringPause kills a sandbox that is frozen, to be captured. Its
// last hook must run all the same.
func TestHookOfKillDuringPause(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{
		OnTimeout: client.Pause,
		Hooks:     client.Hooks{PreKill: client.Hook{Command: "true", Timeout: 20 * time.Second}},
	})
	var held int
	if err := g.call(ctx, "GET", "/hold?mib=400", nil, &held); err != nil {
		t.Fatal(err)
	}
	paused := make(chan error, 1)
	go func() { paused <- s.client.Pause(ctx, g.sb.ID) }()
	eventually(t, 10*time.Second, "the capture has begun", func() error {
		if len(s.glob("images", "*")) == 0 {
			return fs.ErrNotExist
		}
		return nil
	})
	if err := s.client.Kill(ctx, g.sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-paused; err == nil {
		t.Log("the pause was committed before the kill: nothing was frozen")
	}
	eventually(t, 10*time.Second, "the hook has run", func() error {
		if s.log.count(g.sb.ID, `msg="hook pre_kill"`, "err=<nil>") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}
