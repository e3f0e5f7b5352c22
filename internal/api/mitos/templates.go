package mitos

import (
	"net"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// usual is the template that mitos' SDK asks for if nobody says. Where no template
// has that name it is ours.
const usual, ours = "python", "base"

// templateView is a template. What is here is ready.
type templateView struct {
	ID             string            `json:"id"`
	Ready          bool              `json:"ready"`
	CreatedAt      httpapi.Timestamp `json:"created_at"`
	CreationTimeMS float64           `json:"creation_time_ms"`
}

func viewTemplate(id string, t templates.Template) templateView {
	return templateView{ID: id, Ready: true, CreatedAt: httpapi.Timestamp(t.MadeAt)}
}

func listTemplates(s *server, _ *call) (any, error) {
	known, err := s.Templates.Templates()
	if err != nil {
		return nil, err
	}
	views := []templateView{}
	for _, t := range known {
		for _, name := range t.Names {
			views = append(views, viewTemplate(name, t))
		}
	}
	return views, nil
}

// startFrom makes a create start from what a template of mitos is here: a template
// or a snapshot of that name.
func (s *server) startFrom(c *call, template string, req *supervisor.CreateRequest) error {
	req.Template = template
	if err := s.origins.Find(c.key, req); err != nil || req.Snapshot != "" {
		return err
	}
	_, err := s.Templates.Template(template)
	if errdef.Is(err, errdef.NotFound) && template == usual {
		req.Template, err = ours, nil
	}
	return err
}

// ensureTemplate says what the sandboxes of a template may reach and take. The
// template itself is there already, or there is none.
func ensureTemplate(s *server, c *call) (any, error) {
	id := c.words["id"].Value.(string)
	var from supervisor.CreateRequest
	if err := s.startFrom(c, id, &from); errdef.Is(err, errdef.NotFound) {
		return nil, errdef.New(errdef.NotFound, "template_not_found", "there is no template %q", id).
			WithRemedy("fetch an image for it with: drowse template pull IMAGE --name %s; or use one of list_templates()", id)
	} else if err != nil {
		return nil, err
	}
	said, err := settingsOf(c.words)
	if err != nil {
		return nil, err
	}
	req := supervisor.CreateRequest{Config: store.Config{Key: c.key.ID, Secure: true}} // as create asks for
	req.Settings.Timeout = s.MaxTimeout                                                // as of a create that says nothing of it
	apply(said, &req)
	if err := s.Judge(req); err != nil {
		return nil, err
	}
	if err := s.Settings.SetTemplateSettings(c.ctx, c.key.ID, id, said, time.Now()); err != nil {
		return nil, err
	}
	t, err := s.Templates.Template(from.Template)
	if err != nil { // a snapshot
		t = templates.Template{}
	}
	return viewTemplate(id, t), nil
}

// settingsOf reads what is said of every sandbox that is made of a template. Nothing said
// is nothing reached, either way.
func settingsOf(words map[string]body.Said) (store.TemplateSettings, error) {
	flag := func(name string) bool {
		w, given := words[name]
		return given && w.Value.(bool)
	}
	said := store.TemplateSettings{Internet: flag("network.egress"), PublicPorts: flag("network.inbound")}
	for _, name := range []string{"network.allow_domains", "network.allow_cidrs"} {
		w, given := words[name]
		if !given {
			continue
		}
		for _, rule := range w.Value.([]string) {
			if host, port, err := net.SplitHostPort(rule); err == nil && name == "network.allow_domains" {
				return store.TemplateSettings{}, errdef.New(errdef.Unsupported, "not_supported", "%q has %q, and a rule here is for all ports of a host", name, body.Short(rule)).
					WithRemedy("allow %q without port %s", host, body.Short(port)).With("field", name)
			}
			said.AllowOut = append(said.AllowOut, rule)
		}
	}
	if w, given := words["resources.vcpu_count"]; given {
		said.CPUs = w.Value.(float64)
	}
	if w, given := words["resources.mem_size_mib"]; given {
		said.MemoryMiB = w.Value.(int)
	}
	if flag("network.block") {
		said.Internet, said.AllowOut = false, nil // as mitos has it, it overrides the rest
	}
	return said, nil
}

// apply makes a new sandbox be as was said of its template.
func apply(said store.TemplateSettings, req *supervisor.CreateRequest) {
	req.Config.AllowInternet, req.Config.AllowOut, req.Config.PrivatePorts = &said.Internet, said.AllowOut, !said.PublicPorts
	req.Config.Limits = store.Limits{CPUs: said.CPUs, MemoryMiB: said.MemoryMiB}
}
