package layer

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/testmode"
)

var (
	sameSeed  = flag.Uint64("same.seed", 0, "seed of the random steps; 0 for fixed ones")
	sameSteps = flag.Int("same.steps", 0, "number of random steps; 0 for as many as fit")
)

// TestTreeStaysTheSame changes a tree at random through all names that its files have,
// and pauses, snapshots, forks and merges in between. What is in each file is what a
// model without layers says; and before and after a pause, a program sees the same,
// but for change times and inode numbers.
func TestTreeStaysTheSame(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5}
	if *sameSeed != 0 {
		seeds = []uint64{*sameSeed}
	}
	steps := cmp.Or(*sameSteps, testmode.Choose(400, 2000))
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, seed)
			for range steps {
				m.step()
				if t.Failed() {
					t.Fatalf("after\n%s", strings.Join(m.done[max(0, len(m.done)-60):], "\n"))
				}
			}
		})
	}
}

// model is a tree as it should be, and a stack that shows it.
type model struct {
	*checkpoint
	rng   *rand.Rand
	at    string // where the top is mounted
	top   string
	count int
	files map[string]*modelFile // by path; of a directory nil
	done  []string
}

// modelFile is a file, which may have several names.
type modelFile struct {
	target  string // of a symbolic link
	data    []byte
	mode    uint32
	xattr   string
	modTime time.Time
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{rng: rand.New(rand.NewPCG(seed, 28)), checkpoint: &checkpoint{rig: newRig(t), digests: map[string]string{}}, files: map[string]*modelFile{"": nil}}
	lower := m.trees[0].Lowers[0]
	m.write(filepath.Join(lower, "home/d/a"), "template")
	m.must(os.Link(filepath.Join(lower, "home/d/a"), filepath.Join(lower, "home/b")))
	a := &modelFile{data: []byte("template"), mode: 0o644}
	var st unix.Stat_t
	m.must(unix.Lstat(filepath.Join(lower, "home/b"), &st))
	a.modTime = time.Unix(st.Mtim.Unix())
	m.files["d"], m.files["d/a"], m.files["b"] = nil, a, a
	m.mountNext()
	t.Cleanup(func() { m.must(Unmount(m.at)) })
	return m
}

func (m *model) mountNext() {
	m.t.Helper()
	m.count++
	m.top, m.at = fmt.Sprintf("top%d", m.count), filepath.Join(m.dir, fmt.Sprintf("at%d", m.count))
	m.must(m.Mount(m.at, m.trees, m.stack, m.top))
}

func (m *model) path(name string) string { return filepath.Join(m.at, "home", name) }

