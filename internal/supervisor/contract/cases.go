package contract

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/events"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

func create(w world) {
	sb := w.create()
	w.is(sb.ID, lifecycle.Running, 1)
	c := sb.Config
	if c.Key != "key" || c.Metadata["a"] != "b" || c.Template == "" {
		w.t.Errorf("its configuration is %+v", c)
	}
	if left := sb.Record.EndAt.Sub(sb.Record.CreatedAt); left < time.Hour || left > time.Hour+time.Minute {
		w.t.Errorf("it lives for %s", left)
	}
	req := asked()
	req.Config.Limits.CPUs = 3
	other, want := w.made(req), c.Limits
	if want.CPUs = 3; other.ID == sb.ID || other.Config.Limits != want {
		w.t.Errorf("another is %s with %+v, want %+v", other.ID, other.Config.Limits, want)
	}
	for what, list := range map[string]func() ([]store.Sandbox, error){
		"List": func() ([]store.Sandbox, error) { return w.s.List(w.t.Context()) },
		"All":  func() ([]store.Sandbox, error) { return w.s.All(w.t.Context()) },
	} {
		if all, err := list(); err != nil || len(all) != 2 {
			w.t.Errorf("%s has %d sandboxes, %v", what, len(all), err)
		}
	}
}

func createRefused(w world) {
	for _, c := range []struct {
		name   string
		change func(*supervisor.CreateRequest)
		class  errdef.Class
		code   string
	}{
		{"unknown template", func(r *supervisor.CreateRequest) { r.Template = "unknown" }, errdef.NotFound, "template_not_found"},
		{"long template", func(r *supervisor.CreateRequest) { r.Template = strings.Repeat("x", 200) }, errdef.NotFound, "template_not_found"},
		{"negative timeout", func(r *supervisor.CreateRequest) { r.Settings.Timeout = -time.Minute }, errdef.Invalid, "timeout_invalid"},
		{"large metadata", func(r *supervisor.CreateRequest) {
			r.Config.Metadata = map[string]string{"a": strings.Repeat("x", fields.MaxMetadata)}
		}, errdef.Invalid, "field_too_large"},
		{"small memory", func(r *supervisor.CreateRequest) { r.Config.Limits.MemoryMiB = 1 }, errdef.Invalid, "limit_out_of_range"},
		{"rule", func(r *supervisor.CreateRequest) { r.Config.AllowOut = []string{"no rule!"} }, errdef.Invalid, "network_invalid"},
		{"variable", func(r *supervisor.CreateRequest) { r.Config.Env = map[string]string{"a=b": "c"} }, errdef.Invalid, "invalid_request"},
		{"open agent", func(r *supervisor.CreateRequest) { r.Config.PrivatePorts, r.Config.Secure = true, false }, errdef.Invalid, "invalid_request"},
		{"hook", func(r *supervisor.CreateRequest) { r.Config.Hooks.PreKill.Budget = time.Second }, errdef.Invalid, "invalid_request"},
		{"long hook", func(r *supervisor.CreateRequest) {
			r.Config.Hooks.PrePause = store.Hook{Command: "a", Budget: time.Hour}
		}, errdef.Invalid, "timeout_too_large"},
		{"rules", func(r *supervisor.CreateRequest) {
			r.Config.Ports = store.Ports{}
			for port := range store.MaxPortRules + 1 {
				r.Config.Ports[fmt.Sprint(port+1)] = lifecycle.Wake
			}
		}, errdef.Invalid, "field_too_large"},
	} {
		req := asked()
		c.change(&req)
		_, err := w.s.Create(w.t.Context(), req)
		w.refused(c.name, err, c.class, c.code)
	}
	if all, err := w.s.All(w.t.Context()); err != nil || len(all) != 0 {
		w.t.Errorf("there are %d sandboxes, %v", len(all), err)
	}
}

