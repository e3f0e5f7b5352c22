package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
)

const key = "e2b_0123456789abcdef0123456789abcdef01234567"

func newClient(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: url, APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t *testing.T, c *client.Client, o client.CreateOptions) *client.Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestNewRefusesBadURLs(t *testing.T) {
	for _, url := range []string{"localhost:3000", "ftp://x", "http://", "http://a b"} {
		if _, err := client.New(client.Options{URL: url}); err == nil {
			t.Errorf("New(%q) succeeded", url)
		}
	}
}

// TestOffIsSaid: what the server's defaults may turn on can be turned off, and is
// not mentioned where nobody said anything.
func TestOffIsSaid(t *testing.T) {
	var sent map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = nil
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, `{"id": "iabc"}`)
	}))
	defer srv.Close()
	c := newClient(t, srv.URL)
	create(t, c, client.CreateOptions{})
	if len(sent) != 0 {
		t.Errorf("sent %v for nothing", sent)
	}
	create(t, c, client.CreateOptions{AutoResume: new(false), RefreshOnActivity: new(false), FilesystemFallback: new(false)})
	want := map[string]any{"autoResume": false, "refreshOnActivity": false, "filesystemFallback": false}
	if !maps.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
	create(t, c, client.CreateOptions{RefreshOnRequests: true})
	if want := map[string]any{"refreshOnActivity": "requests"}; !maps.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
}

func TestListRefusesWhatCannotBeAsked(t *testing.T) {
	c := newClient(t, "http://127.0.0.1:1")
	_, err := c.List(t.Context(), client.ListOptions{Metadata: map[string]string{"a=b": "c"}})
	if !errors.Is(err, client.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// aborting is an agent whose commands are cut by the server in front of it.
type aborting struct {
	processconnect.UnimplementedProcessHandler
	code connect.Code
}

func (a aborting) Start(context.Context, *connect.Request[process.StartRequest], *connect.ServerStream[process.StartResponse]) error {
	return connect.NewError(a.code, errors.New("the sandbox ended: OutOfMemory"))
}

// TestCutStreams: the server ends a stream with one of two codes, after E2B's SDKs.
// Here both are the same.
func TestCutStreams(t *testing.T) {
	for _, code := range []connect.Code{connect.CodeUnavailable, connect.CodeAborted} {
		t.Run(code.String(), func(t *testing.T) {
			_, agent := processconnect.NewProcessHandler(aborting{code: code})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/v1/") {
					_, _ = io.WriteString(w, `{"id":"ione","state":"running"}`)
					return
				}
				agent.ServeHTTP(w, r)
			}))
			defer srv.Close()
			_, err := create(t, newClient(t, srv.URL), client.CreateOptions{}).Run(t.Context(), client.Command{Args: []string{"true"}})
			if !errors.Is(err, client.ErrInterrupted) || !strings.Contains(err.Error(), "OutOfMemory") {
				t.Errorf("got %v, want ErrInterrupted and why", err)
			}
		})
	}
}

// TestHostileAgents: what an agent in a sandbox answers takes bounded memory of who
// asks.
func TestHostileAgents(t *testing.T) {
	sent := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/ListDir"):
			w.Header().Set("Content-Type", "application/proto")
			_, _ = w.Write(bytes.Repeat([]byte{0x0a, 0}, 1<<20))
		case strings.HasSuffix(r.URL.Path, "/Start"):
			w.Header().Set("Content-Type", "application/connect+proto")
			_, _ = io.WriteString(w, "\x00\xff\xff\xff\xff")
			for zeros := make([]byte, 1<<20); ; {
				if _, err := w.Write(zeros); err != nil || r.Context().Err() != nil {
					return
				}
				if sent += len(zeros); sent > 256<<20 {
					return
				}
			}
		default:
			fmt.Fprint(w, `{"id":"i1"}`)
		}
	}))
	defer srv.Close()
	sb := create(t, newClient(t, srv.URL), client.CreateOptions{})
	for name, ask := range map[string]func() error{
		"a list of empty entries": func() error { _, err := sb.ListFiles(t.Context(), "/", 1); return err },
		"a frame of 4 GiB":        func() error { _, err := sb.Run(t.Context(), client.Command{Args: []string{"true"}}); return err },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := ask()
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: it is taken", name)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 64<<20 {
			t.Errorf("%s: %d MiB were allocated", name, spent>>20)
		}
	}
}

