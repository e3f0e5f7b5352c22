package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// fakeHealth is a server on a host that may be unfit.
type fakeHealth struct{ unfit atomic.Pointer[errdef.Error] }

func (h *fakeHealth) Starting() bool { return false }

func (h *fakeHealth) Check(context.Context) error { return nil }

func (h *fakeHealth) Ready() error {
	if e := h.unfit.Load(); e != nil {
		return e
	}
	return nil
}

// TestNotReady holds that the service manager is told that the server is ready
// only once the host is fit, and until then why not, and to wait.
func TestNotReady(t *testing.T) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	told := func() string {
		t.Helper()
		if err := socket.SetReadDeadline(time.Now().Add(testmode.Patience())); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 4096)
		n, err := socket.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
	h := &fakeHealth{}
	h.unfit.Store(errdef.New(errdef.Unfit, "no_veth", "no veth").WithRemedy("load it,\nnow"))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	ctx, cancel := context.WithCancel(t.Context())
	served, first := make(chan error, 1), make(firstTrial)
	var tells atomic.Bool // what waits until it is ready was told
	go func() {
		served <- serveUntil(ctx, log, ln, edge.NewServer(edge.Options{Log: log}), h, first, func() { tells.Store(true) }, func() {})
	}()
	close(first)
	status := told()
	if !strings.Contains(status, "STATUS=not ready: no veth: load it, now\n") || !strings.Contains(status, "EXTEND_TIMEOUT_USEC=") || strings.Contains(status, "READY=1") || tells.Load() {
		t.Errorf("told %q while unfit, and what is for later: %v", status, tells.Load())
	}
	h.unfit.Store(nil)
	next := told()
	for strings.HasPrefix(next, "STATUS=not ready") {
		next = told()
	}
	if !strings.HasPrefix(next, "READY=1\n") || !tells.Load() {
		t.Errorf("told %q once fit, and what is for later: %v", next, tells.Load())
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestAnswerReady(t *testing.T) {
	for name, tt := range map[string]struct {
		unfit  error
		status int
		says   string
	}{
		"fit":   {nil, http.StatusOK, "ok\n"},
		"unfit": {errdef.New(errdef.Unfit, "no_veth", "no veth").WithRemedy("load it"), http.StatusServiceUnavailable, "no sandbox starts on this host: no veth: load it\n"},
	} {
		w := httptest.NewRecorder()
		answerReady(w, httptest.NewRequest(http.MethodGet, "/readyz", nil), nil, func() error { return tt.unfit })
		if w.Code != tt.status || w.Body.String() != tt.says {
			t.Errorf("%s: %d %q", name, w.Code, w.Body)
		}
	}
}

// TestNotReadyBeforeTrial holds that nobody is told that a server is ready before its
// trial has ended, whatever is known against the host until then.
func TestNotReadyBeforeTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		gone, first := make(firstTrial), make(firstTrial)
		var answered, unanswered atomic.Int32
		probe := func(of firstTrial, n *atomic.Int32) {
			w := httptest.NewRecorder()
			answerReady(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil), of, func() error { return nil })
			if w.Body.Len() > 0 {
				n.Add(1)
			}
		}
		go probe(first, &answered)
		go probe(gone, &unanswered)
		synctest.Wait()
		if answered.Load() != 0 {
			t.Error("a probe was answered before the trial had ended")
		}
		close(first)
		synctest.Wait()
		if answered.Load() != 1 {
			t.Error("a probe was not answered when the trial had ended")
		}
		cancel()
		synctest.Wait()
		if unanswered.Load() != 0 {
			t.Error("a client that was gone was answered")
		}
	})
}

func TestCannotStart(t *testing.T) {
	err := cannotStart(errdef.New(errdef.Unfit, "no_veth", "no veth").WithRemedy("load it"))
	if e, _ := errors.AsType[*errdef.Error](err); e == nil || e.Code != "no_veth" || e.Remedy != "load it" {
		t.Errorf("%v", err)
	}
	err = cannotStart(errors.New("a fault"))
	if e, _ := errors.AsType[*errdef.Error](err); e == nil || !strings.Contains(e.Message, "a fault") || !strings.Contains(e.Remedy, "doctor") {
		t.Errorf("%v", err)
	}
}

// TestStopWaitsForStarts holds how long requests under way may take on a server that stops: those
// that wait for a sandbox to start get its answer.
func TestStopWaitsForStarts(t *testing.T) {
	for starts, want := range map[time.Duration]time.Duration{
		0:                       stopGrace,
		3 * time.Second:         3*time.Second + stopGrace,
		startsGrace + time.Hour: startsGrace + stopGrace,
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := untilAnswered(t.Context(), func() bool { return time.Since(began) < starts })
			defer cancel()
			<-ctx.Done()
			if took := time.Since(began); took < want-stopGrace/10 || took > want {
				t.Errorf("with a sandbox that starts for %s, requests have %s, want %s", starts, took, want)
			}
		})
	}
}
