package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/held"
)

const (
	// intakePatience is how long a client's input waits for room before the
	// connection ends. Meanwhile nothing more is read of it, also no answer whether
	// it is there: see AliveWithin.
	intakePatience = 30 * time.Second
	// settleTime is after how long without anything to read the reader of a channel
	// has read all that has come.
	settleTime = 20 * time.Millisecond
	// lookAt is at how many counted bytes it is looked whether so many wait, and
	// lookMore after how many more it is looked again.
	lookAt, lookMore = 4 << 20, 1 << 20
)

// errNoRoom is why a connection ends whose input found no room.
var errNoRoom = errors.New("its input waited too long: programs do not read what this API key's clients, or all together, have sent")

// intake is a client's connection. What has come and waits for the guest counts.
//
// The library lets a client send 2 MiB into each channel before anybody reads, and
// keeps them in packets, which may have one byte each and then take a hundred times
// as much. So the bytes on the wire count, and not those in the channels. How many
// of them brought a byte of a channel is not known here: once the guest has taken
// bytes, as many count no more, and nothing does once all channels wait for more.
type intake struct {
	net.Conn
	ctx      context.Context // ends with the connection
	patience time.Duration

	mu     sync.Mutex
	share  *held.Share // nil until the client has logged in
	inputs map[*input]bool
	last   time.Time // when bytes came
	look   int       // at how many counted bytes to look
}

// admit begins to count.
func (t *intake) admit(share *held.Share) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.share, t.inputs, t.look = share, map[*input]bool{}, lookAt
}

// Read implements net.Conn.
func (t *intake) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 && !t.count(n) {
		t.tell()
		return 0, errNoRoom
	}
	return n, err
}

// count takes room for bytes that have come, and waits for it if need be.
func (t *intake) count(n int) bool {
	settled := t.settle()
	t.mu.Lock()
	share := t.share
	if share == nil {
		t.mu.Unlock()
		return true
	}
	if settled {
		t.look = lookAt
	}
	took, patience := share.Grow(n), t.patience
	looks := took && share.Has() > t.look
	if looks {
		patience, t.look = 5*settleTime, share.Has()+lookMore
	}
	t.last = time.Now()
	t.mu.Unlock()
	if took && !looks {
		return true
	}
	tick, end := time.NewTicker(settleTime/2), time.NewTimer(patience)
	defer tick.Stop()
	defer end.Stop()
	for {
		select {
		case <-tick.C:
		case <-end.C:
			return took
		case <-t.ctx.Done():
			return false
		}
		if settled := t.settle(); settled && took || !took && share.Grow(n) {
			return true
		}
	}
}

// settle counts nothing any more if nothing waits, and reports whether it did.
func (t *intake) settle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.share == nil || now.Sub(t.last) < settleTime {
		return false
	}
	for in := range t.inputs {
		if !in.waits(now) {
			return false
		}
	}
	t.share.Shrink(t.share.Has())
	return true
}

// tell says to the client why its connection ends, if it listens.
func (t *intake) tell() {
	t.mu.Lock()
	inputs := slices.Collect(maps.Keys(t.inputs))
	t.mu.Unlock()
	told := make(chan struct{})
	go func() {
		defer close(told)
		for _, in := range inputs {
			fmt.Fprintf(in.ch.Stderr(), "drowse: the connection ends: %s\r\n", errNoRoom)
		}
	}()
	select {
	case <-told:
	case <-time.After(time.Second):
	}
}

// input is what a client sends into one channel, for a command to read.
type input struct {
	ch   ssh.Channel
	from *intake

	// Guarded by from.
	since   time.Time // when Read began to wait; zero if none waits
	ended   bool      // Read has returned io.EOF
	passing int       // what Read has returned and the guest has not taken
}

// open begins to read a channel that was accepted. Close ends it.
func (t *intake) open(ch ssh.Channel) *input {
	in := &input{ch: ch, from: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inputs != nil {
		t.inputs[in] = true
	}
	go func() { _, _ = io.Copy(io.Discard, ch.Stderr()) }() // nobody expects any
	return in
}

func (in *input) close() {
	in.from.mu.Lock()
	defer in.from.mu.Unlock()
	delete(in.from.inputs, in)
}

// waits reports whether all was read that has come. The caller holds from.mu.
func (in *input) waits(now time.Time) bool {
	if in.ended { // a client may send more, for nobody; no Read blocks
		for drop := make([]byte, 4<<10); ; {
			if n, err := in.ch.Read(drop); n == 0 || err != nil {
				break
			}
		}
		return in.passing == 0
	}
	return in.passing == 0 && !in.since.IsZero() && now.Sub(in.since) >= settleTime
}

// Read implements io.Reader.
func (in *input) Read(p []byte) (int, error) {
	in.from.mu.Lock()
	in.since = time.Now()
	in.from.mu.Unlock()
	n, err := in.ch.Read(p)
	in.from.mu.Lock()
	defer in.from.mu.Unlock()
	// After another error, of what it sends when it has read, the channel may go on, and
	// block: the connection ends by itself.
	in.since, in.ended, in.passing = time.Time{}, err == io.EOF, in.passing+n
	return n, err
}

// Taken is called by the client with what the command has got.
func (in *input) Taken(n int) {
	in.from.mu.Lock()
	defer in.from.mu.Unlock()
	in.passing -= n
	if in.from.share != nil {
		in.from.share.Shrink(n)
	}
}
