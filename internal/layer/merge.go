package layer

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/tree"
)

// Merge makes the new layer into of adjacent layers of a stack, bottom first.
// In their place, over whatever lies below them, it shows what they show. The
// layers are left as they are. When Merge returns the digest, the new one is
// durable; after an error the rest of it is the caller's to remove.
//
// Files are copied, names of one file as such. Another name for a file of a source
// would count as a link wherever that is mounted, and a sandbox would see it come and
// go. Before each file, and within large ones, room is asked whether there is space
// to go on. File systems that can share blocks do.
//
// The checksums are carried over from the listings of the layers, so that damage to
// the contents stays as easy to find as it was. All else is compared with those
// listings first: what is damaged is not made the new truth. That error is as that of
// VerifyLayer.
func (s *Store) Merge(ctx context.Context, stack []string, digests map[string]string, into string, room func() error) (digest string, err error) {
	m := merger{ctx: ctx, dir: s.LayerDir(into), room: room, sums: map[uint64]uint32{}, linked: map[uint64]*linkedFile{}}
	defer m.close()
	for _, id := range stack {
		src, err := s.source(ctx, id, digests[id])
		if err != nil {
			return "", err
		}
		m.sources = append(m.sources, src)
	}
	if err := m.merge(); err != nil {
		return "", fmt.Errorf("merge %d layers into %s: %w", len(stack), into, err)
	}
	digest, err = m.save()
	if err != nil {
		return "", fmt.Errorf("merge %d layers into %s: %w", len(stack), into, err)
	}
	return digest, failpoint.Fail(failpoint.Merged)
}

// Size is what there is in a layer.
type Size struct {
	Names  int   // of files and directories
	Bytes  int64 // in its files, without large holes
	Hidden int64 // of these, what no mount of the stack shows
}

// Hidden returns the sizes of a stack's layers. How much of them is hidden, because a
// layer above has something else in its place, is an estimate: it only reads listings,
// and so does not know directories that were renamed or made anew.
func (s *Store) Hidden(stack []string, digests map[string]string) ([]Size, error) {
	e := estimate{seed: maphash.MakeSeed(), above: map[uint64]bool{}}
	sizes := make([]Size, len(stack))
	for i, id := range slices.Backward(stack) {
		l, err := openListing(s.LayerDir(id), digests[id])
		if err != nil {
			return nil, damaged("layer", id, err)
		}
		sizes[i], err = e.add(l, s.LayerDir(id))
		l.close()
		if err != nil {
			return nil, damaged("layer", id, err)
		}
	}
	return sizes, nil
}

// estimate goes through listings from the topmost down.
type estimate struct {
	seed  maphash.Seed
	above map[uint64]bool // the hashes of the paths of what is no directory
}

// place is where a line of a listing lies.
type place struct {
	hash   uint64 // of the path
	hidden bool
}

func (e *estimate) add(l *listing, dir string) (size Size, err error) {
	var way []place
	var here []uint64
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return size, err
		}
		size.Names++
		p := place{}
		if line.depth > 0 {
			p = e.below(way[line.depth-1], line.name)
		}
		way = append(way[:line.depth], p)
		kind, bytes := line.kindAndSize()
		if kind == unix.S_IFREG {
			if bytes > leastHoles {
				bytes = min(bytes, blocksOf(dir, line, bytes))
			}
			size.Bytes += bytes
			if p.hidden {
				size.Hidden += bytes
			}
		}
		if kind != unix.S_IFDIR {
			here = append(here, p.hash)
		}
	}
	for _, hash := range here {
		e.above[hash] = true
	}
	return size, nil
}

// leastHoles is how large a file is at least that is looked at for its holes.
const leastHoles = 1 << 20

// blocksOf returns what a file takes of the disk, or otherwise where it cannot be told.
func blocksOf(dir string, l line, otherwise int64) int64 {
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(dir, (&tree.Path{In: l.in, Name: l.name}).String()), &st) != nil {
		return otherwise
	}
	return st.Blocks * 512
}

func (e *estimate) below(in place, name string) place {
	hash := maphash.Comparable(e.seed, struct {
		in   uint64
		name string
	}{in.hash, name})
	return place{hash, in.hidden || e.above[hash]}
}

// source is a layer that is merged.
type source struct {
	top  *handle
	sums map[uint64]uint32 // the checksums of its files, by inode
}

