package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/webhook"
)

const hookSecret = "the-secret-of-the-receiver"

// receiver takes what a webhook delivers, if it is signed.
type receiver struct {
	mu    sync.Mutex
	types []string // one for each event, in the order of their first delivery
	seen  map[string]bool
	bad   []string
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var event struct{ ID, Type string }
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || json.Unmarshal(body, &event) != nil || req.Header.Get("e2b-signature") != webhook.Sign(hookSecret, body) {
		r.bad = append(r.bad, string(body))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	if !r.seen[event.ID] {
		r.types = append(r.types, strings.TrimPrefix(event.Type, "sandbox.lifecycle."))
	}
	r.seen[event.ID] = true
}

func (r *receiver) got() (types string, bad []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.types, " "), r.bad
}

// TestWebhookOutage: a receiver that is down while things happen, and while the
// server is killed, gets all of them in order when it is back.
func TestWebhookOutage(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil { // nobody listens from here on
		t.Fatal(err)
	}
	var made struct{ ID string }
	s.call(ctx, "POST", "/events/webhooks", fmt.Sprintf(`{"name": "n", "url": "http://%s/in", "signatureSecret": %q, "events": [
		"sandbox.lifecycle.created", "sandbox.lifecycle.paused", "sandbox.lifecycle.resumed", "sandbox.lifecycle.killed"]}`, addr, hookSecret), &made)

	sb := s.create(ctx, client.CreateOptions{})
	s.pause(ctx, sb.ID)
	eventually(t, 30*time.Second, "a delivery that fails", func() error {
		var st struct{ ConsecutiveFailures int }
		s.call(ctx, "GET", "/events/webhooks/"+made.ID+"/stats", "", &st)
		if st.ConsecutiveFailures == 0 {
			return fmt.Errorf("stats %+v", st)
		}
		return nil
	})
	s.crash()
	s.start()
	s.connect(ctx, sb.ID)
	s.kill(ctx, t, sb.ID)

	back := &receiver{}
	receiving := httptest.NewUnstartedServer(back)
	receiving.Listener.Close()
	if receiving.Listener, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	receiving.Start()
	defer receiving.Close()
	s.call(ctx, "PATCH", "/events/webhooks/"+made.ID, `{}`, nil) // tries again at once
	eventually(t, time.Minute, "all events", func() error {
		if types, bad := back.got(); types != "created paused resumed killed" || len(bad) > 0 {
			return fmt.Errorf("the receiver has %q, and refused %q", types, bad)
		}
		return nil
	})
	if n := s.log.count(hookSecret); n != 0 {
		t.Errorf("the secret is in the server's log %d times", n)
	}
}
