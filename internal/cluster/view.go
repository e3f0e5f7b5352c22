package cluster

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// Records is what a View reads of the store.
type Records interface {
	Store
	Page(ctx context.Context, q store.Selection) (store.Page, error)
	UseOfOthers(ctx context.Context) (map[string]store.Use, error)
	Replica(ctx context.Context, sandbox string) (store.Replica, error)
}

// View is a supervisor as clients see it who do not know how many servers there are:
// lists have the sandboxes of all, and what only another server can do is an error that
// has the request passed on (see store.ErrElsewhere).
type View struct {
	*supervisor.Supervisor
	records Records
	others  *Cluster // nil for none
	use     *use
}

// use is what API keys use on other servers, as it was a moment ago: a list of keys asks
// for each of them.
type use struct {
	mu   sync.Mutex
	keys map[string]store.Use
	asOf time.Time
}

// useLife is how long it counts.
const useLife = time.Second

// NewView returns that of one server; others is nil for none.
func NewView(s *supervisor.Supervisor, records Records, others *Cluster) View {
	return View{s, records, others, &use{}}
}

// Page returns a page of a list of the sandboxes of all servers. Those of others are as they
// were committed last.
func (v View) Page(ctx context.Context, q store.Selection) (store.Page, error) {
	self := v.records.Self()
	if self == "" || q.Limit == 0 {
		return v.whole(ctx, q)
	}
	p, err := v.records.Page(ctx, q)
	for i := range p.Sandboxes {
		record := &p.Sandboxes[i]
		if record.Owner != self {
			continue
		}
		if sb, err := v.Supervisor.Find(ctx, record.ID); err == nil && q.Replaces(&sb, record) {
			*record = sb
		}
	}
	return p, err
}

// whole is Page of all that this server has in memory, and of what the records say of others.
func (v View) whole(ctx context.Context, q store.Selection) (store.Page, error) {
	before, err := v.Supervisor.All(ctx)
	if err != nil || v.records.Self() == "" {
		return q.From(before), err
	}
	others, err := v.ofOthers(ctx, q)
	if err != nil {
		return store.Page{}, err
	}
	after, err := v.Supervisor.All(ctx)
	// One that moves meanwhile may be in all three, or in one only.
	has := map[string]bool{}
	for _, sb := range others.Sandboxes {
		has[sb.ID] = true
	}
	var own []store.Sandbox
	for _, sb := range slices.Concat(after, before) {
		if !has[sb.ID] {
			has[sb.ID] = true
			own = append(own, sb)
		}
	}
	p := q.From(own)
	p.Sandboxes = append(p.Sandboxes, others.Sandboxes...)
	q.Sort(p.Sandboxes)
	for outline, n := range others.Counts {
		p.Counts[outline] += n
	}
	return p, err
}

// ofOthers returns what a list has of other servers.
func (v View) ofOthers(ctx context.Context, q store.Selection) (store.Page, error) {
	if v.records.Self() == "" {
		return store.Page{}, nil
	}
	q.Others = true
	return v.records.Page(ctx, q)
}

// List returns all sandboxes that run or are paused, of all servers.
func (v View) List(ctx context.Context) ([]store.Sandbox, error) {
	p, err := v.Page(ctx, store.Selection{Status: store.Alive})
	return p.Sandboxes, err
}

// All is List with those that have ended, and those that never ran.
func (v View) All(ctx context.Context) ([]store.Sandbox, error) {
	p, err := v.Page(ctx, store.Selection{})
	return p.Sandboxes, err
}

