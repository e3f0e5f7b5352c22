// Package powercut shows tests what a power cut can leave of a directory.
//
// [Record] runs a process and notes every system call by which it changes files,
// in order. [Recording.Replay] then cuts the power after some of these calls: it
// makes copies of the directory with all that an fsync had made durable by then,
// and of the rest as much as a disk may have taken by chance. It believes no more
// than POSIX promises:
//
//   - a file's contents, size and mode are durable once that file was synced;
//   - a name (made, renamed, removed) is, once its directory was synced;
//   - each change that was not synced is there or not, whatever came before or
//     after it, and of a write each sector for itself.
//
// What the process writes to its standard output is what it has promised. Memory
// mapped files, device nodes and extended attributes are beyond it: Record fails if
// replaying all that it noted does not give the directory as the process left it.
// The names of a file with several are files of their own in the copies.
package powercut

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// node is a file, directory or symbolic link, whatever its names.
type node struct {
	kind   fs.FileMode // its type
	mode   uint32      // the permissions it was made with, as chmod takes them
	target string      // of a symbolic link
	first  string      // the first path it had, for reports
}

// disk is the contents of a directory.
type disk struct {
	root  *node
	files map[*node][]byte
	modes map[*node]uint32
	names map[*node]map[string]*node // by directory
}

func newDisk(root *node) *disk {
	return &disk{root: root, files: map[*node][]byte{}, modes: map[*node]uint32{}, names: map[*node]map[string]*node{root: {}}}
}

// clone returns a copy that shares no contents of the nodes in changed.
func (d *disk) clone(changed map[*node]bool) *disk {
	c := newDisk(d.root)
	for n, data := range d.files {
		if changed[n] {
			data = append([]byte(nil), data...)
		}
		c.files[n] = data
	}
	for n, mode := range d.modes {
		c.modes[n] = mode
	}
	for dir, names := range d.names {
		c.names[dir] = map[string]*node{}
		for name, n := range names {
			c.names[dir][name] = n
		}
	}
	return c
}

// load reads the directory at path.
func load(path string) (*disk, error) {
	d := newDisk(&node{kind: fs.ModeDir})
	err := filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Sys().(*syscall.Stat_t).Mode & 0o7777
		if p == path {
			d.modes[d.root] = mode
			return nil
		}
		n := &node{kind: info.Mode().Type(), mode: mode, first: strings.TrimPrefix(p, path+"/")}
		d.add(n)
		d.names[d.find(filepath.Dir(n.first))][e.Name()] = n
		switch n.kind {
		case fs.ModeDir:
		case fs.ModeSymlink:
			n.target, err = os.Readlink(p)
		case 0:
			d.files[n], err = os.ReadFile(p)
		default:
			err = fmt.Errorf("%s is neither a file, a directory nor a symbolic link", p)
		}
		return err
	})
	return d, err
}

// store writes the contents of a directory to one that does not exist.
func (d *disk) store(path string) error { return d.storeNode(d.root, path) }