func TestErrorClasses(t *testing.T) {
	classes := []error{
		client.ErrInvalid, client.ErrUnauthorized, client.ErrForbidden, client.ErrNotFound, client.ErrConflict,
		client.ErrNotRunning, client.ErrLimit, client.ErrUnavailable, client.ErrUnreachable, client.ErrInterrupted,
	}
	for _, tt := range []struct {
		status int
		body   string
		want   []error
		text   string
		code   string
	}{
		{400, `{"error":{"code":"invalid_request","message":"bad","cause":null,"remediation":null,"context":{}}}`, []error{client.ErrInvalid}, "bad", "invalid_request"},
		{400, `{"error":{"code":"timeout_too_large","message":"m"}}`, []error{client.ErrInvalid, client.ErrLimit}, "m", "timeout_too_large"},
		{404, `{"error":{"code":"sandbox_terminated","message":"m"}}`, []error{client.ErrNotFound}, "m", "sandbox_terminated"},
		{409, `{"error":{"code":"not_running","message":"m"}}`, []error{client.ErrConflict, client.ErrNotRunning}, "m", "not_running"},
		{503, `{"error":{"code":"pause_failed","message":"m"}}`, []error{client.ErrUnavailable}, "m", "pause_failed"},
		{400, `{"code":400,"message":"bad"}`, []error{client.ErrInvalid}, "bad", ""},
		{400, `{"code":400,"message":"m","error_code":"timeout_too_large"}`, []error{client.ErrInvalid, client.ErrLimit}, "m", "timeout_too_large"},
		{401, `{"code":401,"message":"m"}`, []error{client.ErrUnauthorized}, "m", ""},
		{403, `{"code":403,"message":"m"}`, []error{client.ErrForbidden}, "m", ""},
		{404, `{"code":404,"message":"m"}`, []error{client.ErrNotFound}, "m", ""},
		{409, `{"code":409,"message":"m"}`, []error{client.ErrConflict}, "m", ""},
		{429, `{"code":429,"message":"m"}`, []error{client.ErrLimit}, "m", ""},
		{507, `{"code":507,"message":"m"}`, []error{client.ErrLimit}, "m", ""},
		{503, `{"code":503,"message":"m","error_code":"x"}`, []error{client.ErrUnavailable}, "m", "x"},
		{502, `{"sandboxId":"a","message":"m","code":502}`, []error{client.ErrNotRunning, client.ErrUnavailable}, "m", "sandbox_not_running"},
		{502, `{"sandboxId":"a","message":"m","code":502,"error_code":"not_resumable","reason":"idle","pausedAt":"t"}`, []error{client.ErrNotRunning, client.ErrUnavailable}, "m", "not_resumable"},
		{502, `{"sandboxId":"a","message":"m","code":502,"error_code":"out_of_memory","reason":"OutOfMemory","endedAt":"t"}`, []error{client.ErrNotRunning, client.ErrUnavailable}, "m", "out_of_memory"},
		{502, `{"sandboxId":"a","message":"m","port":80,"code":502}`, []error{client.ErrUnavailable}, "m", "port_closed"},
		{500, `<html>`, nil, "the server answered 500 Internal Server Error", ""},
		{302, ``, nil, "the server answered 302 Found", ""},
	} {
		t.Run(fmt.Sprint(tt.status, tt.body), func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/elsewhere" {
					t.Error("followed a redirect")
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			defer srv.Close()
			err := newClient(t, srv.URL).Kill(t.Context(), "abc")
			e, ok := errors.AsType[*client.Error](err)
			if !ok || e.Status != tt.status || e.Code != tt.code || e.Error() != tt.text {
				t.Fatalf("got %#v", err)
			}
			if strings.Contains(tt.body, `"sandboxId":"a"`) && e.Context["sandbox"] != "a" {
				t.Errorf("context %v, want the sandbox", e.Context)
			}
			for _, class := range classes {
				want := false
				for _, w := range tt.want {
					want = want || w == class
				}
				if errors.Is(err, class) != want {
					t.Errorf("errors.Is(err, %q) = %v", class, !want)
				}
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	err = newClient(t, "http://"+ln.Addr().String()).Health(t.Context())
	if !errors.Is(err, client.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	if !strings.HasSuffix(err.Error(), "http://"+ln.Addr().String()+": connection refused") {
		t.Errorf("got text %q", err)
	}
}

func TestBadIDsMakeNoRequest(t *testing.T) {
	c := newClient(t, "http://127.0.0.1:1")
	for _, id := range []string{"", "..", "a/b", "A", "a b", "a-b-c", "a\r\nX: y"} {
		if err := c.Kill(t.Context(), id); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("Kill(%q): got %v, want ErrInvalid", id, err)
		}
		if _, err := c.Connect(t.Context(), id, 0); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("Connect(%q): got %v, want ErrInvalid", id, err)
		}
	}
}

func TestShellCode(t *testing.T) {
	for _, tt := range []struct {
		exit client.Exit
		want int
	}{
		{client.Exit{}, 0},
		{client.Exit{Code: 7}, 7},
		{client.Exit{Code: -1, Signal: syscall.SIGKILL}, 137},
	} {
		if got := tt.exit.ShellCode(); got != tt.want {
			t.Errorf("%+v: got %d, want %d", tt.exit, got, tt.want)
		}
	}
}

// TestWhereRequestsGo tells by which hosts a sandbox is named in headers.
func TestWhereRequestsGo(t *testing.T) {
	const id = "iabc"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id": "`+id+`"}`)
	}))
	defer srv.Close()
	for _, c := range []struct {
		sandboxURL string
		byHeader   bool
	}{
		{"", true}, // the server's, which is an address
		{"http://localhost:1", true},
		{"https://LOCALHOST", true},
		{"http://[::1]:1", true},
		{"https://sandbox.example.com", true},
		{"https://api.example.com", false},
		{"https://sandboxes.example.com", false},
		{"https://localhost.example.com", false},
	} {
		sut, err := client.New(client.Options{URL: srv.URL, SandboxURL: c.sandboxURL})
		if err != nil {
			t.Fatal(err)
		}
		sb, _, err := sut.Open(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		req, err := sb.Request(t.Context(), http.MethodGet, 8000, "/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		path, header := "/s/"+id+"/8000/x", ""
		if c.byHeader {
			path, header = "/x", id
		}
		if req.URL.Path != path || req.Header.Get("E2b-Sandbox-Id") != header {
			t.Errorf("%s: got path %s and header %q", c.sandboxURL, req.URL.Path, req.Header.Get("E2b-Sandbox-Id"))
		}
	}
}
