package sandbox0

import (
	"context"
	"crypto/rand"
	"path"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/internal/api/guest"
)

// maxWatches is how many directories one WebSocket may watch.
const maxWatches = 32

// maxPath is the longest path that Linux knows. A watch keeps its own.
const maxPath = 4096

// watchRequest is what a client says.
type watchRequest struct {
	Action    string `json:"action"`
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	WatchID   string `json:"watch_id"`
}

// watchMessage is what it hears.
type watchMessage struct {
	Type    string `json:"type"`
	WatchID string `json:"watch_id,omitempty"`
	Event   string `json:"event,omitempty"`
	Path    string `json:"path,omitempty"`
	Error   string `json:"error,omitempty"`
}

// eventNames are the agent's kinds of events as clients call them.
var eventNames = map[filesystem.EventType]string{
	filesystem.EventType_EVENT_TYPE_CREATE: "create", filesystem.EventType_EVENT_TYPE_WRITE: "write",
	filesystem.EventType_EVENT_TYPE_REMOVE: "remove", filesystem.EventType_EVENT_TYPE_RENAME: "rename",
	filesystem.EventType_EVENT_TYPE_CHMOD: "chmod",
}

// watchFiles tells of changes in directories of a sandbox.
func watchFiles(s *server, c *call) (reply, error) {
	g, err := s.enter(c)
	if err != nil {
		return reply{}, err
	}
	return s.serveSocket(c, func(k socket) {
		ctx, cancel := context.WithCancel(k.ctx)
		ws := &watches{k: k, ctx: ctx, guest: g, of: map[string]context.CancelFunc{}}
		defer ws.running.Wait()
		defer cancel()
		ws.serve()
	})
}

// watches are those of one WebSocket.
type watches struct {
	k       socket
	ctx     context.Context
	guest   guest.Guest
	running sync.WaitGroup

	mu sync.Mutex
	of map[string]context.CancelFunc // by id
}

func (ws *watches) serve() {
	for {
		var m watchRequest
		done, err := ws.k.receive(&m)
		if done == nil {
			return
		}
		switch {
		case err != nil:
			_ = ws.k.send(watchMessage{Type: "error", Error: err.Error()})
		case m.Action == "subscribe":
			ws.subscribe(m)
		case m.Action == "unsubscribe":
			ws.unsubscribe(m)
		default:
			_ = ws.k.send(watchMessage{Type: "error", Error: `"action" must be subscribe or unsubscribe`})
		}
		done()
	}
}

func (ws *watches) unsubscribe(m watchRequest) {
	ws.mu.Lock()
	end := ws.of[m.WatchID]
	delete(ws.of, m.WatchID)
	ws.mu.Unlock()
	if end == nil {
		_ = ws.k.send(watchMessage{Type: "error", WatchID: m.WatchID, Error: "this connection has no such watch"})
		return
	}
	end()
	_ = ws.k.send(watchMessage{Type: "unsubscribed", WatchID: m.WatchID})
}

// subscribe answers when the watch is armed: what changes afterwards is told.
func (ws *watches) subscribe(m watchRequest) {
	if m.Path == "" || len(m.Path) > maxPath || strings.Contains(m.Path, "\x00") {
		_ = ws.k.send(watchMessage{Type: "error", Error: `"path" is no path`})
		return
	}
	ws.mu.Lock()
	full := len(ws.of) >= maxWatches
	ws.mu.Unlock()
	if full {
		_ = ws.k.send(watchMessage{Type: "error", Error: "this connection has as many watches as it may have: unsubscribe one"})
		return
	}
	ctx, cancel := context.WithCancel(ws.ctx)
	stream, err := ws.guest.Files().WatchDir(ctx, connect.NewRequest(&filesystem.WatchDirRequest{Path: m.Path, Recursive: m.Recursive}))
	if err == nil && !stream.Receive() {
		err = stream.Err()
		stream.Close()
		if err == nil {
			err = guest.ErrBroken
		}
	}
	if err != nil {
		cancel()
		_ = ws.k.send(watchMessage{Type: "error", Path: m.Path, Error: messageOf(fileError(err, codeDirNotFound, codeNotDirectory))})
		return
	}
	id := "watch-" + strings.ToLower(rand.Text()[:12])
	ws.mu.Lock()
	ws.of[id] = cancel
	ws.mu.Unlock()
	if ws.k.send(watchMessage{Type: "subscribed", WatchID: id, Path: m.Path}) != nil {
		cancel()
	}
	ws.running.Go(func() {
		defer cancel()
		defer stream.Close()
		for stream.Receive() {
			e := stream.Msg().GetFilesystem()
			if e == nil {
				continue // it says that it lives
			}
			if ws.k.send(watchMessage{Type: "event", WatchID: id, Event: eventNames[e.GetType()], Path: path.Join(m.Path, e.GetName())}) != nil {
				return
			}
		}
		if ctx.Err() == nil { // the sandbox sleeps, or has ended
			_ = ws.k.conn.Close(websocket.StatusServiceRestart, shortReason(messageOf(stream.Err())))
		}
	})
}