// source reads the listing of a layer, and holds that the layer is as it says, as
// far as that can be told without reading files.
func (s *Store) source(ctx context.Context, id, digest string) (source, error) {
	dir := s.LayerDir(id)
	src := source{sums: map[uint64]uint32{}}
	c, err := compareWith(dir, digest)
	if err != nil {
		return source{}, damaged("layer", id, err)
	}
	defer c.lines.close()
	err = walk(ctx, dir, func(e *tree.Entry) error {
		now, err := header(e)
		if err != nil {
			return err
		}
		was, err := c.compare(now, func(l line) string { return l.head })
		if err == nil && e.Kind() == unix.S_IFREG && e.Stat.Size > 0 {
			src.sums[e.Stat.Ino], err = was.checksum()
		}
		return err
	})
	if ctx.Err() != nil {
		return source{}, ctx.Err()
	}
	if err == nil {
		err = c.end()
	}
	if err == nil {
		src.top, err = openTop(dir)
	}
	if err != nil {
		return source{}, damaged("layer", id, err)
	}
	return src, nil
}

// merger makes one layer of several. It looks names up as the kernel does
// (fs/overlayfs/namei.c), from the topmost source down.
type merger struct {
	ctx     context.Context
	sources []source // bottom first
	dir     string   // of the new layer
	new     *handle  // the same
	room    func() error

	files  int                    // that the new layer has
	sums   map[uint64]uint32      // the checksums of its files, by inode
	linked map[uint64]*linkedFile // that have more names, by their inodes in the sources
	roots  []part                 // of the tree at hand, topmost first
	shown  *shown                 // counts what would be in the new layer, which then is not made

	stack []*frame // the directories that are being merged, from the root of the tree down
	open  int      // stack[open:] are open
}

// linkedFile is a file of the new layer that can get more names.
type linkedFile struct {
	path *tree.Path // its first name
	more uint64     // how many more there can be
}

// handle is a directory of a source or of the new layer.
type handle struct {
	file     *os.File // nil while it is closed
	path     *tree.Path
	in       *handle // that it was opened by its name in; nil if by a path
	dev, ino uint64
}

func openTop(dir string) (*handle, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return newHandle(f, nil, nil)
}

func newHandle(f *os.File, in *handle, path *tree.Path) (*handle, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &handle{file: f, path: path, in: in, dev: st.Dev, ino: st.Ino}, nil
}

func (h *handle) fd() int { return int(h.file.Fd()) }

func (h *handle) close() {
	if h != nil && h.file != nil {
		_ = h.file.Close()
		h.file = nil
	}
}

// enter opens a directory by its name.
func (h *handle) enter(name string) (*handle, error) {
	path := &tree.Path{In: h.path, Name: name}
	fd, err := unix.Openat(h.fd(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path.Short(), Err: err}
	}
	return newHandle(os.NewFile(uintptr(fd), name), h, path)
}

// reopen opens what was closed: above a directory that was opened in it, if there
// is one, else by its path from the top.
func (h *handle) reopen(top *handle, below []*handle) (err error) {
	if h.file != nil {
		return nil
	}
	for _, b := range below {
		if b.in == h && b.file != nil {
			h.file, err = tree.Above(b.file, h.dev, h.ino)
			return err
		}
	}
	f, err := tree.OpenBelow(top.file, h.path.String(), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	again, err := newHandle(f, nil, h.path)
	if err == nil && (again.dev != h.dev || again.ino != h.ino) {
		again.close()
		err = tree.ErrMoved
	}
	if err == nil {
		h.file = again.file
	}
	return err
}

// part is what one source has of a directory.
type part struct {
	source int
	*handle
}

// entry is what the sources have of a name, together.
type entry struct {
	kind  kind
	parts []part // topmost first; more than one only of a directory
	// in is the directory in which an entry has its name that is none.
	in   part
	name string
	// below is where a directory goes on in the layers below the sources, from the
	// root of its tree. It is nil if nothing there belongs to it.
	below *below
}

// below is a path in the layers below the sources. That of the root is empty.
type below struct{ path *tree.Path }

func (e *entry) close() {
	for _, p := range e.parts {
		p.close()
	}
}

type kind int

const (
	missing kind = iota
	directory
	whiteout // overlayfs' mark of what was removed
	other    // a file of any other type
)

// The attributes by which overlayfs joins directories of several layers. Those
// in joining have values of their own in each layer, and are not copied.
const (
	attrOpaque   = "trusted.overlay.opaque"
	attrRedirect = "trusted.overlay.redirect"
	attrOrigin   = "trusted.overlay.origin"
)

var joining = append([]string{attrOpaque, attrRedirect}, ownAttributes...)

// frame is a directory that is being merged.
type frame struct {
	entry
	to    *handle           // in the new layer
	join  map[string]string // attributes
	names []string          // that come next
	last  string            // that was merged
	more  bool              // there are names after these
}

// mostOpenParts is how many directories of sources and of the new layer are held
// open, besides those of the directory at hand and of the one above it.
const mostOpenParts = 256

func (m *merger) close() {
	for _, f := range m.stack {
		f.close()
		f.to.close()
	}
	for _, s := range m.sources {
		s.top.close()
	}
	m.new.close()
}

// merge makes the new layer, all but its listing.
func (m *merger) merge() (err error) {
	if err := failpoint.Fail(failpoint.Merge); err != nil {
		return err
	}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return err
	}
	if m.new, err = openTop(m.dir); err != nil {
		return err
	}
	trees, err := m.trees()
	if err != nil {
		return err
	}
	for _, name := range trees {
		if err := m.mergeTree(name); err != nil {
			return err
		}
	}
	return nil
}

