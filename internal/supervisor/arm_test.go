package supervisor

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/timers"
)

// BenchmarkArm is all that activity does to the clocks of a sandbox: to find
// its next deadline and move it, among 100,000.
func BenchmarkArm(b *testing.B) {
	const n = 100_000
	s := &Supervisor{timers: timers.New[*box](nil)}
	boxes := make([]box, n)
	began := ids.Now()
	for i := range boxes {
		boxes[i].s = s
		boxes[i].sb.Record = lifecycle.Record{
			State: lifecycle.Running, StartedAt: began, EndAt: began.Add(rand.N(time.Hour)),
			Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, IdleTimeout: rand.N(time.Hour)},
		}
		boxes[i].arm()
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i = (i + 7919) % n
		boxes[i].work.Last = ids.Now()
		boxes[i].arm()
	}
}
