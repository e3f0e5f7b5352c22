package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// careless serves a connection like a server that never reads a body: what
// follows a head is the next request. It answers with the path it was asked for.
func careless(_ int, c net.Conn, br *bufio.Reader) {
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return
		}
		for end := ""; end != "\r\n"; {
			if end, err = br.ReadString('\n'); err != nil {
				return
			}
		}
		path, _, _ := strings.Cut(strings.TrimPrefix(line[strings.IndexByte(line, ' ')+1:], " "), " ")
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path), path)
	}
}

// TestNobodyGetsARequestFromAnothersBody: a server that ignores bodies takes
// the body for a request. That must not be the next client's.
func TestNobodyGetsARequestFromAnothersBody(t *testing.T) {
	hidden := "GET /attack HTTP/1.1\r\nHost: localhost\r\nX: "
	bodies := map[string]string{
		"length": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(hidden), hidden),
		"chunks": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden),
	}
	for _, method := range []string{"POST", "GET", "OPTIONS", "DELETE"} {
		for framing, body := range bodies {
			t.Run(method+" "+framing, func(t *testing.T) {
				f := newFleet(t, nil)
				rawUpstream(t, f, careless)
				url := f.serve(t)
				for i := range 6 {
					attacker, abr := talk(t, url)
					fmt.Fprint(attacker, rawHead(method+" /first HTTP/1.1")+body)
					readAnswer(t, abr, method)
					victim, vbr := talk(t, url)
					fmt.Fprint(victim, rawHead("GET /victim HTTP/1.1")+"Cookie: theirs\r\n\r\n")
					if _, got := readAnswer(t, vbr, "GET"); got != "/victim" {
						t.Fatalf("victim %d was answered for %q", i, got)
					}
				}
			})
		}
	}
}

// TestBodyInPartsIsNobodysRequest: the same with a server that answers before
// the body has come.
func TestBodyInPartsIsNobodysRequest(t *testing.T) {
	f := newFleet(t, nil)
	rawUpstream(t, f, careless)
	url := f.serve(t)
	hidden := "GET /attack HTTP/1.1\r\nHost: localhost\r\nX: "
	attacker, abr := talk(t, url)
	fmt.Fprint(attacker, rawHead("POST /first HTTP/1.1")+fmt.Sprintf("Content-Length: %d\r\n\r\n", len(hidden)))
	if _, err := abr.Peek(1); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(attacker, hidden)
	readAnswer(t, abr, "POST")
	for range 3 {
		victim, vbr := talk(t, url)
		fmt.Fprint(victim, rawHead("GET /victim HTTP/1.1")+"\r\n")
		if _, got := readAnswer(t, vbr, "GET"); got != "/victim" {
			t.Fatalf("the victim was answered for %q", got)
		}
	}
}

// TestUnaskedAnswersReachNobody: what a server sends beyond its answer is not
// the answer to another request.
func TestUnaskedAnswersReachNobody(t *testing.T) {
	const own, second = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
	for name, c := range map[string]struct {
		method, first, late string
	}{
		"twice at once":          {"GET", own + second, ""},
		"twice":                  {"GET", own, second},
		"a body for HEAD":        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", second},
		"a late body for HEAD":   {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "other"},
		"a body for 204":         {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", second},
		"a body for 304":         {"GET", "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", second},
		"an answer and an end":   {"GET", own, "end"},
		"more than was promised": {"GET", own, "more"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
			late := make(chan struct{})
			rawUpstream(t, f, func(n int, conn net.Conn, br *bufio.Reader) {
				for i := 0; ; i++ {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					switch {
					case n == 0 && i == 0:
						_, _ = io.WriteString(conn, c.first)
						time.Sleep(20 * time.Millisecond) // the edge has given the connection back
						if c.late == "end" {
							close(late)
							return
						}
						_, _ = io.WriteString(conn, c.late)
						close(late)
					default:
						_, _ = io.WriteString(conn, own)
					}
				}
			})
			url := f.serve(t)
			conn, br := talk(t, url)
			fmt.Fprint(conn, rawHead(c.method+" / HTTP/1.1")+"\r\n")
			readAnswer(t, br, c.method)
			<-late
			for range 3 {
				if got := body(t, ask(t, url, "/", openPort, nil)); got != "own" {
					t.Fatalf("another client was answered %q", got)
				}
			}
		})
	}
}

// TestLateBodyOfHEADReachesNobody: a server that sends a body for HEAD may do
// so after the next request could have come.
func TestLateBodyOfHEADReachesNobody(t *testing.T) {
	f := newFleet(t, nil)
	var conns atomic.Int64
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		conns.Add(1)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
			if r.Method == http.MethodHead {
				time.Sleep(50 * time.Millisecond)
			}
			_, _ = io.WriteString(c, "own")
		}
	})
	url := f.serve(t)
	conn, br := talk(t, url)
	fmt.Fprint(conn, rawHead("HEAD / HTTP/1.1")+"\r\n")
	readAnswer(t, br, "HEAD")
	if resp := ask(t, url, "/", openPort, nil); resp.StatusCode != http.StatusOK || body(t, resp) != "own" {
		t.Errorf("another client was answered %d", resp.StatusCode)
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections, want one for HEAD and one more", n)
	}
}

// TestCrowdGetsNoUsedUpConnection: a connection that goes from one request to
// another that waits for it is looked at as well.
func TestCrowdGetsNoUsedUpConnection(t *testing.T) {
	f := newFleet(t, nil)
	own := strings.Repeat("own ", 2000)
	rawUpstream(t, f, func(_ int, c net.Conn, br *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(br); err != nil {
				return
			}
			time.Sleep(2 * time.Millisecond)
			// The edge reads no more of a long body than that, and leaves the rest.
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 8000\r\n\r\n"+own+"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
		}
	})
	url := f.serve(t)
	done := make(chan string, 200)
	for range cap(done) {
		go func() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				done <- err.Error()
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, rawHead("GET / HTTP/1.1")+"Connection: close\r\n\r\n")
			all, _ := io.ReadAll(conn)
			_, got, _ := strings.Cut(string(all), "\r\n\r\n")
			done <- got
		}()
	}
	for range cap(done) {
		if got := <-done; got != own {
			t.Errorf("a client was answered %.20q", got)
		}
	}
}

// TestLookingAtAKeptConnectionAllocatesNothing: every request pays for it.
func TestLookingAtAKeptConnectionAllocatesNothing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	up := &upstream{stream: newStream(conn)}
	up.alive()
	if n := testing.AllocsPerRun(100, func() {
		if !up.alive() {
			t.Fatal("the connection is open and quiet")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
