package space

import (
	"context"
	"errors"
	"io"
)

// Within returns what reads r for as long as there is room on the disk for
// what is read, and ctx lasts. It can pass over what r can.
func (d *Disk) Within(ctx context.Context, r io.Reader) io.Reader {
	u := &upload{ctx: ctx, disk: d, r: r}
	if s, ok := r.(io.Seeker); ok {
		return struct {
			io.Reader
			io.Seeker
		}{u, s}
	}
	return u
}

// upload is a bundle, or a file, on its way in. Before every so many bytes it asks
// whether there is room for more, so that none fills the disk.
type upload struct {
	ctx  context.Context
	disk *Disk
	r    io.Reader
	left int // until it asks again
}

// uploadStep is how much is read before the disk is looked at again. Of that
// many bytes the tiniest of files take less than Least.
const uploadStep = 1 << 20

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	if u.left == 0 {
		if err := errors.Join(u.ctx.Err(), u.disk.Check(Least)); err != nil {
			return 0, err
		}
		u.left = uploadStep
	}
	n, err := u.r.Read(p[:min(len(p), u.left)])
	u.left -= n
	return n, err
}
