// Package ui is the dashboard: pages at /ui that show and change sandboxes, for
// people with a browser.
//
// It is a client of the server like any other. Each person signs in with an API
// key, and everything a page shows or does goes through the public API in the
// name of that key, over a connection within the process. So a page can do no
// more than its key, and a look at it is no activity: a page reads the control
// plane alone until somebody opens a terminal or a directory.
//
// # What a browser is trusted with
//
// A session is a random cookie: of this host alone, below /ui, out of reach of
// scripts, and never sent along from another site. The server keeps it in memory
// and ends it with its key, after twelve hours, or at sign-out.
//
// Pages of sandboxes can have the same origin: preview links by path. Such a page
// must not read or change anything here, so a request counts only if the browser
// says that a person navigates to a page (Sec-Fetch-Dest: document), or if it
// carries the session's token, which is in our pages alone. Browsers say where a
// request comes from on HTTPS and on localhost only; elsewhere there is no
// dashboard. No page can be framed, cached, or reached from the window that
// opened it.
//
// All text of sandboxes and keys is hostile: html/template escapes it, scripts put
// it into the page as text, and the policy of each page runs no script but ours.
package ui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
)

// Path is where the dashboard is.
const Path = "/ui"

// Cookies are the names that a session's cookie may have, with and without TLS.
// They are for this package alone: no sandbox may get them.
var Cookies = []string{cookieName, secureCookieName}

// Holder is whose API key somebody has signed in with.
type Holder struct {
	ID, Name, Mask string
	Role           client.Role
}

// Keys are the API keys of the server.
type Keys interface {
	// Check returns whose key a text is. The error is for people.
	Check(text string) (Holder, error)
	// Lend returns a text that is as good as the key of that id until ctx ends.
	Lend(ctx context.Context, id string) string
	// Bind returns a context that ends with ctx, or when the key of that id does.
	Bind(ctx context.Context, id string) (context.Context, context.CancelFunc)
}

// Options are what a dashboard is made of.
type Options struct {
	Keys Keys
	// Connect returns a connection to the server from within the process, on
	// behalf of the client at an address.
	Connect func(client net.Addr) (net.Conn, error)
	Room    *held.Room // where terminals count; nil for one of its own
	// Log receives who signs in, and failures of the dashboard. Nil discards.
	Log *slog.Logger
}

// server is the handler.
type server struct {
	Options
	base     context.Context // of all sessions
	mux      *http.ServeMux
	sessions sessions
	links    links
}

// New returns the handler of everything below [Path]. Sessions end with ctx.
func New(ctx context.Context, o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Room == nil {
		o.Room = held.New()
	}
	s := &server{Options: o, base: ctx, mux: http.NewServeMux()}
	for _, r := range routes() {
		s.mux.Handle(r.pattern, s.serve(r))
	}
	return s
}

