package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// BuildStep is a step that makes a template.
type BuildStep struct {
	// Kind is "RUN" (a command for bash, and as whom), "COPY" (a path among Files, a
	// target, an owner, an octal mode), "ENV" (names and values by turns), "WORKDIR" (a
	// directory) or "USER" (a name). What is in brackets are its Args; owner, mode and
	// as whom may be left out.
	Kind  string
	Args  []string
	Files *BuildFiles // what a COPY copies
}

// BuildFiles are what a step copies.
type BuildFiles struct {
	Hash string // of what is in them: 64 hexadecimal digits
	// Open returns them as a tar, which may be compressed by gzip. It is called where
	// the server has no files of that hash.
	Open func() (io.ReadCloser, error)
}

// BuildOptions says what a template is made of.
type BuildOptions struct {
	Name string   // of the template, with a tag after a colon if there is to be one
	Tags []string // more of them

	// What the steps begin with: a template of the server, or an image from its
	// registry, where the server has no template of that name. One of the two.
	Template string
	Image    string

	Steps []BuildStep
	Start string // a command that runs in each sandbox of the template; empty for none
	Ready string // a command that succeeds when the template is ready to be kept

	// Of the sandboxes of the template; 0 for the server's own.
	CPUs      float64
	MemoryMiB int

	Force bool // take all steps, although the server knows what they led to

	// Progress is called with each line of the log; it may be nil.
	Progress func(BuildLine)
}

// BuildLine is a line of the log of a build.
type BuildLine struct {
	At    time.Time `json:"timestamp"`
	Level string    `json:"level"` // "debug", "info", "warn" or "error"
	Step  string    `json:"step"`  // the number of the step, from 1; "base" before, "finalize" after them
	Text  string    `json:"message"`
}

// BuildError is why a build failed on the server.
type BuildError struct {
	Template string
	Step     int // from 1; 0 where it was none of the steps
	Reason   string
}

// Error implements error.
func (e *BuildError) Error() string {
	if e.Step == 0 {
		return fmt.Sprintf("build %s: %s", e.Template, e.Reason)
	}
	return fmt.Sprintf("build %s: step %d: %s", e.Template, e.Step, e.Reason)
}

// buildLook is how often a build is asked how far it is.
const buildLook = 300 * time.Millisecond

// mostBuildLines is how many lines of a log the server puts into one answer.
const mostBuildLines = 100

// Build makes a template of steps, as E2B's clients do, and returns it when it is
// ready. Steps whose result the server knows are not taken again. A *[BuildError] is
// a build that failed. What an older build of the template has led to stays until
// then. A build goes on when ctx ends.
func (t Templates) Build(ctx context.Context, o BuildOptions) (Template, error) {
	var made struct {
		TemplateID string `json:"templateID"`
		BuildID    string `json:"buildID"`
	}
	request := map[string]any{"name": o.Name}
	for name, n := range map[string]float64{"cpuCount": o.CPUs, "memoryMB": float64(o.MemoryMiB)} {
		if n != 0 {
			request[name] = n
		}
	}
	if len(o.Tags) > 0 {
		request["tags"] = o.Tags
	}
	if err := t.c.call(ctx, http.MethodPost, "/v3/templates", nil, request, &made); err != nil {
		return Template{}, fmt.Errorf("build %s: %w", o.Name, err)
	}
	b := building{t.c, "/templates/" + url.PathEscape(made.TemplateID), made.BuildID}
	if err := b.start(ctx, o); err != nil {
		return Template{}, fmt.Errorf("build %s: %w", o.Name, err)
	}
	if err := b.await(ctx, made.TemplateID, o.Progress); err != nil {
		return Template{}, err
	}
	return t.Get(ctx, made.TemplateID)
}

// building is a build that was asked for.
type building struct {
	c    *Client
	path string // of its template
	id   string
}

// start sends the files that the server lacks, and begins the build.
func (b building) start(ctx context.Context, o BuildOptions) error {
	type step struct {
		Type  string   `json:"type"`
		Args  []string `json:"args"`
		Files string   `json:"filesHash,omitempty"`
	}
	steps := []step{}
	for i, s := range o.Steps {
		one := step{Type: s.Kind, Args: s.Args}
		if s.Files != nil {
			if err := b.send(ctx, *s.Files); err != nil {
				return fmt.Errorf("send the files of step %d: %w", i+1, err)
			}
			one.Files = s.Files.Hash
		}
		steps = append(steps, one)
	}
	recipe := map[string]any{"steps": steps, "force": o.Force}
	for name, text := range map[string]string{"fromTemplate": o.Template, "fromImage": o.Image, "startCmd": o.Start, "readyCmd": o.Ready} {
		if text != "" {
			recipe[name] = text
		}
	}
	return b.c.call(ctx, http.MethodPost, "/v2"+b.path+"/builds/"+b.id, nil, recipe, nil)
}

// send sends files, unless the server has them.
func (b building) send(ctx context.Context, f BuildFiles) error {
	var to struct {
		Present bool   `json:"present"`
		URL     string `json:"url"`
	}
	if err := b.c.call(ctx, http.MethodGet, b.path+"/files/"+f.Hash, nil, nil, &to); err != nil || to.Present {
		return err
	}
	where, err := url.Parse(to.URL)
	if err != nil {
		return fmt.Errorf("understand the server's answer: %w", err)
	}
	data, err := f.Open()
	if err != nil {
		return err
	}
	// By the way that leads to the server: what it calls itself may not.
	req, err := b.c.request(ctx, http.MethodPut, where.Path, where.Query(), nil)
	if err != nil {
		return errors.Join(err, data.Close())
	}
	req.Body, req.ContentLength = data, -1
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := b.c.send(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode(resp.Body, nil)
}

// await passes on the log of a build until it is over, and returns how it ended.
func (b building) await(ctx context.Context, template string, say func(BuildLine)) error {
	for seen := 0; ; {
		var now struct {
			Status string      `json:"status"`
			Lines  []BuildLine `json:"logEntries"`
			Reason *struct {
				Message string `json:"message"`
				Step    string `json:"step"`
			} `json:"reason"`
		}
		query := url.Values{"logsOffset": {strconv.Itoa(seen)}, "limit": {strconv.Itoa(mostBuildLines)}}
		if err := b.c.call(ctx, http.MethodGet, b.path+"/builds/"+b.id+"/status", query, nil, &now); err != nil {
			return fmt.Errorf("ask how far the build of %s is: %w", template, err)
		}
		seen += len(now.Lines)
		for _, line := range now.Lines {
			if say != nil {
				say(line)
			}
		}
		switch {
		case len(now.Lines) == mostBuildLines:
			continue // there are more
		case now.Status == "ready":
			return nil
		case now.Status == "error":
			e := &BuildError{Template: template, Reason: "the server does not say why"}
			if now.Reason != nil {
				e.Reason = strings.TrimSpace(now.Reason.Message)
				e.Step, _ = strconv.Atoi(now.Reason.Step)
			}
			return e
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(buildLook):
		}
	}
}
