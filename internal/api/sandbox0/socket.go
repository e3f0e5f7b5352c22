package sandbox0

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
)

// Bounds of WebSockets.
const (
	maxSocketMessage = 1 << 20
	socketPing       = 30 * time.Second
	socketPatience   = 30 * time.Second // for one message to go out
)

// socket is a client's WebSocket. What waits for it, or for the guest to take it,
// counts in room.
type socket struct {
	conn *websocket.Conn
	ctx  context.Context
	room *held.Share
}

// serveSocket answers with a WebSocket, which ends with talk, with the client or
// with its API key.
func (s *server) serveSocket(c *call, talk func(socket)) (reply, error) {
	if c.r.Header.Get("Upgrade") == "" {
		return reply{}, fail(http.StatusUpgradeRequired, codeInvalid, "this endpoint is a WebSocket: send an upgrade request")
	}
	who := held.From(c.r, c.key.ID)
	leave, err := s.Room.Session(who)
	if err != nil {
		return reply{}, err
	}
	return reply{Stream: func(w http.ResponseWriter) {
		defer leave()
		// A page of any origin may come: what counts is the key.
		conn, err := websocket.Accept(w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return // it was answered
		}
		defer conn.CloseNow()
		conn.SetReadLimit(maxSocketMessage)
		ctx, cancel := s.Auth.Bind(c.r.Context(), c.key.ID)
		defer cancel()
		k := socket{conn, ctx, s.Room.Lasting(who)}
		defer k.room.Free()
		go k.ping()
		talk(k)
	}}, nil
}

// ping finds clients that have gone without a word.
func (k socket) ping() {
	tick := time.NewTicker(socketPing)
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(k.ctx, socketPatience)
			err := k.conn.Ping(ctx)
			cancel()
			if err != nil {
				k.conn.CloseNow()
				return
			}
		}
	}
}

func (k socket) send(message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(k.ctx, socketPatience)
	defer cancel()
	return k.conn.Write(ctx, websocket.MessageText, data)
}

// messageCost is how often a message is in memory: as it came, and as what it says.
const messageCost = 2

// receive reads a message; what is no JSON object is an error of the client. The
// message counts until done is called. While there is no room for it, nothing more is
// read, and after some time the connection ends.
func (k socket) receive(into any) (done func(), err error) {
	_, from, err := k.conn.Reader(k.ctx)
	if err != nil {
		return nil, err
	}
	data, err := held.ReadMessage(k.ctx, from, k.room, maxSocketMessage, messageCost, socketPatience)
	if errors.Is(err, held.ErrNoRoom) {
		_ = k.conn.Close(websocket.StatusTryAgainLater, err.Error())
	}
	done = func() { k.room.Shrink(messageCost * cap(data)) }
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(data, into) != nil {
		return done, errBadMessage
	}
	return done, nil
}

var errBadMessage = errors.New("the message is no JSON object of the form that this endpoint knows")

// clientMessage is what a client says to a context.
type clientMessage struct {
	Type      string          `json:"type"`
	Data      string          `json:"data"`
	RequestID string          `json:"request_id"`
	Rows      uint32          `json:"rows"`
	Cols      uint32          `json:"cols"`
	Signal    json.RawMessage `json:"signal"`
}

type outputMessage struct {
	Type   string `json:"type"`
	Source string `json:"source"`
	Data   string `json:"data"`
}

type doneMessage struct {
	Type      string `json:"type"`
	RequestID string `json:"request_id,omitempty"`
	Exit      *int32 `json:"exit_code,omitempty"`
	State     string `json:"state,omitempty"`
}

type errorMessage struct {
	Type      string `json:"type"`
	Error     string `json:"error"`
	RequestID string `json:"request_id,omitempty"`
}

// contextSocket passes on what a context prints from its beginning, and takes its
// input.
func (s *server) contextSocket(c *call) (reply, error) {
	g, found, err := s.context(c)
	if err != nil {
		return reply{}, err
	}
	return s.serveSocket(c, func(k socket) {
		ctx, cancel := context.WithCancel(k.ctx)
		defer cancel()
		k.ctx = ctx
		heard := make(chan struct{})
		r, before := found.out.follow(k.ctx, k.room)
		defer found.out.leave(r)
		go func() {
			defer close(heard)
			defer cancel()
			s.contexts.hear(k, g, found, r)
		}()
		k.tell(found, r, before)
		cancel()
		<-heard
	})
}

