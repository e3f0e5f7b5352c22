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
	const asleep, volumes, refuses, kept, result = "iasleep00000000000000", "ivolumes0000000000000", "irefuses0000000000000", "saaaaaaaaaaaaaaaaaaaa", "sbbbbbbbbbbbbbbbbbbbb"
	at := listen(t, open(t, &records{self: "srv_b"}))
	r := &records{self: "srv_a", owners: map[string]string{wanderer: "srv_a", asleep: "srv_a", refuses: "srv_a", volumes: "srv_a"}, servers: []store.Server{
		{ID: "srv_a", Left: time.Minute, Address: "x", Room: &store.Room{}}, {ID: "srv_b", Left: time.Minute, Address: at, Room: &store.Room{DiskMiB: leastDisk}},
	}}
	var given []string
	snaps := []store.Snapshot{{ID: result, Owner: "srv_a", Config: store.Config{Build: "b"}}, {ID: "scccccccccccccccccccc", Owner: "srv_b"}, {ID: kept, Owner: "srv_a", Sandbox: "igone"}}
	templates := []store.Template{{ID: "t1", Owner: "srv_a"}, {ID: "t2", Owner: "srv_b"}, {ID: "t3", Owner: "srv_a", Builds: []store.Build{{Status: store.BuildRunning}}}}
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
			for _, sb := range []store.Sandbox{own(wanderer, lifecycle.Running), own(refuses, lifecycle.Running), own(asleep, lifecycle.Paused), own(volumes, lifecycle.Paused)} {
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
	r.servers[0].Draining = true
	r.volumes = map[string]bool{volumes: true}
	want(&store.Drain{Left: 3, Stay: 3, Cause: "template t3 does not move now: it is being built: try again in a moment"},
		asleep, wanderer, "refused", `srv_b {"id":"`+kept+`"}`, `srv_b {"id":"t1"}`)
	snaps, templates = snaps[:2], nil
	stays := &store.Drain{Left: 2, Stay: 2, Cause: "sandbox " + refuses + ": its image is not there"}
	want(stays)
	r.servers[1].Room, r.owners[asleep], r.owners[wanderer] = &store.Room{}, "srv_a", "srv_a"
	_ = c.Forget(t.Context())
	_, none := c.target(t.Context(), "", false)
	want(&store.Drain{Left: 4, Stay: 4, Cause: "sandbox " + refuses + ": " + none.Error()}) // nobody has room, so the rest is not tried
	r.servers[0].Draining, r.servers[1].Room.DiskMiB = false, leastDisk
	want(nil)
	r.servers[0].Draining = true
	want(stays, asleep, wanderer, "refused") // anew
}

// handsOver is a Mover that hands over by a function.
type handsOver func(id string, take func(context.Context) error) error

func (f handsOver) Receive(context.Context, string, string) error { return nil }

func (f handsOver) HandOver(_ context.Context, id, _, _ string, take func(context.Context) error) error {
	return f(id, take)
}
