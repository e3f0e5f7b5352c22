package v1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// export answers with a sandbox as one stream. What goes wrong before it begins
// is answered as ever; then the stream is broken off, and is known not to be
// whole.
func (s *server) export(c *call) (reply, error) {
	e, err := s.Sandboxes.Export(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	return reply{Stream: func(w http.ResponseWriter) {
		defer e.Release()
		h := w.Header()
		h.Set("Content-Type", bundle.ContentType)
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s.drowse.tar"`, c.sandbox))
		w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return
		}
		bound, cancel := s.Auth.Bind(c.r.Context(), c.key.ID)
		defer cancel()
		if err := writeExport(bound, w, e); err != nil {
			c.log.Warn("export broken off", "err", err)
			panic(http.ErrAbortHandler) // an end in good order would look like that of the whole
		}
	}}, nil
}

// patientWriter gives a client so long to read on, unless it is cut.
type patientWriter struct {
	w   io.Writer
	out *http.ResponseController

	mu    sync.Mutex // orders the deadlines
	isCut bool
}

// Write implements io.Writer.
func (p *patientWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.isCut {
		p.mu.Unlock()
		return 0, errCut
	}
	_ = p.out.SetWriteDeadline(time.Now().Add(writeWait)) // not every connection has one
	p.mu.Unlock()
	return p.w.Write(b)
}

// cut ends a Write under way, and all that would follow.
func (p *patientWriter) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
	_ = p.out.SetWriteDeadline(time.Unix(1, 0))
}

var errCut = errors.New("the sandbox was killed, the API key is no longer good, or the server stops")

// writeExport writes the bundle until it is cut off or ctx ends.
func writeExport(ctx context.Context, w http.ResponseWriter, e *supervisor.Export) error {
	out := &patientWriter{w: w, out: http.NewResponseController(w)}
	var watch sync.WaitGroup
	written := make(chan struct{})
	watch.Go(func() {
		select {
		case <-e.Cut:
			out.cut()
		case <-ctx.Done():
			out.cut()
		case <-written:
		}
	})
	err := e.Write(out)
	close(written)
	watch.Wait()
	return err
}

// importSandbox makes a sandbox of the body.
func (s *server) importSandbox(c *call) (reply, error) {
	req, err := c.importRequest()
	if err != nil {
		return reply{}, err
	}
	name := ""
	req.Named = func(of string) { name = of }
	sb, err := s.Sandboxes.Import(c.r.Context(), httpapi.Patient(c.w, c.r, httpapi.UploadPause), req)
	if err != nil {
		return reply{}, err
	}
	audit.About(c.r.Context(), sb.ID)
	v := s.viewWithTokens(c, sb)
	if name != sb.Config.Name {
		v.NameTaken = name
	}
	return reply{
		Status: http.StatusCreated, Body: v,
		Header: http.Header{"Location": {base + "/" + sb.ID}},
	}, nil
}

func (c *call) importRequest() (supervisor.ImportRequest, error) {
	req, q := supervisor.ImportRequest{Actor: c.actor, Key: c.key.ID}, c.query()
	var err error
	if req.NewID, err = q.flag(newIDParam); err != nil {
		return req, err
	}
	if req.Secrets, err = q.flag(secretsParam); err != nil {
		return req, err
	}
	switch mode := lifecycle.Mode(q.Get(modeParam)); mode {
	case "", lifecycle.Memory:
	case lifecycle.Filesystem:
		req.Filesystem = true
	default:
		return req, body.Invalid("%q must be memory or filesystem, not %q", modeParam, body.Short(string(mode))).With("field", modeParam)
	}
	how := fmt.Appendf(nil, "[%t, %t]", req.NewID, req.Filesystem)
	if req.Secrets { // without, the digest is that of versions that did not know it
		how = append(how, secretsParam...)
	}
	// Import adds what is in the body.
	req.Idempotency, err = body.Idempotency(c.r.Header, c.route.pattern, how)
	return req, err
}
