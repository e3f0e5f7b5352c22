package mitos

import (
	"net"
	"reflect"
	"sync"
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
	if err := origin.Find(s.Templates, s.Snapshots, c.key, req); err != nil || req.Snapshot != "" {
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
	words, err := c.parse(templateBody)
	if err != nil {
		return nil, err
	}
	id := words["id"].Value.(string)
	var from supervisor.CreateRequest
	if err := s.startFrom(c, id, &from); errdef.Is(err, errdef.NotFound) {
		return nil, errdef.New(errdef.NotFound, "template_not_found", "there is no template %q", id).
			WithRemedy("fetch an image for it with: drowse template pull IMAGE --name %s; or use one of list_templates()", id)
	} else if err != nil {
		return nil, err
	}
	p, err := postureOf(words)
	if err != nil {
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
	cpus     int      // 0 for the server's own
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
		p.cpus = w.Value.(int)
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

// waitFor is how long the create of a sandbox may be behind that of its template.
const waitFor = 60 * time.Second

// postures are what API keys have said of templates, the last word of each.
//
// The SDK says it before every create, in a call of its own. Two creates at once
// that say different things could get each other's; so the second is refused
// until the first has been made, or for a minute.
type postures struct {
	mu  sync.Mutex
	all map[templateOf]*posted
}

type templateOf struct{ key, template string }

type posted struct {
	posture
	waiting int // creates that are to come
	at      time.Time
}

func (ps *postures) set(key, template string, p posture, now time.Time) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	as := templateOf{key, template}
	old := ps.all[as]
	switch {
	case old == nil:
		if ps.all == nil {
			ps.all = map[templateOf]*posted{}
		}
		old = &posted{}
		ps.all[as] = old
	case reflect.DeepEqual(old.posture, p):
	case old.waiting > 0 && now.Sub(old.at) < waitFor:
		return errdef.New(errdef.Exhausted, "template_differs", "template %q was given another network or other resources just now, and the sandbox that these are for is not made yet", template).
			WithRemedy("try again in a moment; for sandboxes of two kinds at once give the template a second name").
			With("retry_after_ms", waitFor.Milliseconds())
	default:
		old.waiting = 0
	}
	old.posture, old.at = p, now
	old.waiting++
	return nil
}

// use returns what holds for a new sandbox, and false if nothing was said.
func (ps *postures) use(key, template string) (posture, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[templateOf{key, template}]
	if p == nil {
		return posture{}, false
	}
	p.waiting = max(0, p.waiting-1)
	return p.posture, true
}
