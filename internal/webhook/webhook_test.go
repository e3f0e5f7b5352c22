package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const secret = "the secret of the receiver"

// events is an event log in memory.
type events struct {
	mu      sync.Mutex
	all     []store.Event
	changed chan struct{}
}

func newEvents() *events { return &events{changed: make(chan struct{})} }

// add logs so many events of a type.
func (l *events) add(n int, kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.all = append(l.all, store.Event{Seq: int64(len(l.all) + 1), Entry: lifecycle.Entry{Type: lifecycle.EntryType(kind), At: time.Now()}})
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *events) Events(_ context.Context, _ string, after int64, limit int) ([]store.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.all[min(int(after), len(l.all)):]
	return slices.Clone(rest[:min(limit, len(rest))]), nil
}

func (l *events) LastEvent(context.Context) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.all)), nil
}

func (l *events) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// encode makes a message of every event but the secret ones.
func encode(_ context.Context, e store.Event) (Message, error) {
	if e.Type == "hidden" {
		return Message{}, nil
	}
	return Message{Type: string(e.Type), ID: fmt.Sprintf("event-%d", e.Seq), Body: fmt.Appendf(nil, `{"n":%d}`, e.Seq)}, nil
}

// receiver takes deliveries without a network.
type receiver struct {
	mu     sync.Mutex
	answer func(r *http.Request) (status int, err error)
	took   []string // bodies that were answered with 200
	tries  []time.Time
	ids    []string // of deliveries, of each try
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte(secret), body...))
	if got, want := req.Header.Get("e2b-signature"), base64.RawStdEncoding.EncodeToString(sum[:]); got != want {
		return nil, fmt.Errorf("signature %q, want %q", got, want)
	}
	r.mu.Lock()
	answer := r.answer
	r.tries, r.ids = append(r.tries, time.Now()), append(r.ids, req.Header.Get("e2b-delivery-id"))
	r.mu.Unlock()
	status := http.StatusOK
	if answer != nil {
		if status, err = answer(req); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if status/100 == 2 {
		r.took = append(r.took, string(body))
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{}, Request: req}, nil
}

func (r *receiver) set(answer func(*http.Request) (int, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.took, " ")
}

// numbers is what a receiver has got that took the events from one number to
// another.
func numbers(from, to int) string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, fmt.Sprintf(`{"n":%d}`, n))
	}
	return strings.Join(all, " ")
}

func refuse(*http.Request) (int, error) { return http.StatusInternalServerError, nil }

// world is a server with one receiver, on virtual time.
type world struct {
	t      *testing.T
	data   *memstore.Data
	events *events
	to     *receiver
	log    *bytes.Buffer
	s      *Sender
}

func onVirtualTime(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, data: memstore.NewData(), events: newEvents(), to: &receiver{}, log: &bytes.Buffer{}}
		w.start()
		test(t, w)
		w.s.Stop()
		if strings.Contains(w.log.String(), secret) || strings.Contains(w.log.String(), "receiver.test") {
			t.Errorf("the log has the secret or the URL in it:\n%s", w.log)
		}
	})
}

