package egress

import (
	"bufio"
	"bytes"
	"net"
	"testing"
)

// written is a connection that keeps what is written to it.
type written struct {
	net.Conn
	bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) { return w.Buffer.Write(p) }
func (w *written) Read(p []byte) (int, error)  { return w.Buffer.Read(p) }

// FuzzRequests sends what it likes on a connection that was allowed for one name.
// What gets through is requests for that name and nothing else: seen once more, all
// of it gets through again.
func FuzzRequests(f *testing.F) {
	good := "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
	f.Add([]byte(good + good))
	f.Add([]byte(good + "GET / HTTP/1.1\r\nHost: bad.test\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 3\r\n\r\nabc" + good))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + good))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n" + good))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: good.test:80\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + good))
	f.Fuzz(func(t *testing.T, sent []byte) {
		pass := func(sent []byte) []byte {
			to := &written{}
			r := requests{
				from: bufio.NewReader(bytes.NewReader(sent)), to: to, loan: &loan{from: share{Room: NewRoom()}},
				allow: func(name string) bool { return name == "good.test" },
			}
			_ = r.pass()
			return to.Bytes()
		}
		through := pass(sent)
		if !bytes.HasPrefix(sent, through) {
			t.Fatalf("%q became %q", sent, through)
		}
		if again := pass(through); !bytes.Equal(again, through) {
			t.Errorf("of %q, %q gets through once more", through, again)
		}
	})
}
