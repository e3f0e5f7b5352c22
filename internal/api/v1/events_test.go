package v1

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/golden"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/lifecycle"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestEventsByCursor(t *testing.T) {
	w := newWorld(t)
	first := w.create(`{"timeout":600}`)
	second := w.create(`{}`)
	w.do("POST", base+"/"+first+"/pause", "").Is(http.StatusOK)
	w.do("DELETE", base+"/"+first, "").Is(http.StatusNoContent)

	types := func(path string) (string, float64) {
		t.Helper()
		o := w.do("GET", path, "").Is(http.StatusOK).Object()
		var names []string
		for _, e := range list(o["events"]) {
			names = append(names, e["type"].(string))
		}
		return strings.Join(names, " "), o["next"].(float64)
	}
	for path, want := range map[string]string{
		"/v1/events":                                    "created running created running pausing paused terminated",
		"/v1/events?after=4":                            "pausing paused terminated",
		"/v1/events?after=2&limit=3":                    "created running pausing",
		"/v1/events?after=99&follow=false":              "",
		base + "/" + first + "/events":                  "created running pausing paused terminated",
		base + "/" + first + "/events?after=2&limit=1":  "pausing",
		base + "/" + second + "/events?after=0&limit=9": "created running",
	} {
		if got, _ := types(path); got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"?before=now":         "terminated paused pausing running created",
		"?before=now&limit=2": "terminated paused",
		"?before=6&limit=2":   "pausing running",
		"?before=0":           "",
	} {
		if got, _ := types(base + "/" + first + "/events" + path); got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	if _, next := types(base + "/" + first + "/events?before=now&limit=2"); next != 6 {
		t.Errorf("before that is %v", next)
	}
	for _, bad := range []string{"before=x", "before=-1", "before=5&after=1", "before=5&follow=true", "before=5&limit=0"} {
		w.do("GET", base+"/"+first+"/events?"+bad, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
	if got, next := types("/v1/events?after=now"); got != "" || next != 7 {
		t.Errorf("from now on: %q, next %v", got, next)
	}
	if _, next := types("/v1/events?limit=2"); next != 2 {
		t.Errorf("next %v", next)
	}
	if _, next := types("/v1/events?after=99"); next != 99 {
		t.Errorf("next %v", next)
	}
	e := list(w.do("GET", "/v1/events?after=5&limit=1", "").Object()["events"])[0]
	same(t, any(e), fmt.Sprintf(`{"id":6,"time":"2026-09-01T12:00:00.123456Z","type":"paused","sandbox":%q,"generation":1,"from":"pausing","to":"paused",
		"cause":"call","actor":%q,"operation":%q,"durationSeconds":null,"bytes":4096,"freed":1048576,"detail":null}`, first, apitest.Actor, e["operation"]))
	for _, bad := range []string{"after=-1", "after=x", "after=NOW", "after=1.5", "after=99999999999999999999", "limit=0", "limit=1001", "follow=maybe"} {
		w.do("GET", "/v1/events?"+bad, "").fails(http.StatusBadRequest, "invalid_request", "")
	}
	w.do("GET", "/v1/events?since=1", "").fails(http.StatusBadRequest, "unknown_field", "since")
	r := httptest.NewRequest("GET", "/v1/events?follow=true", nil)
	r.Header.Set("X-API-Key", goodKey)
	r.Header.Set("Last-Event-ID", "x")
	w.send(r).fails(http.StatusBadRequest, "invalid_request", "Last-Event-ID")
}

// stream is a client of server-sent events.
type stream struct {
	t    *testing.T
	body *bufio.Reader
	stop func()
}

// follow opens a stream; the path may have a query.
func follow(t *testing.T, url string, header map[string]string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testmode.Patience())
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", goodKey)
	for name, value := range header {
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("status %d, %s", res.StatusCode, got)
	}
	stop := func() { cancel(); res.Body.Close() }
	t.Cleanup(stop)
	return &stream{t, bufio.NewReader(res.Body), stop}
}

// next returns the next block, comments included.
func (s *stream) next() map[string]string {
	block := map[string]string{}
	for {
		line, err := s.body.ReadString('\n')
		if err != nil {
			s.t.Fatalf("the stream ended: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return block
		}
		name, value, _ := strings.Cut(line, ": ")
		block[name] = value
	}
}

// event returns the next event.
func (s *stream) event() (id int64, e map[string]any) {
	for {
		block := s.next()
		if block["data"] == "" {
			continue
		}
		if err := json.Unmarshal([]byte(block["data"]), &e); err != nil {
			s.t.Fatal(err)
		}
		if _, err := fmt.Sscan(block["id"], &id); err != nil || e["type"] != block["event"] || e["id"] != float64(id) {
			s.t.Fatalf("block %v", block)
		}
		return id, e
	}
}

func served(t *testing.T, change ...func(*Options)) (*world, string) {
	w := newWorld(t, change...)
	srv := httptest.NewServer(w.HTTP)
	t.Cleanup(srv.Close)
	return w, srv.URL
}

// TestStreamFromNow: what was before is left out, and the place is told before
// the first event, so that a client that loses the stream loses no event.
func TestStreamFromNow(t *testing.T) {
	w, url := served(t)
	id := w.create(`{}`)
	s := follow(t, url+base+"/"+id+"/events?follow=true&after=now", nil)
	if first := s.next(); first["id"] != "2" || first["data"] != "" || first["retry"] != "1000" {
		t.Errorf("it begins with %v", first)
	}
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	if n, e := s.event(); n != 3 || e["type"] != "pausing" {
		t.Errorf("event %d is %v", n, e["type"])
	}
}

func TestStream(t *testing.T) {
	w, url := served(t)
	id := w.create(`{}`)
	for name, s := range map[string]*stream{
		"by Accept":        follow(t, url+"/v1/events", map[string]string{"Accept": "text/event-stream"}),
		"by parameter":     follow(t, url+base+"/"+id+"/events?follow=true", nil),
		"after a place":    follow(t, url+"/v1/events?follow=1&after=1", nil),
		"after a break":    follow(t, url+"/v1/events?follow=1&after=0", map[string]string{"Last-Event-ID": "1"}),
		"after everything": follow(t, url+"/v1/events?follow=1", map[string]string{"Last-Event-ID": "2"}),
	} {
		want := map[string]string{"by Accept": "1 2", "by parameter": "1 2", "after a place": "2", "after a break": "2"}[name]
		for seq := range strings.FieldsSeq(want) {
			if got, _ := s.event(); fmt.Sprint(got) != seq {
				t.Errorf("%s: event %d, want %s", name, got, seq)
			}
		}
		other := w.create(`{}`) // is not of the one sandbox
		w.do("PATCH", base+"/"+id, `{"maxLifetime":600}`).Is(http.StatusOK)
		for {
			_, e := s.event()
			if e["sandbox"] == other && name == "by parameter" {
				t.Error("an event of another sandbox")
			}
			if e["type"] == "updated" {
				break
			}
		}
		s.stop()
		w.Fake.Kill(t.Context(), other, "")
	}
}

func TestStreamRefusals(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{base + "/nope/events?follow=true", base + "/nope/events"} {
		w.do("GET", path, "").fails(http.StatusNotFound, "sandbox_not_found", "nope")
	}
	w.do("HEAD", "/v1/events?follow=true", "") // ends at once
}

func TestStreamKeepsAlive(t *testing.T) {
	_, url := served(t, func(o *Options) { o.KeepAlive = time.Millisecond })
	s := follow(t, url+"/v1/events?follow=true", nil)
	for {
		if block := s.next(); len(block) == 1 {
			if _, comment := block[""]; comment {
				return
			}
		}
	}
}

// TestStreamEndsWithTheClient: nothing goes on for a client that is gone.
func TestStreamEndsWithTheClient(t *testing.T) {
	done := make(chan struct{})
	w := newWorld(t)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.HTTP.ServeHTTP(rw, r)
		close(done)
	}))
	t.Cleanup(srv.Close)
	s := follow(t, srv.URL+"/v1/events?follow=true", nil)
	s.next()
	s.stop()
	<-done
	if log := w.Log.String(); log != "" {
		t.Errorf("logged: %s", log)
	}
}