// trees returns the names of the trees that the sources have.
func (m *merger) trees() ([]string, error) {
	var tops []*os.File
	for _, s := range m.sources {
		tops = append(tops, s.top.file)
	}
	names, _, err := tree.Names("", tops...)
	return slices.DeleteFunc(names, func(name string) bool { return name == workDir || name == listingName }), err
}

// mergeTree merges one tree. Its roots stay open.
func (m *merger) mergeTree(name string) error {
	m.roots = nil
	defer func() {
		for _, r := range m.roots {
			r.close()
		}
	}()
	for i, s := range slices.Backward(m.sources) {
		h, err := s.top.enter(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		m.roots = append(m.roots, part{i, h})
	}
	root := entry{kind: directory, below: &below{}}
	for _, r := range m.roots { // the frame has descriptors of its own
		h, err := m.sources[r.source].top.enter(name)
		if err != nil {
			root.close()
			return err
		}
		root.parts = append(root.parts, part{r.source, h})
	}
	if len(root.parts) == 0 { // the layers were removed meanwhile, as a restore does
		return fmt.Errorf("tree %s: %w", name, fs.ErrNotExist)
	}
	if err := m.begin(m.new, name, root, nil); err != nil {
		return err
	}
	for len(m.stack) > 0 {
		if err := m.step(); err != nil {
			return err
		}
	}
	return nil
}

// begin makes the directory name in in, and goes into it.
func (m *merger) begin(in *handle, name string, d entry, join map[string]string) error {
	to, err := m.makeDir(in, name, d)
	if err != nil {
		d.close()
		return err
	}
	m.stack = append(m.stack, &frame{entry: d, to: to, join: maps.Clone(join), more: true})
	m.closeFar()
	return nil
}

// makeDir makes the directory name in in and opens it, or counts it.
func (m *merger) makeDir(in *handle, name string, d entry) (*handle, error) {
	if m.shown != nil {
		return &handle{path: &tree.Path{In: in.path, Name: name}}, m.shown.directory(name, d.parts[0])
	}
	if err := unix.Mkdirat(in.fd(), name, 0o700); err != nil {
		return nil, &fs.PathError{Op: "mkdir", Path: (&tree.Path{In: in.path, Name: name}).Short(), Err: err}
	}
	return in.enter(name)
}

// closeFar closes directories far above the one at hand.
func (m *merger) closeFar() {
	open := 0
	for _, f := range slices.Backward(m.stack[m.open:]) {
		open += len(f.parts) + 1
	}
	for ; open > mostOpenParts && m.open < len(m.stack)-2; m.open++ {
		far := m.stack[m.open]
		far.entry.close()
		far.to.close()
		open -= len(far.parts) + 1
	}
}

// step merges the next name of the directory at hand, or completes that.
func (m *merger) step() error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	f := m.stack[len(m.stack)-1]
	if len(f.names) == 0 {
		if !f.more {
			return m.complete(f)
		}
		return m.fill(f)
	}
	f.last, f.names = f.names[0], f.names[1:]
	e, err := m.lookup(f.entry, f.last)
	if err != nil {
		e.close()
		e.in.close()
		if m.shown != nil && unlessVanished(err) == nil {
			return nil
		}
		return fmt.Errorf("%s: %w", (&tree.Path{In: f.to.path, Name: f.last}).Short(), err)
	}
	switch e.kind {
	case directory:
		return m.begin(f.to, f.last, e, joined(f.entry, f.last, e))
	case whiteout:
		defer e.in.close()
		if f.below == nil { // there is nothing to hide
			return nil
		}
		// Of a directory that no other layer has, overlayfs would list whiteouts
		// too, unless it was copied up once: from where is not asked.
		if f.join == nil {
			f.join = map[string]string{}
		}
		f.join[attrOrigin] = ""
		return m.put(f.to, f.last, e)
	case other:
		defer e.in.close()
		return m.put(f.to, f.last, e)
	}
	return nil
}

