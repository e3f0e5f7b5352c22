package layer

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var (
	mergeSeed   = flag.Uint64("merge.seed", 0, "first seed of the random stacks; 0 for that of testmode")
	mergeStacks = flag.Int("merge.stacks", 0, "number of random stacks; 0 for as many as fit")
)

// TestMergeShowsTheSame makes random stacks by using them, as sandboxes do, and
// merges random parts of them. What a mount shows must never change.
func TestMergeShowsTheSame(t *testing.T) {
	for n := range cmp.Or(*mergeStacks, testmode.Choose(4, 30)) {
		seed := cmp.Or(*mergeSeed, testmode.Seed()) + uint64(n)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newHistory(t, seed)
			for n := range 3 {
				for deep := 2 + h.rng.IntN(6); len(h.stack) < deep; {
					h.layer() // the later ones go on with what was merged
				}
				want := h.view()
				from := h.rng.IntN(len(h.stack) - 1)
				to := from + 2 + h.rng.IntN(len(h.stack)-from-1)
				h.merge(from, to, fmt.Sprintf("merged%d", n))
				diff(t, want, h.view())
				if t.Failed() {
					t.Fatalf("after merging layers %d to %d\n%s", from, to-1, strings.Join(h.done, "\n"))
				}
			}
		})
	}
}

// history is a stack that grows by random changes.
type history struct {
	*checkpoint
	rng   *rand.Rand
	done  []string
	count int
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 7)), checkpoint: &checkpoint{rig: newRig(t), digests: map[string]string{}}}
	lower := h.trees[0].Lowers[0]
	for _, path := range []string{"a/b/c/1", "a/b/2", "a/3", "d/e/4", "d/5", "f/6"} {
		h.write(filepath.Join(lower, path), "template "+path)
	}
	h.must(os.Link(filepath.Join(lower, "a/3"), filepath.Join(lower, "d/linked")))
	return h
}

// layer adds a layer of random changes, if it comes to any.
func (h *history) layer() {
	h.t.Helper()
	h.count++
	id := fmt.Sprintf("layer%d", h.count)
	h.done = append(h.done, id)
	h.frozen(id, func(at string) {
		for range 1 + h.rng.IntN(14) {
			h.change(at)
		}
	})
	if h.digests[id] == "" { // nothing changed
		h.stack = h.stack[:len(h.stack)-1]
		h.must(h.RemoveLayer(id))
	}
}

// change does one random thing. What is not possible does nothing.
func (h *history) change(at string) {
	tree := at
	if h.rng.IntN(5) == 0 {
		tree = filepath.Join(at, "usr")
	}
	old, dir := h.pick(tree, false), h.pick(tree, true)
	fresh := filepath.Join(h.pick(tree, true), fmt.Sprintf("n%d", h.rng.IntN(12)))
	h.count++
	changes := []struct {
		name string
		do   func() error
	}{
		{"write", func() error { return put(fresh, fmt.Sprint(h.count), os.O_CREATE|os.O_TRUNC) }},
		{"sparse", func() error {
			if err := put(fresh, "x", os.O_CREATE|os.O_EXCL); err != nil {
				return err
			}
			return errors.Join(os.Truncate(fresh, 5*ChunkSize+3), writeAt(fresh, 3*ChunkSize, "y"))
		}},
		{"mkdir", func() error { return os.Mkdir(fresh, 0o750) }},
		{"mkdir", func() error { return os.MkdirAll(filepath.Join(fresh, "x/y"), 0o755) }},
		{"symlink", func() error { return os.Symlink("somewhere", fresh) }},
		{"fifo", func() error { return unix.Mkfifo(fresh, 0o622) }},
		{"device", func() error { return unix.Mknod(fresh, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) }},
		{"append", func() error { return put(old, fmt.Sprint(h.count), os.O_APPEND) }},
		{"remove", func() error { return os.Remove(old) }},
		{"removeall", func() error { return os.RemoveAll(dir) }},
		{"rename", func() error { return os.Rename(old, fresh) }},
		{"rename", func() error { return os.Rename(dir, fresh) }},
		{"rename", func() error { return os.Rename(dir, fresh) }},
		{"again", func() error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o711)) }},
		{"exchange", func() error {
			return unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, h.pick(tree, true), unix.RENAME_EXCHANGE)
		}},
		{"file for dir", func() error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o644)) }},
		{"dir for file", func() error { return errors.Join(os.Remove(old), os.Mkdir(old, 0o755)) }},
		{"link", func() error { return os.Link(old, fresh) }},
		{"chmod", func() error { return unix.Chmod(old, 0o4755) }},
		{"chmod", func() error { return unix.Chmod(dir, 0o2775) }},
		{"chown", func() error { return os.Lchown(old, 1000, 1001) }},
		{"chown", func() error { return os.Lchown(dir, 1000, 1001) }},
		{"setxattr", func() error { return unix.Lsetxattr(old, "user.note", fmt.Append(nil, h.count), 0) }},
		{"setxattr", func() error { return unix.Lsetxattr(dir, "user.note", fmt.Append(nil, h.count), 0) }},
		{"acl", func() error { return unix.Lsetxattr(dir, "system.posix_acl_default", defaultACL, 0) }},
		{"utimes", func() error {
			when := time.Unix(int64(h.count)*1000, 77)
			return os.Chtimes(dir, when, when)
		}},
	}
	const making = 7 // of them leave alone what is there
	n := h.rng.IntN(len(changes))
	if dir == tree || old == tree { // the roots stay
		n = h.rng.IntN(making)
	}
	err := changes[n].do()
	h.done = append(h.done, fmt.Sprintf("  %s old %s dir %s fresh %s: %v", changes[n].name, old[len(at):], dir[len(at):], fresh[len(at):], err))
}

