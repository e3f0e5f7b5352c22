package sandbox0

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Services replaces the services of sandboxes.
type Services interface {
	// Publish makes lists all services of a sandbox, and all entrances to its ports,
	// and applies the patch with them.
	Publish(ctx context.Context, id string, list []service.Service, entrances []service.Entrance, patch supervisor.Patch, actor string) error
}

// What a service of sandbox0 finds in its environment.
const (
	envService = "SANDBOX0_SERVICE_ID"
	envPort    = "SANDBOX0_SERVICE_PORT"
	envRuntime = "SANDBOX0_SERVICE_RUNTIME"
)

// sandbox0 calls the runtimes so.
const (
	manualRuntime   = "manual"
	cmdRuntime      = "cmd"
	functionRuntime = "function"
)

// Functions of sandbox0 are all at one port, which is the agent's here. Ours have
// one each: they are the first that are free from firstFunction.
const firstFunction = 49900

// published is what a body says of a service. A worker has no port, and no entrance.
type published struct {
	service  *service.Service // nil for what is started by hand
	entrance *service.Entrance
}

// appBody is what can be said of a service.
var appBody = body.Vocabulary{
	need("id", body.AsText),
	word("display_name", body.AsText),
	word("port", body.AsPort),
	word("runtime.type", oneOf(manualRuntime, cmdRuntime, functionRuntime)),
	word("runtime.command", body.AsRules),
	word("runtime.cwd", body.AsText),
	word("runtime.env_vars", body.AsVars),
	word("runtime.function.runtime", oneOf("python")),
	word("runtime.function.handler", asHandler),
	word("runtime.function.max_concurrency", asConcurrency),
	word("runtime.function.source.type", oneOf("inline")),
	word("runtime.function.source.code", body.AsText),
	need("ingress.public", body.AsFlag),
	word("ingress.routes", asRoutes),
	word("health_check.path", body.AsText),
	ours("publishable"), ours("publish_blockers"), ours("public_url"),
}

// routeBody is what can be said of a route.
var routeBody = body.Vocabulary{
	need("id", body.AsText),
	word("path_prefix", body.AsText),
	word("methods", body.AsRules),
	word("auth.mode", oneOf(authNone, authBearer, authHeader)),
	word("auth.bearer_token_sha256", body.AsText),
	word("auth.header_name", body.AsText),
	word("auth.header_value_sha256", body.AsText),
	word("resume", body.AsFlag),
	refused("rewrite_prefix", "requests are passed on with the path that they came with"),
	refused("cors", "the service answers browsers itself: answers are passed on as they are"),
	refused("rate_limit", "this server bounds requests for each sandbox, and not for each route"),
	word("timeout_seconds", asNoLimit("requests last as long as the client and the service want")),
}

const (
	authNone   = "none"
	authBearer = "bearer"
	authHeader = "header"
)

// ours is a field of an answer. A client that sends a service back has it.
func ours(name string) body.Option {
	return word(name, form("anything: it is in answers only", func(string, []byte) (any, error) { return nil, nil }))
}

var asHandler = form("the name of a function", func(path string, raw []byte) (any, error) {
	text, err := body.AsText.Read(path, raw)
	if err != nil || text == "" {
		return nil, err
	}
	for part := range strings.SplitSeq(text.(string), ".") {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" || part[0] >= '0' && part[0] <= '9' {
			return nil, invalid(path, "is %s, which is not the name of a function", body.Brief(raw))
		}
	}
	return text, nil
})

// maxConcurrency is how many requests a function can be allowed at a time.
const maxConcurrency = 1024

var asConcurrency = form("an integer from 0 to 1024, 0 for no limit", func(path string, raw []byte) (any, error) {
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || n < 0 || n > maxConcurrency {
		return nil, invalid(path, "must be an integer from 0 to %d, not %s", maxConcurrency, body.Brief(raw))
	}
	return n, nil
})

// asList is an array of what a vocabulary says.
func asList[T any](of string, v *body.Vocabulary, make func(path string, w words) (T, error)) body.Form {
	return form("an array of "+of, func(path string, raw []byte) (any, error) {
		var items []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &items) != nil {
			return nil, invalid(path, "must be an array of %s", of)
		}
		list := []T{}
		for i, item := range items {
			at := path + "[" + strconv.Itoa(i) + "]"
			w, err := v.Parse(item, body.NullIsAbsent)
			if err != nil {
				return nil, body.InField(at, err)
			}
			one, err := make(at, w)
			if err != nil {
				return nil, err
			}
			list = append(list, one)
		}
		return list, nil
	})
}