// pick returns the path of a random directory or of something else.
func (m *model) pick(dir bool) string {
	var all []string
	for p, f := range m.files {
		if (f == nil) == dir {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return all[m.rng.IntN(len(all))]
}

// fresh returns a path that may be free.
func (m *model) fresh() string {
	return filepath.Join(m.pick(true), fmt.Sprintf("n%d", m.rng.IntN(9)))
}

func (m *model) step() {
	m.t.Helper()
	switch n := m.rng.IntN(100); {
	case n < 4:
		m.pause(false)
	case n < 6:
		m.pause(true)
	case n < 8:
		m.snapshot()
	default:
		m.change()
	}
}

// note says what is done, for when it goes wrong.
func (m *model) note(format string, args ...any) {
	m.done = append(m.done, fmt.Sprintf(format, args...))
}

func (m *model) change() {
	m.t.Helper()
	m.count++
	old, fresh := m.pick(false), m.fresh()
	f := m.files[old]
	switch kind := m.rng.IntN(14); {
	case len(m.files) < 5 || kind == 0:
		m.create(fresh)
	case f == nil:
	case kind <= 2:
		m.link(old, fresh)
	case kind <= 5:
		m.writeTo(old, f)
	case kind == 6:
		m.move(old, fresh)
	case kind == 7:
		m.note("remove %s", old)
		m.must(os.Remove(m.path(old)))
		delete(m.files, old)
	case kind == 8:
		m.makeDir(fresh)
	case kind == 9:
		m.moveDir(m.pick(true), fresh)
	case kind == 10:
		m.removeDir(m.pick(true))
	case kind == 11 && f.target == "":
		f.mode = 0o600 | uint32(m.rng.IntN(64))
		m.note("chmod %s %o", old, f.mode)
		m.must(unix.Chmod(m.path(old), f.mode))
	case kind == 12:
		f.modTime = time.Unix(int64(m.count)*1000, int64(m.count)*1001)
		ts := unix.NsecToTimespec(f.modTime.UnixNano())
		m.note("utimes %s", old)
		m.must(unix.UtimesNanoAt(unix.AT_FDCWD, m.path(old), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	case kind == 13 && f.target == "":
		f.xattr = fmt.Sprint(m.count)
		m.note("setxattr %s", old)
		m.must(unix.Lsetxattr(m.path(old), "user.note", []byte(f.xattr), 0))
	}
}

func (m *model) taken(path string) bool { _, ok := m.files[path]; return ok }

func (m *model) create(path string) {
	if m.taken(path) {
		return
	}
	f := &modelFile{mode: 0o640}
	m.note("create %s", path)
	if m.rng.IntN(8) == 0 {
		f.target, f.mode = fmt.Sprint("to ", m.count), 0o777
		m.must(os.Symlink(f.target, m.path(path)))
	} else {
		f.data = fmt.Append(nil, "made ", m.count)
		m.must(os.WriteFile(m.path(path), f.data, 0o600))
		m.must(unix.Chmod(m.path(path), f.mode))
	}
	m.files[path] = f
	m.timed(path)
}

// timed takes over the time that a change has left.
func (m *model) timed(path string) {
	var st unix.Stat_t
	m.must(unix.Lstat(m.path(path), &st))
	m.files[path].modTime = time.Unix(st.Mtim.Unix())
}

func (m *model) link(old, path string) {
	if m.taken(path) {
		return
	}
	m.note("link %s to %s", path, old)
	m.must(unix.Linkat(unix.AT_FDCWD, m.path(old), unix.AT_FDCWD, m.path(path), 0))
	m.files[path] = m.files[old]
}

func (m *model) writeTo(path string, f *modelFile) {
	if f.target != "" {
		return
	}
	file, err := os.OpenFile(m.path(path), os.O_RDWR, 0)
	m.must(err)
	defer file.Close()
	text := fmt.Append(nil, "<", m.count, ">")
	at := len(f.data)
	switch m.rng.IntN(6) {
	case 0:
		at = m.rng.IntN(at + 1)
	case 1:
		if at < 1<<20 {
			at += 64 << 10 // leaves a hole
		}
	case 2:
		f.data = f.data[:m.rng.IntN(at+1)]
		m.note("truncate %s to %d", path, len(f.data))
		m.must(file.Truncate(int64(len(f.data))))
		m.timed(path)
		return
	}
	m.note("write %s to %s at %d", text, path, at)
	_, err = file.WriteAt(text, int64(at))
	m.must(err)
	f.data = slices.Concat(f.data, make([]byte, max(0, at+len(text)-len(f.data))))
	copy(f.data[at:], text)
	m.timed(path)
}

func (m *model) move(old, path string) {
	if f, ok := m.files[path]; path == old || ok && (f == nil || f == m.files[old]) {
		return
	}
	m.note("rename %s to %s", old, path)
	m.must(os.Rename(m.path(old), m.path(path)))
	m.files[path] = m.files[old]
	delete(m.files, old)
}

func (m *model) makeDir(path string) {
	if m.taken(path) {
		return
	}
	m.note("mkdir %s", path)
	m.must(os.Mkdir(m.path(path), 0o755))
	m.files[path] = nil
}

func (m *model) moveDir(old, path string) {
	if old == "" || m.taken(path) || strings.HasPrefix(path+"/", old+"/") {
		return
	}
	m.note("rename directory %s to %s", old, path)
	m.must(os.Rename(m.path(old), m.path(path)))
	for p, f := range maps.Clone(m.files) {
		if rest, ok := strings.CutPrefix(p+"/", old+"/"); ok {
			m.files[filepath.Join(path, rest)] = f
			delete(m.files, p)
		}
	}
}

func (m *model) removeDir(path string) {
	if path == "" || m.rng.IntN(3) > 0 {
		return
	}
	m.note("remove directory %s", path)
	m.must(os.RemoveAll(m.path(path)))
	maps.DeleteFunc(m.files, func(p string, _ *modelFile) bool { return strings.HasPrefix(p+"/", path+"/") })
}

// pause freezes the top and goes on over it, maybe over a merged stack.
func (m *model) pause(merge bool) {
	m.t.Helper()
	m.note("pause")
	want := m.look()
	frozen, err := m.Freeze(m.t.Context(), m.top)
	m.must(err)
	m.must(Unmount(m.at))
	m.add(m.top, frozen)
	if merge && len(m.stack) > 1 {
		m.merge()
	}
	m.must(m.VerifyStack(m.t.Context(), m.stack, m.digests))
	m.mountNext()
	diff(m.t, want, m.look())
	m.compare()
}

func (m *model) add(id string, frozen Frozen) {
	if frozen.Changed {
		m.stack = append(slices.Clip(m.stack), id)
		m.digests[id] = frozen.Digest
	}
}

// merge merges some layers. Those that were merged stay, as if a snapshot had them.
func (m *model) merge() {
	from := m.rng.IntN(len(m.stack) - 1)
	to := from + 2 + m.rng.IntN(len(m.stack)-from-1)
	m.count++
	into := fmt.Sprintf("merged%d", m.count)
	m.note("merge layers %d to %d", from, to)
	digest, err := m.Merge(m.t.Context(), m.stack[from:to], m.digests, into, plenty)
	m.must(err)
	m.stack = slices.Concat(m.stack[:from], []string{into}, m.stack[to:])
	m.digests[into] = digest
}

// snapshot copies the top as it is used, and goes on with either: with the one that
// is used, or with the copy as a fork would.
func (m *model) snapshot() {
	m.t.Helper()
	m.note("snapshot")
	want := m.look()
	m.count++
	id := fmt.Sprintf("copy%d", m.count)
	st, err := m.Stage(id)
	m.must(err)
	defer func() { m.must(st.Remove()) }()
	w, err := st.CopyTop(m.t.Context(), m.top, 0, plenty)
	m.must(err)
	frozen, err := w.Close(m.t.Context())
	m.must(err)
	diff(m.t, want, m.look())
	if m.rng.IntN(2) == 0 || !frozen.Changed {
		return
	}
	m.note("go on with the fork")
	m.must(st.Place([]string{id}, ""))
	m.must(Unmount(m.at))
	m.add(id, frozen)
	m.mountNext()
	diff(m.t, want, m.look())
	m.compare()
}

// compare holds the tree to the model.
func (m *model) compare() {
	m.t.Helper()
	inodes := map[*modelFile]uint64{}
	names := map[*modelFile]int{}
	for _, f := range m.files {
		names[f]++
	}
	for path, f := range m.files {
		var st unix.Stat_t
		if err := unix.Lstat(m.path(path), &st); err != nil {
			m.t.Errorf("%s: %v", path, err)
			continue
		}
		if f == nil {
			continue
		}
		if inodes[f] == 0 {
			inodes[f] = st.Ino
		}
		data, target := []byte(nil), ""
		var err error
		if f.target != "" {
			target, err = os.Readlink(m.path(path))
		} else {
			data, err = os.ReadFile(m.path(path))
		}
		note, _ := attribute(m.path(path), "user.note")
		if err != nil || string(data) != string(f.data) || target != f.target || string(note) != f.xattr ||
			st.Mode&0o7777 != f.mode || time.Unix(st.Mtim.Unix()) != f.modTime {
			m.t.Errorf("%s has %.99q, target %q, mode %o, note %q, time %v, %v; want %.99q, %q, %o, %q, %v", path, data, target, st.Mode&0o7777, note, time.Unix(st.Mtim.Unix()), err, f.data, f.target, f.mode, f.xattr, f.modTime)
		}
		if int(st.Nlink) != names[f] || st.Ino != inodes[f] {
			m.t.Errorf("%s has %d names and inode %d, want %d and %d", path, st.Nlink, st.Ino, names[f], inodes[f])
		}
	}
}

// look returns all that a program sees of the tree, by path.
func (m *model) look() map[string]string {
	m.t.Helper()
	seen, err := look(m.path(""))
	m.must(err)
	return seen
}
