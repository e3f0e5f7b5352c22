package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/held"
)

const (
	// subprotocol is what the terminal's WebSocket speaks; the token goes beside it,
	// because a page can set no header of a WebSocket.
	subprotocol = "drowse-terminal"
	tokenPrefix = "token."

	maxTyped   = 1 << 20
	typeTime   = 30 * time.Second // for the first message, and to send one
	hangUpTime = 5 * time.Second
	maxSize    = 1000 // columns or rows
)

type terminalData struct {
	Head head
	Has  bool // this build has a terminal
}

// terminalPage opens nothing by itself: a shell would wake the sandbox.
func terminalPage(v *visit) error {
	_, h, err := v.open1("terminal")
	if err != nil {
		return err
	}
	s := screen{Title: "Terminal of " + cmp.Or(h.Name(), h.ID), Section: "fleet"}
	_, has := assets()["xterm.js"]
	s.Data = terminalData{Head: h, Has: has}
	if has {
		s.Scripts, s.Sheets = []string{"xterm.js", "addon-fit.js", "terminal.js"}, []string{"xterm.css"}
	}
	v.render(http.StatusOK, "terminal", s)
	return nil
}

// socketToken returns the token that a WebSocket carries.
func socketToken(r *http.Request) string {
	for _, offer := range strings.Split(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
		if token, ok := strings.CutPrefix(strings.TrimSpace(offer), tokenPrefix); ok {
			return token
		}
	}
	return ""
}

// fromTerminal is a message of the page: its size, and at first the shell that it had.
type fromTerminal struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
	PID  int `json:"pid,omitempty"`
}

func (m fromTerminal) size() client.Size {
	return client.Size{Cols: min(max(m.Cols, 2), maxSize), Rows: min(max(m.Rows, 2), maxSize)}
}

// toTerminal tells the page what became of its shell.
type toTerminal struct {
	PID    int    `json:"pid,omitempty"`   // it runs
	Again  bool   `json:"again,omitempty"` // it is the one that the page had before
	Slept  bool   `json:"slept,omitempty"` // it is asleep with its sandbox, and can be had again
	Ended  string `json:"ended,omitempty"`
	Reason string `json:"reason,omitempty"` // why there is none
	Step   string `json:"step,omitempty"`
}

// line is the WebSocket to a page.
type line struct {
	ws   *websocket.Conn
	ctx  context.Context
	room *held.Share // for what is typed, until the guest has it
}

// typing is the input of a terminal.
type typing struct {
	io.Reader
	room *held.Share
}

// Taken is for the client.
func (t typing) Taken(n int) { t.room.Shrink(n) }

// Write implements io.Writer.
func (l line) Write(p []byte) (int, error) {
	ctx, cancel := context.WithTimeout(l.ctx, typeTime)
	defer cancel()
	return len(p), l.ws.Write(ctx, websocket.MessageBinary, p)
}

func (l line) tell(m toTerminal) {
	b, err := json.Marshal(m)
	if err != nil {
		panic("internal error: ui: " + err.Error())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), hangUpTime)
	defer cancel()
	_ = l.ws.Write(ctx, websocket.MessageText, b)
}

// terminal runs a shell for a page, which ends with the page.
func terminal(v *visit) error {
	if v.session.holder.Role == client.RoleRead {
		return errLookOnly
	}
	a, err := v.api()
	if err != nil {
		return err
	}
	who := held.From(v.r, v.session.holder.ID)
	leave, err := v.s.Room.Session(who)
	if err != nil {
		return err
	}
	defer leave()
	room := v.s.Room.Lasting(who)
	defer room.Free()
	// The library refuses other origins.
	ws, err := websocket.Accept(v.w, v.r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return nil // it has been answered
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer ws.CloseNow()
	ws.SetReadLimit(maxTyped)
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(v.session.ctx, cancel)()
	l := line{ws, ctx, room}
	// An end of ctx closes the WebSocket, so nothing ends it before the last message.
	l.tell(v.shell(a, l, func(p *client.Process, keys io.Writer) {
		reading.Go(func() { l.follow(p, keys, v.session.use); cancel() })
	}))
	_ = ws.Close(websocket.StatusNormalClosure, "")
	return nil
}

// shell runs a shell and returns what became of it. Once it runs, follow passes on
// what is typed, and ends l.ctx when the page has gone.
func (v *visit) shell(a api, l line, follow func(*client.Process, io.Writer)) toTerminal {
	var first fromTerminal
	opening, cancel := context.WithTimeout(l.ctx, typeTime)
	kind, text, err := l.ws.Read(opening)
	cancel()
	if err != nil || kind != websocket.MessageText || json.Unmarshal(text, &first) != nil {
		return toTerminal{Reason: "the terminal did not say its size"}
	}
	failed := func(err error) toTerminal {
		p := v.problemOf(err)
		return toTerminal{Reason: p.Message, Step: p.Step}
	}
	sb, _, err := a.Open(l.ctx, v.r.PathValue("id"))
	if err != nil {
		return failed(err)
	}
	typed, keys := io.Pipe()
	defer typed.Close()
	size := first.size()
	cmd := client.Command{Stdin: typing{typed, l.room}, Stdout: l, Terminal: &size}
	var p *client.Process
	if first.PID > 0 {
		if p, err = sb.Attach(l.ctx, first.PID, cmd); err != nil && !errors.Is(err, client.ErrNotFound) {
			return failed(err)
		}
	}
	again := p != nil
	if !again {
		if p, err = sb.Shell(l.ctx, cmd); err != nil {
			return failed(err)
		}
	}
	l.tell(toTerminal{PID: p.PID(), Again: again})
	if again {
		_ = p.Resize(l.ctx, size)
	}
	follow(p, keys)
	exit, err := p.Wait()
	switch {
	case errors.Is(err, client.ErrInterrupted): // a signal would wake it
		return toTerminal{Slept: true, PID: p.PID()}
	case l.ctx.Err() != nil:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), hangUpTime)
		defer cancel()
		_ = p.Kill(ctx)
		return toTerminal{Reason: "the terminal was closed"}
	case err != nil:
		return failed(err)
	}
	return toTerminal{Ended: cmp.Or(exit.Reason, exit.Status)}
}

// follow passes on what the page sends, until it goes. Each key is use of the session.
func (l line) follow(p *client.Process, keys io.Writer, use func()) {
	for {
		kind, from, err := l.ws.Reader(l.ctx)
		if err != nil {
			return
		}
		data, err := held.ReadMessage(l.ctx, from, l.room, maxTyped, 1, typeTime)
		if err != nil {
			return
		}
		var m fromTerminal
		switch {
		case kind == websocket.MessageBinary:
			use()
			if _, err := keys.Write(data); err != nil {
				return
			}
			l.room.Shrink(cap(data) - len(data)) // the rest once the guest has it
		case json.Unmarshal(data, &m) == nil:
			_ = p.Resize(l.ctx, m.size()) // the next change tries again
			fallthrough
		default:
			l.room.Shrink(cap(data))
		}
	}
}