var (
	asRoutes   = asList("routes", &routeBody, readRoute)
	asServices = asList("services", &appBody, readService)
)

func readRoute(at string, w words) (service.Route, error) {
	r := service.Route{Path: "/"}
	r.ID, _ = said[string](w, "id")
	if prefix, _ := said[string](w, "path_prefix"); prefix != "" {
		r.Path = path.Clean("/" + strings.TrimSpace(prefix))
	}
	methods, _ := said[[]string](w, "methods")
	for _, m := range methods {
		r.Methods = append(r.Methods, strings.ToUpper(strings.TrimSpace(m)))
	}
	if slices.Contains(r.Methods, "*") {
		r.Methods = nil
	}
	r.Resume, _ = said[bool](w, "resume")
	mode, _ := said[string](w, "auth.mode")
	text := func(name string) string {
		t, _ := said[string](w, "auth."+name)
		return strings.TrimSpace(t)
	}
	switch mode {
	case authBearer:
		r.Guard = service.Guard{Header: "Authorization", Bearer: true, SHA256: strings.ToLower(text("bearer_token_sha256"))}
	case authHeader:
		r.Guard = service.Guard{Header: http.CanonicalHeaderKey(text("header_name")), SHA256: strings.ToLower(text("header_value_sha256"))}
		if r.Guard.Header == "" {
			return r, invalid(at+".auth.header_name", "is required for this mode")
		}
	case "":
		if len(text("bearer_token_sha256"))+len(text("header_name"))+len(text("header_value_sha256")) > 0 {
			return r, invalid(at+".auth.mode", "is required: without it the route would be open")
		}
	}
	return r, nil
}

// readService makes of what is said of a service what is here. A port that is not
// said is 0.
func readService(at string, w words) (published, error) {
	e := &service.Entrance{Runtime: service.Manual}
	e.Name, _ = said[string](w, "id")
	e.Title, _ = said[string](w, "display_name")
	e.Port, _ = said[int](w, "port")
	e.Public, _ = said[bool](w, "ingress.public")
	e.Routes, _ = said[[]service.Route](w, "ingress.routes")
	if health, _ := said[string](w, "health_check.path"); health != "" {
		e.Health = "/" + strings.TrimPrefix(health, "/")
	}
	kind, was := said[string](w, "runtime.type")
	if !was && slices.ContainsFunc(slices.Collect(maps.Keys(w)), func(name string) bool { return strings.HasPrefix(name, "runtime.") }) {
		return published{}, invalid(at+".runtime.type", "is required beside the rest of a runtime")
	}
	s := &service.Service{Name: e.Name, Env: map[string]string{}, Restart: service.OnFailure}
	switch kind {
	case cmdRuntime:
		e.Runtime = service.Command
		s.Command, _ = said[[]string](w, "runtime.command")
		s.Cwd, _ = said[string](w, "runtime.cwd")
	case functionRuntime:
		e.Runtime = service.Function
		code, _ := said[string](w, "runtime.function.source.code")
		if strings.TrimSpace(code) == "" {
			return published{}, invalid(at+".runtime.function.source.code", "is required for a function")
		}
		handler, _ := said[string](w, "runtime.function.handler")
		most, _ := said[int](w, "runtime.function.max_concurrency")
		s.Command = callFunction(handler, most, code)
		if e.Port == agentapi.Port {
			e.Port = 0 // where sandbox0 has them all
		}
	default:
		s = nil
	}
	if s == nil || e.Runtime == service.Command {
		if _, was := said[string](w, "runtime.function.source.code"); was {
			return published{}, invalid(at+".runtime.function", "is for the type %q", functionRuntime)
		}
	}
	if e.Public && len(e.Routes) == 0 {
		e.Routes = []service.Route{{ID: e.Name, Path: "/"}}
	}
	if s == nil {
		return published{entrance: e}, nil
	}
	given, _ := said[map[string]string](w, "runtime.env_vars")
	maps.Copy(s.Env, given)
	s.Env[envService], s.Env[envRuntime] = e.Name, kind
	s.Resume = e.Public && slices.ContainsFunc(e.Routes, func(r service.Route) bool { return r.Resume })
	if e.Health != "" {
		s.Ready = service.Ready{Check: service.CheckHTTP, Path: e.Health}
	}
	return published{s, e}, nil
}

