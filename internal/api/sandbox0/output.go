package sandbox0

import (
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/ration"
)

// The sources of output.
const (
	fromStdout = "stdout"
	fromStderr = "stderr"
	fromPTY    = "pty"
)

// Bounds of the output that is kept for those who ask later.
const (
	maxKept    = 4 << 20   // of one context
	maxKeptKey = 32 << 20  // of those of one API key
	maxKeptAll = 128 << 20 // of all contexts
	chunkCost  = 64        // what a chunk takes besides its data
	chunkMost  = 32 << 10  // up to which chunks of one source are joined

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
	room *ration.Ration
	key  string // of the API key for which it counts

	mu      sync.Mutex
	kept    []chunk
	taken   int // of room
	dropped bool
	readers map[*reader]bool
	closed  bool
	rest    map[string]string // by source, the beginning of a character
}

// reader reads output along. Lost is closed for one that was too far behind.
type reader struct {
	chunks chan chunk
	lost   chan struct{}
}

func newOutput(room *ration.Ration, key string) *output {
	return &output{room: room, key: key, readers: map[*reader]bool{}, rest: map[string]string{}}
}

func (o *output) holder() ration.Holder { return ration.Holder{Name: "key:" + o.key, Most: maxKeptKey} }

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
	select {
	case r.chunks <- c:
		return
	default:
	}
	wait := time.NewTimer(readerPatience)
	defer wait.Stop()
	select {
	case r.chunks <- c:
	case <-r.lost:
	case <-wait.C:
		o.leave(r)
	}
}

// keepLocked keeps a chunk, and drops the oldest where there is no room. Small
// chunks of one source are joined.
func (o *output) keepLocked(c chunk) {
	if !o.takeLocked(len(c.data) + chunkCost) {
		o.dropped = true // there is room for nothing more
		return
	}
	last := len(o.kept) - 1
	if last < 0 || o.kept[last].source != c.source || len(o.kept[last].data)+len(c.data) > chunkMost {
		o.kept = append(o.kept, c)
		return
	}
	o.kept[last].data += c.data
	o.taken -= chunkCost
	o.room.Give(chunkCost, o.holder())
}

func (o *output) takeLocked(n int) bool {
	for o.taken+n > maxKept || !o.room.Take(n, o.holder()) {
		if len(o.kept) == 0 {
			return false
		}
		o.dropped = true
		old := len(o.kept[0].data) + chunkCost
		o.kept[0] = chunk{}
		o.kept = o.kept[1:]
		o.taken -= old
		o.room.Give(old, o.holder())
	}
	o.taken += n
	return true
}

// follow returns a reader of what comes, and what there was before.
func (o *output) follow() (*reader, []chunk) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &reader{chunks: make(chan chunk, maxBehind), lost: make(chan struct{})}
	if !o.closed {
		o.readers[r] = true
	}
	return r, append(o.noticeLocked(), o.kept...)
}

// noticeLocked says that the beginning is missing, where it is.
func (o *output) noticeLocked() []chunk {
	if !o.dropped {
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
	return textsOf(append(o.noticeLocked(), o.kept...))
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
	o.room.Give(o.taken, o.holder())
	o.kept, o.taken, o.closed = nil, 0, true
	for r := range o.readers {
		delete(o.readers, r)
		close(r.lost)
	}
}
