package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/failpoint"
)

// Merge makes the new layer into of adjacent layers of a stack, bottom first.
// In their place, over whatever lies below them, it shows what they show. The
// layers are left as they are. When Merge returns the digest, the new one is
// durable; after an error the rest of it is the caller's to remove.
//
// Files are not copied: what is no directory gets another name, in the new
// layer, for the same inode. So a sandbox finds the same inode numbers, times
// and names of one file, and 10 GiB take no longer than 10 files. A frozen
// layer's files are never written to, so that none of the layers can see what
// happens to another, and removing one takes nothing from the others.
//
// The contents are not read either. Their checksums are carried over from the
// listings of the layers, so that damage to them stays as easy to find as it
// was. All else is compared with those listings first: what is damaged is not
// made the new truth. That error is as that of VerifyLayer.
func (s *Store) Merge(ctx context.Context, stack []string, digests map[string]string, into string) (digest string, err error) {
	m := merger{ctx: ctx, dir: s.LayerDir(into)}
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

// Hidden estimates how many of the bytes in the files of a stack's layers no mount
// shows, because a layer above has something else in their place. It only reads
// listings, and so does not know directories that were renamed or made anew.
func (s *Store) Hidden(stack []string, digests map[string]string) (hidden, total int64, err error) {
	above := map[string]bool{} // what is no directory, by path
	for _, id := range slices.Backward(stack) {
		lines, err := readListing(s.LayerDir(id), digests[id])
		if err != nil {
			return 0, 0, damaged("layer", id, err)
		}
		var here []string
		for _, line := range lines {
			path := strings.Trim(pathOf(line), `"`)
			kind, size := typeAndSize(line)
			if kind == unix.S_IFREG {
				total += size
				if isHidden(path, above) {
					hidden += size
				}
			}
			if kind != unix.S_IFDIR {
				here = append(here, path)
			}
		}
		for _, path := range here {
			above[path] = true
		}
	}
	return hidden, total, nil
}

func isHidden(path string, above map[string]bool) bool {
	for !above[path] {
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return false
		}
		path = path[:i]
	}
	return true
}

// source is a layer that is merged.
type source struct {
	dir   string
	lines map[string]string // of its listing, by path
}

// source reads the listing of a layer, and holds that the layer is as it says, as
// far as that can be told without reading files.
func (s *Store) source(ctx context.Context, id, digest string) (source, error) {
	dir := s.LayerDir(id)
	lines, err := readListing(dir, digest)
	if err != nil {
		return source{}, damaged("layer", id, err)
	}
	was := make([]string, len(lines))
	for i, line := range lines {
		was[i] = withoutSum(line)
	}
	var now []string
	err = walk(dir, func(path, rel string, _ fs.DirEntry) error {
		line, _, err := header(path, rel)
		now = append(now, line)
		return errors.Join(err, ctx.Err())
	})
	if ctx.Err() != nil {
		return source{}, ctx.Err()
	}
	if err == nil {
		err = compare(was, now)
	}
	if err != nil {
		return source{}, damaged("layer", id, err)
	}
	return source{dir: dir, lines: byPath(lines)}, nil
}

// merger makes one layer of several. It looks names up as the kernel does
// (fs/overlayfs/namei.c), from the topmost source down.
type merger struct {
	ctx     context.Context
	sources []source // bottom first
	dir     string   // of the new layer
	roots   []part   // of the tree at hand, topmost first

	lines []string // of the new layer's listing
	dirs  []string // all directories in it
}

// part is an entry of a source.
type part struct {
	source int
	path   string // below the source's directory
}

