package egress

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// sent are SYNs that a test sends, and their answers.
type sent struct {
	syns    chan SYN
	answers chan Answer
}

func (s sent) Next() (SYN, error) {
	syn, ok := <-s.syns
	if !ok {
		return SYN{}, net.ErrClosed
	}
	return syn, nil
}

func (s sent) Answer(_ SYN, a Answer) { s.answers <- a }

// answer waits for the next answer.
func (s sent) answer(t *testing.T) Answer {
	t.Helper()
	select {
	case a := <-s.answers:
		return a
	case <-time.After(testmode.Patience()):
		t.Fatal("no answer")
		return ""
	}
}

// serveSYNs has a gate serve SYNs, and returns where their connections arrive and
// what ends it.
func serveSYNs(t *testing.T, g *Gate) (s sent, via net.Listener, end func()) {
	t.Helper()
	s = sent{make(chan SYN), make(chan Answer, 10)}
	via = listen(t)
	names, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		g.Serve(via, names, s)
	}()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		via.Close()
		names.Close()
		close(s.syns)
		select {
		case <-served:
		case <-time.After(testmode.Patience()):
			t.Error("it still serves")
		}
	}
	t.Cleanup(end)
	return s, via, end
}

func synTo(to string) SYN {
	return SYN{From: netip.MustParseAddrPort("169.254.77.2:40000"), To: netip.MustParseAddrPort(to)}
}

// free reports whether a gate has nothing under way, and has given back what it took.
func free(g *Gate) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	descriptors, _ := g.room.Of("key")
	return len(g.conns) == 0 && len(g.begun) == 0 && descriptors == 0
}

func eventuallyFree(t *testing.T, g *Gate) {
	t.Helper()
	for end := time.Now().Add(testmode.Patience()); !free(g); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a connection is kept")
		}
	}
}

func TestSYNs(t *testing.T) {
	all := mustPolicy(t, true, nil, []string{"203.0.113.66"})
	names := mustPolicy(t, true, []string{"good.test", "203.0.113.20"}, []string{Everything})
	for name, tt := range map[string]struct {
		policy Policy
		to     string
		answer Answer // empty for none
		dialed string // empty for none
		why    Reason // empty for none
	}{
		"allowed":           {all, "203.0.113.10:80", Accept, "203.0.113.10:80", ""},
		"refused":           {all, "203.0.113.98:80", Refuse, "203.0.113.98:80", ReasonUnreachable},
		"nobody there":      {all, "203.0.113.99:80", Unreachable, "203.0.113.99:80", ReasonUnreachable},
		"this machine":      {all, "11.51.100.1:80", Refuse, "", ReasonClosed},
		"denied":            {all, "203.0.113.66:80", "", "", ""},
		"closed":            {all, "169.254.169.254:80", "", "", ""},
		"by name":           {names, "203.0.113.99:80", Accept, "", ""},
		"an address beside": {names, "203.0.113.20:80", Accept, "203.0.113.20:80", ""},
		"watched":           {all, "203.0.113.99:443", Accept, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, g := newLoop(t)
			g.SetOpener(watcher{})
			g.Set(tt.policy)
			s, _, end := serveSYNs(t, g)
			s.syns <- synTo(tt.to)
			if tt.answer != "" {
				if got := s.answer(t); got != tt.answer {
					t.Errorf("answered with %q, want %q", got, tt.answer)
				}
			}
			end()
			if len(s.answers) > 0 {
				t.Errorf("answered with %q", <-s.answers)
			}
			if dialed, _ := l.dialed.Load().(string); dialed != tt.dialed {
				t.Errorf("dialed %q, want %q", dialed, tt.dialed)
			}
			if got := reasons(g); tt.why != "" && !slices.Equal(got, []Reason{tt.why}) || tt.why == "" && len(got) > 0 {
				t.Errorf("refused for %q, want %q", got, tt.why)
			}
			if !free(g) {
				t.Error("something is kept at the end")
			}
		})
	}
}

// watcher is an opener that watches port 443.
type watcher struct{ Opener }

func (watcher) Watches(port uint16) bool { return port == 443 }

