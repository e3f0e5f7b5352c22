package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestLastHour: what a bar shows of the last hour, and what it does not claim to know.
func TestLastHour(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	event := func(d time.Duration, to, cause string) client.Event {
		return client.Event{Time: ago(d), To: to, Cause: cause}
	}
	busy := make([]client.Event, hourEvents) // newest first
	for n := range busy {
		busy[n] = event(time.Duration(n)*time.Second, []string{"running", "paused"}[n%2], "access")
	}
	for _, c := range []struct {
		name    string
		newest  []client.Event
		created time.Duration
		want    string
		title   string
	}{
		{"it slept before and wakes", []client.Event{event(6*time.Minute, "running", "access"), event(12*time.Minute, "resuming", "access"), event(3*time.Hour, "paused", "idle")}, 5 * time.Hour,
			"awake 6m 00s, asleep 48m 00s, on the way 6m 00s", "paused for 2h 48m, from 2026-01-01 09:00:00, because of idle"},
		{"it is new", []client.Event{event(15*time.Minute, "running", "call"), event(15*time.Minute, "creating", "call")}, 15 * time.Minute,
			"awake 15m 00s, not there yet 45m 00s", "not there yet"},
		{"it changes all the time", busy, 5 * time.Hour, "awake 1m 39s, asleep 1m 40s, not known 56m 41s", "read no further back"},
		{"its log is gone", nil, 5 * time.Hour, "not known 1h 00m", "read no further back"},
		{"it has ended", []client.Event{event(30*time.Minute, "terminated", "call"), event(3*time.Hour, "running", "call")}, 5 * time.Hour, "awake 30m 00s, ended 30m 00s", "terminated for 30m 00s"},
	} {
		begin := ago(hourBack)
		l := lifeOf(sinceBegin(c.newest, client.Info{CreatedAt: ago(c.created)}, begin), begin, now)
		var titles []string
		var width int64
		for _, s := range l.Spans {
			titles = append(titles, s.Text)
			width += s.Width
		}
		if got := l.Words(); got != "Last hour: "+c.want || !strings.Contains(strings.Join(titles, "\n"), c.title) {
			t.Errorf("%s: %s\n%s", c.name, got, strings.Join(titles, "\n"))
		}
		if width < 750 || width > lifeWidth {
			t.Errorf("%s: the bar is %d long", c.name, width)
		}
	}
}