func idempotency(w world) {
	req := asked()
	req.Config.Idempotency = &store.Idempotency{Key: "once", Request: "digest", At: time.Now()}
	first, err := w.s.Create(w.t.Context(), req)
	w.ok("create", err)
	again, err := w.s.Create(w.t.Context(), req)
	w.ok("the same", err)
	if again.ID != first.ID {
		w.t.Errorf("it made %s, and then %s", first.ID, again.ID)
	}
	other := req
	other.Config.Idempotency = &store.Idempotency{Key: "once", Request: "other", At: time.Now()}
	_, err = w.s.Create(w.t.Context(), other)
	w.refused("another request", err, errdef.Conflict, "idempotency_key_reused")
	other.Config.Key = "another"
	sb, err := w.s.Create(w.t.Context(), other)
	if w.ok("of another key", err); sb.ID == first.ID {
		w.t.Error("another key gets the sandbox of the first")
	}
	w.ok("kill", w.s.Kill(w.t.Context(), first.ID, "test"))
	_, err = w.s.Create(w.t.Context(), req)
	w.refused("after its end", err, errdef.Conflict, "idempotency_sandbox_ended")
}

func unknown(w world) {
	const id = "i00000000000000000009"
	for name, err := range w.calls(id) {
		w.refused(name, err, errdef.NotFound, "sandbox_not_found")
	}
	_, err := w.s.Find(w.t.Context(), id)
	w.refused("Find", err, errdef.NotFound, "sandbox_not_found")
	_, err = w.s.Explain(w.t.Context(), id)
	w.refused("Explain", err, errdef.NotFound, "sandbox_not_found")
	_, err = w.s.EventsBefore(w.t.Context(), id, math.MaxInt64, 10)
	w.refused("EventsBefore", err, errdef.NotFound, "sandbox_not_found")
	_, err = w.s.Events(w.t.Context(), id, 0, 10)
	w.refused("Events", err, errdef.NotFound, "sandbox_not_found")
	if out := w.s.Outlooks(w.t.Context(), []string{id}); len(out) != 0 {
		w.t.Errorf("it has the outlook %+v", out)
	}
}

func ended(w world) {
	sb := w.create()
	w.ok("kill", w.s.Kill(w.t.Context(), sb.ID, "killer"))
	found := w.find(sb.ID)
	if tomb := found.Record.Tombstone; found.Record.State != lifecycle.Terminated || tomb == nil || tomb.Reason != lifecycle.Killed {
		w.t.Errorf("it is %s with %+v", found.Record.State, tomb)
	}
	if len(found.Config.Env) > 0 || found.Config.Metadata["a"] != "b" {
		w.t.Errorf("what is kept of it is %+v", found.Config)
	}
	for name, err := range w.calls(sb.ID) {
		if name == "Previews" {
			w.ok(name, err)
			continue
		}
		if !errdef.Is(err, errdef.NotFound) {
			w.t.Errorf("%s: %v", name, describe(err))
		}
	}
	if list, err := w.s.List(w.t.Context()); err != nil || len(list) != 0 {
		w.t.Errorf("List has %d sandboxes, %v", len(list), err)
	}
	if all, err := w.s.All(w.t.Context()); err != nil || len(all) != 1 {
		w.t.Errorf("All has %d sandboxes, %v", len(all), err)
	}
	x, err := w.s.Explain(w.t.Context(), sb.ID)
	if w.ok("Explain", err); len(x.Transitions) == 0 || x.Transitions[0].Type != lifecycle.EntryTerminated {
		w.t.Errorf("its last transitions are %+v", x.Transitions)
	}
}

func pauseAndResume(w world) {
	ctx, id := w.t.Context(), w.create().ID
	w.ok("pause", w.s.Pause(ctx, id, supervisor.PauseRequest{Mode: lifecycle.Filesystem, Actor: "test"}))
	w.is(id, lifecycle.Paused, 1)
	if cp := w.find(id).Record.Checkpoint; cp == nil || cp.Mode != lifecycle.Filesystem {
		w.t.Errorf("its checkpoint is %+v", cp)
	}
	w.refused("pause again", w.s.Pause(ctx, id, supervisor.PauseRequest{Actor: "test"}), errdef.Conflict, "already_paused")
	_, err := w.s.SetTimeout(ctx, id, time.Minute, "test")
	w.refused("timeout of one that sleeps", err, errdef.WrongState, "not_running")
	c, err := w.s.Connect(ctx, id, supervisor.WakeRequest{Timeout: 2 * time.Hour, Actor: "test"})
	if w.ok("connect", err); !c.Resumed || c.Sandbox.Record.State != lifecycle.Running {
		w.t.Errorf("connect returned %+v", c)
	}
	w.is(id, lifecycle.Running, 2)
	if c, err = w.s.Connect(ctx, id, supervisor.WakeRequest{Timeout: time.Hour, Actor: "test"}); err != nil || c.Resumed {
		w.t.Errorf("connect to one that runs: resumed %t, %v", c.Resumed, err)
	}
	_, err = w.s.Resume(ctx, id, supervisor.WakeRequest{Timeout: time.Hour, Actor: "test"})
	w.refused("resume of one that runs", err, errdef.Conflict, "already_running")
	w.ok("pause", w.s.Pause(ctx, id, supervisor.PauseRequest{Actor: "test"}))
	sb, err := w.s.Resume(ctx, id, supervisor.WakeRequest{Timeout: time.Hour, Actor: "test"})
	if w.ok("resume", err); sb.Record.Generation != 3 || sb.Record.State != lifecycle.Running {
		w.t.Errorf("resume returned %+v", sb.Record)
	}
}

