package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// newFleet2 is newFleet whose servers inside speak HTTP/2 as well.
func newFleet2(t *testing.T, h http.HandlerFunc) *fleet {
	f := newFleet(t, h)
	f.upstream.Close()
	f.upstream = httptest.NewUnstartedServer(h)
	f.upstream.Config.Protocols = new(http.Protocols)
	f.upstream.Config.Protocols.SetHTTP1(true)
	f.upstream.Config.Protocols.SetUnencryptedHTTP2(true)
	f.upstream.Start()
	t.Cleanup(f.upstream.Close)
	return f
}

// http2Client speaks HTTP/2 without TLS.
func http2Client(t *testing.T) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func request2(t *testing.T, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerSandbox, "ione")
	req.Header.Set(headerPort, fmt.Sprint(openPort))
	return req
}

// TestHTTP2CutBreaksOff holds that a stream is cut while both sides wait for
// the other, whichever protocol is spoken inside.
func TestHTTP2CutBreaksOff(t *testing.T) {
	for _, kind := range []string{"text/plain", "application/grpc"} {
		t.Run(kind, func(t *testing.T) {
			f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				_ = rc.EnableFullDuplex()
				fmt.Fprintln(w, "begin")
				_ = rc.Flush()
				_, _ = io.Copy(io.Discard, r.Body)
			})
			pr, pw := io.Pipe()
			defer pw.Close()
			req := request2(t, f.serve(t), pr)
			req.Header.Set("Content-Type", kind)
			resp, err := http2Client(t).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			out := bufio.NewReader(resp.Body)
			if line, err := out.ReadString('\n'); line != "begin\n" {
				t.Fatalf("first line %q, %v", line, err)
			}
			close(f.cut)
			if line, err := out.ReadString('\n'); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("after the cut: %q, %v; want an error", line, err)
			}
			f.wantReleased(t)
		})
	}
}

// TestHTTP2IdleStream: what passes nothing for long is broken off, as by HTTP/1.1.
func TestHTTP2IdleStream(t *testing.T) {
	hold := make(chan struct{})
	f := newFleet2(t, func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); <-hold })
	defer close(hold)
	url := f.serveWith(t, Options{Limits: Limits{IdleStream: 300 * time.Millisecond}})
	resp, err := http2Client(t).Do(request2(t, url, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("an idle stream ended as if it were whole")
	}
	f.wantReleased(t)
}

func TestHTTP2RequestTrailersPass(t *testing.T) {
	f := newFleet2(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.Trailer.Get("X-Asked"))
	})
	req := request2(t, f.serve(t), io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Asked": {"at the end"}}
	resp, err := http2Client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := body(t, resp); got != "at the end" {
		t.Errorf("the trailer inside is %q", got)
	}
}

// TestHTTP2EmptyAnswerEndsWithItsHead holds that an answer without a body is
// one frame, which is what makes it an error in gRPC.
func TestHTTP2EmptyAnswerEndsWithItsHead(t *testing.T) {
	f := newFleet2(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Length"] = nil // say nothing of it
		w.Header().Set("Grpc-Status", "9")
	})
	url, client := f.serve(t), http2Client(t)
	for range 200 {
		req := request2(t, url, nil)
		req.Header.Set("Content-Type", "application/grpc")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		// Go's client knows the length only if the stream has ended.
		if resp.ContentLength != 0 || resp.Header.Get("Grpc-Status") != "9" {
			t.Fatalf("length %d, header %v", resp.ContentLength, resp.Header)
		}
	}
}

// begin2 begins a connection by HTTP/2 that the test writes itself.
func begin2(t *testing.T, url string) (net.Conn, *http2.Framer) {
	t.Helper()
	conn := dialPlain(t, strings.TrimPrefix(url, "http://"))
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testmode.Patience()))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(conn, conn)
	fr.AllowIllegalWrites = true
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return conn, fr
}

// answers2 reads until a connection ends, and returns the statuses of answers.
func answers2(t *testing.T, fr *http2.Framer) (statuses []string) {
	t.Helper()
	for {
		f, err := fr.ReadFrame()
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			t.Fatalf("the connection goes on after %q", statuses)
		}
		if err != nil {
			return statuses
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			statuses = append(statuses, h.PseudoValue("status"))
		}
	}
}

