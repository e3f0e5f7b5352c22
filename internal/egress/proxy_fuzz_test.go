package egress

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
)

// answering is a connection to a proxy that has its answers ready, whatever it is asked.
type answering struct {
	net.Conn
	answers *bytes.Reader
	asked   bytes.Buffer
}

func (a *answering) Read(p []byte) (int, error) { return a.answers.Read(p) }

func (a *answering) Write(p []byte) (int, error) { return a.asked.Write(p) }

// FuzzProxyAnswers answers as a proxy that a sandbox has chosen. Where it says that the
// way is open, what comes after its answers is the destination's, to the byte: what is
// left for that makes no difference to the answers, and without the last byte of them
// the way is not open.
func FuzzProxyAnswers(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\nHello"), true, false)
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello"), true, true)
	f.Add([]byte("HTTP/1.1 204 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nHello"), true, false)
	f.Add([]byte("HTTP/1.0 407 No\r\nProxy-Authenticate: Basic\r\n\r\n"), true, true)
	f.Add([]byte("HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), true, false)
	f.Add([]byte("HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1/\r\n\r\n"), true, false)
	f.Add([]byte("\x05\x00\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50Hello"), false, false)
	f.Add([]byte("\x05\x02\x01\x00\x05\x00\x00\x03\x04name\x00\x50Hello"), false, true)
	f.Add([]byte("\x05\x00\x05\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50Hello"), false, false)
	f.Add([]byte("\x05\x02\x01\x01"), false, true)
	f.Add([]byte("\x05\xff"), false, false)
	f.Add([]byte("\x05\x00\x05\x05\x00\x01"), false, false)
	to := netip.MustParseAddrPort("203.0.113.7:443")
	f.Fuzz(func(t *testing.T, answers []byte, http, login bool) {
		p := Proxy{HTTP: http}
		if login {
			p.Username, p.Password = "user", func() (string, error) { return "password", nil }
		}
		ask := func(answers []byte) (left int, err error) {
			c := &answering{answers: bytes.NewReader(answers)}
			err = p.ask(c, to)
			return c.answers.Len(), err
		}
		left, err := ask(answers)
		used := len(answers) - left
		if used > maxProxyAnswer {
			t.Errorf("%d bytes of an answer were read", used)
		}
		if err != nil {
			return
		}
		if n, err := ask(append(bytes.Clone(answers[:used]), "other"...)); n != len("other") || err != nil {
			t.Errorf("with another destination behind %q: %d bytes are left, %v", answers[:used], n, err)
		}
		if _, err := ask(answers[:used-1]); err == nil {
			t.Errorf("%q opens the way without its last byte", answers[:used])
		}
	})
}
