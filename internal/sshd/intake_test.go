package sshd

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// start runs a command and returns its input.
func start(t *testing.T, c *ssh.Client, command string) (*ssh.Session, io.WriteCloser) {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(command); err != nil {
		t.Fatal(err)
	}
	return s, in
}

// gone ends clients, and waits until nothing of theirs is held or runs.
func gone(t *testing.T, room *held.Room, clients ...*ssh.Client) {
	t.Helper()
	for _, c := range clients {
		c.Close()
	}
	testmode.Eventually(t, "nothing is held", func() bool { return room.All() == held.Holdings{} })
}

// TestStalledInputIsBounded: each session of a client could have the server hold 2 MiB
// that its program does not read, or that it has no program for, for as long as the
// client liked.
func TestStalledInputIsBounded(t *testing.T) {
	const most = held.MaxKeyWaiting / 2
	room := held.New()
	addr := gate(t, Options{Room: room}, func(s *Server) { s.patience = time.Second })
	over := make(chan error, 100)
	var clients []*ssh.Client
	var inputs []io.Writer
	for range 3 {
		c := loginAs(t, addr, "greedy")
		clients = append(clients, c)
		go func() { over <- c.Wait() }()
		for range 4 {
			_, in := start(t, c, "exec sleep 1000")
			inputs = append(inputs, in)
		}
		idle, requests, err := c.OpenChannel("session", nil)
		if err != nil {
			t.Fatal(err)
		}
		go ssh.DiscardRequests(requests)
		inputs = append(inputs, idle)
	}
	modest := loginAs(t, addr, "modest")
	for _, in := range inputs {
		go func() { _, _ = in.Write(make([]byte, 2<<20)) }()
	}
	testmode.Eventually(t, "input waits", func() bool { return room.Of("greedy").Waiting > most-1<<20 })
	s, err := modest.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	s.Stdin = strings.NewReader("x")
	if out, err := s.Output("cat"); err != nil || string(out) != "x" {
		t.Errorf("another key: %q, %v", out, err)
	}
	if n := room.Of("greedy").Waiting; n > most {
		t.Errorf("%d bytes wait, want at most %d", n, most)
	}
	if err := <-over; err == nil {
		t.Error("a connection whose input finds no room goes on")
	}
	gone(t, room, append(clients, modest)...)
}

// brokenChannel is one whose reads return an error once, with a byte, and then block.
type brokenChannel struct {
	ssh.Channel
	err   error
	reads int
}

func (c *brokenChannel) Read(p []byte) (int, error) {
	if c.reads++; c.reads > 1 {
		select {}
	}
	return 1, c.err
}

// TestInputOfABrokenConnection: what cannot tell its client that it has read may still
// block, and is not read by who reads for all channels.
func TestInputOfABrokenConnection(t *testing.T) {
	ch := &brokenChannel{err: errors.New("write: broken pipe")}
	in := &input{ch: ch, from: &intake{}}
	if n, err := in.Read(make([]byte, 1)); n != 1 || err != ch.err {
		t.Fatalf("read %d, %v", n, err)
	}
	waits := make(chan bool, 1)
	go func() { waits <- in.waits(time.Now()) }()
	select {
	case got := <-waits:
		if got || ch.reads != 1 {
			t.Errorf("it waits: %v, after %d reads", got, ch.reads)
		}
	case <-time.After(testmode.Patience()):
		t.Fatal("it is read, and blocks")
	}
}

// TestTinyPacketsCount: a packet of one byte takes a hundred.
func TestTinyPacketsCount(t *testing.T) {
	room := held.New()
	c := login(t, gate(t, Options{Room: room}))
	_, in := start(t, c, "exec sleep 1000")
	_, _ = in.Write(make([]byte, 1<<20)) // so that nobody reads on
	const pipe = 64 << 10                // which the command's input takes, in pieces that fit
	testmode.Eventually(t, "input waits", func() bool { return room.Of("k").Waiting >= 1<<20-pipe })
	const packets = 20_000
	go func() {
		for range packets {
			_, _ = in.Write([]byte{'x'})
		}
	}()
	testmode.Eventually(t, "they count with what they take", func() bool { return room.Of("k").Waiting > 1<<20+20*packets })
	gone(t, room, c)
}

// TestWhatWasTakenCountsNoMore: what went through a connection, in pieces large or
// small, in or out, does not count any more; nor do connections that have ended.
func TestWhatWasTakenCountsNoMore(t *testing.T) {
	room := held.New()
	c := login(t, gate(t, Options{Room: room}))
	settled := func(what string) {
		t.Helper()
		testmode.Eventually(t, what, func() bool {
			time.Sleep(2 * settleTime)                 // it is quiet,
			_, _, _ = c.SendRequest("ping", true, nil) // and looked again
			return room.Of("k").Waiting < 1<<10
		})
	}
	s, in := start(t, c, "exec cat >/dev/null")
	for range 64 {
		_, _ = in.Write(make([]byte, 1<<20))
	}
	settled("large pieces are taken")
	for range 10_000 {
		_, _ = in.Write([]byte("x"))
	}
	settled("small pieces are taken")
	in.Close()
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	s, in = start(t, c, "exec sleep 1000")
	_, _ = in.Write(make([]byte, 100))
	in.Close()
	settled("a session whose input has ended takes nothing")
	s.Close()
	gone(t, room, c)
}