func (d *disk) storeNode(n *node, path string) error {
	switch n.kind {
	case fs.ModeSymlink:
		return os.Symlink(n.target, path)
	case 0:
		if err := os.WriteFile(path, d.files[n], 0o600); err != nil {
			return err
		}
		return syscall.Chmod(path, d.modes[n])
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	for name, child := range d.names[n] {
		if err := d.storeNode(child, filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return syscall.Chmod(path, d.modes[n])
}

// find returns what a path below the directory names, nil if it is nothing.
func (d *disk) find(rel string) *node {
	n := d.root
	if rel == "." {
		return n
	}
	for name := range strings.SplitSeq(rel, "/") {
		if n = d.names[n][name]; n == nil {
			return nil
		}
	}
	return n
}

// change is something that happens to a node.
type change interface {
	// of is the node whose sync makes the change durable.
	of() *node
	apply(d *disk)
	String() string
}

// write puts data into a file.
type write struct {
	file *node
	at   int64
	data []byte
}

func (w write) of() *node { return w.file }

func (w write) apply(d *disk) {
	d.resize(w.file, max(int64(len(d.files[w.file])), w.at+int64(len(w.data))))
	copy(d.files[w.file][w.at:], w.data)
}

func (w write) String() string {
	return fmt.Sprintf("write of %d bytes at %d to %s", len(w.data), w.at, w.file.first)
}

// sectors returns the write as one of each sector that it touches.
func (w write) sectors() []write {
	var parts []write
	for at, data := w.at, w.data; len(data) > 0; {
		n := min(sector-at%sector, int64(len(data)))
		parts = append(parts, write{w.file, at, data[:n]})
		at, data = at+n, data[n:]
	}
	return parts
}

// resize sets the length of a file.
type resize struct {
	file *node
	size int64
}

func (r resize) of() *node      { return r.file }
func (r resize) apply(d *disk)  { d.resize(r.file, r.size) }
func (r resize) String() string { return fmt.Sprintf("new size %d of %s", r.size, r.file.first) }

func (d *disk) resize(file *node, size int64) {
	data := d.files[file]
	if int64(len(data)) > size {
		d.files[file] = data[:size:size]
		return
	}
	d.files[file] = append(data, make([]byte, size-int64(len(data)))...)
}

// grow is what is left of a write of which only the new length of the file was
// taken.
type grow struct{ write }

func (g grow) apply(d *disk) {
	d.resize(g.file, max(int64(len(d.files[g.file])), g.at+int64(len(g.data))))
}

// chmod sets the mode of a node.
type chmod struct {
	node *node
	mode uint32
}

func (c chmod) of() *node { return c.node }
func (c chmod) apply(d *disk) {
	d.add(c.node)
	d.modes[c.node] = c.mode
}
func (c chmod) String() string { return fmt.Sprintf("new mode %o of %s", c.mode, c.node.first) }

// naming is what happens to the names in a directory in one step: a nil node is
// a name that goes.
type naming struct {
	dir     *node
	entries map[string]*node
	what    string
}

func (n naming) of() *node { return n.dir }

func (n naming) apply(d *disk) {
	d.add(n.dir) // it may have no name itself
	for name, to := range n.entries {
		if to == nil {
			delete(d.names[n.dir], name)
			continue
		}
		d.names[n.dir][name] = to
		d.add(to)
	}
}

// add makes a node as it is when it is new.
func (d *disk) add(n *node) {
	if _, there := d.modes[n]; there {
		return
	}
	d.modes[n] = n.mode
	if n.kind == fs.ModeDir {
		d.names[n] = map[string]*node{}
	}
}

func (n naming) String() string { return fmt.Sprintf("%s in %s", n.what, n.dir.path()) }

func (n *node) path() string {
	if n.first == "" {
		return "."
	}
	return n.first
}

// differs says in what two directories differ, "" if in nothing.
func (d *disk) differs(other *disk) string { return d.differsAt(d.root, other, other.root, ".") }

func (d *disk) differsAt(n *node, other *disk, o *node, path string) string {
	switch {
	case n.kind != o.kind || n.target != o.target || d.modes[n] != other.modes[o]:
		return fmt.Sprintf("%s is %v %o %q and %v %o %q", path, n.kind, d.modes[n], n.target, o.kind, other.modes[o], o.target)
	case string(d.files[n]) != string(other.files[o]):
		return fmt.Sprintf("%s has other contents (%d and %d bytes)", path, len(d.files[n]), len(other.files[o]))
	}
	for name := range d.names[n] {
		if other.names[o][name] == nil {
			return fmt.Sprintf("%s/%s is in one alone", path, name)
		}
	}
	for name, child := range other.names[o] {
		if d.names[n][name] == nil {
			return fmt.Sprintf("%s/%s is in the other alone", path, name)
		}
		if differs := d.differsAt(d.names[n][name], other, child, path+"/"+name); differs != "" {
			return differs
		}
	}
	return ""
}
