// Package drivers knows, by their names, the kinds of runtimes that this program
// has. It is the one place that names them: the server, doctor, gc and fsck go
// through it.
package drivers

import (
	"context"
	"log/slog"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor"
)

// Driver is a runtime.Driver that a server has open.
type Driver interface {
	runtime.Driver
	// Close gives back what waits. What runs goes on.
	Close() error
}

// Warm says how many runtimes wait for a start, and what they are like.
type Warm struct {
	Count int
	Spec  runtime.Spec
}

// DiskRates bound what each runtime reads from and writes to the disks under the
// driver's state, in bytes per second; 0 is no bound.
type DiskRates struct{ Read, Write int64 }

// Options are what a driver is told. Log may be nil if no runtime waits or is
// adopted.
type Options struct {
	Warm      Warm
	DiskRates DiskRates
	Log       *slog.Logger
}

// Usage is what a runtime takes that no server has open.
type Usage struct {
	Processes int
	Memory    int64 // in bytes; 0 where that is not known
}

// Remains is what there is of runtimes that no server has open. It starts
// nothing, and changes nothing by itself.
type Remains interface {
	// List returns the ids of all runtimes that exist in any state.
	List(ctx context.Context) ([]string, error)
	// Dir returns the directory of a runtime.
	Dir(id string) string
	// Remove destroys what is left of a runtime. It is idempotent.
	Remove(ctx context.Context, id string) error
	Usage(id string) Usage
	// Close lets go of what all runtimes share, if none is left.
	Close() error
}

// Kind is a kind of runtimes.
type Kind struct {
	Name string
	Dir  string // where its driver keeps its state, below the server's directory for what runs
	// Open returns a driver that keeps its state in a directory, and the programs
	// that memory images need in kept. Runtimes wait as o.Warm says until ctx ends
	// or it is closed.
	Open func(ctx context.Context, dir string, kept *builds.Store, o Options) (Driver, error)
	// TryDiskRates returns the disks under a directory whose use by runtimes can be
	// limited, and what limits it.
	TryDiskRates func(ctx context.Context, dir string) (disks []string, by string, err error)
	// Remains returns what there is in such a directory that nobody has open.
	Remains func(dir string) (Remains, error)
	// handover becomes a tool of the runtime if this process was started as such,
	// and does not return then.
	handover func()
}

// kinds are all of them, the one that a server uses unless told first.
var kinds = []Kind{{
	Name: "gvisor", Dir: "gv", handover: gvisor.Handover,
	Open: func(ctx context.Context, dir string, kept *builds.Store, o Options) (Driver, error) {
		return gvisor.New(ctx, dir, kept, gvisor.Options{Warm: gvisor.Warm(o.Warm), DiskRates: gvisor.DiskRates(o.DiskRates), Log: o.Log})
	},
	TryDiskRates: gvisor.TryDiskRates,
	Remains: func(dir string) (Remains, error) {
		r, err := gvisor.RemainsOf(dir)
		return gvisorRemains{r}, err
	},
}}

type gvisorRemains struct{ *gvisor.Remains }

func (r gvisorRemains) Usage(id string) Usage { return Usage(r.Remains.Usage(id)) }

// All returns every kind.
func All() []Kind { return kinds }

// Default returns the kind that a server uses unless it is told.
func Default() Kind { return kinds[0] }

// Handover becomes a tool of a runtime if this process was started as such, and
// does not return then. A program that opens drivers calls it first.
func Handover() {
	for _, k := range kinds {
		k.handover()
	}
}
