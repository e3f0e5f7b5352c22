package mcp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// serving serves MCP beside a drowse that knows every key but "wrong".
func serving(t *testing.T, patience time.Duration) (s *Server, addr string) {
	t.Helper()
	drowse := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(r.Header.Get("Authorization")+r.Header.Get("X-API-Key"), "wrong") {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":{"code":"unauthorized","class":"unauthorized","message":"no"}}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"sandbox_not_found","class":"not found","message":"no"}}`)
	}))
	t.Cleanup(drowse.Close)
	s = New(Options{})
	s.patience = patience
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ServeListener(t.Context(), ln, HTTPOptions{Connect: func(key string) (*client.Client, error) {
			return client.New(client.Options{URL: drowse.URL, APIKey: key})
		}})
	}()
	t.Cleanup(func() { <-done })
	return s, ln.Addr().String()
}

// begin sends the head of a request, and the beginning of its body.
func begin(t *testing.T, addr, key string, length int, body string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", Path, key, length, body)
	return c, bufio.NewReader(c)
}

func answer(t *testing.T, br *bufio.Reader) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	return res, string(data)
}

// TestUnfinishedBodiesAreBounded: 60 bodies of 16 MiB whose end did not come took
// 1.1 GiB, for ever.
func TestUnfinishedBodiesAreBounded(t *testing.T) {
	s, addr := serving(t, held.BodyPatience)
	part := strings.Repeat("x", 4<<20)
	refused := 0
	for i := range 8 {
		c, br := begin(t, addr, "greedy", maxRequest, "")
		go func() { _, _ = io.WriteString(c, part) }()
		if i < 3 { // their buffers grow by doubling
			testmode.Eventually(t, "a body is held", func() bool { return s.room.All().Waiting >= (i+1)*4<<20 })
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if res, err := http.ReadResponse(br, nil); err == nil {
			res.Body.Close()
			refused++
			if res.StatusCode != http.StatusTooManyRequests {
				t.Errorf("answered %s", res.Status)
			}
		}
	}
	if n := s.room.All().Waiting; refused == 0 || n > held.MaxKeyWaiting {
		t.Errorf("%d are refused, %d bytes are held", refused, n)
	}
	_, br := begin(t, addr, "modest", len(hello), hello)
	if res, said := answer(t, br); res.StatusCode != 200 || !strings.Contains(said, "drowse") {
		t.Errorf("another key: %s %q", res.Status, said)
	}
}

func TestSlowBodiesTimeOut(t *testing.T) {
	s, addr := serving(t, 100*time.Millisecond)
	_, br := begin(t, addr, "k", 1000, "{")
	if res, said := answer(t, br); res.StatusCode != http.StatusRequestTimeout || !strings.Contains(said, "did not come") {
		t.Errorf("%s %q", res.Status, said)
	}
	testmode.Eventually(t, "nothing is held", func() bool { return s.room.All() == held.Holdings{} })
}

// TestNoBodyIsReadWithoutAKey: who has no key learns that before a byte of the body
// has come, and the connection is not kept for the rest.
func TestNoBodyIsReadWithoutAKey(t *testing.T) {
	s, addr := serving(t, 100*time.Millisecond)
	c, br := begin(t, addr, "wrong", maxRequest, "")
	if res, said := answer(t, br); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("%s %q", res.Status, said)
	}
	if n := s.room.All().Waiting; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}
	testmode.Eventually(t, "nothing is held", func() bool { return s.room.All() == held.Holdings{} })
}

// TestSessionsOfAKeyAreBounded: sessions were kept for an hour, in any number.
func TestSessionsOfAKeyAreBounded(t *testing.T) {
	s, addr := serving(t, held.BodyPatience)
	var ids []string
	open := func(key string) {
		t.Helper()
		c, br := begin(t, addr, key, len(hello), hello)
		defer c.Close()
		res, said := answer(t, br)
		if res.StatusCode != 200 {
			t.Fatalf("%s %q", res.Status, said)
		}
		ids = append(ids, res.Header.Get("Mcp-Session-Id"))
	}
	open("modest")
	for range maxKeySessions + 5 {
		open("greedy")
	}
	have := map[string]bool{}
	for one := range s.sdk.Sessions() {
		have[one.ID()] = true
	}
	if len(have) != maxKeySessions+1 || !have[ids[0]] || have[ids[1]] || !have[ids[len(ids)-1]] {
		t.Errorf("%d sessions; of the modest key: %v", len(have), have[ids[0]])
	}
}
