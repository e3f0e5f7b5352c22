// Package zmtp speaks ZMTP 3.0, the wire protocol of ZeroMQ, from the side that
// connects: as much of it as a client of Jupyter kernels needs, which are DEALER
// and SUB sockets without encryption.
//
// It promises that a message is read whole or not at all, and that one that is
// too large takes no memory and does not disturb the next. It does not connect
// again: a connection that fails is over.
package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// The kinds of sockets.
const (
	Dealer     = "DEALER"
	Subscriber = "SUB"
)

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	maxCommand = 4 << 10
	maxFrames  = 256 // of one message
)

// A greeting is 64 bytes: a signature, the version, the mechanism, and the role
// that it does not have.
const greetingSize = 64

func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9] = 0xff, 0x7f
	g[10] = 3
	copy(g[12:32], "NULL")
	return g
}

// TooLargeError says that a message was skipped for its size.
type TooLargeError struct{ Size, Limit uint64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a message of %d bytes is too large: the limit is %d", e.Size, e.Limit)
}

// Conn is a connection to a socket that listens. One goroutine may receive
// while others send. It ends with the connection that it was made on.
type Conn struct {
	conn  net.Conn
	from  *bufio.Reader
	limit uint64

	mu sync.Mutex // over one message that is sent
}

// Open greets the peer on conn. Messages are received up to limit bytes. A
// Subscriber gets everything.
func Open(conn net.Conn, kind string, limit uint64) (*Conn, error) {
	c := &Conn{conn: conn, from: bufio.NewReaderSize(conn, 64<<10), limit: limit}
	if err := c.greet(kind); err != nil {
		return nil, fmt.Errorf("greet the %s peer: %w", kind, err)
	}
	return c, nil
}

func (c *Conn) greet(kind string) error {
	if _, err := c.conn.Write(greeting()); err != nil {
		return err
	}
	theirs := make([]byte, greetingSize)
	if _, err := io.ReadFull(c.from, theirs); err != nil {
		return err
	}
	if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 {
		return errors.New("it does not speak ZMTP 3")
	}
	if string(theirs[12:17]) != "NULL\x00" {
		return fmt.Errorf("it wants the mechanism %q", theirs[12:32])
	}
	if err := c.write(appendFrame(nil, flagCommand, ready(kind))); err != nil {
		return err
	}
	flags, size, err := c.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return errors.New("its first frame is no command")
	}
	command := make([]byte, size)
	if _, err := io.ReadFull(c.from, command); err != nil {
		return err
	}
	if len(command) < 6 || string(command[:6]) != "\x05READY" {
		return fmt.Errorf("it is not ready: %q", command)
	}
	if kind == Subscriber {
		return c.Send([]byte{1})
	}
	return nil
}

// ready is the command that says which kind of socket this is.
func ready(kind string) []byte {
	b := []byte("\x05READY")
	for _, p := range [][2]string{{"Socket-Type", kind}, {"Identity", ""}} {
		b = append(b, byte(len(p[0])))
		b = append(b, p[0]...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(p[1])))
		b = append(b, p[1]...)
	}
	return b
}

func appendFrame(b []byte, flags byte, data []byte) []byte {
	if len(data) > 255 {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(data)))
	} else {
		b = append(b, flags, byte(len(data)))
	}
	return append(b, data...)
}

// Send sends one message.
func (c *Conn) Send(frames ...[]byte) error {
	var b []byte
	for i, frame := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, frame)
	}
	return c.write(b)
}

func (c *Conn) write(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(b)
	return err
}

// Receive waits for the next message. After a *TooLargeError there may be more.
func (c *Conn) Receive() ([][]byte, error) {
	var frames [][]byte
	var total uint64
	for {
		flags, size, err := c.header()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if size > maxCommand {
				return nil, errors.New("a command is too large")
			}
			if _, err := c.from.Discard(int(size)); err != nil {
				return nil, err
			}
			continue
		}
		frame, err := c.frame(size, total)
		if err != nil {
			return nil, err
		}
		total += size
		if frames = append(frames, frame); len(frames) > maxFrames {
			return nil, errors.New("a message has too many frames")
		}
		if flags&flagMore != 0 {
			continue
		}
		if total > c.limit {
			return nil, &TooLargeError{total, c.limit}
		}
		return frames, nil
	}
}

// frame reads a frame, or skips it if it is too much with those before it.
func (c *Conn) frame(size, before uint64) ([]byte, error) {
	if before+size > c.limit {
		_, err := io.CopyN(io.Discard, c.from, int64(size))
		return nil, err
	}
	frame := make([]byte, size)
	_, err := io.ReadFull(c.from, frame)
	return frame, err
}

func (c *Conn) header() (flags byte, size uint64, err error) {
	var b [9]byte
	if b[0], err = c.from.ReadByte(); err != nil {
		return 0, 0, err
	}
	length := b[1:2]
	if b[0]&flagLong != 0 {
		length = b[1:9]
	}
	if _, err := io.ReadFull(c.from, length); err != nil {
		return 0, 0, err
	}
	if b[0]&flagLong == 0 {
		return b[0], uint64(b[1]), nil
	}
	size = binary.BigEndian.Uint64(length)
	if size > 1<<40 {
		return 0, 0, fmt.Errorf("a frame of %d bytes cannot be", size)
	}
	return b[0], size, nil
}
