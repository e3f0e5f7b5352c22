package supervisor

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestKeyCosts: what the sandboxes of a key cost the server counts for that key,
// and shows in the metrics.
func TestKeyCosts(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	room := held.New()
	s.CountHeld(room)
	room.Lasting(held.Who{Key: "busy"}).Grow(4)
	room.Lasting(held.Who{Key: "quiet"}).Grow(5)
	room.Record("idle").Grow(7)
	_, _ = room.Session(held.Who{Key: "idle"})
	room.Passing(held.Who{Key: "volume:x"}).Grow(1)
	busy := create(t, s, CreateRequest{Settings: sleepy, Config: store.Config{Key: "busy"}})
	create(t, s, CreateRequest{Settings: sleepy, Config: store.Config{Key: "quiet"}})
	quiet := s.KeyCosts()["quiet"]
	if quiet.DatabaseBytes == 0 || quiet.Checkpoints != 0 || quiet.BufferedBytes != 5 {
		t.Errorf("a key that made a sandbox costs %+v", quiet)
	}
	for range 3 {
		if err := s.Pause(t.Context(), busy, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Connect(t.Context(), busy, WakeRequest{Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	lease := mustAcquire(t, s, busy, Access{Port: counterPort, Stream: true})
	got := s.KeyCosts()["busy"]
	if got.DatabaseBytes < 2*quiet.DatabaseBytes || got.Checkpoints <= 0 || got.Requests != 1 || got.Starting != 0 {
		t.Errorf("a key whose sandbox slept three times costs %+v, another %+v", got, quiet)
	}
	if now := s.KeyCosts()["quiet"]; now != quiet {
		t.Errorf("the other key cost %+v, and costs %+v now", quiet, now)
	}
	wantSeries(t, s.Metrics(), "drowse_key_requests", map[string]float64{"busy": 1, "quiet": 0, "idle": 0})
	wantSeries(t, s.Metrics(), "drowse_key_kept_bytes", map[string]float64{"busy": 0, "quiet": 0, "idle": 7})
	wantSeries(t, s.Metrics(), "drowse_key_sessions", map[string]float64{"busy": 0, "quiet": 0, "idle": 1})
	lease.Release()
	if err := s.Kill(t.Context(), busy, ""); err != nil {
		t.Fatal(err)
	}
	if after := s.KeyCosts()["busy"]; after.DatabaseBytes <= got.DatabaseBytes || after.Requests != 0 {
		t.Errorf("when it has no sandbox any more, it costs %+v", after)
	}
	wantSeries(t, s.Metrics(), "drowse_key_requests", map[string]float64{"busy": 0, "quiet": 0, "idle": 0})
	wantSeries(t, s.Metrics(), "drowse_key_buffered_bytes", map[string]float64{"busy": 4, "quiet": 5, "idle": 0})
}

// wantSeries compares the values of a metric by key.
func wantSeries(t *testing.T, c prometheus.Collector, name string, want map[string]float64) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}
