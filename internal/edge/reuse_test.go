package edge

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// curt answers every request without a body, and allocates nothing for it.
func curt(_ int, c net.Conn, br *bufio.Reader) {
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(bytes.TrimSpace(line)) > 0 {
			continue
		}
		if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")); err != nil {
			return
		}
	}
}

// asker returns what makes one request on a connection, and reads its answer.
func asker(t *testing.T, f *fleet) func() {
	conn, br := talk(t, f.serve(t))
	request := []byte("GET /small HTTP/1.1\r\nHost: 8000-ione.example.test\r\nAccept: */*\r\n\r\n")
	want := []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	got := make([]byte, len(want))
	return func() {
		if _, err := conn.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(br, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("answer %q, %v", got, err)
		}
	}
}

// What a request allocates, the garbage collector pays for: it marks the records of all
// sandboxes the sooner.
func TestRequestsAllocateLittle(t *testing.T) {
	f := newFleet(t, http.NotFound)
	rawUpstream(t, f, curt)
	ask := asker(t, f)
	ask()
	const most = 8 // six are the lease of the test, two the heads
	if n := testing.AllocsPerRun(500, ask); n > most {
		t.Errorf("%v allocations for each request, want %d at most", n, most)
	}
}

// A connection keeps what its next request can use, and nothing of a sandbox.
func TestIdleConnectionsHoldNoLease(t *testing.T) {
	f := newFleet(t, http.NotFound)
	rawUpstream(t, f, curt)
	var lease weak.Pointer[supervisor.Lease]
	f.granted = func(l *supervisor.Lease) { lease = weak.Make(l) }
	asker(t, f)()
	held := true
	for end := time.Now().Add(testmode.Patience()); held; f.set(func() { held = lease.Value() != nil }) {
		if time.Now().After(end) {
			t.Fatal("the lease of a request that is over is still held")
		}
		runtime.GC()
	}
}

// A client that resets its connection while its body waits for a sandbox that then switches
// protocols: what still sends the body has ended before the connection's memory is let go.
func TestUpgradeIsReset(t *testing.T) {
	f := newFleet(t, http.NotFound)
	reset, over := make(chan struct{}), make(chan struct{})
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		defer close(over)
		for line := "-"; len(strings.TrimSpace(line)) > 0; {
			line, _ = br.ReadString('\n')
		}
		<-reset
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n")
		// The edge ends the connection, which it has filled.
		_, _ = io.Copy(io.Discard, br)
	})
	conn, _ := talk(t, f.serve(t))
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: 8000-ione.example.test\r\nConnection: Upgrade\r\nUpgrade: foo\r\nTransfer-Encoding: chunked\r\n\r\n")
	chunk := "8000\r\n" + strings.Repeat("x", 0x8000) + "\r\n"
	for err := error(nil); err == nil; { // until all is full on the way
		_ = conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		_, err = io.WriteString(conn, chunk)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
	close(reset)
	select {
	case <-over:
	case <-time.After(testmode.Patience()):
		t.Fatal("the connection to the sandbox is still open")
	}
}
