// Package top is the screen of "drowse top": the sandboxes of a server, live, with
// keys for what is done to them.
//
// One goroutine owns what is shown. Others list, follow the event log and carry
// out actions, and send it what came of that. Looking keeps no sandbox awake: only
// the control plane is asked.
package top

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/client"
)

// Server is what is shown and acted on; *client.Client is one.
type Server interface {
	List(ctx context.Context, o client.ListOptions) ([]client.Info, error)
	Follow(ctx context.Context, o client.EventOptions) iter.Seq2[client.Event, error]
	Pause(ctx context.Context, id string) error
	Connect(ctx context.Context, id string, timeout time.Duration) (client.Connected, error)
	Kill(ctx context.Context, id string) error
}

// Options say what is shown, and how. Texts that Row and Why return must be
// harmless for a terminal.
type Options struct {
	Server Server
	URL    string // of the server, for people

	Columns []string
	Row     func(i client.Info, now time.Time) []string // a cell for each column

	// Spare are columns that a narrow terminal does without, the first of them first.
	Spare []string

	// Why explains a sandbox. Log returns a function that returns the newest lines of a
	// sandbox's log, each time with those that have come since. Neither wakes it. Shell
	// opens one on the terminal, which the screen has left; its error says why there is
	// none.
	Why   func(ctx context.Context, id string) (string, error)
	Log   func(id string) func(ctx context.Context) (string, error)
	Shell func(ctx context.Context, id string) error
}

const (
	// listEvery is how old a list may become. One that takes long is made less often,
	// so that watching costs a server little.
	listEvery = 2 * time.Second
	listShare = 5
	// listSoon is how soon after an event the list is made anew.
	listSoon = 250 * time.Millisecond
	// actionTimeout bounds an action.
	actionTimeout = 2 * time.Minute
	// rateWindow is for how long events count for the rates.
	rateWindow = time.Minute
)

// screen is what is shown. Only the goroutine of [Run] touches it.
type screen struct {
	Options
	tty    tcell.Screen
	others sync.WaitGroup
	ctx    context.Context // of all that is asked of the server; ends with Run
	news   chan func()     // what the other goroutines have found, for Run to take in

	list    []client.Info // as the server ordered them
	shown   []client.Info // those that pass the filter, in the order wanted
	loaded  loading
	changes []change // of the last minute
	now     time.Time

	selected string // id
	first    int    // index in shown of the first row on the screen
	order    int
	ended    bool // terminated sandboxes are shown
	filter   string
	typing   bool      // the filter
	question *question // that waits for yes or no
	page     *overlay  // that covers the list
	note     note
	done     bool
}

// loading is how the last list came about.
type loading struct {
	at    time.Time     // when it began
	took  time.Duration // 0 while it is under way
	stale bool          // something has happened since
	err   error
}

// change is an event that the rates count.
type change struct {
	at   time.Time
	kind string
}

// note is what came of the last action.
type note struct {
	text string
	bad  bool
}

// question is asked before what cannot be undone.
type question struct {
	text string
	yes  func()
}

// overlay is a text that covers the list.
type overlay struct {
	title, text string
	read        func(context.Context) (string, error) // the text as it is now; nil if it stays
	reading     bool
	first, last int  // line at the top: now, and at most
	grows       bool // new lines come at its end
	follows     bool // the end stays in view
}

