package v1

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/service"
)

// The path parameters.
const (
	sandboxParam = "id"
	holdParam    = "holdId"
	previewParam = "previewId"
	keyParam     = "keyId"
	serverParam  = "serverId"
	sshKeyParam  = "sshKeyId"
	secretParam  = "secret"
	serviceParam = "service"
	volumeParam  = "volumeId"
	// templateParam is a template's name or id. A slash in it is written as %2F.
	templateParam = "template"
	// snapshotParam is a snapshot's id or name, likewise.
	snapshotParam = "snapshot"
)

// The parameters of the query string of an import.
const (
	newIDParam   = "newId"
	secretsParam = "secrets"
	modeParam    = "mode"
)

// beforeParam is the parameter of the query string of the events of a sandbox.
const beforeParam = "before"

// nameParam is the parameter of the query string of a load.
const nameParam = "name"

// access says who may call a route.
type access string

const (
	open = access("open") // anybody
	// Who has an API key with that permission.
	look   = access(auth.Look)
	use    = access(auth.Use)
	share  = access(auth.Share)
	manage = access(auth.Manage)
)

// effect says what a call means for the sandbox that it names, besides what it
// asks for.
type effect string

const (
	none     effect = ""         // neither activity nor a wake
	activity effect = "activity" // the idle clock begins anew
	wakes    effect = "wakes"    // a paused sandbox is resumed
	both     effect = "activity, wakes"
)

// route is one endpoint, and all that its documentation is made of.
type route struct {
	method  string
	pattern string
	access  access
	effect  effect
	handle  func(*server, *call) (reply, error)

	name    string // operationId
	summary string
	body    body.Vocabulary // what the body can say; nil for none
	query   []param
	status  int // of success; 0 where there is none yet
	answer  any // a value of the type that answers; nil for none
	carries content
}

// content is what goes over a route besides JSON.
type content string

const (
	jsonOnly content = ""
	progress content = "progress" // the answer may be lines that tell how far it is
	archive  content = "archive"  // the same, and the body is an image
	streamed content = "events"   // the answer may be server-sent events
	download content = "download" // the answer is a bundle
	upload   content = "upload"   // the body is a bundle

	imageDownload content = "image download" // the answer is an image layout

	settings content = "settings" // the body may name what cannot be changed, to be told so
	changes  content = "changes"  // what the body does not name stays, and nothing in it is null
)

// reads says what a route reads of a request.
func (r *route) reads() dialect.Reads {
	switch {
	case r.status == failed:
		return dialect.Unjudged
	case r.carries == archive || r.carries == upload:
		return dialect.Raw(r.parameters()...)
	case r.carries == settings:
		return dialect.Reads{Body: body.Options, Nulls: body.NullIsRefused}
	case r.carries == changes:
		return dialect.Reads{Body: r.body, Nulls: body.NullIsRefused}
	}
	return dialect.Takes(r.body, r.parameters()...)
}

// parameters returns the names of those that the table has.
func (r *route) parameters() (names []string) {
	for _, p := range r.query {
		names = append(names, p.name)
	}
	return names
}

// param is a parameter of the query string or a header.
type param struct {
	name, in, doc string
	schema        schema
}

