package agent

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// What idling costs, so that it is not taken for work. CPU time in a sandbox
// comes in ticks of 10 ms that are sampled: whoever runs when the clock ticks
// gets the whole tick, also while it waits for a CPU of a crowded host. Of
// 1000 ticks in 10 s, in gVisor, an idle python http.server was seen to get 0
// to 3, a timer of 10 Hz in python or node 1 to 9, an idle JVM with an HTTP
// server 4 to 21, and up to 40 on a host with twice the load it can bear. So a
// process may use idleRate for ever and, what evens out the sampling,
// idleBurst more at once.
const (
	idleRate  = 3.0  // ticks per second: 3 % of one CPU
	idleBurst = 20.0 // ticks

	// wakeCredit is what a process may use in addition after a wake: its memory
	// comes back from disk, and all its timers are due.
	wakeCredit = 100.0 // ticks

	// wakeUpSize is what a read or write of an eventfd, a timerfd or the pipe
	// of an event loop moves. Calls that move no more on average are how
	// runtimes wake their own threads. All other I/O is progress: idle servers
	// were seen to do none.
	wakeUpSize = 8

	// firstLook is how long after the start of a process it is looked at first,
	// if nobody asks before: what happened until then is taken for work.
	firstLook = time.Second

	// workCounts is how long a kernel, or what is in a terminal without a client,
	// counts after it was last seen to work.
	workCounts = 10 * time.Second

	// drawTime is how long it may take until the agent has what a process has written
	// to its terminal, and drawnAhead how much that can be between two readings.
	drawTime   = 50 * time.Millisecond
	drawnAhead = 8 << 10

	// maxRoots bounds what is remembered of ended roots between looks.
	maxRoots = 1024
)

// root is a process that was started through the API. It is remembered while
// anything of its tree is alive.
type root struct {
	child *child
	moved atomic.Int64  // when a byte last went in or out, in Unix nanoseconds
	bytes atomic.Uint64 // how many have

	// watched reports whether a terminal has a client; nil for what is none.
	watched func() bool

	// Guarded by the observer's lock.
	bytesSeen uint64 // at the last look
	forgiven  int64  // a time of moved that is no progress
}

// touch notes that bytes went in or out.
func (r *root) touch(bytes int) {
	r.bytes.Add(uint64(bytes))
	r.moved.Store(time.Now().UnixNano())
}

// forgive takes what has moved since the last look for no progress, if it is
// no more than the traffic that is to be ignored can have caused.
func (r *root) forgive(ignored uint64) {
	bytes := r.bytes.Load()
	if ignored > 0 && bytes-r.bytesSeen <= ignored {
		r.forgiven = r.moved.Load()
	}
	r.bytesSeen = bytes
}

// Write makes a root where output goes that nobody can ask for any more.
func (r *root) Write(b []byte) (int, error) {
	r.touch(len(b))
	return len(b), nil
}

// alone is true of a terminal without a client.
func (r *root) alone() bool { return r != nil && r.watched != nil && !r.ended() && !r.watched() }

func (r *root) ended() bool {
	select {
	case <-r.child.done:
		return true
	default:
		return false
	}
}

// observer tells work from idling. It reads /proc only when it is asked, and
// compares with what it read the time before: what happened in between is
// attributed to the time of the look, except for bytes that passed through
// the agent, whose time is known.
//
// In a sandbox everything but the agent counts, for whatever runs was started
// through the API, whether or not the way back to it can still be found.
// Processes that the template starts are to be named by exempt, services of the
// sandbox by serving, kernels of the code interpreter by kernels: of those, what they start counts, and they
// themselves while they work, as threads of a cell do that has ended.
//
// What is in a terminal without a client counts only while it works, too: a prompt
// that waits is none, nor is what only reads and draws, such as top.
//
// When in doubt it sees work: a process is taken to have worked when it is
// looked at for the first time, and what is too little for work is measured
// per process.
type observer struct {
	everything bool                // false: count only what has a root
	exempt     func() []int        // may be nil
	kernels    func() map[int]bool // may be nil
	serving    func() []int        // as exempt: the leaders of the sessions of services; may be nil

	mu      sync.Mutex // held over a look
	reader  procReader
	samples map[int]*sample
	looked  time.Time // when the sandbox was last known to be awake

	rootsMu sync.Mutex
	roots   map[int]*root

	early atomic.Bool // a first look is due

	endMu   sync.Mutex
	lastEnd time.Time
	ignored map[int]bool // pids whose end is not the end of work
}

