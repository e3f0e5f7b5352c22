package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestNothingIsSmuggledByHTTP2 sends malformed and ambiguous requests by
// HTTP/2, each followed by a plain one on the same connection. It holds for the
// servers behind what TestNothingIsSmuggled holds. Beside it, nginx gets the
// same bytes as a reverse proxy: what both pass on, they pass on alike.
func TestNothingIsSmuggledByHTTP2(t *testing.T) {
	authority := httptest.NewUnstartedServer(nil)
	authority.StartTLS()
	defer authority.Close()
	log, backend := &served{}, &witness{}
	direct := httptest.NewServer(backend)
	defer direct.Close()
	behind, proxy := startNginx(t, direct.Listener.Addr().String())
	cases := smugglingCases2()
	if len(cases) < 300 {
		t.Errorf("only %d cases", len(cases))
	}
	beside := map[string]string{}
	for _, c := range cases {
		talk2(t, dialPlain(t, proxy), c)
		beside[c.name] = strings.Join(backend.takeSorted(), ", ")
	}
	for _, way := range []struct {
		name, behind string
		tls          *tls.Config
	}{
		{"h2c, net/http", direct.Listener.Addr().String(), nil},
		{"h2c, nginx", behind, nil},
		{"h2c, passed on, net/http", direct.Listener.Addr().String(), nil},
		{"TLS, net/http", direct.Listener.Addr().String(), &tls.Config{Certificates: authority.TLS.Certificates}},
	} {
		f := newFleet(t, nil)
		f.dial = func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", way.behind)
		}
		edge := ""
		if strings.Contains(way.name, "passed on") {
			edge = f.servePair(t, func(a, _ *Options) { a.AccessLog, a.Log = true, slog.New(log) }).a
		} else {
			edge = f.serveWith(t, Options{AccessLog: true, Log: slog.New(log), TLS: way.tls})
		}
		edge = strings.TrimPrefix(edge, "http://")
		refused, onlyHere := 0, []string{}
		for _, c := range cases {
			conn := dialPlain(t, edge)
			if way.tls != nil {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			}
			status := talk2(t, conn, c)
			edgeSaw, backendSaw := settled(log, backend)
			if !slices.Equal(edgeSaw, backendSaw) {
				t.Errorf("%s, %s: the edge saw %q, the server behind it %q", way.name, c.name, edgeSaw, backendSaw)
			}
			passed := strings.Join(backendSaw, ", ")
			switch {
			case strings.Contains(passed, "smuggled"), c.status == refusal && strings.Contains(passed, "case"):
				t.Errorf("%s, %s: %s came out", way.name, c.name, passed)
			case c.status == refusal && status == http.StatusOK:
				t.Errorf("%s, %s: answered 200", way.name, c.name)
			case c.status > 0 && status != c.status:
				t.Errorf("%s, %s: answered %d, want %d", way.name, c.name, status, c.status)
			case status >= 500 && status != 501 && status != 505:
				t.Errorf("%s, %s: answered %d", way.name, c.name, status)
			}
			if status != http.StatusOK {
				refused++
			} else if other := beside[c.name]; !strings.Contains(other, "/case") && !strings.Contains(other, "*") {
				onlyHere = append(onlyHere, c.name)
			} else if other != passed {
				t.Errorf("%s, %s: passed on as %q, by nginx as %q", way.name, c.name, passed, other)
			}
		}
		t.Logf("%s: %d of %d cases refused, the others understood alike; nginx refuses of these: %q", way.name, refused, len(cases), onlyHere)
	}
}

// cutOff is the path of requests that are whole, and may be broken off before their
// answer by what comes after them. The edge's log does not have those as answered, and
// the server behind it may notice them during a later case.
const cutOff = "/cut-off"

