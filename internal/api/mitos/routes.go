package mitos

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
)

// Prefix begins all paths of the dialect.
const Prefix = "/mitos"

// kind is the form of a route's requests, answers and errors.
type kind string

const (
	rest    kind = "rest"
	unary   kind = "unary"   // one message each way
	streams kind = "streams" // messages in frames
	socket  kind = "socket"  // frames in a WebSocket
)

// route is one endpoint.
type route struct {
	method  string
	pattern string
	kind    kind
	access  auth.Permission
	handle  func(*server, *call) (any, error)
	// stream answers instead, for the routes of frames.
	stream func(*server, *call) error
	reads  dialect.Reads
}

const (
	sandboxParam = "id"
	sandboxWord  = "sandbox" // of bodies

	v1      = Prefix + "/v1"
	one     = v1 + "/sandboxes/{" + sandboxParam + "}"
	service = Prefix + "/sandbox.v1.Sandbox/"

	get  = http.MethodGet
	post = http.MethodPost
	del  = http.MethodDelete
)

// routes returns all endpoints. Those of mitos that drowse has nothing for are
// refused by name.
func routes() []route {
	return []route{
		{get, v1 + "/health", rest, auth.Look, health, nil, dialect.Nothing},
		{get, v1 + "/templates", rest, auth.Look, listTemplates, nil, dialect.Nothing},
		{post, v1 + "/templates", rest, auth.Use, ensureTemplate, nil, dialect.Takes(templateBody)},
		{post, v1 + "/fork", rest, auth.Use, create, nil, dialect.Takes(createBody)},
		{get, v1 + "/sandboxes", rest, auth.Look, list, nil, dialect.Nothing},
		{del, one, rest, auth.Use, terminate, nil, dialect.Nothing},
		{post, one + "/fork", rest, auth.Use, fork, nil, dialect.Takes(forkBody)},
		{post, v1 + "/set_timeout", rest, auth.Use, setTimeout, nil, dialect.Takes(timeoutBody)},
		{post, v1 + "/pause", rest, auth.Use, pause, nil, dialect.Takes(sandboxBody)},
		{post, v1 + "/resume", rest, auth.Use, resume, nil, dialect.Takes(sandboxBody)},
		{post, v1 + "/preview", rest, auth.Use, createPreview, nil, dialect.Takes(previewBody)},
		{post, one + "/forward", rest, auth.Use, unbuilt, nil, dialect.Unjudged},
		{get, one + "/expose/{port}", rest, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, one + "/expose/{port}", rest, auth.Use, unbuilt, nil, dialect.Unjudged},

		{post, service + "ExecStream", streams, auth.Use, nil, execStream, dialect.Raw()},
		{post, service + "RunCodeStream", streams, auth.Use, nil, runCode, dialect.Raw()},
		{post, service + "ReadFile", streams, auth.Use, nil, readFile, dialect.Raw()},
		{post, service + "WriteFile", streams, auth.Use, nil, writeFile, dialect.Raw()},
		{post, service + "List", unary, auth.Use, listDir, nil, dialect.Takes(listBody)},
		{post, service + "Stat", unary, auth.Use, stat, nil, dialect.Takes(pathBody)},
		{post, service + "Mkdir", unary, auth.Use, mkdir, nil, dialect.Takes(pathBody)},
		{post, service + "Remove", unary, auth.Use, remove, nil, dialect.Takes(removeBody)},
		{get, service + "Exec", socket, auth.Use, nil, terminal, dialect.Raw(querySandbox)},

		{post, service + "Exec", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "RunCode", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Archive", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Upload", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Watch", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Processes", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Signal", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "PortForward", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Vitals", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Fork", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Checkpoint", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "ExtendLifetime", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
		{post, service + "Budget", unary, auth.Use, unbuilt, nil, dialect.Unjudged},
	}
}

func newRouter() httpapi.Router[route] {
	return httpapi.NewRouter(routes(), func(r *route) (method, pattern string) { return r.method, r.pattern })
}

// Endpoints returns all routes.
func Endpoints() (list []httpapi.Endpoint) {
	for _, r := range routes() {
		list = append(list, httpapi.Endpoint{Method: r.method, Pattern: r.pattern, Needs: r.access})
	}
	return list
}
