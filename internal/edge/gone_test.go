package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const hangUpWord = "0123456789abcdef0123456789abcdef"

// terminals is the agent of a sandbox with a terminal, which says something all the
// time and tells hungUp when it is hung up.
func terminals(hungUp chan<- string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == agentapi.PathHangUp {
			hungUp <- r.Method + " " + r.Header.Get(agentapi.HeaderHangUp)
			return
		}
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "a line of text\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}
}

// openTerminal opens a stream of the agent, by a client that may have a word.
func openTerminal(t *testing.T, url string, client *http.Client, word string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/process.Process/Start", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(headerSandbox, "ione")
	req.Header.Set(headerPort, fmt.Sprint(agentapi.Port))
	if word != "" {
		req.Header.Set(agentapi.HeaderHangUp, word)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	return func() { cancel(); resp.Body.Close() }
}

// The agent is told that a client has gone which has asked for that, and not that
// its stream was cut, or that the server ends.
func TestHangUp(t *testing.T) {
	for proto, client := range map[string]*http.Client{"HTTP/1.1": {Transport: &http.Transport{DisableKeepAlives: true}}, "HTTP/2": http2Client(t)} {
		t.Run(proto, func(t *testing.T) {
			hungUp := make(chan string, 10)
			f := newFleet(t, terminals(hungUp))
			s := NewServer(Options{Sandboxes: f, Domain: "example.test", Log: discardLog})
			url := f.run(t, s)
			wantNone := func(what string) {
				t.Helper()
				testmode.Eventually(t, "all have left", func() bool { a, n := f.seen(); return len(a) == n })
				if len(hungUp) > 0 {
					t.Errorf("%s: the agent was told %q", what, <-hungUp)
				}
			}
			for _, word := range []string{"", "short", "not/letters/and/digits/alone"} {
				leave := openTerminal(t, url, client, word)
				leave()
				wantNone("the word " + word)
			}
			leave := openTerminal(t, url, client, hangUpWord)
			leave()
			select {
			case got := <-hungUp:
				if got != "POST "+hangUpWord {
					t.Errorf("the agent was told %q", got)
				}
			case <-time.After(testmode.Patience()):
				t.Fatal("the agent was not told")
			}
			leave = openTerminal(t, url, client, hangUpWord)
			defer leave()
			over, cancel := context.WithCancel(t.Context())
			cancel()
			_ = s.Shutdown(over)
			wantNone("the server has ended")
		})
	}
}

func TestNoHangUpAfterACut(t *testing.T) {
	hungUp := make(chan string, 10)
	f := newFleet(t, terminals(hungUp))
	cut := make(chan struct{})
	f.cut = cut
	leave := openTerminal(t, f.serve(t), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, hangUpWord)
	close(cut)
	leave()
	testmode.Eventually(t, "it has left", func() bool { a, n := f.seen(); return len(a) == n })
	if len(hungUp) > 0 {
		t.Errorf("the agent was told %q", <-hungUp)
	}
}

// vanish has a connection's kernel answer nothing any more, as if the network were cut.
func vanish(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A client that vanishes is noticed, whether something is said to it or not; one that
// reads nothing has not vanished.
func TestClientsThatVanish(t *testing.T) {
	for _, c := range []struct {
		name   string
		http2  bool
		quiet  bool
		stuck  bool
		goneBy bool
	}{
		{name: "spoken to", goneBy: true},
		{name: "quiet", quiet: true, goneBy: true},
		{name: "spoken to by HTTP/2", http2: true, goneBy: true},
		{name: "reads nothing", stuck: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hungUp := make(chan string, 10)
			talk := terminals(hungUp)
			f := newFleet(t, func(w http.ResponseWriter, r *http.Request) {
				if c.quiet && r.URL.Path != agentapi.PathHangUp {
					_, _ = io.WriteString(w, "a line of text\n")
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					return
				}
				talk(w, r)
			})
			s := NewServer(Options{Sandboxes: f, Domain: "example.test", Log: discardLog})
			s.goneAfter = time.Second
			url := f.run(t, s)
			var conn net.Conn
			transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				var err error
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return conn, err
			}}
			if c.http2 {
				transport.Protocols = new(http.Protocols)
				transport.Protocols.SetUnencryptedHTTP2(true)
			}
			leave := openTerminal(t, url, &http.Client{Transport: transport}, hangUpWord)
			defer leave()
			if !c.stuck {
				vanish(t, conn)
			}
			select {
			case <-hungUp:
				if !c.goneBy {
					t.Error("it was taken for gone")
				}
			case <-time.After(map[bool]time.Duration{true: testmode.Patience(), false: 4 * time.Second}[c.goneBy]):
				if c.goneBy {
					t.Error("nobody noticed")
				}
			}
		})
	}
}
