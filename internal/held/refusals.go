package held

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/ration"
)

// Bounds of what a client that is refused again and again gets to hear at once.
const (
	refusalsAtOnce    = 500
	refusalsPerSecond = 100
	refusalPatience   = 5 * time.Second // no answer is held back for longer
)

// Refusals slows down who is refused again and again. A refusal costs its client
// nothing, and the server as much as a small call: a client that asks again at once
// could have all of a processor.
type Refusals struct{ pace *ration.Pace }

// NewRefusals returns the Refusals of clients who have not been refused yet.
func NewRefusals() Refusals {
	return Refusals{ration.NewPace(refusalsAtOnce, refusalsPerSecond)}
}

// Wait is called when a request of a client has been refused, before it gets to know.
// It returns at once for the first refusals in a while, and later for those that
// follow closer than they may, or when ctx ends. That the client of a connection has gone
// is no reason to end ctx: it would come back sooner, and connections are counted. A
// stream of HTTP/2 that its client takes back is, because it is not counted any more.
func (r Refusals) Wait(ctx context.Context, client string) {
	ctx, cancel := context.WithTimeout(ctx, refusalPatience)
	defer cancel()
	_ = r.pace.Wait(ctx, client) // it has waited as long as there is patience
}