// hear carries out what a client says, until it has gone.
// The end of an input goes to the client by its reader, behind all output of it.
func (cs *contexts) hear(k socket, g guest.Guest, c *codeContext, r *reader) {
	ctx, cancel := context.WithCancel(k.ctx)
	inputs := make(chan input, maxCells)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range inputs {
			_, err := cs.evaluate(ctx, g, c, m.Data, evaluation{lines: k.room})
			m.done()
			if err != nil && ctx.Err() == nil {
				_ = k.send(errorMessage{"error", messageOf(err), m.RequestID})
			}
			select {
			case r.chunks <- chunk{done: &doneMessage{Type: "done", RequestID: m.RequestID}}:
			case <-ctx.Done():
			}
		}
	}()
	defer func() { cancel(); close(inputs); <-done }() // the code of a client that has gone is interrupted
	for {
		var m clientMessage
		done, err := k.receive(&m)
		if done == nil {
			return
		}
		queued := false
		if err == nil {
			queued, err = c.obey(k.ctx, g, input{m, done}, inputs)
		}
		if !queued {
			done()
		}
		if err != nil && k.ctx.Err() == nil {
			_ = k.send(errorMessage{"error", messageOf(err), m.RequestID})
		}
	}
}

// input is a message that waits for the guest. Done counts it as taken.
type input struct {
	clientMessage
	done func()
}

// obey carries out one message, or queues it.
func (c *codeContext) obey(ctx context.Context, g guest.Guest, m input, inputs chan<- input) (queued bool, err error) {
	switch m.Type {
	case "input":
		if c.kind != repl {
			return false, c.input(ctx, g, m.Data)
		}
		select {
		case inputs <- m:
			return true, nil
		default:
			return false, fail(http.StatusConflict, codeBufferFull, "this connection has %d inputs under way: wait for one to end", maxCells)
		}
	case "resize":
		if m.Rows < 1 || m.Cols < 1 || m.Rows > maxTerminal || m.Cols > maxTerminal {
			return false, fail(http.StatusBadRequest, codeInvalid, "rows and cols must be from 1 to %d", maxTerminal)
		}
		return false, c.resize(ctx, g, m.Rows, m.Cols)
	case "signal":
		name, err := asSignal.Read("signal", m.Signal)
		if err != nil {
			return false, err
		}
		text, _ := name.(string)
		number, err := signalNumber(text)
		if err != nil {
			return false, err
		}
		return false, c.signal(ctx, g, number)
	}
	return false, fail(http.StatusBadRequest, codeInvalid, "a message has the type input, resize or signal, not %.40q", m.Type)
}

// tell sends what a context prints, and its end.
func (k socket) tell(c *codeContext, r *reader, before []chunk) {
	send := func(o chunk) bool {
		defer r.taken(o)
		if o.done != nil {
			return k.send(o.done) == nil
		}
		return k.send(outputMessage{"output", o.source, o.data}) == nil
	}
	for _, o := range before {
		if !send(o) {
			return
		}
	}
	c.mu.Lock()
	current := c.run
	var left chan struct{}
	if current != nil {
		left = current.left
	}
	c.mu.Unlock()
	for {
		select {
		case o := <-r.chunks:
			if !send(o) {
				return
			}
		case <-r.lost:
			_ = k.conn.Close(websocket.StatusPolicyViolation, "the output was not read, or the context was deleted")
			return
		case <-k.ctx.Done():
			return
		case <-left:
			for len(r.chunks) > 0 {
				if !send(<-r.chunks) {
					return
				}
			}
			k.tellEnd(c, current)
			return
		}
	}
}

// tellEnd says how a process ended, or why nobody knows.
func (k socket) tellEnd(c *codeContext, r *run) {
	c.mu.Lock()
	ended, exit, state, broken := r.ended(), r.exit, r.state, r.broken
	c.mu.Unlock()
	if !ended {
		// As at the edge: the service restarts, and the client may come again.
		_ = k.conn.Close(websocket.StatusServiceRestart, shortReason(messageOf(broken)))
		return
	}
	_ = k.send(doneMessage{Type: "done", Exit: exit, State: state})
	_ = k.conn.Close(websocket.StatusNormalClosure, "")
}

// messageOf returns an error as a client may see it.
func messageOf(err error) string {
	err = agentError(err)
	if e, ok := errors.AsType[*errdef.Error](err); ok {
		return e.Error()
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.message
	}
	return "the connection to the sandbox broke"
}

// shortReason cuts a text to what a close frame can have.
func shortReason(text string) string {
	const most = 120
	if len(text) > most {
		text = text[:most]
	}
	return string([]rune(text))
}
