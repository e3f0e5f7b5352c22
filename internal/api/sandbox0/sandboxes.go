package sandbox0

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// defaultTemplate is what a sandbox starts from if nobody says. sandbox0's own
// examples call theirs sampleTemplate.
const (
	defaultTemplate = "base"
	sampleTemplate  = "default"
)

// claim creates a sandbox, and answers when it serves.
func (s *server) claim(c *call) (reply, error) {
	req, err := s.claimed(c.words)
	if err != nil {
		return reply{}, err
	}
	if req.Template == sampleTemplate {
		if is, err := s.origins.IsTemplate(sampleTemplate); err != nil {
			return reply{}, err
		} else if !is {
			req.Template = defaultTemplate
		}
	}
	sb, err := s.origins.Create(c.r.Context(), s.Sandboxes, c.key, c.actor, req)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: viewClaim(sb)}, nil
}

// claimed puts what was said over what holds otherwise. What keeps a sandbox from
// being paused is the ttl alone, so that its end always pauses, and hard_ttl ends
// it.
func (s *server) claimed(w words) (supervisor.CreateRequest, error) {
	req := supervisor.CreateRequest{
		Template: defaultTemplate,
		Settings: lifecycle.Settings{OnTimeout: lifecycle.Pause, AutoResume: true, Timeout: s.MaxTimeout},
		Said:     []string{"onTimeout", "autoResume", "timeoutSeconds", "maxLifetimeSeconds"},
		Config:   store.Config{Secure: true},
	}
	template, named := said[string](w, "template")
	if named {
		req.Template = template
	}
	if snapshot, _ := said[string](w, "snapshot_id"); snapshot != "" {
		req.Snapshot = snapshot
		if named { // clients cannot leave it out
			req.Template = ""
		}
	}
	mounts, _ := said[[]mount](w, "mounts")
	for _, m := range mounts {
		req.Config.Volumes = append(req.Config.Volumes, store.VolumeMount{Name: m.volume, Path: m.path})
	}
	if ttl, was := said[time.Duration](w, "config.ttl"); was {
		req.Settings.Timeout = ttl
	}
	req.Settings.MaxLifetime, _ = said[time.Duration](w, "config.hard_ttl")
	if err := checkLives(w); err != nil {
		return req, err
	}
	if on, was := said[bool](w, "config.auto_resume"); was {
		req.Settings.AutoResume = on
	}
	if env, _ := said[map[string]string](w, "config.env_vars"); len(env) > 0 {
		req.Config.Env = env
	}
	req.Config.Limits.MemoryMiB, _ = said[int](w, "config.resources.memory")
	if list, was := said[[]published](w, "config.services"); was {
		var err error
		if req.Config.Services, req.Config.Entrances, err = settle(list, nil, req.Settings.AutoResume); err != nil {
			return req, err
		}
	}
	rules, was, err := rulesOf(w, "config.network.")
	if was {
		req.Config.AllowInternet, req.Config.AllowOut, req.Config.DenyOut = rules.internet, rules.allow, rules.deny
	}
	return req, err
}

// checkLives refuses a ttl that outlives the sandbox.
func checkLives(w words) error {
	ttl, _ := said[time.Duration](w, "config.ttl")
	hard, _ := said[time.Duration](w, "config.hard_ttl")
	if ttl > 0 && hard > 0 && ttl > hard {
		return body.Invalid(`"config.ttl" is longer than "config.hard_ttl"`).WithRemedy("the sandbox is deleted at its hard_ttl: give a longer one, or 0 for none").With("field", "config.ttl")
	}
	return nil
}

// rules are what a sandbox may reach.
type rules struct {
	internet    *bool
	allow, deny []string
}

// rulesOf returns the policy that a body has below a prefix, and whether it has
// one.
func rulesOf(w words, prefix string) (rules, bool, error) {
	mode, was := said[string](w, prefix+"mode")
	if !was {
		for _, o := range networkBody {
			if _, was := w[prefix+o.Name]; was {
				return rules{}, true, body.Invalid("%q is required beside %q", prefix+"mode", prefix+o.Name).With("field", prefix+"mode")
			}
		}
		return rules{}, false, nil
	}
	r := rules{internet: new(mode == allowAll), allow: []string{}, deny: []string{}}
	for name, list := range map[string]*[]string{"egress.allowedCidrs": &r.allow, "egress.deniedCidrs": &r.deny} {
		given, _ := said[[]string](w, prefix+name)
		for _, rule := range given {
			if !isAddress(rule) {
				return r, true, body.Invalid("%q has %q, which is neither an address nor a network", prefix+name, body.Short(rule)).With("field", prefix+name)
			}
		}
		*list = append(*list, given...)
	}
	domains, _ := said[[]string](w, prefix+"egress.allowedDomains")
	for _, rule := range domains {
		if isAddress(rule) {
			return r, true, body.Invalid("%q has %q, which is no name", prefix+"egress.allowedDomains", body.Short(rule)).With("field", prefix+"egress.allowedDomains")
		}
	}
	r.allow = append(r.allow, domains...)
	return r, true, nil
}

