package store

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// asked is a context that tells when somebody waits for its end.
type asked struct {
	context.Context
	once *sync.Once
	at   chan struct{}
}

func newAsked(ctx context.Context) asked {
	return asked{ctx, new(sync.Once), make(chan struct{})}
}

func (a asked) Done() <-chan struct{} {
	a.once.Do(func() { close(a.at) })
	return a.Context.Done()
}

// TestKeysTakeTurnsAtCommits: a key that commits without pause, at many places, kept
// each commit of another waiting for all that it had under way.
func TestKeysTakeTurnsAtCommits(t *testing.T) {
	s := openInternal(t, filepath.Join(t.TempDir(), "drowse.db"))
	begun, end := make(chan struct{}), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		err := s.write(t.Context(), "greedy", func(context.Context, *sql.Tx) error {
			close(begun)
			<-end
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-begun
	commit := func(key, id string) {
		ctx := newAsked(t.Context())
		done.Go(func() {
			sb := Sandbox{ID: id, Config: Config{Key: key}}
			if err := s.Commit(ctx, sb, []lifecycle.Entry{{Type: lifecycle.EntryCreated}}); err != nil {
				t.Error(err)
			}
		})
		<-ctx.at
	}
	for n := range 20 {
		commit("greedy", string(rune('a'+n)))
	}
	commit("other", "x")
	commit("other", "y")
	close(end)
	done.Wait()

	events, err := s.Events(t.Context(), "", 0, 100)
	if err != nil || len(events) != 22 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for _, at := range []int{1, 3} {
		if events[at].Key != "other" {
			t.Errorf("commit %d is of the key %s, which had 20 of them waiting", at, events[at].Key)
		}
	}
}
