package egress

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"
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

// further fails the test when more is read.
type further struct{ t *testing.T }

// Read implements io.Reader.
func (f further) Read([]byte) (int, error) {
	f.t.Error("it reads on, where the client may wait for an answer")
	return 0, io.EOF
}

// TestNameInStops: what cannot be a request is known by its beginning.
func TestNameInStops(t *testing.T) {
	for name, sent := range map[string]string{
		"SSH":             "SSH-2.0-OpenSSH_9.9\r\n",
		"a binary method": "AMQP\x00\x00\x09\x01",
		"a word":          "HELLO\r\n",
		"a command":       "USER me now\r\n",
		"no CR":           "GET / HTTP/1.1\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, read, _ := nameIn(io.MultiReader(strings.NewReader(sent), further{t}), &loan{from: share{Room: NewRoom()}})
			if got != "" || string(read) != sent {
				t.Errorf("the name is %q, and %q was read", got, read)
			}
		})
	}
}

// TestSniffSilent lets a connection go on that says nothing in its time.
func TestSniffSilent(t *testing.T) {
	for name, sent := range map[string]string{"nothing": "", "half a request": "GET / HT"} {
		t.Run(name, func(t *testing.T) {
			ln := listen(t)
			near, err := net.Dial("tcp4", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			if _, err := io.WriteString(near, sent); err != nil {
				t.Fatal(err)
			}
			far, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			head, host, _ := sniff(far, 100*time.Millisecond, &loan{from: share{Room: NewRoom()}})
			if string(head) != sent || host != "" {
				t.Errorf("read %q, for %q", head, host)
			}
			if _, err := io.WriteString(near, "later"); err != nil {
				t.Fatal(err)
			}
			later := make([]byte, 5)
			if _, err := io.ReadFull(far, later); err != nil || string(later) != "later" {
				t.Errorf("what comes later is %q, %v", later, err)
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