// Owns reports whether a request is for the dashboard, by its path alone.
func Owns(r *http.Request) bool {
	return r.URL.Path == Path || strings.HasPrefix(r.URL.Path, Path+"/")
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == Path {
		http.Redirect(w, r, Path+"/", http.StatusMovedPermanently)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// door says who may come through to a handler.
type door int

const (
	public   door = iota // anybody, any way: what is the same for all
	stranger             // anybody in front of a browser: to sign in
	page                 // who has signed in, by navigating or with the token
	change               // who has signed in, with the token
	data                 // the same, and what goes wrong is told to a script
	socket               // the same, for a WebSocket
	program              // who has an API key, without a browser
)

// route is one address of the dashboard.
type route struct {
	pattern string
	door    door
	handle  func(*visit) error
}

func routes() []route {
	return []route{
		{"GET /ui/static/{name}", public, static},
		{"POST /ui/links", program, makeLink},
		{"GET /ui/sign-in", stranger, signInPage},
		{"POST /ui/sign-in", stranger, signIn},
		{"GET /ui/link", stranger, linkPage},
		{"POST /ui/link", stranger, useLink},
		{"POST /ui/sign-out", change, signOut},

		{"GET /ui/{$}", page, fleet},
		{"GET /ui/events", data, events},
		{"POST /ui/sandboxes", change, actOnSeveral},
		{"GET /ui/sandboxes/{id}", page, sandbox},
		{"GET /ui/sandboxes/{id}/log", page, sandboxLog},
		{"GET /ui/new", page, newPage},
		{"POST /ui/new", change, createSandbox},
		{"GET /ui/snapshots", page, snapshots},
		{"POST /ui/snapshots", change, changeSnapshots},
		{"GET /ui/templates", page, allTemplates},
		{"POST /ui/templates", change, changeTemplates},
		{"GET /ui/templates/{ref...}", page, oneTemplate},
		{"GET /ui/volumes", page, volumes},
		{"POST /ui/volumes", change, changeVolumes},
		{"GET /ui/server", page, serverPage},
		{"GET /ui/keys", page, keys},
		{"POST /ui/keys", change, changeKeys},
		{"GET /ui/webhooks", page, webhooks},
		{"POST /ui/webhooks", change, changeWebhooks},
		{"GET /ui/webhooks/{id}", page, webhook},
		{"GET /ui/sandboxes/{id}/snapshots", page, sandboxSnapshots},
		{"GET /ui/sandboxes/{id}/previews", page, previews},
		{"GET /ui/sandboxes/{id}/terminal", page, terminalPage},
		{"GET /ui/sandboxes/{id}/terminal/socket", socket, terminal},
		{"GET /ui/sandboxes/{id}/files", page, files},
		{"GET /ui/sandboxes/{id}/file", page, file},
		{"GET /ui/sandboxes/{id}/download", page, download},
		{"PUT /ui/sandboxes/{id}/file", data, writeFile},
		{"GET /ui/sandboxes/{id}/settings", page, settingsPage},
		{"POST /ui/sandboxes/{id}/settings", change, changeSettings},
		{"POST /ui/sandboxes/{id}/{action}", change, act},
		{"GET /ui/", page, missing},
	}
}

// visit is one request on its way through a handler.
type visit struct {
	s       *server
	w       http.ResponseWriter
	r       *http.Request
	door    door
	session *session // nil through the doors that need none
	// replaces is the session that ends when somebody signs in; nil for none.
	replaces *session
	nonce    string // of the styles that a script of ours makes
	silent   bool   // a script of ours asks again for a page that is there
}

// serve lets requests in to a handler.
func (s *server) serve(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		v := &visit{s: s, w: w, r: req, door: r.door, nonce: newSecret()}
		v.protect()
		err := v.enter()
		if err == nil {
			err = r.handle(v)
		}
		if err != nil {
			v.fail(err)
		}
	})
}

// enter checks what the door asks for.
func (v *visit) enter() error {
	if v.door == public || v.door == program {
		return nil
	}
	// Not every browser says where a WebSocket comes from in this way. Its token does,
	// and its Origin.
	if err := v.fromHere(); err != nil && (v.door != socket || v.r.Header.Get("Sec-Fetch-Site") != "") {
		return err
	}
	if v.door == stranger {
		return v.enterToSignIn()
	}
	var err error
	if v.session, err = v.s.sessions.find(v); err != nil {
		return err
	}
	holds := v.session.isToken(v.r.Header.Get(tokenHeader))
	switch {
	case v.door == page && v.navigates():
		v.session.use()
		return nil
	case v.door == socket:
		holds = v.session.isToken(socketToken(v.r))
	case v.door == change && !holds:
		if err := v.parseForm(); err != nil {
			return refusal{http.StatusBadRequest, "the form could not be read", "go back and send it again"}
		}
		holds = v.session.isToken(v.r.PostForm.Get(tokenField))
	case v.door == page:
		v.silent = true
	}
	if !holds {
		v.session = nil // the answer has no token in it
		return errNotOurs
	}
	if v.r.Method != http.MethodGet || v.door == socket { // else a page asks by itself
		v.session.use()
	}
	return nil
}

// errNotOurs refuses what a page of a sandbox with this origin may send.
var errNotOurs = refusal{http.StatusForbidden, "this request does not come from a page of the dashboard", "open the dashboard, and try again there"}

