package quota

import (
	"math"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

func TestLimits(t *testing.T) {
	l := Limits{
		Default: store.Limits{CPUs: 2, MemoryMiB: 1024, DiskMiB: 7, PIDs: 2048},
		Most:    store.Limits{CPUs: 4, MemoryMiB: 4096, DiskMiB: 100, PIDs: 4096},
	}
	for _, c := range []struct{ asked, want store.Limits }{
		{store.Limits{}, l.Default},
		{store.Limits{CPUs: 0.25}, store.Limits{CPUs: 0.25, MemoryMiB: 1024, DiskMiB: 7, PIDs: 2048}},
		{store.Limits{CPUs: 4}, store.Limits{CPUs: 4, MemoryMiB: 1024, DiskMiB: 7, PIDs: 2048}},
		{store.Limits{CPUs: 1, MemoryMiB: 128, PIDs: 256}, store.Limits{CPUs: 1, MemoryMiB: 128, DiskMiB: 7, PIDs: 256}},
		{store.Limits{DiskMiB: 100}, store.Limits{CPUs: 2, MemoryMiB: 1024, DiskMiB: 100, PIDs: 2048}},
	} {
		if got, err := l.Grant(c.asked); err != nil || got != c.want {
			t.Errorf("asked for %+v: got %+v, %v; want %+v", c.asked, got, err, c.want)
		}
	}
	for _, asked := range []store.Limits{{CPUs: 4.01}, {CPUs: 0.09}, {CPUs: -1}, {CPUs: math.NaN()}, {MemoryMiB: 4097}, {MemoryMiB: 127}, {DiskMiB: 101}, {DiskMiB: 63}, {PIDs: 4097}, {PIDs: 255}} {
		if got, err := l.Grant(asked); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("asked for %+v: got %+v, %v; want a refusal", asked, got, err)
		}
	}
}
