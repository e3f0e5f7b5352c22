package blobs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

const (
	// slowest is how long a call on a directory takes at most: a network file system
	// whose server is gone lets it wait forever.
	slowest = time.Minute
	// abreast are the calls on a directory at a time, those that nobody waits for any
	// more among them.
	abreast = 16
	// unfinished begins the names of blobs that are being written, in the directory
	// itself. No key has such a name.
	unfinished = ".unfinished-"
	// abandoned is how old an unfinished blob is that nobody writes any more.
	abandoned = 24 * time.Hour
)

// directory has each blob in a file by the name of its key. It stays in the directory
// that was there when it was opened, whatever is mounted over that later.
type directory struct {
	root  *os.Root
	path  string
	turns chan struct{}
}

func openDirectory(ctx context.Context, from string) (*directory, error) {
	path, err := pathOf(from)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, turns: make(chan struct{}, abreast)}
	return d, d.call(ctx, "it cannot be opened", func(ctx context.Context) error {
		info, err := os.Stat(path)
		if err == nil && !info.IsDir() {
			err = syscall.ENOTDIR
		}
		if err == nil {
			d.root, err = os.OpenRoot(path)
		}
		return err
	})
}

func (d *directory) String() string { return "directory " + d.path }

var errHangs = errors.New("the file system does not answer")

// call calls f, and waits for it no longer than ctx and slowest last. The kernel cannot be
// told to give up, so f may go on then, in its turn: it looks at the ctx that it is given
// before it does what others see, and nobody looks at what it has set. What f returns as an
// *errdef.Error is no failure of the file system.
func (d *directory) call(ctx context.Context, state string, f func(ctx context.Context) error) error {
	bounded, cancel := context.WithTimeoutCause(ctx, slowest, errHangs)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		select {
		case d.turns <- struct{}{}:
			defer func() { <-d.turns }()
			if bounded.Err() == nil {
				done <- f(bounded)
			}
		case <-bounded.Done():
		}
	}()
	var err error
	select {
	case err = <-done:
	case <-bounded.Done():
		err = context.Cause(bounded)
	}
	if _, ok := err.(*errdef.Error); ok || err == nil {
		return err
	}
	if ctx.Err() != nil {
		return ended(ctx, state)
	}
	return unavailable(d, state, explainFile(err))
}

func (d *directory) Put(ctx context.Context, key string, data []byte) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	from := newSource(data)
	defer from.end()
	return d.call(ctx, "blob "+key+" may not be stored", func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := unfinished + rand.Text()
		err := d.write(name, from)
		if err == nil {
			err = d.place(ctx, name, key)
		}
		if err != nil {
			_ = d.root.Remove(name) // else a sweep does
			return err
		}
		return d.sync(path.Dir(key))
	})
}

// write makes a file of the root that is durable, except for its name.
func (d *directory) write(name string, from io.Reader) error {
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// Without the writer's own way to copy, which has a small buffer.
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, from, make([]byte, 256<<10))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// place gives a file the name of its key. A Remove may remove directories as fast as
// they are made here.
func (d *directory) place(ctx context.Context, name, key string) error {
	for {
		err := d.root.MkdirAll(path.Dir(key), 0o700)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			if over := ctx.Err(); over != nil {
				return over // nothing is placed that nobody waits for
			}
			err = d.root.Rename(name, key)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, gone := d.root.Lstat(name); gone != nil {
			return gone
		}
	}
}

// sync makes the names in a directory durable, and its own name, up to the root. Others
// may have made these directories, and not be so far yet.
func (d *directory) sync(dir string) error {
	for ; ; dir = path.Dir(dir) {
		f, err := d.root.Open(dir)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		// It is gone if the blob has been removed again.
		if err != nil && !errors.Is(err, fs.ErrNotExist) || dir == "." {
			return err
		}
	}
}

