package mcp

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// flushEvery is how often output is reported. At quietFor a report says that
	// there was none: clients give up on calls that say nothing.
	flushEvery = 250 * time.Millisecond
	quietFor   = 10 * time.Second
	// maxReport bounds one report of a stream.
	maxReport = 2 << 10
)

// progress reports what a call prints while it runs, if its client asked for
// reports. Each report has the name of one stream and its text, so that what is
// printed cannot pass for another stream's.
type progress struct {
	notify func(n int, message string) // nil if nobody asked

	mu      sync.Mutex
	streams []*stream

	halt    chan struct{}
	stop    func() // reports what is left, and returns when no report will follow
	stopped chan struct{}
}

// stream is what a call prints to one of its outputs.
type stream struct {
	progress *progress
	name     string
	keep     io.Writer
	pending  *capture // since the last report
}

func newProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	p := &progress{halt: make(chan struct{}), stopped: make(chan struct{})}
	p.stop = sync.OnceFunc(func() { close(p.halt); <-p.stopped })
	token := req.Params.GetProgressToken()
	if token == nil {
		close(p.stopped)
		return p
	}
	p.notify = func(n int, message string) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(n), Message: message})
	}
	go p.run(ctx)
	return p
}

// tee returns a writer to keep whose writes are reported under a name.
func (p *progress) tee(name string, keep io.Writer) io.Writer {
	if p.notify == nil {
		return keep
	}
	s := &stream{progress: p, name: name, keep: keep, pending: &capture{limit: maxReport}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams = append(p.streams, s)
	return s
}

// Write implements io.Writer.
func (s *stream) Write(b []byte) (int, error) {
	s.progress.mu.Lock()
	_, _ = s.pending.Write(b)
	s.progress.mu.Unlock()
	return s.keep.Write(b)
}

func (p *progress) run(ctx context.Context) {
	defer close(p.stopped)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	begin := time.Now()
	last, said, n := begin, begin, 0
	for {
		select {
		case <-tick.C:
		case <-p.halt:
			if ctx.Err() == nil {
				p.flush(n)
			}
			return
		case <-ctx.Done():
			return
		}
		reports := p.flush(n)
		if reports == 0 && time.Since(said) >= quietFor {
			p.notify(n+1, fmt.Sprintf("drowse: no output for %d s; it runs since %d s", int(time.Since(last).Seconds()), int(time.Since(begin).Seconds())))
			said, n = time.Now(), n+1
		}
		if n += reports; reports > 0 {
			last, said = time.Now(), time.Now()
		}
	}
}

// flush reports what has been printed, after n earlier reports, and returns how
// many reports that took.
func (p *progress) flush(n int) (reports int) {
	type report struct{ name, text string }
	var list []report
	p.mu.Lock()
	for _, s := range p.streams {
		if s.pending.total == 0 {
			continue
		}
		text, next := s.pending.take()
		s.pending = next
		if text != "" {
			list = append(list, report{s.name, text})
		}
	}
	p.mu.Unlock()
	for _, r := range list {
		reports++
		p.notify(n+reports, r.name+": "+r.text)
	}
	return reports
}
