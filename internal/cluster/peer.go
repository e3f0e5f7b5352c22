package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// What servers know of each other is in the database. They ask each other for two things: to take
// what the one that asks offers, and for what was uploaded for a template that goes to the one that
// asks. These are requests of the server, not of a client, with no API key.

const (
	takePath = "/take"
	// uploadPath is where another server reads what was uploaded for a template: its id and the
	// hash of the files are parameters.
	uploadPath = "/upload"
	// mostAsked bounds what is read of what a server asks, or answers.
	mostAsked = 64 << 10
)

// taking is what a server is asked to take.
type taking struct {
	ID    string `json:"id"`
	Actor string `json:"actor,omitempty"` // who wants it
	Runs  bool   `json:"runs,omitempty"`  // it is to run there
}

// refusal is why a server does not do what it is asked.
type refusal struct {
	Code, Message, Remedy string
	Context               map[string]any
}

// Peers returns a handler that answers what other servers ask for themselves, and leaves to h what
// clients do.
func (c *Cluster) Peers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !edge.FromServer(r.Context()) {
			h.ServeHTTP(w, r)
			return
		}
		answer(c, w, r)
	})
}

// answer answers what another server asks for itself.
func answer(c *Cluster, w http.ResponseWriter, r *http.Request) {
	var err error
	if r.URL.Path == uploadPath {
		err = sendUpload(w, r, c.o.Uploads)
	} else {
		err = c.take(r)
	}
	if err == nil {
		return
	}
	refused, ok := errors.AsType[*errdef.Error](err)
	if !ok {
		c.o.Log.Error("what another server asks for failed", "path", r.URL.Path, "err", err)
		refused = errdef.New(errdef.Internal, "internal_server_error", "it failed, and the log of that server says why")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusConflict)
	_ = json.NewEncoder(w).Encode(refusal{refused.Code, refused.Message, refused.Remedy, refused.Context})
}

// take does what another server asks for.
func (c *Cluster) take(r *http.Request) error {
	var asked taking
	if err := json.NewDecoder(io.LimitReader(r.Body, mostAsked)).Decode(&asked); err != nil || r.URL.Path != takePath {
		return errdef.New(errdef.NotFound, "unknown_path", "this server does not know what it is asked for").
			WithRemedy("have all servers run the same version")
	}
	return c.receive(context.WithoutCancel(r.Context()), asked)
}

// askToTake asks a server to take something over.
func (c *Cluster) askToTake(ctx context.Context, server string, what taking) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	done, refused, err := request(ctx, c.o.Transport(server), http.MethodPost, takePath, bytes.NewReader(text))
	switch {
	case err != nil:
		return c.broken(ctx, server, nil, err)
	case refused != nil:
		return refused.err("server %s does not take %s, which stays where it was: %s", server, called(what.ID), refused.Message).With("server", server)
	}
	return done.Close()
}

// request asks another server for something, to which transport leads. It returns one of what that
// answers, which is to be closed, why it refuses, and why it does not answer.
func request(ctx context.Context, transport http.RoundTripper, method, target string, body io.Reader) (io.ReadCloser, *refusal, error) {
	out, err := http.NewRequestWithContext(ctx, method, "http://server"+target, body)
	if err != nil {
		return nil, nil, err
	}
	edge.SetFromServer(out.Header)
	resp, err := transport.RoundTrip(out)
	switch {
	case err != nil:
		return nil, nil, err
	case resp.StatusCode == http.StatusOK:
		return resp.Body, nil, nil
	}
	defer resp.Body.Close()
	var why refusal
	if err = json.NewDecoder(io.LimitReader(resp.Body, mostAsked)).Decode(&why); err != nil || why.Code == "" {
		return nil, nil, errors.Join(fmt.Errorf("status %d", resp.StatusCode), err)
	}
	return nil, &why, nil
}

// err returns the error for what another server refuses, in other words.
func (why refusal) err(format string, args ...any) *errdef.Error {
	class := errdef.Unavailable
	if known, ok := errdef.Lookup(why.Code); ok {
		class = known.Class
	}
	err := errdef.New(class, why.Code, format, args...).WithRemedy("%s", why.Remedy)
	for name, value := range why.Context {
		err = err.With(name, value)
	}
	return err
}

// sendUpload answers another server with what was uploaded here.
func sendUpload(w http.ResponseWriter, r *http.Request, open func(template, hash string) (*os.File, error)) error {
	file, err := open(r.URL.Query().Get("template"), r.URL.Query().Get("hash"))
	if err != nil {
		return err
	}
	defer file.Close()
	http.ServeContent(w, r, "", time.Time{}, file)
	return nil
}

// Upload reads what was uploaded to another server for a step of a template, to which transport
// leads.
func Upload(ctx context.Context, transport http.RoundTripper, template, hash string) (io.ReadCloser, error) {
	query := url.Values{"template": {template}, "hash": {hash}}.Encode()
	file, refused, err := request(ctx, transport, http.MethodGet, uploadPath+"?"+query, nil)
	switch {
	case err != nil:
		return nil, errNoUpload(template, err)
	case refused != nil:
		return nil, refused.err("%s", refused.Message)
	}
	return upload{file, template}, nil
}

// upload is what comes of it.
type upload struct {
	io.ReadCloser
	template string
}

// Read implements io.Reader.
func (u upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = errNoUpload(u.template, err)
	}
	return n, err
}

func errNoUpload(template string, why error) error {
	err := errdef.New(errdef.Unavailable, codeUnreachable, "what was uploaded for template %s is on a server that does not answer, and the build was not begun", template).
		WithRemedy("start the build again in a moment; if that server is gone, ask for another build")
	err.Err = why
	return err
}