// absent reports whether an error says that there is no such file.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func (d *directory) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	var data []byte
	err := d.call(ctx, "blob "+key+" cannot be read", func(context.Context) error {
		f, err := d.root.Open(key)
		if absent(err) {
			return notFound(d, key)
		} else if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return notFound(d, key)
		case info.Size() > most:
			return tooLarge(d, key, most)
		}
		data = make([]byte, info.Size())
		_, err = io.ReadFull(f, data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (d *directory) Remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return err
		}
	}
	for _, key := range keys {
		if err := d.call(ctx, "some blobs may not be removed", func(ctx context.Context) error { return d.remove(key) }); err != nil {
			return err
		}
	}
	return nil
}

func (d *directory) remove(key string) error {
	if info, err := d.root.Lstat(key); absent(err) || err == nil && info.IsDir() {
		return nil
	}
	if err := d.root.Remove(key); err != nil && !absent(err) {
		return err
	}
	// A directory that is not empty stays, and what is above it.
	for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
		if d.root.Remove(dir) != nil {
			break
		}
	}
	return nil
}

func (d *directory) List(ctx context.Context, prefix string) iter.Seq2[Blob, error] {
	return func(yield func(Blob, error) bool) {
		if err := CheckKey(prefix); err != nil && prefix != "" {
			yield(Blob{}, err)
			return
		}
		for dirs := []string{prefix}; len(dirs) > 0; {
			dir := dirs[len(dirs)-1]
			var blobs []Blob
			var below []string
			err := d.call(ctx, "the blobs cannot be listed", func(context.Context) (err error) {
				blobs, below, err = d.list(dir)
				return err
			})
			if err != nil {
				yield(Blob{}, err)
				return
			}
			for _, b := range blobs {
				if !yield(b, nil) {
					return
				}
			}
			dirs = append(dirs[:len(dirs)-1], below...)
		}
	}
}

// list returns what is in one directory. It leaves out what no Put has made, and what goes
// away meanwhile.
func (d *directory) list(dir string) (blobs []Blob, dirs []string, err error) {
	entries, err := fs.ReadDir(d.root.FS(), path.Join(".", dir))
	if err != nil && !absent(err) {
		return nil, nil, err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if CheckKey(name) != nil {
			continue
		}
		if e.IsDir() {
			dirs = append(dirs, name)
			continue
		}
		info, err := e.Info()
		if err != nil && !absent(err) {
			return nil, nil, err
		}
		if err == nil && info.Mode().IsRegular() {
			blobs = append(blobs, Blob{name, info.Size(), info.ModTime()})
		}
	}
	return blobs, dirs, nil
}

// sweep removes what crashes have left.
func (d *directory) sweep(ctx context.Context) error {
	return d.call(ctx, "what crashes have left cannot be removed", func(context.Context) error {
		entries, err := fs.ReadDir(d.root.FS(), ".")
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), unfinished) {
				continue
			}
			info, err := e.Info()
			if err == nil && time.Since(info.ModTime()) > abandoned {
				err = d.root.Remove(e.Name())
			}
			if err != nil && !absent(err) {
				return err
			}
		}
		return nil
	})
}

// explainFile says what an error of a file system means for blobs.
func explainFile(err error) *cause {
	c := &cause{err: err}
	why := err
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		why = e.Err // the name is that of the blob, or of its unfinished file
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		why = e.Err
	}
	c.why = why.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.remedy, c.lasting = "make the directory, or mount the file system that has it", true
	case errors.Is(err, syscall.ENOTDIR):
		c.remedy, c.lasting = "name a directory", true
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		c.remedy, c.lasting = "let this server write there, or name another directory", true
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		c.remedy = "make room there"
	case errors.Is(err, syscall.ESTALE):
		c.remedy = "see that the file system is mounted, and restart this server"
	case err == errHangs:
		c.why = fmt.Sprintf("the file system has not answered for %s", slowest)
		c.remedy = "see whether the file system's server runs and can be reached"
	default:
		c.remedy = "see what the kernel's log says of the file system"
	}
	return c
}
