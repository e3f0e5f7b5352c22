package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/lease"
)

// TestChoose: a sandbox goes only to another server that certainly serves, has room and has
// what is needed; and rather to one with more memory, but not always to one.
func TestChoose(t *testing.T) {
	room := func(memory int) *store.Room {
		return &store.Room{MaxRunning: 2, Running: 1, MemoryMiB: memory, DiskMiB: 1000}
	}
	bounded, unbounded, small := *room(9000), *room(9000), *room(9000)
	bounded.Running, small.DiskMiB = 2, leastDisk-1
	unbounded.Running, unbounded.MaxRunning = 1000, 0
	for name, tt := range map[string]struct {
		servers []store.Server
		want    []string
	}{
		"itself":               {[]store.Server{{ID: "srv_a", Address: "x", Left: lease.Life, Room: room(1)}}, []string{""}},
		"another":              {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life, Room: room(1)}}, []string{"srv_b"}},
		"one without bound":    {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life, Room: &unbounded}}, []string{"srv_b"}},
		"one that leaves":      {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life, Leaving: true, Room: room(1)}}, []string{""}},
		"one without address":  {[]store.Server{{ID: "srv_b", Left: lease.Life, Room: room(1)}}, []string{""}},
		"one that is late":     {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life / 3, Room: room(1)}}, []string{""}},
		"one that is silent":   {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life}}, []string{""}},
		"one that is full":     {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life, Room: &bounded}}, []string{""}},
		"one without disk":     {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life, Room: &small}}, []string{""}},
		"one that is unwanted": {[]store.Server{{ID: "srv_b", Address: "x", Left: lease.Life, Room: room(7)}}, []string{""}},
		"three": {[]store.Server{
			{ID: "srv_b", Address: "x", Left: lease.Life, Room: room(1)}, {ID: "srv_c", Address: "x", Left: lease.Life, Room: room(2)}, {ID: "srv_d", Address: "x", Left: lease.Life, Room: room(3)},
		}, []string{"srv_b", "srv_c", "srv_d"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, &records{self: "srv_a", servers: tt.servers})
			chosen := map[string]int{}
			for range 600 {
				chosen[c.Choose(t.Context(), func(r store.Room) bool { return !full(r) && r.MemoryMiB != 7 })]++
			}
			for i, id := range tt.want {
				if about := 100 * (i + 1); len(chosen) != len(tt.want) || len(chosen) > 1 && (chosen[id] < about/2 || chosen[id] > 2*about) {
					t.Errorf("chosen were %v, want %q", chosen, tt.want)
				}
			}
		})
	}
	if got := open(t, &records{self: "srv_a", fails: errors.New("down")}).Choose(t.Context(), func(store.Room) bool { return true }); got != "" {
		t.Errorf("without a database %q is chosen", got)
	}
}

// TestTellRoom tells of a server that is full at once, of the rest now and then, and of
// nothing new nothing.
func TestTellRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &records{self: "srv_a"}
		c := open(t, r)
		var running int
		var fails error
		set := func(n int, blind, down error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			running, fails, r.fails = n, blind, down
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.o.Room = func() (store.Room, error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				return store.Room{Running: running, MaxRunning: 2, DiskMiB: 1000, CPU: []string{"avx"}}, fails
			}
			c.TellRoom(ctx)
		}()
		told := func(after time.Duration, want ...int) {
			t.Helper()
			time.Sleep(after + time.Millisecond)
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			var running []int
			for _, room := range r.told {
				running = append(running, room.Running)
			}
			if !slices.Equal(running, want) {
				t.Errorf("told was that there run %d, want %d", running, want)
			}
			r.told = nil
		}
		told(0, 0)
		told(time.Minute)
		set(1, nil, nil)
		told(lookEvery, 1)
		set(0, nil, nil)
		told(lookEvery)
		told(tellEvery, 0)
		set(2, nil, nil)
		told(lookEvery, 2)
		set(1, nil, nil)
		told(lookEvery, 1)
		set(2, errors.New("blind"), nil)
		told(time.Minute)
		set(2, nil, errors.New("down"))
		told(time.Minute)
		set(2, nil, nil)
		told(lookEvery, 2)
		stop()
		<-done
	})
}
