package egress

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
)

// greeting returns what a TLS client sends first.
func greeting(t testing.TB, serverName string) []byte {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, &tls.Config{ServerName: serverName, InsecureSkipVerify: true}).Handshake()
	}()
	buf := make([]byte, 16<<10)
	n, err := far.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	far.Close()
	return buf[:n]
}

func TestNameIn(t *testing.T) {
	hello := string(greeting(t, "Good.Test"))
	for name, tt := range map[string]struct{ sent, want string }{
		"TLS":                   {hello, "good.test"},
		"TLS and more":          {hello + "more", "good.test"},
		"TLS without a name":    {string(greeting(t, "")), ""},
		"half a greeting":       {hello[:len(hello)/2], ""},
		"TLS that is none":      {"\x16\x03\x01\x00\x05hello", ""},
		"HTTP":                  {"GET / HTTP/1.1\r\nHost: Good.Test\r\n\r\n", "good.test"},
		"HTTP with a port":      {"POST /x HTTP/1.1\r\nHost: good.test:8080\r\nContent-Length: 3\r\n\r\nabc", "good.test"},
		"HTTP to a proxy":       {"GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", ""},
		"HTTP/1.0 without host": {"GET / HTTP/1.0\r\n\r\n", ""},
		"an address":            {"GET / HTTP/1.1\r\nHost: 203.0.113.10\r\n\r\n", "203.0.113.10"},
		"half a request":        {"GET / HTTP/1.1\r\nHost: good.test\r\n", ""},
		"a request without end": {"GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 20_000), ""},
		"another protocol":      {"SSH-2.0-x\r\n", ""},
		"a protocol in binary":  {"\x00\x01\x02", ""},
		"nothing":               {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := strings.NewReader(tt.sent)
			got, read, _ := nameIn(io.LimitReader(in, maxHead), &loan{from: share{Room: NewRoom()}})
			if got != tt.want {
				t.Errorf("got the name %q, want %q", got, tt.want)
			}
			if rest, _ := io.ReadAll(in); string(read)+string(rest) != tt.sent {
				t.Error("what was read is not what was sent")
			}
			if len(read) > maxHead {
				t.Errorf("%d bytes were read", len(read))
			}
		})
	}
}

func FuzzNameIn(f *testing.F) {
	f.Add(greeting(f, "good.test"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		_, read, _ := nameIn(io.LimitReader(bytes.NewReader(sent), maxHead), &loan{from: share{Room: NewRoom()}})
		if !bytes.HasPrefix(sent, read) {
			t.Errorf("read %q of %q", read, sent)
		}
	})
}
