package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/client"
)

// noon is when the explanations here are asked for.
var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.Local)

func fromNoon(d time.Duration) time.Time { return noon.Add(d) }

func clocksOf(timeout, idle client.Clock) []client.Clock {
	timeout.Name, idle.Name = client.ClockTimeout, client.ClockIdle
	return []client.Clock{
		{Name: client.ClockLifetime, Status: client.ClockRunning, Limit: 24 * time.Hour, Deadline: fromNoon(20 * time.Hour), Action: client.Kill},
		{Name: client.ClockRetention, Status: client.ClockStopped, Limit: time.Hour, Action: client.Kill},
		timeout, idle,
	}
}

// TestWhy holds what a screen says, word by word.
func TestWhy(t *testing.T) {
	off := client.Clock{Status: client.ClockOff}
	for _, tt := range []struct {
		name string
		x    client.Explanation
		want string
	}{
		{
			name: "busy, with stalled and ignored work",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Running, Generation: 2, Busy: true,
				Holds: []client.Hold{
					{ID: "h1", Kind: client.HoldLease, Detail: "nightly build", Since: fromNoon(-3 * time.Minute), LastProgress: fromNoon(-3 * time.Minute), Until: fromNoon(7 * time.Minute), Counts: true},
					{ID: "r1", Kind: client.HoldRequest, Detail: "port 8000", Since: fromNoon(-time.Second), Counts: true},
					{ID: "p1", Kind: client.HoldProcess, Detail: "python3  train.py\n--epochs 100000000000000000000", Since: fromNoon(-26 * time.Hour), LastProgress: fromNoon(-10 * time.Second), Until: fromNoon(30*time.Minute - 10*time.Second), Counts: true},
					{ID: "p2", Kind: client.HoldProcess, Detail: "sleep infinity", Since: fromNoon(-time.Hour), LastProgress: fromNoon(-50 * time.Minute), Until: fromNoon(-20 * time.Minute)},
					{ID: "r2", Kind: client.HoldStream, Detail: "port 9100", Since: fromNoon(-time.Minute), LastProgress: fromNoon(-time.Second), Until: fromNoon(29 * time.Minute)},
					{ID: "r3", Kind: client.HoldStream, Detail: "port 9100", Since: fromNoon(-time.Minute)},
					{ID: "r4", Kind: client.HoldStream, Detail: "port 9100", Since: fromNoon(-time.Minute)},
				},
				Clocks: clocksOf(
					client.Clock{Status: client.ClockRunning, Limit: 5 * time.Minute, Deadline: fromNoon(4*time.Minute + 12*time.Second), Action: client.Pause},
					client.Clock{Status: client.ClockHeld, Limit: 90 * time.Second, Action: client.Kill},
				),
				Next: client.Next{Text: "paused (TimeoutExpired) at …", Action: "pause", Clock: client.ClockTimeout, At: fromNoon(4*time.Minute + 12*time.Second)},
				Transitions: []client.Event{
					{Time: fromNoon(-time.Minute), Type: "hold.stalled", From: "running", To: "running", Detail: "sleep infinity"},
					{Time: fromNoon(-2 * time.Minute), Type: "resumed", From: "resuming", To: "running", Cause: "access", Duration: 117 * time.Millisecond},
					{Time: fromNoon(-13 * time.Hour), Type: "paused", From: "pausing", To: "paused", Cause: "timeout", Duration: 12 * time.Second, Bytes: 42<<20 + 1<<17, Freed: 80 << 20},
					{Time: fromNoon(-14 * time.Hour), Type: "updated", From: "running", To: "running", Actor: "key:b6f0c1de-0000-4000-8000-000000000001"},
				},
			},
			want: `
i0abc is running, generation 2
next: it is paused in 4m12s (12:04:12), by its timeout

awake because of:
  lease     nightly build
            since 11:57:00, progress 3m0s ago, ends in 7m0s (12:07:00)
  request   port 8000
            since 11:59:59, until it ends
  process   python3 train.py --epochs 1000000000000…
            since Aug 31 10:00:00, progress 10s ago, stalls in 29m50s without progress
  process   sleep infinity
            since 11:00:00, progress 50m0s ago, STALLED 20m0s ago, does not count
  stream    port 9100
            since 11:59:00, progress 1s ago, ignored, does not count
  stream    port 9100
            since 11:59:00, ignored, does not count
  and 1 more: drowse hold i0abc --list

clocks:
  max lifetime       24h     in 20h0m (Sep 2 08:00:00)   then it is terminated
  paused retention   1h      runs while it is paused
  timeout            5m      in 4m12s (12:04:12)         then it is paused
  idle timeout       1m30s   starts when the work ends   then it is terminated

last transitions:
  11:59:00          hold.stalled   running              sleep infinity
  11:58:00          resumed        resuming → running   access            117 ms
  Aug 31 23:00:00   paused         pausing → paused     timeout           12.0 s, 42.1 MiB, 80.0 MiB freed
  Aug 31 22:00:00   updated        running              by key:b6f0c1de
`,
		},
		{
			name: "falling asleep, after failures",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Running, Phase: "pausing", Generation: 1,
				Operation: &client.Operation{
					Phase: "pausing", Attempt: 2, Cause: "idle", StartedAt: fromNoon(-2 * time.Second), Deadline: fromNoon(5 * time.Minute),
					Mode: client.Memory, Cancelable: true,
				},
				Next:          client.Next{Action: "finish", At: fromNoon(5 * time.Minute)},
				PauseFailures: 3, PauseRetryAt: fromNoon(4 * time.Minute), LastError: "pause: no space left on device",
				Holds: []client.Hold{
					{Kind: client.HoldProcess, Detail: "x", Since: fromNoon(0), LastProgress: fromNoon(0), Until: fromNoon(time.Second)},
					{Kind: client.HoldProcess, Detail: "server", Since: fromNoon(0)},
				},
				Clocks: clocksOf(off, off),
			},
			want: `
i0abc is pausing, generation 1
next: pausing succeeds or fails in 5m0s (12:05:00) at the latest
now: pausing for 2s, because of idle by itself, keeping memory, attempt 2; a request that may wake it cancels this
last error: pause: no space left on device
automatic pauses failed 3 times in a row; not tried again for 4m0s (12:04:00)

idle: these do not count as work:
  process   x
            since 12:00:00, progress 0s ago, STALLED, does not count
  process   server
            since 12:00:00, does not count: only requests do

clocks:
  max lifetime       24h    in 20h0m (Sep 2 08:00:00)   then it is terminated
  paused retention   1h     runs while it is paused
  timeout            none
  idle timeout       none
`,
		},
		{
			name: "a fork of a child, which went back",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Running, Phase: "pausing", Generation: 4,
				Operation: &client.Operation{
					Phase: "pausing", Attempt: 1, Cause: "restore", Actor: "key:b6f0c1de-0000-4000-8000-000000000001", StartedAt: fromNoon(-2 * time.Second), Deadline: fromNoon(5 * time.Minute), Mode: client.Memory,
				},
				Next: client.Next{Action: "finish", At: fromNoon(5 * time.Minute)},
				Lineage: []client.Ancestor{
					{Sandbox: "i0def", Generation: 2, At: fromNoon(-time.Hour)},
					{Sandbox: "i0ghi", Generation: 1, At: fromNoon(-13 * time.Hour), Snapshot: "s0abc", Name: "clean"},
					{Sandbox: "i0jkl", Generation: 7, At: fromNoon(-14 * time.Hour), Snapshot: "s0def"},
				},
				Restored: &client.Moment{Snapshot: "s0ghi", At: fromNoon(-time.Minute)},
				Clocks:   clocksOf(off, off)[3:],
			},
			want: `
i0abc is pausing, generation 4
next: pausing succeeds or fails in 5m0s (12:05:00) at the latest
now: pausing for 2s, because of restore by key:b6f0c1de, keeping memory
comes from: a fork of i0def, generation 2, at 11:00:00
and that from: snapshot s0abc (clean) of i0ghi, generation 1, at Aug 31 23:00:00
and that from: snapshot s0def of i0jkl, generation 7, at Aug 31 22:00:00
went back to: snapshot s0ghi, at 11:59:00

idle: no work keeps it awake

clocks:
  idle timeout   none
`,
		},
		{
			name: "silent, and to be ended if idle",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Running, Generation: 1,
				Telemetry: client.Telemetry{MissingSince: fromNoon(-30 * time.Second), DefersIdle: true},
				Next:      client.Next{Text: "nothing is known", WaitsFor: "telemetry"},
				Clocks:    clocksOf(off, client.Clock{Status: client.ClockHeld, Limit: time.Minute, Action: client.Kill})[3:],
			},
			want: `
i0abc is running, generation 1
next: nothing is known
it has not reported its work for 30s, since 11:59:30: it counts as busy until it does

counts as busy: its work is not known

clocks:
  idle timeout   1m   starts when the work ends   then it is terminated
`,
		},
		{
			name: "asleep, and unable to wake",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Paused, Generation: 1,
				Next:   client.Next{Text: "it cannot wake: memory was added", WaitsFor: "repair"},
				Clocks: clocksOf(client.Clock{Status: client.ClockStopped, Limit: time.Minute}, off)[2:],
			},
			want: `
i0abc is paused, generation 1
asleep for 1h0m, since 11:00:00; cannot wake until its checkpoint is repaired
next: it cannot wake: memory was added

clocks:
  timeout        1m     runs while it is running
  idle timeout   none
`,
		},
		{
			name: "asleep",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Paused, Generation: 1,
				Next:   client.Next{Text: "nothing is due: it sleeps until traffic or a resume wakes it"},
				Clocks: clocksOf(client.Clock{Status: client.ClockStopped, Limit: time.Minute}, off)[2:],
			},
			want: `
i0abc is paused, generation 1
asleep for 1h0m, since 11:00:00; wakes on resume
next: nothing is due: it sleeps until traffic or a resume wakes it

clocks:
  timeout        1m     runs while it is running
  idle timeout   none
`,
		},
		{
			name: "asleep lightly",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Paused, Sleep: client.LightSleep, Generation: 1,
				Next:       client.Next{Text: "nothing is due: it sleeps until traffic or a resume wakes it"},
				Checkpoint: &client.Checkpoint{Mode: client.Memory},
				Clocks:     clocksOf(off, off)[3:],
			},
			want: `
i0abc is paused, generation 1
asleep for 1h0m, since 11:00:00; wakes on resume
asleep lightly: its runtime stands by with its memory; a wake takes milliseconds
next: nothing is due: it sleeps until traffic or a resume wakes it

clocks:
  idle timeout   none
`,
		},
		{
			name: "asleep without memory",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Paused, Sleep: client.DeepSleep, Generation: 1,
				Next:       client.Next{Text: "nothing is due: it sleeps until traffic or a resume wakes it"},
				Checkpoint: &client.Checkpoint{Mode: client.Filesystem},
				Clocks:     clocksOf(off, off)[3:],
			},
			want: `
i0abc is paused, generation 1
asleep for 1h0m, since 11:00:00; wakes on resume
asleep deeply: it takes no memory; a wake boots it from its files
next: nothing is due: it sleeps until traffic or a resume wakes it

clocks:
  idle timeout   none
`,
		},
		{
			name: "gone",
			x: client.Explanation{
				Sandbox: "i0abc", State: client.Terminated, Generation: 3,
				Tombstone: &client.Tombstone{Reason: "RuntimeExited", Detail: "exit status 137", At: fromNoon(-time.Hour), Remediation: "create a new one"},
				Clocks:    clocksOf(off, off),
			},
			want: `
i0abc is terminated, generation 3
  reason       RuntimeExited
  detail       exit status 137
  when         ` + fromNoon(-time.Hour).Format(time.RFC3339) + ` (1h0m ago)
  ended by     itself
  what to do   create a new one
`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got strings.Builder
			why(&got, &tt.x, client.Info{State: tt.x.State, PausedAt: fromNoon(-time.Hour), Next: tt.x.Next}, noon)
			if want := strings.TrimPrefix(tt.want, "\n"); plain(got.String()) != plain(want) {
				t.Errorf("got\n%s\nwant\n%s", &got, want)
			}
		})
	}
}

