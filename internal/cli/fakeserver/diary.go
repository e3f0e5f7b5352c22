package fakeserver

import (
	"context"
	"log/slog"
	"time"

	"github.com/drowse-dev/drowse/internal/api/e2b"
	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
	"github.com/drowse-dev/drowse/internal/webhook"
)

// diary is what sandboxes logged, which is their events, and what they used, which
// is a sample of the time of the question.
type diary struct{ s *Server }

var _ v1.Diaries = diary{}

// SandboxLog implements v1.Diaries.
func (d diary) SandboxLog(ctx context.Context, id string) ([]journal.Line, error) {
	if _, err := backend(d).Get(ctx, id); err != nil {
		return nil, err
	}
	events, err := backend(d).Events(ctx, id, 0, 1000)
	var lines []journal.Line
	for _, e := range events {
		lines = append(lines, journal.LineOf(e))
	}
	return lines, err
}

// Samples implements v1.Diaries.
func (d diary) Samples(ctx context.Context, id string, _, _ time.Time) ([]usage.Sample, error) {
	last, _ := d.LastSample(id)
	_, err := backend(d).Get(ctx, id)
	return []usage.Sample{last}, err
}

// LastSample implements v1.Diaries. Only what runs is measured.
func (d diary) LastSample(id string) (usage.Sample, bool) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	b := d.s.boxes[id]
	if b == nil || b.generation == 0 {
		return usage.Sample{}, false
	}
	return usage.Sample{At: time.Now(), CPUPercent: 12.3, Memory: 85 << 20, DiskUsed: 3 << 20, DiskTotal: 1 << 30}, true
}

// hooksOf returns the sender of a server's webhooks: the real one.
func hooksOf(ctx context.Context, s *Server, st webhook.Store) (*webhook.Sender, error) {
	return webhook.New(ctx, webhook.Options{Store: st, Events: backend{s}, Log: slog.New(slog.DiscardHandler), Encode: func(ctx context.Context, e store.Event) (webhook.Message, error) {
		sb, err := backend{s}.Find(ctx, e.Sandbox)
		if err != nil {
			return webhook.Message{}, err
		}
		kind, id, body, err := e2b.EncodeEvent(e, sb)
		return webhook.Message{Type: kind, ID: id, Body: body}, err
	}})
}
