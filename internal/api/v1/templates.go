package v1

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// Templates is what the dialect needs of those who keep templates. One that is
// unknown is an errdef.NotFound with code "template_not_found".
type Templates interface {
	Template(ref string) (templates.Template, error)
	// Templates returns all that have a name.
	Templates() ([]templates.Template, error)
	// AddTemplate returns when the image is fetched and can be used.
	AddTemplate(ctx context.Context, req templates.AddRequest) (templates.Template, error)
	SetTemplate(name, as, actor string) (templates.Template, error)
	// RemoveTemplate is an errdef.Conflict while a sandbox needs the template.
	RemoveTemplate(ref, actor string) error
}

// templateView is a template as clients see it.
type templateView struct {
	ID     string            `json:"id"`
	Names  []string          `json:"names" doc:"What it is called, in the order of the alphabet."`
	Source string            `json:"source" doc:"host for the host's own system, image for an OCI image, build for what was built of steps."`
	MadeAt httpapi.Timestamp `json:"madeAt"`
	User   string            `json:"user" doc:"As whom commands run that do not say."`
	Image  *imageView        `json:"image,omitempty" doc:"What it was made of; left out of what is no image."`
	Build  *builtView        `json:"build,omitempty" doc:"How it was built; left out of what was not."`
}

// imageView is an OCI image.
type imageView struct {
	Ref          string      `json:"ref" doc:"The reference it was fetched by; empty for an archive that names none."`
	Digest       string      `json:"digest" doc:"What pins it, whatever becomes of its tag."`
	Platform     string      `json:"platform"`
	Env          []string    `json:"env"`
	WorkingDir   string      `json:"workingDir"`
	User         string      `json:"user" doc:"As the image says it; empty for nobody in particular."`
	Entrypoint   []string    `json:"entrypoint"`
	Cmd          []string    `json:"cmd"`
	ExposedPorts []string    `json:"exposedPorts"`
	Layers       []layerView `json:"layers" doc:"Bottom first. Images share layers."`
}

type layerView struct {
	Digest  string `json:"digest"`
	Bytes   int64  `json:"bytes" doc:"In its files."`
	Entries int    `json:"entries"`
}

type templatesView struct {
	Templates []templateView `json:"templates"`
}

func viewTemplate(t templates.Template) templateView {
	v := templateView{ID: t.ID, Names: nonNil(t.Names), Source: "host", MadeAt: httpapi.Timestamp(t.MadeAt), User: t.User}
	if img := t.Image; img != nil {
		v.Source = "image"
		v.Image = &imageView{
			Ref: img.Ref, Digest: img.Digest, Platform: img.Platform, Env: nonNil(img.Config.Env), WorkingDir: img.Config.WorkingDir, User: img.Config.User,
			Entrypoint: nonNil(img.Config.Entrypoint), Cmd: nonNil(img.Config.Cmd), ExposedPorts: nonNil(img.Config.ExposedPorts), Layers: []layerView{},
		}
		for _, l := range img.Layers {
			v.Image.Layers = append(v.Image.Layers, layerView{Digest: l.Digest, Bytes: l.Bytes, Entries: l.Entries})
		}
	}
	return v
}

func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// pulled is a line of the answer to who wants to see how far an image is.
type pulled struct {
	Progress *image.Progress `json:"progress,omitempty"`
	Template *templateView   `json:"template,omitempty"`
	Image    *publishedView  `json:"image,omitempty"`
	Status   int             `json:"status,omitempty"` // that the error would have had
	Error    json.RawMessage `json:"error,omitempty"`
}

// linesType is the content type of an answer of one JSON value a line.
const linesType = "application/x-ndjson"

// pullTemplate makes a template of an image in a registry.
func pullTemplate(s *server, c *call) (reply, error) {
	req := templates.AddRequest{Ref: c.words["image"].Value.(string), Actor: c.actor}
	if w, said := c.words["name"]; said {
		req.Name = w.Value.(string)
	}
	return addTemplate(s, c, req)
}

// loadTemplate makes a template of the body.
func loadTemplate(s *server, c *call) (reply, error) {
	q := c.query()
	return addTemplate(s, c, templates.AddRequest{
		Archive: httpapi.Patient(c.w, c.r, httpapi.UploadPause), Name: q.Get(nameParam), Actor: c.actor,
	})
}

