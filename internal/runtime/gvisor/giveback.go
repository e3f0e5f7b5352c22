package gvisor

import (
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"gvisor.dev/gvisor/runsc/config"
)

// A sentry and a file server that have worked, be it only to start, keep memory that they
// do not use any more: the collector's goal is twice what is in use, and what is freed
// goes back to the host slowly, or not at all. Most sandboxes do nothing most of the time.
// So a process that does nothing gives its unused memory back.

const (
	// afterStart is when a process gives back what its start has left.
	afterStart = 2 * time.Second
	// lookEvery is how often it looks whether there is more.
	lookEvery = 30 * time.Second
	// still is how much a process that does nothing allocates between two looks, in bytes.
	still = 256 << 10
	// worthwhile is how much must be there to be given back, in bytes: a collection takes
	// some milliseconds.
	worthwhile = 1 << 20
)

// giveBack has this process return unused memory to the host, for as long as it runs, if
// it is of a runtime of this server. gVisor's tool in anybody else's hands does nothing
// of its own.
func giveBack(conf *config.Config) {
	if filepath.Base(conf.PanicLog) != sentryLog {
		return
	}
	go func() {
		time.Sleep(afterStart)
		for k := (keeper{}); ; time.Sleep(lookEvery) {
			if k.full(readHeap()) {
				debug.FreeOSMemory()
				k.last = readHeap()
			}
		}
	}()
}

// heapUse is what a process has for what it allocates, in bytes.
type heapUse struct {
	allocated uint64 // in all, since the start
	held      uint64 // of the host's memory
}

func readHeap() heapUse {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return heapUse{s[0].Value.Uint64(), s[1].Value.Uint64() + s[2].Value.Uint64() + s[3].Value.Uint64()}
}

// keeper knows what a process has kept.
type keeper struct {
	last heapUse // held is as of the last time that memory was given back
}

// full reports whether a process that has now is to give memory back: it has never
// done so, or has allocated next to nothing since the last look, and holds more than after
// the last time.
func (k *keeper) full(now heapUse) bool {
	idle := now.allocated-k.last.allocated < still
	k.last.allocated = now.allocated
	return k.last.held == 0 || idle && now.held >= k.last.held+worthwhile
}
