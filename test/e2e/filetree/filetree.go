// Package filetree changes a directory tree step by step and keeps account,
// independently of any file system, of what the tree must then look like. The
// same steps applied to a real directory must give the same listing.
package filetree

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Verb says what a step does.
type Verb string

// The verbs.
const (
	Mkdir   Verb = "mkdir"
	Write   Verb = "write"   // make or replace, with Size bytes that follow from Seed
	Append  Verb = "append"  // the same, at the end
	Chmod   Verb = "chmod"   // of a file or directory
	Symlink Verb = "symlink" // Path points to To
	Link    Verb = "link"    // Path becomes another name of To
	Rename  Verb = "rename"  // Path becomes To
	Remove  Verb = "remove"  // with all below
)

// Step is one change. Paths are relative to the tree's root, slash-separated.
type Step struct {
	Do   Verb
	Path string
	To   string      `json:",omitempty"`
	Mode fs.FileMode `json:",omitempty"` // permission bits of mkdir, write and chmod
	Seed uint64      `json:",omitempty"`
	Size int         `json:",omitempty"`
}

// Entry is what a listing says of one path.
type Entry struct {
	Type   string      `json:",omitempty"` // "dir", "file", "symlink"
	Mode   fs.FileMode `json:",omitempty"`
	Size   int         `json:",omitempty"`
	SHA256 string      `json:",omitempty"`
	Target string      `json:",omitempty"` // of a symbolic link
	Twin   string      `json:",omitempty"` // the first other name of the same file
}

// Listing describes a tree by path.
type Listing map[string]Entry

// Hash returns a digest of everything in the listing.
func (l Listing) Hash() string {
	data, err := json.Marshal(l) // sorted by path
	if err != nil {
		panic(err)
	}
	return digest(data)
}

// Diff returns a line for each path at which got is not want.
func Diff(got, want Listing) []string {
	all := maps.Clone(want)
	maps.Copy(all, got)
	var lines []string
	for _, p := range slices.Sorted(maps.Keys(all)) {
		g, there := got[p]
		w, wanted := want[p]
		switch {
		case !there:
			lines = append(lines, fmt.Sprintf("%s is missing, want %+v", p, w))
		case !wanted:
			lines = append(lines, fmt.Sprintf("%s is there, want nothing: %+v", p, g))
		case g != w:
			lines = append(lines, fmt.Sprintf("%s is %+v, want %+v", p, g, w))
		}
	}
	return lines
}

