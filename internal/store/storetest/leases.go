package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// leasesOf returns the leases of a store.
func leasesOf(s store.Store) store.Leases { return s.(store.Leases) }

// openLeased returns an empty store that knows of leases.
func openLeased(t *testing.T, h harness) store.Store {
	t.Helper()
	s := h.open(t)
	if _, ok := s.(store.Leases); !ok {
		t.Fatalf("%T does not implement store.Leases", s)
	}
	return s
}

// server returns a server in a state directory of a machine.
func server(id, place string) store.Server {
	return store.Server{ID: id, Name: "machine of " + place, Place: place}
}

func claim(t *testing.T, s store.Store, srv store.Server, life time.Duration) store.Server {
	t.Helper()
	got, err := leasesOf(s).Claim(t.Context(), srv, life)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// servers returns the servers that a store knows, without how long their leases last still.
func servers(t *testing.T, s store.Store) []store.Server {
	t.Helper()
	all, err := leasesOf(s).Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if off := all[i].Left - time.Until(all[i].LeaseEndsAt); off.Abs() > time.Minute {
			t.Errorf("the lease of %+v lasts for %s, which is off by %s", all[i], all[i].Left, off)
		}
		all[i].Left, all[i].Held = 0, 0
	}
	return all
}

// wantLives checks that a server cannot be claimed, because another process has it.
func wantLives(t *testing.T, s store.Store, srv store.Server) {
	t.Helper()
	_, err := leasesOf(s).Claim(t.Context(), srv, time.Hour)
	left, _ := errdef.Fact(err, "retry_after_ms").(int64)
	if !errdef.Is(err, errdef.Conflict) || code(err) != "server_lives" || left <= 0 || left > time.Hour.Milliseconds() {
		t.Errorf("a claim from %s: %v, to be tried again in %d ms; want a conflict until the lease ends", srv.Place, err, left)
	}
}

// testClaims goes through all ways in which a server is claimed.
func testClaims(t *testing.T, h harness) {
	first := openLeased(t, h)
	if got := servers(t, first); len(got) != 0 {
		t.Errorf("an empty store has servers %+v", got)
	}
	here, there := server("one", "here"), server("one", "there")
	wantEpoch := func(got store.Server, srv store.Server, epoch int64) {
		t.Helper()
		if got.ID != srv.ID || got.Name != srv.Name || got.Epoch != epoch {
			t.Errorf("claimed as %+v, want %s on %s with epoch %d", got, srv.ID, srv.Name, epoch)
		}
		all := servers(t, first)
		if i := slices.IndexFunc(all, func(x store.Server) bool { return x.ID == srv.ID }); i < 0 || all[i].Name != srv.Name || all[i].Epoch != epoch ||
			!all[i].LeaseEndsAt.Round(time.Millisecond).Equal(got.LeaseEndsAt.Round(time.Millisecond)) {
			t.Errorf("Servers = %+v, want %+v among them", all, got)
		}
	}
	wantEpoch(claim(t, first, here, time.Hour), here, 1)

	second := h.share(t, first)
	wantLives(t, second, there)
	commit(t, first, sandbox("a", 1)) // a claim that was refused fences nobody
	commit(t, second, sandbox("b", 1))

	again := h.share(t, first)
	wantEpoch(claim(t, again, here, 0), here, 2) // the same place: the process before is gone
	wantClass(t, errdef.Fenced, func() error { return leasesOf(first).Renew(t.Context(), time.Hour) })
	wantEpoch(claim(t, second, there, time.Hour), there, 3) // the lease is over
	wantClass(t, errdef.Fenced, func() error { return leasesOf(again).Renew(t.Context(), time.Hour) })
	wantLives(t, again, here)
	wantClass(t, errdef.Fenced, func() error { return leasesOf(again).Release(t.Context()) })
	wantLives(t, again, here) // the release of another's lease ended nothing

	if err := leasesOf(second).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	commit(t, second, sandbox("b", 2)) // which is fenced by a claim alone
	if err := leasesOf(second).Renew(t.Context(), time.Hour); err != nil {
		t.Errorf("a lease that was released and that nobody has claimed is not renewed: %v", err)
	}
	wantLives(t, again, here)
	if err := leasesOf(second).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantEpoch(claim(t, again, here, time.Hour), here, 4)
	commit(t, again, sandbox("a", 2)) // the claim of the store is its last one

	if err := leasesOf(again).Renew(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := leasesOf(again).Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	room := store.Room{Running: 3, MaxRunning: 5, MemoryMiB: 1 << 40, DiskMiB: 7, Architecture: "amd64", Runtime: "1", CPU: []string{"avx"}, Templates: map[string]string{"base": "t1"}}
	if err := leasesOf(again).SetRoom(t.Context(), room); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.Fenced, func() error { return leasesOf(second).SetRoom(t.Context(), store.Room{}) })
	wantClass(t, errdef.NotFound, func() error { return leasesOf(again).SetDraining(t.Context(), "two", true) })
	if err := leasesOf(again).SetDraining(t.Context(), "one", true); err != nil {
		t.Fatal(err)
	}
	if got := only(t, servers(t, second)); !got.Leaving || !got.Draining || !reflect.DeepEqual(got.Room, &room) {
		t.Errorf("a server that leaves, and has said what it has, is %+v with %+v", got, got.Room)
	}
	wantEpoch(claim(t, second, there, time.Hour), there, 5) // a renewal replaces how long the lease lasts
	if got := only(t, servers(t, second)); got.Leaving || !got.Draining || got.Room != nil {
		t.Errorf("a server that was claimed again is %+v", got)
	}
	if err := leasesOf(second).SetDraining(t.Context(), "one", false); err != nil {
		t.Fatal(err)
	}
	second = h.reopen(t, second)
	if got := only(t, servers(t, second)); got.Epoch != 5 || got.Draining {
		t.Errorf("reopened: %+v, want epoch 5", got)
	}
}

