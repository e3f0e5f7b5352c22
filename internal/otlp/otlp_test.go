package otlp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/drowse-dev/drowse/internal/trace"
)

// collectorStub answers like a collector, from memory.
type collectorStub struct {
	mu     sync.Mutex
	status int // 0 for a connection that is refused
	tries  int
	last   *http.Request
	spans  []*spans.Span
}

func (c *collectorStub) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries++
	c.last = req
	if c.status == 0 {
		return nil, errors.New("connection refused")
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var got collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &got); err != nil {
		return nil, err
	}
	if c.status == http.StatusOK {
		for _, r := range got.ResourceSpans {
			for _, s := range r.ScopeSpans {
				c.spans = append(c.spans, s.Spans...)
			}
		}
	}
	return &http.Response{StatusCode: c.status, Status: http.StatusText(c.status), Body: io.NopCloser(strings.NewReader("")), Header: http.Header{}, Request: req}, nil
}

func (c *collectorStub) answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

// names returns the names of all spans that arrived.
func (c *collectorStub) names() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, s := range c.spans {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

// start runs an exporter to the stub until the test ends, and returns what it logs.
func start(t *testing.T, stub *collectorStub) (*Exporter, *bytes.Buffer, func()) {
	t.Helper()
	var log bytes.Buffer
	e, err := New(Options{
		Endpoint: "http://user:hidden@collector:4318/below/", Headers: http.Header{"Authorization": {"Bearer x"}},
		Version: "1.2.3", Transport: stub, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { e.Run(ctx) })
	stop := func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return e, &log, stop
}

// TestSpans sends an operation whose steps lie in each other.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stub := &collectorStub{status: http.StatusOK}
		e, _, _ := start(t, stub)
		const ms = time.Millisecond
		begin := time.Now()
		e.Add("sb1", trace.Operation{Phase: "pausing", Cause: "idle", Begin: begin, Took: 20 * ms, Done: true, Steps: []trace.Step{
			{Name: "freeze", At: ms, Took: 2 * ms, Done: true},
			{Name: "capture", At: 3 * ms, Took: 10 * ms, Done: true},
			{Name: "memory", Depth: 1, At: 4 * ms, Took: 5 * ms, Done: true},
			{Name: "pages", Depth: 2, At: 5 * ms, Took: ms, Done: true},
			{Name: "files", Depth: 1, At: 6 * ms, Took: 6 * ms},
			{Name: "commit", At: 14 * ms, Took: 5 * ms, Done: true},
		}})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := stub.names(); got != "pausing freeze capture memory pages files commit" {
			t.Fatalf("spans %q", got)
		}
		byID := map[string]string{"": "nothing"}
		for _, s := range stub.spans {
			byID[string(s.SpanId)] = s.Name
		}
		parents := map[string]string{"pausing": "nothing", "freeze": "pausing", "capture": "pausing", "memory": "capture", "pages": "memory", "files": "capture", "commit": "pausing"}
		for _, s := range stub.spans {
			if got := byID[string(s.ParentSpanId)]; got != parents[s.Name] {
				t.Errorf("%s lies in %s, want %s", s.Name, got, parents[s.Name])
			}
			if string(s.TraceId) != string(stub.spans[0].TraceId) || len(s.TraceId) != 16 || len(s.SpanId) != 8 {
				t.Errorf("%s has the ids %x %x", s.Name, s.TraceId, s.SpanId)
			}
		}
		if s := stub.spans[3]; s.StartTimeUnixNano != uint64(begin.Add(4*ms).UnixNano()) || s.EndTimeUnixNano-s.StartTimeUnixNano != uint64(5*ms) {
			t.Errorf("memory from %d to %d", s.StartTimeUnixNano, s.EndTimeUnixNano)
		}
		if a := stub.spans[0].Attributes; len(a) != 2 || a[0].Value.GetStringValue() != "sb1" || a[1].Value.GetStringValue() != "idle" {
			t.Errorf("attributes %v", a)
		}
		if a := stub.spans[5].Attributes; len(a) != 1 || a[0].Key != "drowse.unfinished" {
			t.Errorf("attributes of a step that has not ended: %v", a)
		}
		if r := stub.last; r.URL.Path != "/below/v1/traces" || r.Header.Get("Authorization") != "Bearer x" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s with %v", r.URL, r.Header)
		}
	})
}

// TestOutage keeps the latest operations while the collector is away, says so once,
// and sends them when it is there again.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stub := &collectorStub{}
		e, log, _ := start(t, stub)
		for range mostWaiting {
			e.Add("sb", trace.Operation{Phase: "old"})
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if stub.tries < 10 || stub.tries > 80 {
			t.Errorf("%d tries in an hour", stub.tries)
		}
		for range mostWaiting {
			e.Add("sb", trace.Operation{Phase: "new"})
		}
		stub.answer(http.StatusServiceUnavailable)
		time.Sleep(time.Hour)
		synctest.Wait()
		stub.answer(http.StatusOK)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := stub.names(); strings.Count(got, "new") != mostWaiting || strings.Contains(got, "old") {
			t.Errorf("%d new operations arrived, %d old ones", strings.Count(got, "new"), strings.Count(got, "old"))
		}
		if e.Dropped() != mostWaiting {
			t.Errorf("%d dropped", e.Dropped())
		}
		if n := strings.Count(log.String(), "\n"); n != 2 || strings.Contains(log.String(), "hidden") {
			t.Errorf("%d lines logged:\n%s", n, log)
		}
	})
}

// TestRefused drops what the collector does not want, and sends what comes later.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stub := &collectorStub{status: http.StatusBadRequest}
		e, log, _ := start(t, stub)
		e.Add("sb", trace.Operation{Phase: "refused"})
		time.Sleep(time.Hour)
		synctest.Wait()
		if stub.tries != 1 || e.Dropped() != 1 || !strings.Contains(log.String(), "refuses") {
			t.Errorf("%d tries, %d dropped, logged: %s", stub.tries, e.Dropped(), log)
		}
		stub.answer(http.StatusOK)
		e.Add("sb", trace.Operation{Phase: "taken"})
		time.Sleep(time.Hour)
		synctest.Wait()
		if stub.names() != "taken" {
			t.Errorf("arrived: %q", stub.names())
		}
	})
}

// TestEnd sends what waits when the server ends.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stub := &collectorStub{status: http.StatusOK}
		e, _, stop := start(t, stub)
		e.Add("sb", trace.Operation{Phase: "stopping"})
		stop()
		if stub.names() != "stopping" {
			t.Errorf("arrived: %q", stub.names())
		}
	})
}

func TestNewRefuses(t *testing.T) {
	for _, endpoint := range []string{"", "localhost:4318", "ftp://x", "http://", "http://x?a=b", "http://x#y", "grpc://u:hidden@x", "http://u:hidden@x:port"} {
		_, err := New(Options{Endpoint: endpoint})
		if err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func TestParseHeaders(t *testing.T) {
	got, err := ParseHeaders("Authorization=Bearer%20a=b, x-tenant = t ,")
	if err != nil || len(got) != 2 || got.Get("Authorization") != "Bearer a=b" || got.Get("X-Tenant") != "t" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"hidden", "=hidden", "a=hidden%zz", "a=hidden%0d%0ab"} {
		if _, err := ParseHeaders(bad); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
