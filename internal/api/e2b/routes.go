package e2b

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/dialect"
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
	reads   dialect.Reads
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
	{http.MethodGet, "/health", nothing, health, dialect.Nothing},

	{http.MethodPost, "/sandboxes", auth.Use, (*server).createV1, dialect.Needs(createBody)},
	{http.MethodPost, "/v2/sandboxes", auth.Use, (*server).createV2, dialect.Needs(createBody)},
	{http.MethodGet, "/sandboxes", auth.Look, (*server).listV1, dialect.Nothing},
	{http.MethodGet, "/v2/sandboxes", auth.Look, (*server).listV2, dialect.Nothing},
	{http.MethodGet, "/sandboxes/{sandboxID}", auth.Look, (*server).get, dialect.Nothing},
	{http.MethodDelete, "/sandboxes/{sandboxID}", auth.Use, (*server).kill, dialect.Nothing},
	{http.MethodPost, "/sandboxes/{sandboxID}/pause", auth.Use, (*server).pause, dialect.Takes(pauseBody)},
	{http.MethodPost, "/sandboxes/{sandboxID}/connect", auth.Use, (*server).connectV1, dialect.Takes(wakeBody)},
	{http.MethodPost, "/v2/sandboxes/{sandboxID}/connect", auth.Use, (*server).connectV2, dialect.Takes(wakeBody)},
	{http.MethodPost, "/sandboxes/{sandboxID}/resume", auth.Use, (*server).resume, dialect.Takes(wakeBody)},
	{http.MethodPost, "/sandboxes/{sandboxID}/timeout", auth.Use, (*server).setTimeout, dialect.Needs(timeoutBody)},
	{http.MethodPost, "/sandboxes/{sandboxID}/refreshes", auth.Use, (*server).refresh, dialect.Takes(refreshBody)},
	{http.MethodPut, "/sandboxes/{sandboxID}/network", auth.Use, (*server).setNetwork, dialect.Needs(networkBody)},

	{http.MethodPost, "/sandboxes/{sandboxID}/snapshots", auth.Use, createSnapshot, dialect.Takes(snapshotBody)},
	{http.MethodGet, "/snapshots", auth.Look, listSnapshots, dialect.Nothing},
	{http.MethodDelete, "/templates/{templateID}", auth.Use, deleteTemplate, dialect.Nothing},
	{http.MethodPost, "/sandboxes/{sandboxID}/fork", auth.Use, forkV1, dialect.Takes(forkBody)},
	{http.MethodPost, "/v2/sandboxes/{sandboxID}/fork", auth.Use, forkV2, dialect.Takes(forkBody)},
	{http.MethodPost, "/sandboxes/{sandboxID}/clone", auth.Use, clone, dialect.Takes(cloneBody)},          // Novita's
	{http.MethodPost, "/sandboxes/{sandboxID}/rollback", auth.Use, rollback, dialect.Needs(rollbackBody)}, // CubeSandbox's

	{http.MethodGet, "/sandboxes/quota", auth.Look, tellQuota, dialect.Nothing},
	{http.MethodGet, "/sandboxes/events", auth.LookAll, eventsInPage, dialect.Nothing},

	{http.MethodGet, "/teams", auth.Look, (*server).teams, dialect.Nothing},
	{http.MethodGet, "/api-keys", auth.Manage, (*server).keys, dialect.Nothing},
	{http.MethodPost, "/api-keys", auth.Manage, (*server).createKey, dialect.Needs(keyBody)},
	{http.MethodDelete, "/api-keys/{keyID}", auth.Manage, (*server).revokeKey, dialect.Nothing},

	{http.MethodPost, "/volumes", auth.Share, (*server).createVolume, dialect.Needs(volumeBody)},
	{http.MethodGet, "/volumes", auth.Share, (*server).listVolumes, dialect.Nothing},
	{http.MethodGet, "/volumes/{volumeID}", auth.Share, (*server).getVolume, dialect.Nothing},
	{http.MethodDelete, "/volumes/{volumeID}", auth.Share, (*server).deleteVolume, dialect.Nothing},

	{http.MethodGet, "/secrets", auth.Look, (*server).refuseSecrets, dialect.Unjudged},
	{http.MethodPost, "/secrets", auth.Use, (*server).refuseSecrets, dialect.Unjudged},
	{http.MethodGet, "/secrets/{secret}", auth.Look, (*server).refuseSecrets, dialect.Unjudged},
	{http.MethodPost, "/secrets/{secret}", auth.Use, (*server).refuseSecrets, dialect.Unjudged},
	{http.MethodDelete, "/secrets/{secret}", auth.Use, (*server).refuseSecrets, dialect.Unjudged},

	{http.MethodGet, "/sandboxes/{sandboxID}/metrics", auth.Look, (*server).metrics, dialect.Nothing},
	{http.MethodGet, "/sandboxes/metrics", auth.Look, (*server).lastMetrics, dialect.Nothing},
	{http.MethodGet, "/teams/{teamID}/metrics", auth.LookAll, (*server).fleetMetrics, dialect.Nothing},
	{http.MethodGet, "/teams/{teamID}/metrics/max", auth.LookAll, (*server).fleetPeak, dialect.Nothing},
	{http.MethodGet, "/sandboxes/{sandboxID}/logs", auth.Look, (*server).logsV1, dialect.Nothing},
	{http.MethodGet, "/v2/sandboxes/{sandboxID}/logs", auth.Look, (*server).logsV2, dialect.Nothing},

	{http.MethodGet, "/templates", auth.Look, (*server).templates, dialect.Nothing},
	{http.MethodGet, "/v2/templates", auth.Look, pageOfTemplates, dialect.Nothing},
	{http.MethodGet, "/templates/{templateID}", auth.Look, (*server).template, dialect.Nothing},
	{http.MethodGet, "/templates/aliases/{alias}", auth.Look, (*server).alias, dialect.Nothing},

	{http.MethodPost, "/v3/templates", auth.Use, requestBuild, dialect.Needs(requestBody)},
	{http.MethodPost, "/v2/templates/{templateID}/builds/{buildID}", auth.Use, startBuild, dialect.Needs(startBody)},
	{http.MethodGet, "/templates/{templateID}/builds/{buildID}/status", auth.Look, buildStatus, dialect.Nothing},
	{http.MethodGet, "/templates/{templateID}/builds/{buildID}/logs", auth.Look, buildLogs, dialect.Nothing},
	{http.MethodGet, "/templates/{templateID}/files/{hash}", auth.Use, buildFiles, dialect.Nothing},
	{http.MethodPut, "/templates/{templateID}/files/{hash}", nothing, putFiles, dialect.Unjudged}, // the address is the secret
	{http.MethodPost, "/templates/tags", auth.Use, assignTags, dialect.Needs(tagBody)},
	{http.MethodDelete, "/templates/tags", auth.Use, removeTags, dialect.Needs(untagBody)},
	{http.MethodGet, "/templates/{templateID}/tags", auth.Look, listTags, dialect.Nothing},

	// The events of a sandbox outlive it, so its id is not looked up.
	{http.MethodGet, "/events/sandboxes", auth.LookAll, (*server).events, dialect.Nothing},
	{http.MethodGet, "/events/sandboxes/{" + eventsParam + "}", auth.LookAll, (*server).sandboxEvents, dialect.Nothing},
	{http.MethodGet, "/events/webhooks", auth.Manage, (*server).webhooks, dialect.Nothing},
	{http.MethodPost, "/events/webhooks", auth.Manage, (*server).createWebhook, dialect.Needs(webhookBody)},
	{http.MethodGet, "/events/webhooks/{" + webhookParam + "}", auth.Manage, (*server).webhook, dialect.Nothing},
	{http.MethodPatch, "/events/webhooks/{" + webhookParam + "}", auth.Manage, (*server).changeWebhook, dialect.Needs(webhookBody)},
	{http.MethodDelete, "/events/webhooks/{" + webhookParam + "}", auth.Manage, (*server).deleteWebhook, dialect.Nothing},
	{http.MethodGet, "/events/webhooks/{" + webhookParam + "}/deliveries", auth.Manage, (*server).deliveries, dialect.Nothing},
	{http.MethodGet, "/events/webhooks/{" + webhookParam + "}/stats", auth.Manage, (*server).webhookStats, dialect.Nothing},
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