// TestHTTP2SlowHeads holds that a head by HTTP/2 has as long as one by HTTP/1.1,
// whatever is missing of it, and that a body may take longer.
func TestHTTP2SlowHeads(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	s := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: discardLog})
	s.headPatience = 300 * time.Millisecond
	url := f.run(t, s)
	head := block(routed2("GET", "/")...)
	for name, begin := range map[string]func(net.Conn, *http2.Framer) error{
		"half a frame's header": func(c net.Conn, _ *http2.Framer) error { _, err := c.Write([]byte{0, 0, 9, 1}); return err },
		"half a frame": func(c net.Conn, _ *http2.Framer) error {
			_, err := c.Write([]byte{0, 0, 9, 1, 5, 0, 0, 0, 1, 0x82})
			return err
		},
		"a head that goes on": func(_ net.Conn, fr *http2.Framer) error { return fr.WriteRawFrame(http2.FrameHeaders, 0, 1, head) },
		"a head in small pieces": func(_ net.Conn, fr *http2.Framer) error {
			err := fr.WriteRawFrame(http2.FrameHeaders, 0, 1, head[:1])
			for i := 1; err == nil && i < 1000; i++ {
				time.Sleep(20 * time.Millisecond)
				err = fr.WriteContinuation(1, false, head[i%len(head):i%len(head)])
			}
			return nil // it is ended in the middle
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, fr := begin2(t, url)
			start := time.Now()
			if err := begin(conn, fr); err != nil {
				t.Fatal(err)
			}
			if got := answers2(t, fr); len(got) != 0 {
				t.Errorf("answered %q after %v", got, time.Since(start))
			}
		})
	}
	good := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: discardLog})
	good.headPatience = 2 * time.Second
	pr, pw := io.Pipe()
	go func() {
		for range 5 {
			_, _ = io.WriteString(pw, "x")
			time.Sleep(good.headPatience / 4)
		}
		pw.Close()
	}()
	resp, err := http2Client(t).Do(request2(t, f.run(t, good), pr))
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, resp); got != "xxxxx" {
		t.Errorf("a slow body came back as %q", got)
	}
	testmode.Eventually(t, "room is given back", func() bool { return s.buffers.Taken()+good.buffers.Taken() == 0 })
}

// TestHTTP2UnfinishedHeadsAreBounded, like those by HTTP/1.1.
func TestHTTP2UnfinishedHeadsAreBounded(t *testing.T) {
	f := newFleet(t, echo)
	s, url := serving(t, f)
	large := block("x", strings.Repeat("{", 15<<10)) // which Huffman's code makes no shorter
	for range 800 {
		_, fr := begin2(t, url)
		_ = fr.WriteRawFrame(http2.FrameHeaders, 0, 1, block(":method", "GET"))
		for range 3 {
			_ = fr.WriteContinuation(1, false, large) // or the connection has been ended
		}
	}
	testmode.Eventually(t, "the heads take room", func() bool { return s.buffers.Taken() > maxClientBuffers*9/10 })
	if n := s.buffers.Taken(); n > maxClientBuffers {
		t.Errorf("%d bytes are taken", n)
	}
	if got := body(t, ask(t, url, "/small", openPort, nil)); got != "GET /small" {
		t.Errorf("a small request was answered %q", got)
	}
}

