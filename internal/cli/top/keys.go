package top

import (
	"context"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/client"
)

// help tells what the keys do.
const help = `arrows, j k     select a sandbox
PgUp PgDn g G   further: a screen, to the first, to the last
Enter           why it is awake, asleep or gone, and what happens next
l               its log: newest lines, and new ones as they come; wakes nothing
p               pause it
w               wake it
s               a shell in it (wakes it if auto-resume is on); exit comes back
x               end it, with its files; asks first
/               show only what has a text: id, state, template, metadata; Esc shows all
o               order: newest, next to happen, last active
a               with terminated sandboxes, or without
q               quit

Looking keeps no sandbox awake. The list is made anew when something happens, and
every 2 seconds. Rates are of the last minute, since this began.`

// handle takes in a key, or a new size.
func (s *screen) handle(event tcell.Event) {
	switch e := event.(type) {
	case *tcell.EventResize:
		s.tty.Sync()
	case *tcell.EventKey:
		s.key(e)
	}
}

// key gives a key to what waits for one: the question, the filter's text, the page
// or the list.
func (s *screen) key(e *tcell.EventKey) {
	letter := ""
	if e.Key() == tcell.KeyRune {
		letter = e.Str()
	}
	switch {
	case e.Key() == tcell.KeyCtrlC:
		s.done = true
	case s.question != nil:
		q := s.question
		s.question = nil
		if letter == "y" || letter == "Y" {
			q.yes()
		}
	case s.typing:
		s.typed(e.Key(), letter)
	case s.page != nil:
		s.onPage(e.Key(), letter)
	default:
		s.onList(e.Key(), letter)
	}
}

// typed adds to the filter, takes from it, or ends it.
func (s *screen) typed(key tcell.Key, letter string) {
	switch key {
	case tcell.KeyEnter:
		s.typing = false
	case tcell.KeyEscape:
		s.typing, s.filter = false, ""
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		_, size := utf8.DecodeLastRuneInString(s.filter)
		s.filter = s.filter[:len(s.filter)-size]
	case tcell.KeyRune:
		if r, _ := utf8.DecodeRuneInString(letter); unicode.IsPrint(r) {
			s.filter += letter
		}
	}
	s.arrange()
}

// steps are how far keys move: in rows, or by this share of the screen.
var steps = map[tcell.Key]func(height int) int{
	tcell.KeyUp:   func(int) int { return -1 },
	tcell.KeyDown: func(int) int { return 1 },
	tcell.KeyPgUp: func(height int) int { return -max(height-1, 1) },
	tcell.KeyPgDn: func(height int) int { return max(height-1, 1) },
	tcell.KeyHome: func(int) int { return -farthest },
	tcell.KeyEnd:  func(int) int { return farthest },
}

// farthest is more rows than there are.
const farthest = 1 << 30

// letters are other names of keys.
var letters = map[string]tcell.Key{"k": tcell.KeyUp, "j": tcell.KeyDown, "g": tcell.KeyHome, "G": tcell.KeyEnd}

// step is how far a key moves; 0 if it does not.
func (s *screen) step(key tcell.Key, letter string) int {
	if k, ok := letters[letter]; ok {
		key = k
	}
	if by, ok := steps[key]; ok {
		return by(s.height())
	}
	return 0
}

func (s *screen) onPage(key tcell.Key, letter string) {
	switch {
	case key == tcell.KeyEscape, key == tcell.KeyEnter, letter == "q":
		s.page = nil
	default:
		s.page.first = min(max(s.page.first+s.step(key, letter), 0), s.page.last)
		s.page.follows = s.page.grows && s.page.first == s.page.last
	}
}

func (s *screen) onList(key tcell.Key, letter string) {
	s.note = note{}
	if by := s.step(key, letter); by != 0 {
		s.selectAt(s.index() + by)
		return
	}
	switch {
	case key == tcell.KeyEnter && s.selected != "":
		id := s.selected
		s.open("why", func(ctx context.Context) (string, error) { return s.Why(ctx, id) })
	case key == tcell.KeyEscape:
		s.filter = ""
		s.arrange()
	default:
		if do, ok := commands[letter]; ok {
			do(s)
		}
	}
}

// commands are what letters do on the list.
var commands = map[string]func(*screen){
	"q": func(s *screen) { s.done = true },
	"?": func(s *screen) { s.page = &overlay{title: "keys", text: help} },
	"/": func(s *screen) { s.typing = true },
	"o": func(s *screen) {
		s.order = (s.order + 1) % len(orders)
		s.note = note{text: orders[s.order].name}
		s.arrange()
	},
	"a": func(s *screen) {
		s.ended = !s.ended
		s.loaded.stale = true
	},
	"l": func(s *screen) {
		if s.selected != "" {
			s.open("log of", s.Log(s.selected))
			s.page.grows, s.page.follows = true, true
		}
	},
	"p": func(s *screen) { s.act("pausing", "is asleep", s.Server.Pause) },
	"w": func(s *screen) {
		s.act("waking", "is awake", func(ctx context.Context, id string) error {
			_, err := s.Server.Connect(ctx, id, 0)
			return err
		})
	},
	"x": (*screen).askToEnd,
	"s": (*screen).shell,
}

// askToEnd ends the selected sandbox if the user means it.
func (s *screen) askToEnd() {
	at := s.index()
	if at < 0 || s.shown[at].State == client.Terminated {
		return
	}
	id := s.selected
	s.question = &question{
		text: fmt.Sprintf("end %s? Its memory and files are gone then. y or n", id),
		yes: func() {
			s.act("ending", "has ended", func(ctx context.Context, _ string) error { return s.Server.Kill(ctx, id) })
		},
	}
}

// shell leaves the terminal to a shell in the selected sandbox.
func (s *screen) shell() {
	if s.selected == "" {
		return
	}
	if err := s.tty.Suspend(); err != nil {
		s.note = note{text: err.Error(), bad: true}
		return
	}
	err := s.Shell(s.ctx, s.selected)
	if again := s.tty.Resume(); again != nil {
		s.done = true
		return
	}
	if err != nil {
		s.note = note{text: err.Error(), bad: true}
	}
}