func timeouts(w world) {
	ctx, id := w.t.Context(), w.create().ID
	left := func(sb store.Sandbox, err error) time.Duration {
		w.t.Helper()
		w.ok("timeout", err)
		return sb.Record.EndAt.Sub(sb.Record.CreatedAt).Round(time.Minute)
	}
	sb, err := w.s.SetTimeout(ctx, id, 3*time.Hour, "test")
	if got := left(sb, err); got != 3*time.Hour {
		w.t.Errorf("set to 3 hours, it lives for %s", got)
	}
	sb, err = w.s.Refresh(ctx, id, time.Hour, "test")
	if got := left(sb, err); got != 3*time.Hour {
		w.t.Errorf("refreshed with less, it lives for %s", got)
	}
	sb, err = w.s.Refresh(ctx, id, 5*time.Hour, "test")
	if got := left(sb, err); got != 5*time.Hour {
		w.t.Errorf("refreshed with more, it lives for %s", got)
	}
	sb, err = w.s.SetTimeout(ctx, id, supervisor.Unlimited, "test")
	if w.ok("no limit", err); !sb.Record.EndAt.IsZero() {
		w.t.Errorf("without a limit, it lives until %s", sb.Record.EndAt)
	}
	for name, call := range map[string]func(time.Duration) error{
		"SetTimeout": func(d time.Duration) error { _, err := w.s.SetTimeout(ctx, id, d, "test"); return err },
		"Refresh":    func(d time.Duration) error { _, err := w.s.Refresh(ctx, id, d, "test"); return err },
		"Connect": func(d time.Duration) error {
			_, err := w.s.Connect(ctx, id, supervisor.WakeRequest{Timeout: d, Actor: "test"})
			return err
		},
		"Resume": func(d time.Duration) error {
			_, err := w.s.Resume(ctx, id, supervisor.WakeRequest{Timeout: d, Actor: "test"})
			return err
		},
	} {
		w.refused(name, call(-time.Minute), errdef.Invalid, "timeout_invalid")
	}
}

func patch(w world) {
	ctx := w.t.Context()
	idle, no := 10*time.Minute, false
	change := supervisor.Patch{Settings: lifecycle.Patch{IdleTimeout: &idle}, Metadata: map[string]string{"c": "d"}, AllowInternet: &no, AllowOut: []string{"203.0.113.1"}}
	for _, sb := range []store.Sandbox{w.create(), w.paused()} {
		got, err := w.s.Patch(ctx, sb.ID, change, "patcher")
		w.ok("patch", err)
		for what, x := range map[string]store.Sandbox{"the answer": got, "the sandbox": w.find(sb.ID)} {
			c := x.Config
			if x.Record.Settings.IdleTimeout != idle || len(c.Metadata) != 1 || c.Metadata["c"] != "d" || c.AllowInternet == nil || *c.AllowInternet || !slices.Equal(c.AllowOut, change.AllowOut) {
				w.t.Errorf("%s is %+v, %+v", what, x.Record.Settings, c)
			}
			if x.Record.State != sb.Record.State || x.Record.Generation != sb.Record.Generation {
				w.t.Errorf("%s is %s in generation %d", what, x.Record.State, x.Record.Generation)
			}
		}
		last := w.last(sb.ID)
		if last.Type != lifecycle.EntryUpdated || last.Actor != "patcher" {
			w.t.Errorf("the last event is %+v", last)
		}
		_, err = w.s.Patch(ctx, sb.ID, supervisor.Patch{Metadata: map[string]string{"e": "f"}}, "second")
		w.ok("patch of metadata alone", err)
		if next := w.last(sb.ID); next.Seq == last.Seq || next.Type != lifecycle.EntryUpdated || next.Actor != "second" {
			w.t.Errorf("the last event is %+v", next)
		}
		for name, p := range map[string]supervisor.Patch{
			"field_too_large": {Metadata: map[string]string{"a": strings.Repeat("x", fields.MaxMetadata)}},
			"network_invalid": {DenyOut: []string{"no rule!"}},
		} {
			_, err := w.s.Patch(ctx, sb.ID, p, "test")
			w.refused("patch", err, errdef.Invalid, name)
			_, err = w.s.Connect(ctx, sb.ID, supervisor.WakeRequest{Timeout: time.Hour, Change: p, Actor: "test"})
			w.refused("connect with a patch", err, errdef.Invalid, name)
		}
		if found := w.find(sb.ID); found.Config.Metadata["e"] != "f" || len(found.Config.DenyOut) > 0 || found.Record.State != sb.Record.State {
			w.t.Errorf("after what was refused it is %s, with %d rules and %d entries of metadata", found.Record.State, len(found.Config.DenyOut), len(found.Config.Metadata))
		}
	}
}

