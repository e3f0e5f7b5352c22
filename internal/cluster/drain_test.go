package cluster

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestDrainOnce: a server that is drained gives away what sleeps, what runs, snapshots and templates, and says
// what stays, and why; what was refused is not tried again at once. Otherwise it gives away nothing.
func TestDrainOnce(t *testing.T) {
	const asleep, volumes, refuses, ended, begins, builds, kept, result = "iasleep00000000000000", "ivolumes0000000000000", "irefuses0000000000000", "iended000000000000000", "ibegins00000000000000", "ibuilds00000000000000", "saaaaaaaaaaaaaaaaaaaa", "sbbbbbbbbbbbbbbbbbbbb"
	at := listen(t, open(t, &records{self: "srv_b"}))
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_a", asleep: "srv_a", refuses: "srv_a", volumes: "srv_a", begins: "srv_a", ended: "srv_a", builds: "srv_a"}, states: map[string]lifecycle.State{begins: lifecycle.Pending}, servers: []store.Server{
		{ID: "srv_a", Left: time.Minute, Address: "x", Room: &store.Room{}}, {ID: "srv_b", Left: time.Minute, Address: at, Room: &store.Room{DiskMiB: leastDisk, Copies: true}},
	}}
	var given []string
	snaps := []store.Snapshot{{ID: result, Owner: "srv_a", Config: store.Config{Build: "b"}}, {ID: "scccccccccccccccccccc", Owner: "srv_b"}, {ID: kept, Owner: "srv_a", Sandbox: "igone"}, {ID: "swaits00000000000000", Owner: "srv_a", Sandbox: refuses}}
	templates := []store.Template{{ID: "t1", Owner: "srv_a"}, {ID: "t2", Owner: "srv_b"}, {ID: "t3", Owner: "srv_a", Builds: []store.Build{{Status: store.BuildRunning}}}, {ID: "t4", Owner: "srv_a", Builds: []store.Build{{Status: store.BuildWaiting, CreatedAt: time.Now().Add(-time.Hour)}}}}
	own := func(id string, state lifecycle.State) store.Sandbox {
		return store.Sandbox{ID: id, Owner: "srv_a", Record: lifecycle.Record{State: state}}
	}
	c, err := Open(t.Context(), Options{
		Store: r, Has: func(string) bool { return false }, Log: slog.New(slog.DiscardHandler),
		Transport: func(to string) http.RoundTripper {
			return asking(func(out *http.Request) (*http.Response, error) {
				body, err := io.ReadAll(out.Body)
				given = append(given, to+" "+string(body))
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, err
			})
		},
		Sandboxes: func(context.Context) (all []store.Sandbox, err error) {
			for _, sb := range []store.Sandbox{own(wanderer, lifecycle.Running), own(refuses, lifecycle.Running), own(asleep, lifecycle.Paused), own(volumes, lifecycle.Paused), own(ended, lifecycle.Terminated), own(begins, lifecycle.Pending), {ID: builds, Owner: "srv_a", Config: store.Config{Build: "b"}}} {
				if r.owners[sb.ID] == "srv_a" {
					all = append(all, sb)
				}
			}
			return all, nil
		},
		Snapshots: func() []store.Snapshot { return snaps },
		Templates: func(context.Context) ([]store.Template, error) { return templates, nil },
		Mover: handsOver(func(id string, _ func(context.Context) error) error {
			if id == refuses {
				given = append(given, "refused")
				return errdef.New(errdef.Unsupported, "cannot_run_here", "its image is not there")
			}
			given = append(given, id)
			r.owners[id] = "srv_b"
			return nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := func(left *store.Drain, now ...string) {
		t.Helper()
		_ = c.Forget(t.Context())
		given = nil
		c.drain.once(t.Context())
		if !slices.Equal(given, now) || !reflect.DeepEqual(c.Drains(), left) {
			t.Errorf("given are %q, want %q; left are %+v, want %+v", given, now, c.Drains(), left)
		}
	}
	want(nil)
	r.servers[0].Draining, r.servers[0].Drains = true, 1
	r.volumes = map[string]bool{volumes: true}
	cause := "sandbox " + refuses + ": its image is not there"
	want(&store.Drain{Of: 1, Left: 5, Stay: 2, Cause: cause}, // the others wait for what ends by itself
		asleep, wanderer, "refused", `srv_b {"id":"`+kept+`"}`, `srv_b {"id":"t1"}`, `srv_b {"id":"t4"}`)
	delete(r.owners, begins)
	snaps, templates = snaps[:2], nil
	stays := &store.Drain{Of: 1, Left: 2, Stay: 2, Cause: cause}
	want(stays)
	r.servers[1].Room, r.owners[asleep], r.owners[wanderer] = &store.Room{Copies: true}, "srv_a", "srv_a"
	want(&store.Drain{Of: 1, Left: 4, Stay: 4, Cause: cause}) // nobody has room, so the rest is not tried
	r.servers[0].Draining, r.servers[1].Room.DiskMiB = false, leastDisk
	want(nil)
	r.servers[0].Draining, r.servers[0].Drains, stays.Of = true, 3, 3
	want(stays, asleep, wanderer, "refused") // anew
}

// handsOver is a Mover that hands over by a function.
type handsOver func(id string, take func(context.Context) error) error

func (f handsOver) Receive(context.Context, string, string) error { return nil }

func (f handsOver) HandOver(_ context.Context, id, _, _ string, _ bool, take func(context.Context) error) error {
	return f(id, take)
}
