package supervisor

import (
	"context"
	"fmt"
	"io"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
)

// ImportRequest says how a bundle becomes a sandbox.
type ImportRequest = moving.Request

// Import makes a paused sandbox of a bundle, and returns when that is
// committed. Until then nothing of it is seen, and after an error nothing is
// left of it. What cannot run here is refused before its contents are read. With
// an idempotency key that has made a sandbox of the same bundle, Import returns
// that one, also before the contents are read.
func (s *Supervisor) Import(ctx context.Context, r io.Reader, req ImportRequest) (store.Sandbox, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	sb, err := s.importFrom(ctx, s.space.Within(ctx, r), req)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("import sandbox: %w", err)
	}
	return sb, nil
}

func (s *Supervisor) importFrom(ctx context.Context, r io.Reader, req ImportRequest) (store.Sandbox, error) {
	from, err := bundle.NewReader(r)
	if err != nil {
		return store.Sandbox{}, err
	}
	req.Tell(from.Manifest)
	as := store.Config{Key: req.Key}
	if req.Idempotency != nil {
		known := *req.Idempotency
		known.Request, known.At = known.Request+from.Digest, ids.Now()
		req.Idempotency, as.Idempotency = &known, &known
	}
	b, fresh, err := s.creates.Do(ctx, as, func() (*box, <-chan struct{}, error) { return s.receive(ctx, from, req) })
	if err != nil {
		return store.Sandbox{}, err
	}
	if fresh {
		return b.view(), nil
	}
	return b.createdBefore(ctx)
}

// receive takes what is in a bundle, and commits the sandbox.
func (s *Supervisor) receive(ctx context.Context, from *bundle.Reader, req ImportRequest) (b *box, known <-chan struct{}, err error) {
	if err := s.space.Check(space.Least); err != nil {
		return nil, nil, err
	}
	a, err := s.carrier.Expect(ctx, from.Manifest, req)
	if err == nil {
		err = s.carrier.Bring(ctx, a, from, s.removals, func() error { b, known, err = s.admit(a); return err })
	}
	return b, known, err
}

// admit gives what was received its place, and commits the sandbox.
func (s *Supervisor) admit(a *moving.Arrival) (*box, <-chan struct{}, error) {
	b := newBox(s, store.Sandbox{ID: a.ID, Config: a.Config, Record: lifecycle.Record{State: lifecycle.Pending}})
	if err := s.enlist(b); err != nil { // it has become known since it was looked for, or a volume has gone
		return nil, nil, err
	}
	err := a.Place()
	if err == nil {
		_, err = b.apply(a.Event())
	}
	if store.IsNameTaken(err) { // it comes without
		b.mu.Lock()
		b.sb.Config.Name = ""
		_, err = b.applyLocked(a.Event())
		b.mu.Unlock()
	}
	if err != nil {
		return nil, unmade(b, err, true, func() {
			s.removals.Insist(func() error { return s.RemoveParts(a.Checkpoint) }, "failed import could not be removed", "sandbox", a.ID)
		}), err
	}
	s.Note(b.snapshot())
	return b, nil, nil
}
