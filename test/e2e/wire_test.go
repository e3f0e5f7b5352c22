package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestWire puts everything through the server that HTTP can do, in each
// protocol that it speaks without TLS.
func TestWire(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	s.pause(ctx, g.sb.ID) // the first test wakes it
	t.Run("HTTP1", func(t *testing.T) { newRoute(t, g, "http", http1).checkAll(ctx, t) })
	t.Run("h2c", func(t *testing.T) { newRoute(t, g, "http", h2c).checkAll(ctx, t) })
	t.Run("WebSocket", func(t *testing.T) { g.checkWebSocket(ctx, t) })
}

// TestWireTLS is TestWire over TLS.
func TestWireTLS(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s, _ := startTLSServer(t)
	g := s.startGuest(ctx, sleeper)
	s.pause(ctx, g.sb.ID)
	t.Run("HTTP1", func(t *testing.T) { newRoute(t, g, "https", http1).checkAll(ctx, t) })
	t.Run("HTTP2", func(t *testing.T) { newRoute(t, g, "https", http2).checkAll(ctx, t) })
	t.Run("WebSocket", func(t *testing.T) { g.checkWebSocket(ctx, t) })
}

func (r *route) checkAll(ctx context.Context, t *testing.T) {
	t.Run("events", func(t *testing.T) { r.checkEvents(ctx, t) })
	t.Run("both ways at once", func(t *testing.T) { r.checkDuplex(ctx, t) })
	t.Run("trailers", func(t *testing.T) { r.checkTrailers(ctx, t) })
	t.Run("100-continue", func(t *testing.T) { r.checkContinue(ctx, t) })
	t.Run("disconnect", func(t *testing.T) { r.checkDisconnect(ctx, t) })
}

// do makes a request; the test ends if there is no answer of that status.
func (r *route) do(ctx context.Context, t *testing.T, method, target string, body io.Reader, status int) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url+target, body)
	if err != nil {
		t.Fatal(err)
	}
	return r.send(t, req, status)
}

func (r *route) send(t *testing.T, req *http.Request, status int) *http.Response {
	t.Helper()
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != status {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s: %s %.300s, want %d", req.Method, req.URL.Path, resp.Status, body, status)
	}
	return resp
}

// checkEvents has each event arrive before the next one is sent.
func (r *route) checkEvents(ctx context.Context, t *testing.T) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := bufio.NewReader(r.do(ctx, t, http.MethodGet, "/feed", nil, http.StatusOK).Body)
	next := func(want string) {
		t.Helper()
		for _, want := range []string{"data: " + want + "\n", "\n"} {
			if got, err := events.ReadString('\n'); got != want {
				t.Fatalf("event line %q, %v; want %q", got, err, want)
			}
		}
	}
	next("1")
	for i := range 20 {
		text := fmt.Sprintf("event-%d", i)
		r.do(ctx, t, http.MethodPost, "/say?text="+text, nil, http.StatusOK)
		next(text)
	}
}

// checkDuplex sends lines of a request's body, each when the one before has
// come back in the answer.
func (r *route) checkDuplex(ctx context.Context, t *testing.T) {
	body, lines := io.Pipe()
	resp := r.do(ctx, t, http.MethodPost, "/duplex", body, http.StatusOK)
	back := bufio.NewReader(resp.Body)
	for i := range 20 {
		if _, err := fmt.Fprintf(lines, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("echo line %d\n", i)
		if got, err := back.ReadString('\n'); got != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	lines.Close()
	if rest, err := io.ReadAll(back); err != nil || len(rest) > 0 {
		t.Errorf("after the last line: %q, %v", rest, err)
	}
}

func (r *route) checkTrailers(ctx context.Context, t *testing.T) {
	const content = "the body"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/trailers", io.MultiReader(strings.NewReader(content)))
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"X-Asked": {"with a trailer"}}
	resp := r.send(t, req, http.StatusOK)
	if _, announced := resp.Trailer["X-Sum"]; !announced {
		t.Errorf("announced trailers %v, want X-Sum", resp.Trailer)
	}
	if body, err := io.ReadAll(resp.Body); string(body) != content {
		t.Errorf("body %q, %v", body, err)
	}
	sum := sha256.Sum256([]byte(content))
	if got := resp.Trailer.Get("X-Sum"); got != hex.EncodeToString(sum[:]) {
		t.Errorf("trailer X-Sum %q", got)
	}
	if got := resp.Trailer.Get("X-Asked"); got != "with a trailer" {
		t.Errorf("the guest read trailer X-Asked as %q", got)
	}
}

// untouched is a body that nobody may read.
type untouched struct{ t *testing.T }

func (u untouched) Read([]byte) (int, error) {
	u.t.Error("the client sent its body without being told to go on")
	return 0, io.ErrUnexpectedEOF
}

// checkContinue asks whether the guest wants a body, before sending it.
func (r *route) checkContinue(ctx context.Context, t *testing.T) {
	told := false
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { told = true }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, r.url+"/sink", strings.NewReader("wanted"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Expect", "100-continue")
	resp := r.send(t, req, http.StatusOK)
	var got digest
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Bytes != 6 {
		t.Errorf("the guest read %d bytes, %v", got.Bytes, err)
	}
	if !told {
		t.Error("the client was not told to go on")
	}
	if resp.ProtoMajor == 2 {
		return // there net/http tells the client to go on, and nobody whether it asked
	}
	if req, err = http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/refuse", untouched{t}); err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 1 << 20
	req.Header.Set("Expect", "100-continue")
	r.send(t, req, http.StatusExpectationFailed)
}

// checkDisconnect goes away from a request that is not answered: the guest
// notices.
func (r *route) checkDisconnect(ctx context.Context, t *testing.T) {
	name := "linger-" + strconv.Itoa(rand.Int())
	gone, leave := context.WithCancel(ctx)
	defer leave()
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(gone, http.MethodGet, r.url+"/linger?id="+name, nil)
		if err == nil {
			var resp *http.Response
			if resp, err = r.http.Do(req); err == nil {
				resp.Body.Close()
			}
		}
		left <- err
	}()
	eventually(t, 10*time.Second, "the request is there", func() error { return r.endedAs(ctx, name, "there") })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the request that was cancelled: %v", err)
	}
	took := eventually(t, promptly, "the guest sees that the client has gone", func() error { return r.endedAs(ctx, name, "gone") })
	t.Logf("the guest saw it after %s", took.Round(time.Millisecond))
}