// TestHTTP2RoomIsGivenBack: heads that never become whole take nothing any more
// when their connection has ended, in whatever way. What stays taken would be
// missing to everybody, for ever.
func TestHTTP2RoomIsGivenBack(t *testing.T) {
	f := newFleet(t, echo)
	s, url := serving(t, f)
	large := block("x", strings.Repeat("{", 15<<10))
	for name, finish := range map[string]func(net.Conn, *http2.Framer){
		"the client leaves":            func(c net.Conn, _ *http2.Framer) { c.Close() },
		"another stream's frame":       func(_ net.Conn, fr *http2.Framer) { _ = fr.WriteContinuation(3, true, nil) },
		"a frame that is none":         func(_ net.Conn, fr *http2.Framer) { _ = fr.WriteRawFrame(http2.FrameSettings, 0, 7, nil) },
		"a frame that is too long":     func(c net.Conn, _ *http2.Framer) { _, _ = c.Write([]byte{0xff, 0, 0, 9, 0, 0, 0, 0, 1}) },
		"a head that cannot be undone": func(_ net.Conn, fr *http2.Framer) { _ = fr.WriteContinuation(1, true, []byte{0xff, 0xff, 0xff, 0xff}) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				conn, fr := begin2(t, url)
				_ = fr.WriteRawFrame(http2.FrameHeaders, 0, 1, block(":method", "GET"))
				_ = fr.WriteContinuation(1, false, large)
				finish(conn, fr)
			}
			testmode.Eventually(t, "room is given back", func() bool { return s.buffers.Taken() == 0 })
		})
	}
	t.Run("no room", func(t *testing.T) {
		var all []net.Conn
		for range 800 {
			conn, fr := begin2(t, url)
			all = append(all, conn)
			_ = fr.WriteRawFrame(http2.FrameHeaders, 0, 1, block(":method", "GET"))
			for range 3 {
				_ = fr.WriteContinuation(1, false, large) // or the connection has been ended
			}
		}
		testmode.Eventually(t, "the heads take room", func() bool { return s.buffers.Taken() > maxClientBuffers*9/10 })
		for _, conn := range all {
			conn.Close()
		}
		testmode.Eventually(t, "room is given back", func() bool { return s.buffers.Taken() == 0 })
	})
}

// TestHTTP2UnreadBodiesAreBounded: what comes of bodies while nobody reads them is
// in the same account as heads. A client that has all of its room is not read from
// until it has some again; others are.
func TestHTTP2UnreadBodiesAreBounded(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	})
	hold := make(chan struct{})
	f.wait = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hold:
			return nil
		}
	}
	s, url := serving(t, f)
	const conns, streams, size = maxClientBuffers/maxUnread + 16, 2, 256<<10 - 1
	var answered sync.WaitGroup
	var whole atomic.Int64
	for range conns {
		conn, fr := begin2(t, url)
		answered.Go(func() {
			for range streams {
				for {
					frame, err := fr.ReadFrame()
					if err != nil {
						return
					}
					if d, ok := frame.(*http2.DataFrame); ok && string(d.Data()) == strconv.Itoa(size) {
						whole.Add(1)
						break
					}
				}
			}
		})
		answered.Go(func() {
			for i := range uint32(streams) {
				_ = fr.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 2*i+1, block(routed2("POST", "/")...))
				for left := size; left > 0; left -= maxFrame {
					_ = fr.WriteData(2*i+1, left <= maxFrame, make([]byte, min(left, maxFrame)))
				}
			}
		})
		_ = conn
	}
	testmode.Eventually(t, "the bodies take room", func() bool { return s.buffers.Taken() > maxClientBuffers*9/10 })
	if n := s.buffers.Taken(); n > maxClientBuffers {
		t.Errorf("%d bytes are taken", n)
	}
	close(hold)
	answered.Wait()
	if n := whole.Load(); n != conns*streams {
		t.Errorf("%d of %d bodies arrived whole when there was room again", n, conns*streams)
	}
	testmode.Eventually(t, "room is given back", func() bool { return s.buffers.Taken() == 0 })
}

