package powercut

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// childEnv names the act that a child is to do in the current directory.
const childEnv = "DROWSE_POWERCUT_TEST_ACT"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := acts[name].do(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// acts are what a process does in a directory with a file "old" that says "old",
// and what is sure to be there when the power is cut in the end.
var acts = map[string]struct {
	do   func() error
	want string
}{
	"nothing is synced": {
		func() error { return errors.Join(put("new", "x", false), os.Remove("old"), os.Mkdir("d", 0o700)) },
		"old=old",
	},
	"a file is, its name is not": {
		func() error { return put("new", "x", true) },
		"old=old",
	},
	"a name is, its file is not": {
		func() error { return errors.Join(put("new", "x", false), synced(".")) },
		"new= old=old",
	},
	"both are": {
		func() error { return errors.Join(put("new", "x", true), synced(".")) },
		"new=x old=old",
	},
	"a rename is not": {
		func() error { return errors.Join(put("new", "x", true), synced("."), os.Rename("new", "old")) },
		"new=x old=old",
	},
	"a rename is": {
		func() error { return errors.Join(put("new", "x", true), os.Rename("new", "old"), synced(".")) },
		"old=x",
	},
	"a way into another directory is not": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", true), synced("d"), synced("."), os.Rename("d/new", "old"))
		},
		"d/new=x old=old",
	},
	"a way into another directory is": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", true), synced("."), os.Rename("d/new", "old"), synced("."))
		},
		"old=x",
	},
	"a link is not": {
		func() error { return errors.Join(os.Mkdir("d", 0o700), synced("."), os.Link("old", "d/new")) },
		"old=old",
	},
	"a link is, and the first name goes": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), synced("."), os.Link("old", "d/new"), synced("d"), os.Remove("old"), synced("."))
		},
		"d/new=old",
	},
	"the first name goes before the link is": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), synced("."), os.Link("old", "d/new"), os.Remove("old"), synced("."))
		},
		"",
	},
	"an exchange is": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", true), synced("."), exchange("d/new", "old"), synced("."), synced("d"))
		},
		"d/new=old old=x",
	},
	"one side of an exchange is": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", true), synced("d"), synced("."), exchange("d/new", "old"), synced("."))
		},
		"d/new=x old=x",
	},
	"a removal is": {
		func() error { return errors.Join(os.Remove("old"), synced(".")) },
		"",
	},
	"a directory is, its name is not": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", true), synced("d"))
		},
		"old=old",
	},
	"a directory and its name are": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", true), synced("d"), synced("."))
		},
		"d/new=x old=old",
	},
	"what was written after is not": {
		func() error {
			return errors.Join(put("new", "x", true), synced("."), add("new", "y"))
		},
		"new=x old=old",
	},
	"it says what it has done": {
		func() error {
			err := errors.Join(put("new", "x", true), synced("."))
			fmt.Println("done")
			return errors.Join(err, os.Remove("old"))
		},
		"new=x old=old",
	},
	"everything is": {
		func() error {
			return errors.Join(os.Mkdir("d", 0o700), put("d/new", "x", false), add("d/new", "y"), os.Truncate("old", 1), os.Symlink("a", "l"), syncAll())
		},
		"d/new=xy l->a old=o",
	},
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func put(name, data string, sync bool) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(data); err != nil || !sync {
		return err
	}
	return f.Sync()
}

func add(name, data string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(data)
	return err
}

func synced(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// syncAll is of the file system that the current directory is on.
func syncAll() error {
	f, err := os.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

func TestDurable(t *testing.T) {
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := recordAct(t, name)
			s := state{durable: r.before.clone(everything(r.before))}
			for _, c := range r.calls {
				s.step(c)
			}
			dir := filepath.Join(t.TempDir(), "after")
			if err := s.durable.store(dir); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, dir); got != act.want {
				t.Errorf("got %q, want %q", got, act.want)
			}
		})
	}
}

func recordAct(t *testing.T, name string) *Recording {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	child.Dir = dir
	child.Env = append(os.Environ(), childEnv+"="+name)
	return Record(t, dir, child)
}

// tree returns the files and links below a directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if d.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			all = append(all, rel+"->"+target)
			return err
		}
		data, err := os.ReadFile(path)
		all = append(all, rel+"="+string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestEndOfThreads: threads that end with their process leave calls that never
// happened.
func TestEndOfThreads(t *testing.T) {
	p := &parser{begun: map[string]unfinished{}}
	for _, line := range []string{
		"12  ???( <detached ...>", "12  ???( <unfinished ...>", "12  <... ??? resumed>) = ?",
		`13  write(3<\x2f\x61>, "\x41", 1 <detached ...>`,
	} {
		if err := p.line(line); err != nil || len(p.calls) > 0 {
			t.Errorf("%s: %v, %v", line, p.calls, err)
		}
	}
}

// TestChance holds that a cut can leave what was not synced, and parts of it.
func TestChance(t *testing.T) {
	r := recordAct(t, "nothing is synced")
	s := state{durable: r.before.clone(everything(r.before))}
	for _, c := range r.calls {
		s.step(c)
	}
	base := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	for n := range 1000 {
		dir := filepath.Join(base, fmt.Sprint(n))
		if err := s.with(s.some(random)).store(dir); err != nil {
			t.Fatal(err)
		}
		seen[tree(t, dir)] = true
	}
	for _, want := range []string{"old=old", "", "new= old=old", "new=x old=old", "new=x", "new=\x00 old=old"} {
		if !seen[want] {
			t.Errorf("%q was never left; seen %q", want, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// TestReplay holds that what a process said after a sync is there at each cut
// that comes later.
func TestReplay(t *testing.T) {
	r := recordAct(t, "it says what it has done")
	silent, said := 0, 0
	r.Replay(t, len(r.calls)+1, func(t *testing.T, dir string, lines []string) {
		if len(lines) == 0 {
			silent++
			return
		}
		said++
		if got := tree(t, dir); lines[0] != "done" || !strings.HasPrefix(got, "new=x") {
			t.Errorf("got %q after %q", got, lines)
		}
	})
	if silent < 2 || said < 2 {
		t.Errorf("%d cuts before it spoke, %d after", silent, said)
	}
}
