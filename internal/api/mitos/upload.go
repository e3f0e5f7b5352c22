package mitos

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"strconv"

	"github.com/drowse-dev/drowse/internal/api/body"
)

// maxOpen bounds the first frame of a file that is written.
const maxOpen = 64 << 10

// upload reads the bytes of a file from the frames of a call. The SDK sends a whole
// file in one frame, so that a frame is decoded as it comes, in little memory: it
// must be an object whose only member is data.
type upload struct {
	in      *bufio.Reader
	left    int64     // of the frame under way, without its head
	data    io.Reader // decodes it; nil between frames
	written int64
	err     error // that ended it; io.EOF at the end
}

func newUpload(c *call) *upload { return &upload{in: bufio.NewReaderSize(c.r.Body, 32<<10)} }

// first returns the message of the first frame.
func (u *upload) first() ([]byte, error) {
	if err := u.head(); err != nil {
		if errors.Is(err, io.EOF) {
			err = body.Invalid("the request has no message").WithRemedy(`begin with {"open": {"path": ...}}`)
		}
		return nil, err
	}
	if u.left > maxOpen {
		return nil, body.Invalid("the first message has %d bytes", u.left).WithRemedy(`begin with {"open": {"path": ...}} alone`)
	}
	data := make([]byte, u.left)
	if _, err := io.ReadFull(u.in, data); err != nil {
		return nil, errCutShort
	}
	u.left = 0
	return data, nil
}

// errCutShort is that of a request that ends in the middle of a frame.
var errCutShort = body.Invalid("the request ends within a message").WithRemedy("send it again: the file may be incomplete")

// head reads the head of the next frame. io.EOF means that there is none.
func (u *upload) head() error {
	var head [frameHead]byte
	switch _, err := io.ReadFull(u.in, head[:]); {
	case errors.Is(err, io.EOF):
		return io.EOF
	case err != nil:
		return errCutShort
	}
	u.left = int64(binary.BigEndian.Uint32(head[1:]))
	return checkFlags(head[0])
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	if u.err != nil || len(p) == 0 {
		return 0, u.err
	}
	n, err := u.read(p)
	u.written += int64(n)
	u.err = err
	return n, err
}

func (u *upload) read(p []byte) (int, error) {
	for {
		if u.data == nil {
			if err := u.head(); err != nil {
				return 0, err
			}
			if err := u.enter(); err != nil {
				return 0, err
			}
		}
		n, err := u.data.Read(p)
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, io.EOF):
			u.data = nil
			if err := u.leave(); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, badData(err)
		}
	}
}

// badData keeps an error that says what is wrong, and says it of base64.
func badData(err error) error {
	if _, ours := asError(err); ours {
		return err
	}
	return body.Invalid("the data of a file is not base64: %v", err).With("field", "data")
}

// next returns the next byte of the frame.
func (u *upload) next() (byte, error) {
	if u.left == 0 {
		return 0, body.Invalid("a message of the file ends too early").WithRemedy(`send {"data": "..."}`)
	}
	b, err := u.in.ReadByte()
	if err != nil {
		return 0, errCutShort
	}
	u.left--
	return b, nil
}

// token returns the next byte that is no space.
func (u *upload) token() (byte, error) {
	for {
		b, err := u.next()
		if err != nil || b != ' ' && b != '\t' && b != '\r' && b != '\n' {
			return b, err
		}
	}
}

// enter reads a message up to the beginning of its data.
func (u *upload) enter() error {
	wrong := func(name string) error {
		return body.Invalid("a message of the file has %q where only data is expected", body.Short(name)).
			WithRemedy(`send {"data": "..."}`).With("field", body.Short(name))
	}
	if b, err := u.token(); err != nil || b != '{' {
		return errOr(err, wrong(string(b)))
	}
	b, err := u.token()
	if err != nil || b == '}' { // nothing: defaults are left out
		u.data = nothing{}
		if b == '}' && u.left > 0 {
			u.data = nil
			return wrong("more")
		}
		return err
	}
	if b != '"' {
		return wrong(string(b))
	}
	name, err := io.ReadAll(io.LimitReader(&characters{u: u}, 80))
	if err != nil || string(name) != "data" {
		return errOr(err, wrong(string(name)))
	}
	if b, err := u.token(); err != nil || b != ':' {
		return errOr(err, wrong(string(b)))
	}
	if b, err := u.token(); err != nil || b != '"' {
		return errOr(err, body.Invalid("the data of a file must be a string of base64").With("field", "data"))
	}
	u.data = base64.NewDecoder(base64.StdEncoding, &characters{u: u, closes: true})
	return nil
}

// leave holds a message to have ended.
func (u *upload) leave() error {
	if u.left != 0 {
		return body.Invalid("a message of the file goes on after its data").WithRemedy(`send {"data": "..."}`)
	}
	return nil
}

// nothing has no bytes.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

// characters reads the characters of a string up to its end, and then, where it closes
// the message, the brace.
type characters struct {
	u      *upload
	closes bool
	over   bool
}

// Read implements io.Reader.
func (t *characters) Read(p []byte) (n int, err error) {
	for n < len(p) && !t.over {
		b, err := t.u.next()
		if err != nil {
			return n, err
		}
		switch b {
		case '"':
			t.over = true
			if err := t.close(); err != nil {
				return n, err
			}
			continue
		case '\\':
			if b, err = t.escaped(); err != nil {
				return n, err
			}
		case '\r', '\n': // which a decoder of base64 would skip
			return n, body.Invalid("a string of a message has a line break")
		}
		p[n] = b
		n++
	}
	if n == 0 && t.over {
		return 0, io.EOF
	}
	return n, nil
}

// escaped reads the character after a backslash: only such as base64 has.
func (t *characters) escaped() (byte, error) {
	b, err := t.u.next()
	if err != nil || b == '/' {
		return b, err
	}
	if b == 'u' {
		var digits [4]byte
		for i := range digits {
			if digits[i], err = t.u.next(); err != nil {
				return 0, err
			}
		}
		if code, err := strconv.ParseUint(string(digits[:]), 16, 16); err == nil && code > ' ' && code < 0x7f {
			return byte(code), nil
		}
	}
	return 0, body.Invalid("a string of a message has an escape that base64 does not need")
}

func (t *characters) close() error {
	if !t.closes {
		return nil
	}
	if b, err := t.u.token(); err != nil || b != '}' {
		return errOr(err, body.Invalid("a message of the file has more than data").WithRemedy(`send {"data": "..."}`))
	}
	return nil
}
