package mitos

import (
	"net"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/api/origin"
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

// missing reports whether there is no template any more that a key may mean by a name,
// or anybody by an id.
func (s *server) missing(key, template string) bool {
	if template == usual {
		return false
	}
	_, err := s.Templates.Template(template)
	if errdef.Is(err, errdef.NotFound) {
		_, err = s.origins.Snapshot(store.Key{ID: key, Role: store.RoleFull}, origin.Ref(template))
	}
	return errdef.Is(err, errdef.NotFound)
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
	p, err := postureOf(c.words)
	if err != nil {
		return nil, err
	}
	req := supervisor.CreateRequest{Config: store.Config{Key: c.key.ID}}
	req.Settings.Timeout = s.MaxTimeout // as of a create that says nothing of it
	p.apply(&req)
	if err := s.Judge(req); err != nil {
		return nil, err
	}
	if err := s.postures.set(c.key.ID, id, p, time.Now()); err != nil {
		return nil, err
	}
	t, err := s.Templates.Template(from.Template)
	if err != nil { // a snapshot
		t = templates.Template{}
	}
	return viewTemplate(id, t), nil
}

// posture is what a template says of every sandbox that is made of it.
type posture struct {
	internet bool     // to reach what no rule allows
	allow    []string // addresses, networks and names
	inbound  bool     // its ports are open without a token
	cpus     float64  // 0 for the server's own
	memory   int      // in MiB, likewise
}

// postureOf reads it. Nothing said is nothing reached, either way.
func postureOf(words map[string]body.Said) (posture, error) {
	flag := func(name string) bool {
		w, said := words[name]
		return said && w.Value.(bool)
	}
	p := posture{internet: flag("network.egress"), inbound: flag("network.inbound")}
	for _, name := range []string{"network.allow_domains", "network.allow_cidrs"} {
		w, said := words[name]
		if !said {
			continue
		}
		for _, rule := range w.Value.([]string) {
			if host, port, err := net.SplitHostPort(rule); err == nil && name == "network.allow_domains" {
				return posture{}, errdef.New(errdef.Unsupported, "not_supported", "%q has %q, and a rule here is for all ports of a host", name, body.Short(rule)).
					WithRemedy("allow %q without port %s", host, body.Short(port)).With("field", name)
			}
			p.allow = append(p.allow, rule)
		}
	}
	if w, said := words["resources.vcpu_count"]; said {
		p.cpus = w.Value.(float64)
	}
	if w, said := words["resources.mem_size_mib"]; said {
		p.memory = w.Value.(int)
	}
	if flag("network.block") {
		p.internet, p.allow = false, nil // as mitos has it, it overrides the rest
	}
	return p, nil
}

// apply makes a new sandbox be so.
func (p posture) apply(req *supervisor.CreateRequest) {
	req.Config.AllowInternet, req.Config.AllowOut, req.Config.PrivatePorts = &p.internet, p.allow, !p.inbound
	req.Config.Limits = store.Limits{CPUs: p.cpus, MemoryMiB: p.memory}
}
