// Package trace measures what the time of an operation goes into: the steps of a
// start, a wake, a pause or a snapshot of a sandbox.
//
// An operation is begun in a [Book], and known to what works for it by its context.
// Steps may overlap, and lie in others. Where there is no operation, as in tests and
// tools, a step is nothing.
package trace

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Operation is what was measured of one.
type Operation struct {
	Phase string // of the lifecycle's, such as "pausing"
	Cause string // of the lifecycle's causes
	Begin time.Time
	Took  time.Duration // so far, if it is not Done
	Done  bool
	Steps []Step // in the order in which they began
}

// Step is a part of an operation.
type Step struct {
	Name  string
	Depth int           // in how many others it lies
	At    time.Duration // since the operation began
	Took  time.Duration // so far, if it is not Done
	Done  bool
}

// most bounds what a Book remembers: operations, and steps of each.
const (
	mostOperations = 4
	mostSteps      = 64
)

// Book is the latest operations of one sandbox. The zero value has none. It is safe
// for concurrent use.
type Book struct {
	// Ended is told of each operation that ends. Nil for nobody; set before the first
	// begins.
	Ended func(Operation)

	mu  sync.Mutex
	all []*operation // oldest first
}

// operation is one in a Book, which has the lock of it.
type operation struct {
	book *Book
	Operation
}

type key struct{}

// at is where in an operation a context is.
type at struct {
	op    *operation
	depth int
}

// Begin begins an operation. What is done with the context that it returns is a part
// of it, until end is called.
func (b *Book) Begin(ctx context.Context, phase, cause string) (_ context.Context, end func()) {
	op := &operation{b, Operation{Phase: phase, Cause: cause, Begin: time.Now()}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, op)
	if drop := len(b.all) - mostOperations; drop > 0 {
		b.all = slices.Delete(b.all, 0, drop)
	}
	return context.WithValue(ctx, key{}, at{op, 0}), func() {
		ended := op.end()
		if b.Ended != nil {
			b.Ended(ended)
		}
	}
}

// Within begins a step of the operation that ctx belongs to, in which further steps
// may lie.
func Within(ctx context.Context, name string) (_ context.Context, end func()) {
	a, ok := ctx.Value(key{}).(at)
	if !ok {
		return ctx, func() {}
	}
	return context.WithValue(ctx, key{}, at{a.op, a.depth + 1}), a.step(name)
}

// Start begins a step, and returns what ends it.
func Start(ctx context.Context, name string) (end func()) {
	a, ok := ctx.Value(key{}).(at)
	if !ok {
		return func() {}
	}
	return a.step(name)
}

func (a at) step(name string) (end func()) {
	b := a.op.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(a.op.Steps) == mostSteps {
		return func() {}
	}
	i, begin := len(a.op.Steps), time.Since(a.op.Begin)
	a.op.Steps = append(a.op.Steps, Step{Name: name, Depth: a.depth, At: begin})
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		a.op.Steps[i].Took, a.op.Steps[i].Done = time.Since(a.op.Begin)-begin, true
	}
}

// All returns the latest operations, oldest first.
func (b *Book) All() []Operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Operation
	for _, op := range b.all {
		all = append(all, op.now())
	}
	return all
}

// end notes that the operation is over, and returns it.
func (op *operation) end() Operation {
	op.book.mu.Lock()
	defer op.book.mu.Unlock()
	op.Took, op.Done = time.Since(op.Begin), true
	op.Steps = slices.Clip(op.Steps)
	return op.now()
}

// now returns what was measured so far. The Book is locked.
func (op *operation) now() Operation {
	o := op.Operation
	o.Steps = slices.Clone(o.Steps)
	if !o.Done {
		o.Took = time.Since(o.Begin)
	}
	for i, s := range o.Steps {
		if !s.Done {
			o.Steps[i].Took = o.Took - s.At
		}
	}
	return o
}
