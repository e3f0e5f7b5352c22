package launch

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/template"
)

// slow is checkpoints of which those of one key take until they are allowed to end.
type slow struct {
	key string
	end chan struct{}

	mu         sync.Mutex
	busy, most int // how many are verified now, and were at most
}

func (s *slow) Ready(context.Context, lifecycle.Checkpoint, bool) error { return nil }

func (s *slow) ForWake(ctx context.Context, sb store.Sandbox, _ lifecycle.Checkpoint, _ template.Template, _ bool) (checkpoint.Image, string, error) {
	if sb.Config.Key != s.key {
		return checkpoint.Image{}, "", nil
	}
	s.count(1)
	defer s.count(-1)
	select {
	case <-s.end:
		return checkpoint.Image{}, "", nil
	case <-ctx.Done():
		return checkpoint.Image{}, "", ctx.Err()
	}
}

func (s *slow) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy += n
	s.most = max(s.most, s.busy)
}

// started is a driver that notes whose runtimes it is to start, and starts none.
type started struct {
	runtime.Driver

	mu   sync.Mutex
	keys []string
}

var errNotStarted = errors.New("not started")

func (d *started) Start(_ context.Context, spec runtime.Spec) (runtime.Instance, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys = append(d.keys, spec.Owner)
	return nil, errNotStarted
}

// TestSlowVerificationsHoldUpNobodyElse: a wake held one of the server's turns while
// its layers were verified, so that a few sandboxes with large ones kept every other
// one from being made or woken.
func TestSlowVerificationsHoldUpNobodyElse(t *testing.T) {
	dir := t.TempDir()
	layers, err := layer.Open(filepath.Join(dir, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	templates, err := template.Open(filepath.Join(dir, "templates"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(template.Template{ID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "templates", "test")
	if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "template.json"), data, 0o600)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		driver, checkpoints := &started{}, &slow{key: "greedy", end: make(chan struct{})}
		l := New(Options{
			Driver: driver, Layers: layers, Templates: templates, Checkpoints: checkpoints, RunDir: filepath.Join(dir, "run"),
			Mounts:  func(store.Config, string, string) ([]runtime.Mount, error) { return nil, nil },
			Sharers: func(string) int { return 1 }, Log: slog.New(slog.DiscardHandler),
		})
		wake := func(key, id string) error {
			_, _, err := l.Launch(t.Context(), Start{
				ID: id, Key: key, Generation: 2, Checkpoint: &lifecycle.Checkpoint{ID: id},
				Sandbox: func() store.Sandbox {
					return store.Sandbox{ID: id, Config: store.Config{Key: key, Template: "test"}}
				},
			})
			return err
		}
		n := 2 * l.Turns()
		ended := make(chan error, n)
		for i := range n {
			go func() { ended <- wake("greedy", string(rune('a'+i))) }()
		}
		synctest.Wait()
		if err := wake("modest", "m"); !errors.Is(err, errNotStarted) {
			t.Errorf("another key's sandbox: %v", err)
		}
		if !slices.Equal(driver.keys, []string{"modest"}) {
			t.Errorf("started: %v, want another key's sandbox alone", driver.keys)
		}
		close(checkpoints.end)
		for range n {
			if err := <-ended; !errors.Is(err, errNotStarted) {
				t.Error(err)
			}
		}
		if checkpoints.most > l.Turns()/2 {
			t.Errorf("%d checkpoints of a key were verified at once, want one for each processor", checkpoints.most)
		}
		if keys, turns := l.Underway(); keys != 0 || turns != 0 || l.verifies.Keys() != 0 {
			t.Errorf("%d keys are on their way, %d turns are taken, %d keys verify", keys, turns, l.verifies.Keys())
		}
	})
}