func (s *server) get(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return ok(s.detail(c, sb))
}

func (s *server) status(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return ok(viewStatus(c.gen, sb))
}

// What a page of a list has.
const (
	defaultPage = 50
	maxPage     = 200
)

// list returns a page of the sandboxes that have not ended, newest first.
func (s *server) list(c *call) (reply, error) {
	q, err := parseList(c.r.URL.Query())
	if err != nil {
		return reply{}, err
	}
	page, err := dialect.Sandboxes(c.r, s.Sandboxes.Page, c.key, q)
	if err != nil {
		return reply{}, err
	}
	v := listView{Sandboxes: make([]summaryView, 0, len(page.Sandboxes)), Count: page.Count(q.Status), HasMore: page.More}
	for _, sb := range page.Sandboxes {
		v.Sandboxes = append(v.Sandboxes, viewSummary(c.gen, sb))
	}
	return ok(v)
}

// maxOffset bounds how far a list is paged.
const maxOffset = 1 << 30

func parseList(q url.Values) (list store.Selection, err error) {
	list.Order, list.Limit = store.Newest, defaultPage
	number := func(name string, to *int, least, most int) {
		if text := q.Get(name); text != "" && err == nil {
			n, bad := strconv.Atoi(text)
			if bad != nil || n < least || n > most {
				err = body.Invalid("%q is %q", name, body.Short(text)).WithRemedy("use an integer from %d to %d", least, most).With("field", name)
			}
			*to = n
		}
	}
	number("limit", &list.Limit, 1, maxPage)
	number("offset", &list.Skip, 0, maxOffset)
	if err != nil {
		return list, err
	}
	state := q.Get("status")
	if state != "" && !slices.Contains(statuses, state) {
		return list, body.Invalid(`"status" is %q`, body.Short(state)).WithRemedy("use starting, running, paused, terminating or failed").With("field", "status")
	}
	paused, bad := strconv.ParseBool(cmp.Or(q.Get("paused"), "false"))
	if bad != nil {
		return list, body.Invalid(`"paused" is %q`, body.Short(q.Get("paused"))).WithRemedy("use true or false").With("field", "paused")
	}
	list.Template = origin.Ref(q.Get("template_id"))
	list.Status = func(r lifecycle.Record) bool {
		return store.Alive(r) && (state == "" || state == statusOf(r)) && (q.Get("paused") == "" || paused == (r.State == lifecycle.Paused))
	}
	return list, nil
}

// update changes settings of a sandbox, running or paused: all that it is asked to,
// or nothing.
func (s *server) update(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	p, err := patched(c.words)
	if err != nil {
		return reply{}, err
	}
	list, publishes := said[[]published](c.words, "config.services")
	autoResume := sb.Record.Settings.AutoResume
	if on := p.Settings.AutoResume; on != nil {
		autoResume = *on
		if i := slices.IndexFunc(sb.Config.Entrances, resumes); !*on && !publishes && i >= 0 {
			return reply{}, invalid("config.auto_resume", "is to be off, and requests to the service %q are to resume the sandbox: end that first", sb.Config.Entrances[i].Name)
		}
	}
	services, entrances, err := settle(list, sb.Config.Services, autoResume)
	if err != nil {
		return reply{}, err
	}
	if p.Timeout != nil && sb.Record.State == lifecycle.Paused {
		return reply{}, fail(http.StatusConflict, codeConflict, "sandbox %s is paused, and its ttl counts while it runs: resume it first, or leave config.ttl out", sb.ID)
	}
	switch {
	case publishes:
		if err = s.Services.Publish(c.r.Context(), c.sandbox, services, entrances, p, c.actor); err == nil {
			sb, err = s.find(c)
		}
	case len(c.words) > 0:
		sb, err = s.Sandboxes.Patch(c.r.Context(), c.sandbox, p, c.actor)
	}
	if err != nil {
		return reply{}, err
	}
	return ok(s.detail(c, sb))
}

