// Package capacity knows what a server has for more sandboxes.
package capacity

import (
	"errors"
	goruntime "runtime"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/lightsleep"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// Options are what a Gauge looks at.
type Options struct {
	Driver    runtime.Driver
	Slots     *quota.Slots
	Memory    *lightsleep.Room
	Disk      *space.Disk
	Templates *templates.Catalog
}

// Gauge looks at what a server has.
type Gauge struct{ o Options }

// New returns one.
func New(o Options) Gauge { return Gauge{o} }

// Capacity returns what the server has for more sandboxes.
func (g Gauge) Capacity() (store.Room, error) {
	can := g.o.Driver.Capabilities()
	r := store.Room{Architecture: goruntime.GOARCH, Runtime: can.Version, CPU: can.CPU, Templates: map[string]string{}}
	r.Running, r.MaxRunning = g.o.Slots.Running()
	memory, err := g.o.Memory.Available()
	disk, err2 := g.o.Disk.Free()
	list, err3 := g.o.Templates.Templates()
	for _, t := range list {
		for _, name := range t.Names {
			r.Templates[name] = t.ID
		}
	}
	r.MemoryMiB, r.DiskMiB = int(memory>>20), int(disk>>20)
	return r, errors.Join(err, err2, err3)
}
