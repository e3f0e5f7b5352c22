package store_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// childEnv holds the path of the database in which the child commits.
const childEnv = "DROWSE_STORE_TEST_CHILD"

// commitForever commits generation after generation of one sandbox, with two
// log entries each, and reports each on standard output when Commit has
// returned.
func commitForever(path string) int {
	ctx := context.Background()
	s, err := store.Open(ctx, path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	n, err := generationIn(ctx, s)
	for err == nil {
		n++
		sb := record("a", n)
		sb.Rev = n - 1
		err = s.Commit(ctx, sb, lines(n, "first", strings.Repeat("second", int(n%700))))
		if err == nil {
			_, err = fmt.Println(n)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// generationIn returns the generation of the only record, zero without one.
func generationIn(ctx context.Context, s store.Store) (int64, error) {
	all, err := s.Sandboxes(ctx)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[0].Record.Generation, nil
}

// TestKill kills a process while it commits and looks at what it left. A
// process's death takes nothing from the kernel's cache, so this is about
// order and recovery; TestPragmas is about power.
func TestKill(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	path := newPath(t)
	seed := testmode.Seed()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range rounds {
		reported := killDuringCommit(t, path, 1+random.IntN(150))
		checkCommits(t, path, reported)
	}
}

// killDuringCommit lets a child report some commits, kills it, and returns the
// last generation that it reported.
func killDuringCommit(t *testing.T, path string, commits int) (reported int64) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	for r := bufio.NewReader(out); ; commits-- {
		if commits == 0 {
			_ = child.Process.Kill() // and go on to read what it said before
		}
		line, err := r.ReadString('\n')
		if err == io.EOF {
			if commits > 0 {
				t.Fatalf("the child died by itself, after generation %d", reported)
			}
			return reported
		}
		if err != nil {
			t.Fatal(err)
		}
		reported, err = strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkCommits checks that everything reported is there, at most one commit
// more, and every commit whole.
func checkCommits(t *testing.T, path string, reported int64) {
	t.Helper()
	s := open(t, path)
	defer s.Close()
	last, err := generationIn(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if last != reported && last != reported+1 {
		t.Fatalf("the record is at %d, and %d was reported", last, reported)
	}
	events, err := s.Events(t.Context(), "a", 0, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(events)) != 2*last {
		t.Fatalf("%d log entries with the record at %d", len(events), last)
	}
	for i, e := range events {
		if e.Generation != int64(i/2+1) {
			t.Fatalf("entry %d is of generation %d", i, e.Generation)
		}
	}
	checkIntegrity(t, path)
}

func checkIntegrity(t *testing.T, path string) {
	t.Helper()
	db := shellDB(t, path)
	defer db.Close()
	var verdict string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity check: %s, %v", verdict, err)
	}
}