func patchWithConnect(w world) {
	ctx, id := w.t.Context(), w.paused().ID
	idle := 10 * time.Minute
	p := supervisor.Patch{Settings: lifecycle.Patch{IdleTimeout: &idle}, Metadata: map[string]string{"c": "d"}}
	c, err := w.s.Connect(ctx, id, supervisor.WakeRequest{Timeout: time.Hour, Change: p, Actor: "test"})
	w.ok("connect", err)
	for what, x := range map[string]store.Sandbox{"the answer": c.Sandbox, "the sandbox": w.find(id)} {
		if x.Record.Settings.IdleTimeout != idle || x.Config.Metadata["c"] != "d" || len(x.Config.Metadata) != 1 || x.Config.Before != nil {
			w.t.Errorf("%s is %+v, %+v", what, x.Record.Settings, x.Config)
		}
	}
}

func holds(w world) {
	ctx, id := w.t.Context(), w.create().ID
	until := w.find(id).Record.CreatedAt.Add(30 * time.Minute)
	l, err := w.s.Hold(ctx, id, lifecycle.Lease{Until: until, Reason: "test"}, "holder")
	if w.ok("hold", err); !strings.HasPrefix(l.ID, "hold") || !l.Until.Equal(until) || l.Reason != "test" {
		w.t.Errorf("the hold is %+v", l)
	}
	l.Until = until.Add(time.Minute)
	again, err := w.s.Hold(ctx, id, l, "holder")
	if w.ok("prolong", err); again.ID != l.ID || !again.Until.Equal(l.Until) {
		w.t.Errorf("the prolonged hold is %+v", again)
	}
	if leases := w.find(id).Record.Leases; len(leases) != 1 {
		w.t.Errorf("it has %d holds", len(leases))
	}
	x, err := w.s.Explain(ctx, id)
	if w.ok("explain", err); len(x.Holds) != 1 || x.Holds[0].ID != l.ID || !x.Holds[0].Counts {
		w.t.Errorf("what holds is %+v", x.Holds)
	}
	_, err = w.s.Hold(ctx, id, lifecycle.Lease{Until: until, Reason: strings.Repeat("x", fields.MaxHoldReason+1)}, "holder")
	w.refused("long reason", err, errdef.Invalid, "field_too_large")
	w.refused("release of none", w.s.ReleaseHold(ctx, id, "none", "test"), errdef.NotFound, "hold_not_found")
	w.ok("release", w.s.ReleaseHold(ctx, id, l.ID, "test"))
	w.refused("release again", w.s.ReleaseHold(ctx, id, l.ID, "test"), errdef.NotFound, "hold_not_found")
	_, err = w.s.Hold(ctx, w.paused().ID, lifecycle.Lease{Until: until}, "holder")
	w.refused("hold of one that sleeps", err, errdef.WrongState, "not_running")
}

// last returns the last event of a sandbox.
func (w world) last(id string) store.Event {
	w.t.Helper()
	found, err := w.s.EventsBefore(w.t.Context(), id, math.MaxInt64, 1)
	if err != nil || len(found) != 1 {
		w.t.Fatalf("it has %d last events, %v", len(found), err)
	}
	return found[0]
}

