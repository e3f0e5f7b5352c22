// Package webhook delivers events to receivers elsewhere.
//
// The event log is the queue: a webhook keeps only how far in it the receiver
// has got. So nothing is lost over a crash of the server or an outage of the
// receiver, and to have events again is to go back in the log.
//
//   - A receiver gets each event that it wants at least once, and one after the
//     other in the order of the log. It gets one twice when the server ends, or
//     the webhook is changed, between an answer and the note of it; the delivery
//     has the same id then.
//   - An answer other than 2xx within 10 seconds is a failure. The event is tried
//     again after 10 seconds, three times as E2B's service does it, and then at
//     growing intervals of 5 minutes at most. What comes after it waits.
//   - After 7 days an event that fails once more is given up, which is counted
//     and logged.
//   - Each webhook has a goroutine of its own: a slow receiver delays no other.
//   - Of several servers with one store, the one that is elected delivers, and goes
//     on from where the one before it has got. A receiver can get an event twice then.
//   - Redirects are not followed, and of an answer only the status counts.
//
// Whoever may make webhooks can have the server send requests to wherever it
// reaches, its own network and loopback included: those who host receivers
// beside it need that. Link-local addresses are not, nor those at which providers
// keep the metadata of their machines. They learn the status, never the body. The API asks for
// an admin key.
package webhook

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
)

// EventLog is the log of all events.
type EventLog interface {
	// Events returns up to limit entries with Seq > after, oldest first.
	Events(ctx context.Context, sandbox string, after int64, limit int) ([]store.Event, error)
	// LastEvent returns the Seq of the last entry; 0 if there is none.
	LastEvent(ctx context.Context) (int64, error)
	// Changed returns a channel that is closed at the next entry.
	Changed() <-chan struct{}
}

// Store is the part of the server's store that keeps webhooks.
type Store interface {
	PutWebhook(ctx context.Context, w store.Webhook) error
	ChangeWebhook(ctx context.Context, id string, change func(*store.Webhook) error) (store.Webhook, error)
	Webhooks(ctx context.Context) ([]store.Webhook, error)
	DeleteWebhook(ctx context.Context, id string) error
}

// Message is an event as receivers get it.
type Message struct {
	Type string // empty for an entry of the log that is for no receiver
	ID   string // of the event
	Body []byte
}

// Options is what a sender works with.
type Options struct {
	Store  Store
	Events EventLog
	// Encode puts an entry of the log into the words of receivers.
	Encode func(ctx context.Context, e store.Event) (Message, error)
	// Elected reports whether this is the server that delivers, of several with one store,
	// and otherwise which one is, if any; nil if this is the only one. It is asked often.
	Elected func() (here bool, server string)
	// Transport carries the requests; nil for the network.
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Sender delivers the events of all webhooks of a server.
type Sender struct {
	o      Options
	client *http.Client

	ctx  context.Context // ends the deliveries
	stop context.CancelFunc
	work sync.WaitGroup

	// changes is held while a change is stored, or what is stored is taken over, and is
	// taken before the locks of hooks and mu.
	changes  sync.Mutex
	delivers bool         // whether hooks are at work; guarded by changes
	again    follow.Again // see find

	mu    sync.Mutex
	hooks map[string]*hook // changes with changes held too
}

// New goes on with the webhooks that the store has.
func New(ctx context.Context, o Options) (*Sender, error) {
	all, err := o.Store.Webhooks(ctx)
	if err != nil {
		return nil, fmt.Errorf("start webhooks: %w", err)
	}
	if o.Transport == nil {
		o.Transport = newTransport()
	}
	s := &Sender{o: o, hooks: map[string]*hook{}}
	s.client = &http.Client{
		Transport:     o.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.again.Read = s.Refresh
	s.delivers = o.Elected == nil
	for _, w := range all {
		s.begin(w)
	}
	if o.Elected != nil {
		s.work.Go(s.watch)
	}
	return s, nil
}

// Stop breaks deliveries off and waits for that. What was not answered is
// delivered when there is a sender again.
func (s *Sender) Stop() {
	s.stop()
	s.work.Wait()
}

// begin makes a webhook known, and delivers to it from now on if it is this server that
// does. The caller holds changes, or is alone.
func (s *Sender) begin(w store.Webhook) {
	h := &hook{w: w, changed: make(chan struct{}), end: func() {}}
	s.mu.Lock()
	s.hooks[w.ID] = h
	s.mu.Unlock()
	if s.delivers {
		s.deliverTo(h)
	}
}

// deliverTo puts a webhook to work. The caller holds changes, or is alone.
func (s *Sender) deliverTo(h *hook) {
	ctx, cancel := context.WithCancel(s.ctx)
	h.end = cancel
	s.work.Go(func() { s.run(ctx, h) })
}

// Bounds of what a webhook is.
const (
	maxName   = 256
	maxURL    = 2048
	maxSecret = 512
)

// Create makes a webhook. It gets what happens from now on.
func (s *Sender) Create(ctx context.Context, w store.Webhook) (store.Webhook, error) {
	if err := check(w); err != nil {
		return store.Webhook{}, err
	}
	last, err := s.o.Events.LastEvent(ctx)
	if err != nil {
		return store.Webhook{}, fmt.Errorf("create webhook: %w", err)
	}
	w.ID, w.CreatedAt, w.Cursor = strings.ToLower(rand.Text()), time.Now().UTC().Truncate(time.Microsecond), last
	w.Delivered, w.Dropped, w.Moves, w.Changes = 0, 0, 0, 0
	s.changes.Lock()
	defer s.changes.Unlock()
	if err := s.o.Store.PutWebhook(ctx, w); errdef.Is(err, errdef.Exhausted) {
		return store.Webhook{}, err
	} else if err != nil {
		return store.Webhook{}, fmt.Errorf("create webhook: %w", err)
	}
	s.begin(w)
	return w, nil
}

// check refuses what cannot be delivered to. No error has the URL in it, which
// may have a secret in it.
func check(w store.Webhook) error {
	invalid := func(format string, args ...any) error {
		return errdef.New(errdef.Invalid, "webhook_invalid", format, args...)
	}
	u, err := url.Parse(w.URL)
	switch {
	case w.Name == "" || len(w.Name) > maxName:
		return invalid("a webhook needs a name, of %d bytes at most", maxName)
	case len(w.URL) > maxURL || err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return invalid("a webhook needs a URL that begins with http:// or https:// and a host, of %d bytes at most", maxURL)
	case u.User != nil:
		return invalid("the URL of a webhook must have no user or password in it: it is shown to everybody who lists webhooks")
	case w.Secret == "" || len(w.Secret) > maxSecret:
		return invalid("a webhook needs a secret to sign with, of %d bytes at most", maxSecret)
	case len(w.Events) == 0:
		return invalid("a webhook needs the types of events that it is for")
	}
	return nil
}

// find returns a webhook, also one that another server has just made.
func (s *Sender) find(ctx context.Context, id string) (*hook, error) {
	look := func() *hook {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.hooks[id]
	}
	h := look()
	if h == nil && s.o.Elected != nil {
		if err := s.again.Now(ctx); err != nil {
			return nil, err
		}
		h = look()
	}
	if h == nil {
		return nil, store.ErrWebhookNotFound(id)
	}
	return h, nil
}

// all returns all webhooks, in no order.
func (s *Sender) all() []*hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.hooks))
}