// Run shows the sandboxes on tty until the user quits or ctx ends. It fails if
// the server does not list them the first time.
func Run(ctx context.Context, tty tcell.Screen, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &screen{Options: o, tty: tty, ctx: ctx, news: make(chan func()), now: time.Now()}
	defer s.others.Wait()
	defer cancel()
	begin := time.Now()
	list, err := o.Server.List(ctx, s.wanted())
	if err != nil {
		return err
	}
	s.loaded = loading{at: begin, took: time.Since(begin)}
	s.take(list)
	if err := tty.Init(); err != nil {
		return fmt.Errorf("cannot use this terminal: %w", err)
	}
	defer tty.Fini()
	s.others.Go(s.follow)
	tick := time.NewTicker(listSoon)
	defer tick.Stop()
	for !s.done {
		s.draw()
		select {
		case event, open := <-tty.EventQ():
			if !open {
				return nil
			}
			s.handle(event)
		case news := <-s.news:
			news()
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.now = time.Now()
		s.refresh()
	}
	return nil
}

// tell has Run's goroutine take something in.
func (s *screen) tell(news func()) {
	select {
	case s.news <- news:
	case <-s.ctx.Done():
	}
}

// wanted is what is listed.
func (s *screen) wanted() client.ListOptions {
	if s.ended {
		return client.ListOptions{States: []client.State{client.Pending, client.Running, client.Paused, client.Terminated}}
	}
	return client.ListOptions{}
}

// refresh has the list and the page made anew where it is time.
func (s *screen) refresh() {
	l := s.loaded
	wait := max(listEvery, listShare*l.took)
	if l.stale {
		wait = max(listSoon, l.took)
	}
	if l.took == 0 || s.now.Sub(l.at) < wait {
		return
	}
	s.loaded = loading{at: s.now, err: l.err}
	wanted, ended := s.wanted(), s.ended
	s.others.Go(func() {
		list, err := s.Server.List(s.ctx, wanted)
		s.tell(func() {
			s.loaded.took, s.loaded.err = max(time.Since(s.loaded.at), 1), err
			if ended != s.ended {
				s.loaded.stale = true // asked for before
			} else if err == nil {
				s.take(list)
			}
		})
	})
	s.read()
}

// open covers the list with a text about the selected sandbox.
func (s *screen) open(what string, read func(context.Context) (string, error)) {
	s.page = &overlay{title: what + " " + s.selected, read: read}
	s.read()
}

// read has the text that covers the list say what is so now.
func (s *screen) read() {
	p := s.page
	if p == nil || p.read == nil || p.reading {
		return
	}
	p.reading = true
	s.others.Go(func() {
		text, err := p.read(s.ctx)
		if err != nil {
			text += err.Error()
		}
		s.tell(func() { p.text, p.reading = text, false })
	})
}

// take shows a new list.
func (s *screen) take(list []client.Info) {
	s.list = list
	s.arrange()
}

// orders are ways to sort, with what the screen calls them. The first is the
// server's.
var orders = []struct {
	name string
	less func(a, b client.Info) int
}{
	{"newest first", nil},
	{"next to happen first", func(a, b client.Info) int { return compareTimes(a.Next.At, b.Next.At) }},
	{"last active first", func(a, b client.Info) int { return b.LastActiveAt.Compare(a.LastActiveAt) }},
}

// compareTimes orders times, earliest first; no time at all comes last.
func compareTimes(a, b time.Time) int {
	if a.IsZero() || b.IsZero() {
		return b.Compare(a)
	}
	return a.Compare(b)
}

// arrange filters and sorts. The selection stays on its sandbox; if that has gone,
// it goes to the one that took its place.
func (s *screen) arrange() {
	at := max(s.index(), 0)
	s.shown = s.shown[:0:0]
	for _, i := range s.list {
		if s.filter == "" || s.matches(i) {
			s.shown = append(s.shown, i)
		}
	}
	if less := orders[s.order].less; less != nil {
		slices.SortStableFunc(s.shown, less)
	}
	if s.index() < 0 {
		s.selectAt(at)
	}
}

// matches reports whether a sandbox has the filter's text in what is shown of it,
// or in its metadata.
func (s *screen) matches(i client.Info) bool {
	texts := s.Row(i, s.now)
	for k, v := range i.Metadata {
		texts = append(texts, k+"="+v)
	}
	return slices.ContainsFunc(texts, func(text string) bool {
		return strings.Contains(strings.ToLower(text), strings.ToLower(s.filter))
	})
}

// index is where the selected sandbox is; -1 if it is not shown.
func (s *screen) index() int {
	return slices.IndexFunc(s.shown, func(i client.Info) bool { return i.ID == s.selected })
}

// selectAt selects the sandbox at an index, or the nearest.
func (s *screen) selectAt(at int) {
	if len(s.shown) == 0 {
		s.selected = ""
		return
	}
	s.selected = s.shown[min(max(at, 0), len(s.shown)-1)].ID
}

// follow counts what happens from now on, and has the list made anew.
func (s *screen) follow() {
	for s.ctx.Err() == nil {
		for e, err := range s.Server.Follow(s.ctx, client.EventOptions{After: client.FromNow}) {
			if err != nil {
				break
			}
			s.tell(func() {
				s.loaded.stale = true
				s.changes = append(s.changes, change{at: time.Now(), kind: e.Type})
			})
		}
		select {
		case <-time.After(listEvery):
		case <-s.ctx.Done():
		}
	}
}

// rate is how many events of a kind there were in the last minute.
func (s *screen) rate(kind string) int {
	s.changes = slices.DeleteFunc(s.changes, func(c change) bool { return s.now.Sub(c.at) > rateWindow })
	n := 0
	for _, c := range s.changes {
		if c.kind == kind {
			n++
		}
	}
	return n
}

// act carries out an action on the selected sandbox. What came of it is shown.
func (s *screen) act(doing, done string, do func(ctx context.Context, id string) error) {
	id := s.selected
	if id == "" {
		return
	}
	s.note = note{text: doing + " " + id}
	s.others.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, actionTimeout)
		defer cancel()
		err := do(ctx, id)
		s.tell(func() {
			s.loaded.stale = true
			s.note = note{text: id + " " + done}
			if err != nil {
				s.note = note{text: err.Error(), bad: true}
			}
		})
	})
}
