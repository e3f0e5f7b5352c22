package imageserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// A file of an image can be one of which parts are still on their way. Then the image server
// asks for a part before it reads it, over a socket that keeps messages apart, and is told
// from where to where the file is there.
//
// A question is an offset. An answer is that offset, a start and an end, and why the part will
// not come, which is empty where it is there. When all of the file is there, an answer says so
// that nobody has asked for.

const (
	question   = 8
	answer     = 3 * 8
	mostAnswer = 512
	// mostAsked is how many questions are worked on at once: no more reads are.
	mostAsked = 2 * (workers + 1)
	// tellWithin bounds how long it takes to tell of the end: few answers have room in a socket.
	tellWithin = time.Second
)

// Bring answers questions for parts of a file until the other end of the socket is closed, or a
// part does not come because the server stops: then it closes the socket.
func Bring(ctx context.Context, conn net.Conn, late runtime.Late) {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	// So that the other end can go on alone.
	defer late.WhenWhole(func(size int64) {
		_ = conn.SetWriteDeadline(time.Now().Add(tellWithin))
		_, _ = conn.Write(answerFor(0, 0, size, nil))
		_ = conn.SetWriteDeadline(time.Time{})
	})()
	turns := make(chan struct{}, mostAsked)
	for {
		var q [question]byte
		if n, err := conn.Read(q[:]); err != nil || n != len(q) {
			return
		}
		off := int64(binary.LittleEndian.Uint64(q[:]))
		turns <- struct{}{}
		working.Go(func() {
			defer func() { <-turns }()
			start, end, err := awaitStep(ctx, late, max(off, 0))
			if errors.Is(err, context.Canceled) { // it is not lost: the server stops, or nobody reads any more
				conn.Close()
				return
			}
			_, _ = conn.Write(answerFor(off, start, end, err)) // a read sees that it is closed
		})
	}
}

// answerFor returns what answers a question.
func answerFor(off, start, end int64, err error) []byte {
	a := make([]byte, 0, mostAnswer)
	for _, n := range []int64{off, start, end} {
		a = binary.LittleEndian.AppendUint64(a, uint64(n))
	}
	if err != nil {
		a = append(a, err.Error()...)
	}
	return a[:min(len(a), mostAnswer)]
}

// awaitStep returns when a step is there, be it of several parts.
func awaitStep(ctx context.Context, late runtime.Late, off int64) (start, end int64, err error) {
	start, end, err = late.Await(ctx, off)
	for err == nil && end < off+lateStep {
		_, next, failed := late.Await(ctx, end)
		if failed == nil && next <= end { // it is the last
			break
		}
		end, err = next, failed
	}
	return start, end, err
}

// Awaiting returns what reads a file of so many bytes that is late. It asks over the socket, and
// calls exit where
// nobody answers any more and a part is not there.
func Awaiting(file io.ReaderAt, size int64, socket int, exit func(code int)) io.ReaderAt {
	l := &late{file: file, size: size, socket: socket, there: make([]bool, (size+lateStep-1)/lateStep), changed: sync.NewCond(&sync.Mutex{}), asked: map[int64]bool{}}
	l.exit = exit
	go l.listen()
	return l
}

// lateStep is what is known to be there, or not, as one.
const lateStep = 64 << 10

// late implements io.ReaderAt.
type late struct {
	file   io.ReaderAt
	size   int64
	socket int
	exit   func(code int)

	changed *sync.Cond // holds its lock for the rest
	there   []bool     // steps
	asked   map[int64]bool
	err     error // why more does not come
	alone   bool  // nobody answers any more
}

// ReadAt implements io.ReaderAt.
func (l *late) ReadAt(p []byte, off int64) (int, error) {
	for at := off; at < off+int64(len(p)); {
		n, err := l.await(at)
		if err != nil {
			return 0, err
		}
		at = n
	}
	return l.file.ReadAt(p, off)
}

// await returns when the step with an offset is there, and where that ends.
func (l *late) await(off int64) (end int64, err error) {
	step := off / lateStep
	end = (step + 1) * lateStep
	l.changed.L.Lock()
	defer l.changed.L.Unlock()
	for step < int64(len(l.there)) && !l.there[step] {
		if l.alone {
			l.exit(1) // without a report: what the runtime lacks is lost with who brought it, and not damaged
		}
		if l.err != nil {
			return 0, l.err
		}
		if !l.asked[step] {
			l.asked[step] = true
			// If nobody reads it, listen says so.
			_, _ = unix.Write(l.socket, binary.LittleEndian.AppendUint64(nil, uint64(step*lateStep)))
		}
		l.changed.Wait()
	}
	return end, nil
}

// listen takes the answers.
func (l *late) listen() {
	buf := make([]byte, mostAnswer)
	for {
		n, err := unix.Read(l.socket, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n < answer {
			l.changed.L.Lock()
			defer l.changed.L.Unlock()
			l.alone = true
			l.changed.Broadcast()
			return
		}
		l.take(buf[:n])
	}
}

// take notes an answer.
func (l *late) take(a []byte) {
	l.changed.L.Lock()
	defer l.changed.L.Unlock()
	off, start, end := int64(binary.LittleEndian.Uint64(a)), int64(binary.LittleEndian.Uint64(a[8:])), int64(binary.LittleEndian.Uint64(a[16:]))
	delete(l.asked, off/lateStep)
	if len(a) > answer {
		l.err = errors.New(string(a[answer:]))
	} else {
		for step := (max(start, 0) + lateStep - 1) / lateStep; step < int64(len(l.there)) && min((step+1)*lateStep, l.size) <= end; step++ {
			l.there[step] = true
		}
	}
	l.changed.Broadcast()
}
