package e2b

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
)

// The path parameters that mean something. That of a sandbox is validated before
// the handler runs.
const (
	sandboxParam = "sandboxID"
	keyParam     = "keyID"
	webhookParam = "webhookID"
)

// nothing is what an open route needs: not even a key.
const nothing auth.Permission = ""

// eventsParam names a sandbox whose events are asked for.
const eventsParam = "id"

// route is one endpoint.
type route struct {
	method  string
	pattern string
	needs   auth.Permission // of the API key
	handle  func(*server, *call) (reply, error)
}

func newRouter() httpapi.Router[route] {
	return httpapi.NewRouter(routes, func(r *route) (method, pattern string) { return r.method, r.pattern })
}

// Endpoints returns all routes.
func Endpoints() (list []httpapi.Endpoint) {
	for _, r := range routes {
		list = append(list, httpapi.Endpoint{Method: r.method, Pattern: r.pattern, Needs: r.needs})
	}
	return list
}

// routes are all endpoints. Those of E2B that are not built yet are refused as
// such: a client learns that the server lacks them, not that what it asked for
// does not exist.
var routes = append([]route{
	{http.MethodGet, "/health", nothing, health},

	{http.MethodPost, "/sandboxes", auth.Use, (*server).createV1},
	{http.MethodPost, "/v2/sandboxes", auth.Use, (*server).createV2},
	{http.MethodGet, "/sandboxes", auth.Look, (*server).listV1},
	{http.MethodGet, "/v2/sandboxes", auth.Look, (*server).listV2},
	{http.MethodGet, "/sandboxes/{sandboxID}", auth.Look, (*server).get},
	{http.MethodDelete, "/sandboxes/{sandboxID}", auth.Use, (*server).kill},
	{http.MethodPost, "/sandboxes/{sandboxID}/pause", auth.Use, (*server).pause},
	{http.MethodPost, "/sandboxes/{sandboxID}/connect", auth.Use, (*server).connectV1},
	{http.MethodPost, "/v2/sandboxes/{sandboxID}/connect", auth.Use, (*server).connectV2},
	{http.MethodPost, "/sandboxes/{sandboxID}/resume", auth.Use, (*server).resume},
	{http.MethodPost, "/sandboxes/{sandboxID}/timeout", auth.Use, (*server).setTimeout},
	{http.MethodPost, "/sandboxes/{sandboxID}/refreshes", auth.Use, (*server).refresh},
	{http.MethodPut, "/sandboxes/{sandboxID}/network", auth.Use, (*server).setNetwork},

	{http.MethodPost, "/sandboxes/{sandboxID}/snapshots", auth.Use, createSnapshot},
	{http.MethodGet, "/snapshots", auth.Look, listSnapshots},
	{http.MethodDelete, "/templates/{templateID}", auth.Use, deleteTemplate},
	{http.MethodPost, "/sandboxes/{sandboxID}/fork", auth.Use, forkV1},
	{http.MethodPost, "/v2/sandboxes/{sandboxID}/fork", auth.Use, forkV2},
	{http.MethodPost, "/sandboxes/{sandboxID}/clone", auth.Use, clone},       // Novita's
	{http.MethodPost, "/sandboxes/{sandboxID}/rollback", auth.Use, rollback}, // CubeSandbox's

	{http.MethodGet, "/sandboxes/quota", auth.Look, tellQuota},
	{http.MethodGet, "/sandboxes/events", auth.LookAll, eventsInPage},

	{http.MethodGet, "/teams", auth.Look, (*server).teams},
	{http.MethodGet, "/api-keys", auth.Manage, (*server).keys},
	{http.MethodPost, "/api-keys", auth.Manage, (*server).createKey},
	{http.MethodDelete, "/api-keys/{keyID}", auth.Manage, (*server).revokeKey},

	{http.MethodPost, "/volumes", auth.Share, (*server).createVolume},
	{http.MethodGet, "/volumes", auth.Share, (*server).listVolumes},
	{http.MethodGet, "/volumes/{volumeID}", auth.Share, (*server).getVolume},
	{http.MethodDelete, "/volumes/{volumeID}", auth.Share, (*server).deleteVolume},

	{http.MethodGet, "/secrets", auth.Look, (*server).refuseSecrets},
	{http.MethodPost, "/secrets", auth.Use, (*server).refuseSecrets},
	{http.MethodGet, "/secrets/{secret}", auth.Look, (*server).refuseSecrets},
	{http.MethodPost, "/secrets/{secret}", auth.Use, (*server).refuseSecrets},
	{http.MethodDelete, "/secrets/{secret}", auth.Use, (*server).refuseSecrets},

	{http.MethodGet, "/sandboxes/{sandboxID}/metrics", auth.Look, (*server).metrics},
	{http.MethodGet, "/sandboxes/metrics", auth.Look, (*server).lastMetrics},
	{http.MethodGet, "/teams/{teamID}/metrics", auth.LookAll, (*server).fleetMetrics},
	{http.MethodGet, "/teams/{teamID}/metrics/max", auth.LookAll, (*server).fleetPeak},
	{http.MethodGet, "/sandboxes/{sandboxID}/logs", auth.Look, (*server).logsV1},
	{http.MethodGet, "/v2/sandboxes/{sandboxID}/logs", auth.Look, (*server).logsV2},

	{http.MethodGet, "/templates", auth.Look, (*server).templates},
	{http.MethodGet, "/v2/templates", auth.Look, pageOfTemplates},
	{http.MethodGet, "/templates/{templateID}", auth.Look, (*server).template},
	{http.MethodGet, "/templates/aliases/{alias}", auth.Look, (*server).alias},

	{http.MethodPost, "/v3/templates", auth.Use, requestBuild},
	{http.MethodPost, "/v2/templates/{templateID}/builds/{buildID}", auth.Use, startBuild},
	{http.MethodGet, "/templates/{templateID}/builds/{buildID}/status", auth.Look, buildStatus},
	{http.MethodGet, "/templates/{templateID}/builds/{buildID}/logs", auth.Look, buildLogs},
	{http.MethodGet, "/templates/{templateID}/files/{hash}", auth.Use, buildFiles},
	{http.MethodPut, "/templates/{templateID}/files/{hash}", nothing, putFiles}, // the address is the secret
	{http.MethodPost, "/templates/tags", auth.Use, assignTags},
	{http.MethodDelete, "/templates/tags", auth.Use, removeTags},
	{http.MethodGet, "/templates/{templateID}/tags", auth.Look, listTags},

	// The events of a sandbox outlive it, so its id is not looked up.
	{http.MethodGet, "/events/sandboxes", auth.LookAll, (*server).events},
	{http.MethodGet, "/events/sandboxes/{" + eventsParam + "}", auth.LookAll, (*server).sandboxEvents},
	{http.MethodGet, "/events/webhooks", auth.Manage, (*server).webhooks},
	{http.MethodPost, "/events/webhooks", auth.Manage, (*server).createWebhook},
	{http.MethodGet, "/events/webhooks/{" + webhookParam + "}", auth.Manage, (*server).webhook},
	{http.MethodPatch, "/events/webhooks/{" + webhookParam + "}", auth.Manage, (*server).changeWebhook},
	{http.MethodDelete, "/events/webhooks/{" + webhookParam + "}", auth.Manage, (*server).deleteWebhook},
	{http.MethodGet, "/events/webhooks/{" + webhookParam + "}/deliveries", auth.Manage, (*server).deliveries},
	{http.MethodGet, "/events/webhooks/{" + webhookParam + "}/stats", auth.Manage, (*server).webhookStats},
}, unbuilt(
	// Of others that speak this API. Their clients take a 404 for a sandbox that
	// is not there.
	"POST /sandboxes/{sandboxID}/reset",
	"POST /sandboxes/{sandboxID}/hotplug-memory",
	"POST /sandboxes/{sandboxID}/volume-mounts",
	"DELETE /sandboxes/{sandboxID}/volume-mounts",
	"POST /sandboxes/{sandboxID}/commit",

	// Templates.
	"POST /templates",
	"POST /v2/templates",
	"POST /templates/{templateID}",
	"PATCH /templates/{templateID}",
	"PATCH /v2/templates/{templateID}",
	"POST /templates/{templateID}/builds/{buildID}",

	// Teams, keys, administration.
	"PATCH /api-keys/{keyID}",
	"POST /access-tokens",
	"DELETE /access-tokens/{tokenID}",
	"GET /nodes",
	"GET /nodes/{nodeID}",
	"POST /nodes/{nodeID}",
	"POST /admin/teams/{teamID}/sandboxes/kill",
	"POST /admin/teams/{teamID}/builds/cancel",
	"POST /admin/teams/{teamID}/api-keys",
	"DELETE /admin/teams/{teamID}/api-keys/{keyID}",
	"GET /admin/sandboxes/running-counts",
)...)
