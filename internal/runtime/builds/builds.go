// Package builds keeps programs by their digests: the builds of this program
// that memory images need. A memory image is the state of a kernel, which only
// the build that wrote it is sure to read. So a server that has been upgraded
// wakes an older image with the program of that time.
//
// A kept program is a copy of its own, never a hard link: who installs a new
// program by writing over the old one would change both. Where the file system
// can share blocks between files, the copy takes no space.
//
// A program is checked against its digest before it is used, and used by the
// descriptor that was checked: what happens to its name later does not matter.
// Who may have which program run is up to the caller.
package builds

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// Reserve is how much space a copy must leave on the disk, in bytes: on a disk
// with less, sandboxes that sleep now need it more than upgrades to come.
const Reserve = 512 << 20

// ErrMissing is the error of a program that is not kept.
var ErrMissing = errors.New("it is not kept here")

// Program is a program whose digest is known. All but this process's own stay
// open until it ends, as few are ever needed.
type Program struct {
	Digest string   // SHA-256 in hex
	file   *os.File // nil for this process's own
	known  stamp
}

// stamp tells whether a file has changed since it was read.
type stamp struct {
	device, inode uint64
	size          int64
	written       unix.Timespec // not changed: its name may go
}

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	return stampFrom(&st)
}

func stampAt(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return stamp{}, err
	}
	return stampFrom(&st)
}

func stampFrom(st *unix.Stat_t) (stamp, error) {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return stamp{}, errors.New("it is no regular file")
	}
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim}, nil
}

// Of reads the program at path, which may be a link of /proc.
func Of(path string) (*Program, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read program: %w", err)
	}
	p, err := read(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read program: %w", err)
	}
	return p, nil
}

func read(f *os.File) (*Program, error) {
	p := &Program{file: f}
	var err error
	if p.known, err = stampOf(f); err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	p.Digest = hex.EncodeToString(h.Sum(nil))
	return p, nil
}

// own is where the kernel has the program of this process, whatever has become
// of its name.
const own = "/proc/self/exe"

// self is what Self has found; what has failed is tried again.
var self struct {
	sync.Mutex
	program *Program
}

// Self is the program that this process runs. It is read once.
func Self() (*Program, error) {
	self.Lock()
	defer self.Unlock()
	if self.program != nil {
		return self.program, nil
	}
	p, err := Of(own)
	if err != nil {
		return nil, err
	}
	defer p.file.Close()
	self.program = &Program{Digest: p.Digest, known: p.known}
	return self.program, nil
}

// Is reports whether the file at path is this very program: the same file, not
// one with the same contents.
func (p *Program) Is(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && uint64(st.Dev) == p.known.device && st.Ino == p.known.inode
}

// Path is where this process, and a child that it is about to start, finds the
// program.
func (p *Program) Path() string {
	if p.file == nil {
		return own
	}
	return fmt.Sprintf("/proc/self/fd/%d", p.file.Fd())
}

// unchanged reports whether an open program is still what was read.
func (p *Program) unchanged(f *os.File) bool {
	now, err := stampOf(f)
	return err == nil && now == p.known
}

// Store is a directory of programs.
type Store struct {
	dir string

	mu   sync.Mutex
	used map[string]*Program // that Open gave, by digest
	kept map[string]stamp    // of what Keep found or made, likewise
}

// At returns the store in a directory, which is made when there is something to
// keep.
func At(dir string) *Store {
	return &Store{dir: dir, used: map[string]*Program{}, kept: map[string]stamp{}}
}

// Path returns where something in the store is.
func (s *Store) Path(name string) string { return filepath.Join(s.dir, name) }

// Names returns what is in the store: digests of programs, and names of what was
// left unfinished, which are none.
func (s *Store) Names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

var digestForm = lazyregexp.New(`^[0-9a-f]{64}$`)

// IsDigest reports whether a name in the store is a program's.
func IsDigest(name string) bool { return digestForm.MatchString(name) }

// Keep has a program stay, durably. It refuses to use up the space that sandboxes
// need.
func (s *Store) Keep(p *Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.keep(p); err != nil {
		return fmt.Errorf("keep build %s: %w", p.Digest, err)
	}
	return nil
}

func (s *Store) keep(p *Program) error {
	if s.has(p.Digest) {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir, &disk); err != nil {
		return err
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < uint64(p.known.size)+Reserve {
		return fmt.Errorf("%d MiB of space are left, and it takes %d of them only where %d stay free", free>>20, p.known.size>>20, Reserve>>20)
	}
	unfinished := s.Path(p.Digest + ".new")
	if err := copyOf(p, unfinished); err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	if err := os.Rename(unfinished, s.Path(p.Digest)); err != nil {
		return err
	}
	var err error
	s.kept[p.Digest], err = stampAt(s.Path(p.Digest))
	return errors.Join(err, durable.Sync(s.dir), durable.Sync(filepath.Dir(s.dir)))
}

// has reports whether a program is kept and whole. It is read once.
func (s *Store) has(digest string) bool {
	now, err := stampAt(s.Path(digest))
	if err == nil && now == s.kept[digest] {
		return true
	}
	f, err := os.OpenFile(s.Path(digest), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	p, err := read(f)
	if err != nil || p.Digest != digest {
		return false
	}
	s.kept[digest] = p.known
	return true
}

// copyOf writes a durable copy that root alone can read and run.
func copyOf(p *Program, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	from, err := os.Open(p.Path())
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil {
		// No reflink: the kernel copies.
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
	if !p.unchanged(from) {
		return errors.New("the program was changed meanwhile")
	}
	return to.Sync()
}

// Open returns a kept program that is what its digest says. The error is
// ErrMissing, or says what is wrong with it.
func (s *Store) Open(digest string) (*Program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open(digest)
}

func (s *Store) open(digest string) (*Program, error) {
	if !IsDigest(digest) {
		return nil, fmt.Errorf("%.100q is no digest of a program", digest)
	}
	path := s.Path(digest)
	if p := s.used[digest]; p != nil && p.Is(path) && p.unchanged(p.file) {
		return p, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, err
	}
	p, err := read(f)
	if err == nil && p.Digest != digest {
		err = fmt.Errorf("%s is damaged: its SHA-256 is %s", path, p.Digest)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s.used[digest] = p // one that it replaces may be in use still
	return p, nil
}

// Remove deletes something in the store. It is idempotent. What runs of it goes
// on.
func (s *Store) Remove(name string) error {
	if err := os.Remove(s.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove build: %w", err)
	}
	return nil
}
