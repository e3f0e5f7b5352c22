package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/store"
)

// How long a receiver has, and how a failed delivery is tried again.
const (
	patience     = 10 * time.Second
	retryAfter   = 10 * time.Second // the first three times
	firstRetries = 3
	retryMost    = 5 * time.Minute
	// keptFor is how old an event may be that is tried again.
	keptFor = 7 * 24 * time.Hour
	// storeRetry is how long to wait for a log that cannot be read.
	storeRetry = 10 * time.Second
)

// Bounds of what is read and kept.
const (
	page        = 100
	maxAnswer   = 64 << 10 // read of an answer, so that its connection can be used again
	maxHeader   = 64 << 10
	maxError    = 200
	maxAttempts = 100
)

// Attempt is one try to deliver an event.
type Attempt struct {
	Delivery string // the same for all tries of the event
	Event    string
	Type     string
	At       time.Time
	Number   int // from 1
	Status   int // of the answer; 0 without one
	Err      string
	Duration time.Duration
}

// OK reports whether the receiver has taken the event.
func (a Attempt) OK() bool { return a.Status/100 == 2 }

// Stats is how a webhook does.
type Stats struct {
	Delivered, Dropped int64 // in all its life
	Cursor, Last       int64 // where it is in the log, and where the log ends
	Failures           int   // since the last delivery
	LastDelivered      time.Time
	LastFailure        time.Time
	LastError          string
	NextTry            time.Time // zero: it does not wait for one
}

// hook is a webhook at work.
type hook struct {
	end context.CancelFunc // of its deliveries; guarded by Sender.changes

	mu       sync.Mutex
	w        store.Webhook
	gone     bool          // deleted; changes with Sender.changes held too
	version  int           // of w: rises when somebody changes it
	changed  chan struct{} // closed when somebody changes it
	attempts []Attempt     // oldest first
	failures int           // in a row
	last     Stats         // the times and the error of it
}

func (h *hook) webhook() store.Webhook {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.w
}

// Deliveries returns the last attempts since the server started, newest first. It is a
// store.ErrElsewhere where another server delivers.
func (s *Sender) Deliveries(ctx context.Context, id string) ([]Attempt, error) {
	h, err := s.sent(ctx, id)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.attempts)
	slices.Reverse(all)
	return all, nil
}