// testTwoServers: what becomes of one server's lease does not concern the other.
func testTwoServers(t *testing.T, h harness) {
	one := openLeased(t, h)
	two, next := h.share(t, one), h.share(t, one)
	claim(t, one, server("one", "here"), time.Hour)
	if got := claim(t, two, server("two", "there"), time.Hour); got.Epoch != 1 {
		t.Errorf("the second server has epoch %d, want 1", got.Epoch)
	}
	all := servers(t, next)
	if len(all) != 2 || all[0].ID != "one" || all[1].ID != "two" {
		t.Errorf("Servers = %+v, want one and two", all)
	}
	claim(t, next, server("one", "here"), time.Hour)
	commit(t, two, sandbox("b", 1))
	if err := leasesOf(two).Renew(t.Context(), time.Hour); err != nil {
		t.Error(err)
	}
	wantClass(t, errdef.Fenced, func() error { return one.Commit(t.Context(), sandbox("a", 1), nil) })
	commit(t, next, sandbox("a", 1))
}

// writes has every method of store.Store that changes something, as a change of what
// [furnish] makes, and of what [lose] does.
func writes() map[string]func(context.Context, store.Store) error {
	made := store.Snapshot{ID: "s2", Key: "key-1", Sandbox: "a", CreatedAt: epoch}
	next := sandbox("a", 2)
	next.Rev = 1
	over := terminated("a")
	over.Rev = 1
	taken := asleep("lost", 2, "made")
	taken.Rev, taken.Owner = 1, "gone"
	return map[string]func(context.Context, store.Store) error{
		"Commit": func(ctx context.Context, s store.Store) error {
			return s.Commit(ctx, next, []lifecycle.Entry{entry(2)})
		},
		"CommitEnd": func(ctx context.Context, s store.Store) error {
			_, err := s.CommitEnd(ctx, over, []lifecycle.Entry{entry(2)})
			return err
		},
		"Forget": func(ctx context.Context, s store.Store) error { return s.Forget(ctx, "gone") },
		"AddKey": func(ctx context.Context, s store.Store) error { return s.AddKey(ctx, key(2, epoch)) },
		"UpdateKey": func(ctx context.Context, s store.Store) error {
			_, err := s.UpdateKey(ctx, "key-1", store.KeyChange{Name: "other"})
			return err
		},
		"KeysUsed": func(ctx context.Context, s store.Store) error {
			return s.KeysUsed(ctx, map[string]time.Time{"key-1": utc(1)})
		},
		"RemoveKey": func(ctx context.Context, s store.Store) error { return s.RemoveKey(ctx, "key-1") },
		"AddSSHKey": func(ctx context.Context, s store.Store) error {
			return s.AddSSHKey(ctx, store.SSHKey{ID: "k2", Key: "key-1", PublicKey: "B", CreatedAt: epoch})
		},
		"RemoveSSHKey": func(ctx context.Context, s store.Store) error { return s.RemoveSSHKey(ctx, "k1") },
		"PutSecret": func(ctx context.Context, s store.Store) error {
			return s.PutSecret(ctx, store.Secret{ID: "x2", Key: "key-1", Name: "y", Sealed: []byte{1}})
		},
		"ChangeSecret": func(ctx context.Context, s store.Store) error {
			_, err := s.ChangeSecret(ctx, "x1", func(x *store.Secret) error {
				x.Version++
				return nil
			})
			return err
		},
		"RemoveSecret":   func(ctx context.Context, s store.Store) error { return s.RemoveSecret(ctx, "x1") },
		"AddVolume":      func(ctx context.Context, s store.Store) error { return s.AddVolume(ctx, volume("w", epoch)) },
		"RemoveVolume":   func(ctx context.Context, s store.Store) error { return s.RemoveVolume(ctx, "id-v") },
		"CommitSnapshot": func(ctx context.Context, s store.Store) error { return s.CommitSnapshot(ctx, made, next, nil) },
		"ChangeSnapshot": func(ctx context.Context, s store.Store) error {
			return s.ChangeSnapshot(ctx, store.Snapshot{ID: "s1", Key: "key-1", Sandbox: "a", CreatedAt: epoch, Pinned: true})
		},
		"RemoveSnapshot": func(ctx context.Context, s store.Store) error { return s.RemoveSnapshot(ctx, "s1") },
		"PutTemplate":    func(ctx context.Context, s store.Store) error { return s.PutTemplate(ctx, built("t2", "key-1", "tee")) },
		"RemoveTemplate": func(ctx context.Context, s store.Store) error { return s.RemoveTemplate(ctx, "t1") },
		"SetTemplateSettings": func(ctx context.Context, s store.Store) error {
			return s.SetTemplateSettings(ctx, "key-1", "fresh", store.TemplateSettings{MemoryMiB: 2}, epoch)
		},
		"UseTemplateSettings": func(ctx context.Context, s store.Store) error {
			_, _, err := s.UseTemplateSettings(ctx, "key-1", "said", epoch)
			return err
		},
		"AddContext": func(ctx context.Context, s store.Store) error {
			_, err := s.AddContext(ctx, store.CodeContext{ID: "c2", Sandbox: "a", CreatedAt: epoch})
			return err
		},
		"ChangeContext": func(ctx context.Context, s store.Store) error {
			return s.ChangeContext(ctx, store.CodeContext{ID: "c1", Sandbox: "a", CreatedAt: epoch, End: &store.ContextEnd{State: "crashed"}})
		},
		"RemoveContext": func(ctx context.Context, s store.Store) error { return s.RemoveContext(ctx, "a", "c1") },
		"PutWebhook": func(ctx context.Context, s store.Store) error {
			return s.PutWebhook(ctx, store.Webhook{ID: "w1", CreatedAt: epoch, Cursor: 9})
		},
		"ChangeWebhook": func(ctx context.Context, s store.Store) error {
			_, err := s.ChangeWebhook(ctx, "w1", func(w *store.Webhook) error {
				w.Cursor = 10
				return nil
			})
			return err
		},
		"PutReplica": func(ctx context.Context, s store.Store) error {
			_, err := s.PutReplica(ctx, store.Replica{Sandbox: "a", Checkpoint: "cp", Index: "i", At: epoch})
			return err
		},
		"Offer": func(ctx context.Context, s store.Store) error { return s.Offer(ctx, "offered", "cp", "two") },
		"Take":  func(ctx context.Context, s store.Store) error { return s.Take(ctx, taken, []lifecycle.Entry{entry(2)}) },
		"TakeSnapshot": func(ctx context.Context, s store.Store) error {
			_, err := s.TakeSnapshot(ctx, store.Snapshot{ID: "lost snapshot", Owner: "gone", Checkpoint: lifecycle.Checkpoint{ID: "cp"}}, lifecycle.Checkpoint{ID: "made"}, store.Config{})
			return err
		},
		"TakeTemplate": func(ctx context.Context, s store.Store) error {
			lost := built("lost template", "key-1", "lost")
			lost.Owner, lost.Rev = "gone", 1
			return s.TakeTemplate(ctx, lost, nil)
		},
		"DeleteWebhook": func(ctx context.Context, s store.Store) error { return s.DeleteWebhook(ctx, "w1") },
		"Secret":        func(ctx context.Context, s store.Store) error { _, err := s.Secret(ctx, "new"); return err },
		"Renew":         func(ctx context.Context, s store.Store) error { return leasesOf(s).Renew(ctx, time.Hour) },
		"Elect":         func(ctx context.Context, s store.Store) error { _, err := s.Elect(ctx, "office"); return err },
		"Resign":        func(ctx context.Context, s store.Store) error { return s.Resign(ctx, "office") },
		"Leave":         func(ctx context.Context, s store.Store) error { return leasesOf(s).Leave(ctx) },
		"Release":       func(ctx context.Context, s store.Store) error { return leasesOf(s).Release(ctx) },
		"SetRoom": func(ctx context.Context, s store.Store) error {
			return leasesOf(s).SetRoom(ctx, store.Room{Running: 1})
		},
		"SetDraining": func(ctx context.Context, s store.Store) error { return leasesOf(s).SetDraining(ctx, "one", true) },
	}
}