// settled returns what the edge and the server behind it saw, once that is the
// same, or after a while: the edge's log may be written after the answer. Requests that
// may be cut off are left out.
func settled(log *served, backend *witness) (edgeSaw, backendSaw []string) {
	for end := time.Now().Add(testmode.Scaled(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		edgeSaw, backendSaw = append(edgeSaw, lasting(log.take())...), append(backendSaw, lasting(backend.take())...)
		slices.Sort(edgeSaw)
		slices.Sort(backendSaw)
		if slices.Equal(edgeSaw, backendSaw) || time.Now().After(end) {
			return edgeSaw, backendSaw
		}
	}
}

func lasting(seen []string) []string {
	return slices.DeleteFunc(seen, func(s string) bool { return strings.Contains(s, " "+cutOff+" ") })
}

func (s *witness) takeSorted() []string {
	seen := s.take()
	slices.Sort(seen)
	return seen
}

func dialPlain(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// refusal is an answer of another status than 200, or none.
const refusal = -2

// script2 is one case: the frames of a connection after its settings.
type script2 struct {
	name   string
	status int // of stream 1; or refusal; 0 if it is left to the edge
	out    bytes.Buffer
	fr     *http2.Framer
}

func newScript2(name string, status int) *script2 {
	c := &script2{name: name, status: status}
	c.fr = http2.NewFramer(&c.out, nil)
	c.fr.AllowIllegalWrites = true
	return c
}

// block encodes names and values that take turns. It refers to nothing but
// itself, whatever blocks came before.
func block(kv ...string) []byte {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i+1 < len(kv); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return b.Bytes()
}

// head sends a request's head; frames of at most 16 KiB.
func (c *script2) head(stream uint32, end bool, kv ...string) *script2 {
	rest := block(kv...)
	first := rest[:min(len(rest), 16<<10)]
	rest = rest[len(first):]
	_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(rest) == 0})
	for len(rest) > 0 {
		piece := rest[:min(len(rest), 16<<10)]
		rest = rest[len(piece):]
		_ = c.fr.WriteContinuation(stream, len(rest) == 0, piece)
	}
	return c
}

func (c *script2) data(stream uint32, end bool, body string) *script2 {
	_ = c.fr.WriteData(stream, end, []byte(body))
	return c
}

const afterStream = 7

// routed2 are the fields of a good request.
func routed2(method, path string, more ...string) []string {
	return append([]string{":method", method, ":scheme", "http", ":authority", "localhost", ":path", path,
		"e2b-sandbox-id", "ione", "e2b-sandbox-port", "8000"}, more...)
}

// with returns good fields with one of them changed or, if value is "-", left
// out.
func with(name, value string) (kv []string) {
	good := routed2("GET", "/case")
	for i := 0; i < len(good); i += 2 {
		switch {
		case good[i] != name:
			kv = append(kv, good[i], good[i+1])
		case value != "-":
			kv = append(kv, name, value)
		}
	}
	return kv
}

// talk2 sends a case, and a plain request after it, and returns the status of
// the answer to the first: 0 if the stream was reset, -1 if the connection was
// ended.
func talk2(t *testing.T, conn net.Conn, c *script2) (status int) {
	t.Helper()
	defer conn.Close()
	patience := testmode.Patience()
	if c.status == refusal {
		patience = time.Second // there may be no answer at all
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	begin := bytes.NewBufferString(http2.ClientPreface)
	_ = http2.NewFramer(begin, nil).WriteSettings()
	begin.Write(c.out.Bytes())
	plain := newScript2("after", 0)
	plain.head(afterStream, true, routed2("GET", "/after")...)
	begin.Write(plain.out.Bytes())
	go func() { _, _ = conn.Write(begin.Bytes()) }()
	in := http2.NewFramer(conn, conn)
	in.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	status = -1
	one, two := false, false
	for !one || !two {
		f, err := in.ReadFrame()
		if err != nil {
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() && c.status != refusal {
				t.Errorf("%s: no end", c.name)
			}
			return status
		}
		end := false
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == 1 {
				_, _ = fmt.Sscan(f.PseudoValue("status"), &status)
			}
			end = f.StreamEnded()
		case *http2.DataFrame:
			end = f.StreamEnded()
		case *http2.RSTStreamFrame:
			end = true
			if f.StreamID == 1 && status < 0 {
				status = 0
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return status
			}
		}
		one = one || end && f.Header().StreamID == 1
		two = two || end && f.Header().StreamID == afterStream
	}
	return status
}