// defaultACL gives user 5 all, in what is made in a directory that has it.
var defaultACL = []byte{2, 0, 0, 0,
	1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 5, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255}

// put writes to a file, and waits for nobody at a FIFO.
func put(path, text string, flags int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|flags, 0o640)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// pick returns a random directory below dir or dir itself, or a random file.
func (h *history) pick(dir string, isDir bool) string {
	h.t.Helper()
	all := []string{dir}
	h.must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path != dir && d.Name() == "usr" {
			return fs.SkipDir // the other tree
		}
		if err == nil && d.IsDir() == isDir {
			all = append(all, path)
		}
		return err
	}))
	return all[h.rng.IntN(len(all))]
}

// merge merges the layers from up to to, and removes them.
func (h *history) merge(from, to int, into string) {
	h.t.Helper()
	digest, err := h.Merge(h.t.Context(), h.stack[from:to], h.digests, into, plenty)
	h.must(err)
	for _, id := range h.stack[from:to] {
		h.must(h.RemoveLayer(id))
	}
	h.stack = slices.Concat(h.stack[:from], []string{into}, h.stack[to:])
	h.digests[into] = digest
	h.must(h.VerifyStack(h.t.Context(), h.stack, h.digests))
}

// view returns all that a mount of the stack shows, by path.
func (h *history) view() map[string]string {
	h.t.Helper()
	at := filepath.Join(h.dir, "view")
	h.must(h.Mount(at, h.trees, h.stack, "view"))
	defer func() {
		h.must(Unmount(at))
		h.must(h.RemoveLayer("view"))
	}()
	seen, err := look(at)
	h.must(err)
	delete(seen, "") // the roots belong to the top, which is new
	delete(seen, "usr")
	return seen
}

// look returns all that a program sees of a tree, by path, but for change times and
// inode numbers. Of these it says which names are of one file.
func look(root string) (map[string]string, error) {
	seen := map[string]string{}
	first := map[uint64]string{} // name of an inode
	return seen, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); errors.Is(err, unix.ENOENT) {
			seen[rel] = "a name of nothing"
			return nil
		} else if err != nil {
			return err
		}
		text := fmt.Sprintf("%o %d:%d rdev %d mtime %d", st.Mode, st.Uid, st.Gid, st.Rdev, st.Mtim.Nano())
		if !d.IsDir() { // overlayfs counts one link of a directory that lies in two layers
			first[st.Ino] = cmp.Or(first[st.Ino], rel)
			text += fmt.Sprintf(" size %d links %d first %s", st.Size, st.Nlink, first[st.Ino])
		}
		more, err := lookInto(path, &st)
		seen[rel] = text + more
		return err
	})
}

// lookInto returns the attributes of a file and what is in it.
func lookInto(path string, st *unix.Stat_t) (text string, err error) {
	names, err := attributeNames(path)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		value, err := attribute(path, name)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" %s=%q", name, value)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" sum %x data in %v", sha256.Sum256(data), pieces(path, st.Size))
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		text += " " + target
	}
	return text, nil
}

// pieces returns where a file has data. XFS, which writes zeros for some holes, tells
// that of the copy of a file only.
func pieces(path string, size int64) []Extent {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st unix.Statfs_t
	if unix.Statfs(os.TempDir(), &st) == nil && st.Type == unix.XFS_SUPER_MAGIC {
		return nil
	}
	return extents(f, size, maxExtents)
}

func diff(t *testing.T, want, got map[string]string) {
	t.Helper()
	all := maps.Clone(want)
	maps.Copy(all, got)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if want[path] != got[path] {
			t.Errorf("%s is\n  %s, want\n  %s", path, got[path], want[path])
		}
	}
}