// addTemplate answers with the template, or with lines of which the last has it
// or the error.
func addTemplate(s *server, c *call, req templates.AddRequest) (reply, error) {
	return withProgress(s, c, http.StatusCreated, func(ctx context.Context, progress func(image.Progress)) (pulled, any, error) {
		req.Progress = progress
		t, err := s.Templates.AddTemplate(ctx, req)
		v := viewTemplate(t)
		return pulled{Template: &v}, v, err
	})
}

// withProgress answers with what a call makes, or, to who accepts them, with lines
// that tell how far it is. The last line has what was made, or the error.
func withProgress(s *server, c *call, status int, do func(context.Context, func(image.Progress)) (last pulled, v any, err error)) (reply, error) {
	if !strings.Contains(c.r.Header.Get("Accept"), linesType) {
		_, v, err := do(c.r.Context(), nil)
		return reply{Status: status, Body: v}, err
	}
	return reply{Stream: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", linesType)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		out := &lines{w: w, control: http.NewResponseController(w)}
		last, _, err := do(c.r.Context(), func(p image.Progress) { out.write(pulled{Progress: &p}) })
		if err != nil {
			res := s.failed(c, err)
			last = pulled{Status: res.Status, Error: errorOf(res.Body)}
		}
		out.write(last)
		_ = out.control.SetWriteDeadline(time.Time{}) // the connection may be used again
	}}, nil
}

// errorOf returns the error of an answer's body.
func errorOf(data []byte) json.RawMessage {
	var e struct {
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		panic("internal error: v1: an error that is none: " + err.Error())
	}
	return e.Error
}

// lines writes JSON values, one a line, for several goroutines.
type lines struct {
	mu      sync.Mutex
	w       io.Writer
	control *http.ResponseController
}

func (l *lines) write(v pulled) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.control.SetWriteDeadline(time.Now().Add(writeWait)) // not every connection has one
	_ = json.NewEncoder(l.w).Encode(v)                        // a client that is gone ends the request's context
	_ = l.control.Flush()
}

func listTemplates(s *server, c *call) (reply, error) {
	list, err := s.Templates.Templates()
	if err != nil {
		return reply{}, err
	}
	v := templatesView{Templates: []templateView{}}
	for _, t := range list {
		v.Templates = append(v.Templates, viewTemplate(t))
	}
	for _, t := range s.Builds.Templates() {
		if auth.Sees(c.key, t.Key) {
			v.Templates = append(v.Templates, viewBuilt(s, c.key, t))
		}
	}
	return ok(v)
}

// templateOf returns the reference of a path.
func templateOf(c *call) string { return c.params[templateParam] }

func getTemplate(s *server, c *call) (reply, error) {
	t, err := s.Templates.Template(templateOf(c))
	v := viewTemplate(t)
	err = orBuilt(err, func() error {
		t, _, err := built(s, c.key, templateOf(c))
		v = viewBuilt(s, c.key, t)
		return err
	})
	if err != nil {
		return reply{}, err
	}
	return ok(v)
}

func setTemplate(s *server, c *call) (reply, error) {
	t, err := s.Templates.SetTemplate(templateOf(c), c.words["template"].Value.(string), c.actor)
	if e, is := errors.AsType[*errdef.Error](err); is && e.Class == errdef.NotFound {
		if t, _, err := built(s, c.key, c.words["template"].Value.(string)); err == nil {
			return reply{}, errdef.New(errdef.Invalid, "template_was_built", "%s was built of steps for an API key, and a name of the server stands for an image or the host's system", t.CalledBy(c.key.ID)).
				WithRemedy("name it in each create; or send it out as an image with drowse snapshot push, fetch that with drowse template pull, and set the name to it").With("field", "template")
		}
		return reply{}, body.Invalid("%s", e.Message).With("field", "template").WithRemedy("%s", e.Remedy)
	}
	if err != nil {
		return reply{}, err
	}
	return ok(viewTemplate(t))
}

func removeTemplate(s *server, c *call) (reply, error) {
	err := orBuilt(s.Templates.RemoveTemplate(templateOf(c), c.actor), func() error {
		t, tag, err := built(s, c.key, templateOf(c))
		tag = origin.Named(templateOf(c), tag)
		switch {
		case err != nil:
			return err
		case tag == "":
			return s.Builds.Delete(c.r.Context(), t.ID)
		}
		return s.Builds.Untag(c.r.Context(), t.ID, []string{tag})
	})
	return reply{Status: http.StatusNoContent}, err
}
