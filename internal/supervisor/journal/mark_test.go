package journal

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestMark reads a log in pages while it grows: every line comes once, also one of
// the agent that is fetched after newer entries of the event log were read, and
// several of one moment.
func TestMark(t *testing.T) {
	base := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	agent := func(ms int, text string) Line {
		return Line{At: base.Add(time.Duration(ms) * time.Millisecond), Message: text}
	}
	event := func(seq int64, ms int) Line {
		l := agent(ms, fmt.Sprint("event ", seq))
		l.Event = seq
		return l
	}
	log := []Line{event(1, 0), agent(1, "a"), agent(1, "b"), event(4, 1), agent(2, "c")}
	var got []string
	var m Mark
	read := func(page int) {
		t.Helper()
		left := m.After(log)
		left = left[:min(page, len(left))]
		m = m.Past(left)
		for _, l := range left {
			got = append(got, l.Message)
		}
		again, err := ParseMark(m.String())
		if err != nil || again != m {
			t.Fatalf("%q is read as %+v, %v", m, again, err)
		}
		m = again
	}
	read(2)
	read(1)
	read(100)
	log = append(log, event(9, 10))
	read(100)
	// Of moments before the last event, and of that of the last line.
	log = slices.Insert(log, 5, agent(2, "d"), agent(3, "e"), agent(3, "f"))
	read(1)
	read(100)
	read(100)
	want := []string{"event 1", "a", "b", "event 4", "c", "event 9", "d", "e", "f"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, bad := range []string{"x", "1", "1.2", "1.2.3.4", "-1.0.0", "1.-2.0", "0.0.-1", "01.0.0", "1.2.3 ", "99999999999999999999.0.0"} {
		if _, err := ParseMark(bad); err == nil {
			t.Errorf("%q is a mark", bad)
		}
	}
}
