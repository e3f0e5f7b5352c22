package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestDatabaseRefusesWrites: while nothing can be written to the database, what
// runs is served; what would have to be recorded is refused, and changes
// nothing. When it can be written again, all works without a restart.
func TestDatabaseRefusesWrites(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, Metadata: map[string]string{"of": "before"}})
	before := g.ask(ctx)
	thaw := s.freezeDatabase()
	changes := map[string]func() error{
		"create":      func() error { _, err := s.client.Create(ctx, client.CreateOptions{}); return err },
		"pause":       func() error { return s.client.Pause(ctx, g.sb.ID) },
		"set timeout": func() error { return s.client.SetTimeout(ctx, g.sb.ID, time.Minute) },
		"kill":        func() error { return s.client.Kill(ctx, g.sb.ID) },
	}
	for name, change := range changes {
		err := change()
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "store_unavailable" {
			t.Errorf("%s: got %v, want store_unavailable", name, err)
		}
	}
	g.same(before, g.ask(ctx))
	if list, err := s.client.List(ctx, client.ListOptions{}); err != nil || len(list) != 1 || list[0].State != client.Running {
		t.Errorf("listed: %+v, %v", list, err)
	}
	thaw()
	s.pause(ctx, g.sb.ID)
	s.connect(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
	s.create(ctx, client.CreateOptions{Timeout: time.Hour})
}

// freezeDatabase has the kernel refuse every write to the database's files,
// open ones too, until the function that it returns is called.
func (s *server) freezeDatabase() (thaw func()) {
	t := s.t
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir(), "drowse.db*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("files of the database: %q, %v", files, err)
	}
	change := func(flag string) {
		t.Helper()
		if out, err := exec.Command("chattr", append([]string{flag}, files...)...).CombinedOutput(); err != nil {
			t.Errorf("chattr %s: %v: %s", flag, err, out)
		}
	}
	thaw = sync.OnceFunc(func() { change("-i") })
	t.Cleanup(thaw)
	change("+i")
	return thaw
}