// others are the methods of store.Store that change nothing, or are no writes under a
// claim.
var others = []string{
	"Claim", "Close", "Self", "Sandbox", "Others", "Page", "UseOfOthers", "Changes",
	"AllSecrets", "Contexts", "Events", "EventsBefore", "EventsOfKey", "FreeForSnapshot", "Keys", "LastEvents", "Needed", "Replica", "Replicas",
	"SSHKeys", "Sandboxes", "Servers", "Snapshots", "Templates", "Volumes", "Webhooks",
}

// furnish stores one thing of each kind.
func furnish(t *testing.T, s store.Store) {
	t.Helper()
	addKey(t, s, key(1, epoch))
	commit(t, s, sandbox("a", 1), entry(1))
	commit(t, s, terminated("gone"), entry(1))
	commit(t, s, sandbox("source", 1))
	addVolume(t, s, volume("v", epoch))
	tea := built("t1", "key-1", "tea")
	tea.Builds = []store.Build{{ID: "build", Status: store.BuildReady, CreatedAt: epoch}}
	ctx := t.Context()
	for _, err := range []error{
		s.AddSSHKey(ctx, store.SSHKey{ID: "k1", Key: "key-1", PublicKey: "A", CreatedAt: epoch}),
		s.PutSecret(ctx, store.Secret{ID: "x1", Key: "key-1", Name: "x", Sealed: []byte{1}, CreatedAt: epoch, UpdatedAt: epoch}),
		s.CommitSnapshot(ctx, store.Snapshot{ID: "s1", Key: "key-1", Sandbox: "a", CreatedAt: epoch}, latest(t, s, sandbox("source", 1)), nil),
		s.PutTemplate(ctx, tea),
		s.SetTemplateSettings(ctx, "key-1", "said", store.TemplateSettings{MemoryMiB: 1}, epoch),
		s.PutWebhook(ctx, store.Webhook{ID: "w1", CreatedAt: epoch}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	addContext(t, s, store.CodeContext{ID: "c1", Sandbox: "a", CreatedAt: epoch})
	commit(t, s, asleep("offered", 1, "cp"))
	putReplica(t, s, "offered", "cp")
}

// all returns what a store has, by what reads it.
func all(t *testing.T, s store.Store) map[string]any {
	t.Helper()
	ctx, has := t.Context(), map[string]any{}
	note := func(what string, got any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		has[what] = got
	}
	records, err := s.Sandboxes(ctx)
	note("sandboxes", sorted(records), err)
	events, err := s.Events(ctx, "", 0, 1000)
	note("events", events, err)
	keys, err := s.Keys(ctx)
	note("keys", keys, err)
	sshKeys, err := s.SSHKeys(ctx)
	note("SSH keys", sshKeys, err)
	secrets, err := s.AllSecrets(ctx)
	note("secrets", secrets, err)
	volumes, err := s.Volumes(ctx)
	note("volumes", volumes, err)
	snapshots, err := s.Snapshots(ctx)
	note("snapshots", snapshots, err)
	templates, err := s.Templates(ctx)
	note("templates", templates, err)
	contexts, err := s.Contexts(ctx, "a")
	note("contexts", contexts, err)
	webhooks, err := s.Webhooks(ctx)
	note("webhooks", webhooks, err)
	replicas, err := s.Replicas(ctx, "")
	note("replicas", replicas, err)
	note("servers", servers(t, s), nil)
	return has
}

// testFenced: once another store has claimed the server, no method changes anything. The
// same call of the new one does.
func testFenced(t *testing.T, h harness) {
	listed := writes()
	for _, of := range []reflect.Type{reflect.TypeFor[store.Store](), reflect.TypeFor[store.Leases]()} {
		for m := range of.Methods() {
			if listed[m.Name] == nil && !slices.Contains(others, m.Name) {
				t.Errorf("%s is among neither writes nor others: which is it?", m.Name)
			}
		}
	}
	old := openLeased(t, h)
	furnish(t, old)
	claim(t, old, server("one", "here"), time.Hour)
	lose(t, h, old)
	claim(t, h.share(t, old), server("one", "here"), time.Hour)
	before := all(t, old)
	for name, write := range listed {
		if err := write(t.Context(), old); !errdef.Is(err, errdef.Fenced) || code(err) != "fenced" || !store.Refused(err) {
			t.Errorf("%s: %v, want a refusal of class %q", name, err, errdef.Fenced)
		}
		for what, has := range all(t, old) {
			if !reflect.DeepEqual(has, before[what]) {
				t.Fatalf("%s of the fenced store has changed the %s: %+v, want %+v", name, what, has, before[what])
			}
		}
	}
	// The settings can still be used, so that the fenced store has not used them.
	wantClass(t, errdef.Exhausted, func() error {
		return h.share(t, old).SetTemplateSettings(t.Context(), "key-1", "said", store.TemplateSettings{MemoryMiB: 3}, epoch)
	})

	for name, write := range writes() {
		s := openLeased(t, h)
		furnish(t, s)
		claim(t, s, server("one", "here"), time.Hour)
		lose(t, h, s)
		if err := write(t.Context(), s); err != nil {
			t.Errorf("%s of the store that has the server: %v", name, err)
		}
	}
}

// testLeaseWriters claims a server while another store writes for it with all its might.
// When the claim has returned, all that was acknowledged is there, and nothing more comes.
func testLeaseWriters(t *testing.T, h harness) {
	old := openLeased(t, h)
	next := h.share(t, old)
	claim(t, old, server("one", "here"), time.Hour)
	const busy, few = 8, 3
	var (
		all     sync.WaitGroup
		warm    sync.WaitGroup
		claimed = make(chan struct{})
		done    [busy]int64
		refused [busy]error
	)
	warm.Add(busy)
	for w := range busy {
		all.Go(func() {
			for n, late := int64(1), false; !late; n++ {
				select {
				case <-claimed:
					late = true // this one is refused
				default:
				}
				sb := sandbox(fmt.Sprint(w), n)
				sb.Rev = n - 1
				if refused[w] = old.Commit(t.Context(), sb, []lifecycle.Entry{entry(n)}); refused[w] != nil {
					if n <= few {
						warm.Done()
					}
					return
				}
				done[w] = n
				if n == few {
					warm.Done()
				}
			}
		})
	}
	warm.Wait()
	claim(t, next, server("one", "here"), time.Hour)
	close(claimed)
	found := map[string]int64{}
	for _, sb := range sandboxes(t, next) {
		found[sb.ID] = sb.Record.Generation
	}
	all.Wait()
	for w := range busy {
		id := fmt.Sprint(w)
		if !errdef.Is(refused[w], errdef.Fenced) {
			t.Errorf("writer %d ended with %v, want class %q", w, refused[w], errdef.Fenced)
		}
		last := only(t, slices.DeleteFunc(sandboxes(t, next), func(sb store.Sandbox) bool { return sb.ID != id })).Record.Generation
		if found[id] != done[w] || last != done[w] {
			t.Errorf("writer %d was told that change %d is durable; the claim found %d, and now it is %d", w, done[w], found[id], last)
		}
		if got := len(events(t, next, id, 0, int(done[w])+1)); got != int(done[w]) {
			t.Errorf("writer %d: %d entries of %d changes", w, got, done[w])
		}
	}
}
