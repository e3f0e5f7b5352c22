package top

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/vt"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// server has sandboxes in memory, and notes what is done to them.
type server struct {
	mu     sync.Mutex
	list   []client.Info
	did    []string
	fail   error // of all actions
	lists  int
	log    []string // of all sandboxes
	reads  int      // of it
	events chan client.Event
}

func (s *server) List(_ context.Context, o client.ListOptions) ([]client.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	var found []client.Info
	for _, i := range s.list {
		if i.State != client.Terminated || slices.Contains(o.States, client.Terminated) {
			found = append(found, i)
		}
	}
	return found, s.fail
}

func (s *server) Follow(ctx context.Context, _ client.EventOptions) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		for {
			select {
			case e := <-s.events:
				if !yield(e, nil) {
					return
				}
			case <-ctx.Done():
				yield(client.Event{}, ctx.Err())
				return
			}
		}
	}
}

// do carries out an action, which leads to a state.
func (s *server) do(what, id string, state client.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, what+" "+id)
	if s.fail != nil {
		return s.fail
	}
	for n := range s.list {
		if s.list[n].ID == id {
			s.list[n].State = state
		}
	}
	return nil
}

func (s *server) Pause(_ context.Context, id string) error { return s.do("pause", id, client.Paused) }
func (s *server) Kill(_ context.Context, id string) error {
	return s.do("kill", id, client.Terminated)
}
func (s *server) Connect(_ context.Context, id string, _ time.Duration) (client.Connected, error) {
	return client.Connected{}, s.do("wake", id, client.Running)
}

func (s *server) done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.did)
}

// user sits at a terminal that runs top.
type user struct {
	t     *testing.T
	term  vt.MockTerm
	ended chan error
}

const wide, high = 100, 12

func sit(t *testing.T, s *server) *user {
	t.Helper()
	if s.events == nil {
		s.events = make(chan client.Event)
	}
	u := &user{t: t, term: vt.NewMockTerm(vt.MockOptSize{X: wide, Y: high}), ended: make(chan error, 1)}
	tty, err := tcell.NewTerminfoScreenFromTty(u.term)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		<-u.ended
	})
	go func() {
		u.ended <- Run(ctx, tty, Options{
			Server: s, URL: "http://here", Columns: []string{"ID", "STATE", "LABEL"},
			Row: func(i client.Info, _ time.Time) []string {
				return []string{i.ID, string(i.State), i.Metadata["name"]}
			},
			Spare: []string{"LABEL"},
			Log: func(id string) func(context.Context) (string, error) {
				return func(context.Context) (string, error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.reads++
					return strings.Join(append([]string{id}, s.log...), "\n") + "\n", s.fail
				}
			},
			Why: func(_ context.Context, id string) (string, error) {
				return "because of " + id + "\n" + strings.Repeat("a line\n", 30) + "the end", nil
			},
		})
		close(u.ended)
	}()
	return u
}

