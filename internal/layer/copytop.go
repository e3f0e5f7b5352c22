package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/tree"
)

// CopyTop makes a durable copy of a top, with an id that is not used again: what Freeze
// makes of the top itself. work names it while it is made. Nobody may change the top until
// it returns. Room is asked as by Staging.CopyTop. A copy without any change is not kept;
// after an error there may be one.
func CopyTop(ctx context.Context, s *Store, top, work, id string, room func() error) (f Frozen, err error) {
	st, err := s.Stage(work)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, st.Remove()) }()
	w, err := st.CopyTop(ctx, top, 0, room)
	if err != nil || w == nil {
		return f, err
	}
	defer w.Abort()
	if f, err = w.Close(ctx); err != nil || !f.Changed {
		return f, err
	}
	return f, st.Place([]string{id}, "")
}

// CopyTop copies what is in a top into the n-th layer of the staging. Nobody may
// change the top until it returns. Before each file, and within large ones, room is
// asked whether there is space to go on. Close of what it returns completes the layer,
// and makes it durable: that takes longer, and the top may change meanwhile. It
// returns nil if there is no such top.
func (st *Staging) CopyTop(ctx context.Context, top string, n int, room func() error) (w *LayerWriter, err error) {
	if err := failpoint.Fail(failpoint.LayerCopy); err != nil {
		return nil, err
	}
	if !st.s.HasLayer(top) {
		return nil, nil
	}
	if err := joinNames(ctx, st.s.LayerDir(top)); err != nil {
		return nil, fmt.Errorf("copy layer %s: %w", top, err)
	}
	if w, err = st.NewLayer(n); err != nil {
		return nil, err
	}
	r := reader{all: true, linked: map[uint64]*tree.Path{}}
	err = walk(ctx, st.s.LayerDir(top), func(t *tree.Entry) error {
		e, file, err := r.inspect(t)
		if file != nil {
			defer file.Close()
		}
		if err == nil {
			err = room()
		}
		if err != nil {
			return err
		}
		return w.copy(e, file, room)
	})
	if err != nil {
		w.Abort()
		return nil, fmt.Errorf("copy layer %s: %w", top, err)
	}
	return w, nil
}

// copy makes an entry as Add does. It comes from this machine, and may be what no
// export can hold: a pipe, or a socket.
func (w *LayerWriter) copy(e Entry, from *os.File, room func() error) error {
	if e.Path == "." {
		return w.begin(e)
	}
	parent, name := path.Split(e.Path)
	if err := w.leaveUntil(path.Clean(parent)); err != nil {
		return err
	}
	at := int(w.last().file.Fd())
	var err error
	if e.Link != "" || e.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = w.make(at, name, e, nil)
	} else {
		err = e.copyTo(at, name, from, room)
	}
	if err != nil {
		return fmt.Errorf("copy %q: %w", shortened(e.Path), err)
	}
	return nil
}

// copyTo makes the entry, which is no directory and no name of another.
func (e Entry) copyTo(at int, name string, from *os.File, room func() error) error {
	if e.Mode&unix.S_IFMT == unix.S_IFREG {
		return copyFile(at, name, e, from, room)
	}
	return e.makeSpecial(at, name)
}

// copyFile lets the kernel copy a file's data: file systems that can share blocks
// do.
func copyFile(at int, name string, e Entry, from *os.File, room func() error) error {
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), name)
	defer to.Close()
	if err := to.Truncate(e.Size); err != nil {
		return err
	}
	for _, x := range e.Data {
		if err := copyExtent(to, from, x, room); err != nil {
			return err
		}
	}
	return e.dress(fd)
}

// copyStep is how much of a file is copied before room is asked again. It must be
// less than what is to stay free.
const copyStep = 8 << 20

func copyExtent(to, from *os.File, x Extent, room func() error) error {
	in, out, left := x.Offset, x.Offset, x.Length
	for left > 0 {
		if err := room(); err != nil {
			return err
		}
		n, err := unix.CopyFileRange(int(from.Fd()), &in, int(to.Fd()), &out, int(min(left, copyStep)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
			step := min(left, copyStep)
			m, err := io.CopyN(io.NewOffsetWriter(to, out), io.NewSectionReader(from, in, step), step)
			if err != nil {
				return err
			}
			in, out, n = in+m, out+m, int(m)
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		left -= int64(n)
	}
	return nil
}
