package main

// firstUse is the order in which the pages of a restored guest are read.
const firstUse = `package pgalloc

import (
	"encoding/binary"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// While its memory is being loaded, what a guest uses is written down. The restore of the
// next image reads those pages first, in that order: a guest that is woken mostly does
// what it did when it was woken last. The rest follows, a little at a time, so that what a
// task waits for is read at once.

const (
	// useBlock is what is written down as one, and mapped at once, in bytes.
	useBlock = 64 << 10

	// mostBlocks bounds what is written down.
	mostBlocks = 1 << 14

	// mostWindow is what is mapped at once for who uses memory in sequence.
	mostWindow = 1 << 20

	// restInFlight is how many reads are under way of pages that nobody waits for.
	restInFlight = 2

	// roomForWaits is how many reads may always be begun that a task waits for.
	roomForWaits = 2

	// mostAround bounds how many ranges are to be read that lie around others.
	mostAround = 64
)

var uses struct {
	mu    sync.Mutex
	early bool     // the guest runs while its memory is being loaded
	given []uint32 // what to load first: blocks of the file with the guest's memory
	noted []uint32 // what was used, in the order of its first use
	seen  []uint64 // a bit for each block, whether it was noted
	// Where uses in sequence would go on, and how much was mapped at once.
	sequences [8]sequence
	turn      int // who is forgotten next
}

type sequence struct{ next, window uint64 }

// LoadFirst says, before a restore, that the guest will run while its memory is being
// loaded, and which blocks to load first.
func LoadFirst(blocks []byte) {
	uses.mu.Lock()
	defer uses.mu.Unlock()
	uses.early = true
	uses.given = nil
	for len(blocks) >= 4 && len(uses.given) < mostBlocks {
		uses.given = append(uses.given, binary.LittleEndian.Uint32(blocks))
		blocks = blocks[4:]
	}
}

// FirstUsed returns what to load first at the next restore.
func FirstUsed() (blocks []byte) {
	uses.mu.Lock()
	defer uses.mu.Unlock()
	list := uses.noted
	if len(list) == 0 {
		list = uses.given
	}
	for _, b := range list {
		blocks = binary.LittleEndian.AppendUint32(blocks, b)
	}
	return blocks
}

// Use writes down that a part of a file that is being loaded is used, and returns what
// to map of it at once.
func (f *MemoryFile) Use(fr memmap.FileRange) memmap.FileRange {
	window := memmap.FileRange{fr.Start &^ (useBlock - 1), (fr.End + useBlock - 1) &^ (useBlock - 1)}
	if window.Length() > mostWindow {
		return fr
	}
	uses.mu.Lock()
	defer uses.mu.Unlock()
	s := sequence{window: useBlock}
	i := slices.IndexFunc(uses.sequences[:], func(s sequence) bool { return s.window > 0 && s.next == window.Start })
	if i >= 0 {
		s.window = min(2*uses.sequences[i].window, mostWindow)
		window.End = max(window.End, window.Start+s.window)
	} else {
		i, uses.turn = uses.turn, (uses.turn+1)%len(uses.sequences)
	}
	s.next = window.End
	uses.sequences[i] = s
	f.noteLocked(window)
	return window
}

// Used writes down that a part of a file that is being loaded is used.
func (f *MemoryFile) Used(fr memmap.FileRange) {
	uses.mu.Lock()
	defer uses.mu.Unlock()
	f.noteLocked(fr)
}

// noteLocked writes down a use. uses.mu is locked.
func (f *MemoryFile) noteLocked(fr memmap.FileRange) {
	if amfl := f.asyncPageLoad.Load(); amfl == nil || !amfl.main {
		return
	}
	for b := fr.Start / useBlock; b <= (fr.End-1)/useBlock && len(uses.noted) < mostBlocks; b++ {
		for uint64(len(uses.seen)) <= b/64 {
			uses.seen = append(uses.seen, 0)
		}
		if uses.seen[b/64]&(1<<(b%64)) == 0 {
			uses.seen[b/64] |= 1 << (b % 64)
			uses.noted = append(uses.noted, uint32(b))
		}
	}
}

// beginLocked adds a file that is loaded. amflsMu is locked. The first one has the
// guest's memory.
func (apfl *AsyncPagesFileLoad) beginLocked(amfl *asyncMemoryFileLoad) {
	if !apfl.begun {
		apfl.begun, amfl.main = true, true
		uses.mu.Lock()
		apfl.first, apfl.early = uses.given, uses.early
		uses.mu.Unlock()
	}
	apfl.amfls.PushBack(amfl)
}

// wantAround has what is around a range read next that somebody waits for: most likely
// it is used soon. apfl.mu is locked.
func (apfl *AsyncPagesFileLoad) wantAround(amfl *asyncMemoryFileLoad, fr memmap.FileRange) {
	if !apfl.early || !amfl.main || fr.Length() > mostWindow {
		return
	}
	if len(apfl.around) == mostAround {
		apfl.around = slices.Delete(apfl.around, 0, 1)
	}
	apfl.around = append(apfl.around, fr.Start&^(mostWindow-1))
}

// loadFirst enqueues reads of what is to be loaded before the rest. It reports whether the
// rest may follow.
func (apfl *AsyncPagesFileLoad) loadFirst() bool {
	apfl.amflsMu.Lock()
	defer apfl.amflsMu.Unlock()
	amfl := apfl.amfls.Front()
	for amfl != nil && !amfl.main {
		amfl = amfl.Next()
	}
	if amfl == nil { // it has all been loaded, or nothing of it is known yet
		return apfl.mayLoadRest()
	}
	amfl.f.mu.Lock()
	defer amfl.f.mu.Unlock()
	apfl.mu.Lock()
	defer apfl.mu.Unlock()
	if !amfl.lfDone && len(apfl.first) > 0 { // it is not known yet where the pages are
		return false
	}
	for len(apfl.first) > 0 && apfl.busy() < max(len(apfl.ops)-roomForWaits, 1) {
		// Blocks in sequence are one read. One at a time they would be small reads: mostly
		// there is room for one more.
		n := uint64(1)
		for n < mostWindow/useBlock && n < uint64(len(apfl.first)) && uint64(apfl.first[n]) == uint64(apfl.first[0])+n {
			n++
		}
		start := uint64(apfl.first[0]) * useBlock
		if !apfl.loadLocked(amfl, memmap.FileRange{start, start + n*useBlock}) {
			return false
		}
		apfl.first = apfl.first[n:]
	}
	if len(apfl.first) > 0 {
		return false
	}
	for n := len(apfl.around); n > 0 && apfl.mayLoadRest(); n-- {
		start := apfl.around[n-1]
		if !apfl.loadLocked(amfl, memmap.FileRange{start, start + mostWindow}) {
			return false
		}
		apfl.around = apfl.around[:n-1]
	}
	return apfl.mayLoadRest()
}

// loadLocked enqueues reads of what is not being read of a range. It reports whether it
// is all on its way.
func (apfl *AsyncPagesFileLoad) loadLocked(amfl *asyncMemoryFileLoad, want memmap.FileRange) bool {
	for ulseg := amfl.unloaded.LowerBoundSegment(want.Start); ulseg.Ok() && ulseg.Start() < want.End; ulseg = ulseg.NextSegment() {
		if ulseg.ValuePtr().started {
			continue
		}
		if !apfl.canEnqueue() {
			return false
		}
		ulseg = amfl.unloaded.Isolate(ulseg, want)
		fr := ulseg.Range()
		n := apfl.enqueueRange(amfl, fr, ulseg.ValuePtr().off, true /* tempRef */)
		if n == 0 {
			return false
		}
		fr.End = fr.Start + n
		ulseg = amfl.unloaded.SplitAfter(ulseg, fr.End)
		ulseg.ValuePtr().started = true
		amfl.f.incRefLocked(fr)
	}
	return true
}

// mayLoadRest reports whether pages may be read that nobody waits for.
func (apfl *AsyncPagesFileLoad) mayLoadRest() bool {
	return apfl.canEnqueue() && (!apfl.early || apfl.busy() < restInFlight)
}

// busy returns how many reads are under way, or being put together.
func (apfl *AsyncPagesFileLoad) busy() int {
	n := len(apfl.ops) - apfl.qavail
	if apfl.curOp != nil {
		n++
	}
	return n
}
`
