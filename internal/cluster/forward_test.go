package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestForward passes requests on as they are, and never takes half an answer, or a client's
// own fault, for what the other server has said.
func TestForward(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/half": // of a length that was told
			w.Header().Set("Content-Length", "100000")
			fmt.Fprint(w, strings.Repeat("x", 50000))
			panic(http.ErrAbortHandler)
		case "/part": // without one
			fmt.Fprint(w, strings.Repeat("x", 50000))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/none":
			panic(http.ErrAbortHandler)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, "%s %s %s %q %s", r.Method, r.Host, r.URL.RequestURI(), r.Header[edge.HeaderForwarded], body)
	}))
	t.Cleanup(other.Close)
	records := &records{self: "srv_a"}
	c, err := Open(t.Context(), Options{
		Store: records, Has: func(string) bool { return false }, Admits: func(*http.Request) bool { return true }, Log: slog.New(slog.DiscardHandler), Relay: func(http.Header) {},
		Transport: func(string) http.RoundTripper {
			return &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
				return net.Dial("tcp", other.Listener.Addr().String())
			}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 16)
	ours := edge.NewServer(edge.Options{Log: slog.New(slog.DiscardHandler), Control: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := c.Forward(w, r, "srv_b")
		failed <- err
		if err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
		}
	})})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = ours.Serve(ln) }()
	t.Cleanup(func() { _ = ours.Shutdown(t.Context()) })

	ended := func() error {
		t.Helper()
		select {
		case err := <-failed:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("the request goes on")
			return nil
		}
	}
	ask := func(request string) (*http.Response, string, error) {
		t.Helper()
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return nil, "", err
		}
		body, err := io.ReadAll(resp.Body)
		return resp, string(body), err
	}
	_, got, err := ask("POST /x?limit=1;y&z=%zz HTTP/1.1\r\nHost: localhost\r\nDrowse-Forwarded: mine\r\nContent-Length: 4\r\n\r\ntext")
	if want := `POST localhost /x?limit=1;y&z=%zz ["for=127.0.0.1; secure=0; hop=1" "mine"] text`; got != want || err != nil {
		t.Errorf("the other server got %s, %v; want %s", got, err, want)
	}
	if err := ended(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/half", "/part"} {
		if resp, body, err := ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"); err == nil {
			t.Errorf("%s: half an answer looks whole: %v, %d bytes", path, resp.Status, len(body))
		}
	}
	if resp, _, err := ask("GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil || resp.StatusCode != http.StatusTeapot {
		t.Errorf("no answer is %v, %v", resp, err)
	} else if err := ended(); errdef.CodeOf(err) != "server_unreachable" || !strings.Contains(err.Error(), "may have been carried out") || errors.Unwrap(err) == nil {
		t.Errorf("no answer: %v", err)
	}
	_, _, _ = ask("POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n")
	if err := ended(); errdef.CodeOf(err) != "invalid_request" && !errors.Is(err, t.Context().Err()) {
		t.Errorf("a body that is none: %v", err)
	}
}