// smugglingCases2 makes the corpus.
func smugglingCases2() (cases []*script2) {
	add := func(status int, name string) *script2 {
		c := newScript2(name, status)
		cases = append(cases, c)
		return c
	}
	for _, method := range []string{
		"GET /smuggled HTTP/1.1", "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\nGET", "GET ", " GET", "GET\t", "G\x00T", "G\rT", "G\nT", "{}", "GET/", "G(T", "", "\x7f", "GÉT", strings.Repeat("G", 33), "G,T", "G;T", "\"GET\"", "GET:", "G@T", "-",
	} {
		add(refusal, "method "+method).head(1, true, with(":method", method)...)
	}
	add(refusal, "method CONNECT").head(1, true, with(":method", "CONNECT")...)
	add(refusal, "CONNECT as it must be").head(1, true, ":method", "CONNECT", ":authority", "localhost:22")
	add(refusal, "extended CONNECT").head(1, true, routed2("CONNECT", "/case", ":protocol", "websocket")...)
	for _, method := range []string{"get", "M-SEARCH", "PROPFIND", "DELETE", "OPTIONS", "HEAD", "PATCH", "X!#$%&'*+.^_`|~"} {
		add(0, "method "+method).head(1, true, with(":method", method)...)
	}
	for _, path := range []string{
		"", "-", "case", "*", "http://other.test/case", "https://localhost/case", "localhost:22", "//other.test:x/case y", "/case HTTP/1.1\r\nX: y\r\n\r\nGET /smuggled", "/case HTTP/1.1", "/ca se", "/case\t", "/case\x00", "/ca\rse", "/ca\nse", "/case\x7f", "/case\x01", "/case#x", "#", "?x", "/%zz", "/%", "/case%", "/%0", " /case", "\t/case", "/case ", "\\case", ".", "..", "@localhost/", ":80/", "/case\x1f", "/case\x0b", "/case\u2028 x", "[::1]/case", "ftp://localhost/", "javascript:alert(1)", "/" + strings.Repeat("a", maxTarget+1),
	} {
		add(refusal, "path "+path[:min(len(path), 60)]).head(1, true, with(":path", path)...)
	}
	for _, path := range []string{
		"/case?", "/case??", "/case?a=b;c=d", "/case?%zz", "/case?a=%", "/case?a=\"<>\"", "/case?{}", "/case{}", "/case|x", "/case^x", "/case`x", "/case\"x", "/case<x>", "/case\\x", "/case\\..\\x", "/case%2f", "/case%2F..%2f", "/case%0d%0aX:%20y", "/case/../x", "/case/./x", "/case//x", "/case/%2e%2e/x", "/case;x=y", "/case[1]", "/case:80", "/case@x", "/case!$&'()*+,=", "/caseä", "/case\xff\xfe", "/case%C3%A4", "/case%c0%ae", "/case~", "//other.test/case", "///case", "/case%23x", "/case%3Fx", "/case%25", "/case%2525", "/case+x", "/case?\\", "/case?a=b&a=c", "/case?=", "/s/ione/8000/case", "/case?é",
	} {
		add(200, "path "+path).head(1, true, with(":path", path)...)
	}
	add(0, "path /case%00").head(1, true, with(":path", "/case%00")...)
	add(200, "OPTIONS *").head(1, true, ":method", "OPTIONS", ":scheme", "http", ":authority", "localhost", ":path", "*", "e2b-sandbox-id", "ione", "e2b-sandbox-port", "8000")
	for _, authority := range []string{
		"", "-", "localhost/x", "local host", "localhost\\x", "localhost#", "localhost?x", "localhost\x00", "localhost\r\nX: y", "localhost\n", "<localhost>", "localhost,other.test", "localhost\t", " localhost", "a@localhost", "localhost\"", "{localhost}", "localhost|", "ä.localhost", "localhost\x7f", "http://localhost", "localhost^", "localhost`",
	} {
		add(refusal, "authority "+authority).head(1, true, with(":authority", authority)...)
	}
	for _, host := range []string{"other.test", "localhost:80", "", "localhost ", "localhost\x00", "ocalhost", "localhost.", "other.test, localhost"} {
		if host != "localhost " { // trimmed, the same
			add(refusal, "authority and host "+host).head(1, true, routed2("GET", "/case", "host", host)...)
		}
		add(refusal, "two hosts "+host).head(1, true, append(with(":authority", "-"), "host", "localhost", "host", host)...)
	}
	add(200, "the same host").head(1, true, routed2("GET", "/case", "host", "localhost")...)
	add(200, "host alone").head(1, true, append(with(":authority", "-"), "host", "localhost")...)
	for _, scheme := range []string{"", "-", "ftp", "http ", "http://", "http\r\n", "javascript", "file", "ws", "htt p", "http\x00", "gopher"} {
		add(refusal, "scheme "+scheme).head(1, true, with(":scheme", scheme)...)
	}
	for _, pseudo := range []string{":method", ":path", ":scheme", ":authority", ":status", ":protocol", ":", ":host", ":Method", "::path", ":path "} {
		add(refusal, "twice or unknown "+pseudo).head(1, true, append([]string{pseudo, "/smuggled"}, routed2("GET", "/case")...)...)
		add(refusal, "after the fields "+pseudo).head(1, true, routed2("GET", "/case", "x", "y", pseudo, "/smuggled")...)
	}
	for _, name := range []string{
		"X", "x y", "x:", "x\r\ny", "x\x00", "", "x\t", " x", "x(", "x,", "ä", "\"x\"", "x/", "x[", "x{", "x;", "x=", "x@", "x?", "x\\", "x\x7f", "x\n", "Host", "Content-Length", "transfer-Encoding", "x<", "content-length ", "transfer-encoding\x0b", "content-length:",
	} {
		add(refusal, "field named "+name).head(1, true, routed2("GET", "/case", name, "y")...)
	}
	for _, value := range []string{"\r\nX: y", "a\r\nTransfer-Encoding: chunked", "a\nb", "a\rb", "a\x00b", "\x00", "\x08", "\x7f", "a\x0bb", "\r\n\r\n" + hidden, "\n", "\r"} {
		add(refusal, "value "+value).head(1, true, routed2("GET", "/case", "x", value)...)
		add(refusal, "value of cookie "+value).head(1, true, routed2("GET", "/case", "cookie", value)...)
	}
	for _, kv := range [][]string{
		{"connection", "close"}, {"connection", "keep-alive"}, {"connection", "x"}, {"connection", "content-length"}, {"connection", ""}, {"connection", "Upgrade", "upgrade", "websocket"}, {"keep-alive", "timeout=5"}, {"proxy-connection", "close"}, {"transfer-encoding", "chunked"}, {"transfer-encoding", "identity"}, {"transfer-encoding", ""}, {"transfer-encoding", "xchunked"}, {"upgrade", "h2c"}, {"upgrade", "websocket"}, {"te", "chunked"}, {"te", "trailers, chunked"}, {"te", "gzip"}, {"te", "trailers", "te", "chunked"}, {"connection", "HTTP2-Settings", "http2-settings", "AAMAAABkAAQCAAAAAAIAAAAA"}, {"content_length", "5"}, {"transfer_encoding", "chunked"},
	} {
		add(refusal, fmt.Sprintf("of the connection %q", kv)).head(1, true, routed2("GET", "/case", kv...)...)
		add(refusal, fmt.Sprintf("of the connection, with a body %q", kv)).head(1, false, routed2("POST", "/case", kv...)...).data(1, true, "0\r\n\r\n"+hidden)
	}
	for _, length := range []string{"05", "+5", "-5", "0x5", "5,5", "5, 5", "5,6", "5;", "5.0", "5e0", "5_0", "٥", "", "5 5", "99999999999999999999", "18446744073709551621", "9223372036854775808", "five", "0", "4", "6", "1000", "\"5\""} {
		status, path := refusal, "/case"
		if length == "0" || length == "05" { // a whole request, and data that belongs to nothing
			status, path = 0, cutOff
		}
		add(status, "length "+length).head(1, false, routed2("POST", path, "content-length", length)...).data(1, true, "hello")
		if length != "0" {
			add(refusal, "length without a body "+length).head(1, true, routed2("POST", "/case", "content-length", length)...)
		}
	}
	for _, second := range []string{"5", "0", "6", "", "x"} {
		add(refusal, "two lengths "+second).head(1, false, routed2("POST", "/case", "content-length", "5", "content-length", second)...).data(1, true, "hello")
		add(refusal, "two lengths, the other first "+second).head(1, false, routed2("POST", "/case", "content-length", second, "content-length", "5")...).data(1, true, "hello")
	}
	for _, kv := range [][]string{{"e2b-sandbox-id", "ione"}, {"e2b-sandbox-id", "itwo"}, {"e2b-sandbox-id", ""}, {"e2b-sandbox-port", "8000"}, {"e2b-sandbox-port", "1"}, {"e2b-sandbox-port", ""}} {
		add(400, fmt.Sprintf("routing %q", kv)).head(1, true, routed2("GET", "/case", kv...)...)
	}
	for _, port := range []string{"0", "-1", "65536", "8000x", "0x1f40", "8 000", "+8000", "٨", "99999999999999999999"} {
		add(400, "port "+port).head(1, true, with("e2b-sandbox-port", port)...)
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "TRACE", "PATCH", "PUT", "PROPFIND", "get", "M-SEARCH", "POST"} {
		add(0, "a request as body of "+method).head(1, false, routed2(method, "/case", "content-length", fmt.Sprint(len(hidden)))...).data(1, true, hidden)
		add(0, "a request as body without a length of "+method).head(1, false, routed2(method, "/case")...).data(1, true, hidden)
		add(0, "chunks as body of "+method).head(1, false, routed2(method, "/case")...).data(1, false, "0\r\n\r\n").data(1, true, hidden)
		add(0, "nothing as body of "+method).head(1, false, routed2(method, "/case")...).data(1, true, "")
	}
	for _, kv := range [][]string{{"x", "y"}, {"content-length", "50"}, {"transfer-encoding", "chunked"}, {"host", "other.test"}, {"trailer", "x"}, {"e2b-sandbox-id", "itwo"}, {"authorization", "x"}, {"connection", "close"}, {"x", hidden}} {
		add(0, fmt.Sprintf("trailer %q", kv)).head(1, false, routed2("POST", "/case", "trailer", kv[0])...).data(1, false, "hello").head(1, true, kv...)
		add(0, fmt.Sprintf("trailer unannounced %q", kv)).head(1, false, routed2("POST", "/case")...).data(1, false, "hello").head(1, true, kv...)
	}
	for _, pseudo := range []string{":path", ":method", ":status"} {
		add(refusal, "trailer "+pseudo).head(1, false, routed2("POST", "/case")...).data(1, false, "hello").head(1, true, pseudo, "/smuggled")
	}
	add(refusal, "trailer without an end").head(1, false, routed2("POST", "/case")...).data(1, false, "hello").head(1, false, "x", "y")
	return append(cases, oddFrames()...)
}

