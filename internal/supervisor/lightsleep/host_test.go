package lightsleep

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// lines is a log.
type lines struct{ testmode.Output }

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func TestParseMeminfo(t *testing.T) {
	const text = "MemTotal:       24683744 kB\nMemFree:        20450000 kB\nMemAvailable:   23923000 kB\nHugePages_Total:       0\n"
	if total, available, err := parseMeminfo(text); err != nil || total != 24683744<<10 || available != 23923000<<10 {
		t.Errorf("got %d, %d, %v", total, available, err)
	}
	for _, text := range []string{
		"", "MemTotal: 1 kB\n", "MemAvailable: 1 kB\n", "MemTotal: 1 kB\nMemAvailable: x kB\n",
		"MemTotal: 1\nMemAvailable: 1 kB\n", "MemTotal: 1 MB\nMemAvailable: 1 kB\n", "MemTotal: 1 kB\nMemAvailable: -1 kB\n",
	} {
		if _, _, err := parseMeminfo(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestParseStalled(t *testing.T) {
	const text = "some avg10=0.22 avg60=0.10 avg300=0.00 total=170124\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=35261\n"
	if got, err := parseStalled(text); err != nil || got != 170124*time.Microsecond {
		t.Errorf("got %s, %v", got, err)
	}
	for _, text := range []string{"", "full avg10=0.00 total=1\n", "some avg10=0.00\n", "some total=x\n"} {
		if _, err := parseStalled(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// TestThisHost looks at this machine, whatever it is.
func TestThisHost(t *testing.T) {
	h, err := thisHost()
	if err != nil || h.Memory < 64<<20 || h.Available <= 0 || h.Available > h.Memory || h.Stalled < 0 {
		t.Errorf("got %+v, %v", h, err)
	}
}

func BenchmarkLook(b *testing.B) {
	for b.Loop() {
		if _, err := thisHost(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAdd adds one to a room that is full, of one key and of many.
func BenchmarkAdd(b *testing.B) {
	const n = 10_000
	for _, keys := range []int{1, 2, n} {
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			m := &machine{host: Host{Memory: 100 * gib, Available: 40 * gib}}
			share := int64(n)
			if keys == 1 {
				share *= keyPart
			}
			r := New(Options{Most: time.Hour, Memory: share, Look: m.look})
			i := 0
			add := func() {
				i++
				r.Add(&Sleeper{Key: fmt.Sprint(i % keys), Memory: 1, Release: func(Why) {}})
			}
			for range n {
				add()
			}
			for b.Loop() {
				add()
			}
			if got, _ := r.Total(); got != n {
				b.Errorf("%d are there", got)
			}
		})
	}
}
