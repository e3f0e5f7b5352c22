package v1

import (
	"net/http"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/store"
)

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
	want := `{"servers":[{"id":"srv_b","name":"here","address":"10.0.0.2:3443","alive":true,"leaving":false,"leaseEndsAt":"2026-09-01T12:00:00.000000Z","self":true,"room":{"running":3,"maxRunning":5,"memoryMiB":7,"diskMiB":9}},` +
		`{"id":"srv_c","name":"there","address":null,"alive":false,"leaving":false,"leaseEndsAt":"2026-09-01T12:00:00.000000Z","self":false,"room":null},` +
		`{"id":"srv_d","name":"stops","address":null,"alive":true,"leaving":true,"leaseEndsAt":"2026-09-01T12:00:00.000000Z","self":false,"room":{"running":0,"maxRunning":null,"memoryMiB":0,"diskMiB":0}}]}`
	if a := w.do("GET", "/v1/servers", "").Is(http.StatusOK); a.Body != want {
		t.Errorf("got  %s\nwant %s", a.Body, want)
	}
	if v := w.sandbox(w.create(`{}`)); v["server"] != "srv_b" {
		t.Errorf("a sandbox made here is on server %v", v["server"])
	}
}
