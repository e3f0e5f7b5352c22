// Package dialect is what all APIs do alike with a request: each has its own routes
// and words, and answers through here.
package dialect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/sandboxid"
	"github.com/drowse-dev/drowse/internal/store"
)

// Reply is the answer to a call that succeeded.
type Reply struct {
	Status int
	Body   any // nil for none
	Header http.Header
	// Stream writes the answer instead, until the client is gone.
	Stream func(http.ResponseWriter)
	// Holder is the API key that the answer counts for.
	Holder string
}

// Serve answers a request with what handle returns, or with what failed makes of its
// error. Nothing has been written when handle returns, so one that panics is answered
// like one that fails.
func Serve(w http.ResponseWriter, r *http.Request, handle func() (Reply, error), failed func(error) httpapi.Response) {
	if r.Method == http.MethodOptions {
		httpapi.AllowOrigins(w.Header())
		httpapi.Preflight(w, r)
		return
	}
	done, err := forward(w, r, nil)
	if done {
		return
	}
	var rep Reply
	if err == nil {
		rep, err = handled(handle)
	}
	if err != nil {
		if done, err = forward(w, r, err); done {
			return
		}
	}
	httpapi.AllowOrigins(w.Header())
	res, stream := answer(r, rep, err, failed)
	if stream == nil {
		res.WriteTo(w)
		return
	}
	defer Recover(func(err error) {
		failed(err)
		panic(http.ErrAbortHandler) // what was sent cannot be taken back
	})
	stream(w)
}

// handled returns what a handler does, or its panic as an error.
func handled(handle func() (Reply, error)) (rep Reply, err error) {
	defer Recover(func(panicked error) { err = panicked })
	return handle()
}

func answer(r *http.Request, rep Reply, err error, failed func(error) httpapi.Response) (res httpapi.Response, stream func(http.ResponseWriter)) {
	defer Recover(func(err error) { res, stream = failed(err), nil })
	if err == nil && rep.Stream != nil {
		return res, rep.Stream
	}
	if err == nil {
		res, err = httpapi.Answer(r, rep.Holder, rep.Status, rep.Header, rep.Body)
	}
	if err != nil {
		return failed(err), nil
	}
	return res, nil
}

// panicked is the error of a handler that panicked.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// Recover is to be deferred. It gives a panic to then as an error; but
// http.ErrAbortHandler, which wants no answer, goes on.
func Recover(then func(error)) {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		then(&panicked{p, debug.Stack()})
	}
}

// Panicked reports whether an error is a panic of a handler.
func Panicked(err error) bool {
	_, is := errors.AsType[*panicked](err)
	return is
}

// logged logs an error of ours, and returns the id under which the log has it.
func logged(log *slog.Logger, err error) (request string) {
	request = httpapi.RequestID()
	if p, ok := errors.AsType[*panicked](err); ok {
		log.Error("handler panicked", "request", request, "panic", fmt.Sprint(p.value), "stack", string(p.stack))
	} else {
		log.Error("request failed", "request", request, "err", err)
	}
	return request
}

const codeMethod = "method_not_allowed"

// Tell returns an error as the client may see it, and logs it if it is ours.
func Tell(r *http.Request, log *slog.Logger, err error) *errdef.Error {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return errdef.New(errdef.Unavailable, "canceled", "the request was canceled by the client") // nobody reads it
	}
	e, ok := errors.AsType[*errdef.Error](err)
	switch {
	case !ok && errors.Is(err, context.DeadlineExceeded):
		log.Warn("request timed out", "err", err)
		return errdef.New(errdef.Unavailable, "timed_out", "it took too long").WithRemedy("ask for the sandbox's state and try again")
	case !ok || errdef.Status(e) == http.StatusInternalServerError:
		hidden := errdef.New(errdef.Internal, "internal_server_error", "internal error")
		if ok && e.Code != "" {
			hidden.Code = e.Code
		}
		id := logged(log, err)
		hidden.Message += ": the server's log has the cause under request " + id
		return hidden.With("request", id)
	case e.Class == errdef.Unavailable || e.Class == errdef.Unfit || e.Class == errdef.Fenced:
		attrs := []any{"err", err}
		if e.Err != nil && !strings.Contains(e.Message, e.Err.Error()) { // clients are not told
			attrs = append(attrs, "cause", e.Err)
		}
		log.Warn("request could not be served", attrs...)
	}
	return e
}

// Route returns the route of a request, and the parameters in its path. Without one the
// error is unknown, or says which methods the path has.
func Route[R any](of httpapi.Router[R], method, escapedPath string, unknown error) (*R, map[string]string, error) {
	route, params, allowed := of.Match(method, escapedPath)
	switch {
	case route != nil:
		return route, params, nil
	case len(allowed) > 0:
		return nil, nil, errdef.New(errdef.Invalid, codeMethod, "method %s is not allowed here", body.Short(method)).
			WithRemedy("use %s", strings.Join(allowed, ", ")).With("allowed", allowed)
	}
	return nil, nil, unknown
}

// HeaderOf is the header of the answer to an error, in every dialect: what may be called
// instead, and when a key may call again that calls too often.
func HeaderOf(e *errdef.Error) http.Header {
	h := http.Header{}
	if e.Code == auth.CodeRate {
		h.Set("Retry-After", "1")
	}
	if methods, ok := e.Context["allowed"].([]string); ok && e.Code == codeMethod {
		h.Set("Allow", strings.Join(methods, ", "))
	}
	return h
}

// Admit returns who calls and how the record names them, if they may do what needs it.
func Admit(keys auth.Checker, r *http.Request, needs auth.Permission) (key store.Key, actor string, err error) {
	key, err = auth.Admit(keys, r, needs)
	return key, "key:" + key.ID, err
}

// Finder finds sandboxes, also those that have ended.
type Finder interface {
	Find(ctx context.Context, id string) (store.Sandbox, error)
}

// Sandbox returns the sandbox of an id that a client has sent, also one that has ended.
// What cannot be an id is of no sandbox, and one that the key does not see is not there.
func Sandbox(ctx context.Context, all Finder, key store.Key, id string) (store.Sandbox, error) {
	missing := errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q does not exist", body.Short(id))
	if !sandboxid.Possible(id) {
		return store.Sandbox{}, missing
	}
	audit.About(ctx, id)
	sb, err := all.Find(ctx, id)
	if err == nil && !auth.Sees(key, sb.Config.Key) || errdef.Is(err, errdef.NotFound) && !auth.SeesAll(key) {
		return store.Sandbox{}, missing
	}
	return sb, err
}

// Pager returns a page of a list of sandboxes.
type Pager func(context.Context, store.Selection) (store.Page, error)

// Sandboxes returns a page of those that the key sees, when it is the key's turn for an answer
// that can be large.
func Sandboxes(r *http.Request, page Pager, key store.Key, q store.Selection) (store.Page, error) {
	if err := httpapi.AwaitTurn(r, key.ID); err != nil {
		return store.Page{}, err
	}
	if !auth.SeesAll(key) {
		q.Key = key.ID
	}
	return page(r.Context(), q)
}

// Seen is Sandbox for a handler that finds the sandbox itself: for a key that sees all,
// it does not look.
func Seen(ctx context.Context, all Finder, key store.Key, id string) error {
	if auth.SeesAll(key) && sandboxid.Possible(id) {
		audit.About(ctx, id)
		return nil
	}
	_, err := Sandbox(ctx, all, key, id)
	return err
}
