// Package interpreter serves E2B's code interpreter: contexts, each of them a
// kernel in which cells of code run one after the other, and streams of what
// they print, show and throw. Kernels are Jupyter's where they are installed,
// and else small programs of our own, embedded here, that need nothing but the
// language's interpreter.
//
// It promises:
//
//   - Cells of one context run in the order in which they got their turn, one
//     at a time; contexts do not wait for each other.
//   - What a cell does is told in the order in which it happened, its child
//     processes included; only stdout and stderr are not ordered against each
//     other. No character is split over messages.
//   - A client that reads slowly slows down its cell; nothing is kept for it
//     beyond one message. A client that goes away interrupts its cell, and a
//     cell that cannot be interrupted loses its kernel: the next one is never
//     blocked for longer than interruptLimit.
//   - A kernel starts when it is first needed, and again when it has ended.
//
// It leaves to the host where kernels run and as whom, and who may reach the
// port. Kernels are not trusted: their messages are bounded.
package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// Port is where E2B's clients look for the code interpreter, and PathExecute
// where they send code.
const (
	Port        = agentapi.CodePort
	PathExecute = agentapi.PathCode
)

const (
	maxBody     = 16 << 20
	maxContexts = 256

	defaultDir = "/home/user"
)

// Host is what kernels run on. Its methods may be called concurrently.
type Host interface {
	// Environment is what a kernel starts with, the global variables included.
	Environment() (map[string]string, error)
	// JupyterDirs are those in which Jupyter's kernels may be.
	JupyterDirs() []string
	// Look returns the path of a program, which may be given already, and false
	// if there is none.
	Look(program string) (string, bool)
	// Copies returns how often the memory of the sandbox, with the kernels in it, has
	// turned out to be a copy: another sandbox, or this one, went on from it as well.
	Copies() int64
	// Start runs a kernel as the leader of a process group.
	Start(Command) (Process, error)
}

// Server serves the code interpreter of one sandbox.
type Server struct {
	host     Host
	contexts *contexts
}

// New returns a Server whose default contexts exist, without a kernel.
// What goes wrong and concerns no client is written to logf.
func New(host Host, logf func(format string, args ...any)) *Server {
	return &Server{host: host, contexts: newContexts(host, logf)}
}

// Close ends all kernels.
func (s *Server) Close() {
	for _, c := range s.contexts.list() {
		c.reset(endRemoved)
	}
}

// failure is an answer that is no success.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

func failf(status int, format string, args ...any) error {
	return &failure{status, fmt.Sprintf(format, args...)}
}

func unknownContext(id string) error {
	return failf(http.StatusNotFound, "Context %s not found", id)
}

// ServeHTTP routes by hand: http.ServeMux would redirect unclean paths, which
// clients of this API do not follow.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Access-Control-Allow-Origin", "*")
	if r.Method == http.MethodOptions {
		w.Header().Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
		w.Header().Set("Access-Control-Allow-Headers", "*")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if err := s.route(w, r); err != nil {
		writeFailure(w, err)
	}
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) error {
	path := strings.TrimPrefix(r.URL.Path, "/")
	id, inContexts := strings.CutPrefix(path, "contexts/")
	id, restart := strings.CutSuffix(id, "/restart")
	switch {
	case path == "health":
		return only(http.MethodGet, r, func() error { return writeJSON(w, "OK") })
	case r.URL.Path == PathExecute:
		return only(http.MethodPost, r, func() error { return s.execute(w, r) })
	case path == "contexts" && r.Method == http.MethodPost:
		return s.create(w, r)
	case path == "contexts":
		return only(http.MethodGet, r, func() error { return s.list(w) })
	case inContexts && restart:
		return only(http.MethodPost, r, func() error { return s.restart(w, id) })
	case inContexts:
		return only(http.MethodDelete, r, func() error { return s.remove(w, id) })
	}
	return failf(http.StatusNotFound, "no such endpoint: %s", r.URL.Path)
}

func only(method string, r *http.Request, handle func() error) error {
	if r.Method != method {
		return failf(http.StatusMethodNotAllowed, "method %s is not allowed on %s", r.Method, r.URL.Path)
	}
	return handle()
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Cwd      *string `json:"cwd"`
		Language *string `json:"language"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	dir, name := defaultDir, "python"
	if body.Cwd != nil {
		dir = *body.Cwd
	}
	if body.Language != nil {
		name = *body.Language
	}
	c, err := s.contexts.create(name, dir)
	if err != nil {
		return err
	}
	return writeJSON(w, c.view())
}

func (s *Server) list(w http.ResponseWriter) error {
	views := []contextView{}
	for _, c := range s.contexts.list() {
		views = append(views, c.view())
	}
	return writeJSON(w, views)
}

func (s *Server) restart(w http.ResponseWriter, id string) error {
	c := s.contexts.get(id)
	if c == nil {
		return unknownContext(id)
	}
	c.reset(endRestarted)
	return writeJSON(w, nil)
}

func (s *Server) remove(w http.ResponseWriter, id string) error {
	c := s.contexts.remove(id)
	if c == nil {
		return unknownContext(id)
	}
	c.reset(endRemoved)
	return writeJSON(w, nil)
}

// executeRequest is the body of POST /execute.
type executeRequest struct {
	Code      *string           `json:"code"`
	ContextID *string           `json:"context_id"`
	Language  *string           `json:"language"`
	EnvVars   map[string]string `json:"env_vars"`
}

func (s *Server) execute(w http.ResponseWriter, r *http.Request) error {
	var body executeRequest
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	if body.Code == nil {
		return failf(http.StatusUnprocessableEntity, "code: field required")
	}
	if bad := agentapi.BadVariable(body.EnvVars); bad != "" {
		return failf(http.StatusUnprocessableEntity, "env_vars has %s", bad)
	}
	c, err := s.contextOf(body)
	if err != nil {
		return err
	}
	// A kernel that cannot start is told by the status, which comes first.
	if _, err := c.ready(r.Context()); err != nil {
		return err
	}
	c.run(r.Context(), newStream(w), cell{code: *body.Code, env: body.EnvVars})
	return nil
}

// contextOf returns the context that a request names, or the default one of
// its language.
func (s *Server) contextOf(body executeRequest) (*codeContext, error) {
	switch {
	case body.ContextID != nil && body.Language != nil:
		return nil, failf(http.StatusBadRequest, "Only one of context_id or language can be provided")
	case body.ContextID != nil:
		if c := s.contexts.get(*body.ContextID); c != nil {
			return c, nil
		}
		return nil, unknownContext(*body.ContextID)
	case body.Language != nil:
		return s.contexts.defaultOf(*body.Language)
	}
	return s.contexts.defaultOf("python")
}

func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return failf(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", maxBody)
	}
	if err != nil {
		return failf(http.StatusBadRequest, "read the body: %v", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return failf(http.StatusUnprocessableEntity, "body: %v", err)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
	return nil
}

func writeFailure(w http.ResponseWriter, err error) {
	if errors.Is(err, context.Canceled) {
		return // nobody is there
	}
	status := http.StatusInternalServerError
	if f, ok := errors.AsType[*failure](err); ok {
		status = f.status
	}
	if status == http.StatusUnprocessableEntity {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"detail": err.Error()})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, err.Error())
}