func types(events []store.Event) (all []lifecycle.EntryType) {
	for _, e := range events {
		all = append(all, e.Type)
	}
	return all
}

func eventLog(w world) {
	ctx := w.t.Context()
	changed := w.s.Changed()
	before, err := w.s.LastEvent(ctx)
	if w.ok("LastEvent", err); before != 0 {
		w.t.Errorf("the last event is %d", before)
	}
	id := w.paused().ID
	select {
	case <-changed:
	default:
		w.t.Error("nobody was told of the change")
	}
	w.create()
	all, err := w.s.Events(ctx, "", 0, 100)
	w.ok("Events", err)
	if want := []lifecycle.EntryType{lifecycle.EntryCreated, lifecycle.EntryRunning, lifecycle.EntryPausing, lifecycle.EntryPaused, lifecycle.EntryCreated, lifecycle.EntryRunning}; !slices.Equal(types(all), want) {
		w.t.Fatalf("the events are %v, want %v", types(all), want)
	}
	if !slices.IsSortedFunc(all, func(a, b store.Event) int { return int(a.Seq - b.Seq) }) {
		w.t.Error("the events are not in order")
	}
	last, err := w.s.LastEvent(ctx)
	if w.ok("LastEvent", err); last != all[len(all)-1].Seq {
		w.t.Errorf("the last event is %d", last)
	}
	some, err := w.s.Events(ctx, id, all[0].Seq, 2)
	if w.ok("Events", err); len(some) != 2 || some[0].Seq != all[1].Seq || some[1].Seq != all[2].Seq {
		w.t.Errorf("two events after the first are %v", types(some))
	}
	page, err := w.s.EventsAfter(ctx, events.Scope{Sandbox: id}, all[0].Seq, 2)
	if w.ok("EventsAfter", err); !slices.Equal(page.Events, some) || page.Next != some[1].Seq || !page.More {
		w.t.Errorf("two events after the first are %+v", page)
	}
	page, err = w.s.EventsAfter(ctx, events.Scope{Key: "nobody"}, 0, 2)
	if w.ok("EventsAfter", err); len(page.Events) != 0 || page.More {
		w.t.Errorf("the events of a key that has made nothing are %+v", page)
	}
	some, err = w.s.EventsBefore(ctx, id, all[3].Seq, 2)
	if w.ok("EventsBefore", err); len(some) != 2 || some[0].Seq != all[2].Seq || some[1].Seq != all[1].Seq {
		w.t.Errorf("two events before the fourth are %v", types(some))
	}
}

