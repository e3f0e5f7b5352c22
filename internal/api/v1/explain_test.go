package v1

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

func (w *world) explain(id string) map[string]any {
	w.T.Helper()
	return w.do("GET", base+"/"+id+"/lifecycle", "").Is(http.StatusOK).Object()
}

// clocksOf returns "status deadline action" by clock.
func clocksOf(o map[string]any) map[string]string {
	clocks := map[string]string{}
	for _, c := range list(o["clocks"]) {
		at, _ := c["deadline"].(string)
		clocks[c["clock"].(string)] = strings.Join(strings.Fields(c["status"].(string)+" "+at+" "+c["action"].(string)), " ")
	}
	return clocks
}

func hasClocks(t *testing.T, o map[string]any, want map[string]string) {
	t.Helper()
	got := clocksOf(o)
	for clock, text := range want {
		if got[clock] != text {
			t.Errorf("%s is %q, want %q", clock, got[clock], text)
		}
	}
	if len(got) != 5 {
		t.Errorf("clocks %v", got)
	}
}

func hasNext(t *testing.T, o map[string]any, action, clock, at any, text string) {
	t.Helper()
	next := o["next"].(map[string]any)
	if next["action"] != action || next["clock"] != clock || next["at"] != at || !strings.Contains(next["text"].(string), text) {
		t.Errorf("next is %v, want %v by %v at %v: %s", next, action, clock, at, text)
	}
}

func TestExplainRunning(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600,"onTimeout":"pause","idleTimeout":60,"maxLifetime":3600,"pausedRetention":30,"checkpointEvery":30}`)
	o := w.explain(id)
	hasClocks(t, o, map[string]string{
		"checkpointEvery": "running 2026-09-01T12:00:30.123456Z checkpoint", // and it is not what comes next: it runs on
		"timeout":         "running 2026-09-01T12:10:00.123456Z pause",
		"idleTimeout":     "running 2026-09-01T12:01:00.123456Z pause",
		"maxLifetime":     "running 2026-09-01T13:00:00.123456Z kill",
		"pausedRetention": "stopped kill",
	})
	hasNext(t, o, "pause", "idleTimeout", "2026-09-01T12:01:00.123456Z", "paused (IdleTimeout) at 2026-09-01T12:01:00Z")
	if o["busy"] != false || o["operation"] != nil || o["tombstone"] != nil || o["sandbox"] != id {
		t.Errorf("%v", o)
	}
	if got := list(o["transitions"]); len(got) != 2 || got[0]["type"] != "running" || got[1]["type"] != "created" || got[1]["cause"] != "call" || got[1]["actor"] == nil {
		t.Errorf("transitions %v", got)
	}
}

func TestExplainBusy(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"idleTimeout":60}`)
	w.Fake.Held[id] = []awake.Hold{
		{ID: "h2", Kind: awake.HoldProcess, Detail: "sleep 900", Since: epoch, LastProgress: epoch, Counts: false},
		{ID: "h1", Kind: awake.HoldStream, Detail: "port 8000", Since: epoch, LastProgress: epoch, Until: epoch.Add(time.Minute), Counts: true},
	}
	o := w.explain(id)
	holds := list(o["holds"])
	if o["busy"] != true || len(holds) != 2 || holds[0]["id"] != "h1" || holds[0]["kind"] != "stream" || holds[0]["until"] != "2026-09-01T12:01:00.123456Z" || holds[1]["until"] != nil || holds[1]["counts"] != false {
		t.Errorf("holds %v", holds)
	}
	hasClocks(t, o, map[string]string{"idleTimeout": "held kill", "timeout": "off kill", "maxLifetime": "off kill"})
	hasNext(t, o, nil, nil, nil, "stays awake while a hold counts")
}

