package held

import (
	"bytes"
	"io"
)

// Lines reads what comes in lines, for a decoder that keeps a line until its end has
// come. A line counts while it is kept. The decoder's buffer keeps the size of the
// longest, and so does what is counted, until Free.
type Lines struct {
	from  io.Reader
	share *Share
	most  int
	line  int // bytes of the line under way
	taken int
}

// freeLine is what a line may have without being counted.
const freeLine = 32 << 10

// NewLines returns a reader that fails with ErrTooLarge where a line has more than most
// bytes, and with ErrNoRoom where the share has no room for it.
func NewLines(from io.Reader, share *Share, most int) *Lines {
	return &Lines{from: from, share: share, most: most}
}

// Read implements io.Reader.
func (l *Lines) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	first := bytes.IndexByte(p[:n], '\n')
	if first < 0 {
		first = n
	}
	if l.line+first > l.most {
		return 0, ErrTooLarge
	}
	if more := l.line + first - max(l.taken, freeLine); more > 0 {
		more = max(more, freeLine) // in steps
		if !l.share.Grow(more) {
			return 0, ErrNoRoom
		}
		l.taken += more
	}
	if last := bytes.LastIndexByte(p[:n], '\n'); last >= 0 {
		l.line = n - last - 1
	} else {
		l.line += n
	}
	return n, err
}

// Free gives the room back.
func (l *Lines) Free() {
	l.share.Shrink(l.taken)
	l.taken = 0
}
