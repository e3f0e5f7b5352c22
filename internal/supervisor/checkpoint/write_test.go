package checkpoint

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// metered is a runtime that uses so much memory.
type metered struct {
	runtime.Instance
	memory int64
	err    error
}

func (metered) ID() string { return "r" }

func (m metered) Usage() (runtime.Usage, error) { return runtime.Usage{Memory: m.memory}, m.err }

// TestLarge: only a capture of a runtime that is known to use enough leaves out what
// has not changed.
func TestLarge(t *testing.T) {
	for _, c := range []struct {
		name   string
		deltas int64
		inst   runtime.Instance
		want   bool
	}{
		{"none", 0, metered{memory: 1 << 40}, false},
		{"a small one", 100, metered{memory: 99}, false},
		{"a large one", 100, metered{memory: 100}, true},
		{"one that could not be measured", 100, metered{memory: 100, err: errors.New("no cgroup")}, false},
		{"one that nothing measures", 100, struct{ runtime.Instance }{}, false},
	} {
		x := Reader{Log: slog.New(slog.DiscardHandler), Ways: Ways{Deltas: c.deltas}}
		if got := x.large(c.inst); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