// TestHTTP2RequestsAreBounded: one client's requests are counted over all its
// connections, and each holds the room of its head until its end.
func TestHTTP2RequestsAreBounded(t *testing.T) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release() // or the fleet does not end
	f := newFleet(t, func(_ http.ResponseWriter, r *http.Request) { <-hold })
	s := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: discardLog, Limits: Limits{PerClient: 10}})
	url := f.run(t, s)
	large := strings.Repeat("x", 40<<10)
	one, _ := begin2(t, url)
	two, in := begin2(t, url)
	send := func(conn net.Conn, stream uint32) {
		c := newScript2("", 0).head(stream, true, routed2("GET", "/", "x", large)...)
		if _, err := conn.Write(c.out.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(5) {
		send(one, 2*i+1)
		send(two, 2*i+1)
	}
	testmode.Eventually(t, "ten requests are under way", func() bool {
		s.streams.mu.Lock()
		defer s.streams.mu.Unlock()
		return s.streams.open[netip.MustParseAddr("127.0.0.1")] == 10
	})
	if n := s.buffers.Taken(); n < 10*(36<<10) {
		t.Errorf("ten requests take room for %d bytes", n)
	}
	send(two, 11)
	for {
		frame, err := in.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := frame.(*http2.MetaHeadersFrame); ok {
			if got := h.PseudoValue("status"); h.StreamID != 11 || got != "429" {
				t.Errorf("request %d was answered %s, want the eleventh and 429", h.StreamID, got)
			}
			break
		}
	}
	release()
	testmode.Eventually(t, "room is given back", func() bool { return s.buffers.Taken() == 0 })
}

// TestHTTP2AnswersThatNobodyTakesAreBounded: a client that opens no window holds no
// more requests than it may have under way, on however many connections, and those not
// for ever.
func TestHTTP2AnswersThatNobodyTakesAreBounded(t *testing.T) {
	get := []string{":method", "GET", ":scheme", "http", ":authority", "localhost", ":path"}
	for _, path := range []string{"/nothing", "/s/ione/8000/"} { // answered by the control plane, and by the edge
		f := newFleet(t, echo)
		f.sb.Config.PrivatePorts = true
		s := NewServer(Options{Sandboxes: f, Control: http.NotFoundHandler(), Log: discardLog, Limits: Limits{PerClient: 10}})
		s.headPatience = 2 * time.Second
		url := f.run(t, s)
		var conns []*http2.Framer
		const streams = 10
		for range 3 {
			_, fr := begin2(t, url)
			if err := fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
				t.Fatal(err)
			}
			for i := range uint32(streams) {
				if err := fr.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 2*i+1, block(append(get, path)...)); err != nil {
					t.Fatal(err)
				}
			}
			conns = append(conns, fr)
		}
		var refused, brokenOff int
		for _, fr := range conns {
			for ended := 0; ended < streams; {
				frame, err := fr.ReadFrame()
				if err != nil {
					t.Fatalf("%s: %v, after %d were refused and %d broken off", path, err, refused, brokenOff)
				}
				switch frame := frame.(type) {
				case *http2.MetaHeadersFrame:
					if frame.StreamEnded() && frame.PseudoValue("status") == "429" {
						refused++
						ended++
					}
				case *http2.RSTStreamFrame:
					brokenOff++
					ended++
				}
			}
		}
		if refused == 0 || brokenOff == 0 {
			t.Errorf("%s: %d were refused, and %d broken off", path, refused, brokenOff)
		}
	}
}

// TestHTTP2RequestsTakeRoom: what one client has under way over all its connections is
// bounded before net/http has made anything of it, also where nothing bounds their
// number, and what has to wait for that is answered in its turn.
func TestHTTP2RequestsTakeRoom(t *testing.T) {
	const conns, most = maxClientBuffers/requestRoom/maxStreams + 4, maxClientBuffers / requestRoom
	hold := make(chan struct{})
	var inside atomic.Int64
	f := newFleet(t, echo)
	control := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		inside.Add(1)
		<-hold
	})
	s := NewServer(Options{Sandboxes: f, Control: control, Log: discardLog})
	url := f.run(t, s)
	var all sync.WaitGroup
	var answered atomic.Int64
	for range conns {
		_, fr := begin2(t, url)
		for i := range uint32(maxStreams) {
			head := block(":method", "GET", ":scheme", "http", ":authority", "localhost", ":path", "/")
			if err := fr.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 2*i+1, head); err != nil {
				t.Fatal(err)
			}
		}
		all.Go(func() {
			for range maxStreams {
				for {
					frame, err := fr.ReadFrame()
					if err != nil {
						return
					}
					if frame.Header().Flags.Has(http2.FlagDataEndStream) && frame.Header().StreamID > 0 {
						answered.Add(1)
						break
					}
				}
			}
		})
	}
	testmode.Eventually(t, "the requests take all room", func() bool { return s.buffers.Taken() > maxClientBuffers-requestRoom && inside.Load() > most*9/10 })
	if n := inside.Load(); n > most {
		t.Errorf("%d requests are under way", n)
	}
	close(hold)
	all.Wait()
	if n := answered.Load(); n != conns*maxStreams {
		t.Errorf("%d of %d requests were answered when there was room again", n, conns*maxStreams)
	}
	testmode.Eventually(t, "room is given back", func() bool { return s.buffers.Taken() == 0 })
}