// TestMergeKeepsDamageDamaged damages a layer ahead of a merge: either the merge
// sees it, or the merged layer has it, and is known not to be what was written.
func TestMergeKeepsDamageDamaged(t *testing.T) {
	home := func(c *checkpoint, name string) string { return filepath.Join(c.LayerDir("b"), "root/home", name) }
	for name, damage := range map[string]func(c *checkpoint) error{
		"contents":            func(c *checkpoint) error { return writeAt(home(c, "data"), 5, "!") },
		"mode":                func(c *checkpoint) error { return os.Chmod(home(c, "data"), 0o777) },
		"attribute":           func(c *checkpoint) error { return unix.Setxattr(home(c, "sparse"), "trusted.note", []byte("Kept"), 0) },
		"a removal forgotten": func(c *checkpoint) error { return os.Remove(filepath.Join(c.LayerDir("a"), "usr/bin/tool")) },
		"a file added":        func(c *checkpoint) error { return os.WriteFile(home(c, "new"), nil, 0o600) },
		"a rename forgotten": func(c *checkpoint) error {
			return unix.Removexattr(filepath.Join(c.LayerDir("b"), "root/etc2"), attrRedirect)
		},
		"listing":       func(c *checkpoint) error { return writeAt(filepath.Join(c.LayerDir("a"), listingName), 9, "?") },
		"a whole layer": func(c *checkpoint) error { return os.RemoveAll(c.LayerDir("a")) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCheckpoint(t)
			c.must(damage(c))
			digest, err := c.Merge(t.Context(), c.stack, c.digests, "merged", plenty)
			if err == nil {
				err = c.VerifyLayer(t.Context(), "merged", digest)
			}
			e, ok := errors.AsType[*errdef.Error](err)
			if !ok || e.Code != "checkpoint_damaged" {
				t.Errorf("%v, want it found", err)
			}
		})
	}
}

// TestMergedIsUndamaged is the same without damage, or the one above could not
// fail.
func TestMergedIsUndamaged(t *testing.T) {
	c := newCheckpoint(t)
	digest, err := c.Merge(t.Context(), c.stack, c.digests, "merged", plenty)
	c.must(err)
	c.must(c.VerifyLayer(t.Context(), "merged", digest))
	c.must(c.check()) // the layers are what they were
	if _, err := c.Merge(t.Context(), c.stack, c.digests, "merged", plenty); !errors.Is(err, fs.ErrExist) {
		t.Errorf("merged into a layer that is there: %v", err)
	}
}

// TestMergeOfRemoved removes layers while they are merged, at each file: a sandbox that
// goes back to a snapshot, or is killed, does not wait for a merge.
func TestMergeOfRemoved(t *testing.T) {
	for after := range 3 {
		c := newCheckpoint(t)
		copied := 0
		_, err := c.Merge(t.Context(), c.stack, c.digests, "merged", func() error {
			if copied++; copied == after+1 {
				for _, id := range c.stack {
					c.must(c.RemoveLayer(id))
				}
			}
			return nil
		})
		if copied <= after || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removed before file %d of %d: %v", after+1, copied, err)
		}
	}
}

// TestMergeOverUpgradedTemplate removes a directory from the template of which a
// layer hides a file: the mark of that must not show.
func TestMergeOverUpgradedTemplate(t *testing.T) {
	h := newHistory(t, 1)
	h.frozen("a", func(at string) { h.write(filepath.Join(at, "a/b/new"), "new") })
	h.frozen("b", func(at string) { h.must(os.Remove(filepath.Join(at, "a/b/2"))) })
	h.must(os.RemoveAll(filepath.Join(h.trees[0].Lowers[0], "a")))
	want := h.view()
	if want["a/b/2"] != "" || want["a/b/new"] == "" {
		t.Fatalf("before: %v", want)
	}
	h.merge(0, 2, "merged")
	diff(t, want, h.view())
}

// TestHidden counts what layers above others hide.
func TestHidden(t *testing.T) {
	h := newHistory(t, 1)
	h.frozen("a", func(at string) {
		h.write(filepath.Join(at, "n/replaced"), strings.Repeat("x", 1000))
		h.write(filepath.Join(at, "n/o/removed"), strings.Repeat("x", 100))
		h.write(filepath.Join(at, "n/kept"), strings.Repeat("x", 10))
	})
	h.frozen("b", func(at string) {
		h.write(filepath.Join(at, "n/replaced"), "y")
		h.must(os.RemoveAll(filepath.Join(at, "n/o")))
	})
	want := func(want ...Size) {
		t.Helper()
		if sizes, err := h.Hidden(h.stack, h.digests); err != nil || !slices.Equal(sizes, want) {
			t.Errorf("the layers are %+v, %v; want %+v", sizes, err, want)
		}
	}
	want(Size{Names: 8, Bytes: 1110, Hidden: 1100}, Size{Names: 6, Bytes: 1})
	h.merge(0, 2, "merged")
	want(Size{Names: 6, Bytes: 11})
	h.frozen("c", func(at string) {
		h.write(filepath.Join(at, "n/holes"), "")
		h.must(os.Truncate(filepath.Join(at, "n/holes"), 1<<30))
	})
	want(Size{Names: 6, Bytes: 11}, Size{Names: 5})
}
