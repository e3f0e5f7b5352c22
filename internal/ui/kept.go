package ui

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// do runs what a form asks for, and goes on where the form was.
func (v *visit) do(within time.Duration, otherwise string, f func(ctx context.Context, a api) (notice, error)) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), within)
	defer cancel()
	n, err := f(ctx, a)
	if err != nil {
		return v.done("", "", otherwise, err)
	}
	v.session.tell(n)
	v.redirect(v.back(otherwise))
	return nil
}

type snapshotsData struct {
	Head      *head // nil for those of all sandboxes
	Snapshots []treeRow
	Forks     []client.Event // that sandboxes went on from this one, newest first
	Back      string
}

// snapshots lists those of all sandboxes.
func snapshots(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	list, err := client.NewSnapshots(a.Client).List(v.r.Context(), "")
	if err != nil {
		return err
	}
	d := snapshotsData{Back: v.r.URL.RequestURI()}
	for _, s := range list {
		d.Snapshots = append(d.Snapshots, treeRow{Snapshot: s})
	}
	v.render(http.StatusOK, "snapshots", screen{Title: "Snapshots", Section: "snapshots", Data: d})
	return nil
}

// sandboxSnapshots shows those of one sandbox, which may have ended, as a tree.
func sandboxSnapshots(v *visit) error {
	a, h, err := v.open1("snapshots")
	if err != nil {
		return err
	}
	list, err := client.NewSnapshots(a.Client).List(v.r.Context(), h.ID)
	if err != nil {
		return err
	}
	events, err := lastEvents(v.r.Context(), a, h.ID, lifeEvents)
	if err != nil {
		return err
	}
	d := snapshotsData{Head: &h, Back: h.Back}
	for _, e := range events {
		if e.Type == "forked" {
			d.Forks = append(d.Forks, e)
		}
	}
	slices.Reverse(events)
	d.Snapshots = treeOf(list, events, len(events) == lifeEvents)
	v.render(http.StatusOK, "snapshots", screen{Title: "Snapshots of " + cmp.Or(h.Name(), h.ID), Section: "fleet", Data: d})
	return nil
}

// changeSnapshots deletes or pins a snapshot.
func changeSnapshots(v *visit) error {
	ref := v.r.PostForm.Get("snapshot")
	return v.do(actTime, Path+"/snapshots", func(ctx context.Context, a api) (notice, error) {
		all := client.NewSnapshots(a.Client)
		switch v.r.PostForm.Get("do") {
		case "delete":
			return notice{Text: "Snapshot " + ref + " is deleted."}, all.Delete(ctx, ref)
		case "pin", "unpin":
			pin := v.r.PostForm.Get("do") == "pin"
			_, err := all.Change(ctx, ref, client.SnapshotChange{Pinned: &pin})
			return notice{Text: "Snapshot " + ref + " is changed."}, err
		}
		return notice{}, missing(v)
	})
}

func takeSnapshot(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	o := client.SnapshotOptions{Name: strings.TrimSpace(v.r.PostForm.Get("name")), Mode: client.Mode(v.r.PostForm.Get("mode"))}
	if strings.TrimSpace(v.r.PostForm.Get("for")) != "" {
		var err error
		if o.ExpiresIn, err = v.duration("for"); err != nil {
			return "", "", err
		}
	}
	snap, err := client.NewSnapshots(a.Client).Create(ctx, id, o)
	return "Snapshot " + cmp.Or(snap.Name, snap.ID) + " is taken.", "", err
}

func restoreSandbox(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	_, err := client.NewSnapshots(a.Client).Restore(ctx, id, client.RestoreOptions{Snapshot: v.r.PostForm.Get("snapshot")})
	return id + " is what it was then. What it was before is kept: Undo goes back to that.", "", err
}

type previewsData struct {
	Head     head
	Previews []client.Preview
}

// previews lists the links to ports of a sandbox.
func previews(v *visit) error {
	a, h, err := v.open1("previews")
	if err != nil {
		return err
	}
	list, err := a.Previews(v.r.Context(), h.ID)
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "previews", screen{Title: "Previews of " + cmp.Or(h.Name(), h.ID), Section: "fleet", Data: previewsData{h, list}})
	return nil
}