// fill reads the next names in all parts of a directory.
func (m *merger) fill(f *frame) (err error) {
	var files []*os.File
	for _, p := range f.parts {
		files = append(files, p.file)
	}
	f.names, f.more, err = tree.Names(f.last, files...)
	return err
}

// complete gives a directory its attributes, and goes back to the one above. They
// come last: a default ACL would be inherited, and the times move.
func (m *merger) complete(f *frame) error {
	if m.shown == nil {
		if err := copyAttributes(f.to, f.parts[0].handle, f.join); err != nil {
			return err
		}
	}
	n := len(m.stack) - 1
	m.stack = m.stack[:n]
	defer f.entry.close()
	defer f.to.close()
	if n == 0 || n-1 >= m.open {
		return nil
	}
	m.open = n - 1
	above := m.stack[n-1]
	var below []*handle
	for _, p := range f.parts {
		below = append(below, p.handle)
	}
	for _, p := range above.parts {
		if err := p.reopen(m.sources[p.source].top, below); err != nil {
			return fmt.Errorf("return to %s: %w", p.path.Short(), err)
		}
	}
	if m.shown != nil {
		return nil
	}
	return above.to.reopen(m.new, []*handle{f.to})
}

// joined returns the attributes that join e, which is name in d, with what it
// goes on with below, and no other.
func joined(d entry, name string, e entry) map[string]string {
	switch {
	case e.below == nil && d.below == nil:
		return nil
	case e.below == nil:
		return map[string]string{attrOpaque: "y"}
	case d.below == nil || !e.below.path.In.Equal(d.below.path):
		return map[string]string{attrRedirect: "/" + e.below.path.String()}
	case e.below.path.Name != name: // by a name, because a path may be too long
		return map[string]string{attrRedirect: e.below.path.Name}
	}
	return nil
}

// lookup returns what name in the directory d is: the topmost entry and, of a
// directory, those in layers below that are joined with it.
func (m *merger) lookup(d entry, name string) (e entry, err error) {
	if d.below != nil {
		e.below = &below{&tree.Path{In: d.below.path, Name: name}}
	}
	target, parts := name, d.parts
	for len(parts) > 0 {
		in := parts[0]
		parts = parts[1:]
		h, err := m.follow(in, target)
		if err != nil {
			return e, err
		}
		e.take(h)
		if h.ends {
			e.below = nil
			return e, nil
		}
		if h.target == target {
			continue
		}
		target = h.target
		switch {
		case path.IsAbs(target):
			e.below = &below{pathOf(target)}
			parts = m.rootsBelow(in.source)
		case d.below != nil:
			e.below = &below{&tree.Path{In: d.below.path, Name: target}}
		}
	}
	return e, nil
}

// take adds what one layer has of an entry, or closes it.
func (e *entry) take(h hit) {
	switch {
	case h.kind == directory:
		if e.kind == missing {
			e.kind = directory
		}
		e.parts = append(e.parts, h.part)
	case h.kind != missing && e.kind == missing:
		e.kind, e.in, e.name = h.kind, h.part, h.name
	default:
		h.close()
	}
}

// pathOf returns an absolute path as a chain of names.
func pathOf(abs string) (p *tree.Path) {
	for name := range strings.SplitSeq(strings.TrimPrefix(abs, "/"), "/") {
		p = &tree.Path{In: p, Name: name}
	}
	return p
}

// rootsBelow returns the roots of the tree in the sources below one.
func (m *merger) rootsBelow(source int) []part {
	i := slices.IndexFunc(m.roots, func(r part) bool { return r.source < source })
	if i < 0 {
		return nil
	}
	return m.roots[i:]
}