// sample is what is known of a process since the last look.
type sample struct {
	pid    int
	start  uint64 // with pid, who it is
	root   *root  // nil: not known
	exempt bool
	kernel bool // exempt unless it works

	// Of what is in a terminal without a client, and counts only if it works.
	alone   bool
	fresh   bool  // the last look was the first
	wrote   int64 // bytes, but for those of wake-ups
	undrawn int64 // of them beyond those that the terminal has shown, and that are no progress

	command  string
	unnamed  bool // there was no command line, as in the middle of an exec
	since    time.Time
	progress time.Time

	at       time.Time // of the following; zero before the first look
	name     string
	ticks    uint64
	io       procIO
	children uint64  // a digest of the set
	level    float64 // ticks used beyond idleRate; a credit after a wake
}

func newObserver(everything bool, exempt func() []int) *observer {
	return &observer{everything: everything, exempt: exempt, samples: map[int]*sample{}, roots: map[int]*root{}}
}

// started makes a process the root of what descends from it.
func (o *observer) started(r *root) {
	r.touch(0)
	o.rootsMu.Lock()
	defer o.rootsMu.Unlock()
	if len(o.roots) >= maxRoots {
		for pid, old := range o.roots {
			if old.ended() {
				delete(o.roots, pid)
			}
		}
	}
	o.roots[r.child.pid] = r
	o.lookSoon()
}

// lookSoon looks once what has been started does what it is for: what is quiet
// from then on has been quiet since then, and not since somebody asked.
func (o *observer) lookSoon() {
	if !o.early.CompareAndSwap(false, true) {
		return
	}
	due := wallNow().Add(firstLook)
	time.AfterFunc(firstLook, func() {
		o.early.Store(false)
		if late := wallNow().Sub(due); late < firstLook { // else it has slept, of which woke must know first
			_, _ = o.look(0) // who asks sees the error
		}
	})
}

// processEnded is told of every exit the agent reaps. The last process of a
// tree is always among them: whose parent is gone is a child of PID 1.
func (o *observer) processEnded(pid int) {
	o.endMu.Lock()
	defer o.endMu.Unlock()
	if !o.ignored[pid] {
		o.lastEnd = wallNow()
	}
}

// ignore notes that the ends of processes that are about to end are not the ends of
// work.
func (o *observer) ignore(pids []int) {
	o.endMu.Lock()
	defer o.endMu.Unlock()
	ignored := maps.Clone(o.ignored)
	if ignored == nil {
		ignored = map[int]bool{}
	}
	for _, pid := range pids {
		ignored[pid] = true
	}
	o.ignored = ignored
}

// cellEnded takes what kernels have done so far for the work of cells, for whose
// ends clients waited. What they do from here on, threads do that cells have left.
func (o *observer) cellEnded() {
	_, _ = o.look(0) // the next one who asks sees the error
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.samples {
		if s.kernel {
			s.progress, s.level = time.Time{}, 0
		}
	}
}

// unwatched is told of a terminal whose last client has gone. What it has done until
// then, it did for that client.
func (o *observer) unwatched() {
	_, _ = o.look(0) // the next one who asks sees the error
}

// workEnded notes when a kernel or a terminal without a client worked last.
func (o *observer) workEnded(at time.Time) {
	o.endMu.Lock()
	defer o.endMu.Unlock()
	o.lastEnd = later(o.lastEnd, at)
}

func (o *observer) end() time.Time {
	o.endMu.Lock()
	defer o.endMu.Unlock()
	return o.lastEnd
}

// wallNow is the time by the sandbox's clock alone. Differences are taken by
// it too: the monotonic reading of a time from before a sleep is from another
// boot of the host, perhaps.
func wallNow() time.Time { return time.Now().UTC().Round(0) }

