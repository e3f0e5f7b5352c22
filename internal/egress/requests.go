package egress

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/drowse-dev/drowse/internal/edge/h1"
)

// errNameless is a request for a host that is not allowed, or that cannot be
// read as one.
var errNameless = errors.New("a request for no name that is allowed")

// requests carries the requests of a connection that was let through for the
// name in its first one. Each is judged by its own: a server of many names
// answers for all of them on one connection.
type requests struct {
	from  *bufio.Reader
	to    net.Conn
	allow func(name string) bool
	loan  *loan // of buffers

	// switched tells once what became of a request for another protocol: true
	// if all that follows is of that.
	switched chan bool
	upgrades bool // the first request is one
}

// pass carries requests until the connection ends.
func (r *requests) pass() error {
	for first := true; ; first = false {
		head, err := readHead(r.from, r.loan)
		if err != nil {
			return err
		}
		req, err := h1.ParseRequest(head, nil)
		if err != nil || !r.allow(hostOf(req.Host)) || req.Upgrade != "" && !first {
			return errNameless
		}
		if _, err := io.WriteString(r.to, head); err != nil {
			return err
		}
		if err := r.passBody(req.Length); err != nil {
			return err
		}
		r.loan.giveAll()
		if r.upgrades && first && <-r.switched {
			_, err := io.Copy(r.to, r.from)
			return err
		}
	}
}

func (r *requests) passBody(length int64) error {
	if length != h1.Chunked {
		_, err := io.CopyN(r.to, r.from, length)
		return err
	}
	for c := (h1.Chunks{}); !c.Done(); {
		if _, err := r.from.Peek(1); err != nil {
			return err
		}
		data, _ := r.from.Peek(r.from.Buffered())
		n, err := c.Scan(data)
		if err != nil {
			return errNameless
		}
		if _, err := r.to.Write(data[:n]); err != nil {
			return err
		}
		_, _ = r.from.Discard(n)
	}
	return nil
}

// readHead reads the head of a request, its empty line included. It stops after a
// first line that begins no request: nothing more may come.
func readHead(r *bufio.Reader, l *loan) (string, error) {
	var head []byte
	lines := 0
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		switch {
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		case len(head) > maxHead:
			return "", errNameless
		case len(head) > sniffSmall && l.taken < largeBuffers && !l.take(largeBuffers):
			return "", errNameless
		case err != nil: // the line goes on
		case !bytes.HasSuffix(head, []byte("\r\n")):
			return "", errNameless
		case lines == 0 && !h1.IsRequestLine(string(head[:len(head)-len("\r\n")])):
			return "", errNameless
		case bytes.HasSuffix(head, []byte("\r\n\r\n")):
			return string(head), nil
		default:
			lines++
		}
	}
}

// hostOf returns the name in a Host field.
func hostOf(field string) string {
	if host, _, err := net.SplitHostPort(field); err == nil {
		field = host
	}
	return canonical(field)
}

// answers copies what comes back, and tells whether its beginning switches
// protocols.
type answers struct {
	io.Reader
	begin    []byte
	switched chan<- bool
	once     sync.Once
}

const switchingProtocols = "HTTP/1.1 101"

// Read implements io.Reader.
func (a *answers) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if want := len(switchingProtocols); len(a.begin) < want {
		a.begin = append(a.begin, p[:min(n, want-len(a.begin))]...)
	}
	if len(a.begin) == len(switchingProtocols) || err != nil {
		a.once.Do(func() { a.switched <- bytes.Equal(a.begin, []byte(switchingProtocols)) })
	}
	return n, err
}
