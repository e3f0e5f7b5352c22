package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var (
	deltaCycles = flag.Int("deltas.cycles", 16, "how often TestDeltaWalk lets its sandbox sleep; 100 for a longer walk, 10000 for a soak")
	deltaFor    = flag.Duration("deltas.for", 0, "how long TestDeltaWalk goes on at most; 0 for all of its cycles")
	deltaSeed   = flag.Uint64("deltas.seed", 0, "what TestDeltaWalk does; 0 for what testmode says")
)

// TestDeltaWalk changes some of a guest's memory, lets it sleep by an image that shares
// pages with those before, and wakes it, again and again. In a third of the cycles the
// server is killed at some moment of the pause, in a sixth what takes the image. Neither
// ends the sandbox, and the memory is what it was each time; no
// image has too many packs, and in the end there is one image, and it is whole.
func TestDeltaWalk(t *testing.T) {
	t.Parallel()
	seed := *deltaSeed
	if seed == 0 {
		seed = testmode.Seed()
	}
	t.Logf("replay with -deltas.seed %d -deltas.cycles %d", seed, *deltaCycles)
	random := rand.New(rand.NewPCG(seed, 17))
	ctx := deadline(t, 2*time.Minute+time.Duration(*deltaCycles)*10*time.Second)
	s := startServer(t, "--delta-pauses", "1")
	const mebibytes = 24
	n := &noisy{guest: s.startGuest(ctx, sleeper), ctx: ctx}
	n.change(fmt.Sprintf("head -c %dM /dev/urandom >/dev/shm/noise", mebibytes))
	var crashes, killed int
	var most int64
	begin, cycles := time.Now(), 0
	for cycle := range *deltaCycles {
		if *deltaFor > 0 && time.Since(begin) > *deltaFor || t.Failed() {
			break
		}
		when := fmt.Sprintf("cycle %d", cycle+1)
		// From nothing over scattered pages to a third of it, and zeros.
		pages := []int{0, 1, 20, 256, mebibytes * 256 / 3}[random.IntN(5)]
		at := random.IntN(mebibytes*256 - pages)
		from := []string{"urandom", "urandom", "zero"}[random.IntN(3)]
		n.change(fmt.Sprintf("dd if=/dev/%s of=/dev/shm/noise bs=4k count=%d seek=%d conv=notrunc 2>/dev/null && dd if=/dev/%s of=/dev/shm/noise bs=4k count=1 seek=%d conv=notrunc 2>/dev/null",
			from, pages, at, from, random.IntN(mebibytes*256)))
		switch moment := time.Duration(random.IntN(250)) * time.Millisecond; random.IntN(6) {
		case 0, 1:
			crashes++
			when += fmt.Sprintf(", after a crash %s into its pause", moment)
			var call sync.WaitGroup
			call.Go(func() { _ = s.client.Pause(ctx, n.sb.ID) }) // its outcome is unknown
			time.Sleep(moment)
			s.crash()
			call.Wait()
			s.start()
		case 2:
			moment /= 4
			when += fmt.Sprintf(", after what takes its image was killed %s into that", moment)
			if n.pauseWithoutTaker(moment) {
				killed++
			}
		default:
			s.pause(ctx, n.sb.ID)
			packs, written := s.packs(ctx, n.sb.ID)
			if len(packs) > pagemap.MaxPacks {
				t.Errorf("%s: it has the packs %v", when, packs)
			}
			most = max(most, written)
		}
		n.check(when)
		if cycles = cycle + 1; cycles%100 == 0 {
			t.Logf("%d cycles in %s", cycles, since(begin))
		}
	}
	n.check("in the end")
	s.pause(ctx, n.sb.ID)
	t.Logf("%d of %d pauses ended with a crash of the server, and of %d the image taker was killed; the largest image had %d bytes of its own", crashes, cycles, killed, most)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if faults, code := s.fsck(t); len(faults) > 0 || code != 0 {
		t.Errorf("fsck: %+v, exit code %d", faults, code)
	}
	if images := named(s.dir(), "", "images"); len(images) != 1 {
		t.Errorf("there are the images %v, want one", images)
	}
	s.start()
	n.check("of a server that was stopped")
}

// pauseWithoutTaker pauses the sandbox, and kills what takes its image some time after
// that has begun. It reports whether there was something to kill: else the pause was
// quicker.
func (n *noisy) pauseWithoutTaker(after time.Duration) (killed bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.s.client.Pause(n.ctx, n.sb.ID) // its outcome is unknown
	}()
	for begun := (time.Time{}); ; time.Sleep(time.Millisecond) {
		select {
		case <-done:
			return killed
		default:
		}
		pids := childrenOf(n.s.pid(), "runsc-image-taker")
		switch {
		case len(pids) == 0:
		case begun.IsZero():
			begun = time.Now()
		case time.Since(begun) >= after:
			killed = true
			_ = syscall.Kill(pids[0], syscall.SIGKILL)
		}
	}
}

// childrenOf returns the children of a process that have this name.
func childrenOf(parent int, name string) (pids []int) {
	for _, path := range glob(fmt.Sprintf("/proc/%d/task/*/children", parent)) {
		data, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(data)) {
			line, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if pid, err := strconv.Atoi(field); err == nil && strings.TrimRight(string(line), "\x00") == name {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