// patched returns what an update changes apart from services.
func patched(w words) (supervisor.Patch, error) {
	var p supervisor.Patch
	if err := checkLives(w); err != nil {
		return p, err
	}
	if ttl, was := said[time.Duration](w, "config.ttl"); was {
		p.Timeout = new(cmp.Or(ttl, supervisor.Unlimited))
	}
	if hard, was := said[time.Duration](w, "config.hard_ttl"); was {
		p.Settings.MaxLifetime = &hard
	}
	if on, was := said[bool](w, "config.auto_resume"); was {
		p.Settings.AutoResume = &on
	}
	changed, was, err := rulesOf(w, "config.network.")
	if was {
		p.AllowInternet, p.AllowOut, p.DenyOut = changed.internet, changed.allow, changed.deny
	}
	return p, err
}

func (s *server) remove(c *call) (reply, error) {
	if err := s.Sandboxes.Kill(c.r.Context(), c.sandbox, c.actor); err != nil {
		return reply{}, err
	}
	s.contexts.forget(c.sandbox)
	return reply{Status: c.gen.deleted, Body: messageView{"sandbox deleted"}}, nil
}

// pause answers when the pause is committed, or with async once it has begun: clients
// poll until they see it committed, and the event log has why it may have failed. A pause of files alone is one that traffic ends only where there is a service that it
// may start. Any other sandbox which traffic may wake keeps its memory, which is more
// than was asked for.
func (s *server) pause(c *call) (reply, error) {
	async, err := flag(c.r.URL.Query(), "async")
	if err != nil {
		return reply{}, err
	}
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	mode := lifecycle.Memory
	if memory, was := said[bool](c.words, "memory"); was && !memory && (!sb.Record.Settings.AutoResume || sb.Record.Settings.Serves) {
		mode = lifecycle.Filesystem
	}
	err = s.Sandboxes.Pause(c.r.Context(), c.sandbox, supervisor.PauseRequest{Mode: mode, NoWait: async, Actor: c.actor})
	e, is := errors.AsType[*errdef.Error](err)
	switch {
	case err != nil && (!is || e.Code != "already_paused"):
		return reply{}, err
	case async && err == nil:
		return reply{Status: http.StatusAccepted, Body: pausedView{SandboxID: c.sandbox, Status: statusRunning}}, nil
	}
	return ok(pausedView{SandboxID: c.sandbox, Paused: true, Status: statusPaused})
}

// resume starts the sandbox's own ttl anew. One that runs is left as it is.
func (s *server) resume(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	restored := sb.Record.Checkpoint != nil && sb.Record.Checkpoint.Mode == lifecycle.Memory
	got := supervisor.Connected{Sandbox: sb}
	if sb.Record.State != lifecycle.Running || sb.Record.Phase() == lifecycle.Pausing {
		timeout := cmp.Or(sb.Record.Settings.Timeout, supervisor.Unlimited)
		if got, err = s.Sandboxes.Connect(c.r.Context(), c.sandbox, supervisor.WakeRequest{Timeout: timeout, Actor: c.actor}); err != nil {
			return reply{}, err
		}
	}
	return ok(resumedView{SandboxID: c.sandbox, Resumed: true, Restored: got.Resumed && restored})
}

// refresh makes the sandbox run for another ttl from now. Its hard_ttl stays.
func (s *server) refresh(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	d, _ := said[time.Duration](c.words, "duration")
	if d = cmp.Or(d, sb.Record.Settings.Timeout); d > 0 {
		if sb, err = s.Sandboxes.SetTimeout(c.r.Context(), c.sandbox, d, c.actor); err != nil {
			return reply{}, err
		}
	}
	return ok(refreshedView{SandboxID: c.sandbox, lives: viewLives(c.gen, sb)})
}

func network(s *server, c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return ok(viewNetwork(sb))
}

func setNetwork(s *server, c *call) (reply, error) {
	r, _, err := rulesOf(c.words, "")
	if err != nil {
		return reply{}, err
	}
	sb, err := s.Sandboxes.Patch(c.r.Context(), c.sandbox, supervisor.Patch{AllowInternet: r.internet, AllowOut: r.allow, DenyOut: r.deny}, c.actor)
	if err != nil {
		return reply{}, err
	}
	return ok(viewNetwork(sb))
}
