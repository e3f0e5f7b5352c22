package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
)

// watches are all that there are, and those of them that are polled.
type watches struct {
	open atomic.Int64
	dirs atomic.Int64

	mu     sync.Mutex
	polled map[string]*watcher
}

func newWatches() *watches { return &watches{polled: map[string]*watcher{}} }

// watchRequest is what WatchDir and CreateWatcher are both asked.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// arm returns a watch that is armed. Who gets one closes it.
func (s filesystemService) arm(ctx context.Context, req watchRequest) (*watch, error) {
	root, _, err := s.resolve(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, pathFault(root, err)
	}
	if !info.IsDir() {
		return nil, faultf(invalid, "path '%s' is not a directory", root)
	}
	if network, err := isNetworkMount(root); err != nil {
		return nil, pathFault(root, err)
	} else if network && !req.GetAllowNetworkMounts() {
		return nil, faultf(invalid, "path '%s' is on a network mount, where not all changes can be seen", root)
	}
	all := s.agent.watches
	if all.open.Add(1) > maxWatches {
		all.open.Add(-1)
		return nil, faultf(exhausted, "there are %d watches already", maxWatches)
	}
	w, err := newWatch(root, req.GetRecursive(), &all.dirs)
	if err != nil {
		all.open.Add(-1)
	}
	return w, err
}

// disarm ends a watch and waits for it.
func (all *watches) disarm(w *watch) {
	w.stop()
	<-w.done
	all.open.Add(-1)
}

// namesFresh is how long the names of users are used for the entries of events
// before they are read again.
const namesFresh = time.Second

// events returns what makes events of changes. It is for one goroutine.
func (s filesystemService) events(w *watch, includeEntry bool) func(name string, kind fspb.EventType) *fspb.FilesystemEvent {
	var names *accounts
	var read time.Time
	return func(name string, kind fspb.EventType) *fspb.FilesystemEvent {
		e := &fspb.FilesystemEvent{Name: wireText(name), Type: kind}
		gone := kind == fspb.EventType_EVENT_TYPE_REMOVE || kind == fspb.EventType_EVENT_TYPE_RENAME
		if !includeEntry || gone {
			return e
		}
		if time.Since(read) > namesFresh {
			names, read = s.agent.accounts(), time.Now()
		}
		if entry, err := names.describe(filepath.Join(w.root, name)); err == nil {
			e.Entry = entry
		}
		return e
	}
}

// eventSize is about what an event takes while it waits.
func eventSize(e *fspb.FilesystemEvent) int {
	size := eventCost + len(e.Name)
	if e.Entry != nil {
		size += eventCost + 2*len(e.Entry.Path)
	}
	return size
}

func (s filesystemService) WatchDir(ctx context.Context, req *connect.Request[fspb.WatchDirRequest], stream *connect.ServerStream[fspb.WatchDirResponse]) error {
	w, err := s.arm(ctx, req.Msg)
	if err != nil {
		return rpcError(err)
	}
	sub := newSubscriber[*fspb.FilesystemEvent]()
	sub.interruptWith(writeInterrupt(ctx))
	event := s.events(w, req.Msg.GetIncludeEntry())
	go w.run(func(name string, kind fspb.EventType) {
		e := event(name, kind)
		sub.push(e, eventSize(e))
	})
	defer s.agent.watches.disarm(w)
	defer sub.leave(false)
	return relay(ctx, w, sub, keepalive(req.Header()), stream.Send)
}