// awake notes that the sandbox has not slept up to now.
func (o *observer) awake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looked = wallNow()
}

// woke takes the time since the sandbox was last known to be awake for sleep,
// and moves everything on by that: who worked until then was not idle since.
func (o *observer) woke() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := wallNow()
	slept := now.Sub(o.looked)
	if !o.looked.IsZero() && slept > 0 {
		for _, s := range o.samples {
			s.at = s.at.Add(slept)
			s.progress = s.progress.Add(slept)
			s.level = -wakeCredit
		}
		o.rootsMu.Lock()
		defer o.rootsMu.Unlock()
		for _, r := range o.roots {
			was := r.moved.Load()
			shifted := min(was+int64(slept), now.UnixNano())
			if r.forgiven == was {
				r.forgiven = shifted
			}
			r.moved.Store(shifted)
		}
	}
	o.looked = now
}

// unseen calls do between two looks. One in the middle of it would take a process that
// it starts, and names as exempt only then, for work.
func (o *observer) unseen(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
}

// look reports what is alive and counts, by pid. So many bytes of each
// process's I/O since the last look are no progress.
func (o *observer) look(ignored uint64) ([]agentapi.Process, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.reader.open(); err != nil {
		return nil, err
	}
	defer o.reader.close()
	l := o.newLook(wallNow(), ignored)
	stats, err := o.read()
	if err != nil {
		return nil, err
	}
	l.add(stats)
	for i := range stats {
		switch s := l.sample(&stats[i]); {
		case l.alone[s.root]:
			l.compareAlone(s, &stats[i])
		case l.counts(s):
			l.compare(s, &stats[i])
		case s.kernel:
			l.compareKernel(s, &stats[i])
		}
	}
	l.compareDrawn()
	l.raiseParents()
	o.remember(l)
	return l.report(), nil
}

// read takes the state of everything alive but the agent.
func (o *observer) read() ([]procStat, error) {
	pids, err := o.reader.pids()
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	stats := make([]procStat, 0, len(pids))
	for _, pid := range pids {
		if pid == self {
			continue
		}
		if stat, ok := o.reader.stat(pid); ok && !stat.gone() {
			stats = append(stats, stat)
		}
	}
	return stats, nil
}

// remember keeps what the next look compares with, and nothing else.
func (o *observer) remember(l *look) {
	o.samples, o.looked = l.samples, l.now
	inUse := map[*root]bool{}
	ignored := map[int]bool{}
	for pid, s := range l.samples {
		inUse[s.root] = true
		if s.exempt {
			ignored[pid] = true
		}
	}
	o.endMu.Lock()
	o.ignored = ignored
	o.endMu.Unlock()
	o.rootsMu.Lock()
	defer o.rootsMu.Unlock()
	for pid, r := range l.roots {
		// What was started during the look may have descendants it missed.
		if o.roots[pid] == r && r.ended() && !inUse[r] && r.moved.Load() < l.now.UnixNano() {
			delete(o.roots, pid)
		}
	}
}

// look is one pass over all processes.
type look struct {
	o        *observer
	ignored  uint64 // bytes of I/O that are no progress
	now      time.Time
	boot     time.Time
	stats    map[int]*procStat
	samples  map[int]*sample
	children map[int]uint64 // by parent
	roots    map[int]*root
	exempt   map[int]bool
	kernels  map[int]bool
	alone    map[*root]bool // terminals without a client
	drawing  []*sample      // in these, and to be compared with what was shown
}

func (o *observer) newLook(now time.Time, ignored uint64) *look {
	l := &look{
		o: o, ignored: ignored, now: now, boot: bootTime(now),
		stats: map[int]*procStat{}, samples: map[int]*sample{}, children: map[int]uint64{}, exempt: map[int]bool{}, alone: map[*root]bool{},
	}
	for _, exempt := range []func() []int{o.exempt, o.serving} {
		if exempt == nil {
			continue
		}
		for _, pid := range exempt() {
			l.exempt[pid] = true
		}
	}
	if o.kernels != nil {
		l.kernels = o.kernels()
	}
	o.rootsMu.Lock()
	defer o.rootsMu.Unlock()
	l.roots = maps.Clone(o.roots)
	for _, r := range l.roots {
		r.forgive(ignored)
		l.alone[r] = r.alone()
	}
	return l
}

