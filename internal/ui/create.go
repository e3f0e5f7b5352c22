package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

type newData struct {
	Templates []string
	Snapshots []client.Snapshot
	Said      url.Values // what the form had when it was refused
	Problem   *problem
}

// newPage is the form that makes a sandbox. A template or snapshot in the address is
// chosen already.
func newPage(v *visit) error { return v.newForm(http.StatusOK, v.r.URL.Query(), nil) }

func (v *visit) newForm(status int, said url.Values, refused *problem) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	d := newData{Said: said, Problem: refused}
	templates, err := client.NewTemplates(a.Client).List(v.r.Context())
	if err != nil {
		return err
	}
	for _, t := range templates {
		if len(t.Names) == 0 {
			d.Templates = append(d.Templates, t.ID)
		}
		d.Templates = append(d.Templates, t.Names...)
	}
	if d.Snapshots, err = client.NewSnapshots(a.Client).List(v.r.Context(), ""); err != nil {
		return err
	}
	v.render(status, "new", screen{Title: "New sandbox", Section: "new", Data: d})
	return nil
}

// createSandbox makes a sandbox of what a form says.
func createSandbox(v *visit) error {
	o, err := v.createOptions()
	if err == nil {
		var a api
		if a, err = v.api(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), actTime)
		defer cancel()
		var sb *client.Sandbox
		if sb, err = a.Create(ctx, o); err == nil {
			return v.done(sb.ID+" is running.", Path+"/sandboxes/"+sb.ID, "", nil)
		}
	}
	p := v.problemOf(err)
	if p.Status == http.StatusUnauthorized {
		return err
	}
	return v.newForm(p.Status, v.r.PostForm, &p)
}

func (v *visit) createOptions() (o client.CreateOptions, err error) {
	f := v.r.PostForm
	text := func(name string) string { return strings.TrimSpace(f.Get(name)) }
	o = client.CreateOptions{Name: text("name"), Template: text("template"), Snapshot: text("snapshot"), OnTimeout: client.Action(text("onTimeout")), OnIdle: client.Action(text("onIdle")), NoInternet: text("internet") == "no"}
	if o.Snapshot != "" {
		o.Template = ""
	}
	for name, field := range map[string]*time.Duration{"timeout": &o.Timeout, "idleTimeout": &o.IdleTimeout, "maxLifetime": &o.MaxLifetime} {
		if text(name) != "" {
			if *field, err = v.duration(name); err != nil {
				return o, err
			}
		}
	}
	if o.CPUs, err = v.number("cpus"); err != nil {
		return o, err
	}
	for name, field := range map[string]*int{"memory": &o.MemoryMiB, "disk": &o.DiskMiB} {
		if *field, err = v.count(name, 0); err != nil {
			return o, err
		}
	}
	if wake := text("autoResume"); wake != "" {
		o.AutoResume = new(wake == "yes")
	}
	if o.Metadata, err = pairs(f.Get("metadata")); err != nil {
		return o, err
	}
	o.Env, err = pairs(f.Get("env"))
	return o, err
}

// pairs reads lines of the form key=value.
func pairs(text string) (map[string]string, error) {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || key == "" {
			return all, refusal{http.StatusBadRequest, fmt.Sprintf("the line %.80q is not key=value", line), "write one key=value on each line"}
		}
		all[key] = value
	}
	return all, nil
}
