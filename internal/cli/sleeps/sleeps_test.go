package sleeps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/vt"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// box is a sandbox in memory. It sleeps when it is told to, and by no timeout.
type box struct {
	id     string
	mu     sync.Mutex
	asleep bool
	now    Reading
	woken  func(*Reading) // what a wake does to it
	fail   error          // of a wake
}

func (b *box) Read(context.Context) (Reading, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asleep {
		if b.fail != nil {
			return Reading{}, b.fail
		}
		b.asleep = false
		b.now.FirstByte = 71 * time.Millisecond
		if b.woken != nil {
			b.woken(&b.now)
		}
	}
	b.now.Count++
	return b.now, nil
}

func (b *box) ID() string { return b.id }

func (b *box) Nap(context.Context, time.Duration) error { return nil }

func (b *box) Pause(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asleep = true
	return nil
}

func (b *box) Info(context.Context) (client.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asleep {
		return client.Info{State: client.Paused, Checkpoint: &client.Checkpoint{Bytes: 3 << 19}}, nil
	}
	return client.Info{State: client.Running}, nil
}

func (b *box) Host() (string, int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asleep {
		return "no process, 0 MiB", 0, nil
	}
	return "2 processes, 53.4 MiB", 2, nil
}

const wide, high = 80, 24

// viewer sits at a terminal that shows a box.
type viewer struct {
	t      *testing.T
	term   vt.MockTerm
	sleeps []Sleep
	ended  chan error
}

func watch(t *testing.T, boxes ...*box) *viewer {
	t.Helper()
	v := &viewer{t: t, term: vt.NewMockTerm(vt.MockOptSize{X: wide, Y: high}), ended: make(chan error, 1)}
	tty, err := tcell.NewTerminfoScreenFromTty(v.term)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		<-v.ended
	})
	o := Options{URL: "http://here", Awake: time.Hour, Asleep: time.Hour}
	for n, b := range boxes {
		b.id = fmt.Sprintf("i00%d", n+1)
		b.now = Reading{PID: 9 + n, Memory: []byte("aaaa"), Files: []byte("bbbbbb")}
		o.Sandboxes = append(o.Sandboxes, b)
	}
	go func() {
		var err error
		v.sleeps, err = Run(ctx, tty, o)
		v.ended <- err
		close(v.ended)
	}()
	return v
}

// sees waits until the terminal shows all of these.
func (v *viewer) sees(texts ...string) {
	v.t.Helper()
	var all string
	for range 1500 {
		all = v.shown()
		missing := false
		for _, text := range texts {
			missing = missing || !strings.Contains(all, text)
		}
		if !missing {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	v.t.Fatalf("want %q, the terminal shows:\n%s", texts, all)
}

// seesTwice waits until the terminal shows a text twice: of both sandboxes.
func (v *viewer) seesTwice(text string) {
	v.t.Helper()
	testmode.Eventually(v.t, "the terminal shows "+text+" twice", func() bool { return strings.Count(v.shown(), text) == 2 })
}

func (v *viewer) shown() string {
	var all strings.Builder
	for y := range high {
		for x := range wide {
			if c := v.term.GetCell(vt.Coord{X: vt.Col(x), Y: vt.Row(y)}).C; c != "" {
				all.WriteString(c)
			} else {
				all.WriteByte(' ')
			}
		}
		all.WriteByte('\n')
	}
	return all.String()
}

func (v *viewer) types(keys string) { v.term.SendRaw([]byte(keys)) }

// end waits until the screen is left.
func (v *viewer) end() error {
	v.t.Helper()
	select {
	case err := <-v.ended:
		return err
	case <-time.After(testmode.Patience()):
		v.t.Fatal("the screen is still there")
		return nil
	}
}

// TestWatch puts two sandboxes to sleep and wakes them by the space bar.
func TestWatch(t *testing.T) {
	v := watch(t, &box{}, &box{})
	const memory, files = "4 bytes, sha256 61be55a8…", "6 bytes, sha256 4625fd63…"
	v.sees("drowse demo  http://here", "i001", "i002", "is awake", "2 processes, 53.4 MiB", "pid 9, had counted to 1", "pid 10, had counted to 1", memory, files, "q ends the demo")
	v.seesTwice("is awake")
	v.types(" ")
	v.seesTwice("a request wakes it in")
	v.sees("sleeps", "no process, 0 MiB")
	v.types(" ")
	v.seesTwice("is awake")
	v.seesTwice(memory + ", each the same after 1 sleep")
	v.seesTwice(files + ", each the same after 1 sleep")
	v.sees("1.5 MiB", "71 ms", "1, then 2")
	v.types(" ")
	v.seesTwice("a request wakes it in")
	v.types(" ")
	v.seesTwice(files + ", each the same after 2 sleeps")
	v.sees("2, then 3")
	v.types("q")
	if err := v.end(); err != nil || len(v.sleeps) != 4 {
		t.Errorf("got %v and %d sleeps, want 4", err, len(v.sleeps))
	}
}

// TestNotTheSame ends the screen when a sandbox is not what it was, and says what
// is different.
func TestNotTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		woken func(*Reading)
		fail  error
		want  string
	}{
		"memory":        {func(r *Reading) { r.Memory = []byte("aaba") }, nil, "byte 2 of its memory was 0x61, and is 0x62 after a sleep"},
		"files":         {func(r *Reading) { r.Files = nil }, nil, "its files had 6 bytes, and have 0 after a sleep"},
		"process":       {func(r *Reading) { r.PID = 7 }, nil, "its process was 9, and is 7 after a sleep"},
		"count":         {func(r *Reading) { r.Count = -5 }, nil, "it had counted to 1, and is at -4 after a sleep"},
		"does not wake": {nil, errors.New("no answer"), "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := watch(t, &box{woken: c.woken, fail: c.fail})
			v.sees("is awake")
			v.types(" ")
			v.sees("a request wakes it in")
			v.types(" ")
			if err := v.end(); err == nil || err.Error() != "sandbox i001: "+c.want || len(v.sleeps) != 0 {
				t.Errorf("got %v and %d sleeps, want %q", err, len(v.sleeps), c.want)
			}
		})
	}
}
