package sandbox0

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
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
	reads   dialect.Reads
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
		{post, all, use, none, (*server).claim, dialect.Takes(claimBody)},
		{get, all, look, none, (*server).list, dialect.Nothing},
		{get, one, look, none, (*server).get, dialect.Nothing},
		{put, one, use, none, (*server).update, dialect.Takes(updateBody)},
		{del, one, use, none, (*server).remove, dialect.Nothing},
		{get, one + "/status", look, none, (*server).status, dialect.Nothing},
		{post, one + "/pause", use, none, (*server).pause, dialect.Takes(memoryBody, "async")},
		{post, one + "/resume", use, none, (*server).resume, dialect.Takes(memoryBody)},
		{post, one + "/refresh", use, none, (*server).refresh, dialect.Takes(refreshBody)},
		{get, one + "/network", look, none, network, dialect.Nothing},
		{put, one + "/network", use, none, setNetwork, dialect.Takes(networkBody)},
		{get, one + "/services", look, none, listServices, dialect.Nothing},
		{put, one + "/services", use, none, setServices, dialect.Takes(servicesBody)},

		{post, allContexts, use, enters, (*server).createContext, dialect.Takes(contextBody)},
		{get, allContexts, use, enters, (*server).listContexts, dialect.Nothing},
		{get, oneContext, use, enters, (*server).getContext, dialect.Nothing},
		{del, oneContext, use, enters, (*server).deleteContext, dialect.Nothing},
		{post, oneContext + "/restart", use, enters, (*server).restartContext, dialect.Nothing},
		{post, oneContext + "/input", use, enters, (*server).contextInput, dialect.Takes(inputBody)},
		{post, oneContext + "/exec", use, enters, (*server).contextExec, dialect.Takes(inputBody)},
		{post, oneContext + "/resize", use, enters, (*server).contextResize, dialect.Takes(resizeBody)},
		{post, oneContext + "/signal", use, enters, (*server).contextSignal, dialect.Takes(signalBody)},
		{get, oneContext + "/ws", use, enters, (*server).contextSocket, dialect.Nothing},

		{get, allFiles, use, enters, readFile, dialect.Nothing},
		{post, allFiles, use, enters, writeFile, dialect.Raw("path", "mkdir", "recursive")},
		{del, allFiles, use, enters, deleteFile, dialect.Takes(nil, "path")},
		{post, allFiles + "/move", use, enters, moveFile, dialect.Takes(moveBody)},
		{get, allFiles + "/stat", use, enters, statFile, dialect.Nothing},
		{get, allFiles + "/list", use, enters, listFiles, dialect.Nothing},
		{get, allFiles + "/watch", use, enters, watchFiles, dialect.Nothing},

		{post, one + "/snapshots", use, none, createSnapshot, dialect.Takes(snapshotBody)},
		{get, one + "/snapshots", look, none, listSnapshots, dialect.Nothing},
		{get, oneSnapshot, look, none, getSnapshot, dialect.Nothing},
		{del, oneSnapshot, use, none, deleteSnapshot, dialect.Nothing},
		{post, one + "/rootfs/restore", use, none, restore, dialect.Takes(restoreBody)},
		{post, one + "/fork", use, none, fork, dialect.Takes(forkBody)},

		{get, base + "/templates", look, none, listTemplates, dialect.Nothing},
		{get, base + "/templates/{" + templateParam + "}", look, none, getTemplate, dialect.Nothing},

		{post, allVolumes, share, none, createVolume, dialect.Takes(volumeBody)},
		{get, allVolumes, share, none, listVolumes, dialect.Nothing},
		{get, allVolumes + "/{" + volumeParam + "}", share, none, getVolume, dialect.Nothing},
		{del, allVolumes + "/{" + volumeParam + "}", share, none, deleteVolume, dialect.Takes(nil, "force")},
	}
}