func (l *look) add(stats []procStat) {
	for i := range stats {
		s := &stats[i]
		l.stats[s.pid] = s
		// A sum, for sets have no order.
		l.children[s.parent] += scramble(uint64(s.pid)<<32 ^ s.start)
	}
}

// scramble spreads the bits of x: the last step of splitmix64.
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sample returns what is known of a process, and finds out whose it is.
func (l *look) sample(stat *procStat) *sample {
	if s := l.samples[stat.pid]; s != nil {
		return s
	}
	s := l.o.samples[stat.pid]
	if s == nil || s.start != stat.start {
		s = &sample{pid: stat.pid, start: stat.start}
	}
	l.samples[stat.pid] = s // before its parents, which might be a loop
	if s.root == nil && !s.exempt {
		l.attribute(s, stat)
	}
	return s
}

// attribute looks for the root of a process: each has a session of its own,
// which lasts longer than it does; who leaves the session has, at first, a
// parent who did not.
func (l *look) attribute(s *sample, stat *procStat) {
	if l.exempt[stat.pid] || l.exempt[stat.session] || l.kernels[stat.pid] {
		s.exempt, s.kernel = true, l.kernels[stat.pid] && !l.exempt[stat.pid]
		return
	}
	if r := l.roots[stat.session]; r != nil && (stat.pid != stat.session || !r.ended()) {
		s.root = r
		return
	}
	if parent := l.stats[stat.parent]; parent != nil {
		p := l.sample(parent)
		s.root, s.exempt = p.root, p.exempt && !l.kernels[p.pid]
	}
}

func (l *look) counts(s *sample) bool {
	return !s.exempt && !l.alone[s.root] && (s.root != nil || l.o.everything)
}

// compare brings s up to date and notes whether there was progress.
func (l *look) compare(s *sample, stat *procStat) {
	io, children := l.o.reader.io(s.pid), l.children[s.pid]
	first := s.at.IsZero() || s.alone // somebody has come back to its terminal
	s.alone = false
	if s.at.IsZero() {
		s.since = l.startTime(stat.start)
	}
	// Another name is another program.
	progress := s.usedCPU(stat.ticks, l.now) || s.didIO(io, l.ignored) || s.children != children || s.name != stat.name
	if first || progress {
		s.progress = l.now
		s.level = 0
	}
	// Who does nothing does not become another program either.
	if first || progress || s.unnamed {
		s.command, s.unnamed = l.o.reader.commandLine(s.pid, stat.name)
	}
	s.at, s.name, s.ticks, s.io, s.children = l.now, stat.name, stat.ticks, io, children
	if r := s.root; r != nil && (r.child.pid == s.pid || r.ended()) {
		if moved := r.moved.Load(); moved != r.forgiven {
			s.progress = later(s.progress, time.Unix(0, moved).UTC())
		}
	}
}

// compareKernel is compare for a kernel. It starts with a cell, whose client
// waits for it, so that the first look sees no work. What it has done by the
// next, it has done since then, or since the end of a cell.
func (l *look) compareKernel(s *sample, stat *procStat) {
	first, before := s.at.IsZero(), s.progress
	l.compare(s, stat)
	if first {
		s.progress = time.Time{}
	} else if s.progress.After(before) {
		l.o.workEnded(s.progress)
	}
}

// compareAlone is compare for what is in a terminal without a client. It has worked if
// it took more CPU than idling does, or wrote more than the terminal has shown. What
// is new is judged by all that it has done, which is little for what comes and goes, as
// the commands of watch.
func (l *look) compareAlone(s *sample, stat *procStat) {
	io := l.o.reader.io(s.pid)
	first, left := s.at.IsZero(), !s.alone
	if first {
		s.since = l.startTime(stat.start)
		s.at = s.since
	}
	s.alone, s.wrote = true, int64(io.bytesWritten)-wakeUpSize*int64(io.writes)
	computed := s.usedCPU(stat.ticks, l.now)
	switch {
	case left && !first: // until now somebody watched
		s.progress, s.level = time.Time{}, 0
		s.undrawn = s.wrote - int64(s.root.bytes.Load())
	case computed:
		l.worked(s)
	default:
		l.drawing = append(l.drawing, s)
	}
	s.fresh = first
	if first || s.unnamed || s.name != stat.name {
		s.command, s.unnamed = l.o.reader.commandLine(s.pid, stat.name)
	}
	s.at, s.name, s.ticks, s.io, s.children = l.now, stat.name, stat.ticks, io, l.children[s.pid]
}

