package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	export "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/drowse-dev/drowse/client"
)

// TestTraces looks at what a create, a pause and a wake took: the steps are those of
// each, and lie within it.
func TestTraces(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	collected := newCollector(t)
	s := startServer(t, "--otlp-endpoint", collected.url, "--otlp-headers", "Authorization=Bearer%20secret")
	begin := time.Now()
	sb := s.create(ctx, sleeper)
	s.pause(ctx, sb.ID)
	run(ctx, t, sb, "true")
	var all []client.Trace
	eventually(t, 30*time.Second, "three operations", func() (err error) {
		all, err = client.Traces(ctx, s.client, sb.ID)
		if err == nil && (len(all) != 3 || !all[2].Done) { // its answer comes a moment before its end
			err = fmt.Errorf("there are %+v", all)
		}
		return err
	})
	for i, want := range []struct {
		phase, cause string
		steps        []string
	}{
		{"creating", "call", []string{"mount layers", "start the runtime", "run the guest", "wait for the agent", "record"}},
		{"pausing", "call", []string{"drain", "freeze", "write the memory", "sync and list the files", "sync and check the memory", "record"}},
		{"resuming", "access", []string{"verify the checkpoint", "mount layers", "restore the runtime", "run the guest", "wait for the agent", "record"}},
	} {
		got := all[i]
		if got.Phase != want.phase || got.Cause != want.cause || !got.Done || got.Took <= 0 || got.Took > time.Since(begin) {
			t.Errorf("%+v; want %s because of %s", got, want.phase, want.cause)
		}
		var names []string
		for _, step := range got.Steps {
			if !step.Done || step.At < 0 || step.At+step.Took > got.Took+time.Millisecond {
				t.Errorf("%s took %s: it has the step %+v", got.Phase, got.Took, step)
			}
			if slices.Contains(want.steps, step.Name) {
				names = append(names, step.Name)
			}
		}
		if !slices.Equal(names, want.steps) {
			t.Errorf("%s has the steps %+v, want %q among them, in that order", got.Phase, got.Steps, want.steps)
		}
		eventually(t, 30*time.Second, "the trace of "+want.phase, func() error {
			spans := collected.of(sb.ID, want.phase)
			if len(spans) != 1+len(got.Steps) {
				return fmt.Errorf("it has the spans %q, the steps are %+v", spans, got.Steps)
			}
			return nil
		})
	}
}

// collector takes traces as a collector of OpenTelemetry does.
type collector struct {
	url string
	mu  sync.Mutex
	got []*spans.ResourceSpans
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var sent export.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %s with %v: %v", r.Method, r.URL, r.Header, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, sent.ResourceSpans...)
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// of returns the names of the spans of an operation of a sandbox that arrived.
func (c *collector) of(sandbox, phase string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, r := range c.got {
		all := r.ScopeSpans[0].Spans
		if all[0].Name != phase || all[0].Attributes[0].Value.GetStringValue() != sandbox {
			continue
		}
		for _, s := range all {
			names = append(names, s.Name)
		}
	}
	return names
}