// TestSYNArrives joins a connection to the one that was dialed for it. SYNs that
// are sent again dial no other.
func TestSYNArrives(t *testing.T) {
	l, g := newLoop(t)
	l.dialing = make(chan struct{})
	g.Set(mustPolicy(t, true, nil, nil))
	s, via, _ := serveSYNs(t, g)
	// Where the sandbox connected to is the local address of what arrives. Here that
	// is loopback, so carry is told another.
	ln := listen(t)
	near, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	syn := SYN{From: near.LocalAddr().(*net.TCPAddr).AddrPort(), To: netip.MustParseAddrPort("203.0.113.10:80")}
	for range 3 {
		s.syns <- syn
	}
	close(l.dialing)
	if got := s.answer(t); got != Accept {
		t.Fatalf("answered with %q", got)
	}
	s.syns <- syn // the first was lost
	if got := s.answer(t); got != Accept {
		t.Fatalf("answered with %q when sent again", got)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.carry(via, far.(*net.TCPConn), syn.To)
	}()
	if !echoed(near, "a") {
		t.Error("nothing comes through")
	}
	if n := l.dials.Load(); n != 1 {
		t.Errorf("%d connections were dialed for one", n)
	}
	g.Set(mustPolicy(t, false, nil, nil))
	if echoed(near, "b") {
		t.Error("what is denied now goes on")
	}
	<-done
	eventuallyFree(t, g)
}

// TestSYNWaits ends what was dialed for a connection that does not arrive: after a
// time, with a policy that denies it, and with the sandbox's network.
func TestSYNWaits(t *testing.T) {
	all := mustPolicy(t, true, nil, nil)
	for name, over := range map[string]func(g *Gate, c *conn, end func()){
		"too late": func(g *Gate, c *conn, _ func()) { g.giveUp(c) },
		"denied":   func(g *Gate, _ *conn, _ func()) { g.Set(mustPolicy(t, false, nil, nil)) },
		"names alone": func(g *Gate, _ *conn, _ func()) {
			g.Set(mustPolicy(t, true, []string{"good.test"}, []string{Everything}))
		},
		"network ended": func(_ *Gate, _ *conn, end func()) { end() },
	} {
		t.Run(name, func(t *testing.T) {
			l, g := newLoop(t)
			l.server = listen(t)
			g.Set(all)
			s, via, end := serveSYNs(t, g)
			syn := synTo("203.0.113.10:80")
			s.syns <- syn
			out, err := l.server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			if got := s.answer(t); got != Accept || free(g) {
				t.Fatalf("answered with %q", got)
			}
			g.mu.Lock()
			c := g.begun[flow{via, syn.From, syn.To}]
			overdue := c.overdue
			g.mu.Unlock()
			over(g, c, end)
			_ = out.SetDeadline(time.Now().Add(testmode.Patience()))
			if _, err := out.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("the way on ended with %v", err)
			}
			if !free(g) {
				t.Error("it is still kept")
			}
			if name != "too late" && overdue.Stop() {
				t.Error("its clock still runs")
			}
		})
	}
}

// TestSYNDeniedWhileDialing changes the policy, and ends the network, while a
// connection is dialed.
func TestSYNDeniedWhileDialing(t *testing.T) {
	for _, ends := range []bool{false, true} {
		l, g := newLoop(t)
		l.dialing = make(chan struct{})
		g.Set(mustPolicy(t, true, nil, nil))
		s, via, end := serveSYNs(t, g)
		syn := synTo("203.0.113.10:80")
		s.syns <- syn
		for l.dialed.Load() == nil {
			time.Sleep(time.Millisecond)
		}
		if ends {
			over := make(chan struct{})
			go func() { defer close(over); end() }()
			defer func() { <-over }()
			broken := func() bool {
				g.mu.Lock()
				defer g.mu.Unlock()
				return g.begun[flow{via, syn.From, syn.To}].broken
			}
			for !broken() {
				time.Sleep(time.Millisecond)
			}
		} else {
			g.Set(mustPolicy(t, false, nil, nil))
		}
		close(l.dialing)
		if got := s.answer(t); got != Refuse {
			t.Errorf("answered with %q", got)
		}
		end()
		if !free(g) {
			t.Error("it is still kept")
		}
	}
}

// TestSYNBounds dials for no more than a sandbox may have.
func TestSYNBounds(t *testing.T) {
	l, g := newLoop(t)
	l.dialing = make(chan struct{})
	g.Set(mustPolicy(t, true, nil, nil))
	g.room.Room = newRoom(1 << 15) // more than a sandbox may have
	s, _, _ := serveSYNs(t, g)
	syn := synTo("203.0.113.10:80")
	for range maxConns + 1 {
		syn.From = netip.AddrPortFrom(syn.From.Addr(), syn.From.Port()+1)
		s.syns <- syn
	}
	if got := s.answer(t); got != Refuse || !slices.Equal(reasons(g), []Reason{ReasonCrowded}) {
		t.Errorf("one too many: answered with %q, refused for %q", got, reasons(g))
	}
	g.Set(mustPolicy(t, false, nil, nil))
	close(l.dialing)
	for range maxConns {
		if got := s.answer(t); got != Refuse {
			t.Fatalf("answered with %q", got)
		}
	}
	eventuallyFree(t, g)
}