var (
	afterEvent = param{"after", "query", "Only events after this id; now for future events only.",
		schema{"anyOf": []schema{{"type": "integer", "minimum": 0}, {"const": fromNow}}}}
	beforeEvent = param{beforeParam, "query", "Only events before this id, newest first, and next is for the next ones; now for the newest. It cannot be followed.",
		schema{"anyOf": []schema{{"type": "integer", "minimum": 0}, {"const": fromNow}}}}
	limit    = param{"limit", "query", "Maximum number of results (default: 100). A page of sandboxes ends earlier at 8 MiB. A stream has no limit.", schema{"type": "integer", "minimum": 1, "maximum": maxPage}}
	followed = param{"follow", "query", "true for a stream of server-sent events; Accept: text/event-stream does the same.", schema{"type": "boolean"}}

	importQuery = []param{
		{newIDParam, "query", "true to give the sandbox a new id. Otherwise it keeps its id, which the server must not know yet.", schema{"type": "boolean"}},
		{modeParam, "query", "filesystem to leave out the memory, so that the sandbox boots from its files (default: memory, if the file has it).", schema{"enum": []string{"memory", "filesystem"}}},
		{secretsParam, "query", "true to let the sandbox use the secrets of this API key that have the names in the file (default: they are withheld).", schema{"type": "boolean"}},
		idempotent("an import with the same key, the same parameters and the same file returns the sandbox of the first, whatever it does by then, and reads no more than the beginning of the file.", "Another file is"),
	}
	createQuery = []param{
		idempotent("a create with the same key and the same body returns the sandbox of the first, also while that is still being created and after a restart of the server.", "Another body is"),
	}
	loadQuery = []param{{nameParam, "query", "What the template is to be called; what the archive calls its image if not said.", schema{"type": "string"}}}
	logQuery  = []param{
		{"after", "query", "Only lines after this one (seq).", schema{"type": "integer", "minimum": 0}},
		{"lines", "query", "Maximum number of lines, the last ones (default: 1000).", schema{"type": "integer", "minimum": 1, "maximum": service.MaxLines}},
	}
	eventQuery = []param{afterEvent, limit, followed}
	ownQuery   = append([]param{beforeEvent}, eventQuery...)
	listQuery  = []param{
		{"state", "query", "States, separated by commas (default: all but terminated).", schema{"type": "string"}},
		{"metadata", "query", "key=value; repeatable, and all must match.", schema{"type": "array", "items": schema{"type": "string"}}},
		{"template", "query", "A template's id or alias.", schema{"type": "string"}},
		{"name", "query", "A name, of a sandbox that the API key of the call created: names of other keys' sandboxes do not count.", schema{"type": "string"}},
		{"after", "query", "The cursor from the previous page.", schema{"type": "string"}},
		limit,
	}
)

// idempotent is the header by which a call that makes a sandbox is known again.
func idempotent(again, another string) param {
	return param{body.IdempotencyHeader, "header",
		"A text of your own, such as a random UUID. For 24 hours, " + again + " " + another + " refused with 422 (idempotency_key_reused), and a key whose sandbox has ended with 409 (idempotency_sandbox_ended). A call that failed leaves its key free. Each API key has idempotency keys of its own.",
		schema{"type": "string", "minLength": 1, "maxLength": body.MaxIdempotencyKey, "pattern": `^[!-~]+$`}}
}

func newRouter() httpapi.Router[route] {
	return httpapi.NewRouter(routes(), func(r *route) (method, pattern string) { return r.method, r.pattern })
}

// Endpoints returns all routes.
func Endpoints() []httpapi.Endpoint {
	var list []httpapi.Endpoint
	for _, r := range routes() {
		e := httpapi.Endpoint{Method: r.method, Pattern: r.pattern, Needs: auth.Permission(r.access)}
		if r.access == open {
			e.Needs = ""
		}
		list = append(list, e)
	}
	return list
}

const (
	get    = http.MethodGet
	post   = http.MethodPost
	put    = http.MethodPut
	patch  = http.MethodPatch
	del    = http.MethodDelete
	base   = "/v1/sandboxes"
	one    = base + "/{" + sandboxParam + "}"
	failed = 0 // the status of success of what is not built
)