// entry is what the sources have of a name, together.
type entry struct {
	parts []part // topmost first; more than one only of a directory
	kind  kind
	// below is where a directory goes on in the layers below the sources, from the
	// root of its tree. It is empty if nothing there belongs to it.
	below string
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

func (m *merger) host(p part) string { return filepath.Join(m.sources[p.source].dir, p.path) }

// merge makes the new layer, all but its listing.
func (m *merger) merge() error {
	if err := failpoint.Fail(failpoint.Merge); err != nil {
		return err
	}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return err
	}
	trees := map[string][]part{}
	for i := len(m.sources) - 1; i >= 0; i-- {
		names, err := readNames(m.sources[i].dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if name != workDir && name != listingName {
				trees[name] = append(trees[name], part{i, name})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(trees)) {
		m.roots = trees[name]
		if err := m.makeDir(name, entry{parts: m.roots, kind: directory, below: "/"}, nil); err != nil {
			return err
		}
	}
	return m.note(".")
}

// makeDir makes a directory at rel in the new layer with all that is in it, and
// the attributes join. Its own come last: a default ACL would be inherited, and
// the times move.
func (m *merger) makeDir(rel string, d entry, join map[string]string) error {
	if err := os.Mkdir(filepath.Join(m.dir, rel), 0o700); err != nil {
		return err
	}
	names, err := m.names(d)
	if err != nil {
		return err
	}
	hides := false
	for _, name := range names {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		e, err := m.lookup(d, name)
		if err != nil {
			return err
		}
		at := filepath.Join(rel, name)
		switch e.kind {
		case directory:
			err = m.makeDir(at, e, joined(d, name, e))
		case whiteout:
			if d.below != "" { // else there is nothing to hide
				hides = true
				err = m.link(at, e.parts[0])
			}
		case other:
			err = m.link(at, e.parts[0])
		}
		if err != nil {
			return err
		}
	}
	if hides {
		// Of a directory that no other layer has, overlayfs would list whiteouts
		// too, unless it was copied up once: from where is not asked.
		join = maps.Clone(join)
		if join == nil {
			join = map[string]string{}
		}
		join[attrOrigin] = ""
	}
	if err := m.copyAttributes(rel, d.parts[0], join); err != nil {
		return err
	}
	return m.note(rel)
}

// joined returns the attributes that join e, which is name in d, with what it
// goes on with below, and no other.
func joined(d entry, name string, e entry) map[string]string {
	natural := ""
	if d.below != "" {
		natural = path.Join(d.below, name)
	}
	switch e.below {
	case natural:
		return nil
	case "":
		return map[string]string{attrOpaque: "y"}
	default:
		return map[string]string{attrRedirect: e.below}
	}
}

// names returns the names in all parts of a directory.
func (m *merger) names(d entry) ([]string, error) {
	var all []string
	for _, p := range d.parts {
		names, err := readNames(m.host(p))
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// lookup returns what name in the directory d is: the topmost entry and, of a
// directory, those in layers below that are joined with it.
func (m *merger) lookup(d entry, name string) (e entry, err error) {
	if d.below != "" {
		e.below = path.Join(d.below, name)
	}
	target, parts := name, d.parts
	for len(parts) > 0 {
		in := parts[0]
		parts = parts[1:]
		h, err := m.follow(in, target)
		if err != nil {
			return e, err
		}
		if h.kind == directory || h.kind != missing && e.kind == missing {
			e.kind = h.kind
			e.parts = append(e.parts, h.part)
		}
		if h.ends {
			e.below = ""
			return e, nil
		}
		if h.target == target {
			continue
		}
		target = h.target
		switch {
		case path.IsAbs(target):
			e.below = target
			parts = m.rootsBelow(in.source)
		case d.below != "":
			e.below = path.Join(d.below, target)
		}
	}
	return e, nil
}

// rootsBelow returns the roots of the tree in the sources below one.
func (m *merger) rootsBelow(source int) []part {
	i := slices.IndexFunc(m.roots, func(r part) bool { return r.source < source })
	if i < 0 {
		return nil
	}
	return m.roots[i:]
}

// hit is what one layer has of a name.
type hit struct {
	part
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
	h.part, h.target = in, target
	for i, name := range names {
		h.path = filepath.Join(h.path, name)
		kind, err := m.kindOf(h.part)
		last := i == len(names)-1
		switch {
		case err != nil || kind == missing:
			return h, err
		case kind != directory:
			h.ends = true
			if last {
				h.kind = kind
			}
			return h, nil
		case last:
			h.kind = directory
		}
		opaque, redirect, err := m.joins(h.part)
		if err != nil {
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

func (m *merger) kindOf(p part) (kind, error) {
	var st unix.Stat_t
	err := unix.Lstat(m.host(p), &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return missing, nil
	case err != nil:
		return missing, &fs.PathError{Op: "lstat", Path: m.host(p), Err: err}
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return directory, nil
	case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0:
		return whiteout, nil
	}
	return other, nil
}

// joins returns how a directory is joined with those below.
func (m *merger) joins(p part) (opaque bool, redirect string, err error) {
	for _, name := range []string{attrOpaque, attrRedirect} {
		value, err := attribute(m.host(p), name)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		case err != nil:
			return false, "", &fs.PathError{Op: "getxattr " + name, Path: m.host(p), Err: err}
		case name == attrOpaque:
			opaque = string(value) == "y"
		default:
			redirect = string(value)
		}
	}
	return opaque, redirect, nil
}

// link gives an entry of a source, which is no directory, its name in the new
// layer, and the line of its own listing.
func (m *merger) link(rel string, p part) error {
	from, to := m.host(p), filepath.Join(m.dir, rel)
	err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, 0)
	if kind, _ := m.kindOf(p); errors.Is(err, unix.EMLINK) && kind == whiteout {
		err = unix.Mknod(to, unix.S_IFCHR, 0) // overlayfs makes many names of one
	}
	if err != nil {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: err}
	}
	was := strconv.Quote(p.path)
	m.lines = append(m.lines, strconv.Quote(rel)+m.sources[p.source].lines[was][len(was):])
	return nil
}

// copyAttributes gives a directory of the new layer all that one of a source
// has, but joins it with others by join alone.
func (m *merger) copyAttributes(rel string, p part, join map[string]string) error {
	from, to := m.host(p), filepath.Join(m.dir, rel)
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: from, Err: err}
	}
	if err := errors.Join(unix.Lchown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777)); err != nil {
		return &fs.PathError{Op: "chown", Path: to, Err: err}
	}
	names, err := attributeNames(from)
	if err != nil {
		return err
	}
	values := map[string]string{}
	for _, name := range names {
		if slices.Contains(joining, name) {
			continue
		}
		value, err := attribute(from, name)
		if err != nil {
			return &fs.PathError{Op: "getxattr " + name, Path: from, Err: err}
		}
		values[name] = string(value)
	}
	maps.Copy(values, join)
	for name, value := range values {
		if err := unix.Lsetxattr(to, name, []byte(value), 0); err != nil {
			return &fs.PathError{Op: "setxattr " + name, Path: to, Err: err}
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimes", Path: to, Err: err}
	}
	return nil
}

// note adds a finished directory to the listing.
func (m *merger) note(rel string) error {
	dir := filepath.Join(m.dir, rel)
	line, _, err := header(dir, rel)
	m.lines = append(m.lines, line)
	m.dirs = append(m.dirs, dir)
	return err
}

// save writes the listing and makes the layer durable. The files are.
func (m *merger) save() (digest string, err error) {
	if err := failpoint.Fail(failpoint.MergeSync); err != nil {
		return "", err
	}
	digest, err = saveListing(m.dir, m.lines)
	if err != nil {
		return "", err
	}
	return digest, syncLayer(m.dir, m.dirs)
}
