package zmtp

import (
	"bytes"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"
)

// peer is a connection whose other side says all of answer whatever it hears.
type peer struct {
	net.Conn
	answer *bytes.Reader
	sent   bytes.Buffer
}

func answering(answer []byte) *peer { return &peer{answer: bytes.NewReader(answer)} }

func (p *peer) Read(b []byte) (int, error)  { return p.answer.Read(b) }
func (p *peer) Write(b []byte) (int, error) { return p.sent.Write(b) }
func (p *peer) Close() error                { return nil }

func greeted(more ...byte) []byte {
	return append(append(greeting(), appendFrame(nil, flagCommand, ready("ROUTER"))...), more...)
}

func TestSent(t *testing.T) {
	conn := answering(greeted())
	c, err := Open(conn, Subscriber, 100)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 256)
	if err := c.Send([]byte("a"), nil, []byte(long)); err != nil {
		t.Fatal(err)
	}
	want := "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL" + strings.Repeat("\x00", 48) +
		"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x00" +
		"\x00\x01\x01" +
		"\x01\x01a" + "\x01\x00" + "\x02\x00\x00\x00\x00\x00\x00\x01\x00" + long
	if got := conn.sent.String(); got != want {
		t.Errorf("sent\n%q, want\n%q", got, want)
	}
}

func TestReceived(t *testing.T) {
	answer := greeted()
	answer = appendFrame(answer, flagMore, []byte("a"))
	answer = appendFrame(answer, 0, nil)
	answer = appendFrame(answer, flagCommand, []byte("\x04PING"))
	// Too large by its frames together, and by one of them.
	for range 3 {
		answer = appendFrame(answer, flagMore, make([]byte, 150))
	}
	answer = appendFrame(answer, 0, []byte("end"))
	answer = appendFrame(answer, 0, make([]byte, 1<<20))
	answer = appendFrame(answer, 0, bytes.Repeat([]byte("b"), 300))
	conn := answering(answer)
	c, err := Open(conn, Dealer, 400)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []any{
		[][]byte{[]byte("a"), {}},
		TooLargeError{453, 400},
		TooLargeError{1 << 20, 400},
		[][]byte{bytes.Repeat([]byte("b"), 300)},
	} {
		frames, err := c.Receive()
		got := any(frames)
		if large, ok := errors.AsType[*TooLargeError](err); ok {
			got = *large
		} else if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("message %d: %v, want %v", i, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	curve := greeted()
	copy(curve[12:], "CURVE")
	old := greeted()
	old[10] = 1
	for _, c := range []struct{ name, answer, want string }{
		{"another protocol", "HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 100), "does not speak ZMTP 3"},
		{"an old version", string(old), "does not speak ZMTP 3"},
		{"encryption", string(curve), `wants the mechanism "CURVE`},
		{"an error", string(appendFrame(greeting(), flagCommand, []byte("\x05ERROR\x02no"))), `it is not ready: "\x05ERROR\x02no"`},
		{"no command", string(appendFrame(greeting(), 0, []byte("x"))), "its first frame is no command"},
	} {
		conn := answering([]byte(c.answer))
		if _, err := Open(conn, Dealer, 100); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Whatever a peer says, a message is within the limits or refused.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x01a\x00\x00"))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x01\x00"))
	f.Add([]byte("\x02\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("\x04\x05\x04PING\x00\x01x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 100
		c, err := Open(answering(greeted(data...)), Dealer, limit)
		if err != nil {
			t.Fatal(err)
		}
		for {
			frames, err := c.Receive()
			if _, ok := errors.AsType[*TooLargeError](err); ok {
				continue
			}
			if err != nil {
				return
			}
			total := 0
			for _, frame := range frames {
				total += len(frame)
			}
			if len(frames) == 0 || len(frames) > maxFrames || total > limit {
				t.Fatalf("%d frames of %d bytes", len(frames), total)
			}
		}
	})
}
