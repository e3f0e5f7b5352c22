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

	snapshotParam = "snapshot"
	templateParam = "template"
	volumeParam   = "volume"
)

// access is the permission that a route needs.
type access auth.Permission

const (
	look  = access(auth.Look)
	use   = access(auth.Use)
	share = access(auth.Share)
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

// Endpoints returns all routes.
func Endpoints() (list []httpapi.Endpoint) {
	for _, r := range routes {
		list = append(list, httpapi.Endpoint{Method: r.method, Pattern: r.pattern, Needs: auth.Permission(r.access)})
	}
	return list
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
	allFiles    = one + "/files"
	oneSnapshot = base + "/sandbox-rootfs-snapshots/{" + snapshotParam + "}"
	allVolumes  = base + "/sandboxvolumes"
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
		{get, one + "/network", look, none, network, nil},
		{put, one + "/network", use, none, setNetwork, networkBody},
		{get, one + "/services", look, none, listServices, nil},
		{put, one + "/services", use, none, setServices, servicesBody},

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

		{get, allFiles, use, enters, readFile, nil},
		{post, allFiles, use, enters, writeFile, nil},
		{del, allFiles, use, enters, deleteFile, nil},
		{post, allFiles + "/move", use, enters, moveFile, moveBody},
		{get, allFiles + "/stat", use, enters, statFile, nil},
		{get, allFiles + "/list", use, enters, listFiles, nil},
		{get, allFiles + "/watch", use, enters, watchFiles, nil},

		{post, one + "/snapshots", use, none, createSnapshot, snapshotBody},
		{get, one + "/snapshots", look, none, listSnapshots, nil},
		{get, oneSnapshot, look, none, getSnapshot, nil},
		{del, oneSnapshot, use, none, deleteSnapshot, nil},
		{post, one + "/rootfs/restore", use, none, restore, restoreBody},
		{post, one + "/fork", use, none, fork, forkBody},

		{get, base + "/templates", look, none, listTemplates, nil},
		{get, base + "/templates/{" + templateParam + "}", look, none, getTemplate, nil},

		{post, allVolumes, share, none, createVolume, volumeBody},
		{get, allVolumes, share, none, listVolumes, nil},
		{get, allVolumes + "/{" + volumeParam + "}", share, none, getVolume, nil},
		{del, allVolumes + "/{" + volumeParam + "}", share, none, deleteVolume, nil},
	}
}