func (w *world) start() {
	w.t.Helper()
	s, err := New(w.t.Context(), Options{
		Store: memstore.Open(w.data, memstore.Hooks{}), Events: w.events, Encode: encode, Transport: w.to, Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.s = s
}

func good() store.Webhook {
	return store.Webhook{Name: "n", URL: "https://receiver.test/in?token=t", Events: []string{"a", "b"}, Enabled: true, Secret: secret}
}

func (w *world) create() store.Webhook {
	w.t.Helper()
	hook, err := w.s.Create(w.t.Context(), good())
	if err != nil {
		w.t.Fatal(err)
	}
	return hook
}

func (w *world) want(what, got string) {
	w.t.Helper()
	synctest.Wait()
	if has := w.to.got(); has != got {
		w.t.Errorf("%s: the receiver has %s, want %s", what, has, got)
	}
}

func (w *world) stats(id string) Stats {
	w.t.Helper()
	st, err := w.s.Stats(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

func TestDelivers(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.events.add(3, "a") // before there is a webhook
		hook := w.create()
		w.want("what was before", "")
		w.events.add(2, "b")
		w.events.add(1, "other")
		w.events.add(1, "hidden")
		w.events.add(1, "a")
		w.want("what it is for", `{"n":4} {"n":5} {"n":8}`)
		w.events.add(250, "a")
		w.want("many at once", `{"n":4} {"n":5} {"n":8} `+numbers(9, 258))
		if st := w.stats(hook.ID); st.Delivered != 253 || st.Cursor != 258 || st.Last != 258 || st.Failures != 0 || !st.NextTry.IsZero() || st.LastDelivered.IsZero() {
			t.Errorf("stats %+v", st)
		}
		all, err := w.s.Deliveries(t.Context(), hook.ID)
		if err != nil || len(all) != maxAttempts || all[0].Event != "event-258" || !all[0].OK() || all[0].Number != 1 {
			t.Errorf("%d deliveries, the last %+v, %v", len(all), all[0], err)
		}
	})
}

// TestOutage: an hour without an answer, in which the server ends twice, once
// with a request under way, loses nothing and mixes nothing up.
func TestOutage(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		hook := w.create()
		w.events.add(2, "a")
		w.want("before", numbers(1, 2))
		w.to.set(refuse)
		begin := time.Now()
		w.events.add(2, "a")
		time.Sleep(20 * time.Minute)
		w.events.add(150, "b")
		w.s.Stop()
		w.start()
		time.Sleep(20 * time.Minute)
		w.to.set(func(r *http.Request) (int, error) { <-r.Context().Done(); return 0, r.Context().Err() })
		time.Sleep(retryMost + time.Second) // a request is under way
		w.s.Stop()
		w.start()
		time.Sleep(15 * time.Minute)
		w.events.add(1, "a")
		if st := w.stats(hook.ID); st.Failures == 0 || st.NextTry.IsZero() || st.LastError == "" || st.Cursor != 2 || st.Last != 155 {
			t.Errorf("stats of the outage: %+v", st)
		}
		w.want("in the outage", numbers(1, 2))
		w.to.set(nil)
		time.Sleep(retryMost)
		w.want("after it", numbers(1, 155))
		tries := w.to.tries[2:]
		for n, want := range []time.Duration{0, 10, 20, 30, 50, 90} {
			if got := tries[n].Sub(begin); got != want*time.Second {
				t.Errorf("try %d was after %v, want %v", n+1, got, want*time.Second)
			}
		}
		if w.to.ids[2] == w.to.ids[1] || w.to.ids[2] != w.to.ids[3] || len(w.to.ids[2]) == 0 {
			t.Errorf("ids of deliveries: %v", w.to.ids[:4])
		}
		if got := strings.Count(w.log.String(), "takes no events"); got != 3 { // once per server
			t.Errorf("%d warnings:\n%s", got, w.log)
		}
	})
}

func TestGivesUpAfterAWeek(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		hook := w.create()
		w.to.set(refuse)
		w.events.add(2, "a")
		time.Sleep(6 * 24 * time.Hour)
		w.events.add(1, "a")
		if st := w.stats(hook.ID); st.Dropped != 0 {
			t.Errorf("%d dropped after six days", st.Dropped)
		}
		time.Sleep(2 * 24 * time.Hour)
		if st := w.stats(hook.ID); st.Dropped != 2 || st.Cursor != 2 {
			t.Errorf("stats after eight days: %+v", st)
		}
		if got := strings.Count(w.log.String(), "event given up"); got != 2 {
			t.Errorf("%d warnings:\n%s", got, w.log)
		}
		w.to.set(nil)
		time.Sleep(retryMost)
		w.want("what is young enough", numbers(3, 3))
		w.s.Stop()
		w.start()
		if st := w.stats(hook.ID); st.Dropped != 2 || st.Delivered != 1 {
			t.Errorf("stats after a restart: %+v", st)
		}
	})
}

// TestSlowReceiver: it delays nobody else, and is cut off after its time.
func TestSlowReceiver(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		slow := w.create()
		quick, err := w.s.Create(t.Context(), good())
		if err != nil {
			t.Fatal(err)
		}
		w.to.set(func(r *http.Request) (int, error) {
			if r.Header.Get("e2b-webhook-id") == slow.ID {
				<-r.Context().Done()
				return 0, r.Context().Err()
			}
			return http.StatusNoContent, nil
		})
		w.events.add(5, "a")
		w.want("the quick one", numbers(1, 5))
		time.Sleep(patience + time.Second)
		if st := w.stats(slow.ID); st.Failures != 1 || st.Delivered != 0 {
			t.Errorf("the slow one: %+v", st)
		}
		if st := w.stats(quick.ID); st.Delivered != 5 {
			t.Errorf("the quick one: %+v", st)
		}
	})
}