// makePreview makes a link to a port, which is shown once.
func makePreview(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	port, err := v.count("port", 0)
	if err != nil {
		return "", "", err
	}
	d, err := v.duration("for")
	if err != nil {
		return "", "", err
	}
	p, err := a.CreatePreview(ctx, id, client.PreviewOptions{Port: port, For: d, Path: strings.TrimSpace(v.r.PostForm.Get("path"))})
	if err == nil {
		v.session.tell(notice{Text: "This link opens port " + strconv.Itoa(port) + " for " + span(d) + ", to whoever has it.", Secret: p.URL, Link: p.URL})
	}
	return "", "", err
}

func revokePreview(ctx context.Context, v *visit, a api, id string) (string, string, error) {
	return "The link is revoked.", "", a.RevokePreview(ctx, id, v.r.PostForm.Get("preview"))
}

type templatesData struct {
	Templates []client.Template
	Back      string
}

func allTemplates(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	list, err := client.NewTemplates(a.Client).List(v.r.Context())
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "templates", screen{Title: "Templates", Section: "templates", Data: templatesData{list, v.r.URL.RequestURI()}})
	return nil
}

// pullTime bounds how long an image may take to come.
const pullTime = 15 * time.Minute

// changeTemplates pulls an image, or takes a template's name away.
func changeTemplates(v *visit) error {
	return v.do(pullTime, Path+"/templates", func(ctx context.Context, a api) (notice, error) {
		all := client.NewTemplates(a.Client)
		switch v.r.PostForm.Get("do") {
		case "pull":
			t, err := all.Pull(ctx, client.PullOptions{Image: strings.TrimSpace(v.r.PostForm.Get("image")), Name: strings.TrimSpace(v.r.PostForm.Get("name"))})
			return notice{Text: "Template " + strings.Join(t.Names, ", ") + " is there."}, err
		case "remove":
			name := v.r.PostForm.Get("template")
			return notice{Text: "The name " + name + " is taken away."}, all.Remove(ctx, name)
		}
		return notice{}, missing(v)
	})
}

// buildOfTemplate is one build of a template.
type buildOfTemplate struct {
	ID         string    `json:"buildID"`
	Status     string    `json:"status"`
	CreatedAt  time.Time `json:"createdAt"`
	FinishedAt time.Time `json:"finishedAt"`
}

type templateData struct {
	Template client.Template
	Builds   []buildOfTemplate
	Shown    string // the build whose log is shown
	Lines    []logLine
	Reason   string // why that build failed
}

// oneTemplate shows one template with its builds, and the log of one of these.
func oneTemplate(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	ctx := v.r.Context()
	var d templateData
	if d.Template, err = client.NewTemplates(a.Client).Get(ctx, v.r.PathValue("ref")); err != nil {
		return err
	}
	if d.Template.Build != nil {
		at := "/templates/" + url.PathEscape(d.Template.ID)
		var all struct {
			Builds []buildOfTemplate `json:"builds"`
		}
		if err := a.call(ctx, http.MethodGet, at, nil, nil, &all); err != nil {
			return err
		}
		d.Builds = all.Builds
		if d.Shown = v.r.URL.Query().Get("build"); d.Shown == "" && len(d.Builds) > 0 {
			d.Shown = d.Builds[0].ID
		}
		if d.Shown != "" {
			var progress struct {
				Lines  []logLine `json:"logEntries"`
				Reason *struct {
					Message string `json:"message"`
				} `json:"reason"`
			}
			if err := a.call(ctx, http.MethodGet, at+"/builds/"+url.PathEscape(d.Shown)+"/status", nil, nil, &progress); err != nil {
				return err
			}
			d.Lines = progress.Lines
			if progress.Reason != nil {
				d.Reason = progress.Reason.Message
			}
		}
	}
	v.render(http.StatusOK, "template", screen{Title: "Template " + v.r.PathValue("ref"), Section: "templates", Data: d})
	return nil
}
