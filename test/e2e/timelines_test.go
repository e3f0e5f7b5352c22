package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestTimelines plays the first five timelines of lifecycle.md 12 with curl,
// with seconds in place of minutes. test/conformance plays them with the SDKs.
func TestTimelines(t *testing.T) {
	t.Parallel()
	for _, line := range []struct {
		name    string
		options string
		play    func(*curl)
	}{
		{"two minutes", `{"timeoutSeconds": 2, "onTimeout": "pause", "autoResume": true}`, playTwoMinutes},
		{"one hour", `{"timeoutSeconds": 3600, "onTimeout": "pause", "autoResume": true}`, playOneHour},
		{"background job", `{"timeoutSeconds": 600, "onTimeout": "pause", "autoResume": true}`, playBackgroundJob},
		{"live deadline", `{"idleTimeoutSeconds": 4, "onIdle": "pause"}`, playLiveDeadline},
		{"manual only", `{"timeoutSeconds": 2, "onTimeout": "pause"}`, playManualOnly},
	} {
		t.Run(line.name, func(t *testing.T) {
			t.Parallel()
			line.play(startServer(t).curlCreate(deadline(t, 2*time.Minute), line.options))
		})
	}
}

// wakeAtLeast is the least time that a wake by traffic gives.
const wakeAtLeast = 300 * time.Second

func playTwoMinutes(c *curl) {
	c.pausedAt("timeout", 1, c.info().StartedAt.Add(2*time.Second))
	c.wakes(2, wakeAtLeast)
	c.pausedAt("timeout", 2, c.setTimeout(1))
	c.wakes(3, wakeAtLeast) // every cycle is the same
}

func playOneHour(c *curl) {
	c.pausedAt("timeout", 1, c.setTimeout(1))
	c.wakes(2, time.Hour)
}

func playBackgroundJob(c *curl) {
	c.background("SECONDS=0; while ((SECONDS < 8)); do :; done; date +%s.%N >ended")
	c.on(http.MethodPatch, "", `{"idleTimeoutSeconds": 2}`)
	eventually(c.s.t, 10*time.Second, "the job counts as work", func() error {
		x := c.explain()
		works := slices.ContainsFunc(x.Holds, func(h client.Hold) bool { return h.Kind == client.HoldProcess && h.Counts })
		if !works || !x.Busy {
			return fmt.Errorf("%s, busy %t, holds %+v", x.State, x.Busy, x.Holds)
		}
		return nil
	})
	pausing := c.paused("idle", 1)
	status, content := c.read("ended") // wakes it
	ended := unixTime(c.s.t, content)
	if status != http.StatusOK {
		c.s.t.Fatalf("read what the job left: status %d: %s", status, content)
	}
	checkAfter(c.s.t, "idle after the end of the job", ended.Add(2*time.Second-maxClockError), pausing.Time)
	if x := c.explain(); x.Generation != 2 {
		c.s.t.Errorf("generation %d after the wake, want 2", x.Generation)
	}
	c.stillResumes(true)
}