// relay sends start and then what sub receives, for as long as somebody reads.
func relay(ctx context.Context, w *watch, sub *subscriber[*fspb.FilesystemEvent], interval time.Duration, send func(*fspb.WatchDirResponse) error) error {
	if err := send(&fspb.WatchDirResponse{Event: &fspb.WatchDirResponse_Start{Start: &fspb.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	idle := time.NewTimer(interval)
	defer idle.Stop()
	for {
		message := &fspb.WatchDirResponse{Event: &fspb.WatchDirResponse_Keepalive{Keepalive: &fspb.WatchDirResponse_KeepAlive{}}}
		if e := sub.take(); e != nil {
			message.Event = &fspb.WatchDirResponse_Filesystem{Filesystem: e}
		} else if due, err := awaitEvent(ctx, w, sub, idle.C); err != nil {
			return err
		} else if !due {
			continue
		}
		if err := send(message); err != nil {
			return err
		}
		idle.Reset(interval)
	}
}

// awaitEvent waits until there may be an event to take, or a keepalive is due.
func awaitEvent(ctx context.Context, w *watch, sub *subscriber[*fspb.FilesystemEvent], idle <-chan time.Time) (due bool, err error) {
	select {
	case <-sub.ready:
		return false, nil
	case <-idle:
		return true, nil
	case <-sub.gone:
		return false, connect.NewError(connect.CodeResourceExhausted, errors.New("the events were not read for "+stallLimit.String()+" and the stream was cut"))
	case <-w.done:
		select {
		case <-sub.ready: // what came before the end
			return false, nil
		default:
			return false, rpcError(w.err)
		}
	case <-ctx.Done():
		return false, contextError(ctx)
	}
}

// watcherIdle is how long a watcher lives that nobody asks, in time awake.
const watcherIdle = time.Hour

// watcher keeps the events of a watch for a client that polls.
type watcher struct {
	watch  *watch
	events *subscriber[*fspb.FilesystemEvent]
	lost   atomic.Bool // an event found no room: nothing is kept until the client knows
	expiry *awakeTimer // guarded by watches.mu
}

func (w *watcher) keep(e *fspb.FilesystemEvent) {
	if !w.lost.Load() && w.events.tryPush(e, eventSize(e)) != nil {
		w.lost.Store(true)
	}
}

// drain returns the events that were kept or, after the last of them, why
// there are no more.
func (w *watcher) drain() ([]*fspb.FilesystemEvent, error) {
	var events []*fspb.FilesystemEvent
	for e := w.events.take(); e != nil; e = w.events.take() {
		events = append(events, e)
	}
	if len(events) > 0 {
		return events, nil
	}
	if w.lost.Swap(false) {
		return nil, errEventsLost
	}
	select {
	case <-w.watch.done:
		return nil, w.watch.err
	default:
		return nil, nil
	}
}

func (s filesystemService) CreateWatcher(ctx context.Context, req *connect.Request[fspb.CreateWatcherRequest]) (*connect.Response[fspb.CreateWatcherResponse], error) {
	armed, err := s.arm(ctx, req.Msg)
	if err != nil {
		return nil, rpcError(err)
	}
	w := &watcher{watch: armed, events: newSubscriber[*fspb.FilesystemEvent]()}
	event := s.events(armed, req.Msg.GetIncludeEntry())
	go armed.run(func(name string, kind fspb.EventType) { w.keep(event(name, kind)) })
	id := rand.Text()
	s.agent.watches.add(id, w)
	return connect.NewResponse(&fspb.CreateWatcherResponse{WatcherId: id}), nil
}

func (s filesystemService) GetWatcherEvents(_ context.Context, req *connect.Request[fspb.GetWatcherEventsRequest]) (*connect.Response[fspb.GetWatcherEventsResponse], error) {
	w, err := s.agent.watches.find(req.Msg.GetWatcherId())
	if err != nil {
		return nil, rpcError(err)
	}
	events, err := w.drain()
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&fspb.GetWatcherEventsResponse{Events: events}), nil
}

func (s filesystemService) RemoveWatcher(_ context.Context, req *connect.Request[fspb.RemoveWatcherRequest]) (*connect.Response[fspb.RemoveWatcherResponse], error) {
	if !s.agent.watches.remove(req.Msg.GetWatcherId()) {
		return nil, rpcError(noWatcher(req.Msg.GetWatcherId()))
	}
	return connect.NewResponse(&fspb.RemoveWatcherResponse{}), nil
}

func noWatcher(id string) error {
	return faultf(notFound, "watcher '%.40s' does not exist; one that is not asked for %s is removed", wireText(id), watcherIdle)
}

func (all *watches) add(id string, w *watcher) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.polled[id] = w
	all.renew(id, w)
}

// find returns a watcher, and gives it more time.
func (all *watches) find(id string) (*watcher, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	w := all.polled[id]
	if w == nil {
		return nil, noWatcher(id)
	}
	w.expiry.stop()
	all.renew(id, w)
	return w, nil
}

// renew is called with mu held.
func (all *watches) renew(id string, w *watcher) {
	w.expiry = afterAwake(watcherIdle, func() { all.remove(id) })
}

// remove reports whether there was such a watcher.
func (all *watches) remove(id string) bool {
	all.mu.Lock()
	w := all.polled[id]
	delete(all.polled, id)
	all.mu.Unlock()
	if w == nil {
		return false
	}
	w.expiry.stop()
	all.disarm(w.watch)
	return true
}