// KeyUse returns what the sandboxes and snapshots of a key take together now, on all
// servers. What those of others take is left out while the database does not answer.
func (v View) KeyUse(key string) store.Use {
	own := v.Supervisor.KeyUse(key)
	v.use.mu.Lock()
	defer v.use.mu.Unlock()
	if now := time.Now(); now.Sub(v.use.asOf) > useLife {
		ctx, cancel := context.WithTimeout(context.Background(), useLife)
		defer cancel()
		keys, err := v.useOfOthers(ctx)
		if err != nil {
			return own
		}
		for _, snap := range v.AllSnapshots() {
			if snap.Owner != v.records.Self() {
				keys[snap.Key] = keys[snap.Key].Plus(store.Use{DiskMiB: snap.DiskMiB()})
			}
		}
		v.use.keys, v.use.asOf = keys, now
	}
	return own.Plus(v.use.keys[key])
}

// useOfOthers is what sandboxes take on other servers.
func (v View) useOfOthers(ctx context.Context) (map[string]store.Use, error) {
	if v.records.Self() == "" {
		return map[string]store.Use{}, nil
	}
	return v.records.UseOfOthers(ctx)
}

// Find returns a sandbox of this server, also one that has ended, or of one that is gone, as
// it was committed last.
func (v View) Find(ctx context.Context, id string) (store.Sandbox, error) {
	sb, err := v.Supervisor.Find(ctx, id)
	return v.elsewhere(ctx, sb, id, err)
}

// Get returns a sandbox as Find does, but none that has ended.
func (v View) Get(ctx context.Context, id string) (store.Sandbox, error) {
	sb, err := v.Supervisor.Get(ctx, id)
	if sb, err = v.elsewhere(ctx, sb, id, err); err == nil {
		err = outcome.Alive(&sb)
	}
	return sb, err
}

// Explain explains a sandbox of this server, or one of a server that is gone, by what is
// stored of it.
func (v View) Explain(ctx context.Context, id string) (supervisor.Explanation, error) {
	x, err := v.Supervisor.Explain(ctx, id)
	if err == nil {
		return x, nil
	}
	sb, err := v.elsewhere(ctx, store.Sandbox{}, id, err)
	if err != nil {
		return x, err
	}
	x = awake.AsStored(sb, time.Now())
	x.Gone = sb.Owner
	x.Transitions, err = v.LastEvents(ctx, id, lastTransitions)
	return x, err
}

// lastTransitions is how many events an explanation has.
const lastTransitions = 10

// elsewhere returns what was found here of a sandbox, or store.ErrElsewhere where it is not
// known here and another server has it; what is stored of it, if that server is gone.
func (v View) elsewhere(ctx context.Context, here store.Sandbox, id string, err error) (store.Sandbox, error) {
	self := v.records.Self()
	if self == "" || !errdef.Is(err, errdef.NotFound) {
		return here, err
	}
	sb, unknown := v.records.Sandbox(ctx, id)
	if unknown != nil || sb.Owner == self {
		return here, err
	}
	if all, unknown := v.records.Servers(ctx); unknown == nil && !store.ServerOf(all, sb.Owner).Answers() {
		if r, none := v.records.Replica(ctx, id); sb.Record.Checkpoint != nil && (none == nil || errdef.Is(none, errdef.NotFound)) {
			sb.Durability, sb.Unreplicated = store.Local, "its server is gone"
			if store.Covers(r.Checkpoint, store.CopyOf(*sb.Record.Checkpoint)) {
				sb.Durability, sb.Unreplicated = store.Replicated, ""
			}
		}
		return sb, nil
	}
	return here, store.ErrElsewhere("sandbox "+id, sb.Owner)
}

// namedWithin bounds how long is looked for a name that no sandbox here has.
const namedWithin = 5 * time.Second