// TestHolderOf: only who has a good key is led to another server, and only by what names a
// sandbox.
func TestHolderOf(t *testing.T) {
	const id = "i00000000000000000001"
	r := &records{self: "srv_a", owners: map[string]string{id: "srv_b"}}
	c := open(t, r)
	taken := 0
	c.o.TakeOver = func(context.Context, string) error { taken++; return nil }
	for _, tt := range []struct {
		method, path string
		admit, sees  bool
		left         time.Duration // of the lease of srv_b
		want         string
		taken        int
	}{
		{"GET", "/v1/sandboxes/" + id, true, true, 1, "srv_b", 0},
		{"GET", "/v1/sandboxes/" + id, true, false, 1, "srv_b", 0}, // which says that there is none
		{"POST", "/sandboxes/" + id + "-client/pause", true, true, 1, "srv_b", 0},
		{"GET", "/v1/sandboxes/" + id, false, false, 1, "", 0},
		{"GET", "/v1/snapshots/" + id + "-x", true, true, 1, "", 0},
		{"GET", "/v1/sandboxes/", true, true, 1, "", 0},
		{"GET", "/v1/sandboxes", true, true, 1, "", 0},
		{"GET", "/", true, true, 1, "", 0},
		// What can be read is stored, and for an end nothing is needed; for the rest it is taken over by who has it.
		{"GET", "/v1/sandboxes/" + id, true, true, 0, "", 0},
		{"GET", "/v1/sandboxes/" + id + "/lifecycle", true, true, 0, "", 0},
		{"GET", "/v1/sandboxes/" + id + "/events", true, true, 0, "", 0},
		{"GET", "/v1/sandboxes/" + id + "/snapshots", true, true, 0, "", 0},
		{"GET", "/v1/sandboxes/" + id + "/snapshots", true, true, 1, "srv_b", 0},
		{"POST", "/v1/sandboxes/" + id + "/snapshots", true, true, 0, "", 1},
		{"GET", "/v1/sandboxes/" + id + "/log", true, true, 0, "", 1},
		{"DELETE", "/v1/sandboxes/" + id, true, true, 0, "", 0},
		{"DELETE", "/v1/sandboxes/" + id + "/holds/h", true, true, 0, "", 1},
		{"DELETE", "/v1/sandboxes/" + id + "/holds/h", true, false, 0, "", 0},
		{"DELETE", "/v1/sandboxes/" + id + "/holds/h", false, false, 0, "", 0},
	} {
		c.o.Admits = func(*http.Request) bool { return tt.admit }
		c.o.AdmitsTo = func(*http.Request, string) bool { return tt.sees }
		r.servers, taken = []store.Server{{ID: "srv_b", Left: tt.left}}, 0
		if err := c.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		testmode.Eventually(t, "the take before is forgotten", func() bool {
			c.takes.mu.Lock()
			defer c.takes.mu.Unlock()
			return len(c.takes.now) == 0
		})
		got, err := c.HolderOf(httptest.NewRequest(tt.method, tt.path, nil))
		if got != tt.want || err != nil || taken != tt.taken {
			t.Errorf("%+v: %q, %v, taken over %d times", tt, got, err, taken)
		}
	}
}

// TestPresents: what others have changed counts for whoever shows something that a server has given.
func TestPresents(t *testing.T) {
	for want, requests := range map[bool][]*http.Request{
		true: {
			{Header: http.Header{"X-Api-Key": {"e2b_00"}}, URL: &url.URL{}},
			{Header: http.Header{"Authorization": {"Bearer token"}}, URL: &url.URL{}},
			{Header: http.Header{}, URL: &url.URL{RawQuery: "key=k&signature=s"}},
		},
		false: {{Header: http.Header{}, URL: &url.URL{RawQuery: "key=k"}}},
	} {
		for _, r := range requests {
			caught := false
			c := &Cluster{o: Options{CatchUp: func(context.Context) { caught = true }}}
			c.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(httptest.NewRecorder(), r)
			if caught != want {
				t.Errorf("%v %s: %v, want %v", r.Header, r.URL, caught, want)
			}
		}
	}
}

// TestUpload: what was uploaded to a server comes to another whole, or with the reason.
func TestUpload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "upload")
	content := strings.Repeat("archive ", 100_000)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), Options{Store: &records{self: "srv_a"}, Log: slog.New(slog.DiscardHandler), Uploads: func(template, hash string) (*os.File, error) {
		if template != "t/1" || hash != "h" {
			return nil, errdef.New(errdef.Invalid, "build_files_missing", "no files %s of %s", hash, template).WithRemedy("upload them")
		}
		return os.Open(path)
	}})
	if err != nil {
		t.Fatal(err)
	}
	var mangle func(*http.Response)
	transport := asking(func(out *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		answer(c, w, out)
		resp := w.Result()
		if mangle != nil {
			mangle(resp)
		}
		return resp, nil
	})
	r, err := Upload(t.Context(), transport, "t/1", "h")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != content {
		t.Errorf("%d bytes came, %v", len(got), err)
	}
	_, err = Upload(t.Context(), transport, "t/1", "other")
	if errdef.CodeOf(err) != "build_files_missing" || !strings.Contains(err.Error(), "no files other of t/1") {
		t.Errorf("files that are not there: %v", err)
	}
	mangle = func(resp *http.Response) { resp.StatusCode, resp.Body = 500, io.NopCloser(strings.NewReader("oops")) }
	if _, err := Upload(t.Context(), transport, "t/1", "h"); errdef.CodeOf(err) != codeUnreachable {
		t.Errorf("an answer that is none: %v", err)
	}
	silent := asking(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	if _, err := Upload(t.Context(), silent, "t/1", "h"); errdef.CodeOf(err) != codeUnreachable {
		t.Errorf("no answer: %v", err)
	}
}