// routes returns all endpoints. Those of the design that are not built yet are
// refused as such. It is a function because the route of the OpenAPI document
// refers to the table.
func routes() []route {
	return []route{
		{post, base, use, none, (*server).create, "createSandbox", "Create a sandbox. The answer comes when the sandbox is running.", createBody, createQuery, http.StatusCreated, sandboxView{}, jsonOnly},
		{get, base, look, none, (*server).list, "listSandboxes", "List sandboxes, newest first.", nil, listQuery, http.StatusOK, listView{}, jsonOnly},
		{get, one, look, none, (*server).get, "getSandbox", "Get a sandbox. For a terminated one, the answer has its tombstone.", nil, nil, http.StatusOK, sandboxView{}, jsonOnly},
		{patch, one, use, none, (*server).patch, "patchSandbox", "Change settings of a running or paused sandbox.", patchable(), nil, http.StatusOK, sandboxView{}, settings},
		{del, one, use, none, (*server).kill, "deleteSandbox", "Kill a sandbox and delete its data.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{post, one + "/pause", use, none, (*server).pause, "pauseSandbox", "Pause a sandbox. The answer comes when the pause is committed.", pauseBody, nil, http.StatusOK, sandboxView{}, jsonOnly},
		{post, one + "/resume", use, wakes, (*server).resume, "resumeSandbox", "Resume a paused sandbox, or extend the timeout of a running one. The default timeout is the one given at create.", resumeBody, nil, http.StatusOK, sandboxView{}, jsonOnly},
		{post, one + "/timeout", use, none, (*server).setTimeout, "setTimeout", "Set when the soft timeout of a running sandbox ends, counted from now.", timeoutBody, nil, http.StatusOK, sandboxView{}, jsonOnly},
		{get, one + "/lifecycle", look, none, (*server).explain, "explainSandbox", "Explain why a sandbox is awake, asleep or gone, and what happens next.", nil, nil, http.StatusOK, lifecycleView{}, jsonOnly},
		{get, one + "/traces", look, none, traces, "listTraces", "What the time of the latest creates, wakes, pauses and snapshots of a sandbox went into.", nil, nil, http.StatusOK, tracesView{}, jsonOnly},

		{get, one + "/holds", look, none, (*server).holds, "listHolds", "List what keeps a sandbox awake.", nil, nil, http.StatusOK, holdsView{}, jsonOnly},
		{post, one + "/holds", use, activity, (*server).hold, "openHold", "Open a hold, which keeps a sandbox from being idle for a time.", holdBody, nil, http.StatusCreated, holdView{}, jsonOnly},
		{del, one + "/holds/{" + holdParam + "}", use, activity, (*server).releaseHold, "releaseHold", "Release a hold.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{post, one + "/previews", use, none, (*server).createPreview, "createPreview", "Create a link that gives access to one port for a limited time, whether the sandbox is running or paused.", previewBody, nil, http.StatusCreated, previewView{}, jsonOnly},
		{get, one + "/previews", look, none, (*server).previews, "listPreviews", "List the valid preview links of a sandbox, oldest first, without their tokens.", nil, nil, http.StatusOK, previewsView{}, jsonOnly},
		{del, one + "/previews/{" + previewParam + "}", use, none, (*server).revokePreview, "revokePreview", "Revoke a preview link.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{get, one + "/services", look, none, listServices, "listServices", "List the services of a sandbox, and how they are.", nil, nil, http.StatusOK, servicesView{}, jsonOnly},
		{put, one + "/services", use, none, setServices, "setServices", "Replace all services of a sandbox, running or paused. Those that are as before run on.", servicesBody, nil, http.StatusOK, servicesView{}, jsonOnly},
		{get, one + "/services/{" + serviceParam + "}", look, none, getService, "getService", "Get a service.", nil, nil, http.StatusOK, serviceInfoView{}, jsonOnly},
		{put, one + "/services/{" + serviceParam + "}", use, none, setService, "setService", "Add a service to a sandbox, running or paused, or replace the one of that name.", serviceBody, nil, http.StatusOK, serviceInfoView{}, jsonOnly},
		{del, one + "/services/{" + serviceParam + "}", use, none, removeService, "deleteService", "End a service, and remove it.", nil, nil, http.StatusNoContent, nil, jsonOnly},
		{post, one + "/services/{" + serviceParam + "}/restart", use, none, restartService, "restartService", "End what runs of a service of a running sandbox, and start it at once.", nil, nil, http.StatusOK, serviceInfoView{}, jsonOnly},
		{get, one + "/services/{" + serviceParam + "}/log", use, none, serviceLog, "getServiceLog", "The last lines that a service of a running sandbox has written since the sandbox booted.", nil, logQuery, http.StatusOK, linesView{}, jsonOnly},

		{post, "/v1/volumes", share, none, (*server).createVolume, "createVolume", "Create an empty volume: a directory that outlives sandboxes and that several can mount at once.", volumeBody, nil, http.StatusCreated, volumeView{}, jsonOnly},
		{get, "/v1/volumes", share, none, (*server).volumes, "listVolumes", "List volumes, oldest first.", nil, nil, http.StatusOK, volumesView{}, jsonOnly},
		{get, "/v1/volumes/{" + volumeParam + "}", share, none, (*server).volume, "getVolume", "Get a volume.", nil, nil, http.StatusOK, volumeView{}, jsonOnly},
		{del, "/v1/volumes/{" + volumeParam + "}", share, none, (*server).deleteVolume, "deleteVolume", "Delete a volume and all its files. This is rejected while a sandbox mounts it, running or paused.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{post, "/v1/templates", manage, none, pullTemplate, "pullTemplate", "Fetch an image from its registry, for sandboxes to start from. Layers that are here already are not fetched.", templateBody, nil, http.StatusCreated, templateView{}, progress},
		{post, "/v1/templates/load", manage, none, loadTemplate, "loadTemplate", "Make a template of an image in a file: a tar of docker save, or of an OCI image layout.", nil, loadQuery, http.StatusCreated, templateView{}, archive},
		{get, "/v1/templates", look, none, listTemplates, "listTemplates", "What sandboxes can start from.", nil, nil, http.StatusOK, templatesView{}, jsonOnly},
		{get, "/v1/templates/{" + templateParam + "}", look, none, getTemplate, "getTemplate", "Look at a template, by its name or id.", nil, nil, http.StatusOK, templateView{}, jsonOnly},
		{put, "/v1/templates/{" + templateParam + "}", manage, none, setTemplate, "setTemplate", "Make a name stand for a template that is here. Sandboxes that exist keep theirs.", templateNameBody, nil, http.StatusOK, templateView{}, jsonOnly},
		{del, "/v1/templates/{" + templateParam + "}", manage, none, removeTemplate, "deleteTemplate", "Take a name away, and remove the template if that was its last. It is refused while a sandbox that started from it exists, asleep or not.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{post, one + "/snapshots", use, none, createSnapshot, "createSnapshot", "Take a snapshot of a running or paused sandbox, for others to start from. A running one is frozen for a moment, and keeps its connections and deadlines.", snapshotBody, nil, http.StatusCreated, snapshotView{}, jsonOnly},
		{get, one + "/snapshots", look, none, listSnapshots, "listSandboxSnapshots", "List the snapshots of a sandbox, newest first, also after its end.", nil, nil, http.StatusOK, snapshotsView{}, jsonOnly},
		{get, "/v1/snapshots", look, none, listSnapshots, "listSnapshots", "List snapshots, newest first.", nil, nil, http.StatusOK, snapshotsView{}, jsonOnly},
		{get, "/v1/snapshots/{" + snapshotParam + "}", look, none, getSnapshot, "getSnapshot", "Get a snapshot, by its id or name.", nil, nil, http.StatusOK, snapshotView{}, jsonOnly},
		{patch, "/v1/snapshots/{" + snapshotParam + "}", use, none, changeSnapshot, "patchSnapshot", "Change how long a snapshot is kept, by its id or name.", snapshotChangeBody, nil, http.StatusOK, snapshotView{}, jsonOnly},
		{del, "/v1/snapshots/{" + snapshotParam + "}", use, none, deleteSnapshot, "deleteSnapshot", "Delete a snapshot, by its id or name. Its source, and sandboxes that started from it, are kept.", nil, nil, http.StatusNoContent, nil, jsonOnly},
		{post, "/v1/snapshots/{" + snapshotParam + "}/push", manage, none, pushSnapshot, "pushSnapshot", "Push the files of a snapshot, or of a template that was built, to a registry as an OCI image. Its memory and the sandbox's variables are not in it. The server's own credentials are used.", pushBody, nil, http.StatusCreated, publishedView{}, progress},
		{get, "/v1/snapshots/{" + snapshotParam + "}/image", use, none, snapshotImage, "getSnapshotImage", "The files of a snapshot, or of a template that was built, as an OCI image layout in a tar. One that is cut off is not complete.", nil, nil, http.StatusOK, nil, imageDownload},
		{post, one + "/restore", use, activity, restore, "restoreSandbox", "Take a sandbox back to one of its snapshots: to its files, and its memory if the snapshot has it. A paused sandbox stays paused. A running one runs on from there with its timeout and holds; its connections end. What it was before is kept as a snapshot, until the next restore or the end of the sandbox.", restoreBody, nil, http.StatusOK, restoredView{}, jsonOnly},
		{post, one + "/fork", use, none, fork, "forkSandbox", "Start sandboxes that go on from what this one is now, with its settings, and with ids and tokens of their own. The answer comes when each is running or has failed.", forkBody, nil, http.StatusCreated, childrenView{}, jsonOnly},

		{get, one + "/log", look, none, sandboxLog, "getLog", "The log of a sandbox that has not ended: what was started in it through the API, how that ended, and its events.", nil, sandboxLogQuery, http.StatusOK, logView{}, jsonOnly},
		{get, one + "/usage", look, none, sandboxUsage, "getUsage", "What a sandbox that has not ended used, since the server's start.", nil, nil, http.StatusOK, samplesView{}, jsonOnly},
		{get, "/v1/usage", look, none, fleetUsage, "listUsage", "What sandboxes used last.", nil, usageQuery, http.StatusOK, usageView{}, jsonOnly},

		{get, one + "/events", look, none, (*server).sandboxEvents, "listSandboxEvents", "The event log of one sandbox, oldest first, or a stream of it.", nil, ownQuery, http.StatusOK, eventsView{}, streamed},
		{get, "/v1/events", look, none, (*server).events, "listEvents", "The event log of all sandboxes, oldest first, or a stream of it.", nil, eventQuery, http.StatusOK, eventsView{}, streamed},

		{get, one + "/export", use, none, (*server).export, "exportSandbox", "A paused sandbox as one file, to keep or to import elsewhere. It has secrets of the sandbox in it. One that is cut off is not complete, and is refused by an import.", nil, nil, http.StatusOK, nil, download},
		{post, one + "/move", manage, none, moveSandbox, "moveSandbox", "Move a sandbox to another server of the same database, by way of the object storage. One that runs is paused and runs on there, with its timeout and its holds; one that is paused stays paused. Requests for it wait meanwhile.", moveBody, nil, http.StatusOK, sandboxView{}, jsonOnly},
		{post, "/v1/imports", manage, none, (*server).importSandbox, "importSandbox", "Create a paused sandbox from an export. Import only files that you trust as much as a program run as root.", nil, importQuery, http.StatusCreated, sandboxView{}, upload},

		{post, "/v1/keys", manage, none, (*server).createKey, "createKey", "Create an API key. Its text is in this answer only.", keyBody, nil, http.StatusCreated, keyView{}, jsonOnly},
		{get, "/v1/keys", manage, none, (*server).keys, "listKeys", "List API keys, oldest first, expired ones included.", nil, nil, http.StatusOK, keysView{}, jsonOnly},
		{patch, "/v1/keys/{" + keyParam + "}", manage, none, changeKey, "patchKey", "Rename an API key, or change its limits, which hold from the next call, start and wake on. What is not given stays.", keyChangeBody, nil, http.StatusOK, keyView{}, changes},
		{post, "/v1/keys/{" + keyParam + "}/rotate", manage, none, rotateKey, "rotateKey", "Give an API key another text; self is the key of the call. Its id, role, limits and sandboxes stay. The old text is worthless at once, and what was opened with it ends.", rotateKeyBody, nil, http.StatusOK, keyView{}, jsonOnly},
		{del, "/v1/keys/{" + keyParam + "}", manage, none, (*server).revokeKey, "revokeKey", "Revoke an API key at once. Its sandboxes are kept.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{get, "/v1/audit", manage, none, listAudit, "listAudit", "The audit log: who called the API for more than to look, and who was refused. Oldest first.", nil, auditQuery, http.StatusOK, auditView{}, jsonOnly},
		{get, "/v1/servers", manage, none, listServers, "listServers", "The servers that have their records in the same database.", nil, nil, http.StatusOK, serversView{}, jsonOnly},
		{patch, "/v1/servers/{" + serverParam + "}", manage, none, changeServer, "patchServer", "Drain a server, or have done with it. Its sandboxes, snapshots and built templates go to other servers of the database that have room, by way of the object storage.", serverBody, nil, http.StatusOK, serverView{}, changes},
		{get, "/v1/doctor", manage, none, examine, "getDoctor", "What the server finds of its host, as drowse doctor does, without starting a sandbox. An answer may be 10 seconds old.", nil, nil, http.StatusOK, doctorView{}, jsonOnly},

		{post, "/v1/ssh-keys", use, none, addSSHKey, "addSSHKey", "Let the holder of an SSH key into sandboxes through the server's SSH listener, as the API key of the call.", sshKeyBody, nil, http.StatusCreated, sshKeyView{}, jsonOnly},
		{get, "/v1/ssh-keys", use, none, listSSHKeys, "listSSHKeys", "List the SSH keys of the API key of the call, oldest first.", nil, nil, http.StatusOK, sshKeysView{}, jsonOnly},
		{del, "/v1/ssh-keys/{" + sshKeyParam + "}", use, none, removeSSHKey, "removeSSHKey", "Remove an SSH key of the API key of the call. Its connections end.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{put, "/v1/secrets/{" + secretParam + "}", use, none, setSecret, "setSecret", "Make a secret of the API key of the call, or replace the one of its name. Its value is put into requests that sandboxes of the key make to its hosts, and never enters a sandbox. Connections that the old rule was used on end.", secretBody, nil, http.StatusOK, secretView{}, jsonOnly},
		{get, "/v1/secrets", use, none, listSecrets, "listSecrets", "List the secrets of the API key of the call, oldest first, without their values.", nil, nil, http.StatusOK, secretsView{}, jsonOnly},
		{get, "/v1/secrets/{" + secretParam + "}", use, none, getSecret, "getSecret", "Get a secret of the API key of the call, by its name, without its value.", nil, nil, http.StatusOK, secretView{}, jsonOnly},
		{post, "/v1/secrets/{" + secretParam + "}/rotate", use, none, rotateSecret, "rotateSecret", "Replace the value of a secret. The next request of every sandbox has the new one.", rotateBody, nil, http.StatusOK, secretView{}, jsonOnly},
		{del, "/v1/secrets/{" + secretParam + "}", use, none, removeSecret, "removeSecret", "Remove a secret. Sandboxes keep the placeholder, which is worth nothing then. Connections that the secret was used on end.", nil, nil, http.StatusNoContent, nil, jsonOnly},

		{post, "/v1/set_timeout", use, none, (*server).flatSetTimeout, "flatSetTimeout", "setTimeout in one flat body.", flatSetTimeoutBody, nil, http.StatusOK, deadlineView{}, jsonOnly},
		{post, "/v1/pause", use, none, (*server).flatPause, "flatPause", "pauseSandbox in one flat body.", flatPauseBody, nil, http.StatusOK, statusView{}, jsonOnly},
		{post, "/v1/resume", use, wakes, (*server).flatResume, "flatResume", "resumeSandbox in one flat body.", flatResumeBody, nil, http.StatusOK, deadlineView{}, jsonOnly},

		{get, "/v1/openapi.json", open, none, (*server).openapi, "getOpenAPI", "This description.", nil, nil, http.StatusOK, map[string]any{}, jsonOnly},
		{get, "/v1/errors", open, none, (*server).catalogue, "listErrors", "List all error codes, with what to do.", nil, nil, http.StatusOK, errorsView{}, jsonOnly},

		{post, one + "/exec", use, both, (*server).unbuilt, "exec", "Not supported yet.", nil, nil, failed, nil, jsonOnly},
		{get, one + "/files", use, both, (*server).unbuilt, "readFile", "Not supported yet.", nil, nil, failed, nil, jsonOnly},
		{put, one + "/files", use, both, (*server).unbuilt, "writeFile", "Not supported yet.", nil, nil, failed, nil, jsonOnly},
		{post, one + "/files", use, both, (*server).unbuilt, "uploadFile", "Not supported yet.", nil, nil, failed, nil, jsonOnly},
		{del, one + "/files", use, both, (*server).unbuilt, "deleteFile", "Not supported yet.", nil, nil, failed, nil, jsonOnly},
	}
}

// patchable is the body.Options that a patch can change.
func patchable() body.Vocabulary {
	var v body.Vocabulary
	for _, o := range body.Options {
		if o.Patch != nil {
			v = append(v, o)
		}
	}
	return v
}
