package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestControlPlaneTellsItsLength: an answer of another length than the control plane has
// said is broken off, however much of it was sent.
func TestControlPlaneTellsItsLength(t *testing.T) {
	s := NewServer(Options{Log: discardLog, Control: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var told, written int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d/%d", &told, &written)
		w.Header().Set("Content-Length", fmt.Sprint(told))
		_, _ = io.WriteString(w, strings.Repeat("x", written))
	})})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Shutdown(t.Context()) })
	for _, tt := range []struct {
		method        string
		told, written int
		whole         bool
	}{
		{"GET", 5, 5, true}, {"GET", 0, 0, true}, {"GET", 100_000, 100_000, true}, {"HEAD", 100, 0, true},
		{"GET", 5, 4, false}, {"GET", 5, 0, false}, {"GET", 100_000, 99_999, false}, {"GET", 5, 6, false},
	} {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "%s /%d/%d HTTP/1.1\r\nHost: localhost\r\n\r\n", tt.method, tt.told, tt.written)
		resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: tt.method})
		var body []byte
		if err == nil {
			body, err = io.ReadAll(resp.Body)
		}
		if whole := err == nil && (tt.method == "HEAD" || len(body) == tt.written); whole != tt.whole {
			t.Errorf("%s of %d bytes where %d were told: %d bytes, %v", tt.method, tt.written, tt.told, len(body), err)
		}
		_ = c.Close()
	}
}
