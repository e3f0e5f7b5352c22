package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		name, head string
		want       Request
	}{
		{"plain", "GET /a%2Fb?c=d HTTP/1.1\r\nHost: x.test:80\r\n\r\n",
			Request{Method: "GET", Target: "/a%2Fb?c=d", Host: "x.test:80", Minor: 1}},
		{"length", "POST / HTTP/1.1\r\nhost: x\r\ncontent-length:  12\t\r\n\r\n",
			Request{Method: "POST", Target: "/", Host: "x", Minor: 1, Length: 12}},
		{"chunked", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n",
			Request{Method: "POST", Target: "/", Host: "x", Minor: 1, Length: Chunked}},
		{"old", "GET / HTTP/1.0\r\n\r\n", Request{Method: "GET", Target: "/", Close: true}},
		{"old that would stay", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Request{Method: "GET", Target: "/", Close: true}},
		{"close", "GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n", Request{Method: "GET", Target: "/", Host: "x", Minor: 1, Close: true}},
		{"upgrade", "GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
			Request{Method: "GET", Target: "/", Host: "x", Minor: 1, Upgrade: "websocket"}},
		{"upgrade not named", "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n", Request{Method: "GET", Target: "/", Host: "x", Minor: 1}},
		{"upgrade in HTTP/1.0", "GET / HTTP/1.0\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			Request{Method: "GET", Target: "/", Host: "x", Close: true}},
		{"absolute", "GET http://X.test/a?b HTTP/1.1\r\nHost: x.test\r\n\r\n", Request{Method: "GET", Target: "/a?b", Host: "x.test", Minor: 1}},
		{"absolute without path", "GET http://x.test?b HTTP/1.1\r\nHost: x.test\r\n\r\n", Request{Method: "GET", Target: "/?b", Host: "x.test", Minor: 1}},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", Request{Method: "OPTIONS", Target: "*", Host: "x", Minor: 1}},
		{"raw UTF-8", "GET /ü HTTP/1.1\r\nHost: x\r\nX: ü\r\n\r\n", Request{Method: "GET", Target: "/ü", Host: "x", Minor: 1}},
		{"odd method", "M-SEARCH / HTTP/1.1\r\nHost: x\r\n\r\n", Request{Method: "M-SEARCH", Target: "/", Host: "x", Minor: 1}},
		{"address", "GET / HTTP/1.1\r\nHost: [::1]:3000\r\n\r\n", Request{Method: "GET", Target: "/", Host: "[::1]:3000", Minor: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseRequest(c.head, nil)
			if err != nil {
				t.Fatal(err)
			}
			got.Fields, got.options = nil, nil
			if got.Method != c.want.Method || got.Target != c.want.Target || got.Host != c.want.Host || got.Minor != c.want.Minor ||
				got.Length != c.want.Length || got.Close != c.want.Close || got.Upgrade != c.want.Upgrade {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParseRequestRefuses(t *testing.T) {
	const rest = " / HTTP/1.1\r\nHost: x\r\n"
	many := strings.Repeat("A: b\r\n", maxFields)
	for _, c := range []struct {
		name, head string
		status     int
	}{
		{"empty", "\r\n", 400},
		{"no version", "GET /\r\nHost: x\r\n\r\n", 400},
		{"HTTP/0.9 with version", "GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505},
		{"HTTP/2", "GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
		{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505},
		{"lower-case version", "GET / http/1.1\r\nHost: x\r\n\r\n", 400},
		{"no method", " / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"method with control", "GE\tT / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"long method", strings.Repeat("A", 33) + rest + "\r\n", 400},
		{"CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 405},
		{"two spaces", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"space in target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"tab in target", "GET /a\tb HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"trailing space", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400},
		{"fragment", "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"relative target", "GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"asterisk for GET", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"other host", "GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"other scheme", "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"user in target", "GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"no host", "GET / HTTP/1.1\r\n\r\n", 400},
		{"two hosts", "GET" + rest + "host: x\r\n\r\n", 400},
		{"host with slash", "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400},
		{"host with space", "GET / HTTP/1.1\r\nHost: x y\r\n\r\n", 400},
		{"host with user", "GET / HTTP/1.1\r\nHost: a@x\r\n\r\n", 400},
		{"bare LF", "GET / HTTP/1.1\nHost: x\r\n\r\n", 400},
		{"bare LF in fields", "GET" + rest + "A: b\nC: d\r\n\r\n", 400},
		{"bare CR in value", "GET" + rest + "A: b\rC: d\r\n\r\n", 400},
		{"bare CR at line end", "GET" + rest + "A: b\r\r\n\r\n", 400},
		{"NUL", "GET" + rest + "A: b\x00\r\n\r\n", 400},
		{"DEL", "GET" + rest + "A: b\x7f\r\n\r\n", 400},
		{"space before colon", "GET" + rest + "A : b\r\n\r\n", 400},
		{"folded", "GET" + rest + "A: b\r\n c\r\n\r\n", 400},
		{"first field folded", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400},
		{"no colon", "GET" + rest + "A\r\n\r\n", 400},
		{"empty name", "GET" + rest + ": b\r\n\r\n", 400},
		{"UTF-8 in name", "GET" + rest + "Ä: b\r\n\r\n", 400},
		{"two lengths", "GET" + rest + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
		{"two equal lengths", "GET" + rest + "Content-Length: 1\r\ncontent-length: 1\r\n\r\n", 400},
		{"list of lengths", "GET" + rest + "Content-Length: 1, 1\r\n\r\n", 400},
		{"empty length", "GET" + rest + "Content-Length:\r\n\r\n", 400},
		{"signed length", "GET" + rest + "Content-Length: +1\r\n\r\n", 400},
		{"negative length", "GET" + rest + "Content-Length: -1\r\n\r\n", 400},
		{"hex length", "GET" + rest + "Content-Length: 0x1\r\n\r\n", 400},
		{"huge length", "GET" + rest + "Content-Length: 9999999999999999999\r\n\r\n", 400},
		{"length with underscore", "GET" + rest + "Content_Length: 1\r\n\r\n", 400},
		{"length and chunks", "GET" + rest + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"chunks and length", "GET" + rest + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
		{"chunked twice", "GET" + rest + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"chunked list", "GET" + rest + "Transfer-Encoding: chunked, chunked\r\n\r\n", 501},
		{"gzip", "GET" + rest + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
		{"identity", "GET" + rest + "Transfer-Encoding: identity\r\n\r\n", 501},
		{"empty coding", "GET" + rest + "Transfer-Encoding:\r\n\r\n", 501},
		{"coding with form feed", "GET" + rest + "Transfer-Encoding: \x0cchunked\r\n\r\n", 400},
		{"coding with underscore", "GET" + rest + "Transfer_Encoding: chunked\r\n\r\n", 400},
		{"chunked HTTP/1.0", "GET / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"connection hides length", "GET" + rest + "Connection: content-length\r\nContent-Length: 1\r\n\r\n", 400},
		{"connection hides coding", "GET" + rest + "Connection: a, Transfer-Encoding\r\n\r\n", 400},
		{"connection hides host", "GET" + rest + "Connection: Host\r\n\r\n", 400},
		{"connection malformed", "GET" + rest + "Connection: a b\r\n\r\n", 400},
		{"more after the end", "GET" + rest + "\r\n\r\n", 400},
		{"too many fields", "GET" + rest + many + "\r\n", 431},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseRequest(c.head, nil)
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("accepted as %+v (%v)", got, err)
			}
			if e.Status != c.status {
				t.Errorf("status %d (%s), want %d", e.Status, e.Reason, c.status)
			}
		})
	}
}

func TestForwarded(t *testing.T) {
	r, err := ParseRequest("GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-Mine\r\n\r\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"Host": true, "Accept": true, "TE": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true, "Close": true,
		"connection": false, "Keep-Alive": false, "proxy-connection": false, "Upgrade": false, "x-mine": false,
	} {
		if got := r.Forwarded(name); got != want {
			t.Errorf("%s: forwarded %v, want %v", name, got, want)
		}
	}
}

func TestParseResponse(t *testing.T) {
	for _, c := range []struct {
		name, head, method string
		status             int
		length             int64
		closes             bool
		refused            bool
	}{
		{name: "length", head: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", status: 200, length: 5},
		{name: "no reason", head: "HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", status: 404},
		{name: "empty reason", head: "HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n", status: 404},
		{name: "chunked", head: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", status: 200, length: Chunked},
		{name: "until close", head: "HTTP/1.1 200 OK\r\n\r\n", status: 200, length: UntilClose, closes: true},
		{name: "old", head: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", status: 200, length: 5, closes: true},
		{name: "HEAD", head: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", method: "HEAD", status: 200},
		{name: "not modified", head: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304},
		{name: "no content", head: "HTTP/1.1 204 No Content\r\n\r\n", status: 204},
		{name: "continue", head: "HTTP/1.1 100 Continue\r\n\r\n", status: 100},
		{name: "close", head: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n", status: 200, length: 1, closes: true},
		{name: "two lengths", head: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", refused: true},
		{name: "length and chunks", head: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", refused: true},
		{name: "HTTP/2", head: "HTTP/2.0 200 OK\r\n\r\n", refused: true},
		{name: "status of two digits", head: "HTTP/1.1 20 OK\r\n\r\n", refused: true},
		{name: "status with sign", head: "HTTP/1.1 +20 OK\r\n\r\n", refused: true},
		{name: "status below 100", head: "HTTP/1.1 099 OK\r\n\r\n", refused: true},
		{name: "reason with control", head: "HTTP/1.1 200 O\x01K\r\n\r\n", refused: true},
		{name: "glued reason", head: "HTTP/1.1 200OK\r\n\r\n", refused: true},
		{name: "SSH", head: "SSH-2.0-OpenSSH_9.2\r\n\r\n", refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			method := c.method
			if method == "" {
				method = "GET"
			}
			got, err := ParseResponse(c.head, method, nil)
			if c.refused {
				if err == nil {
					t.Errorf("accepted as %+v", got)
				}
				return
			}
			if err != nil || got.Status != c.status || got.Length != c.length || got.Close != c.closes {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestChunks(t *testing.T) {
	for _, c := range []struct {
		name, in, content string
		rest              string // not consumed
		refused           bool
	}{
		{name: "empty", in: "0\r\n\r\n"},
		{name: "one", in: "5\r\nhello\r\n0\r\n\r\n", content: "hello"},
		{name: "two", in: "3\r\nabc\r\nA\r\n0123456789\r\n000\r\n\r\n", content: "abc0123456789"},
		{name: "more behind", in: "0\r\n\r\nGET /", rest: "GET /"},
		{name: "extension", in: "3;a=\"b\";c\r\nabc\r\n0;x\r\n\r\n", content: "abc"},
		{name: "trailers", in: "0\r\nA: b\r\nC:d\r\n\r\nX", rest: "X"},
		{name: "CR LF in data", in: "4\r\n\r\n\r\n\r\n0\r\n\r\n", content: "\r\n\r\n"},
		{name: "bare LF after size", in: "5\nhello\r\n0\r\n\r\n", refused: true},
		{name: "bare CR after size", in: "5\rhello\r\n0\r\n\r\n", refused: true},
		{name: "bare LF in extension", in: "5;a\nhello\r\n0\r\n\r\n", refused: true},
		{name: "space before size", in: " 5\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "space after size", in: "5 \r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "prefix", in: "0x5\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "sign", in: "+5\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "negative", in: "-5\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "no size", in: "\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "only extension", in: ";a\r\n\r\n", refused: true},
		{name: "overflow", in: "10000000000000005\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "many zeros", in: strings.Repeat("0", maxDigits+1) + "\r\n\r\n", refused: true},
		{name: "longer than its size", in: "4\r\nhello\r\n0\r\n\r\n", refused: true},
		{name: "bare LF after data", in: "5\r\nhello\n0\r\n\r\n", refused: true},
		{name: "bare LF at the end", in: "0\r\n\n", refused: true},
		{name: "bare LF after trailer", in: "0\r\nA: b\n\r\n", refused: true},
		{name: "malformed trailer", in: "0\r\nA b: c\r\n\r\n", refused: true},
		{name: "folded trailer", in: "0\r\nA: b\r\n c\r\n\r\n", refused: true},
		{name: "long extension", in: "1;" + strings.Repeat("a", maxExtension+1) + "\r\nx\r\n0\r\n\r\n", refused: true},
		{name: "long trailers", in: "0\r\nA: " + strings.Repeat("a", maxTrailers) + "\r\n\r\n", refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 2, 3, 7, len(c.in)} {
				content, rest, done, err := decode([]byte(c.in), step)
				if c.refused {
					if err == nil {
						t.Errorf("step %d: accepted, content %q", step, content)
					}
					continue
				}
				if err != nil || !done || string(content) != c.content || string(rest) != c.rest {
					t.Errorf("step %d: content %q, rest %q, done %v, %v", step, content, rest, done, err)
				}
			}
		})
	}
}

// decode shows Chunks the input in pieces of so many bytes.
func decode(in []byte, step int) (content, rest []byte, done bool, err error) {
	var c Chunks
	for len(in) > 0 && !c.Done() {
		piece := in[:min(step, len(in))]
		n, data, err := c.Next(piece)
		if err != nil {
			return content, in, false, err
		}
		content = append(content, data...)
		in = in[n:]
	}
	return content, in, c.Done(), nil
}

// FuzzParseRequest holds that whoever reads an accepted head after us, here
// net/http, sees what we saw.
func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
		"GET http://x/y HTTP/1.0\r\nHost: x\r\nA:b\r\n\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, head string) {
		r, err := ParseRequest(head, nil)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Status < 400 || e.Status > 599 || e.Reason == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if strings.Count(head, "\n") != strings.Count(head, "\r\n") || strings.Count(head, "\r") != strings.Count(head, "\n") {
			t.Fatalf("accepted a bare CR or LF in %q", head)
		}
		std, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
		if err != nil {
			return // stricter than we are about URLs
		}
		if std.Method != r.Method || std.ContentLength != r.Length {
			t.Errorf("%q: %s of %d bytes; net/http sees %s of %d", head, r.Method, r.Length, std.Method, std.ContentLength)
		}
		if r.Host != "" && !strings.EqualFold(std.Host, r.Host) {
			t.Errorf("%q: host %q; net/http sees %q", head, r.Host, std.Host)
		}
		if chunked := len(std.TransferEncoding) > 0; chunked != (r.Length == Chunked) {
			t.Errorf("%q: chunked %v; net/http sees %v", head, !chunked, chunked)
		}
	})
}

// FuzzParseResponse holds the same for answers.
func FuzzParseResponse(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "GET")
	f.Add("HTTP/1.0 304 Not\r\nTransfer-Encoding: chunked\r\n\r\n", "HEAD")
	f.Fuzz(func(t *testing.T, head, method string) {
		r, err := ParseResponse(head, method, nil)
		if err != nil {
			return
		}
		std, err := http.ReadResponse(bufio.NewReader(strings.NewReader(head)), &http.Request{Method: method})
		if err != nil || r.Status < 200 {
			return
		}
		defer std.Body.Close()
		if std.StatusCode != r.Status {
			t.Errorf("%q: status %d; net/http sees %d", head, r.Status, std.StatusCode)
		}
		if r.Length > 0 && std.ContentLength != r.Length {
			t.Errorf("%q: %d bytes; net/http sees %d", head, r.Length, std.ContentLength)
		}
	})
}

// FuzzChunks holds that the size of the pieces makes no difference, and that
// net/http decodes what is accepted to the same content.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), 3)
	f.Add([]byte("3;a=b\r\nabc\r\n0\r\nA: b\r\n\r\nGET"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step < 1 {
			return
		}
		whole, rest, done, err := decode(in, max(len(in), 1))
		again, restAgain, doneAgain, errAgain := decode(in, step)
		if (err == nil) != (errAgain == nil) || err == nil && (!bytes.Equal(whole, again) || !bytes.Equal(rest, restAgain) || done != doneAgain) {
			t.Fatalf("%q in pieces of %d: %q %q %v %v, whole: %q %q %v %v", in, step, again, restAgain, doneAgain, errAgain, whole, rest, done, err)
		}
		if err != nil || !done {
			return
		}
		std, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(in)))
		if err == nil && !bytes.Equal(std, whole) {
			t.Fatalf("%q: %q; net/http sees %q", in, whole, std)
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	const head = "GET /api/items?page=2 HTTP/1.1\r\nHost: 8000-i1234567890abcdefghij.sbx.test\r\nUser-Agent: bench/1.0\r\n" +
		"Accept: */*\r\nAccept-Encoding: gzip\r\nCookie: session=0123456789abcdef\r\n\r\n"
	var fields Fields
	b.ReportAllocs()
	for b.Loop() {
		r, err := ParseRequest(head, fields[:0])
		if err != nil {
			b.Fatal(err)
		}
		fields = r.Fields
	}
}