// List returns all webhooks, oldest first.
func (s *Sender) List() []store.Webhook {
	hooks := s.all()
	all := make([]store.Webhook, 0, len(hooks))
	for _, h := range hooks {
		all = append(all, h.webhook())
	}
	slices.SortFunc(all, func(a, b store.Webhook) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Get returns a webhook.
func (s *Sender) Get(id string) (store.Webhook, error) {
	h, err := s.find(s.ctx, id)
	if err != nil {
		return store.Webhook{}, err
	}
	return h.webhook(), nil
}

// Change changes a webhook as a whole or not at all. One that fails is tried
// again at once. What happened while it was disabled it does not get, unless its
// cursor is put back.
func (s *Sender) Change(ctx context.Context, id string, change func(*store.Webhook)) (store.Webhook, error) {
	h, err := s.find(ctx, id)
	if err != nil {
		return store.Webhook{}, err
	}
	last, err := s.o.Events.LastEvent(ctx)
	if err != nil {
		return store.Webhook{}, fmt.Errorf("change webhook %s: %w", id, err)
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return store.Webhook{}, store.ErrWebhookNotFound(id)
	}
	w, err := s.o.Store.ChangeWebhook(ctx, id, func(w *store.Webhook) error {
		if s.delivers {
			h.ahead(w)
		}
		was := *w
		change(w)
		w.ID, w.CreatedAt, w.Moves, w.Changes = was.ID, was.CreatedAt, was.Moves, was.Changes
		if w.Enabled && !was.Enabled && w.Cursor == was.Cursor {
			w.Cursor = max(w.Cursor, last)
		}
		if w.Cursor != was.Cursor {
			w.Moves++
		}
		w.Changes++ // a server that delivers begins again, whatever was changed
		return check(*w)
	})
	switch {
	case errdef.Is(err, errdef.Invalid), errdef.Is(err, errdef.NotFound):
		return store.Webhook{}, err
	case err != nil:
		return store.Webhook{}, fmt.Errorf("change webhook %s: %w", id, err)
	}
	h.become(w)
	return w, nil
}

// Delete removes a webhook. A delivery under way is broken off.
func (s *Sender) Delete(ctx context.Context, id string) error {
	h, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	s.changes.Lock()
	defer s.changes.Unlock()
	if h.gone {
		return store.ErrWebhookNotFound(id)
	}
	err = s.o.Store.DeleteWebhook(ctx, id)
	if err == nil || errdef.Is(err, errdef.NotFound) { // another server has
		s.drop(h)
	}
	if err != nil {
		return fmt.Errorf("delete webhook %s: %w", id, err)
	}
	return nil
}

// drop forgets a webhook that is not stored any more. The caller holds changes.
func (s *Sender) drop(h *hook) {
	h.end()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
	h.version++ // what is under way must not go on
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hooks, h.w.ID)
}