// enterToSignIn lets in who wants to sign in. A browser that has a session keeps it
// unless the form has its token: a page of a sandbox must not have a person work in
// another's name without noticing.
func (v *visit) enterToSignIn() error {
	s, err := v.s.sessions.find(v)
	if err != nil {
		return nil // it signs in anew
	}
	v.replaces = s
	if v.r.Method == http.MethodGet || v.r.Method == http.MethodHead {
		if !v.navigates() { // the form has the token in it
			return errNotOurs
		}
		return nil
	}
	if err := v.parseForm(); err != nil {
		return refusal{http.StatusBadRequest, "the form could not be read", "go back and send it again"}
	}
	if !s.isToken(v.r.PostForm.Get(tokenField)) {
		return refusal{http.StatusForbidden, "this browser is signed in already", "sign out first, or open the link again"}
	}
	return nil
}

// token is what a form to sign in sends along, so that it may end a session.
func (v *visit) token() string {
	if v.replaces == nil {
		return ""
	}
	return v.replaces.token
}

// maxForm bounds what a form sends.
const maxForm = 256 << 10

// parseForm reads a form. It counts until the request ends, for the client's address
// alone: who sends it is often known only afterwards.
func (v *visit) parseForm() error {
	share := v.s.Room.Passing(held.From(v.r, ""))
	context.AfterFunc(v.r.Context(), share.Free)
	data, err := held.ReadBody(v.w, v.r, share, maxForm, held.BodyPatience)
	if err != nil {
		return err
	}
	v.r.Body = io.NopCloser(bytes.NewReader(data))
	return v.r.ParseForm()
}

// refusal is what the dashboard itself refuses.
type refusal struct {
	status        int
	message, step string
}

// Error implements error.
func (e refusal) Error() string { return e.message }

var errSignedOut = refusal{http.StatusUnauthorized, "you are not signed in, or your session has ended", "sign in again"}

func missing(*visit) error {
	return refusal{http.StatusNotFound, "there is no such page", "the list of sandboxes is a good place to begin"}
}

// problem is an error as people see it.
type problem struct {
	Status              int
	Message, Step, Code string
}

func (v *visit) problemOf(err error) problem {
	if own, ok := errors.AsType[refusal](err); ok {
		return problem{Status: own.status, Message: own.message, Step: own.step}
	}
	if v.session != nil && v.session.ctx.Err() != nil { // it ended meanwhile, which may be why
		return v.problemOf(errSignedOut)
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		if e.Status == http.StatusUnauthorized && strings.HasPrefix(e.Code, "api_key_") { // the key was revoked or has expired
			return v.problemOf(errSignedOut)
		}
		return problem{Status: e.Status, Message: e.Error(), Step: e.Remediation, Code: e.Code}
	}
	if e, ok := errors.AsType[*errdef.Error](err); ok { // what is held of requests here has bounds
		status := http.StatusBadRequest
		if e.Class == errdef.Exhausted {
			status = http.StatusTooManyRequests
		}
		return problem{Status: status, Message: e.Message, Step: e.Remedy, Code: e.Code}
	}
	if errors.Is(err, client.ErrInterrupted) {
		return problem{Status: http.StatusServiceUnavailable, Message: "the connection to the sandbox was cut: it was paused or has ended", Step: "see its state, and try again"}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return problem{Status: http.StatusGatewayTimeout, Message: "the server did not answer in time; it may still be doing what was asked for", Step: "see the state in a moment, and try again if it has not changed"}
	}
	if v.r.Context().Err() == nil {
		v.s.Log.Error("page of the dashboard failed", "path", v.r.URL.Path, "err", err)
	}
	return problem{Status: http.StatusInternalServerError, Message: "the page could not be made", Step: "try again; the server's log has the reason"}
}

// fail answers a request that was refused, or that went wrong.
func (v *visit) fail(err error) {
	p := v.problemOf(err)
	switch {
	case v.door == data || v.door == socket || v.door == program || v.silent || v.r.Header.Get(tokenHeader) != "":
		v.answer(p.Status, map[string]any{"error": map[string]string{"code": p.Code, "message": p.Message, "remediation": p.Step}})
	case p.Status == http.StatusUnauthorized && v.r.Method == http.MethodGet && v.door != stranger:
		v.redirect(Path + "/sign-in?next=" + url.QueryEscape(v.r.URL.RequestURI()))
	default:
		v.render(p.Status, "problem", screen{Title: "That did not work", Data: p})
	}
}
