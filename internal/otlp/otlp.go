// Package otlp sends what was measured of operations to a collector of
// OpenTelemetry: a trace for each start, wake, pause and snapshot of a sandbox, by
// OTLP over HTTP with protocol buffers.
//
// Traces are for looking at, and nothing waits for them. The exporter keeps the latest
// of them for as long as the collector cannot be reached; older ones are dropped, and
// counted. What waits when the server ends gets one more try.
package otlp

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/drowse-dev/drowse/internal/trace"
)

// Bounds of an exporter.
const (
	mostWaiting = 1000             // operations that wait to be sent
	mostAtOnce  = 200              // operations in one request
	gatherFor   = time.Second      // how long more operations are waited for before a request
	sendWithin  = 10 * time.Second // for one request
	retryMost   = time.Minute      // between two tries
)

// Options is what an exporter works with.
type Options struct {
	// Endpoint is the URL of the collector, such as http://localhost:4318. Traces go
	// to the path /v1/traces below it, as OTEL_EXPORTER_OTLP_ENDPOINT has it.
	Endpoint string
	// Headers are sent along, such as Authorization.
	Headers http.Header
	Version string // of this program
	// Transport carries the requests; nil for the network.
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Exporter sends traces. It is safe for concurrent use.
type Exporter struct {
	o      Options
	url    string
	client *http.Client
	wake   chan struct{} // has an item when there is something to send

	mu      sync.Mutex
	waiting []*spans.ResourceSpans // oldest first, one for each operation
	dropped int
}

// New returns an exporter, which sends nothing before it runs. The error says what is
// wrong with the endpoint.
func New(o Options) (*Exporter, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no URL of a collector: it needs http or https, a host and maybe a path, such as http://localhost:4318", redacted(u, o.Endpoint))
	}
	client := &http.Client{
		Transport: o.Transport, Timeout: sendWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Exporter{o: o, url: u.JoinPath("v1", "traces").String(), client: client, wake: make(chan struct{}, 1)}, nil
}

// redacted returns an endpoint for a message, without a password.
func redacted(u *url.URL, text string) string {
	if u != nil {
		return u.Redacted()
	}
	if _, host, ok := strings.Cut(text, "@"); ok {
		return "…@" + host
	}
	return text
}

// ParseHeaders reads headers as OTEL_EXPORTER_OTLP_HEADERS has them: name=value, with
// commas between them and values percent-encoded. No error quotes a value.
func ParseHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	for i, pair := range strings.Split(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil || strings.ContainsAny(name+value, "\r\n\x00") {
			return nil, fmt.Errorf("header %d is not NAME=VALUE with a percent-encoded value", i+1)
		}
		headers.Add(name, value)
	}
	return headers, nil
}

// Add takes an operation of a sandbox that has ended. It does not wait.
func (e *Exporter) Add(sandbox string, op trace.Operation) {
	traced := e.resource(sandbox, op)
	e.mu.Lock()
	defer e.mu.Unlock()
	if drop := len(e.waiting) + 1 - mostWaiting; drop > 0 {
		e.waiting = e.waiting[drop:]
		e.dropped += drop
	}
	e.waiting = append(e.waiting, traced)
	select {
	case e.wake <- struct{}{}:
	default: // it is told already
	}
}

// Run sends what is added, until ctx ends.
func (e *Exporter) Run(ctx context.Context) {
	wait := gatherFor
	for {
		select {
		case <-e.wake:
		case <-ctx.Done():
			e.last(ctx)
			return
		}
		if !sleep(ctx, wait) {
			e.last(ctx)
			return
		}
		for {
			batch := e.take()
			if len(batch) == 0 {
				break
			}
			if err := e.send(ctx, batch); err != nil {
				if wait == gatherFor && ctx.Err() == nil {
					e.o.Log.Warn("traces cannot be sent; the latest are kept", "err", err)
				}
				e.putBack(batch)
				wait = min(2*wait, retryMost)
				break
			}
			if wait > gatherFor {
				e.o.Log.Info("traces are sent again", "dropped", e.Dropped())
				wait = gatherFor
			}
		}
	}
}

// last sends what waits when the server ends, once.
func (e *Exporter) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if batch := e.take(); len(batch) > 0 {
		_ = e.send(ctx, batch) // nobody looks at the log for a trace that is missing
	}
}

// Dropped is how many operations were dropped since the start.
func (e *Exporter) Dropped() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}

// take returns what is to be sent next.
func (e *Exporter) take() []*spans.ResourceSpans {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.waiting), mostAtOnce)
	batch := e.waiting[:n:n]
	e.waiting = e.waiting[n:]
	return batch
}

// putBack takes what could not be sent, for the next try.
func (e *Exporter) putBack(batch []*spans.ResourceSpans) {
	e.mu.Lock()
	defer e.mu.Unlock()
	room := mostWaiting - len(e.waiting)
	drop := max(len(batch)-room, 0)
	e.dropped += drop
	e.waiting = append(batch[drop:], e.waiting...)
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// send sends a request. It returns no error for traces that the collector refuses as
// such: they are dropped, because it would refuse them again.
func (e *Exporter) send(ctx context.Context, batch []*spans.ResourceSpans) error {
	body, err := proto.Marshal(&collector.ExportTraceServiceRequest{ResourceSpans: batch})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, values := range e.o.Headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "drowse/"+e.o.Version)
	res, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection is used again
	switch {
	case res.StatusCode/100 == 2:
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode/100 == 5:
		return fmt.Errorf("POST %s: %s", req.URL.Redacted(), res.Status)
	default:
		e.mu.Lock()
		e.dropped += len(batch)
		e.mu.Unlock()
		e.o.Log.Warn("the collector refuses traces; they are dropped", "url", req.URL.Redacted(), "status", res.Status, "count", len(batch))
	}
	return nil
}

// resource returns an operation as a trace of its own.
func (e *Exporter) resource(sandbox string, op trace.Operation) *spans.ResourceSpans {
	return &spans.ResourceSpans{
		Resource:   &resource.Resource{Attributes: []*common.KeyValue{text("service.name", "drowse"), text("service.version", e.o.Version)}},
		ScopeSpans: []*spans.ScopeSpans{{Scope: &common.InstrumentationScope{Name: "drowse"}, Spans: spansOf(sandbox, op)}},
	}
}

// spansOf returns a span for the operation, and one for each step. A step lies in the
// one that began last before it, with one less around it.
func spansOf(sandbox string, op trace.Operation) []*spans.Span {
	id := random(16)
	root := span(id, nil, op.Phase, op.Begin, op.Took)
	root.Attributes = []*common.KeyValue{text("drowse.sandbox", sandbox), text("drowse.cause", op.Cause)}
	all := []*spans.Span{root}
	around := [][]byte{root.SpanId} // by depth
	for _, s := range op.Steps {
		depth := min(s.Depth, len(around)-1)
		child := span(id, around[depth], s.Name, op.Begin.Add(s.At), s.Took)
		if !s.Done {
			child.Attributes = []*common.KeyValue{{Key: "drowse.unfinished", Value: &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: true}}}}
		}
		around = append(around[:depth+1], child.SpanId)
		all = append(all, child)
	}
	return all
}

func span(id, parent []byte, name string, begin time.Time, took time.Duration) *spans.Span {
	return &spans.Span{
		TraceId: id, SpanId: random(8), ParentSpanId: parent, Name: name, Kind: spans.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: uint64(begin.UnixNano()), EndTimeUnixNano: uint64(begin.Add(took).UnixNano()),
	}
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

func random(n int) []byte {
	id := make([]byte, n)
	_, _ = rand.Read(id) // it never fails
	return id
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