func TestChange(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		hook := w.create()
		change := func(f func(*store.Webhook)) {
			t.Helper()
			if _, err := w.s.Change(t.Context(), hook.ID, f); err != nil {
				t.Fatal(err)
			}
		}
		w.events.add(3, "a")
		w.want("as it was made", numbers(1, 3))
		change(func(x *store.Webhook) { x.Enabled = false })
		w.events.add(2, "a")
		time.Sleep(time.Hour)
		w.want("disabled", numbers(1, 3))
		change(func(x *store.Webhook) { x.Enabled = true })
		w.events.add(1, "a")
		w.want("enabled", numbers(1, 3)+" "+numbers(6, 6))
		change(func(x *store.Webhook) { x.Cursor = 2 })
		w.want("once more from the third on", numbers(1, 3)+" "+numbers(6, 6)+" "+numbers(3, 6))

		w.to.set(refuse)
		w.events.add(1, "a")
		time.Sleep(time.Hour)
		w.to.set(nil)
		w.to.took = nil
		change(func(x *store.Webhook) { x.Name = "other" })
		w.want("tried at once after a change", numbers(7, 7))
		for name, f := range map[string]func(*store.Webhook){
			"name": func(x *store.Webhook) { x.Name = "" }, "URL": func(x *store.Webhook) { x.URL = "ftp://x" }, "events": func(x *store.Webhook) { x.Events = nil },
		} {
			if _, err := w.s.Change(t.Context(), hook.ID, f); !errdef.Is(err, errdef.Invalid) {
				t.Errorf("a bad %s: %v", name, err)
			}
		}
		if got, err := w.s.Get(hook.ID); err != nil || got.Name != "other" || got.URL != hook.URL || !got.CreatedAt.Equal(hook.CreatedAt) {
			t.Errorf("afterwards: %+v, %v", got, err)
		}
	})
}

// TestChangeWins: the outcome of a delivery that was under way when the webhook
// was put back does not undo that.
func TestChangeWins(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		hook := w.create()
		w.events.add(3, "a")
		w.want("at first", numbers(1, 3))
		release := make(chan struct{})
		w.to.set(func(*http.Request) (int, error) { <-release; return http.StatusOK, nil })
		w.events.add(1, "a")
		synctest.Wait() // the fourth is under way
		if _, err := w.s.Change(t.Context(), hook.ID, func(x *store.Webhook) { x.Cursor = 0 }); err != nil {
			t.Fatal(err)
		}
		w.to.set(nil)
		close(release)
		w.want("all of it again", numbers(1, 4)+" "+numbers(1, 4))
	})
}

func TestDelete(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		hook := w.create()
		w.to.set(func(r *http.Request) (int, error) { <-r.Context().Done(); return 0, r.Context().Err() })
		w.events.add(1, "a")
		synctest.Wait()
		if err := w.s.Delete(t.Context(), hook.ID); err != nil {
			t.Fatal(err)
		}
		w.to.set(nil)
		w.events.add(1, "a")
		time.Sleep(time.Hour)
		w.want("a deleted one", "")
		_, getErr := w.s.Get(hook.ID)
		_, changeErr := w.s.Change(t.Context(), hook.ID, func(*store.Webhook) {})
		_, statsErr := w.s.Stats(t.Context(), hook.ID)
		_, listErr := w.s.Deliveries(t.Context(), hook.ID)
		for n, err := range []error{getErr, changeErr, statsErr, listErr, w.s.Delete(t.Context(), hook.ID)} {
			if !errdef.Is(err, errdef.NotFound) {
				t.Errorf("call %d on a deleted one: %v", n, err)
			}
		}
		w.s.Stop()
		w.start()
		if all := w.s.List(); len(all) != 0 {
			t.Errorf("after a restart: %+v", all)
		}
	})
}

func TestCheck(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		for name, change := range map[string]func(*store.Webhook){
			"no name":      func(x *store.Webhook) { x.Name = "" },
			"long name":    func(x *store.Webhook) { x.Name = strings.Repeat("n", maxName+1) },
			"no URL":       func(x *store.Webhook) { x.URL = "" },
			"no scheme":    func(x *store.Webhook) { x.URL = "receiver.test" },
			"other scheme": func(x *store.Webhook) { x.URL = "file:///etc/passwd" },
			"no host":      func(x *store.Webhook) { x.URL = "http://:80/x" },
			"broken URL":   func(x *store.Webhook) { x.URL = "http://a b/" },
			"a password":   func(x *store.Webhook) { x.URL = "http://user:" + secret + "@receiver.test/" },
			"long URL":     func(x *store.Webhook) { x.URL += strings.Repeat("x", maxURL) },
			"no secret":    func(x *store.Webhook) { x.Secret = "" },
			"long secret":  func(x *store.Webhook) { x.Secret = strings.Repeat("x", maxSecret+1) },
			"no events":    func(x *store.Webhook) { x.Events = nil },
		} {
			x := good()
			change(&x)
			_, err := w.s.Create(t.Context(), x)
			if !errdef.Is(err, errdef.Invalid) || strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for n := range store.MostWebhooks {
			if _, err := w.s.Create(t.Context(), good()); err != nil {
				t.Fatalf("webhook %d: %v", n, err)
			}
			time.Sleep(time.Millisecond)
		}
		if _, err := w.s.Create(t.Context(), good()); !errdef.Is(err, errdef.Exhausted) {
			t.Errorf("one too many: %v", err)
		}
		if all := w.s.List(); len(all) != store.MostWebhooks || !slices.IsSortedFunc(all, func(a, b store.Webhook) int { return a.CreatedAt.Compare(b.CreatedAt) }) {
			t.Errorf("%d webhooks, or out of order", len(all))
		}
	})
}