// commitsMeanwhile is a fake that commits right after the log was first read.
type commitsMeanwhile struct {
	*apitest.Fake
	once   sync.Once
	commit func()
}

func (f *commitsMeanwhile) EventsAfter(ctx context.Context, of events.Scope, after int64, limit int) (events.Page, error) {
	page, err := f.Fake.EventsAfter(ctx, of, after, limit)
	f.once.Do(f.commit)
	return page, err
}

func TestStreamNoticesACommitAfterItsRead(t *testing.T) {
	w, url := served(t, func(o *Options) {
		fake := o.Sandboxes.(*apitest.Fake)
		o.Sandboxes = &commitsMeanwhile{Fake: fake, commit: func() {
			if _, err := fake.Create(t.Context(), supervisor.CreateRequest{Template: "base", Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill}}); err != nil {
				t.Error(err)
			}
		}}
		o.KeepAlive = time.Hour
	})
	s := follow(t, url+"/v1/events?follow=true", nil)
	for want := range int64(2) {
		if got, _ := s.event(); got != want+1 {
			t.Errorf("event %d, want %d", got, want+1)
		}
	}
	if len(w.Fake.IDs()) != 1 {
		t.Error("nothing was committed")
	}
}

// countsReads is a fake that counts how often its log is read.
type countsReads struct {
	*apitest.Fake
	reads atomic.Int64
}

