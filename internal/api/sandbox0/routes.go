package sandbox0

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
)

// The path parameters.
const (
	sandboxParam = "id"
	contextParam = "ctx"
)

// access is the permission that a route needs.
type access auth.Permission

const (
	look = access(auth.Look)
	use  = access(auth.Use)
)

// effect says what a call means for the sandbox that it names.
type effect string

const (
	none   effect = ""       // neither activity nor a wake
	enters effect = "enters" // it reaches inside: activity, and a wake where that is allowed
)

// route is one endpoint.
type route struct {
	method  string
	pattern string
	access  access
	effect  effect
	handle  func(*server, *call) (reply, error)
	body    body.Vocabulary // what the body can say; nil for none, or for one that is not JSON
}

func newRouter() httpapi.Router[route] {
	return httpapi.NewRouter(routes, func(r *route) (method, pattern string) { return r.method, r.pattern })
}

const (
	get  = http.MethodGet
	post = http.MethodPost
	put  = http.MethodPut
	del  = http.MethodDelete

	all         = base + "/sandboxes"
	one         = all + "/{" + sandboxParam + "}"
	allContexts = one + "/contexts"
	oneContext  = allContexts + "/{" + contextParam + "}"
)

// routes are all endpoints. All others of sandbox0 answer 501.
var routes []route

func init() { // the handlers refer to the bodies, and the bodies of routes to nothing
	routes = []route{
		{post, all, use, none, (*server).claim, claimBody},
		{get, all, look, none, (*server).list, nil},
		{get, one, look, none, (*server).get, nil},
		{put, one, use, none, (*server).update, updateBody},
		{del, one, use, none, (*server).remove, nil},
		{get, one + "/status", look, none, (*server).status, nil},
		{post, one + "/pause", use, none, (*server).pause, memoryBody},
		{post, one + "/resume", use, none, (*server).resume, memoryBody},
		{post, one + "/refresh", use, none, (*server).refresh, refreshBody},
		{get, one + "/network", look, none, (*server).network, nil},
		{put, one + "/network", use, none, (*server).setNetwork, networkBody},

		{post, allContexts, use, enters, (*server).createContext, contextBody},
		{get, allContexts, use, enters, (*server).listContexts, nil},
		{get, oneContext, use, enters, (*server).getContext, nil},
		{del, oneContext, use, enters, (*server).deleteContext, nil},
		{post, oneContext + "/restart", use, enters, (*server).restartContext, nil},
		{post, oneContext + "/input", use, enters, (*server).contextInput, inputBody},
		{post, oneContext + "/exec", use, enters, (*server).contextExec, inputBody},
		{post, oneContext + "/resize", use, enters, (*server).contextResize, resizeBody},
		{post, oneContext + "/signal", use, enters, (*server).contextSignal, signalBody},
		{get, oneContext + "/ws", use, enters, (*server).contextSocket, nil},
	}
}
