package edge

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// serving runs a server of which the test sees more than its address.
func serving(t *testing.T, f *fleet) (*Server, string) {
	t.Helper()
	s := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)})
	return s, f.run(t, s)
}

// TestUnfinishedHeadsAreBounded: 1,500 heads of 63 KiB without an end took some
// 100 MiB. Now those of one address take 32, and their end gives it back.
func TestUnfinishedHeadsAreBounded(t *testing.T) {
	f := newFleet(t, echo)
	s, url := serving(t, f)
	head := rawHead("GET / HTTP/1.1") + "X: " + strings.Repeat("x", 62<<10)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	conns := make([]net.Conn, 1500)
	for i := range conns {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
		_, _ = io.WriteString(c, head) // it may have been refused halfway
	}
	testmode.Eventually(t, "the heads take what they may", func() bool { return s.buffers.Taken() > maxClientBuffers*9/10 })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 60<<20 || s.buffers.Taken() > maxClientBuffers {
		t.Errorf("memory grew by %d MiB, %d bytes are taken", grown>>20, s.buffers.Taken())
	}
	// Small requests need none of it; large ones are told.
	if got := body(t, ask(t, url, "/small", openPort, nil)); got != "GET /small" {
		t.Errorf("a small request was answered %q", got)
	}
	conn, br := talk(t, url)
	fmt.Fprint(conn, head+"\r\n\r\n")
	if resp, got := readAnswer(t, br, "GET"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a large head was answered %d %q", resp.StatusCode, got)
	}
	for _, c := range conns {
		c.Close()
	}
	testmode.Eventually(t, "what the heads took is given back", func() bool { return s.buffers.Taken() == 0 })
}

// TestUnfinishedAnswersAreBounded: the same from the inside. Both ends belong to
// one tenant.
func TestUnfinishedAnswersAreBounded(t *testing.T) {
	f := newFleet(t, nil)
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 250<<10))
		_, _ = br.Peek(1) // until the edge ends it
	})
	s, url := serving(t, f)
	for range 300 {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, rawHead("GET / HTTP/1.1")+"\r\n")
	}
	testmode.Eventually(t, "the answers take what they may", func() bool { return s.buffers.Taken() > maxClientBuffers*8/10 })
	if n := s.buffers.Taken(); n > maxClientBuffers {
		t.Errorf("%d bytes are taken", n)
	}
}

// TestBuffersAreGivenBack after requests of every kind.
func TestBuffersAreGivenBack(t *testing.T) {
	f := newFleet(t, echo)
	s, url := serving(t, f)
	long := strings.Repeat("x", 20<<10)
	for i := range 50 {
		conn, br := talk(t, url)
		fmt.Fprint(conn, rawHead("GET /1 HTTP/1.1")+"X: "+long+"\r\n\r\n")
		readAnswer(t, br, "GET")
		fmt.Fprintf(conn, rawHead("POST /2 HTTP/1.1")+"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long)
		readAnswer(t, br, "POST")
		fmt.Fprint(conn, rawHead("GET /3 HTTP/1.1")+"X: "+long+"\r\n")
		if i%2 == 0 {
			conn.Close()
		} else {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}
	testmode.Eventually(t, "buffers are given back", func() bool { return s.buffers.Taken() == 0 })
}
