package mitos

import (
	"encoding/binary"
	"encoding/json"
	"mime"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// The media types of the Connect protocol, with messages in JSON.
const (
	typeUnary  = "application/json"
	typeStream = "application/connect+json"
)

// The flags of a frame: a byte for them, four for the length, big end first, and
// the message.
const (
	flagCompressed = 1
	flagEnd        = 2
	frameHead      = 5
)

// checkProtocol refuses what is not spoken here.
func (c *call) checkProtocol() error {
	want := typeUnary
	switch c.route.kind {
	case streams:
		want = typeStream
	case socket:
		return nil
	}
	if media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || media != want {
		return body.Invalid("the Content-Type is %q", body.Short(c.r.Header.Get("Content-Type"))).WithRemedy("send %s", want)
	}
	for _, header := range []string{"Content-Encoding", "Connect-Content-Encoding"} {
		if coding := c.r.Header.Get(header); coding != "" && coding != "identity" {
			return errdef.New(errdef.Unsupported, "not_supported", "messages compressed with %q are not supported", body.Short(coding)).WithRemedy("leave out %s", header)
		}
	}
	return nil
}

// message reads the only message of a stream, which is the body's one frame.
func (c *call) message(v body.Vocabulary) (map[string]body.Said, error) {
	data, err := httpapi.ReadBody(c.w, c.r, c.key.ID)
	if err != nil {
		return nil, err
	}
	if data, err = onlyFrame(data); err != nil {
		return nil, err
	}
	return c.read(data, v)
}

// onlyFrame returns the message of a body that has one frame.
func onlyFrame(data []byte) ([]byte, error) {
	if len(data) < frameHead {
		return nil, body.Invalid("the request has no message: its body has %d bytes", len(data)).WithRemedy("send one frame: a byte for flags, four for the length, and JSON")
	}
	if err := checkFlags(data[0]); err != nil {
		return nil, err
	}
	if n := binary.BigEndian.Uint32(data[1:frameHead]); int64(n) != int64(len(data)-frameHead) {
		return nil, body.Invalid("the first frame says that it has %d bytes, and %d follow", n, len(data)-frameHead).WithRemedy("send one whole frame")
	}
	return data[frameHead:], nil
}

func checkFlags(flags byte) error {
	switch {
	case flags&flagCompressed != 0:
		return errdef.New(errdef.Unsupported, "not_supported", "compressed messages are not supported").WithRemedy("send frames with the flags 0")
	case flags != 0:
		return body.Invalid("a frame has the flags %d", flags).WithRemedy("send frames with the flags 0")
	}
	return nil
}

// frame returns a message as a frame.
func frame(flags byte, message any) []byte {
	data, err := json.Marshal(message)
	if err != nil {
		panic("internal error: mitos: a message that cannot be encoded: " + err.Error())
	}
	out := make([]byte, frameHead, frameHead+len(data))
	out[0] = flags
	binary.BigEndian.PutUint32(out[1:], uint32(len(data)))
	return append(out, data...)
}

// frames is the answer of a stream.
type frames struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func newFrames(w http.ResponseWriter) *frames {
	return &frames{w: w, control: http.NewResponseController(w)}
}

// send sends a message at once. It blocks while the client does not read.
func (f *frames) send(message any) error { return f.write(frame(0, message)) }

// finish sends the last message, and ends the stream well.
func (f *frames) finish(last any) error {
	return f.write(append(frame(0, last), frame(flagEnd, struct{}{})...))
}

// end ends it with an error. There is nobody to tell if that cannot be sent.
func (f *frames) end(e *rpcError) {
	_ = f.write(frame(flagEnd, map[string]*rpcError{"error": e}))
}

func (f *frames) write(data []byte) error {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", typeStream)
		f.w.WriteHeader(http.StatusOK)
	}
	if _, err := f.w.Write(data); err != nil {
		return errGone
	}
	if err := f.control.Flush(); err != nil {
		return errGone
	}
	return nil
}

// errGone is that of a stream whose client does not read any more.
var errGone = errdef.New(errdef.Unavailable, "canceled", "the client has gone")
