package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestLastHour: what a bar shows of the last hour, and what it does not claim to know.
func TestLastHour(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	event := func(d time.Duration, to, cause string) lifeChange {
		return lifeChange{Time: ago(d), To: to, Cause: cause}
	}
	busy := make([]lifeChange, hourEvents) // newest first
	for n := range busy {
		busy[n] = event(time.Duration(n)*time.Second, []string{"running", "paused"}[n%2], "access")
	}
	for _, c := range []struct {
		name    string
		newest  []lifeChange
		created time.Duration
		want    string
		title   string
	}{
		{"it slept before and wakes", []lifeChange{event(6*time.Minute, "running", "access"), event(12*time.Minute, "resuming", "access"), event(3*time.Hour, "paused", "idle")}, 5 * time.Hour,
			"awake 6m 00s, asleep 48m 00s, on the way 6m 00s", "paused for 2h 48m, from 2026-01-01 09:00:00, because of idle"},
		{"it is new", []lifeChange{event(15*time.Minute, "running", "call"), event(15*time.Minute, "creating", "call")}, 15 * time.Minute,
			"awake 15m 00s, not there yet 45m 00s", "not there yet"},
		{"it changes all the time", busy, 5 * time.Hour, "awake 1m 39s, asleep 1m 40s, not known 56m 41s", "read no further back"},
		{"its log is gone", nil, 5 * time.Hour, "not known 1h 00m", "read no further back"},
		{"it has ended", []lifeChange{event(30*time.Minute, "terminated", "call"), event(3*time.Hour, "running", "call")}, 5 * time.Hour, "awake 30m 00s, ended 30m 00s", "terminated for 30m 00s"},
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

// eventLog answers with the events of any sandbox, and counts how often it is asked.
type eventLog struct {
	page  client.EventPage
	asked atomic.Int64
}

func (l *eventLog) RoundTrip(*http.Request) (*http.Response, error) {
	l.asked.Add(1)
	text, err := json.Marshal(l.page)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(text))}, err
}

// TestRemembersBusyOnes: what a session remembers of a sandbox is what the last hour
// needs, however many events there were before.
func TestRemembersBusyOnes(t *testing.T) {
	now := time.Now()
	var l eventLog
	for n := range hourEvents { // newest first
		l.page.Events = append(l.page.Events, client.Event{Time: now.Add(-time.Duration(n+1) * 10 * time.Minute), To: []string{"running", "paused"}[n%2], Cause: "access"})
	}
	list := []client.Info{{ID: "i1", State: client.Running, CreatedAt: now.Add(-48 * time.Hour), StartedAt: now.Add(-10 * time.Minute)}}
	var s session
	for n := range 3 {
		bars, err := lastHours(t.Context(), &s, api{base: "http://server", http: &http.Client{Transport: &l}}, list, now.Add(time.Duration(n)*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"awake 30m 00s, asleep 30m 00s", "awake 31m 00s, asleep 29m 00s", "awake 32m 00s, asleep 28m 00s"}[n]
		if got := bars[0].Words(); got != "Last hour: "+want {
			t.Errorf("after %d minutes: %s, want %s", n, got, want)
		}
	}
	if got := l.asked.Load(); got != 1 {
		t.Errorf("the events were read %d times though nothing has changed", got)
	}
}

// TestRemembersLittle: what one session remembers has a bound, because a key has many.
func TestRemembersLittle(t *testing.T) {
	now := time.Now()
	var l eventLog
	for n := range mostKept { // newest first
		l.page.Events = append(l.page.Events, client.Event{Time: now.Add(-time.Duration(n+1) * time.Minute), To: []string{"running", "paused"}[n%2], Cause: "access"})
	}
	var list []client.Info
	for n := range perPage {
		list = append(list, client.Info{ID: fmt.Sprint("i", n), State: client.Running, CreatedAt: now.Add(-time.Hour), StartedAt: now.Add(-time.Minute), LastError: "the disk is full"})
	}
	var s session
	for range 2 {
		if _, err := lastHours(t.Context(), &s, api{base: "http://server", http: &http.Client{Transport: &l}}, list, now); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, k := range s.remembered() {
			n += 1 + len(k.newest)
		}
		if n > mostRemembered || n <= mostRemembered-1-mostKept {
			t.Errorf("of %d sandboxes %d changes are remembered, want nearly %d", len(list), n, mostRemembered)
		}
	}
	if got, want := l.asked.Load(), int64(2*len(list)-mostRemembered/(1+mostKept)); got != want {
		t.Errorf("the events were read %d times, want %d", got, want)
	}
}