// endedAs checks how the guest saw a request end.
func (g *guest) endedAs(ctx context.Context, name, want string) error {
	var ends map[string]string
	if err := g.call(ctx, http.MethodGet, "/ends", nil, &ends); err != nil {
		return err
	}
	if got := ends[name]; got != want {
		return fmt.Errorf("the guest says %q of %s, want %q", got, name, want)
	}
	return nil
}

// checkWebSocket sends messages of all kinds and sizes, and ends the
// conversation in order, from either side.
func (g *guest) checkWebSocket(ctx context.Context, t *testing.T) {
	name := "socket-" + strconv.Itoa(rand.Int())
	conn, err := g.webSocket(ctx, "/ws?id="+name)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	large := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(large)
	for _, message := range [][]byte{{}, []byte("x"), large[:125], large[:126], large[:65535], large[:65536], large, large} {
		if err := echo(ctx, conn, websocket.MessageBinary, message); err != nil {
			t.Fatal(err)
		}
	}
	for _, message := range []string{"", "text", strings.Repeat("é", 1<<19)} {
		if err := echo(ctx, conn, websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Close(websocket.StatusCode(4321), "done"); err != nil {
		t.Errorf("the closing handshake: %v", err)
	}
	eventually(t, promptly, "the guest sees the close", func() error { return g.endedAs(ctx, name, "4321") })
}

// mostMemory is by how much the server's memory may grow through a body.
const mostMemory = 64 << 20

// TestLargeBodies uploads and downloads several times that, with its length and,
// less, in chunks. All of it arrives, and none of it stays in the server's memory.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	before := s.peakMemory()
	largeBody := testmode.Choose[int64](4*mostMemory, 16*mostMemory)
	for _, c := range []struct {
		name    string
		bytes   int64
		chunked bool
	}{{"with length", largeBody, false}, {"in chunks", largeBody / 8, true}} {
		want := digestOf(t, content(c.bytes))
		begin := time.Now()
		req, err := g.sb.Request(ctx, http.MethodPost, guestPort, "/sink", struct{ io.Reader }{content(c.bytes)})
		if err != nil {
			t.Fatal(err)
		}
		if !c.chunked {
			req.ContentLength = c.bytes
		}
		resp, err := httpClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var got digest
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got != want {
			t.Errorf("upload %s: the guest got %+v, %v; want %+v", c.name, got, err, want)
		}
		resp.Body.Close()
		t.Logf("upload of %d MiB %s: %s", c.bytes>>20, c.name, since(begin))

		begin = time.Now()
		target := fmt.Sprintf("/blob?bytes=%d", c.bytes)
		if c.chunked {
			target += "&chunked"
		}
		if req, err = g.sb.Request(ctx, http.MethodGet, guestPort, target, nil); err != nil {
			t.Fatal(err)
		}
		if resp, err = httpClient.Do(req); err != nil {
			t.Fatal(err)
		}
		if chunked := resp.ContentLength < 0; chunked != c.chunked {
			t.Errorf("download %s: the answer's length is %d", c.name, resp.ContentLength)
		}
		if got := digestOf(t, resp.Body); got != want {
			t.Errorf("download %s: got %+v, want %+v", c.name, got, want)
		}
		resp.Body.Close()
		t.Logf("download of %d MiB %s: %s", c.bytes>>20, c.name, since(begin))
	}
	after := s.peakMemory()
	t.Logf("the server's memory was %d MiB at most, and before %d MiB", after>>20, before>>20)
	if after-before > mostMemory {
		t.Errorf("the server's memory grew by %d MiB", (after-before)>>20)
	}
}

// digest is what the guest says of an upload.
type digest struct {
	Bytes  int64
	SHA256 string
}

// content is what the guest's /blob sends.
func content(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{}), n) }

func digestOf(t *testing.T, r io.Reader) digest {
	t.Helper()
	h := sha256.New()
	n, err := io.CopyBuffer(h, struct{ io.Reader }{r}, make([]byte, 256<<10))
	if err != nil {
		t.Fatalf("after %d bytes: %v", n, err)
	}
	return digest{n, hex.EncodeToString(h.Sum(nil))}
}

// peakMemory returns the most memory in bytes that the server ever had resident, or the one of
// several that had the most.
func (s *server) peakMemory() (most int64) {
	s.t.Helper()
	for _, m := range s.each() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
		if err != nil {
			s.t.Fatal(err)
		}
		found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(bytes.TrimSpace(status))
		if found == nil {
			s.t.Fatalf("no VmHWM in %s", status)
		}
		kib, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		most = max(most, kib<<10)
	}
	return most
}