// hit is what one layer has of a name: a directory, open, or the open directory
// that something else is in.
type hit struct {
	part
	name   string
	kind   kind
	ends   bool   // the layers below have nothing more of it
	target string // what the layers below know it as
}

// follow looks a target up in one layer: a name in the directory in, or a path
// from the root of the tree, which is what in then is.
func (m *merger) follow(in part, target string) (h hit, err error) {
	known, names := "", []string{target} // known is what the layers below call the way so far
	if path.IsAbs(target) {
		known, names = "/", strings.Split(target[1:], "/")
	}
	h.target = target
	h.part, err = in.again()
	if err != nil {
		return h, err
	}
	for i, name := range names {
		kind, err := h.kindOf(name)
		last := i == len(names)-1
		switch {
		case err != nil || kind == missing:
			h.close()
			return h, err
		case kind != directory:
			h.ends = true
			if last {
				h.kind, h.name = kind, name
			} else {
				h.close()
			}
			return h, nil
		}
		if err := h.goInto(name, in); err != nil {
			return h, err
		}
		if last {
			h.kind = directory
		}
		opaque, redirect, err := h.joins()
		if err != nil {
			h.close()
			return h, err
		}
		known = path.Join(known, name)
		switch {
		case opaque:
			h.ends = true
			continue
		case path.IsAbs(redirect): // even from under what is opaque
			known, h.ends = redirect, false
		case redirect != "":
			known = path.Join(path.Dir(known), redirect)
		}
		h.target = path.Join(append([]string{known}, names[i+1:]...)...)
	}
	return h, nil
}

// again returns a part with a descriptor of its own.
func (p part) again() (part, error) {
	fd, err := unix.FcntlInt(uintptr(p.fd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return part{}, err
	}
	h := *p.handle
	h.file = os.NewFile(uintptr(fd), "")
	return part{p.source, &h}, nil
}

// goInto has the hit go into the directory name. The one that it was in is closed.
func (h *hit) goInto(name string, first part) error {
	from := h.handle
	next, err := from.enter(name)
	from.close()
	if err != nil {
		h.handle = nil
		return err
	}
	next.in = nil
	if from.ino == first.ino && from.dev == first.dev {
		next.in = first.handle // of which from was a copy
	}
	h.handle = next
	return nil
}

func (h *handle) kindOf(name string) (kind, error) {
	var st unix.Stat_t
	err := unix.Fstatat(h.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return missing, nil
	case err != nil:
		return missing, &fs.PathError{Op: "stat", Path: (&tree.Path{In: h.path, Name: name}).Short(), Err: err}
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return directory, nil
	case tree.IsWhiteout(&st):
		return whiteout, nil
	}
	return other, nil
}

// joins returns how a directory is joined with those below.
func (h *handle) joins() (opaque bool, redirect string, err error) {
	for _, name := range []string{attrOpaque, attrRedirect} {
		value, err := attribute(tree.ProcPath(h.fd(), "."), name)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		case err != nil:
			return false, "", &fs.PathError{Op: "getxattr " + name, Path: h.path.Short(), Err: err}
		case name == attrOpaque:
			opaque = string(value) == "y"
		default:
			redirect = string(value)
		}
	}
	return opaque, redirect, nil
}

// put gives an entry of a source, which is no directory, its name in the new layer,
// or counts it.
func (m *merger) put(in *handle, name string, e entry) error {
	if m.shown != nil {
		return m.shown.file(name, e)
	}
	to := &tree.Path{In: in.path, Name: name}
	if e.kind == whiteout {
		return pathError("mknod", to, unix.Mknodat(in.fd(), name, unix.S_IFCHR, 0))
	}
	from := tree.Entry{At: e.in.fd(), Name: e.name, In: e.in.path}
	if err := unix.Fstatat(from.At, from.Name, &from.Stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("stat", from.Path(), err)
	}
	if planted.In(planted.LinkingMerge) {
		m.sums[from.Stat.Ino] = m.sumIn(from.Stat.Ino)
		return unix.Linkat(from.At, from.Name, in.fd(), name, 0)
	}
	if first := m.linked[from.Stat.Ino]; first != nil && !planted.In(planted.ForgottenLink) {
		if first.more--; first.more == 0 {
			delete(m.linked, from.Stat.Ino)
		}
		return m.link(in, name, first.path)
	}
	if err := m.copy(in, name, &from); err != nil {
		return fmt.Errorf("copy %s: %w", to.Short(), err)
	}
	if n := uint64(from.Stat.Nlink); n > 1 {
		m.linked[from.Stat.Ino] = &linkedFile{path: to, more: n - 1}
	}
	return nil
}