// TestHTTP2RapidReset: a client that begins requests and takes them back at once
// gets no more of the server than one that waits.
func TestHTTP2RapidReset(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	f := newFleet(t, echo)
	var inside, most, highest atomic.Int64
	f.wait = func(ctx context.Context) error {
		if n := inside.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer inside.Add(-1)
		select {
		case <-ctx.Done(): // as a wake is, that nobody waits for any more
			return ctx.Err()
		case <-hold:
			return nil
		}
	}
	s, url := serving(t, f)
	before := int64(runtime.NumGoroutine())
	var all sync.WaitGroup
	const conns = 4
	for range conns {
		_, fr := begin2(t, url)
		all.Go(func() { answers2(t, fr) })
		all.Go(func() {
			for i := range uint32(5000) {
				if fr.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 2*i+1, block(routed2("GET", "/")...)) != nil ||
					fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
					return // the server has had enough
				}
				if i%100 == 0 {
					for n := int64(runtime.NumGoroutine()); n > highest.Load(); {
						highest.Store(n)
					}
				}
			}
			_ = fr.WriteRawFrame(http2.FrameData, 0, 0, nil) // which ends the connection
		})
	}
	all.Wait()
	if n := highest.Load() - before; most.Load() > conns*maxStreams || n > conns*maxStreams*4 {
		t.Errorf("%d requests were under way at once, in %d goroutines", most.Load(), n)
	}
	testmode.Eventually(t, "requests that were taken back have ended", func() bool { return inside.Load() == 0 && s.buffers.Taken() == 0 })
	if resp, err := http.Get(url); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("another client: %v, %v", resp, err)
	}
}

// TestRefusedAgainAndAgain: who asks for what is not there has all answers, and after
// the first 500 in a while no more than 100 per second, by either protocol.
func TestRefusedAgainAndAgain(t *testing.T) {
	f := newFleet(t, echo)
	for name, c := range map[string]*http.Client{"1.1": {Transport: &http.Transport{}}, "2": http2Client(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer c.CloseIdleConnections()
			url := f.serve(t)
			begin := time.Now()
			for range 600 {
				req := request2(t, url, nil)
				req.Header.Set(headerSandbox, "iother")
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if text := body(t, resp); resp.StatusCode != http.StatusBadGateway || !strings.Contains(text, "iother") {
					t.Fatalf("it was answered %d %s", resp.StatusCode, text)
				}
				resp.Body.Close()
			}
			if took := time.Since(begin); took < 900*time.Millisecond {
				t.Errorf("600 refusals took %s, want a second at least", took)
			}
		})
	}
}

// TestHTTP2AnswerEndsFirst: an answer that ends before its request does, as a gRPC server may end a stream,
// ends for the client too, with its trailers.
func TestHTTP2AnswerEndsFirst(t *testing.T) {
	for _, kind := range []string{"text/plain", "application/grpc"} {
		t.Run(kind, func(t *testing.T) {
			f := newFleet2(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "Grpc-Status")
				_ = http.NewResponseController(w).EnableFullDuplex()
				fmt.Fprint(w, "all")
				_ = http.NewResponseController(w).Flush()
				w.Header().Set("Grpc-Status", "0")
			})
			pr, pw := io.Pipe()
			defer pw.Close()
			ctx, cancel := context.WithTimeout(t.Context(), testmode.Patience())
			defer cancel()
			req := request2(t, f.serve(t), pr).WithContext(ctx)
			req.Header.Set("Content-Type", kind)
			resp, err := http2Client(t).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if data, err := io.ReadAll(resp.Body); string(data) != "all" || err != nil || resp.Trailer.Get("Grpc-Status") != "0" {
				t.Errorf("%q, %v, trailer %v", data, err, resp.Trailer)
			}
			f.wantReleased(t)
		})
	}
}
