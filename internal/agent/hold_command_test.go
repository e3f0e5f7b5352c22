package agent

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// newHolder is a sandbox in which drowse-hold is the program as it is built.
func newHolder(t *testing.T) (*sandbox, string) {
	t.Helper()
	name := filepath.Join(publicDir(t), "drowse-hold")
	build := exec.Command("go", "build", "-o", name, "github.com/drowse-dev/drowse/cmd/drowse-agent")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	s := newSandbox(t)
	s.activity(t) // loopback is up
	return s, name + " "
}

func TestHoldCommand(t *testing.T) {
	s, hold := newHolder(t)
	leases := func() []agentapi.HeldWork { return s.activity(t).Leases }

	r := s.run(t, hold+"-for 90s -reason 'for a while'")
	id := strings.TrimSpace(r.stdout)
	if l := leases(); len(l) != 1 || l[0].ID != id || l[0].Reason != "for a while" || l[0].Until.Sub(l[0].Since) != 90*time.Second {
		t.Errorf("%+v made %+v", r, l)
	}
	if r := s.run(t, hold+"-list"); !strings.Contains(r.stdout, id) || !strings.Contains(r.stdout, "for a while") {
		t.Errorf("list: %+v", r)
	}
	if r := s.run(t, hold+"-release "+id); r.end.GetExitCode() != 0 || len(leases()) != 0 {
		t.Errorf("release: %+v", r)
	}
	if r := s.run(t, hold+"-release "+id); r.end.GetExitCode() != 1 || !strings.Contains(r.stderr, "no hold") {
		t.Errorf("release again: %+v", r)
	}

	for script, want := range map[string]int32{
		hold + "-- sh -c 'exit 7'":                          7,
		hold + "true":                                       0,
		hold + "-- sh -c 'kill -9 $$'":                      137,
		hold + "-- /no/such/command":                        127,
		hold + "-- no-such-command":                         127,
		hold + "-- /etc/passwd":                             126,
		hold + "-for 0s":                                    2,
		hold + "-for 25h -- true":                           2,
		hold + "-nonsense":                                  2,
		hold + "-list -release x":                           2,
		hold + "-release x -- true":                         2,
		hold + "-h":                                         0,
		hold + "-reason '" + strings.Repeat("x", 201) + "'": 2,
		hold + "-- sh -c \"test $(echo 'in' | " + hold + "cat) = in\"": 0,
	} {
		r := s.run(t, script)
		if r.end.GetExitCode() != want {
			t.Errorf("%s: %v %q %q", script, r.end, r.stdout, r.stderr)
		}
		if want == 2 && !strings.Contains(r.stderr, "usage: drowse-hold") {
			t.Errorf("%s: no usage in %q", script, r.stderr)
		}
		if l := leases(); len(l) != 0 {
			t.Errorf("%s left %+v", script, l)
		}
	}
}

// A command keeps its hold, however long it takes; signals reach it.
func TestHoldCommandRenews(t *testing.T) {
	s, hold := newHolder(t)
	s.start(t, hold+"-for 6s -- sh -c 'trap \"exit 3\" TERM; while :; do sleep 0.05; done'; echo $? >&2; exec sleep 85")
	holding := func(act agentapi.Activity) bool { return len(act.Leases) == 1 }
	act := s.await(t, "held", holding)
	if reason := act.Leases[0].Reason; !strings.HasPrefix(reason, "sh -c trap") {
		t.Errorf("reason %q", reason)
	}
	later := s.await(t, "renewed", func(now agentapi.Activity) bool {
		if !holding(now) {
			t.Fatalf("the hold is gone: %+v", now)
		}
		return now.Leases[0].Until.After(act.Leases[0].Until)
	})
	if later.Leases[0].ID != act.Leases[0].ID {
		t.Errorf("from %+v to %+v", act.Leases, later.Leases)
	}
	s.run(t, "pkill -TERM -x drowse-hold")
	end := s.await(t, "released", func(act agentapi.Activity) bool { return len(act.Leases) == 0 })
	if end.LastEnd.Before(later.Now) {
		t.Errorf("LastEnd %v", end.LastEnd)
	}
}
