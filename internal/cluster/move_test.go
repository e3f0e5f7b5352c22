package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// moves is a Mover that does what it is told.
type moves struct {
	receive  func() error
	handOver func(take func(context.Context) error) error
}

func (m moves) Receive(context.Context, string, string) error { return m.receive() }

func (m moves) HandOver(ctx context.Context, _, _, _ string, _ bool, take func(context.Context) error) error {
	return m.handOver(take)
}

// asking is a transport that answers by itself.
type asking func(*http.Request) (*http.Response, error)

func (f asking) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestMove: a sandbox is handed over by its owner to the server that is named, or to one that
// lives, which is asked; who is refused gets the other's error.
func TestMove(t *testing.T) {
	b := open(t, &records{self: "srv_b"})
	at := listen(t, b)
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_a"}, servers: []store.Server{
		{ID: "srv_a", Left: time.Minute, Address: "x", Room: &store.Room{Runtime: "1", CPU: []string{"avx"}}}, {ID: "srv_b", Left: time.Minute, Address: at, Room: &store.Room{Runtime: "1", CPU: []string{"avx", "avx2"}, DiskMiB: leastDisk, Copies: true}}, {ID: "srv_old", Left: time.Minute, Address: at, Room: &store.Room{Runtime: "1", CPU: []string{"sse"}, DiskMiB: leastDisk, Copies: true, MemoryMiB: 1 << 30}}, {ID: "srv_new", Left: time.Minute, Address: at, Room: &store.Room{Runtime: "2", CPU: []string{"avx"}, DiskMiB: leastDisk, Copies: true, MemoryMiB: 1 << 30}}, {ID: "srv_gone", Address: at}, {ID: "srv_drained", Left: time.Minute, Draining: true, Address: at}, {ID: "srv_leaves", Left: time.Minute, Leaving: true, Address: at}, {ID: "srv_deaf", Left: time.Minute},
	}}
	var asked, answer string
	status := http.StatusOK
	handed := 0
	c, err := Open(t.Context(), Options{
		Store: r, Has: func(string) bool { return false }, Log: slog.New(slog.DiscardHandler),
		Transport: func(to string) http.RoundTripper {
			return asking(func(out *http.Request) (*http.Response, error) {
				body, err := io.ReadAll(out.Body)
				asked = strings.Join([]string{to, out.Method, out.URL.Path, out.Header.Get(edge.HeaderForwarded), string(body)}, " ")
				if status == 0 {
					return nil, errors.New("no answer")
				}
				return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}, err
			})
		},
		Mover: moves{handOver: func(take func(context.Context) error) error {
			handed++
			err := take(t.Context())
			if err == nil {
				r.owners[wanderer] = "srv_b"
			}
			return err
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	move := func(to string) (store.Sandbox, error) {
		return c.Move(t.Context(), wanderer, to, "me")
	}
	for to, code := range map[string]string{"srv_none": "server_not_found", "srv_gone": codeUnreachable, "srv_drained": codeDrained, "srv_leaves": codeUnreachable, "srv_deaf": codeUnreachable, "srv_a": ""} {
		if sb, err := move(to); errdef.CodeOf(err) != code || handed != 0 || code == "" && sb.Owner != "srv_a" {
			t.Errorf("to %s: %+v, %v after %d moves", to, sb, err, handed)
		}
	}
	status, answer = http.StatusConflict, `{"code": "cannot_run_here", "message": "its image is not here", "remedy": "pull it", "context": {"sandbox": "x"}}`
	_, err = move("srv_b")
	if !errdef.Is(err, errdef.Unsupported) || errdef.CodeOf(err) != "cannot_run_here" || !strings.Contains(err.Error(), "its image is not here") || !strings.Contains(err.Error(), "pull it") || errdef.Fact(err, "server") != "srv_b" {
		t.Errorf("refused: %v", err)
	}
	for _, s := range []int{http.StatusBadGateway, 0} {
		status, answer = s, "no JSON"
		if _, err := move("srv_b"); errdef.CodeOf(err) != codeUnreachable {
			t.Errorf("status %d: %v", s, err)
		}
	}
	status = http.StatusOK
	sb, err := move("")
	if want := `srv_b POST /take for=unknown; secure=1; hop=5 {"id":"` + wanderer + `","actor":"me"}`; err != nil || sb.Owner != "srv_b" || asked != want {
		t.Errorf("it is at %q, %v; asked was %s; want %s", sb.Owner, err, asked, want)
	}
	// What is known of it is at once where it is.
	r.asked.Store(0)
	if got, err := c.Holder(t.Context(), wanderer); got != "srv_b" || err != nil || r.asked.Load() != 0 {
		t.Errorf("Holder is %q, %v", got, err)
	}
	if _, err := move("srv_gone"); !elsewhere(err, "srv_b") { // which has the request passed on
		t.Errorf("where it is not any more: %v", err)
	}
	r.state = lifecycle.Terminated
	if _, err := move("srv_b"); !lifecycle.Ended(err) {
		t.Errorf("where it has ended: %v", err)
	}
	r.state = ""
	r.owners[wanderer], c.o.Mover = "srv_a", nil
	if _, err := move("srv_b"); errdef.CodeOf(err) != "no_object_storage" {
		t.Errorf("without object storage: %v", err)
	}
	c.o.Mover, r.servers = moves{}, slices.DeleteFunc(r.servers, func(srv store.Server) bool { return srv.ID == "srv_b" })
	_ = c.Forget(t.Context())
	if _, err := move(""); errdef.CodeOf(err) != "no_other_server" {
		t.Errorf("where no other can go on with it: %v", err)
	}
}

func elsewhere(err error, server string) bool {
	has, is := store.Elsewhere(err)
	return is && has == server
}

// TestReceive: who asks for a sandbox at the server that takes it waits until it is there, or is
// led back.
func TestReceive(t *testing.T) {
	for name, fails := range map[string]error{"taken": nil, "refused": errdef.New(errdef.Exhausted, "disk_full", "full")} {
		t.Run(name, func(t *testing.T) {
			r := &records{self: "srv_b", owners: map[string]string{wanderer: "srv_a"}, servers: []store.Server{{ID: "srv_a", Left: time.Minute}}}
			begun, end := make(chan struct{}), make(chan struct{})
			c := openTaking(t, r, func() error { return errors.New("it is not gone") })
			c.o.Room = func() (store.Room, error) { return store.Room{DiskMiB: leastDisk, Copies: true}, nil }
			c.o.Mover = moves{receive: func() error {
				close(begun)
				<-end
				return fails
			}}
			done := make(chan error, 1)
			go func() { done <- c.receive(t.Context(), taking{wanderer, "me", true}) }()
			<-begun
			if err := c.receive(t.Context(), taking{wanderer, "me", true}); errdef.CodeOf(err) != "move_conflict" {
				t.Errorf("once more: %v", err)
			}
			short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := c.Holder(short, wanderer); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("who does not wait: %v", err)
			}
			led := make(chan string, 1)
			go func() {
				server, err := c.Holder(t.Context(), wanderer)
				led <- server + errdef.CodeOf(err)
			}()
			if fails == nil {
				r.owners[wanderer] = "srv_b"
			}
			close(end)
			if err := <-done; !errors.Is(err, fails) {
				t.Errorf("%v, want %v", err, fails)
			}
			want := ""
			if fails != nil {
				want = "srv_a"
			}
			if got := <-led; got != want {
				t.Errorf("who waits is led to %q, want %q", got, want)
			}
		})
	}
}

// TestRehouse: of all who ask at once for a sandbox that has no room to wake, one has it move; where
// that fails, it is not tried again at once.
func TestRehouse(t *testing.T) {
	for name, tt := range map[string]struct {
		state  lifecycle.State
		room   store.Room
		fails  error
		code   string
		handed int // by two times five who ask
	}{
		"it moves":           {lifecycle.Paused, store.Room{DiskMiB: leastDisk, Copies: true}, nil, "", 1},
		"it is refused":      {lifecycle.Paused, store.Room{DiskMiB: leastDisk, Copies: true}, errdef.New(errdef.Unsupported, "cannot_run_here", "its image is not there"), "cannot_run_here", 1},
		"it runs":            {lifecycle.Running, store.Room{DiskMiB: leastDisk, Copies: true}, nil, codeConflict, 0},
		"nobody has room":    {lifecycle.Paused, store.Room{}, nil, codeNoOther, 0},
		"nobody can read it": {lifecycle.Paused, store.Room{DiskMiB: leastDisk, Copies: true, Runtime: "2"}, nil, codeNoOther, 0},
	} {
		t.Run(name, func(t *testing.T) {
			at := listen(t, open(t, &records{self: "srv_b"}))
			r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_a"}, state: tt.state, servers: []store.Server{
				{ID: "srv_a", Left: time.Minute, Address: "x", Room: &store.Room{}}, {ID: "srv_b", Left: time.Minute, Address: at, Room: &tt.room},
			}}
			c := openTaking(t, r, func() error { return errors.New("nothing is to be taken over") })
			handed, moving := 0, make(chan struct{})
			var once sync.Once
			c.o.Mover = moves{handOver: func(func(context.Context) error) error {
				handed++
				<-moving
				if tt.fails == nil {
					r.owners[wanderer] = "srv_b"
				}
				return tt.fails
			}}
			for range 2 {
				var asking sync.WaitGroup
				for range 5 {
					asking.Go(func() {
						if server, err := c.Rehouse(t.Context(), wanderer); errdef.CodeOf(err) != tt.code || err == nil && server != "srv_b" {
							t.Errorf("it moves to %q, %v; want %q", server, err, tt.code)
						}
					})
				}
				once.Do(func() { close(moving) })
				asking.Wait()
			}
			if handed != tt.handed {
				t.Errorf("%d moves were tried, want %d", handed, tt.handed)
			}
		})
	}
}
