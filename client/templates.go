package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Template is what sandboxes start from.
type Template struct {
	ID     string    `json:"id"`
	Names  []string  `json:"names"`  // that the API key can use
	Source string    `json:"source"` // "host", "image" or "build"
	MadeAt time.Time `json:"madeAt"`
	User   string    `json:"user"`            // as whom commands run that do not say
	Image  *Image    `json:"image,omitempty"` // nil for what is no image
	Build  *Built    `json:"build,omitempty"` // nil for what was not built
}

// Built is how a template was built of steps, by a client of E2B's.
type Built struct {
	Name   string `json:"name"`             // that its API key has given it
	Status string `json:"status"`           // of the newest build: "waiting", "building", "ready" or "error"
	Reason string `json:"reason,omitempty"` // why it failed
	Builds int    `json:"builds"`
	Key    string `json:"key"` // the id of the API key that has built it
}

// Image is the OCI image that a template was made of.
type Image struct {
	Ref          string       `json:"ref"`    // empty for an archive that names none
	Digest       string       `json:"digest"` // what pins it
	Platform     string       `json:"platform"`
	Env          []string     `json:"env"`
	WorkingDir   string       `json:"workingDir"`
	User         string       `json:"user"`
	Entrypoint   []string     `json:"entrypoint"`
	Cmd          []string     `json:"cmd"`
	ExposedPorts []string     `json:"exposedPorts"`
	Layers       []ImageLayer `json:"layers"` // bottom first
}

// ImageLayer is a layer of an image.
type ImageLayer struct {
	Digest  string `json:"digest"`
	Bytes   int64  `json:"bytes"`
	Entries int    `json:"entries"`
}

// LayerProgress tells of one layer that is being fetched, or sent.
type LayerProgress struct {
	Layer string `json:"layer"`
	State string `json:"state"` // "fetching", "present" or "unpacked"; "packing", "sending" or "sent"
	Done  int64  `json:"done"`
	Size  int64  `json:"size"` // 0 where it is not known
}

// Templates is the templates of a server.
type Templates struct{ c *Client }

// NewTemplates returns the templates of the server of a client.
func NewTemplates(c *Client) Templates { return Templates{c} }

const (
	templatesPath = "/v1/templates"
	linesType     = "application/x-ndjson"
)

func templatePath(ref string) string { return templatesPath + "/" + url.PathEscape(ref) }

// PullOptions says which image becomes a template.
type PullOptions struct {
	Image string // a reference, such as python:3.12
	Name  string // of the template; empty for the last part of the repository, with its tag
	// Progress is called as layers come in; it may be nil.
	Progress func(LayerProgress)
}

// Pull has the server fetch an image from its registry, with the server's
// credentials, and returns the template that is made of it. The name is taken
// from the template that has it.
func (t Templates) Pull(ctx context.Context, o PullOptions) (Template, error) {
	body := map[string]string{"image": o.Image}
	if o.Name != "" {
		body["name"] = o.Name
	}
	req, err := t.c.request(ctx, http.MethodPost, templatesPath, nil, body)
	if err == nil {
		var made Template
		if made, err = t.add(req, o.Progress); err == nil {
			return made, nil
		}
	}
	return Template{}, fmt.Errorf("pull %s: %w", o.Image, err)
}

// Load makes a template of an image in an archive: what docker save writes, or a
// tar of an OCI image layout. An empty name is what the archive calls the image.
func (t Templates) Load(ctx context.Context, archive io.Reader, name string, progress func(LayerProgress)) (Template, error) {
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	req, err := t.c.request(ctx, http.MethodPost, templatesPath+"/load", query, nil)
	if err == nil {
		req.Body = io.NopCloser(archive)
		req.ContentLength = -1
		req.Header.Set("Content-Type", bundleType)
		var made Template
		if made, err = t.add(req, progress); err == nil {
			return made, nil
		}
	}
	return Template{}, fmt.Errorf("load an image: %w", err)
}

// add sends a request and returns the template that it makes.
func (t Templates) add(req *http.Request, progress func(LayerProgress)) (Template, error) {
	last, err := follow(t.c, req, progress)
	if err != nil {
		return Template{}, err
	}
	if last.Template == nil {
		return Template{}, errNothingMade
	}
	return *last.Template, nil
}

var errNothingMade = errors.New("the server's answer does not say what was made")

// madeLine is a line of an answer that tells how far a call is; the last one has
// what was made.
type madeLine struct {
	Progress *LayerProgress  `json:"progress"`
	Template *Template       `json:"template"`
	Image    *PushedImage    `json:"image"`
	Status   int             `json:"status"`
	Error    json.RawMessage `json:"error"`
}

// follow sends a request, reads the lines of the answer, and returns the last.
func follow(c *Client, req *http.Request, progress func(LayerProgress)) (madeLine, error) {
	req.Header.Set("Accept", linesType+", application/json")
	resp, err := c.send(req)
	if err != nil {
		return madeLine{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	in := json.NewDecoder(bufio.NewReader(resp.Body))
	for {
		var raw json.RawMessage
		var line madeLine
		err := in.Decode(&raw)
		if err == nil {
			err = json.Unmarshal(raw, &line)
		}
		switch {
		case err != nil && req.Context().Err() != nil:
			return line, req.Context().Err()
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return line, fmt.Errorf("the server broke off its answer: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return line, fmt.Errorf("read the server's answer: %w", err)
		case line.Error != nil:
			return line, parseError(line.Status, raw)
		case line.Progress == nil:
			return line, nil
		case progress != nil:
			progress(*line.Progress)
		}
	}
}

// List returns all templates that have a name.
func (t Templates) List(ctx context.Context) ([]Template, error) {
	var out struct {
		Templates []Template `json:"templates"`
	}
	if err := t.c.call(ctx, http.MethodGet, templatesPath, nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return out.Templates, nil
}

// Get returns a template by its name or id.
func (t Templates) Get(ctx context.Context, ref string) (Template, error) {
	var out Template
	if err := t.c.call(ctx, http.MethodGet, templatePath(ref), nil, nil, &out); err != nil {
		return Template{}, fmt.Errorf("get template %s: %w", ref, err)
	}
	return out, nil
}

// Set makes a name stand for a template that the server has, such as "base" for
// what sandboxes start from by default. Sandboxes that exist keep theirs.
func (t Templates) Set(ctx context.Context, name, as string) (Template, error) {
	var out Template
	if err := t.c.call(ctx, http.MethodPut, templatePath(name), nil, map[string]string{"template": as}, &out); err != nil {
		return Template{}, fmt.Errorf("set template %s: %w", name, err)
	}
	return out, nil
}

// Remove takes a name away, and the template with its last name. ErrConflict: a
// sandbox started from it, and has not ended.
func (t Templates) Remove(ctx context.Context, ref string) error {
	if err := t.c.call(ctx, http.MethodDelete, templatePath(ref), nil, nil, nil); err != nil {
		return fmt.Errorf("remove template %s: %w", ref, err)
	}
	return nil
}