func pathError(op string, p *tree.Path, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: p.Short(), Err: err}
}

// link gives a file of the new layer one more name.
func (m *merger) link(in *handle, name string, first *tree.Path) error {
	f, err := tree.OpenBelow(m.new.file, first.String(), unix.O_PATH)
	if err != nil {
		return pathError("open", first, err)
	}
	defer f.Close()
	return pathError("link", first, unix.Linkat(int(f.Fd()), "", in.fd(), name, unix.AT_EMPTY_PATH))
}

// copy copies a file of a source, and notes its checksum.
func (m *merger) copy(in *handle, name string, from *tree.Entry) error {
	e, file, err := inspect(from, math.MaxInt)
	if file != nil {
		defer file.Close()
	}
	if err == nil {
		err = m.room()
	}
	if err == nil {
		err = e.copyTo(in.fd(), name, file, m.room)
	}
	if err != nil || from.Kind() != unix.S_IFREG {
		return err
	}
	m.files++
	var st unix.Stat_t
	if err := unix.Fstatat(in.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	m.sums[st.Ino] = m.sumIn(from.Stat.Ino)
	return nil
}

// sumIn returns the checksum that a file of a source has in its listing.
func (m *merger) sumIn(ino uint64) uint32 {
	for _, s := range m.sources {
		if sum, ok := s.sums[ino]; ok {
			return sum
		}
	}
	return 0 // of an empty file
}

// copyAttributes gives a directory of the new layer all that one of a source
// has, but joins it with others by join alone.
func copyAttributes(to, from *handle, join map[string]string) error {
	failed := func(op string, err error) error { return &fs.PathError{Op: op, Path: to.path.Short(), Err: err} }
	var st unix.Stat_t
	if err := unix.Fstat(from.fd(), &st); err != nil {
		return failed("stat", err)
	}
	if err := errors.Join(unix.Fchown(to.fd(), int(st.Uid), int(st.Gid)), unix.Fchmod(to.fd(), st.Mode&0o7777)); err != nil {
		return failed("chown", err)
	}
	values, err := attributesBut(from, joining)
	if err != nil {
		return err
	}
	maps.Copy(values, join)
	for name, value := range values {
		if err := unix.Fsetxattr(to.fd(), name, []byte(value), 0); err != nil {
			return failed("setxattr "+name, err)
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, tree.ProcPath(to.fd(), "."), times, 0); err != nil {
		return failed("utimes", err)
	}
	return nil
}

// attributesBut returns a directory's extended attributes but some.
func attributesBut(h *handle, but []string) (map[string]string, error) {
	path := tree.ProcPath(h.fd(), ".")
	names, err := attributeNames(path)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, name := range names {
		if slices.Contains(but, name) {
			continue
		}
		value, err := attribute(path, name)
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr " + name, Path: h.path.Short(), Err: err}
		}
		values[name] = string(value)
	}
	return values, nil
}

// save writes the listing, with the checksums that the sources' have, and makes
// the layer durable.
func (m *merger) save() (digest string, err error) {
	if err := failpoint.Fail(failpoint.MergeSync); err != nil {
		return "", err
	}
	dirs := 0
	digest, err = writeListing(m.dir, func(add func(line) error) error {
		return walk(m.ctx, m.dir, func(e *tree.Entry) error {
			l, err := header(e)
			if err != nil {
				return err
			}
			switch e.Kind() {
			case unix.S_IFDIR:
				dirs++
			case unix.S_IFREG:
				if l.sum, err = m.sumOf(e); err != nil {
					return err
				}
			}
			return add(l)
		})
	})
	if err != nil {
		return "", err
	}
	return digest, syncLayer(m.ctx, m.dir, m.files+dirs)
}

// sumOf returns the checksum that a file has in the listing of the source that
// it is from.
func (m *merger) sumOf(e *tree.Entry) (string, error) {
	if e.Stat.Size == 0 {
		return sumText(0), nil
	}
	if sum, ok := m.sums[e.Stat.Ino]; ok {
		return sumText(sum), nil
	}
	return "", fmt.Errorf("%s is in no layer", e.Path().Short())
}
