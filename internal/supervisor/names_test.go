package supervisor

import (
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestNamedSandboxes: a name is of one sandbox at a time, outlives the server, is
// nothing that a copy has, and finds the tombstone.
func TestNamedSandboxes(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	named := func(key, name string) CreateRequest {
		return CreateRequest{Config: store.Config{Key: key, Name: name}, Settings: lifecycle.Settings{Timeout: time.Hour}}
	}
	first := create(t, s, named("k", "box-1"))
	refused := func(s *Supervisor, req CreateRequest, class errdef.Class) {
		t.Helper()
		req.Template = "test"
		if sb, err := s.Create(t.Context(), req); !errdef.Is(err, class) {
			t.Errorf("got %s, %v; want %s", sb.ID, err, class)
		}
	}
	finds := func(s *Supervisor, key, name, want string) {
		t.Helper()
		if id, _ := s.Named(key, name); id != want {
			t.Errorf("%s of %s is %q, want %q", name, key, id, want)
		}
	}
	refused(s, named("k", "box-1"), errdef.Exists)
	refused(s, named("k", "../box"), errdef.Invalid)
	other := create(t, s, named("l", "box-1"))
	finds(s, "k", "box-1", first)
	finds(s, "l", "box-1", other)

	children, err := s.Fork(t.Context(), first, ForkRequest{Count: 1, Key: "k", Name: "child"})
	if err != nil || children[0].Err != nil {
		t.Fatal(err, children)
	}
	finds(s, "k", "child", children[0].Sandbox.ID)
	nameless, err := s.Fork(t.Context(), first, ForkRequest{Count: 2, Key: "k"})
	if err != nil || nameless[0].Err != nil || nameless[1].Err != nil || nameless[0].Sandbox.Config.Name != "" {
		t.Errorf("children without names: %v, %+v", err, nameless)
	}
	taken, err := s.Fork(t.Context(), first, ForkRequest{Count: 1, Key: "k", Name: "box-1"})
	if err != nil || !errdef.Is(taken[0].Err, errdef.Exists) {
		t.Errorf("a child with the name of its source: %v, %+v", err, taken)
	}
	if err := s.Pause(t.Context(), first, PauseRequest{}); err != nil {
		t.Fatal(err)
	}

	stop()
	s, _ = b.open()
	finds(s, "k", "box-1", first)
	refused(s, named("k", "box-1"), errdef.Exists)
	kill(t, s, first)
	finds(s, "k", "box-1", first)
	second := create(t, s, named("k", "box-1"))
	finds(s, "k", "box-1", second)
	finds(s, "l", "box-1", other)
}
