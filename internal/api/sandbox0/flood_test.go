package sandbox0

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestQueuedInputIsBounded: 64 WebSockets with 16 inputs of a MB each had the server
// hold 1 GB. A client that has no room left is not read on.
func TestQueuedInputIsBounded(t *testing.T) {
	w := newWorld(t)
	s := w.HTTP.(*server)
	id := w.claim("")
	at := all + "/" + id + "/contexts/" + w.context(id, `{}`)["id"].(string)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const inputs = 6
	clients := make([]*websocket.Conn, 6)
	for i := range clients {
		c := w.dial(at + "/ws")
		clients[i] = c
		say(t, c, `{"type":"input","data":"wait"}`)
		go func() {
			for range inputs {
				if c.Write(ctx, websocket.MessageText, []byte(`{"type":"input","data":"`+strings.Repeat("x", 1_000_000)+`"}`)) != nil {
					return
				}
			}
		}()
	}
	const most = held.MaxKeyWaiting / 2
	testmode.Eventually(t, "input waits", func() bool { return s.Room.Of(apitest.KeyID).Waiting > most-messageCost*maxSocketMessage })
	for range 50 {
		if n := s.Room.Of(apitest.KeyID).Waiting; n > most {
			t.Fatalf("%d bytes of input wait, want at most %d", n, most)
		}
		time.Sleep(time.Millisecond)
	}
	// The key's requests go on, those that only ask.
	if v := data(w.Do("GET", at, ""), 200); v["running"] != true {
		t.Errorf("the context is %v", v)
	}
	fails(w.Do("POST", at+"/input", `{"data":"`+strings.Repeat("x", 1_000_000)+`"}`), http.StatusTooManyRequests, "quota_exceeded", "input")
	data(w.Do("DELETE", at, ""), 200)
	cancel()
	for _, c := range clients {
		c.CloseNow()
	}
	testmode.Eventually(t, "what has ended is not held any more", func() bool { h := s.Room.All(); return h.Waiting == 0 && h.Sessions == 0 })
}

// TestAnswersWithOutputAreBounded: output is copied for each client that asks for it,
// and held while the client does not read it.
func TestAnswersWithOutputAreBounded(t *testing.T) {
	r := held.New()
	o := newOutput(r.Output("k"))
	for range 200 {
		o.write(fromStdout, strings.Repeat("x", 20_000))
	}
	for range 50 {
		o.follow(t.Context(), r.Lasting(held.Who{Key: "k"}))
	}
	if n := r.Of("k").Waiting; n > held.MaxKeyWaiting/2 || n < held.MaxKeyWaiting/4 {
		t.Errorf("%d bytes wait for readers", n)
	}
	late, before := o.follow(t.Context(), r.Lasting(held.Who{Key: "other"}))
	if len(before) < 100 {
		t.Errorf("another key gets %d pieces", len(before))
	}
	for _, one := range before {
		late.taken(one)
	}
	if n := r.Of("other").Waiting; n != 0 {
		t.Errorf("%d bytes are held after they were read", n)
	}
}

// TestContextsOfAKeyAreBounded: what clients say of contexts is kept, in any number of
// sandboxes.
func TestContextsOfAKeyAreBounded(t *testing.T) {
	w := newWorld(t)
	s := w.HTTP.(*server)
	id := w.claim("")
	long := strings.Repeat("x", 500_000)
	before := s.Room.All()
	v := w.context(id, `{"cmd":{"command":["true","`+long[:100_000]+`"]},"wait_until_done":true}`)
	if n := s.Room.Of(apitest.KeyID).Kept; n < 100_000 {
		t.Errorf("%d bytes are kept of a command of 100000", n)
	}
	full := s.Room.Record(apitest.KeyID)
	for full.Grow(10_000) {
	}
	fails(w.Do("POST", all+"/"+id+"/contexts", `{"cmd":{"command":["true"]}}`), http.StatusTooManyRequests, "quota_exceeded", "contexts")
	full.Free()
	data(w.Do("DELETE", all+"/"+id+"/contexts/"+v["id"].(string), ""), 200)
	if n := s.Room.All(); n != before {
		t.Errorf("after all is deleted: %v, before %v", n, before)
	}
}