func playLiveDeadline(c *curl) {
	due := c.setTimeout(8)
	eventually(c.s.t, 20*time.Second, "the sandbox ends", func() error {
		if state := c.info().State; state != client.Terminated {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	x := c.explain()
	if x.Tombstone == nil || x.Tombstone.Reason != "TimeoutExpired" || x.Generation != 1 {
		c.s.t.Fatalf("tombstone %+v of generation %d, want TimeoutExpired of generation 1", x.Tombstone, x.Generation)
	}
	checkAfter(c.s.t, "end", due, x.Tombstone.At)
	for _, e := range x.Transitions {
		if e.Cause == "idle" {
			c.s.t.Errorf("it was idle at %s: %s", e.Time, e.Type)
		}
	}
}

func playManualOnly(c *curl) {
	c.pausedAt("timeout", 1, c.info().StartedAt.Add(2*time.Second))
	if status, answer := c.read("/etc/hostname"); status != http.StatusBadGateway || !strings.Contains(answer, c.id) {
		c.s.t.Errorf("request to a sandbox that it may not wake: status %d: %s; want 502 that names the sandbox", status, answer)
	}
	if x := c.explain(); x.State != client.Paused || x.Generation != 1 {
		c.s.t.Errorf("after the request it is %s in generation %d, want paused in 1", x.State, x.Generation)
	}
	resumed := c.on(http.MethodPost, "/resume", `{"timeoutSeconds": 60}`)
	c.awake(resumed, 2, time.Minute)
	if status, answer := c.read("/etc/hostname"); status != http.StatusOK {
		c.s.t.Errorf("request after the resume: status %d: %s", status, answer)
	}
	c.stillResumes(false)
}

// paused waits until the sandbox has been paused in the generation, and returns
// the event with which that began.
func (c *curl) paused(cause string, generation int64) client.Event {
	c.s.t.Helper()
	eventually(c.s.t, 20*time.Second, "the sandbox is paused", func() error {
		if info := c.info(); info.State != client.Paused {
			return fmt.Errorf("it is %s", info.State)
		}
		return nil
	})
	x := c.explain()
	i := slices.IndexFunc(x.Transitions, func(e client.Event) bool { return e.Type == "pausing" })
	if i < 0 {
		c.s.t.Fatalf("no pause among %+v", x.Transitions)
	}
	pausing := x.Transitions[i]
	if x.Generation != generation || pausing.Generation != generation || pausing.Cause != cause {
		c.s.t.Errorf("generation %d was paused by %s, want %d by %s", pausing.Generation, pausing.Cause, generation, cause)
	}
	if end := c.info().EndAt; !end.IsZero() {
		c.s.t.Errorf("asleep it ends at %s", end)
	}
	c.s.t.Logf("generation %d was paused by %s", generation, cause)
	return pausing
}

// pausedAt is paused, not before it was due.
func (c *curl) pausedAt(cause string, generation int64, due time.Time) {
	c.s.t.Helper()
	checkAfter(c.s.t, "pause", due, c.paused(cause, generation).Time)
}

// wakes wakes the sandbox with a request, and checks what that gave it.
func (c *curl) wakes(generation int64, granted time.Duration) {
	c.s.t.Helper()
	if status, answer := c.read("/etc/hostname"); status != http.StatusOK {
		c.s.t.Fatalf("request to the sleeping sandbox: status %d: %s", status, answer)
	}
	c.awake(c.info(), generation, granted)
	c.stillResumes(true)
}

func (c *curl) awake(info client.Info, generation int64, granted time.Duration) {
	c.s.t.Helper()
	x := c.explain()
	if x.State != client.Running || x.Generation != generation {
		c.s.t.Fatalf("it is %s in generation %d, want running in %d", x.State, x.Generation, generation)
	}
	if got := info.EndAt.Sub(info.StartedAt); got != granted {
		c.s.t.Errorf("generation %d was given %s, want %s", generation, got, granted)
	}
	i := slices.IndexFunc(x.Clocks, func(k client.Clock) bool { return k.Name == client.ClockTimeout })
	if i < 0 || !x.Clocks[i].Deadline.Equal(info.EndAt) {
		c.s.t.Errorf("the clocks %+v do not say that it ends at %s", x.Clocks, info.EndAt)
	}
}

func (c *curl) stillResumes(want bool) {
	c.s.t.Helper()
	if got := c.info().Settings.AutoResume; got != want {
		c.s.t.Errorf("autoResume is %t, want %t", got, want)
	}
}

// checkAfter checks that something happened when it was due: never before, and
// not much later.
func checkAfter(t testing.TB, what string, due, got time.Time) {
	t.Helper()
	late := got.Sub(due)
	if late < 0 || late > maxLateness {
		t.Errorf("%s %s after it was due, want 0 to %s", what, late, maxLateness)
	}
	t.Logf("%s %s after it was due", what, late.Round(time.Millisecond))
}

// maxLateness is what a busy machine may add to a deadline.
const maxLateness = time.Minute

// unixTime reads what date +%s.%N wrote.
func unixTime(t testing.TB, text string) time.Time {
	t.Helper()
	seconds, nanoseconds, ok := strings.Cut(strings.TrimSpace(text), ".")
	s, err := strconv.ParseInt(seconds, 10, 64)
	ns, err2 := strconv.ParseInt(nanoseconds, 10, 64)
	if err := errors.Join(err, err2); !ok || err != nil {
		t.Fatalf("%q is no time: %v", text, err)
	}
	return time.Unix(s, ns)
}