// plain makes all gaps between columns alike.
func plain(text string) string {
	for strings.Contains(text, "   ") {
		text = strings.ReplaceAll(text, "   ", "  ")
	}
	return text
}

func TestNext(t *testing.T) {
	next1 := func(a client.Action, c client.ClockName, in time.Duration, waitsFor string) client.Next {
		return client.Next{Action: string(a), Clock: c, At: fromNoon(in), WaitsFor: waitsFor}
	}
	for _, tt := range []struct {
		want string
		i    client.Info
	}{
		{"runs until paused or killed", client.Info{State: client.Running}},
		{"killed in 2h0m (timeout)", client.Info{State: client.Running, Next: next1(client.Kill, client.ClockTimeout, 2*time.Hour, "")}},
		{"asleep in 3m0s (idle)", client.Info{State: client.Running, Next: next1(client.Pause, client.ClockIdle, 3*time.Minute, "")}},
		{"asleep in 1m0s (timeout)", client.Info{State: client.Running, Next: next1(client.Pause, client.ClockTimeout, time.Minute, "process")}},
		{"busy (lease)", client.Info{State: client.Running, Next: client.Next{WaitsFor: "lease"}}},
		{"runs; its work is not known", client.Info{State: client.Running, Next: client.Next{WaitsFor: "telemetry"}}},
		{"pauses", client.Info{State: client.Running, Phase: "pausing", Next: client.Next{Action: "finish", Clock: "operation", At: noon}}},
		{"wakes", client.Info{State: client.Paused, Phase: "resuming"}},
		{"starts", client.Info{State: client.Pending, Phase: "creating"}},
		{"wakes on traffic", client.Info{State: client.Paused, Next: client.Next{WaitsFor: "traffic"}}},
		{"wakes on resume", client.Info{State: client.Paused, Next: client.Next{WaitsFor: "resume"}}},
		{"wakes on resume, killed in 1h0m (retention)", client.Info{State: client.Paused, Next: next1(client.Kill, client.ClockRetention, time.Hour, "resume")}},
		{"wakes on traffic, killed in 30m0s (lifetime)", client.Info{State: client.Paused, Next: next1(client.Kill, client.ClockLifetime, 30*time.Minute, "traffic")}},
		{"Killed 5s ago", client.Info{State: client.Terminated, Phase: "killing", Tombstone: &client.Tombstone{Reason: "Killed", At: fromNoon(-5 * time.Second)}}},
	} {
		t.Run(tt.want, func(t *testing.T) {
			if got := next(tt.i, noon); got != tt.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestListFits: with names of 12 letters, sleepers and all, a list fits 80 characters.
func TestListFits(t *testing.T) {
	one := func(state client.State, phase client.Phase, n client.Next) client.Info {
		return client.Info{
			ID: "i0123456789abcdefghij", Name: "twelve-chars", State: state, Phase: phase, Next: n, Alias: "code-interpreter-v1",
			CreatedAt: fromNoon(-200*time.Hour - 59*time.Minute),
		}
	}
	sleeper := client.Next{Action: "kill", Clock: client.ClockRetention, At: fromNoon(30*24*time.Hour - time.Minute), WaitsFor: "traffic"}
	var b strings.Builder
	tableOf(&b, []client.Info{
		one(client.Paused, "", sleeper),
		one(client.Running, "pausing", client.Next{Action: "finish", Clock: "operation", At: noon}),
		one(client.Running, "", client.Next{Action: "pause", Clock: client.ClockIdle, At: fromNoon(23*time.Hour + 59*time.Minute)}),
		one(client.Running, "", client.Next{WaitsFor: "telemetry"}),
	}, noon, false)
	for line := range strings.Lines(b.String()) {
		if n := len(strings.TrimSpace(line)); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if want := "i0123456789abcdefghij  twelve-chars  paused   8d   killed in 29d23h  traffic\n"; !strings.Contains(b.String(), want) {
		t.Errorf("got\n%s\nwant a line\n%s", &b, want)
	}
}

// TestTemplatesFit: twelve names of one template, and a long image, fit 80 characters.
func TestTemplatesFit(t *testing.T) {
	many := client.Template{ID: "img0123456789abcdef0123", MadeAt: fromNoon(-50 * time.Hour), Image: &client.Image{Ref: "index.docker.io/library/python:3.12"}}
	for n := range 12 {
		many.Names = append(many.Names, fmt.Sprintf("python:3.12.%d", n))
	}
	digest := client.Template{ID: many.ID, MadeAt: noon, Image: &client.Image{Ref: "registry.example.com/owner/tools@sha256:" + strings.Repeat("ab", 32)}}
	var b strings.Builder
	tableOfTemplates(&b, []client.Template{many, digest}, noon, false)
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	for _, want := range []string{"python:3.12.0 +11  ", "  python:3.12  ", "  2d ago\n", "\nimg0123456789abcdef0123  "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", &b, want)
		}
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", time.Hour: "1h", 90 * time.Second: "1m30s", 90 * time.Minute: "1h30m", 10 * time.Second: "10s",
		20 * time.Minute: "20m", 10 * time.Hour: "10h", 1500 * time.Millisecond: "1.5s", 24*time.Hour + time.Second: "24h0m1s",
	} {
		if got := length(d); got != want {
			t.Errorf("length(%v) = %q, want %q", d, got, want)
		}
	}
	for actor, want := range map[string]string{"": "itself", "key:b6f0c1de-0000-4000": "key:b6f0c1de", "traffic": "traffic", "key:x": "key:x"} {
		if got := by(actor); got != want {
			t.Errorf("by(%q) = %q, want %q", actor, got, want)
		}
	}
}

// TestRenewed: why says which timeout a wake begins with, where that is not the one that
// it shows.
func TestRenewed(t *testing.T) {
	const minutes = time.Minute
	paused := client.Settings{OnTimeout: client.Pause}
	woken := client.Settings{OnTimeout: client.Pause, AutoResume: true}
	for _, tt := range []struct {
		want string
		x    client.Explanation
		i    client.Info
	}{
		{"", client.Explanation{State: client.Running, Generation: 1}, client.Info{Timeout: 5 * minutes, Settings: client.Settings{OnTimeout: client.Kill}}},
		{"", client.Explanation{State: client.Paused, Generation: 1}, client.Info{Settings: paused}},
		{"each wake begins a new timeout of 5m; drowse timeout moves only this one", client.Explanation{State: client.Running, Generation: 2}, client.Info{Timeout: 5 * minutes, Settings: client.Settings{OnTimeout: client.Kill}}},
		{"each wake begins a new timeout of 2m; drowse timeout moves only this one", client.Explanation{State: client.Running, Generation: 1}, client.Info{Timeout: 2 * minutes, Settings: paused}},
		{"each wake begins a new timeout of 2m, or 5m if traffic wakes it; drowse timeout moves only this one", client.Explanation{State: client.Paused, Generation: 1}, client.Info{Timeout: 2 * minutes, Settings: woken}},
		{"each wake begins a new timeout of 1h; drowse timeout moves only this one", client.Explanation{State: client.Paused, Generation: 1}, client.Info{Timeout: 60 * minutes, Settings: woken}},
	} {
		if got := renewed(&tt.x, tt.i); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
