package client

import (
	"io"
	"sync"
)

// maxGathered is how much input waits while a call with some of it is under way,
// and how much a call carries at most.
const maxGathered = 256 << 10

// gather reads ahead, so that a call carries all the input that came during the
// one before: each takes a millisecond or so, however small.
type gather struct {
	mu    sync.Mutex
	moved *sync.Cond // something below has changed
	buf   []byte
	err   error // of the reader; io.EOF at its end
	done  bool  // nobody takes any more
}

// startGather begins to read from r. Nothing can interrupt a Read: one that is
// under way at stop is left alone.
func startGather(r io.Reader) *gather {
	g := &gather{}
	g.moved = sync.NewCond(&g.mu)
	go g.read(r)
	return g
}

func (g *gather) read(r io.Reader) {
	chunk := make([]byte, 32<<10)
	for {
		n, err := r.Read(chunk)
		g.mu.Lock()
		for len(g.buf)+n > maxGathered && !g.done {
			g.moved.Wait()
		}
		g.buf = append(g.buf, chunk[:n]...)
		g.err = err
		g.moved.Signal()
		done := g.done
		g.mu.Unlock()
		if err != nil || done {
			return
		}
	}
}

// next returns what has come since the last call, once there is something. The
// error is the reader's, after all of its bytes; io.EOF at its end.
func (g *gather) next() ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.buf) == 0 && g.err == nil {
		g.moved.Wait()
	}
	if len(g.buf) == 0 {
		return nil, g.err
	}
	b := g.buf
	g.buf = nil
	g.moved.Signal()
	return b, nil
}

// stop ends the reading ahead.
func (g *gather) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = true
	g.moved.Signal()
}