// TestSleep: every answer about a paused sandbox says how it sleeps, and no other.
func TestSleep(t *testing.T) {
	w := newWorld(t)
	id, other := w.create(`{}`), w.create(`{}`)
	says := func(when string, o map[string]any, want any) {
		t.Helper()
		if got, there := o["sleep"]; got != want || there != (want != nil) {
			t.Errorf("%s: sleep is %v, want %v, in %v", when, got, want, o)
		}
	}
	everywhere := func(when string, want any) {
		t.Helper()
		says(when, w.do("GET", base+"/"+id, "").Is(http.StatusOK).Object(), want)
		says(when+", explained", w.explain(id), want)
		says(when+", changed", w.do("PATCH", base+"/"+id, `{"idleTimeout":60}`).Is(http.StatusOK).Object(), want)
		for _, sb := range list(w.do("GET", base, "").Is(http.StatusOK).Object()["sandboxes"]) {
			if sb["id"] == id {
				says(when+", listed", sb, want)
			} else {
				says("the other, listed", sb, nil)
			}
		}
	}
	w.Fake.Light[id], w.Fake.Light[other] = true, true
	everywhere("running", nil)
	says("in the answer to the pause", w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK).Object(), "light")
	everywhere("asleep", "light")
	w.Fake.Light[id] = false
	everywhere("released", "deep")
	says("awake", w.do("POST", base+"/"+id+"/resume", "").Is(http.StatusOK).Object(), nil)
	w.Fake.Light[id] = true
	says("without memory", w.do("POST", base+"/"+id+"/pause", `{"mode":"filesystem"}`).Is(http.StatusOK).Object(), "deep")
	w.do("DELETE", base+"/"+id, "").Is(http.StatusNoContent)
	says("ended", w.explain(id), nil)
}

