package egress

import (
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/ration"
)

// Room is what the connections of all sandboxes may take of the server. A
// sandbox, and the API key that made it, have shares of it, so that no tenant
// takes the descriptors that the others, and the server itself, need.
type Room struct {
	descriptors *ration.Ration
	buffers     *ration.Ration // bytes, until a connection has said its name
	opened      *ration.Ration // connections that an Opener carries
}

// What is taken.
const (
	connDescriptors   = 6 // both ends, and a pipe for each direction
	lookupDescriptors = 2

	minDescriptors, maxDescriptors = 600, 1 << 16

	maxBuffers = 32 << 20
	maxOpened  = 1024 // some 150 KiB each
	// A name is looked for in sniffBuffers, and a head that is larger than
	// sniffSmall takes largeBuffers more.
	sniffSmall   = 4 << 10
	sniffBuffers = 4 * sniffSmall
	largeBuffers = 3 * maxHead
)

// NewRoom returns the room of a server: a quarter of the descriptors that this
// process may have.
func NewRoom() *Room {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // else the least
	return newRoom(int(min(max(limit.Cur/4, minDescriptors), maxDescriptors)))
}

func newRoom(descriptors int) *Room {
	return &Room{ration.New(descriptors), ration.New(maxBuffers), ration.New(maxOpened)}
}

// Of returns how many descriptors, and bytes of buffers, the sandboxes of an API
// key have.
func (r *Room) Of(key string) (descriptors, buffers int) {
	return r.descriptors.Of(key), r.buffers.Of(key)
}

// share is what one sandbox may take of a Room.
type share struct {
	*Room
	key string // the API key that made the sandbox
}

// holder is the key, for which what is taken of r counts. It may have half of it.
func (s share) holder(r *ration.Ration) ration.Holder {
	return ration.Holder{Name: s.key, Most: r.Most() / 2}
}

func (s share) takeDescriptors(n int) bool { return s.descriptors.Take(n, s.holder(s.descriptors)) }
func (s share) giveDescriptors(n int)      { s.descriptors.Give(n, s.holder(s.descriptors)) }

func (s share) takeOpened() bool { return s.opened.Take(1, s.holder(s.opened)) }
func (s share) giveOpened()      { s.opened.Give(1, s.holder(s.opened)) }

// loan is what one connection has of the buffers.
type loan struct {
	from  share
	taken int
	short bool // there was no room for more
}

func (l *loan) take(n int) bool {
	if !l.from.buffers.Take(n, l.from.holder(l.from.buffers)) {
		l.short = true
		return false
	}
	l.taken += n
	return true
}

func (l *loan) giveAll() {
	l.from.buffers.Give(l.taken, l.from.holder(l.from.buffers))
	l.taken = 0
}