// Stats returns how a webhook does. It is a store.ErrElsewhere where another server delivers.
func (s *Sender) Stats(ctx context.Context, id string) (Stats, error) {
	h, err := s.sent(ctx, id)
	if err != nil {
		return Stats{}, err
	}
	end, err := s.o.Events.LastEvent(ctx)
	if err != nil {
		return Stats{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.last
	st.Delivered, st.Dropped, st.Failures = h.w.Delivered, h.w.Dropped, h.failures
	st.Cursor, st.Last = h.w.Cursor, end
	return st, nil
}

// run delivers until ctx ends. What happens meanwhile is asked for before the
// log is read, so that nothing between the two goes unnoticed.
func (s *Sender) run(ctx context.Context, h *hook) {
	for ctx.Err() == nil {
		logged := s.o.Events.Changed()
		h.mu.Lock()
		w, version, changed := h.w, h.version, h.changed
		h.mu.Unlock()
		wait, idle := s.deliver(ctx, h, w, version)
		var timer <-chan time.Time
		if !idle {
			timer, logged = time.After(wait), nil // new events come after those that wait
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-logged:
		case <-timer:
		}
	}
}

// deliver sends what a webhook has not got yet. It returns how long to wait
// before it goes on, or that there is nothing more.
func (s *Sender) deliver(ctx context.Context, h *hook, w store.Webhook, version int) (wait time.Duration, idle bool) {
	if !w.Enabled {
		return 0, true
	}
	events, err := s.o.Events.Events(ctx, "", w.Cursor, page)
	if err != nil {
		return s.troubled(ctx, w, err), false
	}
	for _, e := range events {
		m, err := s.o.Encode(ctx, e)
		if err != nil {
			return s.troubled(ctx, w, err), false
		}
		if m.Type == "" || !slices.Contains(w.Events, m.Type) {
			w.Cursor = e.Seq
			continue
		}
		done, wait := s.try(ctx, h, &w, version, e, m)
		if !done {
			return wait, false
		}
	}
	if len(events) < page {
		h.skip(w.Cursor, version)
		return 0, true
	}
	s.save(ctx, h, w, version)
	return 0, false
}

func (s *Sender) troubled(ctx context.Context, w store.Webhook, err error) time.Duration {
	if ctx.Err() == nil {
		s.o.Log.Error("events for a webhook could not be read", "webhook", w.ID, "err", err)
	}
	return storeRetry
}

// try delivers an event and moves w past it when it is done with, or returns how
// long to wait.
func (s *Sender) try(ctx context.Context, h *hook, w *store.Webhook, version int, e store.Event, m Message) (done bool, wait time.Duration) {
	if !s.elected() { // watch is about to end this
		return false, watchEvery
	}
	a := s.post(ctx, *w, m)
	if ctx.Err() != nil {
		return false, 0
	}
	failures, stale := h.note(&a, version)
	if stale {
		return false, 0
	}
	next := *w
	next.Cursor = e.Seq
	switch {
	case a.OK():
		next.Delivered++
		if failures > 0 {
			s.o.Log.Info("webhook takes events again", "webhook", w.ID, "failures", failures)
		}
	case a.At.Sub(e.At) > keptFor:
		next.Dropped++
		s.o.Log.Warn("event given up for a webhook", "webhook", w.ID, "event", e.Seq, "err", a.Err)
	default:
		wait := backoff(failures)
		if failures == 1 {
			s.o.Log.Warn("webhook takes no events; they are kept for it", "webhook", w.ID, "event", e.Seq, "err", a.Err)
		}
		h.waits(version, a.At.Add(a.Duration).Add(wait))
		return false, wait
	}
	if !s.save(ctx, h, next, version) {
		return false, 0
	}
	*w = next
	if !a.OK() { // it does not answer: the next one is for later
		return false, backoff(failures)
	}
	return true, 0
}

// backoff returns how long to wait after so many failures in a row.
func backoff(failures int) time.Duration {
	wait := retryAfter
	for n := firstRetries; n < failures && wait < retryMost; n++ {
		wait *= 2
	}
	return min(wait, retryMost)
}

// note keeps an attempt, and returns how many have failed in a row: before it,
// if it has not. It is stale if the webhook has been changed meanwhile.
func (h *hook) note(a *Attempt, version int) (failures int, stale bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.Number = 1
	for _, old := range h.attempts {
		if old.Delivery == a.Delivery && !old.OK() {
			a.Number = old.Number + 1
		}
	}
	if len(h.attempts) == maxAttempts {
		h.attempts = slices.Delete(h.attempts, 0, 1)
	}
	h.attempts = append(h.attempts, *a)
	if h.version != version {
		return 0, true
	}
	failures = h.failures
	h.last.NextTry = time.Time{}
	if a.OK() {
		h.failures, h.last.LastDelivered = 0, a.At
		return failures, false
	}
	h.failures++
	h.last.LastFailure, h.last.LastError = a.At, a.Err
	return h.failures, false
}

func (h *hook) waits(version int, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version == version {
		h.last.NextTry = until
	}
}

// skip moves past events that are not wanted, in memory alone: to look at them
// once more after a restart costs less than a write.
func (h *hook) skip(cursor int64, version int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version == version {
		h.w.Cursor = cursor
	}
}

// errOvertaken says that the cursor of a webhook was set, or moved on, elsewhere.
var errOvertaken = errors.New("another server has changed how far the webhook has got")

// save makes durable how far w has got; false if somebody has changed the webhook
// meanwhile. If the store does not take it, deliveries go on: after a restart some come
// twice.
func (s *Sender) save(ctx context.Context, h *hook, w store.Webhook, version int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version != version {
		return false
	}
	var has store.Webhook
	_, err := s.o.Store.ChangeWebhook(context.WithoutCancel(ctx), w.ID, func(x *store.Webhook) error {
		has = *x
		if x.Moves != w.Moves || x.Cursor > w.Cursor {
			return errOvertaken
		}
		x.Cursor, x.Delivered, x.Dropped = w.Cursor, w.Delivered, w.Dropped
		return nil
	})
	switch {
	case errors.Is(err, errOvertaken):
		h.become(has)
		return false
	case errdef.Is(err, errdef.NotFound): // Refresh drops it
		w.Enabled = false
		h.become(w)
		return false
	case err != nil:
		s.o.Log.Error("progress of a webhook could not be saved", "webhook", w.ID, "err", err)
	}
	h.w = w
	return true
}

// ahead has w be as far as this server has delivered, unless its cursor was set since
// then. The caller holds mu, and the server delivers.
func (h *hook) ahead(w *store.Webhook) {
	if w.Moves == h.w.Moves {
		w.Cursor, w.Delivered, w.Dropped = h.w.Cursor, h.w.Delivered, h.w.Dropped
	}
}

// become has a webhook be what it was changed to: what is under way is done again. The
// caller holds mu.
func (h *hook) become(w store.Webhook) {
	h.w = w
	h.failures = 0
	h.version++
	close(h.changed)
	h.changed = make(chan struct{})
}

// Sign returns the signature of a delivery: anybody who knows the secret can
// make the same of the body.
func Sign(secret string, body []byte) string {
	h := sha256.New()
	io.WriteString(h, secret)
	h.Write(body)
	return base64.RawStdEncoding.EncodeToString(h.Sum(nil))
}

// deliveryID returns the id of an event's delivery to a webhook.
func deliveryID(webhook, event string) string {
	sum := sha256.Sum256([]byte(webhook + ":" + event))
	return fmt.Sprintf("%x", sum[:16])
}

// post sends an event once.
func (s *Sender) post(ctx context.Context, w store.Webhook, m Message) Attempt {
	a := Attempt{Delivery: deliveryID(w.ID, m.ID), Event: m.ID, Type: m.Type, At: time.Now().UTC().Truncate(time.Microsecond)}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	status, err := s.send(ctx, w, a.Delivery, m)
	a.Duration, a.Status = time.Since(begin), status
	switch {
	case err != nil:
		a.Err = human.Line(withoutURL(err).Error(), maxError)
	case !a.OK():
		a.Err = fmt.Sprintf("the answer was %d", status)
	}
	return a
}

func (s *Sender) send(ctx context.Context, w store.Webhook, delivery string, m Message) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(m.Body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "drowse-webhook")
	req.Header.Set("e2b-webhook-id", w.ID)
	req.Header.Set("e2b-delivery-id", delivery)
	req.Header.Set("e2b-signature-version", "v1")
	req.Header.Set("e2b-signature", Sign(w.Secret, m.Body))
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	return resp.StatusCode, nil
}

// withoutURL returns what lies below the errors that name the URL, which may
// have a secret in it.
func withoutURL(err error) error {
	for {
		e, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = e.Err
	}
}

// newTransport returns a transport that bounds what a receiver can make the
// server hold. The owner of a receiver's name says what address it has: not one of
// those where no receiver is, and a provider keeps credentials of its machines.
func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	d := net.Dialer{Control: func(_, at string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(at)
		if err != nil || egress.ZoneOf(to.Addr()) == egress.Nowhere {
			return fmt.Errorf("no receiver can be at %s", at)
		}
		return nil
	}}
	t.DialContext = d.DialContext
	t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes, t.DisableCompression = 1, maxHeader, true
	return t
}
