package cli

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/drowse-dev/drowse/client"
)

// A directory is copied as a tar stream through a command in the sandbox: with
// modes and links, and in one go. What comes out of a sandbox is not trusted: no
// entry is written outside the directory, and no link is made that leads there.

const (
	unpack = `mkdir -p -- "$0" && exec tar -x -o -f - -C "$0"`
	pack   = `exec tar -c -f - -C "$0" .`
)

// tree is a copy of a directory in progress.
type tree struct {
	app   *app
	files int
	bytes int64
	links []*tar.Header // to be made when all else is there
}

// treeCopies returns what copies directories into a sandbox, and out of one.
func treeCopies(a *app) (up, down func(context.Context, *client.Sandbox, place, place) error) {
	up = func(ctx context.Context, sb *client.Sandbox, src, dst place) error {
		return uploadTree(ctx, a, sb, src, dst)
	}
	down = func(ctx context.Context, sb *client.Sandbox, src, dst place) error {
		return downloadTree(ctx, a, sb, src, dst)
	}
	return up, down
}

// uploadTree copies a local directory into a sandbox.
func uploadTree(ctx context.Context, a *app, sb *client.Sandbox, src, dst place) error {
	info, err := os.Stat(src.path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return a.upload(ctx, sb, src, dst)
	}
	from, err := filepath.Abs(src.path)
	if err != nil {
		return err
	}
	dst.path = cmp.Or(intoDirectory(dst.path, from), ".")
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	t := &tree{app: a}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := t.pack(root, tar.NewWriter(w))
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = runTar(ctx, sb, client.Command{Args: []string{"/bin/sh", "-c", unpack, dst.path}, Stdin: r})
	_ = r.CloseWithError(io.ErrClosedPipe) // ends the packing, if tar ended before
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		err = packErr
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", src, dst, err)
	}
	return t.print(src, dst)
}

// downloadTree copies a directory out of a sandbox. What is no directory there is
// copied as the file that it is.
func downloadTree(ctx context.Context, a *app, sb *client.Sandbox, src, dst place) error {
	if _, err := sb.ListFiles(ctx, cmp.Or(src.path, "."), 1); errors.Is(err, client.ErrInvalid) {
		return a.download(ctx, sb, src, dst)
	} else if err != nil {
		return err
	}
	if info, err := os.Stat(dst.path); err == nil && info.IsDir() && path.Base(src.path) != "." {
		dst.path = filepath.Join(dst.path, path.Base(src.path))
	}
	if err := os.MkdirAll(dst.path, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dst.path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	t := &tree{app: a}
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := t.unpack(root, tar.NewReader(r))
		if err == nil {
			_, err = io.Copy(io.Discard, r) // what pads the archive
		}
		_ = r.CloseWithError(err)
		unpacked <- err
	}()
	err = runTar(ctx, sb, client.Command{Args: []string{"/bin/sh", "-c", pack, cmp.Or(src.path, ".")}, Stdout: w})
	_ = w.CloseWithError(err)
	if unpackErr := <-unpacked; unpackErr != nil && (err == nil || !errors.Is(unpackErr, err)) {
		err = unpackErr
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", src, dst, err)
	}
	return t.print(src, dst)
}

// runTar runs tar in a sandbox. What it says is its error.
func runTar(ctx context.Context, sb *client.Sandbox, cmd client.Command) error {
	var said bytes.Buffer
	cmd.Stderr = limited{&said, 4 << 10}
	exit, err := sb.Run(ctx, cmd)
	if err == nil && exit.ShellCode() != 0 {
		err = fmt.Errorf("tar in the sandbox: %s", cmp.Or(firstLine(said.String()), exit.Status))
		if exit.ShellCode() == 127 {
			err = hint(err, "the sandbox has no tar; copy file by file, or install it there")
		}
	}
	return err
}

// firstLine returns the first of a program's lines, and whether it said more: tar
// has one for each file that it cannot read.
func firstLine(said string) string {
	first, more, _ := strings.Cut(strings.TrimSpace(said), "\n")
	if more != "" {
		first += ", and more like it"
	}
	return first
}

// limited drops what is more than a buffer may hold.
type limited struct {
	to   *bytes.Buffer
	most int
}