func move(w world) {
	ctx := w.t.Context()
	_, err := w.s.Export(ctx, w.create().ID)
	w.refused("export of one that runs", err, errdef.WrongState, "not_paused")
	req := asked()
	req.Config.Name, req.Config.Built = "moved", store.Built{ID: "tbuilt", Name: "app"}
	sb := w.made(req)
	w.pause(sb.ID)
	e, err := w.s.Export(ctx, sb.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	var out bytes.Buffer
	w.ok("write", e.Write(&out))
	e.Release()
	e.Release()
	w.is(sb.ID, lifecycle.Paused, 1)
	take := func(req supervisor.ImportRequest) (store.Sandbox, error) {
		return w.s.Import(ctx, bytes.NewReader(out.Bytes()), req)
	}
	_, err = take(supervisor.ImportRequest{Key: "other"})
	w.refused("import under an id that is taken", err, errdef.Exists, "sandbox_exists")
	as := &store.Idempotency{Key: "import", Request: "new", At: time.Now()}
	got, err := take(supervisor.ImportRequest{NewID: true, Key: "other", Actor: "mover", Idempotency: as})
	w.ok("import", err)
	if got.ID == sb.ID || got.Config.Key != "other" || got.Config.Metadata["a"] != "b" || got.Record.Settings.Timeout != time.Hour {
		w.t.Errorf("it came as %+v", got)
	}
	if c := got.Config; c.Name != "moved" || c.TemplateID() != "tbuilt" || c.TemplateName() != "app" {
		w.t.Errorf("it came as %q of template %s (%s)", c.Name, c.TemplateID(), c.TemplateName())
	}
	had := ""
	copied, err := take(supervisor.ImportRequest{NewID: true, Key: "other", Named: func(name string) { had = name }})
	if w.ok("import of a copy", err); copied.Config.Name != "" || had != "moved" {
		w.t.Errorf("a copy of %q came as %q, which its other has", had, copied.Config.Name)
	}
	w.is(got.ID, lifecycle.Paused, 1)
	again, err := take(supervisor.ImportRequest{NewID: true, Key: "other", Actor: "mover", Idempotency: as})
	if w.ok("import again", err); again.ID != got.ID {
		w.t.Errorf("it came as %s, and then as %s", got.ID, again.ID)
	}
	w.ok("kill", w.s.Kill(ctx, got.ID, "test"))
	_, err = take(supervisor.ImportRequest{NewID: true, Key: "other", Idempotency: as})
	w.refused("import after its end", err, errdef.Conflict, "idempotency_sandbox_ended")
	if _, err := w.s.Import(ctx, strings.NewReader("no bundle"), supervisor.ImportRequest{}); !errdef.Is(err, errdef.Invalid) {
		w.t.Errorf("import of no bundle: %v", describe(err))
	}
}

func previews(w world) {
	ctx := w.t.Context()
	for _, id := range []string{w.create().ID, w.paused().ID} {
		p, token, err := w.s.CreatePreview(ctx, id, preview.Request{Port: 80, For: time.Hour, Actor: "test"})
		if w.ok("create", err); token == "" || p.Port != 80 || p.Actor != "test" || !p.ExpiresAt.Equal(p.ExpiresAt.Truncate(time.Second)) {
			w.t.Errorf("the link is %+v, its token %q", p, token)
		}
		if list, err := w.s.Previews(ctx, id); err != nil || len(list) != 1 || list[0].ID != p.ID {
			w.t.Errorf("the links are %+v, %v", list, err)
		}
		if last := w.last(id); last.Type != lifecycle.EntryUpdated {
			w.t.Errorf("the last event is %+v", last)
		}
		w.ok("revoke", w.s.RevokePreview(ctx, id, p.ID, "test"))
		w.refused("revoke again", w.s.RevokePreview(ctx, id, p.ID, "test"), errdef.NotFound, "preview_not_found")
		if list, err := w.s.Previews(ctx, id); err != nil || len(list) != 0 {
			w.t.Errorf("the links are %+v, %v", list, err)
		}
		p, _, err = w.s.CreatePreview(ctx, id, preview.Request{Port: 80, For: time.Minute, Actor: "test"})
		w.ok("create for a minute", err)
		w.sleep(2 * time.Minute)
		if list, err := w.s.Previews(ctx, id); err != nil || len(list) != 0 {
			w.t.Errorf("the links are %+v after their end, %v", list, err)
		}
		w.refused("revoke after its end", w.s.RevokePreview(ctx, id, p.ID, "test"), errdef.NotFound, "preview_not_found")
		for _, bad := range []preview.Request{{Port: 0, For: time.Hour}, {Port: 70000, For: time.Hour}, {Port: 80}, {Port: 80, For: 1000 * time.Hour}} {
			if _, _, err := w.s.CreatePreview(ctx, id, bad); !errdef.Is(err, errdef.Invalid) {
				w.t.Errorf("a link of %+v: %v", bad, describe(err))
			}
		}
	}
}

func explain(w world) {
	ctx, id := w.t.Context(), w.paused().ID
	for range 6 {
		_, err := w.s.Connect(ctx, id, supervisor.WakeRequest{Timeout: time.Hour, Actor: "test"})
		w.ok("connect", err)
		w.ok("pause", w.s.Pause(ctx, id, supervisor.PauseRequest{Actor: "test"}))
	}
	x, err := w.s.Explain(ctx, id)
	w.ok("explain", err)
	if len(x.Transitions) != 10 || x.Transitions[0].Type != lifecycle.EntryPaused || !slices.IsSortedFunc(x.Transitions, func(a, b store.Event) int { return int(b.Seq - a.Seq) }) {
		w.t.Errorf("its transitions are %v", types(x.Transitions))
	}
	if x.Sandbox.ID != id || len(x.Holds) != 0 {
		w.t.Errorf("it is %+v", x)
	}
	outlooks := w.s.Outlooks(ctx, []string{id, "unknown"})
	if len(outlooks) != 1 || outlooks[id].Sandbox.Record.State != lifecycle.Paused || len(outlooks[id].Transitions) != 0 {
		w.t.Errorf("the outlooks are %+v", outlooks)
	}
}