func (f *countsReads) EventsAfter(ctx context.Context, of events.Scope, after int64, limit int) (events.Page, error) {
	f.reads.Add(1)
	return f.Fake.EventsAfter(ctx, of, after, limit)
}

// TestStreamOfAFlood: hundreds who followed the events of a key that made thousands
// read the log for each of them, and other keys waited.
func TestStreamOfAFlood(t *testing.T) {
	const events = 2000
	var f *countsReads
	w, url := served(t, func(o *Options) {
		f = &countsReads{Fake: o.Sandboxes.(*apitest.Fake)}
		o.Sandboxes, o.KeepAlive = f, time.Hour
	})
	id := w.create(`{}`)
	begin := time.Now()
	s := follow(t, url+"/v1/events?follow=true&after=now", nil)
	s.next()
	go func() {
		for i := range events {
			_ = w.do("PATCH", base+"/"+id, fmt.Sprintf(`{"maxLifetime":%d}`, 1000+i%1000))
		}
	}()
	for want := range int64(events) {
		if got, _ := s.event(); got != want+3 {
			t.Fatalf("event %d, want %d", got, want+3)
		}
	}
	// One more than fit, one for each full page, and one that is under way.
	if most := int64(time.Since(begin)/streamEvery) + events/streamPage + 2; f.reads.Load() > most {
		t.Errorf("the log was read %d times within %s, want %d at most", f.reads.Load(), time.Since(begin), most)
	}
}

// TestStreamsOfAKeyAreCounted: one key had hundreds of streams, and nobody counted.
// Those of one key leave other keys theirs, and one that has ended another its place.
func TestStreamsOfAKeyAreCounted(t *testing.T) {
	w, url := served(t)
	w.create(`{}`)
	streams := []*stream{}
	for range held.MaxKeyFollowers {
		s := follow(t, url+"/v1/events?follow=true", nil)
		s.next()
		streams = append(streams, s)
	}
	w.do("GET", "/v1/events?follow=true", "").fails(http.StatusTooManyRequests, "too_many_event_streams", "32 times")
	w.do("GET", "/v1/events", "").Is(http.StatusOK)
	follow(t, url+"/v1/events?follow=true", map[string]string{"X-API-Key": apitest.OwnKey}).next()
	streams[0].stop()
	testmode.Eventually(t, "a stream in place of one that has ended", func() bool {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/events?follow=true", nil)
		r.Header.Set("X-API-Key", goodKey)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// TestStreamAfterABreakLosesNothing: clients that break off and come back with
// the last id see every event once and in order, while commits go on.
func TestStreamAfterABreakLosesNothing(t *testing.T) {
	const writers, rounds, readers = 4, 60, 4
	w, url := served(t)
	id := w.create(`{}`)
	want := 2 + writers*rounds
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for i := range rounds {
				if a := w.do("PATCH", base+"/"+id, fmt.Sprintf(`{"maxLifetime":%d}`, 1000+i)); a.Status != http.StatusOK {
					t.Errorf("patch: %s", a.Body)
				}
			}
		})
	}
	for reader := range readers {
		all.Go(func() {
			last := int64(0)
			for last < int64(want) {
				s := follow(t, url+"/v1/events?follow=true", map[string]string{"Last-Event-ID": fmt.Sprint(last)})
				for range 1 + reader*7 { // then break off
					seq, _ := s.event()
					if seq != last+1 {
						t.Errorf("event %d after %d", seq, last)
						s.stop()
						return
					}
					if last = seq; last == int64(want) {
						break
					}
				}
				s.stop()
			}
		})
	}
	all.Wait()
	if got := len(w.Fake.Log()); got != want {
		t.Errorf("%d events, want %d", got, want)
	}
}

// TestEventForm: an event is in lists and streams as clients of this API read it.
func TestEventForm(t *testing.T) {
	var e store.Event
	golden.Fill(t, &e)
	data, err := json.MarshalIndent(viewEvent(e), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Hold(t, filepath.Join("testdata", "event-v1.json"), data)
}