// Write implements io.Writer.
func (l limited) Write(b []byte) (int, error) {
	_, _ = l.to.Write(b[:min(len(b), max(l.most-l.to.Len(), 0))])
	return len(b), nil
}

// pack writes all that is below root.
func (t *tree) pack(root *os.Root, w *tar.Writer) error {
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var link string
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			if link, err = root.Readlink(name); err != nil {
				return err
			}
		case !d.IsDir() && !d.Type().IsRegular():
			t.app.complain(fmt.Sprintf("%s is no file, directory or link: left out", name), "")
			return nil
		}
		h, err := tar.FileInfoHeader(info, filepath.ToSlash(link))
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.Format = name, 0, 0, "", "", tar.FormatPAX
		if err := w.WriteHeader(h); err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		n, err := io.Copy(w, f)
		t.files, t.bytes = t.files+1, t.bytes+n
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// unpack writes what an archive has below root, links last.
func (t *tree) unpack(root *os.Root, r *tar.Reader) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := t.entry(root, h, r); err != nil {
			return err
		}
	}
	for _, h := range t.links {
		if err := directories(root, path.Dir(h.Name)); err != nil {
			return err
		}
		if info, err := root.Lstat(h.Name); err == nil && !info.IsDir() { // of an earlier copy
			if err := root.Remove(h.Name); err != nil {
				return err
			}
		}
		if err := root.Symlink(filepath.FromSlash(h.Linkname), h.Name); err != nil {
			return err
		}
	}
	return nil
}

// directories makes a directory and those above it. None of them is a link: one that
// is made there would lead from elsewhere than its name says.
func directories(root *os.Root, dir string) error {
	for i := range len(dir) + 1 {
		if dir == "." || i < len(dir) && dir[i] != '/' {
			continue
		}
		info, err := root.Lstat(dir[:i])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = root.Mkdir(dir[:i], 0o755)
		case err == nil && !info.IsDir():
			err = fmt.Errorf("%s is no directory", dir[:i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) entry(root *os.Root, h *tar.Header, r io.Reader) error {
	h.Name = path.Clean(h.Name)
	if !filepath.IsLocal(filepath.FromSlash(h.Name)) {
		return fmt.Errorf("the archive has %q, which is outside the directory", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(h.Name, 0o755)
	case tar.TypeSymlink:
		if !staysInside(h.Name, h.Linkname) {
			t.app.complain(fmt.Sprintf("%s is a link to %s, which leads out of the directory: left out", h.Name, h.Linkname), "")
			return nil
		}
		t.links = append(t.links, h)
		return nil
	case tar.TypeReg, tar.TypeLink:
	default:
		t.app.complain(fmt.Sprintf("%s is no file, directory or link: left out", h.Name), "")
		return nil
	}
	if err := root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(h.Name); err == nil && !info.IsDir() {
		if err := root.Remove(h.Name); err != nil { // a new file: nobody else's link or pipe is written to
			return err
		}
	}
	from := r
	if h.Typeflag == tar.TypeLink { // another name of a file that came before
		other := path.Clean(h.Linkname)
		if info, err := root.Lstat(other); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("the archive has %q as another name of %q, which is no file in it", h.Name, other)
		}
		f, err := root.Open(other)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if info, err := f.Stat(); err == nil {
			h.Mode = int64(info.Mode().Perm())
		}
		from = f
	}
	f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(h.Mode)&0o777|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, from)
	t.files, t.bytes = t.files+1, t.bytes+n
	return cmp.Or(err, f.Close())
}

// staysInside reports whether a link of this name leads to something below the
// directory that is copied. It goes up only at its beginning, where it goes through
// directories and no links, and not further than that directory. So does each link
// that it goes through.
func staysInside(name, target string) bool {
	if target == "" || path.IsAbs(target) || filepath.IsAbs(filepath.FromSlash(target)) || filepath.VolumeName(target) != "" {
		return false
	}
	up, down := 0, false
	for _, part := range strings.Split(filepath.ToSlash(target), "/") {
		switch {
		case part == "..":
			up++
			if down {
				return false
			}
		case part != "" && part != ".":
			down = true
		}
	}
	return up <= strings.Count(name, "/")
}

func (t *tree) print(src, dst place) error {
	return t.app.print(struct {
		copied
		Files int `json:"files"`
	}{copied{src.String(), dst.String(), t.bytes}, t.files}, func(io.Writer) {})
}