// Named returns the sandbox that has a name in the space of an API key, or that had it
// last.
func (v View) Named(key, name string) (id string, ok bool) {
	id, ok = v.Supervisor.Named(key, name)
	if v.records.Self() == "" || ids.Valid(name) { // which no name is
		return id, ok
	}
	ctx, cancel := context.WithTimeout(context.Background(), namedWithin)
	defer cancel()
	own, err := v.Supervisor.Find(ctx, id)
	if ok && err == nil && own.Record.State != lifecycle.Terminated { // there is one of the name
		return id, true
	}
	holder, err := v.ofOthers(ctx, store.Selection{Key: key, Holds: name})
	if err == nil && len(holder.Sandboxes) > 0 {
		return holder.Sandboxes[0].ID, true
	}
	ended, err := v.ofOthers(ctx, store.Selection{Key: key, Name: name})
	others := ended.Sandboxes
	if err != nil || len(others) == 0 {
		return id, ok
	}
	if ok {
		others = append(others, own)
	}
	return slices.MaxFunc(others, func(a, b store.Sandbox) int {
		return cmp.Or(boolToInt(a.Record.State != lifecycle.Terminated)-boolToInt(b.Record.State != lifecycle.Terminated),
			a.Record.EndedAt().Compare(b.Record.EndedAt()), strings.Compare(a.ID, b.ID))
	}).ID, true
}

