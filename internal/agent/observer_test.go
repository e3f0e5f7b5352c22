package agent

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestParseStat(t *testing.T) {
	const gvisor = "36 (a (b) c) S 31 22 22 0 0 0 0 0 0 0 62 2 5 1 20 0 17 0 3117 10956800 766 18446744073709551615 0 0\n"
	got, ok := parseStat(36, []byte(gvisor))
	want := procStat{pid: 36, name: "a (b) c", state: 'S', parent: 31, session: 22, ticks: 70, threads: 17, start: 3117, memory: 766 * int64(os.Getpagesize())}
	if !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	for _, text := range []string{"", "1", "1 )(", "1 (x) S 1 2", "1 (x)"} {
		if got, ok := parseStat(1, []byte(text)); ok {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("36 (a) S 31 22 22 0 0 0 0 0 0 0 62 2 5 1 20 0 17 0 3117 10956800")
	f.Fuzz(func(t *testing.T, text string) {
		parseStat(1, []byte(text))
		parseIO([]byte(text))
	})
}

func TestParseIO(t *testing.T) {
	got := parseIO([]byte("rchar: 2400\nwchar: 7\nsyscr: 3\nsyscw: 1\nread_bytes: 9\nodd\n"))
	if want := (procIO{bytesRead: 2400, bytesWritten: 7, reads: 3, writes: 1}); got != want {
		t.Errorf("got %+v", got)
	}
}

// What was measured to be idling is no progress at any distance of looks, and
// work is.
func TestUsedCPU(t *testing.T) {
	start := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		every time.Duration
		ticks []uint64 // in each interval, again and again
		want  bool
	}{
		{"nothing", 5 * time.Second, []uint64{0}, false},
		{"http.server", 5 * time.Second, []uint64{0, 3, 0, 1}, false},
		{"timer of 10 Hz", 5 * time.Second, []uint64{3, 9, 2, 5}, false},
		{"JVM", 5 * time.Second, []uint64{7, 14, 9, 15, 25, 3}, false},
		{"JVM, looked at often", 100 * time.Millisecond, []uint64{0, 0, 2, 0, 0, 0, 0, 1, 0, 0}, false},
		{"JVM, looked at after hours", 3 * time.Hour, []uint64{13000}, false},
		{"busy", 5 * time.Second, []uint64{500}, true},
		{"busy, looked at often", 100 * time.Millisecond, []uint64{10}, true},
		{"a twentieth", 5 * time.Second, []uint64{25}, true},
		{"a second a minute", 5 * time.Second, []uint64{100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, true},
		{"busy, looked at after hours", 3 * time.Hour, []uint64{1000000}, true},
		{"counters begin anew", 5 * time.Second, []uint64{1 << 63, 1 << 63}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &sample{at: start}
			got := false
			for i := range 600 {
				now, ticks := s.at.Add(tt.every), s.ticks+tt.ticks[i%len(tt.ticks)]
				if s.usedCPU(ticks, now) {
					got, s.level = true, 0
				}
				s.at, s.ticks = now, ticks
			}
			if got != tt.want {
				t.Errorf("progress = %v", got)
			}
		})
	}
}

func TestDidIO(t *testing.T) {
	before := procIO{bytesRead: 1000, bytesWritten: 1000, reads: 10, writes: 10}
	tests := []struct {
		name    string
		add     procIO
		ignored uint64
		want    bool
	}{
		{"nothing", procIO{}, 0, false},
		{"reads that failed", procIO{reads: 100}, 0, false},
		{"an eventfd", procIO{bytesRead: 80, reads: 20, bytesWritten: 80, writes: 10}, 0, false},
		{"a line", procIO{bytesWritten: 9, writes: 1}, 0, true},
		{"a block", procIO{bytesRead: 4096, reads: 1}, 0, true},
		{"an answer to a poll", procIO{bytesRead: 300, reads: 2, bytesWritten: 700, writes: 2}, 1000, false},
		{"more than the polls", procIO{bytesRead: 300, reads: 2, bytesWritten: 4096, writes: 2}, 1000, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := procIO{
				bytesRead: before.bytesRead + tt.add.bytesRead, bytesWritten: before.bytesWritten + tt.add.bytesWritten,
				reads: before.reads + tt.add.reads, writes: before.writes + tt.add.writes,
			}
			if got := (&sample{io: before}).didIO(now, tt.ignored); got != tt.want {
				t.Errorf("progress = %v", got)
			}
		})
	}
}

// What the template starts is no work, nor what descends from it.
func TestExempt(t *testing.T) {
	cmd := exec.Command("/bin/bash", "-c", "sleep 81 & echo; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("pkill", "-P", itoa(cmd.Process.Pid)).Run(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for _, exempt := range []bool{false, true} {
		o := newObserver(true, func() []int {
			if exempt {
				return []int{cmd.Process.Pid}
			}
			return nil
		})
		found := func() (n int) {
			list, err := o.look(0)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list {
				if p.PID == cmd.Process.Pid || p.Command == "sleep 81" {
					n++
				}
			}
			return n
		}
		if exempt {
			if n := found(); n != 0 {
				t.Errorf("%d of two that are exempt are found", n)
			}
		} else {
			testmode.Eventually(t, "both are found", func() bool { return found() == 2 })
		}
		o.processEnded(cmd.Process.Pid)
		if got := o.end().IsZero(); got != exempt {
			t.Errorf("exempt %v: its end is %v", exempt, o.end())
		}
	}
}

// The JVM's burst after a wake is no progress; a job that goes on is.
func TestUsedCPUAfterWake(t *testing.T) {
	o := newObserver(true, nil)
	now := wallNow()
	o.looked = now.Add(-time.Hour)
	for pid, used := range map[int]uint64{1: 80, 2: 400} {
		o.samples[pid] = &sample{at: o.looked, ticks: 1000, progress: o.looked.Add(-time.Minute), level: float64(used % 10)}
	}
	o.woke()
	for pid, used := range map[int]uint64{1: 80, 2: 400} {
		s := o.samples[pid]
		if quiet := wallNow().Sub(s.progress); quiet < time.Minute || quiet > 2*time.Minute {
			t.Errorf("quiet for %v after an hour asleep", quiet)
		}
		if got := s.usedCPU(1000+used, s.at.Add(5*time.Second)); got != (pid == 2) {
			t.Errorf("%d ticks: progress = %v", used, got)
		}
		if s.level < 0 {
			t.Errorf("%d ticks: a credit of %v is left", used, s.level)
		}
	}
}