// worked notes that something in a terminal without a client has worked.
func (l *look) worked(s *sample) {
	s.progress, s.level = l.now, 0
	s.undrawn = s.wrote - int64(s.root.bytes.Load())
	l.o.workEnded(l.now)
}

// compareDrawn compares what was written in terminals without a client with what these
// have shown. That may be on its way, or be more by what was written since.
func (l *look) compareDrawn() {
	for wait := drawTime; len(l.drawing) > 0; wait -= drawTime / 5 {
		l.drawing = slices.DeleteFunc(l.drawing, func(s *sample) bool {
			undrawn := s.wrote - int64(s.root.bytes.Load())
			switch {
			case undrawn > s.undrawn:
				return false
			case s.fresh:
				s.undrawn = undrawn
			default:
				s.undrawn = min(s.undrawn, undrawn+drawnAhead)
			}
			return true
		})
		if len(l.drawing) == 0 {
			return
		}
		if wait <= 0 {
			break
		}
		time.Sleep(drawTime / 5)
	}
	for _, s := range l.drawing {
		l.worked(s)
	}
}

// works reports whether a kernel, or what is in a terminal without a client, has
// worked lately.
func (l *look) works(s *sample) bool {
	return (s.kernel || l.alone[s.root]) && !s.progress.IsZero() && l.now.Sub(s.progress) < workCounts
}

// usedCPU keeps account of the ticks beyond what idling takes. Idle time is no
// credit.
func (s *sample) usedCPU(ticks uint64, now time.Time) bool {
	idle := max(now.Sub(s.at), 0).Seconds() * idleRate
	used := float64(max(int64(ticks-s.ticks), 0))
	s.level = max(s.level+used-idle, 0)
	return s.level > idleBurst
}

func (s *sample) didIO(io procIO, ignored uint64) bool {
	return io.bytesRead-s.io.bytesRead > wakeUpSize*(io.reads-s.io.reads)+ignored ||
		io.bytesWritten-s.io.bytesWritten > wakeUpSize*(io.writes-s.io.writes)+ignored
}

func (l *look) startTime(ticks uint64) time.Time {
	t := l.boot.Add(time.Duration(ticks) * tick)
	if l.boot.IsZero() || t.After(l.now) {
		return l.now
	}
	return t
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// raiseParents makes the progress of a process that of its ancestors: a shell
// is at work while it waits for a command that is.
func (l *look) raiseParents() {
	for _, s := range l.samples {
		for progress := s.progress; ; {
			s = l.samples[l.stats[s.pid].parent]
			if s == nil || !l.counts(s) || !s.progress.Before(progress) {
				break
			}
			s.progress = progress
		}
	}
}

// report is bounded; who worked last goes first.
func (l *look) report() []agentapi.Process {
	list := []agentapi.Process{}
	for _, s := range l.samples {
		if !l.counts(s) && !l.works(s) {
			continue
		}
		p := agentapi.Process{PID: s.pid, Command: s.command, Since: s.since, LastProgress: s.progress}
		if s.root != nil {
			p.Root = s.root.child.pid
		}
		if p.LastProgress.After(l.now) {
			p.LastProgress = l.now
		}
		list = append(list, p)
	}
	if len(list) > agentapi.MaxProcesses {
		slices.SortFunc(list, func(a, b agentapi.Process) int { return b.LastProgress.Compare(a.LastProgress) })
		list = list[:agentapi.MaxProcesses]
	}
	slices.SortFunc(list, func(a, b agentapi.Process) int { return cmp.Compare(a.PID, b.PID) })
	return list
}