// settle gives functions their ports, those that they have had if they can, and
// returns what a sandbox is to have.
func settle(list []published, had []service.Service, autoResume bool) ([]service.Service, []service.Entrance, error) {
	taken := map[int]bool{agentapi.Port: true, agentapi.TunnelPort: true, agentapi.CodePort: true}
	for _, p := range list {
		taken[p.entrance.Port] = true
	}
	services, entrances := []service.Service{}, []service.Entrance{}
	for _, p := range list {
		e := *p.entrance
		if e.Runtime == service.Function && e.Port == 0 {
			if i := slices.IndexFunc(had, func(s service.Service) bool { return s.Name == e.Name && !taken[s.Port] }); i >= 0 {
				e.Port = had[i].Port
			}
			for n := firstFunction; e.Port == 0; n++ {
				if !taken[n] {
					e.Port = n
				}
			}
			taken[e.Port] = true
		}
		if e.Port == 0 && (e.Public || p.service == nil) {
			return nil, nil, invalid("services", "has service %q without a port, and requests are to reach it", body.Short(e.Name))
		}
		if !autoResume && resumes(e) {
			return nil, nil, invalid("services", "has service %q that requests are to resume the sandbox for, and its auto_resume is off", body.Short(e.Name))
		}
		if s := p.service; s != nil {
			one := *s
			one.Port = e.Port
			if e.Port != 0 {
				one.Env = maps.Clone(s.Env)
				one.Env[envPort] = strconv.Itoa(e.Port)
			}
			services = append(services, one.WithDefaults())
		}
		if e.Port != 0 {
			entrances = append(entrances, e)
		}
	}
	return services, entrances, nil
}

// resumes reports whether requests to a service are to resume its sandbox.
func resumes(e service.Entrance) bool {
	return e.Public && slices.ContainsFunc(e.Routes, func(r service.Route) bool { return r.Resume })
}

func listServices(s *server, c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	return ok(s.viewServices(c, sb))
}

func setServices(s *server, c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	list, _ := said[[]published](c.words, "services")
	services, entrances, err := settle(list, sb.Config.Services, sb.Record.Settings.AutoResume)
	if err != nil {
		return reply{}, err
	}
	if err := s.Services.Publish(c.r.Context(), c.sandbox, services, entrances, supervisor.Patch{}, c.actor); err != nil {
		return reply{}, err
	}
	return listServices(s, c)
}

// The views of services.
type (
	servicesView struct {
		SandboxID string    `json:"sandbox_id"`
		Services  []appView `json:"services"`
		Domain    string    `json:"exposure_domain,omitempty"`
	}
	appView struct {
		ID          string       `json:"id"`
		DisplayName string       `json:"display_name,omitempty"`
		Port        int          `json:"port,omitempty"`
		Runtime     *runtimeView `json:"runtime,omitempty"`
		Ingress     ingressView  `json:"ingress"`
		Health      *healthView  `json:"health_check,omitempty"`
		Publishable bool         `json:"publishable"`
		Blockers    []string     `json:"publish_blockers"`
		URL         string       `json:"public_url,omitempty"`
	}
	runtimeView struct {
		Type     string            `json:"type"`
		Command  []string          `json:"command,omitempty"`
		Cwd      string            `json:"cwd,omitempty"`
		Env      map[string]string `json:"env_vars,omitempty"`
		Function *functionView     `json:"function,omitempty"`
	}
	functionView struct {
		Runtime        string     `json:"runtime"`
		Handler        string     `json:"handler"`
		MaxConcurrency int        `json:"max_concurrency,omitempty"`
		Source         sourceView `json:"source"`
	}
	sourceView struct {
		Type string `json:"type"`
		Code string `json:"code"`
	}
	healthView struct {
		Path string `json:"path"`
	}
	ingressView struct {
		Public bool        `json:"public"`
		Routes []routeView `json:"routes"`
	}
	routeView struct {
		ID      string    `json:"id"`
		Path    string    `json:"path_prefix"`
		Methods []string  `json:"methods,omitempty"`
		Auth    *authView `json:"auth,omitempty"`
		Resume  bool      `json:"resume"`
	}
	authView struct {
		Mode         string `json:"mode"`
		BearerSHA256 string `json:"bearer_token_sha256,omitempty"`
		HeaderName   string `json:"header_name,omitempty"`
		HeaderSHA256 string `json:"header_value_sha256,omitempty"`
	}
)