func TestExplainOthers(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{}`)
	hasNext(t, w.explain(id), nil, nil, nil, "until somebody pauses or kills it")

	id = w.create(`{"timeout":60,"onTimeout":"pause","autoResume":true,"pausedRetention":30,"idleTimeout":5}`)
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	o := w.explain(id)
	hasClocks(t, o, map[string]string{
		"timeout": "stopped pause", "idleTimeout": "stopped pause", "pausedRetention": "running 2026-09-01T12:00:30.123456Z kill",
	})
	hasNext(t, o, "kill", "pausedRetention", "2026-09-01T12:00:30.123456Z", "terminated (PausedExpired)")

	id = w.create(`{"timeout":60,"onTimeout":"pause","autoResume":true}`)
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	hasNext(t, w.explain(id), nil, nil, nil, "traffic or a resume")

	id = w.create(`{"timeout":60}`)
	w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
	hasNext(t, w.explain(id), nil, nil, nil, "somebody resumes it")

	w.do("DELETE", base+"/"+id, "").Is(http.StatusNoContent)
	o = w.explain(id)
	hasNext(t, o, "forget", "tombstone", "2026-10-01T12:00:00.123456Z", "forgotten")
	if o["state"] != "terminated" || o["tombstone"].(map[string]any)["reason"] != "Killed" {
		t.Errorf("%v", o)
	}
	if got := list(o["transitions"]); got[0]["type"] != "terminated" || got[0]["from"] != "paused" || got[0]["to"] != "killing" {
		t.Errorf("transitions %v", got)
	}

	id = w.create(`{"maxLifetime":3600}`)
	sb := w.Fake.Sandboxes[id]
	sb.Record.Op = &lifecycle.Operation{
		ID: "op", Phase: lifecycle.Pausing, Attempt: 1, Cause: lifecycle.CauseIdle, StartedAt: epoch,
		Deadline: epoch.Add(time.Minute), Mode: lifecycle.Memory, Cancelable: true,
	}
	sb.Record.PauseFailures, sb.Record.PauseRetryAt, sb.Record.LastError = 2, epoch.Add(time.Second), "pause: disk full"
	w.Fake.Sandboxes[id] = sb
	o = w.explain(id)
	hasNext(t, o, "finish", "operation", "2026-09-01T12:01:00.123456Z", "pausing ends")
	if op := o["operation"].(map[string]any); op["phase"] != "pausing" || op["cause"] != "idle" || op["actor"] != nil || op["cancelable"] != true || op["mode"] != "memory" {
		t.Errorf("operation %v", op)
	}
	if o["pauseFailures"] != 2.0 || o["pauseRetryAt"] != "2026-09-01T12:00:01.123456Z" || o["lastError"] != "pause: disk full" {
		t.Errorf("%v", o)
	}
}

// TestNextInAnswers: one request for a list tells what all of them wait for.
func TestNextInAnswers(t *testing.T) {
	w := newWorld(t)
	for name, tt := range map[string]struct {
		body                    string
		pause                   bool
		held                    []awake.Hold
		blind                   awake.Blindness
		action, clock, waitsFor any
		text                    string
	}{
		"no limit": {`{}`, false, nil, awake.Blindness{}, nil, nil, nil, "until somebody"},
		"timeout":  {`{"timeout":60,"onTimeout":"pause"}`, false, nil, awake.Blindness{}, "pause", "timeout", nil, "TimeoutExpired"},
		"idle":     {`{"idleTimeout":60}`, false, nil, awake.Blindness{}, "kill", "idleTimeout", nil, "IdleTimeout"},
		"busy":     {`{"idleTimeout":60}`, false, []awake.Hold{{Kind: awake.HoldProcess, Counts: true}}, awake.Blindness{}, nil, nil, "process", "while a hold counts"},
		"busy, and a timeout": {`{"idleTimeout":60,"timeout":90}`, false, []awake.Hold{{Kind: awake.HoldStream, Counts: true}}, awake.Blindness{},
			"kill", "timeout", "stream", "TimeoutExpired"},
		"a process, where requests count": {`{"timeout":60,"refreshOnActivity":"requests"}`, false, []awake.Hold{{Kind: awake.HoldProcess, Counts: true}}, awake.Blindness{},
			"kill", "timeout", nil, "TimeoutExpired"},
		"a request, where requests count": {`{"timeout":60,"refreshOnActivity":"requests"}`, false, []awake.Hold{{Kind: awake.HoldRequest, Counts: true}}, awake.Blindness{},
			nil, nil, "request", "while a hold counts"},
		"a process, where requests count for the timeout alone": {`{"timeout":60,"idleTimeout":30,"refreshOnActivity":"requests"}`, false, []awake.Hold{{Kind: awake.HoldProcess, Counts: true}}, awake.Blindness{},
			"kill", "timeout", "process", "TimeoutExpired"},
		"stalled": {`{"idleTimeout":60}`, false, []awake.Hold{{Kind: awake.HoldProcess}}, awake.Blindness{}, "kill", "idleTimeout", nil, "IdleTimeout"},
		"held, without an idle timeout": {`{}`, false, []awake.Hold{{Kind: awake.HoldProcess, Counts: true}}, awake.Blindness{},
			nil, nil, nil, "until somebody"},
		"silent": {`{"idleTimeout":60,"onIdle":"pause"}`, false, nil, awake.Blindness{Since: epoch, Defers: true, Until: epoch.Add(2 * time.Minute)},
			nil, nil, "telemetry", "held back until 2026-09-01T12:02:00Z"},
		"silent, and to be ended": {`{"idleTimeout":60}`, false, nil, awake.Blindness{Since: epoch, Defers: true}, nil, nil, "telemetry", "while that lasts"},
		"asleep":                  {`{"timeout":60}`, true, nil, awake.Blindness{}, nil, nil, "resume", "somebody resumes"},
		"asleep, for traffic":     {`{"timeout":60,"autoPause":true,"autoResume":true}`, true, nil, awake.Blindness{}, nil, nil, "traffic", "traffic or a resume"},
		"asleep, for a while": {`{"timeout":60,"autoPause":true,"autoResume":true,"pausedRetention":5}`, true, nil, awake.Blindness{},
			"kill", "pausedRetention", "traffic", "PausedExpired"},
	} {
		t.Run(name, func(t *testing.T) {
			id := w.create(tt.body)
			w.Fake.Held[id], w.Fake.Blind[id] = tt.held, tt.blind
			if tt.pause {
				w.do("POST", base+"/"+id+"/pause", "").Is(http.StatusOK)
			}
			check := func(where string, o map[string]any) {
				t.Helper()
				next := o["next"].(map[string]any)
				if next["action"] != tt.action || next["clock"] != tt.clock || next["waitsFor"] != tt.waitsFor || !strings.Contains(next["text"].(string), tt.text) {
					t.Errorf("%s: next is %v", where, next)
				}
			}
			check("get", w.sandbox(id))
			check("lifecycle", w.explain(id))
			listed := list(w.do("GET", base+"?limit=1000", "").Is(http.StatusOK).Object()["sandboxes"])
			for _, o := range listed {
				if o["id"] == id {
					check("list", o)
					return
				}
			}
			t.Error("it is not in the list")
		})
	}
}

func TestExplainSilence(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"idleTimeout":60,"onIdle":"pause"}`)
	same(t, w.explain(id)["telemetry"], `{"missingSince":null,"defersIdle":false,"deferredUntil":null}`)
	w.Fake.Blind[id] = awake.Blindness{Since: epoch, Defers: true, Until: epoch.Add(2 * time.Minute)}
	o := w.explain(id)
	same(t, o["telemetry"], `{"missingSince":"2026-09-01T12:00:00.123456Z","defersIdle":true,"deferredUntil":"2026-09-01T12:02:00.123456Z"}`)
	hasClocks(t, o, map[string]string{"idleTimeout": "held pause", "timeout": "off kill", "maxLifetime": "off kill"})
}

