package store_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/powercut"
	"github.com/drowse-dev/drowse/internal/store"
)

// recordedEnv holds the path of the database that the recorded child uses.
const recordedEnv = "DROWSE_STORE_TEST_RECORDED"

// What the child says when something has returned.
const (
	saidCommit = "commit %d"
	saidSecret = "secret %s %s"
	saidKey    = "key"
	saidForgot = "forgot"
)

// bulk is a text so long that some forty commits of it fill the log: SQLite then
// moves it into the database, and begins it anew.
const bulk = 100 << 10

// commitRecorded uses a new database in every way there is, in two sessions.
func commitRecorded(path string) int {
	ctx := context.Background()
	err := errors.Join(session(ctx, path, func(s *store.SQL) error {
		err := errors.Join(makeSecrets(ctx, s), commitMany(ctx, s, 1, 8, 0), s.AddKey(ctx, recordedKey()))
		say(saidKey)
		return err
	}), session(ctx, path, func(s *store.SQL) error {
		ended := record("b", 1)
		ended.Record.State = lifecycle.Terminated
		err := errors.Join(commitMany(ctx, s, 9, 50, bulk), s.Commit(ctx, ended, lines(1, "of b")), s.Forget(ctx, "b"))
		say(saidForgot)
		return errors.Join(err, commitMany(ctx, s, 51, 60, 0))
	}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// makeSecrets makes many secrets at the same time.
func makeSecrets(ctx context.Context, s *store.SQL) error {
	var g errgroup.Group
	for n := range 12 {
		g.Go(func() error {
			name := fmt.Sprint("s", n)
			secret, err := s.Secret(ctx, name)
			if err == nil {
				say(saidSecret, name, hex.EncodeToString(secret))
			}
			return err
		})
	}
	return g.Wait()
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func session(ctx context.Context, path string, do func(*store.SQL) error) error {
	s, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(do(s), s.Close())
}

// commitMany commits generations of a sandbox, each with two log entries.
func commitMany(ctx context.Context, s *store.SQL, from, to int64, bytes int) error {
	for n := from; n <= to; n++ {
		sb := recorded(n, bytes)
		sb.Rev = revision(ctx, s, sb.ID)
		if err := s.Commit(ctx, sb, lines(n, "first", "second")); err != nil {
			return err
		}
		say(saidCommit, n)
	}
	return nil
}

// recorded is the sandbox in its nth generation, with a text that tells it from
// others.
func recorded(n int64, bytes int) store.Sandbox {
	sb := record("a", n)
	mark := fmt.Sprint(n, " ")
	sb.Config.Metadata = map[string]string{"text": strings.Repeat(mark, max(1, bytes/len(mark)))}
	return sb
}

func recordedKey() store.Key {
	return store.Key{ID: "k", Name: "n", Hash: sha256.Sum256([]byte("k")), Prefix: "e2b_", Suffix: "beef", CreatedAt: at}
}

// TestPowerCut cuts the power wherever a process may be that uses the store.
// Whatever the disk has left, the store opens, what was said to be done is there,
// and nothing is there by half.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), recordedEnv+"="+filepath.Join(dir, "drowse.db"))
	powercut.Record(t, dir, child).Replay(t, 150, func(t *testing.T, dir string, said []string) {
		checkSaid(t, filepath.Join(dir, "drowse.db"), said)
	})
}

// checkSaid checks a database that was left by commitRecorded after it had said
// so much.
func checkSaid(t *testing.T, path string, said []string) {
	t.Helper()
	ctx := t.Context()
	s := open(t, path)
	last, err := generationIn(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	checkIntegrity(t, path)
	if last > 0 {
		checkCommits(t, path, min(last, lastSaid(said)+1))
		checkWhole(t, s, last)
	}
	if reported := lastSaid(said); last < reported {
		t.Errorf("the record is at %d, and %d was reported", last, reported)
	}
	for _, line := range said {
		switch {
		case line == saidKey:
			if keys, err := s.Keys(ctx); err != nil || len(keys) != 1 || keys[0] != recordedKey() {
				t.Errorf("keys are %v, %v", keys, err)
			}
		case line == saidForgot:
			if all, err := s.Sandboxes(ctx); err != nil || len(all) != 1 {
				t.Errorf("%d sandboxes, %v: one was forgotten", len(all), err)
			}
		case strings.HasPrefix(line, "secret "):
			name := strings.Fields(line)[1]
			secret, err := s.Secret(ctx, name) // a new one if it is lost
			if got := fmt.Sprintf(saidSecret, name, hex.EncodeToString(secret)); err != nil || got != line {
				t.Errorf("%s, %v; it was %s", got, err, line)
			}
		}
	}
	next := recorded(last+1, 0)
	next.Rev = revision(ctx, s, next.ID)
	if err := s.Commit(ctx, next, lines(last+1, "first", "second")); err != nil {
		t.Errorf("nothing can be committed any more: %v", err)
	}
}

// lastSaid returns the last generation that was said to be committed.
func lastSaid(said []string) (last int64) {
	for _, line := range said {
		_, _ = fmt.Sscanf(line, saidCommit, &last) // other lines change nothing
	}
	return last
}

// checkWhole checks that the record of a generation is all of it.
func checkWhole(t *testing.T, s store.Store, n int64) {
	t.Helper()
	bytes := 0
	if 9 <= n && n <= 50 {
		bytes = bulk
	}
	all, err := s.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := all[0].Config.Metadata["text"], recorded(n, bytes).Config.Metadata["text"]; got != want {
		t.Errorf("the record of generation %d has %d bytes of text, want %d", n, len(got), len(want))
	}
}
