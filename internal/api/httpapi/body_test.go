package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// reading serves requests whose key is in a header, and answers with the code
// of what was wrong with the body.
func reading(t *testing.T, b *Bodies, then func()) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(b.Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := ReadBody(w, r, r.Header.Get("X-Key"))
		if err != nil {
			fmt.Fprint(w, err.(*errdef.Error).Code)
			return
		}
		if then != nil {
			then()
		}
		fmt.Fprintf(w, "%d bytes", len(data))
	})))
	t.Cleanup(srv.Close)
	return srv
}

// unfinished sends a body of a MiB but for its last byte.
func unfinished(t *testing.T, srv *httptest.Server, key string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nX-Key: %s\r\nContent-Length: %d\r\n\r\n", key, MaxBody)
	if _, err := io.WriteString(c, strings.Repeat("x", MaxBody-1)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func answered(t *testing.T, br *bufio.Reader) string {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return string(data)
}

func post(t *testing.T, srv *httptest.Server, key, body string) string {
	t.Helper()
	req, err := http.NewRequest("POST", srv.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return string(data)
}

// TestUnfinishedBodiesOfOneKeyLeaveRoomForOthers: 40 bodies that never end were
// held for ever, of any size together.
func TestUnfinishedBodiesOfOneKeyLeaveRoomForOthers(t *testing.T) {
	b := NewBodies(held.New())
	srv := reading(t, b, nil)
	var first net.Conn
	refused := 0
	for i := range 40 {
		before := b.room.All().Waiting
		c, br := unfinished(t, srv, "greedy")
		if i == 0 {
			first = c
		}
		if i < held.MaxKeyWaiting/(2*MaxBody) {
			testmode.Eventually(t, "a body is held", func() bool { return b.room.All().Waiting > before+MaxBody/2 })
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if resp, err := http.ReadResponse(br, nil); err == nil {
			data, _ := io.ReadAll(resp.Body)
			if string(data) != "too_many_bodies" {
				t.Fatalf("answered %s", data)
			}
			refused++
		}
	}
	if refused < 10 || b.room.All().Waiting > held.MaxKeyWaiting {
		t.Errorf("%d of 40 bodies were refused, %d bytes are held", refused, b.room.All().Waiting)
	}
	if got := post(t, srv, "greedy", "1"); got != "too_many_bodies" {
		t.Errorf("the same key was answered %q", got)
	}
	if got := post(t, srv, "modest", "1"); got != "1 bytes" {
		t.Errorf("another key was answered %q", got)
	}
	held := b.room.All().Waiting
	first.Close()
	testmode.Eventually(t, "what has ended is not held any more", func() bool { return b.room.All().Waiting < held })
	if got := post(t, srv, "greedy", "1"); got != "1 bytes" {
		t.Errorf("after one ended: %q", got)
	}
}

// TestBodiesOfOneAddressAndOfAll: other keys come from one address, and addresses are
// many: each is bounded, and so is what all take together.
func TestBodiesOfOneAddressAndOfAll(t *testing.T) {
	b := NewBodies(held.New())
	var all []*body
	// fill has a new key of an address send as much as a key may, until it is refused.
	fill := func(address string) (taken int, err error) {
		for {
			r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", MaxBody)))
			one := &body{of: b}
			r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, one))
			r.RemoteAddr = address + ":1234"
			all = append(all, one)
			if _, err = ReadBody(httptest.NewRecorder(), r, fmt.Sprintf("key %d", len(all))); err != nil {
				one.release()
				return taken, err
			}
			taken += one.share.Has()
		}
	}
	for i := range 3 {
		want := min(held.MaxAddressWaiting, held.MaxWaiting-b.room.All().Waiting)
		address := fmt.Sprintf("192.0.2.%d", i)
		taken, err := fill(address)
		if e, ok := err.(*errdef.Error); !ok || e.Code != "too_many_bodies" {
			t.Fatal(err)
		}
		if taken > want || taken < want-2*MaxBody {
			t.Errorf("%s holds %d bytes, want about %d", address, taken, want)
		}
	}
	if n := b.room.All().Waiting; n < held.MaxWaiting-2*MaxBody {
		t.Errorf("all hold %d bytes, want about %d", n, held.MaxWaiting)
	}
	for _, one := range all {
		one.release()
	}
	if n := b.room.All().Waiting; n != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
}

// TestBodiesCountUntilTheirRequestEnds: what a handler works on is held, too.
func TestBodiesCountUntilTheirRequestEnds(t *testing.T) {
	b := NewBodies(held.New())
	during := 0
	srv := reading(t, b, func() { during = b.room.All().Waiting })
	if got := post(t, srv, "k", strings.Repeat("x", 100_000)); got != "100000 bytes" {
		t.Fatal(got)
	}
	testmode.Eventually(t, "the body is not held after its request", func() bool { return b.room.All().Waiting == 0 })
	if during < 100_000 {
		t.Errorf("%d bytes counted while the handler ran", during)
	}
}

func TestSlowBodyTimesOut(t *testing.T) {
	b := NewBodies(held.New())
	b.patience = 50 * time.Millisecond
	srv := reading(t, b, nil)
	_, br := unfinished(t, srv, "k")
	if got := answered(t, br); got != "body_timed_out" {
		t.Errorf("answered %q", got)
	}
	testmode.Eventually(t, "it is not held any more", func() bool { return b.room.All().Waiting == 0 })
}

func TestBodySizes(t *testing.T) {
	srv := reading(t, NewBodies(held.New()), nil)
	for size, want := range map[int]string{
		0: "0 bytes", 1: "1 bytes", 4096: "4096 bytes", 4097: "4097 bytes",
		MaxBody: "1048576 bytes", MaxBody + 1: "body_too_large", 3 * MaxBody: "body_too_large",
	} {
		if got := post(t, srv, "k", strings.Repeat("x", size)); got != want {
			t.Errorf("%d bytes: %q", size, got)
		}
		// The same of unknown length.
		resp, err := http.Post(srv.URL, "", io.MultiReader(strings.NewReader(strings.Repeat("x", size))))
		if err != nil {
			if size <= MaxBody {
				t.Error(err)
			}
			continue // it was refused before all of it was sent
		}
		data, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(data) != want {
			t.Errorf("%d bytes in chunks: %q", size, data)
		}
	}
}

// TestAnswersNobodyTakes: answers that clients do not read are bounded for each key,
// whatever the kernel's buffers take of them, and count no longer than their requests.
func TestAnswersNobodyTakes(t *testing.T) {
	room := held.New()
	const size = 8 << 20 // more than the buffers of a connection
	text := strings.Repeat("x", size)
	srv := httptest.NewServer(NewBodies(room).Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := Answer(r, r.Header.Get("X-Key"), http.StatusOK, nil, text)
		if err != nil {
			http.Error(w, err.(*errdef.Error).Code, http.StatusTooManyRequests)
			return
		}
		res.WriteTo(w)
	})))
	t.Cleanup(srv.Close)
	begin := func(key string) (net.Conn, *bufio.Reader) {
		t.Helper()
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
		if key == "k" { // whose answers wait
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
		}
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: h\r\nX-Key: %s\r\n\r\n", key)
		return c, bufio.NewReader(c)
	}
	var all []net.Conn
	for n := 1; n <= 2; n++ {
		c, _ := begin("k")
		all = append(all, c)
		testmode.Eventually(t, "the answer waits", func() bool { return room.Of("k").Waiting > n*size })
	}
	_, br := begin("k")
	if text := answered(t, br); !strings.Contains(text, "too_many_answers") {
		t.Errorf("a third answer of 8 MiB: %.80s", text)
	}
	_, br = begin("other")
	if n := len(answered(t, br)); n != size+2 {
		t.Errorf("another key got %d bytes", n)
	}
	for _, c := range all {
		c.Close()
	}
	testmode.Eventually(t, "the room is given back", func() bool { return room.All() == held.Holdings{} })
}

// TestAnswersThatMustBeGiven: a request that has changed something was refused when its
// answer was made, so that its client did not know of what it had made.
func TestAnswersThatMustBeGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		room := held.New()
		h := NewBodies(room).Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			res, err := Answer(r, "k", http.StatusOK, nil, strings.Repeat("x", size))
			if err != nil {
				res = Response{Status: http.StatusTooManyRequests}
			}
			res.WriteTo(w)
		}))
		ask := func(method string) int {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
			return w.Body.Len()
		}
		full, err := room.Answer(held.Who{Key: "k"}, held.MaxKeyWaiting)
		if err != nil {
			t.Fatal(err)
		}
		for method, want := range map[string]int{"GET": 0, "HEAD": 0, "POST": size + 2, "PUT": size + 2, "PATCH": size + 2, "DELETE": size + 2} {
			if n := ask(method); n != want {
				t.Errorf("without room, %s got %d bytes, want %d", method, n, want)
			}
		}
		full.Free()
		if n := ask("GET"); n != size+2 {
			t.Errorf("with room, GET got %d bytes", n)
		}
		if room.All() != (held.Holdings{}) {
			t.Errorf("held at the end: %+v", room.All())
		}
	})
}
