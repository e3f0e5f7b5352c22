package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var errAsleep = errors.New("the sandbox was put to sleep")

// inside is a sandbox whose agent is a handler.
type inside struct {
	agent    *httptest.Server
	refusal  error
	cut      chan struct{}
	open     atomic.Int32
	progress atomic.Int64
	asked    supervisor.Access
	refuse   int // connections, before one is accepted
}

func newInside(t *testing.T, h http.HandlerFunc) *inside {
	in := &inside{agent: httptest.NewServer(h), cut: make(chan struct{})}
	t.Cleanup(in.agent.Close)
	return in
}

func (in *inside) EnvdToken(id string) string { return "token-of-" + id }

func (in *inside) Acquire(_ context.Context, _ string, a supervisor.Access) (*supervisor.Lease, error) {
	in.asked = a
	if in.refusal != nil {
		return nil, in.refusal
	}
	in.open.Add(1)
	var released atomic.Bool
	return &supervisor.Lease{
		Dial: func(ctx context.Context, _ int) (net.Conn, error) {
			if in.refuse > 0 {
				in.refuse--
				return nil, syscall.ECONNREFUSED
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", in.agent.Listener.Addr().String())
		},
		Progress: func(n int) { in.progress.Add(int64(n)) },
		Cut:      in.cut, Why: func() error { return errAsleep },
		Release: func() {
			if released.CompareAndSwap(false, true) {
				in.open.Add(-1)
			}
		},
	}, nil
}

// closed waits until all leases are returned.
func (in *inside) closed(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(testmode.Patience()); in.open.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a lease is still open")
		}
	}
}

func TestRequestIsAnAccessUntilItsAnswerEnds(t *testing.T) {
	in := newInside(t, func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		io.WriteString(w, r.Header.Get(agentapi.HeaderAccessToken)+" "+user+" "+r.URL.RequestURI())
	})
	in.refuse = 2
	res, err := Guest{Sandboxes: in, ID: "i1", Actor: "key:k", User: "root"}.Client(agentapi.Port).Get(URL("/files?path=%2Fa"))
	if err != nil {
		t.Fatal(err)
	}
	if in.open.Load() != 1 {
		t.Error("the lease was returned before the answer was read")
	}
	data, err := io.ReadAll(res.Body)
	if err != nil || string(data) != "token-of-i1 root /files?path=%2Fa" {
		t.Errorf("%q, %v", data, err)
	}
	in.closed(t)
	res.Body.Close()
	if in.asked != (supervisor.Access{Port: agentapi.Port, Path: "/files", Actor: "key:k"}) {
		t.Errorf("asked for %+v", in.asked)
	}
	if in.progress.Load() == 0 {
		t.Error("no bytes were counted")
	}
}

func TestRefusalKeepsItsClass(t *testing.T) {
	in := newInside(t, nil)
	in.refusal = errdef.New(errdef.WrongState, "auto_resume_off", "it sleeps")
	g := Guest{Sandboxes: in, ID: "i1"}
	if _, err := g.Client(80).Get(URL("/")); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("HTTP: %v", err)
	}
	if _, err := g.Processes().List(t.Context(), connect.NewRequest(&process.ListRequest{})); !errdef.Is(err, errdef.WrongState) {
		t.Errorf("RPC: %v", err)
	}
	stream, err := g.Processes().Start(t.Context(), connect.NewRequest(&process.StartRequest{}))
	if err == nil {
		stream.Receive()
		err = stream.Err()
	}
	if !errdef.Is(err, errdef.WrongState) || !in.asked.Stream {
		t.Errorf("stream: %v, %+v", err, in.asked)
	}
}

func TestCutEndsWhatIsUnderWay(t *testing.T) {
	in := newInside(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	res, err := Guest{Sandboxes: in, ID: "i1"}.Client(80).Get(URL("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	close(in.cut)
	if _, err := io.ReadAll(res.Body); !errors.Is(err, errAsleep) {
		t.Errorf("after the cut: %v", err)
	}
	in.closed(t)
}

func TestCutReturnsTheLeaseOfAnAnswerThatNobodyReads(t *testing.T) {
	in := newInside(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("x", 1<<20)) })
	res, err := Guest{Sandboxes: in, ID: "i1"}.Client(80).Get(URL("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	close(in.cut)
	in.closed(t)
}

// TestManyEntriesAreRefused: an agent answers with empty entries, of two bytes each,
// which take a hundred times as much memory.
func TestManyEntriesAreRefused(t *testing.T) {
	in := newInside(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write(bytes.Repeat([]byte{0x0a, 0}, 1<<20-1))
	})
	g := Guest{Sandboxes: in, ID: "i1"}
	for name, ask := range map[string]func() error{
		"a directory": func() error {
			_, err := g.Files().ListDir(t.Context(), connect.NewRequest(&filesystem.ListDirRequest{Path: "/"}))
			return err
		},
		"processes": func() error {
			_, err := g.Processes().List(t.Context(), connect.NewRequest(&process.ListRequest{}))
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := ask()
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: it is taken", name)
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 32<<20 {
			t.Errorf("%s: %d MiB were allocated", name, spent>>20)
		}
	}
	in.closed(t)
}
