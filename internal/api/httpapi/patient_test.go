package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestPatient: an upload comes whole, or ends when it stands still.
func TestPatient(t *testing.T) {
	type end struct {
		text string
		err  error
	}
	var pause atomic.Int64
	pause.Store(int64(time.Minute))
	ended := make(chan end, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(Patient(w, r, time.Duration(pause.Load())))
		ended <- end{string(data), err}
	}))
	t.Cleanup(s.Close)
	send := func(text string) {
		t.Helper()
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = fmt.Fprint(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n"+text)
	}
	whole := strings.Repeat("x", 30)
	send(whole)
	if got := <-ended; got.err != nil || got.text != whole {
		t.Errorf("a whole one: %q, %v", got.text, got.err)
	}
	pause.Store(int64(time.Second))
	send("abc")
	if got := <-ended; !errors.Is(got.err, os.ErrDeadlineExceeded) || got.text != "abc" {
		t.Errorf("one that stands still: %q, %v", got.text, got.err)
	}
}
