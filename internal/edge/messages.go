package edge

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/interpreter"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// messages follows the messages that a server sends on a stream, to know where
// the stream can be ended with a last one that says why.
type messages interface {
	// next consumes p, up to the end of a message, and returns how much that is.
	next(p []byte) int
	// between reports whether the last message is complete, and another may
	// follow.
	between() bool
	// farewell returns the message that ends the stream.
	farewell(why error) []byte
}

// messagesOf returns what follows the messages of an answer; nil if it has none
// that are known.
func messagesOf(status int, upgrade, contentType string) messages {
	switch {
	case status == http.StatusSwitchingProtocols && strings.EqualFold(upgrade, "websocket"):
		return &socketFrames{}
	case strings.HasPrefix(contentType, "application/connect+"):
		return &envelopes{}
	}
	return nil
}

// isEventStream reports whether an answer has no natural end.
func isEventStream(contentType string) bool {
	return strings.HasPrefix(contentType, "text/event-stream")
}

// envelopes follows the streams of the Connect protocol: each message has a
// byte of flags and its length before it.
type envelopes struct {
	head [5]byte
	n    int   // of head that is here
	left int64 // of the message
	over bool  // the end of the stream has been sent
}

// endOfStream is the flag of a stream's last message.
const endOfStream = 0x02

func (e *envelopes) next(p []byte) int {
	used := 0
	if e.left == 0 && e.n < len(e.head) {
		m := copy(e.head[e.n:], p)
		e.n += m
		used = m
		if e.n < len(e.head) {
			return used
		}
		e.left = int64(binary.BigEndian.Uint32(e.head[1:]))
		e.over = e.over || e.head[0]&endOfStream != 0
	}
	m := min(e.left, int64(len(p)-used))
	e.left -= m
	if e.left == 0 {
		e.n = 0
	}
	return used + int(m)
}

func (e *envelopes) between() bool { return e.n == 0 && !e.over }

func (e *envelopes) farewell(why error) []byte {
	type problem struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	body, err := json.Marshal(map[string]problem{"error": {connectCode(why), inFlight(why, agentapi.Port)}})
	if err != nil { // cannot happen: strings
		body = []byte("{}")
	}
	out := binary.BigEndian.AppendUint32([]byte{endOfStream}, uint32(len(body)))
	return append(out, body...)
}

// connectCode returns the code of a Connect stream's end. E2B's SDKs make of
// "unavailable" the class of error that their users catch when a sandbox sleeps,
// was killed or is past its time, and advise a longer timeout. Where that advice
// is wrong the code is "aborted", of which they make a plain error with our words.
func connectCode(why error) string {
	e, ok := errors.AsType[*errdef.Error](why)
	if !ok {
		return "unavailable"
	}
	switch e.Code {
	case "put_to_sleep", lifecycle.Killed.Code(), lifecycle.TimeoutExpired.Code(), lifecycle.IdleTimeout.Code(),
		lifecycle.MaxLifetimeExceeded.Code(), lifecycle.PausedExpired.Code():
		return "unavailable"
	}
	return "aborted"
}

// socketFrames follows the frames of a WebSocket (RFC 6455 §5.2).
type socketFrames struct {
	head [14]byte
	n    int    // of head that is here
	left uint64 // of the payload
	over bool   // a close has been sent
}

const (
	opClose = 0x8
	// closeRestart is the status of a close that asks the client to come again.
	closeRestart = 1012
	// maxCloseReason is what a close has room for beside its status.
	maxCloseReason = 123
)

func (f *socketFrames) next(p []byte) int {
	used := 0
	for f.left == 0 && used < len(p) {
		f.head[f.n] = p[used]
		f.n++
		used++
		if f.n < f.headLength() {
			continue
		}
		if f.left = f.payload(); f.left == 0 {
			f.n = 0
			return used
		}
	}
	m := min(f.left, uint64(len(p)-used))
	if f.left -= m; f.left == 0 && m > 0 {
		f.n = 0
	}
	return used + int(m)
}

// headLength is how long the head is, as far as is known.
func (f *socketFrames) headLength() int {
	if f.n < 2 {
		return 2
	}
	length := 2
	switch f.head[1] & 0x7f {
	case 126:
		length += 2
	case 127:
		length += 8
	}
	if f.head[1]&0x80 != 0 {
		length += 4
	}
	return length
}

// payload is how long the payload is, of which the head is complete.
func (f *socketFrames) payload() uint64 {
	f.over = f.over || f.head[0]&0x0f == opClose
	switch n := f.head[1] & 0x7f; n {
	case 126:
		return uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		return binary.BigEndian.Uint64(f.head[2:])
	default:
		return uint64(n)
	}
}

func (f *socketFrames) between() bool { return f.n == 0 && !f.over }

func (f *socketFrames) farewell(why error) []byte {
	reason := reasonOf(why)
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxCloseReason)], "")
	out := []byte{0x80 | opClose, byte(2 + len(reason))}
	out = binary.BigEndian.AppendUint16(out, closeRestart)
	return append(out, reason...)
}

// inFlight is why a request to a port of a sandbox ends that was under way. Of one that
// was killed or is past its time it says so in the words that E2B's clients compare with.
func inFlight(why error, port int) string {
	switch {
	case !lifecycle.Ended(why) || connectCode(why) != "unavailable":
		return reasonOf(why)
	case port == interpreter.Port:
		return "the sandbox was killed while the request was in progress: " + reasonOf(why)
	}
	return "the sandbox was killed or reached its end of life: " + reasonOf(why)
}

// reasonOf is why a stream ends, without what to do.
func reasonOf(why error) string {
	if e, ok := errors.AsType[*errdef.Error](why); ok {
		return e.Message
	}
	return why.Error()
}

// follow consumes what of p belongs together: up to the end of a message, if
// only one is to be let through, else all of it. The chunked coding, if there is
// one, is consumed with it.
func follow(m messages, c *h1.Chunks, p []byte, one bool) (n int, err error) {
	for n < len(p) {
		piece := p[n:]
		if c != nil {
			if c.Done() {
				return n, nil
			}
			if one {
				piece = piece[:1] // or the next chunk would be begun
			}
			var used int
			if used, piece, err = c.Next(piece); err != nil {
				return n, err
			}
			n += used - len(piece)
			if len(piece) == 0 && one && c.Between() && m.between() {
				return n, nil
			}
		}
		for len(piece) > 0 {
			k := m.next(piece)
			piece, n = piece[k:], n+k
			if c == nil && one && m.between() {
				return n, nil
			}
		}
	}
	return n, nil
}
