package sandbox0

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/held"
)

// The sources of output.
const (
	fromStdout = "stdout"
	fromStderr = "stderr"
	fromPTY    = "pty"
)

// Bounds of the output that is kept for those who ask later.
const (
	maxKept   = 4 << 20  // of one context; see package held for those of a key, and all
	chunkCost = 64       // what a chunk takes besides its data
	chunkMost = 32 << 10 // up to which chunks of one source are joined

	// maxBehind is how many chunks a reader may be behind, and readerPatience how
	// long the output then waits for it.
	maxBehind      = 64
	readerPatience = 5 * time.Second
)

// chunk is a piece of output.
type chunk struct {
	source, data string
	done         *doneMessage // instead: all output of an input is before this
}

// output is what a context has printed: the end of it is kept, and all of it goes
// to those who read along.
type output struct {
	room *held.Share // of what is kept

	mu      sync.Mutex
	kept    []chunk
	dropped bool
	readers map[*reader]bool
	closed  bool
	rest    map[string]string // by source, the beginning of a character
}

// reader reads output along. Lost is closed for one that was too far behind. What
// waits for it counts in room.
type reader struct {
	ctx    context.Context // ends with it
	room   *held.Share
	chunks chan chunk
	lost   chan struct{}
}

func newOutput(room *held.Share) *output {
	return &output{room: room, readers: map[*reader]bool{}, rest: map[string]string{}}
}

func (c chunk) cost() int {
	if c.done != nil {
		return 0
	}
	return len(c.data) + chunkCost
}

// write keeps output and passes it on. It waits for readers that are behind, so
// that a fast program is slowed down by a slow reader; one that takes nothing is
// left behind.
func (o *output) write(source, data string) {
	o.mu.Lock()
	data = o.whole(source, data)
	if data == "" || o.closed {
		o.mu.Unlock()
		return
	}
	o.keepLocked(chunk{source: source, data: data})
	readers := make([]*reader, 0, len(o.readers))
	for r := range o.readers {
		readers = append(readers, r)
	}
	o.mu.Unlock()
	for _, r := range readers {
		o.pass(r, chunk{source: source, data: data})
	}
}

// whole holds back the beginning of a character whose end has yet to come.
func (o *output) whole(source, data string) string {
	data = o.rest[source] + data
	cut := len(data)
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		if b := data[len(data)-i]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRuneInString(data[len(data)-i:]) {
				cut = len(data) - i
			}
			break
		}
	}
	o.rest[source] = data[cut:]
	return strings.ToValidUTF8(data[:cut], "\uFFFD")
}

func (o *output) pass(r *reader, c chunk) {
	if r.room.Grow(c.cost()) {
		select {
		case r.chunks <- c:
			return
		default:
			r.room.Shrink(c.cost())
		}
	}
	wait, cancel := context.WithTimeout(r.ctx, readerPatience)
	defer cancel()
	if !r.room.Await(wait, c.cost()) {
		o.leave(r)
		return
	}
	select {
	case r.chunks <- c:
	case <-r.lost:
	case <-wait.Done():
		o.leave(r)
	}
}

// taken counts a chunk of a reader as read.
func (r *reader) taken(c chunk) { r.room.Shrink(c.cost()) }

// keepLocked keeps a chunk, and drops the oldest where there is no room. Small
// chunks of one source are joined.
func (o *output) keepLocked(c chunk) {
	if !o.takeLocked(c.cost()) {
		o.dropped = true // there is room for nothing more
		return
	}
	last := len(o.kept) - 1
	if last < 0 || o.kept[last].source != c.source || len(o.kept[last].data)+len(c.data) > chunkMost {
		o.kept = append(o.kept, c)
		return
	}
	o.kept[last].data += c.data
	o.room.Shrink(chunkCost)
}

func (o *output) takeLocked(n int) bool {
	for o.room.Has()+n > maxKept || !o.room.Grow(n) {
		if len(o.kept) == 0 {
			return false
		}
		o.dropped = true
		o.room.Shrink(o.kept[0].cost())
		o.kept[0] = chunk{}
		o.kept = o.kept[1:]
	}
	return true
}

// follow returns a reader of what comes, and what there was before, as far as the
// reader has room for it: it may be dropped here before it is read there.
func (o *output) follow(ctx context.Context, room *held.Share) (*reader, []chunk) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &reader{ctx: ctx, room: room, chunks: make(chan chunk, maxBehind), lost: make(chan struct{})}
	if !o.closed {
		o.readers[r] = true
	}
	first := len(o.kept)
	for first > 0 && room.Grow(o.kept[first-1].cost()) {
		first--
	}
	return r, append(notice(o.dropped || first > 0), o.kept[first:]...)
}

// notice says that the beginning is missing, where it is.
func notice(missing bool) []chunk {
	if !missing {
		return nil
	}
	return []chunk{{source: fromStderr, data: "[drowse: the beginning of this output was not kept]\n"}}
}

// leave ends a reader.
func (o *output) leave(r *reader) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.readers[r] {
		delete(o.readers, r)
		close(r.lost)
	}
}

// texts returns what is kept: all, and by source. A terminal's output is all
// that there is.
func (o *output) texts() (raw, stdout, stderr string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return textsOf(append(notice(o.dropped), o.kept...))
}

func textsOf(chunks []chunk) (raw, stdout, stderr string) {
	var r, out, errs strings.Builder
	for _, c := range chunks {
		r.WriteString(c.data)
		switch c.source {
		case fromStdout, fromPTY:
			out.WriteString(c.data)
		case fromStderr:
			errs.WriteString(c.data)
		}
	}
	return r.String(), out.String(), errs.String()
}

// drop gives back the room. Nothing is kept any more.
func (o *output) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.room.Free()
	o.kept, o.closed = nil, true
	for r := range o.readers {
		delete(o.readers, r)
		close(r.lost)
	}
}