func (s *server) viewServices(c *call, sb store.Sandbox) servicesView {
	return servicesView{SandboxID: sb.ID, Services: s.viewApps(c, sb), Domain: s.Domain}
}

// viewApps shows the services of a sandbox: first those that the server runs, then
// those that are started by hand.
func (s *server) viewApps(c *call, sb store.Sandbox) []appView {
	views := []appView{}
	for i := range sb.Config.Services {
		one := &sb.Config.Services[i]
		e := service.EntranceTo(sb.Config.Entrances, one.Port)
		if e == nil || one.Port == 0 {
			e = openEntrance(one, sb.Config.PrivatePorts)
		}
		views = append(views, s.viewApp(c, sb, e, one))
	}
	for i := range sb.Config.Entrances {
		if e := &sb.Config.Entrances[i]; e.Runtime == service.Manual {
			views = append(views, s.viewApp(c, sb, e, nil))
		}
	}
	return views
}

// openEntrance is how requests reach a service that came to be by another API.
func openEntrance(s *service.Service, private bool) *service.Entrance {
	e := &service.Entrance{Name: s.Name, Port: s.Port, Runtime: service.Command, Public: s.Port != 0 && !private}
	if s.Ready.Check == service.CheckHTTP {
		e.Health = s.Ready.Path
	}
	if s.Port != 0 {
		route := strings.TrimSuffix(s.Route, "/")
		if route == "" {
			route = "/"
		}
		e.Routes = []service.Route{{ID: s.Name, Path: route, Resume: s.Resume}}
	}
	return e
}

// viewApp shows a service. What it is made of is for those who may use the sandbox.
func (s *server) viewApp(c *call, sb store.Sandbox, e *service.Entrance, one *service.Service) appView {
	v := appView{ID: e.Name, DisplayName: e.Title, Port: e.Port, Ingress: ingressView{Public: e.Public, Routes: []routeView{}}, Blockers: []string{}}
	mayUse := auth.May(c.key, auth.Use)
	for _, r := range e.Routes {
		v.Ingress.Routes = append(v.Ingress.Routes, viewRoute(r))
	}
	if e.Health != "" {
		v.Health = &healthView{e.Health}
	}
	if !e.Public {
		v.Blockers = append(v.Blockers, "not_public")
	} else {
		v.URL = httpapi.PortURL(c.r, s.Domain, sb.ID, e.Port)
	}
	if one == nil {
		v.Runtime = &runtimeView{Type: manualRuntime}
		v.Blockers = append(v.Blockers, "manual_runtime")
	} else {
		v.Runtime = viewRuntime(e.Runtime, one, mayUse)
	}
	v.Publishable = len(v.Blockers) == 0
	return v
}

func viewRuntime(kind service.Runtime, s *service.Service, mayUse bool) *runtimeView {
	v := &runtimeView{Type: cmdRuntime, Command: s.Command, Cwd: s.Cwd}
	if s.Shell != "" {
		v.Command = []string{"sh", "-c", s.Shell}
	}
	if handler, most, code, is := functionOf(s.Command); is && kind == service.Function {
		v = &runtimeView{Type: functionRuntime, Function: &functionView{Runtime: "python", Handler: handler, MaxConcurrency: most, Source: sourceView{Type: "inline", Code: code}}}
		if !mayUse {
			v.Function.Source.Code = ""
		}
	}
	if mayUse {
		v.Env = maps.Clone(s.Env)
		for _, name := range []string{envService, envPort, envRuntime} {
			delete(v.Env, name)
		}
	}
	return v
}

func viewRoute(r service.Route) routeView {
	v := routeView{ID: r.ID, Path: r.Path, Methods: r.Methods, Resume: r.Resume}
	switch {
	case r.Guard.Bearer:
		v.Auth = &authView{Mode: authBearer, BearerSHA256: r.Guard.SHA256}
	case r.Guard.Header != "":
		v.Auth = &authView{Mode: authHeader, HeaderName: r.Guard.Header, HeaderSHA256: r.Guard.SHA256}
	}
	return v
}
