package v1

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// movesTo is a Mover of which the servers are said, but for srv_gone, to have what is moved
// to them.
type movesTo struct{ Sandboxes }

func (m movesTo) Move(ctx context.Context, id, to, actor string) (store.Sandbox, error) {
	sb, err := m.Find(ctx, id)
	if to == "srv_gone" {
		err = errdef.New(errdef.NotFound, "server_not_found", "there is no server %q for %s", to, actor)
	}
	if sb.Owner = to; to == "" {
		sb.Owner = "srv_any"
	}
	return sb, err
}

// TestMoveSandbox has a sandbox moved to the server that is named, or to any.
func TestMoveSandbox(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Mover = movesTo{o.Sandboxes} })
	move := pathOf(w.create(`{}`)) + "/move"
	for body, want := range map[string]string{`{"server":"srv_b"}`: "srv_b", `{}`: "srv_any", ``: "srv_any"} {
		if a := w.do("POST", move, body).Is(http.StatusOK); !strings.Contains(a.Body, `"server":"`+want+`"`) {
			t.Errorf("%s: %s", body, a.Body)
		}
	}
	w.do("POST", move, `{"server":"srv_gone"}`).fails(http.StatusNotFound, "server_not_found", "for key:")
	alone := newWorld(t)
	alone.do("POST", pathOf(alone.create(`{}`))+"/move", "").fails(http.StatusConflict, "no_other_server", "by itself")
	alone.do("POST", base+"/i0nobody/move", "").fails(http.StatusNotFound, "sandbox_not_found", "does not exist")
}

// TestServers lists the servers of one database, and says which has a sandbox.
func TestServers(t *testing.T) {
	w := newWorld(t)
	if a := w.do("GET", "/v1/servers", "").Is(http.StatusOK); a.Body != `{"servers":[]}` {
		t.Error(a.Body)
	}
	end := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	w = newWorld(t, func(o *Options) {
		o.Servers = apitest.Servers{{ID: "srv_b", Name: "here", Address: "10.0.0.2:3443", LeaseEndsAt: end, Left: time.Millisecond, Room: &store.Room{Running: 3, MaxRunning: 5, MemoryMiB: 7, DiskMiB: 9}}, {ID: "srv_c", Name: "there", LeaseEndsAt: end, Left: -time.Second}, {ID: "srv_d", Name: "stops", Leaving: true, LeaseEndsAt: end, Left: time.Second, Room: &store.Room{}}}
	})
	want := `{"servers":[{"id":"srv_b","name":"here","address":"10.0.0.2:3443","alive":true,"leaving":false,"draining":false,"drain":null,"leaseEndsAt":"2026-09-01T12:00:00.000000Z","self":true,"room":{"running":3,"maxRunning":5,"memoryMiB":7,"diskMiB":9}},` +
		`{"id":"srv_c","name":"there","address":null,"alive":false,"leaving":false,"draining":false,"drain":null,"leaseEndsAt":"2026-09-01T12:00:00.000000Z","self":false,"room":null},` +
		`{"id":"srv_d","name":"stops","address":null,"alive":true,"leaving":true,"draining":false,"drain":null,"leaseEndsAt":"2026-09-01T12:00:00.000000Z","self":false,"room":{"running":0,"maxRunning":null,"memoryMiB":0,"diskMiB":0}}]}`
	if a := w.do("GET", "/v1/servers", "").Is(http.StatusOK); a.Body != want {
		t.Errorf("got  %s\nwant %s", a.Body, want)
	}
	if v := w.sandbox(w.create(`{}`)); v["server"] != "srv_b" {
		t.Errorf("a sandbox made here is on server %v", v["server"])
	}
}

// TestDrain has a server drained, and undoes that.
func TestDrain(t *testing.T) {
	servers := apitest.Servers{{ID: "srv_b", Room: &store.Room{}}, {ID: "srv_c", Room: &store.Room{Drain: &store.Drain{Left: 3, Stay: 1, Cause: "it has volumes"}}}}
	w := newWorld(t, func(o *Options) { o.Servers = servers })
	for _, tt := range []struct{ id, body, want string }{
		{"srv_b", `{"draining":true}`, `"draining":true,"drain":null,`},
		{"srv_b", ``, `"draining":true,"drain":null,`},
		{"srv_c", `{}`, `"draining":false,"drain":null,`},
		{"srv_c", `{"drain":true}`, `"draining":true,"drain":{"left":3,"stay":1,"cause":"it has volumes"},`},
		{"srv_c", `{"draining":false}`, `"draining":false,"drain":null,`},
	} {
		if a := w.do("PATCH", "/v1/servers/"+tt.id, tt.body).Is(http.StatusOK); !strings.Contains(a.Body, tt.want) {
			t.Errorf("%s: %s, want %s", tt.body, a.Body, tt.want)
		}
	}
	for _, body := range []string{`{}`, `{"draining":true}`} {
		w.do("PATCH", "/v1/servers/srv_d", body).fails(http.StatusNotFound, "server_not_found", "srv_d")
	}
	w.do("PATCH", "/v1/servers/srv_b", `{"draining":null}`).fails(http.StatusBadRequest, "invalid_request", "draining")
}