// lines is what the terminal shows.
func (u *user) lines() []string {
	var lines []string
	for y := range high {
		var line strings.Builder
		for x := range wide {
			if c := u.term.GetCell(vt.Coord{X: vt.Col(x), Y: vt.Row(y)}); c.C != "" {
				line.WriteString(c.C)
			} else if x == 0 || u.term.GetCell(vt.Coord{X: vt.Col(x - 1), Y: vt.Row(y)}).W < 2 {
				line.WriteByte(' ')
			}
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// sees waits until the terminal shows all of these, and none of those that begin
// with "!".
func (u *user) sees(texts ...string) {
	u.t.Helper()
	var all string
	for range 1500 {
		all = strings.Join(u.lines(), "\n")
		if !slices.ContainsFunc(texts, func(text string) bool {
			text, not := strings.CutPrefix(text, "!")
			return strings.Contains(all, text) == not
		}) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	u.t.Fatalf("want %q, the terminal shows:\n%s", texts, all)
}

// types sends what keys send.
func (u *user) types(keys string) { u.term.SendRaw([]byte(keys)) }

const (
	enter = "\r"
	down  = "\x1b[B"
	up    = "\x1b[A"
)

// escape is the key, which is told from the beginning of others by a pause.
func (u *user) escape() {
	u.types("\x1b")
	time.Sleep(300 * time.Millisecond)
}

func sandboxes(n int) []client.Info {
	list := make([]client.Info, n)
	for i := range list {
		list[i] = client.Info{ID: fmt.Sprintf("i%03d", i), State: client.Running, Metadata: map[string]string{"name": fmt.Sprintf("label-%d", i)}}
	}
	return list
}

// TestActions does what keys do, to the sandbox that is selected. A shell needs a
// real terminal: test/e2e has that.
func TestActions(t *testing.T) {
	s := &server{list: sandboxes(3)}
	u := sit(t, s)
	u.sees("drowse top", "http://here", "3 running · 0 paused", "i000", "label-2", "p pause")
	u.types("p")
	u.sees("i000 is asleep", "2 running · 1 paused")
	u.types(down + "p")
	u.sees("i001 is asleep", "1 running · 2 paused")
	u.types("w")
	u.sees("i001 is awake", "2 running · 1 paused")
	u.types("jx") // the last
	u.sees("end i002?")
	u.types("n")
	u.sees("!end i002?", "i002")
	u.types("x")
	u.sees("end i002?")
	u.types("y")
	u.sees("i002 has ended", "!label-2", "1 running · 1 paused")
	u.types("a")
	u.sees("label-2", "1 terminated")
	if want := []string{"pause i000", "pause i001", "wake i001", "kill i002"}; !slices.Equal(s.done(), want) {
		t.Errorf("it did %q, want %q", s.done(), want)
	}
	u.types("q")
	if err := <-u.ended; err != nil {
		t.Error(err)
	}
}

// TestAnswerForTheOneAskedAbout has a question about a sandbox that goes while it is asked: the answer
// is for that one, not for the one that took its place.
func TestAnswerForTheOneAskedAbout(t *testing.T) {
	s := &server{list: sandboxes(2)}
	u := sit(t, s)
	u.sees("i001")
	u.types("x")
	u.sees("end i000?")
	s.mu.Lock()
	s.list = s.list[1:]
	s.mu.Unlock()
	u.sees("!label-0")
	u.types("y")
	for len(s.done()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if want := []string{"kill i000"}; !slices.Equal(s.done(), want) {
		t.Errorf("it did %q, want %q", s.done(), want)
	}
}

func TestFailures(t *testing.T) {
	s := &server{list: sandboxes(1)}
	u := sit(t, s)
	u.sees("i000")
	s.mu.Lock()
	s.fail = errors.New("no answer: \x1b[31mred\nand more")
	s.mu.Unlock()
	u.types("p")
	u.sees("no answer: �[31mred", "!and more")
	u.types("j") // takes the note away
	u.sees("the list is old: no answer", "i000")
	s.mu.Lock()
	s.fail = nil
	s.mu.Unlock()
	u.sees("!the list is old")
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	u := sit(t, &server{fail: errors.New("nothing listens")})
	if err := <-u.ended; err == nil || err.Error() != "nothing listens" {
		t.Errorf("it ended with %v", err)
	}
}

// TestScrolling goes through more sandboxes, and more text, than fit.
func TestScrolling(t *testing.T) {
	u := sit(t, &server{list: sandboxes(100)})
	u.sees("i000", "i008", "!i009")
	u.types("G")
	u.sees("i099", "i091", "!i090")
	u.types(strings.Repeat(up, 9))
	u.sees("i090", "i098", "!i099")
	u.types("g")
	u.sees("i000", "!i009")
	u.types(enter)
	u.sees("why i000", "because of i000", "!the end")
	u.types("G")
	u.sees("the end", "!because of")
	u.escape()
	u.sees("i008")
	u.types("?")
	u.sees("shows all")
	u.types("q")
	u.sees("i008")
	u.term.SetSize(vt.Coord{X: 40, Y: 3})
	u.sees("drowse top  100 running · 0 paused")
	u.term.SetSize(vt.Coord{X: 1, Y: 1})
	time.Sleep(100 * time.Millisecond)
	u.term.SetSize(vt.Coord{X: wide, Y: high})
	u.sees("i000", "i008")
}

// TestLog shows the newest lines of a log, and those that come, unless the user looks
// at others.
func TestLog(t *testing.T) {
	s := &server{list: sandboxes(2), events: make(chan client.Event)}
	more := func(lines ...string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.log = append(s.log, lines...)
	}
	for n := range 30 {
		more(fmt.Sprintf("line-%d", n))
	}
	more("a\x1b[2Jb\u202ec \xff", strings.Repeat("x", 3*wide/2)+"<")
	u := sit(t, s)
	u.sees("i001", "l log")
	u.types(down + "l")
	u.sees("log of i001", "line-29", "a�[2Jb�c", "xxx<", "!line-9")
	more("line-30")
	s.events <- client.Event{} // it is read soon after
	u.sees("line-30", "line-29")
	u.types("g")
	u.sees("line-7", "!line-30")
	more("line-31")
	s.events <- client.Event{}
	s.mu.Lock()
	reads := s.reads
	s.mu.Unlock()
	testmode.Eventually(t, "it is read, and shown", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.reads > reads+1
	})
	u.sees("line-7", "!line-31")
	u.types("G")
	u.sees("line-31")
	more("line-32")
	s.events <- client.Event{}
	u.sees("line-32")
	s.mu.Lock()
	s.fail = errors.New("it has ended")
	s.mu.Unlock()
	u.sees("line-32", "it has ended")
	u.escape()
	u.sees("label-0")
	if did := s.done(); len(did) > 0 {
		t.Errorf("reading a log did %q", did)
	}
}

// TestNarrow has what does not fit go on below, or leaves out what matters least.
func TestNarrow(t *testing.T) {
	s := &server{list: sandboxes(2)}
	u := sit(t, s)
	u.term.SetSize(vt.Coord{X: 110, Y: high})
	u.sees("LABEL", "label-1", "http://here", "? keys")
	u.term.SetSize(vt.Coord{X: 76, Y: high})
	u.sees("l log", "? keys · q quit", "!/ filter")
	u.term.SetSize(vt.Coord{X: 20, Y: high})
	u.sees("i001", "running", "? keys · q quit", "!LABEL", "!label-1")
	s.mu.Lock()
	s.fail = errors.New("what happened; the state now; the next step")
	s.mu.Unlock()
	u.types("p")
	u.sees("what happened; the", "next step")
}

func TestFilterAndOrder(t *testing.T) {
	list := sandboxes(20)
	now := time.Now()
	list[7].LastActiveAt, list[9].Next.At = now, now.Add(time.Hour)
	list[3].Metadata["team"] = "Ünique"
	u := sit(t, &server{list: list})
	u.sees("i003", "i004")
	u.types("/ünxx\x7f\x7fique" + enter)
	u.sees("i003", "!i004", `1 have "ünique"`)
	u.escape()
	u.sees("i004")
	u.types("/nothing")
	u.sees("no sandbox has this text")
	u.escape()
	u.types("o")
	u.sees("next to happen first")
	first := func(want string) {
		t.Helper()
		u.types("g")
		for range 500 {
			if strings.HasPrefix(u.lines()[2], want) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("%s does not come first:\n%s", want, strings.Join(u.lines(), "\n"))
	}
	first("i009")
	u.types("o")
	first("i007")
	u.types("o")
	first("i000")
}

// TestEvents has what happens counted, and the list made anew because of it.
func TestEvents(t *testing.T) {
	s := &server{list: sandboxes(1), events: make(chan client.Event)}
	u := sit(t, s)
	u.sees("wakes 0/min, pauses 0/min")
	for _, kind := range []string{"resumed", "created", "resumed", "paused"} {
		s.events <- client.Event{Type: kind}
	}
	u.sees("wakes 2/min, pauses 1/min")
}

// TestHostileText has labels that would do something to a terminal.
func TestHostileText(t *testing.T) {
	list := sandboxes(6)
	for n, label := range []string{"a\x1b[2Jb", "a\u202eb", "e\u0301\u0301", "日本語日本語", "a\x00b", "\u200d\u200d"} {
		list[n].Metadata["name"] = label
	}
	u := sit(t, &server{list: list})
	u.sees("i000", "i005", "日本語日本語", "a�b", "a�[2Jb")
}
