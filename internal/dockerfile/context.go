package dockerfile

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/drowse-dev/drowse/client"
)

// Context is a directory whose files can be copied. Nothing outside of it can,
// whatever its links say.
type Context struct {
	root   *os.Root
	ignore *patternmatcher.PatternMatcher
}

// OpenContext opens a directory. What .dockerignore excludes is not there; a file
// that is called like the Dockerfile, with .dockerignore added, counts in its place.
func OpenContext(dir, dockerfile string) (*Context, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, errors.Unwrap(err))
	}
	patterns, err := ignored(root, dockerfile)
	var ignore *patternmatcher.PatternMatcher
	if err == nil {
		ignore, err = patternmatcher.New(patterns)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf(".dockerignore: %w", err), root.Close())
	}
	return &Context{root, ignore}, nil
}

// Close closes the directory.
func (c *Context) Close() error { return c.root.Close() }

func ignored(root *os.Root, dockerfile string) ([]string, error) {
	own, err := os.Open(dockerfile + ".dockerignore")
	if errors.Is(err, fs.ErrNotExist) {
		own, err = root.Open(".dockerignore")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	return ignorefile.ReadAll(own)
}

// item is an entry of an archive.
type item struct {
	name string      // in the archive
	path string      // in the context; empty for what the Dockerfile has itself
	data string      // of the latter
	info fs.FileInfo // nil for the latter
	link string
}

// layout is how the files of a step lie in their archive: as they are to lie in the
// target, below one directory.
type layout struct {
	context *Context
	one     string // the name of the only file, where it may get the name of the target
	items   map[string]item
}

// top is the directory in an archive that has the files.
const top = "files"

// source is what of the archive is to be copied.
func (l layout) source() string {
	if l.one != "" {
		return path.Join(top, l.one)
	}
	return top
}

// layOut finds the files of a step. into says that the target is a directory.
func (c *Context) layOut(from instructions.SourcesAndDest, into, unpacks bool) (layout, error) {
	l := layout{context: c, items: map[string]item{}}
	for _, source := range from.SourceContents {
		name := path.Base(source.Path)
		l.items[name] = item{name: name, data: source.Data}
		if !into {
			l.one = name
		}
	}
	for _, source := range from.SourcePaths {
		found, err := c.find(source)
		if err != nil {
			return layout{}, err
		}
		if len(found) > 1 {
			into = true
		}
		for _, at := range found {
			if err := l.take(at, into, unpacks); err != nil {
				return layout{}, err
			}
		}
	}
	if strings.ContainsAny(l.one, "*?[{") {
		return layout{}, fmt.Errorf("the name of %s has a character of a pattern: copy it into a directory, whose name ends with a slash", l.one)
	}
	return l, nil
}

// find returns the paths in the context that a source means.
func (c *Context) find(source string) ([]string, error) {
	clean := strings.TrimPrefix(path.Join("/", filepath.ToSlash(source)), "/")
	if clean == "" {
		return []string{"."}, nil
	}
	if _, err := c.root.Lstat(clean); err == nil {
		if c.excluded(clean) {
			return nil, fmt.Errorf("%s is excluded by .dockerignore", source)
		}
		return []string{clean}, nil
	}
	found, err := fs.Glob(c.root.FS(), clean)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	found = slices.DeleteFunc(found, c.excluded)
	if len(found) == 0 {
		return nil, fmt.Errorf("the context has no %s", source)
	}
	return found, nil
}

func (c *Context) excluded(at string) bool {
	is, err := c.ignore.MatchesOrParentMatches(at)
	return err == nil && is
}

// take adds a file, or what is in a directory.
func (l *layout) take(at string, into, unpacks bool) error {
	info, err := l.context.root.Stat(at)
	if err != nil {
		return fmt.Errorf("%s: %w", at, errors.Unwrap(err))
	}
	if !info.IsDir() {
		if unpacks && l.context.archive(at) {
			return fmt.Errorf("ADD would unpack %s, which is not supported: copy it, and unpack it by RUN tar -xf", at)
		}
		name := path.Base(at)
		if !into {
			l.one = name
		}
		return l.put(item{name: name, path: at, info: info})
	}
	return fs.WalkDir(l.context.root.FS(), at, func(below string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if below == at {
			return nil
		}
		if l.context.excluded(below) {
			if d.IsDir() && !l.context.ignore.Exclusions() {
				return fs.SkipDir
			}
			return nil // something in a directory may be wanted all the same
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(below, at+"/")
		if at == "." {
			name = below
		}
		i := item{name: name, path: below, info: info}
		if info.Mode()&fs.ModeSymlink != 0 {
			if i.link, err = l.context.root.Readlink(below); err != nil {
				return err
			}
		}
		return l.put(i)
	})
}

func (l *layout) put(i item) error {
	if mode := i.info.Mode(); !mode.IsRegular() && !mode.IsDir() && mode&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s is no file, directory or link, and cannot be copied", i.path)
	}
	l.items[i.name] = i
	return nil
}

// archive reports whether a file is one that Docker's ADD unpacks.
func (c *Context) archive(at string) bool {
	f, err := c.root.Open(at)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 512)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	for _, magic := range []string{"\x1f\x8b", "BZh", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return len(head) > 262 && string(head[257:262]) == "ustar"
}

// files returns the files of the step, with a hash of all but their times.
func (l layout) files() (*client.BuildFiles, error) {
	sum := sha256.New()
	if err := l.each(func(i item, h *tar.Header, data io.Reader) error {
		_, _ = fmt.Fprintf(sum, "%q %c %o %d %q\n", h.Name, h.Typeflag, h.Mode, h.Size, h.Linkname)
		_, err := io.Copy(sum, data)
		return err
	}); err != nil {
		return nil, err
	}
	return &client.BuildFiles{Hash: fmt.Sprintf("%x", sum.Sum(nil)), Open: l.open}, nil
}

// open returns the archive, which is made as it is read.
func (l layout) open() (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		err := l.each(func(i item, h *tar.Header, data io.Reader) error {
			if err := out.WriteHeader(h); err != nil {
				return err
			}
			n, err := io.Copy(out, data)
			if errors.Is(err, tar.ErrWriteTooLong) || err == nil && n < h.Size {
				err = fmt.Errorf("%s has changed while it was read", i.path)
			}
			return err
		})
		if err == nil {
			err = out.Close()
		}
		_ = w.CloseWithError(err)
	}()
	return r, nil
}

// each calls f with each entry of the archive, in order.
func (l layout) each(f func(i item, h *tar.Header, data io.Reader) error) error {
	if err := f(item{}, &tar.Header{Typeflag: tar.TypeDir, Name: top + "/", Mode: 0o755}, strings.NewReader("")); err != nil {
		return err
	}
	var names []string
	for name := range l.items {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := l.entry(l.items[name], f); err != nil {
			return err
		}
	}
	return nil
}

func (l layout) entry(i item, f func(item, *tar.Header, io.Reader) error) error {
	at := path.Join(top, i.name)
	if i.info == nil {
		return f(i, &tar.Header{Typeflag: tar.TypeReg, Name: at, Mode: 0o644, Size: int64(len(i.data))}, strings.NewReader(i.data))
	}
	h, err := tar.FileInfoHeader(i.info, i.link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.Format = at, 0, 0, "", "", tar.FormatPAX
	if i.info.IsDir() {
		h.Name += "/"
	}
	if !i.info.Mode().IsRegular() {
		return f(i, h, strings.NewReader(""))
	}
	file, err := l.context.root.Open(i.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return f(i, h, file)
}
