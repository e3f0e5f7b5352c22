package mitos

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/human"
)

const (
	// subprotocol must be chosen, or the SDK closes the connection.
	subprotocol = "connect.sandbox.v1"
	// maxInput bounds one message of the client.
	maxInput = 1 << 20
	// inputCost is how often it is in memory: as it came, decoded, and on its way.
	inputCost = 3
	// openPatience is how long its first message may take.
	openPatience = 30 * time.Second
	// sendPatience is how long a client may take to read a message.
	sendPatience = 30 * time.Second
	maxReason    = 120 // bytes of a reason to close
)

// line is a WebSocket with frames in its messages.
type line struct {
	ws   *websocket.Conn
	ctx  context.Context
	room *held.Share // for one message of the client
}

func (l line) send(message any) error { return l.write(frame(0, message)) }

func (l line) write(data []byte) error {
	ctx, cancel := context.WithTimeout(l.ctx, sendPatience)
	defer cancel()
	if err := l.ws.Write(ctx, websocket.MessageBinary, data); err != nil {
		return errGone
	}
	return nil
}

// receive returns what the next message says.
func (l line) receive(c *call) (map[string]body.Said, error) {
	l.room.Shrink(l.room.Has()) // the last one is with the guest
	kind, from, err := l.ws.Reader(l.ctx)
	if err != nil {
		return nil, errGone
	}
	data, err := held.ReadMessage(l.ctx, from, l.room, maxInput, inputCost, sendPatience)
	if errors.Is(err, held.ErrNoRoom) {
		return nil, errdef.New(errdef.Exhausted, "too_many_bodies", "%s", err).WithRemedy("connect again")
	}
	if err != nil {
		return nil, errGone
	}
	if kind != websocket.MessageBinary || len(data) < frameHead || int64(binary.BigEndian.Uint32(data[1:])) != int64(len(data)-frameHead) {
		return nil, body.Invalid("a message of the terminal is not one binary frame")
	}
	if err := checkFlags(data[0]); err != nil {
		return nil, err
	}
	return c.read(data[frameHead:], terminalBody)
}

// terminal runs a shell on a terminal, until it ends or the client goes.
func terminal(s *server, c *call) error {
	if n := len(c.r.URL.Query()[querySandbox]); n > 1 {
		return body.Invalid("the request names %d sandboxes", n).WithRemedy("name one")
	}
	who := held.From(c.r, c.key.ID)
	leave, err := s.Room.Session(who)
	if err != nil {
		return err
	}
	defer leave()
	room := s.Room.Lasting(who)
	defer room.Free()
	// The key in the header is what lets a page in; its origin proves nothing.
	ws, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, InsecureSkipVerify: true})
	if err != nil {
		c.log.Debug("no WebSocket", "err", err)
		return nil // it has been answered
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxInput)
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	l := line{ws, ctx, room}
	end, err := s.shell(c, l, cancel)
	if err != nil {
		s.hangUp(c, line{ws, c.ctx, room}, err) // that of l may be over
		return nil
	}
	if l.write(frame(flagEnd, exited{end})) == nil {
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}
	return nil
}

// hangUp tells the client why its terminal ends: a code for a sandbox that was put to
// sleep or ended says that it may connect again.
func (s *server) hangUp(c *call, l line, err error) {
	p := c.problem(err)
	if errors.Is(err, errGone) {
		return
	}
	_ = l.write(frame(flagEnd, map[string]rpcError{"error": {p.code, p.text()}}))
	status := websocket.StatusInternalError
	switch e, _ := asError(err); {
	case e != nil && e.Class == errdef.Invalid:
		status = websocket.StatusPolicyViolation
	case e != nil && (e.Class == errdef.Unavailable || e.Class == errdef.NotFound || e.Class == errdef.WrongState):
		status = websocket.StatusServiceRestart
	}
	_ = l.ws.Close(status, human.Line(p.Message, maxReason))
}

// shell runs it. cancel ends what reads from the client.
func (s *server) shell(c *call, l line, cancel context.CancelFunc) (exit, error) {
	opening, stop := context.WithTimeout(l.ctx, openPatience)
	words, err := line{l.ws, opening, l.room}.receive(c)
	stop()
	if err != nil {
		return exit{}, err
	}
	cols, hasCols := words["open.pty.size.cols"]
	rows, hasRows := words["open.pty.size.rows"]
	if !hasCols || !hasRows || len(words) != 2 {
		return exit{}, body.Invalid("the first message of a terminal must have its size").WithRemedy(`send {"open": {"pty": {"size": {"cols": 80, "rows": 24}}}}`)
	}
	r := running{guest: s.guest(c).Guest}
	err = r.start(l.ctx, &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", loginShell}, Envs: map[string]string{"TERM": "xterm-256color"}},
		Pty:     &processpb.PTY{Size: size(cols.Value.(int), rows.Value.(int))},
	})
	if err != nil {
		return exit{}, err
	}
	wrong := make(chan error, 1)
	go func() {
		wrong <- r.feed(c, l)
		cancel()
	}()
	end, err := r.follow(l)
	if err == nil {
		return end, nil
	}
	if l.ctx.Err() != nil { // the client has gone, or sent what cannot be
		r.kill(c.ctx)
		select {
		case bad := <-wrong:
			return exit{}, bad
		default:
		}
	}
	return exit{}, err
}

// loginShell takes bash where there is one.
const loginShell = `command -v bash >/dev/null && exec bash -il; exec sh -i`

func size(cols, rows int) *processpb.PTY_Size {
	return &processpb.PTY_Size{Cols: uint32(max(cols, 1)), Rows: uint32(max(rows, 1))}
}

// feed passes on what the client types, until it goes.
func (r *running) feed(c *call, l line) error {
	processes := r.guest.Processes()
	for {
		words, err := l.receive(c)
		if err != nil {
			return err
		}
		input, types := words["stdin"]
		cols, resizes := words["resize.cols"]
		rows, too := words["resize.rows"]
		switch {
		case types && len(words) == 1:
			_, err = processes.SendInput(l.ctx, connect.NewRequest(&processpb.SendInputRequest{
				Process: r.selector(), Input: &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: input.Value.([]byte)}},
			}))
		case resizes && too && len(words) == 2:
			_, err = processes.Update(l.ctx, connect.NewRequest(&processpb.UpdateRequest{
				Process: r.selector(), Pty: &processpb.PTY{Size: size(cols.Value.(int), rows.Value.(int))},
			}))
		default:
			return body.Invalid("a message of the terminal must have stdin, or the cols and rows of resize")
		}
		if err != nil {
			return err
		}
	}
}