// TestTheTimeoutIsHeld: a timeout that does not run, because work puts it off, is
// told apart from one that cannot run.
func TestTheTimeoutIsHeld(t *testing.T) {
	w := newWorld(t)
	for body, want := range map[string]string{
		`{"timeout":60,"refreshOnActivity":true}`:       "held kill",
		`{"timeout":60,"refreshOnActivity":"requests"}`: "held kill",
		`{"timeout":60}`: "running 2026-09-01T12:01:00.123456Z kill",
	} {
		id := w.create(body)
		w.Fake.Held[id] = []awake.Hold{{Kind: awake.HoldStream, Counts: true}}
		hasClocks(t, w.explain(id), map[string]string{"timeout": want, "idleTimeout": "off kill", "maxLifetime": "off kill"})
	}
}

// TestNextOfADamagedSandbox: what cannot wake is not said to wake by traffic.
// TestNextOfALostSandbox: where its server is gone, what happens next is up to others.
func TestNextOfALostSandbox(t *testing.T) {
	x := supervisor.Explanation{Gone: "srv_a", Sandbox: store.Sandbox{Record: lifecycle.Record{State: lifecycle.Paused}}}
	for where, says := range map[store.Durability]string{store.Replicated: "another goes on with it", store.Local: "until that is back", "": "until that is back"} {
		x.Sandbox.Durability = where
		if next := viewNext(x); !strings.Contains(next.Text, "srv_a is gone") || !strings.Contains(next.Text, says) || next.Action != nil {
			t.Errorf("%q: %+v", where, next)
		}
	}
}

func TestNextOfADamagedSandbox(t *testing.T) {
	x := supervisor.Explanation{Fault: errors.New("memory image differs")}
	x.Sandbox.Record = lifecycle.Record{
		State: lifecycle.Paused, Settings: lifecycle.Settings{AutoResume: true}, Checkpoint: &lifecycle.Checkpoint{Mode: lifecycle.Memory},
	}
	next := viewNext(x)
	if next.WaitsFor == nil || *next.WaitsFor != "repair" || next.Text != "it cannot wake: memory image differs" {
		t.Errorf("next is %+v", next)
	}
	x.Sandbox.Record.Settings.PausedRetention = time.Hour
	x.Deadlines = []lifecycle.Deadline{{Clock: lifecycle.ClockRetention, At: epoch}}
	if next := viewNext(x); *next.WaitsFor != "repair" || next.Text != "it cannot wake: memory image differs; it is terminated (PausedExpired) at 2026-09-01T12:00:00Z" {
		t.Errorf("next is %+v, %s", next, next.Text)
	}
}

// TestListsSayWhyAwake: a list says since when nothing happens in a sandbox, or
// what does.
func TestListsSayWhyAwake(t *testing.T) {
	x := supervisor.Explanation{LastActive: epoch, Holds: []awake.Hold{
		{Kind: awake.HoldStream, Detail: "port 49983", Counts: true}, {Kind: awake.HoldProcess, Detail: "make", Counts: true}, {Kind: awake.HoldStream},
	}}
	if got := awakeBecause(x); got != "stream: port 49983" || openStreams(x) != 2 {
		t.Errorf("awake because of %q with %d streams", got, openStreams(x))
	}
	if got := awakeBecause(supervisor.Explanation{Holds: x.Holds[2:]}); got != "" {
		t.Errorf("awake because of %q, which does not count", got)
	}
}