// oddFrames are cases below the fields.
func oddFrames() (cases []*script2) {
	add := func(status int, name string, f func(c *script2, good []byte)) {
		c := newScript2(name, status)
		f(c, block(routed2("GET", "/case")...))
		cases = append(cases, c)
	}
	whole := func(c *script2, stream uint32, block []byte, flags http2.Flags) {
		_ = c.fr.WriteRawFrame(http2.FrameHeaders, flags, stream, block)
	}
	const endBoth = http2.FlagHeadersEndHeaders | http2.FlagHeadersEndStream
	for _, at := range []int{0, 1, 2, 10, 30} {
		add(200, fmt.Sprint("a head in two at ", at), func(c *script2, good []byte) {
			whole(c, 1, good[:at], http2.FlagHeadersEndStream)
			_ = c.fr.WriteContinuation(1, true, good[at:])
		})
		add(refusal, fmt.Sprint("data within a head at ", at), func(c *script2, good []byte) {
			whole(c, 1, good[:at], http2.FlagHeadersEndStream)
			c.data(1, true, "hello")
			_ = c.fr.WriteContinuation(1, true, good[at:])
		})
		add(refusal, fmt.Sprint("another head within a head at ", at), func(c *script2, good []byte) {
			whole(c, 1, good[:at], http2.FlagHeadersEndStream)
			whole(c, 3, good, endBoth)
			_ = c.fr.WriteContinuation(1, true, good[at:])
		})
		add(refusal, fmt.Sprint("a head cut at ", at), func(c *script2, good []byte) { whole(c, 1, good[:at], endBoth) })
	}
	add(refusal, "a continuation of nothing", func(c *script2, good []byte) { _ = c.fr.WriteContinuation(1, true, good) })
	add(refusal, "a continuation of another stream", func(c *script2, good []byte) {
		whole(c, 1, good[:9], http2.FlagHeadersEndStream)
		_ = c.fr.WriteContinuation(3, true, good[9:])
	})
	add(refusal, "data before a head", func(c *script2, good []byte) { c.data(1, false, hidden); whole(c, 1, good, endBoth) })
	broken := block(routed2("GET", cutOff)...)
	add(0, "data after the end", func(c *script2, _ []byte) { whole(c, 1, broken, endBoth); c.data(1, true, hidden) })
	add(0, "a head after the end", func(c *script2, _ []byte) { whole(c, 1, broken, endBoth); whole(c, 1, broken, endBoth) })
	add(refusal, "a stream of the server's", func(c *script2, good []byte) { whole(c, 2, good, endBoth) })
	add(refusal, "stream 0", func(c *script2, good []byte) { whole(c, 0, good, endBoth) })
	add(refusal, "data on stream 0", func(c *script2, _ []byte) { c.data(0, true, hidden) })
	add(refusal, "a promise", func(c *script2, good []byte) {
		_ = c.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: good, EndHeaders: true})
	})
	add(200, "a frame of no known type", func(c *script2, good []byte) {
		_ = c.fr.WriteRawFrame(0x77, 0xff, 1, []byte(hidden))
		whole(c, 1, good, endBoth)
	})
	add(refusal, "a frame of no known type within a head", func(c *script2, good []byte) {
		whole(c, 1, good[:9], http2.FlagHeadersEndStream)
		_ = c.fr.WriteRawFrame(0x77, 0xff, 1, []byte(hidden))
		_ = c.fr.WriteContinuation(1, true, good[9:])
	})
	add(refusal, "padding longer than the head", func(c *script2, good []byte) {
		whole(c, 1, append([]byte{255}, good...), endBoth|http2.FlagHeadersPadded)
	})
	add(200, "padding", func(c *script2, good []byte) {
		whole(c, 1, append(append([]byte{9}, good...), make([]byte, 9)...), endBoth|http2.FlagHeadersPadded)
	})
	add(200, "padding of data", func(c *script2, _ []byte) {
		c.head(1, false, routed2("POST", "/case", "content-length", "5")...)
		_ = c.fr.WriteRawFrame(http2.FrameData, http2.FlagDataPadded|http2.FlagDataEndStream, 1, []byte("\x03hello\x00\x00\x00"))
	})
	add(refusal, "padding of data that is longer", func(c *script2, _ []byte) {
		c.head(1, false, routed2("POST", "/case", "content-length", "5")...)
		_ = c.fr.WriteRawFrame(http2.FrameData, http2.FlagDataPadded|http2.FlagDataEndStream, 1, []byte("\x09hello"))
	})
	add(refusal, "a stream that depends on itself", func(c *script2, good []byte) {
		whole(c, 1, append([]byte{0, 0, 0, 1, 16}, good...), endBoth|http2.FlagHeadersPriority)
	})
	add(refusal, "settings of odd length", func(c *script2, _ []byte) { _ = c.fr.WriteRawFrame(http2.FrameSettings, 0, 0, []byte("hello")) })
	add(refusal, "settings on a stream", func(c *script2, _ []byte) { _ = c.fr.WriteRawFrame(http2.FrameSettings, 0, 1, nil) })
	add(refusal, "a window of nothing", func(c *script2, _ []byte) { _ = c.fr.WriteWindowUpdate(0, 0) })
	add(refusal, "a window without end", func(c *script2, _ []byte) {
		_ = c.fr.WriteWindowUpdate(0, 1<<31-1)
		_ = c.fr.WriteWindowUpdate(0, 1<<31-1)
	})
	add(refusal, "a reset of no stream", func(c *script2, _ []byte) { _ = c.fr.WriteRSTStream(1, http2.ErrCodeCancel) })
	add(refusal, "a ping of odd length", func(c *script2, _ []byte) { _ = c.fr.WriteRawFrame(http2.FramePing, 0, 0, []byte("hello")) })
	add(refusal, "a preface again", func(c *script2, _ []byte) { c.out.WriteString(http2.ClientPreface) })
	add(refusal, "a request by HTTP/1.1", func(c *script2, _ []byte) { c.out.WriteString(hidden) })
	add(refusal, "a frame too large", func(c *script2, _ []byte) {
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], 1<<24-1)
		c.out.Write(length[1:])
		c.out.Write([]byte{byte(http2.FrameHeaders), byte(endBoth), 0, 0, 0, 1})
		c.out.WriteString(strings.Repeat(hidden, 200))
	})
	add(refusal, "an index past the table", func(c *script2, _ []byte) { whole(c, 1, []byte{0xff, 0xff, 0xff, 0x0f}, endBoth) })
	add(refusal, "index 0", func(c *script2, _ []byte) { whole(c, 1, []byte{0x80}, endBoth) })
	add(refusal, "a table larger than agreed", func(c *script2, good []byte) { whole(c, 1, append([]byte{0x3f, 0xff, 0xff, 0x7f}, good...), endBoth) })
	add(refusal, "a length of text without end", func(c *script2, _ []byte) { whole(c, 1, []byte{0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, endBoth) })
	add(refusal, "bad Huffman code", func(c *script2, good []byte) { whole(c, 1, append(good, 0, 0x81, 0xff, 1, 'y'), endBoth) })
	add(refusal, "a large head", func(c *script2, _ []byte) {
		c.head(1, true, routed2("GET", "/case", "x", strings.Repeat("y", 2*maxHead))...)
	})
	add(431, "many fields", func(c *script2, _ []byte) {
		kv := routed2("GET", "/case")
		for range 300 {
			kv = append(kv, "x", "y")
		}
		c.head(1, true, kv...)
	})
	return cases
}