// failing is a store whose disk is full when it is told so.
type failing struct {
	*memstore.Store
	full bool
}

func (f *failing) ChangeWebhook(ctx context.Context, id string, change func(*store.Webhook) error) (store.Webhook, error) {
	if f.full {
		return store.Webhook{}, memstore.ErrFull
	}
	return f.Store.ChangeWebhook(ctx, id, change)
}

// TestFullDisk: deliveries go on, and come again after a restart.
func TestFullDisk(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		hook := w.create()
		w.s.Stop()
		st := &failing{Store: memstore.Open(w.data, memstore.Hooks{}), full: true}
		s, err := New(t.Context(), Options{Store: st, Events: w.events, Encode: encode, Transport: w.to, Log: slog.New(slog.NewTextHandler(w.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		w.s = s
		w.events.add(2, "a")
		w.want("with a full disk", numbers(1, 2))
		if _, err := w.s.Change(t.Context(), hook.ID, func(x *store.Webhook) { x.Name = "x" }); !errors.Is(err, memstore.ErrFull) {
			t.Errorf("a change on a full disk: %v", err)
		}
		if got, _ := w.s.Get(hook.ID); got.Name != "n" {
			t.Errorf("a change that failed is there: %+v", got)
		}
		w.s.Stop()
		w.start()
		w.want("after a restart", numbers(1, 2)+" "+numbers(1, 2))
	})
}

// TestOverTheNetwork holds the requests themselves.
func TestOverTheNetwork(t *testing.T) {
	type request struct {
		method, uri string
		header      http.Header
		body        []byte
	}
	requests := make(chan request, 10)
	var calls int
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- request{r.Method, r.RequestURI, r.Header, body}
		if calls++; calls == 1 {
			rw.Header().Set("Location", "/elsewhere")
			rw.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		_, _ = rw.Write(make([]byte, 1<<20)) // more than anybody wants to know
	}))
	defer server.Close()
	log := newEvents()
	s, err := New(t.Context(), Options{Store: memstore.Open(memstore.NewData(), memstore.Hooks{}), Events: log, Encode: encode, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	x := good()
	x.URL = server.URL + "/in?token=t"
	hook, err := s.Create(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	log.add(1, "a")
	first := <-requests
	sum := sha256.Sum256([]byte(secret + `{"n":1}`))
	for name, want := range map[string]string{
		"Content-Type": "application/json", "e2b-webhook-id": hook.ID, "e2b-delivery-id": deliveryID(hook.ID, "event-1"),
		"e2b-signature-version": "v1", "e2b-signature": base64.RawStdEncoding.EncodeToString(sum[:]),
	} {
		if got := first.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if first.method != http.MethodPost || first.uri != "/in?token=t" || string(first.body) != `{"n":1}` {
		t.Errorf("%s %s %s", first.method, first.uri, first.body)
	}
	// The redirect is a failure. A change has it tried again at once.
	for deadline := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
		all, err := s.Deliveries(t.Context(), hook.ID)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the redirect was not noted: %+v, %v", all, err)
		}
		if len(all) == 1 && all[0].Status == http.StatusTemporaryRedirect && !all[0].OK() {
			break
		}
	}
	if _, err := s.Change(t.Context(), hook.ID, func(*store.Webhook) {}); err != nil {
		t.Fatal(err)
	}
	if second := <-requests; second.uri != "/in?token=t" || string(second.body) != `{"n":1}` {
		t.Errorf("after the redirect: %s %s", second.uri, second.body)
	}
	log.add(1, "a")
	if third := <-requests; string(third.body) != `{"n":2}` {
		t.Errorf("after a long answer: %s", third.body)
	}
}

// TestNoReceiverAtMetadata: nothing is sent to where a provider keeps the credentials
// of its machines, in whatever form the address is written.
func TestNoReceiverAtMetadata(t *testing.T) {
	way := newTransport()
	for _, host := range []string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "[64:ff9b::a9fe:a9fe]"} {
		ctx, cancel := context.WithTimeout(t.Context(), testmode.Patience())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := way.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "no receiver can be at") {
			t.Errorf("%s: %v", host, err)
		}
		cancel()
	}
}