func boolToInt(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Create makes a sandbox here. The request is for another server where its idempotency key
// has made one there, and where this one has no room, does not have the template, or is drained,
// and the other can make it.
func (v View) Create(ctx context.Context, req supervisor.CreateRequest) (store.Sandbox, error) {
	if v.others != nil && v.others.Drains() != nil && !v.madeHere(ctx, req) {
		if server := v.roomFor(ctx, req); server != "" {
			return store.Sandbox{}, store.ErrRoomElsewhere(server)
		}
	}
	sb, err := v.Supervisor.Create(ctx, req)
	if errdef.CodeOf(err) == "snapshot_gone" && v.records.Self() != "" && v.RefreshSnapshots(ctx) == nil {
		sb, err = v.Supervisor.Create(ctx, req) // another server has just got it, or nobody has it
	}
	if other, is := v.made(ctx, err); is {
		if other.Record.Phase() != lifecycle.Creating || !lifecycle.Ended(v.Overdue(ctx, other)) {
			return sb, store.ErrElsewhere("sandbox "+other.ID, other.Owner)
		}
		sb, err = v.Supervisor.Create(ctx, req) // nobody will go on with the other
	}
	switch errdef.CodeOf(err) {
	case codeFull, "disk_full", "template_not_found":
		if server := v.roomFor(ctx, req); server != "" {
			err = store.ErrRoomElsewhere(server)
		}
	}
	return sb, err
}

// Acquire is that of the supervisor. A sandbox that has no room here to wake goes to a server that
// has some, if there is one, and the request is for that then.
func (v View) Acquire(ctx context.Context, id string, access supervisor.Access) (lease *supervisor.Lease, err error) {
	err = v.wake(ctx, id, func() error { lease, err = v.Supervisor.Acquire(ctx, id, access); return err })
	return lease, err
}

// Connect is that of the supervisor, and does the same as Acquire where there is no room.
func (v View) Connect(ctx context.Context, id string, q calls.WakeRequest) (done calls.Connected, err error) {
	err = v.wake(ctx, id, func() error { done, err = v.Supervisor.Connect(ctx, id, q); return err })
	return done, err
}

// Resume is that of the supervisor, and does the same as Acquire where there is no room.
func (v View) Resume(ctx context.Context, id string, q calls.WakeRequest) (sb store.Sandbox, err error) {
	err = v.wake(ctx, id, func() error { sb, err = v.Supervisor.Resume(ctx, id, q); return err })
	return sb, err
}

// wake does what may wake a sandbox, and has it go to another server where this one has no room.
func (v View) wake(ctx context.Context, id string, do func() error) error {
	err := do()
	if v.others == nil || errdef.CodeOf(err) != codeFull {
		return err
	}
	v.Waiting.Add(1) // still
	defer v.Waiting.Add(-1)
	server, failed := v.others.Rehouse(ctx, id)
	switch {
	case failed == nil:
		return store.ErrElsewhere("sandbox "+id, server)
	case errdef.CodeOf(failed) == codeConflict: // it is moving already, or has just woken
		return do()
	}
	return err
}

// codeFull is the code of what is refused because a server has as many running sandboxes as it may.
const codeFull = "too_many_sandboxes"

// roomFor returns another server that can make a sandbox which this one cannot; empty for none.
// What needs a snapshot or volumes is made where they are.
func (v View) roomFor(ctx context.Context, req supervisor.CreateRequest) (server string) {
	if v.others == nil || !dialect.Forwards(ctx) || req.SnapshotRef() != "" || len(req.Config.Volumes) > 0 {
		return ""
	}
	if req.Config.Idempotency != nil { // it may have made one already
		made, err := v.ofOthers(ctx, store.Selection{Key: req.Config.Key, Idempotency: req.Config.Idempotency.Key})
		if err != nil {
			return ""
		}
		if i := slices.IndexFunc(made.Sandboxes, madeBy(req)); i >= 0 {
			return made.Sandboxes[i].Owner
		}
	}
	name := strings.ToLower(strings.TrimSpace(req.Template))
	return v.others.Choose(ctx, func(r store.Room) bool { return !full(r) && hasTemplate(r, name) })
}

// madeHere reports whether the idempotency key of a request has made a sandbox here.
func (v View) madeHere(ctx context.Context, req supervisor.CreateRequest) bool {
	own, err := v.Supervisor.All(ctx)
	return err != nil || slices.ContainsFunc(own, madeBy(req))
}

// madeBy reports whether the idempotency key of a request has made a sandbox.
func madeBy(req supervisor.CreateRequest) func(store.Sandbox) bool {
	as := req.Config.Idempotency
	return func(sb store.Sandbox) bool {
		return as != nil && sb.Config.Key == req.Config.Key && sb.Config.Idempotency != nil && sb.Config.Idempotency.Key == as.Key &&
			!sb.Failed() && time.Since(sb.BoundAt()) < store.IdempotencyLife
	}
}

// Kill ends a sandbox of this server, or of one that is gone: what is left there goes when that is
// back.
func (v View) Kill(ctx context.Context, id, actor string) error {
	err := v.Supervisor.Kill(ctx, id, actor)
	if !errdef.Is(err, errdef.NotFound) {
		return err
	}
	sb, err := v.elsewhere(ctx, store.Sandbox{}, id, err)
	if err == nil {
		err = outcome.Alive(&sb)
	}
	if err == nil {
		err = v.EndLost(ctx, id, actor)
	}
	if store.IsChanged(err) { // it has just been taken over, or ended
		killed := v.Supervisor.Kill(ctx, id, actor)
		if _, moved := v.elsewhere(ctx, sb, id, killed); killed == nil || moved != nil {
			return moved
		}
	}
	if _, back := store.Elsewhere(err); back && sb.ID != "" {
		return errGone(id, sb.Owner, "what runs there may do so still for a moment")
	}
	return err
}

// Import makes a sandbox of a bundle here. Where the idempotency key of the request has
// made one of the same bundle on another server, it returns that one, as it is committed.
func (v View) Import(ctx context.Context, r io.Reader, req supervisor.ImportRequest) (store.Sandbox, error) {
	sb, err := v.Supervisor.Import(ctx, r, req)
	if other, is := v.made(ctx, err); is && other.Record.State != lifecycle.Terminated && other.Config.Idempotency.Request == req.Idempotency.Request {
		return other, nil
	}
	return sb, err
}

// made returns the sandbox of another server that an idempotency key has made, where err
// says that there is one.
func (v View) made(ctx context.Context, err error) (other store.Sandbox, is bool) {
	id, ok := errdef.Fact(err, "sandbox").(string)
	if !ok || errdef.CodeOf(err) != "idempotency_key_used" {
		return other, false
	}
	other, err = v.records.Sandbox(ctx, id)
	return other, err == nil && other.Owner != v.records.Self() && other.Config.Idempotency != nil
}