// content returns size bytes that follow from seed.
func content(seed uint64, size int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	data := make([]byte, size)
	rand.NewChaCha8(key).Read(data)
	return data
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Apply carries out steps below the directory root.
func Apply(root string, steps []Step) error {
	for _, s := range steps {
		if err := s.apply(root); err != nil {
			return fmt.Errorf("%s %s: %w", s.Do, s.Path, err)
		}
	}
	return nil
}

func (s Step) apply(root string) error {
	at := filepath.Join(root, s.Path)
	switch s.Do {
	case Mkdir:
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		return os.Chmod(at, s.Mode)
	case Write:
		if err := write(at, os.O_TRUNC|os.O_CREATE, content(s.Seed, s.Size)); err != nil {
			return err
		}
		return os.Chmod(at, s.Mode)
	case Append:
		return write(at, os.O_APPEND, content(s.Seed, s.Size))
	case Chmod:
		return os.Chmod(at, s.Mode)
	case Symlink:
		return os.Symlink(s.To, at)
	case Link:
		return os.Link(filepath.Join(root, s.To), at)
	case Rename:
		return os.Rename(at, filepath.Join(root, s.To))
	case Remove:
		return os.RemoveAll(at)
	}
	return fmt.Errorf("unknown step %q", s.Do)
}

func write(at string, flag int, data []byte) error {
	f, err := os.OpenFile(at, os.O_WRONLY|flag, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// List describes the tree below the directory root.
func List(root string) (Listing, error) {
	l, first := Listing{}, map[uint64]string{}
	err := filepath.WalkDir(root, func(at string, _ fs.DirEntry, err error) error {
		if err != nil || at == root {
			return err
		}
		rel := strings.TrimPrefix(at, root+"/")
		e, inode, err := describe(at)
		if err != nil {
			return err
		}
		if inode != 0 {
			if twin, ok := first[inode]; ok {
				e.Twin = twin
			} else {
				first[inode] = rel
			}
		}
		l[rel] = e
		return nil
	})
	return l, err
}

// describe also returns the inode number of a file that has several names.
func describe(at string) (Entry, uint64, error) {
	info, err := os.Lstat(at)
	if err != nil {
		return Entry{}, 0, err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(at)
		return Entry{Type: "symlink", Target: target}, 0, err
	case info.IsDir():
		return Entry{Type: "dir", Mode: info.Mode().Perm()}, 0, nil
	}
	data, err := os.ReadFile(at)
	if err != nil {
		return Entry{}, 0, err
	}
	e := Entry{Type: "file", Mode: info.Mode().Perm(), Size: len(data), SHA256: digest(data)}
	if int64(len(data)) != info.Size() {
		return e, 0, fmt.Errorf("%s: stat says %d bytes, reading gives %d", at, info.Size(), len(data))
	}
	st := info.Sys().(*syscall.Stat_t)
	if st.Nlink < 2 {
		return e, 0, nil
	}
	return e, st.Ino, nil
}

// Model is what a tree must look like.
type Model struct{ nodes map[string]*node }

type node struct {
	kind   string
	mode   fs.FileMode
	data   []byte
	target string
}

// NewModel returns the empty tree.
func NewModel() *Model { return &Model{nodes: map[string]*node{}} }

// Apply accounts for steps. It panics on one that cannot be carried out: that
// is a mistake in the test.
func (m *Model) Apply(steps []Step) {
	for _, s := range steps {
		m.apply(s)
	}
}

func (m *Model) apply(s Step) {
	switch s.Do {
	case Mkdir:
		m.nodes[s.Path] = &node{kind: "dir", mode: s.Mode}
	case Write:
		n := m.nodes[s.Path]
		if n == nil {
			n = &node{kind: "file"}
			m.nodes[s.Path] = n
		}
		n.data, n.mode = content(s.Seed, s.Size), s.Mode
	case Append:
		n := m.must(s.Path)
		n.data = append(bytes.Clone(n.data), content(s.Seed, s.Size)...)
	case Chmod:
		m.must(s.Path).mode = s.Mode
	case Symlink:
		m.nodes[s.Path] = &node{kind: "symlink", target: s.To}
	case Link:
		m.nodes[s.Path] = m.must(s.To)
	case Rename:
		m.must(s.Path)
		m.remove(s.To)
		m.move(s.Path, s.To)
	case Remove:
		m.must(s.Path)
		m.remove(s.Path)
	}
}

func (m *Model) must(p string) *node {
	n := m.nodes[p]
	if n == nil {
		panic("filetree: no " + p)
	}
	return n
}

func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (m *Model) remove(dir string) {
	maps.DeleteFunc(m.nodes, func(p string, _ *node) bool { return below(p, dir) })
}

func (m *Model) move(from, to string) {
	for _, p := range slices.Collect(maps.Keys(m.nodes)) {
		if below(p, from) {
			m.nodes[path.Join(to, strings.TrimPrefix(p, from))] = m.nodes[p]
			delete(m.nodes, p)
		}
	}
}

// Files returns the paths of the regular files, sorted.
func (m *Model) Files() []string {
	var files []string
	for p, n := range m.nodes {
		if n.kind == "file" {
			files = append(files, p)
		}
	}
	slices.Sort(files)
	return files
}

// Names returns how many names the file at p has.
func (m *Model) Names(p string) int {
	count := 0
	for _, n := range m.nodes {
		if n == m.nodes[p] {
			count++
		}
	}
	return count
}

// List describes the model as List describes a directory.
func (m *Model) List() Listing {
	l, first := Listing{}, map[*node]string{}
	for _, p := range slices.SortedFunc(maps.Keys(m.nodes), walkOrder) {
		n := m.nodes[p]
		e := Entry{Type: n.kind, Mode: n.mode, Target: n.target}
		if n.kind == "file" {
			e.Size, e.SHA256 = len(n.data), digest(n.data)
			if twin, ok := first[n]; ok {
				e.Twin = twin
			} else {
				first[n] = p
			}
		}
		l[p] = e
	}
	return l
}

// walkOrder is the order in which filepath.WalkDir visits: name by name.
func walkOrder(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}
