package serve

import (
	"crypto/ed25519"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/api/e2b"
	"github.com/drowse-dev/drowse/internal/api/mitos"
	"github.com/drowse-dev/drowse/internal/api/sandbox0"
	v1 "github.com/drowse-dev/drowse/internal/api/v1"
	"github.com/drowse-dev/drowse/internal/api/volumecontent"
)

// newPublicKey returns the public part of an SSH key.
func newPublicKey() (string, error) {
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}

var none = []string{""}

// Reasons for which several routes deviate.
const (
	goneWithIt   = "it is not kept beyond the end of a sandbox"
	wakesIt      = "it says so"
	startsFromIt = "what was built is there to start from"
)

// dialects are all whose routes the walk takes.
var dialects = []*dialect{
	{
		name: "v1", routes: v1.Endpoints(), strict: true,
		params: map[string]kind{
			"id": ofSandbox, "holdId": ofHold, "previewId": ofPreview, "keyId": ofKey, "serverId": ofNothing, "sshKeyId": ofSSHKey, "secret": ofSecret,
			"service": ofService, "volumeId": ofVolume, "template": ofBuilt, "snapshot": ofSnapshot,
		},
		bodies: map[string][]string{
			"POST /v1/sandboxes":                                 {`{"template":"<origin>"}`, `{"snapshot":"<snapshot>"}`},
			"PATCH /v1/sandboxes/{id}":                           {`{"onIdle":"kill"}`},
			"POST /v1/sandboxes/{id}/pause":                      {`{}`},
			"POST /v1/sandboxes/{id}/move":                       {`{}`},
			"POST /v1/sandboxes/{id}/resume":                     {`{}`},
			"POST /v1/sandboxes/{id}/timeout":                    {`{"timeoutSeconds":600}`},
			"POST /v1/sandboxes/{id}/holds":                      {`{"reason":"tests","seconds":60}`},
			"POST /v1/sandboxes/{id}/previews":                   {`{"port":8000}`},
			"PUT /v1/sandboxes/{id}/services":                    {`{"services":[]}`},
			"PUT /v1/sandboxes/{id}/services/{service}":          {`{"command":"other"}`},
			"POST /v1/sandboxes/{id}/services/{service}/restart": none,
			"POST /v1/volumes":                                   {`{"name":"a-new-volume"}`},
			"POST /v1/templates":                                 {`{"image":"127.0.0.1:9/image"}`},
			"POST /v1/templates/load":                            {`no archive`},
			"PUT /v1/templates/{template}":                       {`{"template":"<nothing>"}`},
			"POST /v1/sandboxes/{id}/snapshots":                  {`{}`, `{"name":"<name>"}`, `{"name":"<name>","replace":true}`},
			"PATCH /v1/snapshots/{snapshot}":                     {`{"pinned":true}`},
			"POST /v1/snapshots/{snapshot}/push":                 {`{"image":"127.0.0.1:9/image:tag"}`},
			"POST /v1/sandboxes/{id}/restore":                    {`{"snapshot":"<snapshot>"}`},
			"POST /v1/sandboxes/{id}/fork":                       {`{}`},
			"POST /v1/imports":                                   {`no bundle`},
			"POST /v1/keys":                                      {`{"name":"new"}`},
			"PATCH /v1/keys/{keyId}":                             {`{"name":"new"}`, `{"maxRate":5}`},
			"POST /v1/keys/{keyId}/rotate":                       {`{}`},
			"PATCH /v1/servers/{serverId}":                       {`{"draining":true}`},
			"POST /v1/ssh-keys":                                  {`{"publicKey":"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPu4Wk/k3E7S5MrpnAX/vW7U2XRJpjdtx1FTYmvlXeCV"}`},
			"PUT /v1/secrets/{secret}":                           {`{"hosts":["api.example.com"],"value":"another-long-value"}`},
			"POST /v1/secrets/{secret}/rotate":                   {`{"value":"another-long-value"}`},
			"POST /v1/set_timeout":                               {`{"sandbox":"<sandbox>","timeoutSeconds":600}`},
			"POST /v1/pause":                                     {`{"sandbox":"<sandbox>"}`},
			"POST /v1/resume":                                    {`{"sandbox":"<sandbox>"}`},
			"POST /v1/sandboxes/{id}/exec":                       none,
			"PUT /v1/sandboxes/{id}/files":                       none,
			"POST /v1/sandboxes/{id}/files":                      none,
		},
		ended: "404 sandbox_terminated", kept: "200",
		but: map[string]map[string]string{
			"hidden": {
				"PUT /v1/sandboxes/{id}/services/{service}": "it makes what it names",
				"PUT /v1/secrets/{secret}":                  "it makes what it names",
				"PUT /v1/templates/{template}":              "it makes what it names",
			},
			"ended": {
				"GET /v1/sandboxes/{id}/services/{service}": goneWithIt,
				"GET /v1/sandboxes/{id}/log":                goneWithIt,
				"GET /v1/sandboxes/{id}/usage":              goneWithIt,
			},
			"asleep": {"POST /v1/sandboxes/{id}/resume": wakesIt, "POST /v1/resume": wakesIt},
			"built":  {"POST /v1/sandboxes": startsFromIt, "POST /v1/snapshots/{snapshot}/push": "the files of a template may be published"},
		},
	},
	{
		name: "e2b", routes: e2b.Endpoints(),
		params: map[string]kind{
			"sandboxID": ofSandbox, "templateID": ofBuilt, "volumeID": ofVolume, "keyID": ofKey, "webhookID": ofWebhook, "secret": ofNothing,
			"teamID": ofNothing, "alias": ofBuilt, "buildID": ofBuild, "hash": ofNothing, "id": ofSandbox, "tokenID": ofNothing, "nodeID": ofNothing,
		},
		bodies: map[string][]string{
			"POST /sandboxes":                                  {`{"templateID":"<origin>"}`},
			"POST /v2/sandboxes":                               {`{"templateID":"<origin>"}`},
			"POST /sandboxes/{sandboxID}/pause":                {`{}`},
			"POST /sandboxes/{sandboxID}/connect":              {`{"timeout":60}`},
			"POST /v2/sandboxes/{sandboxID}/connect":           {`{"timeout":60}`},
			"POST /sandboxes/{sandboxID}/resume":               {`{}`},
			"POST /sandboxes/{sandboxID}/timeout":              {`{"timeout":60}`},
			"POST /sandboxes/{sandboxID}/refreshes":            {`{}`},
			"PUT /sandboxes/{sandboxID}/network":               {`{}`},
			"POST /sandboxes/{sandboxID}/snapshots":            {`{}`, `{"name":"<name>"}`},
			"POST /sandboxes/{sandboxID}/fork":                 {`{}`},
			"POST /v2/sandboxes/{sandboxID}/fork":              {`{}`},
			"POST /sandboxes/{sandboxID}/clone":                {`{}`},
			"POST /sandboxes/{sandboxID}/rollback":             {`{"snapshotID":"<snapshot>"}`},
			"POST /api-keys":                                   {`{"name":"new"}`},
			"POST /volumes":                                    {`{"name":"a-new-volume"}`},
			"POST /secrets":                                    none,
			"POST /secrets/{secret}":                           none,
			"POST /v3/templates":                               {`{"name":"a-new-template"}`},
			"POST /v2/templates/{templateID}/builds/{buildID}": {`{"fromTemplate":"base"}`},
			"PUT /templates/{templateID}/files/{hash}":         {`bytes`},
			"POST /templates/tags":                             {`{"target":"<built>","tags":["x"]}`},
			"DELETE /templates/tags":                           {`{"name":"<built>","tags":["x"]}`},
			"POST /events/webhooks":                            {`{"name":"new","url":"http://127.0.0.1:9/","events":["sandbox.lifecycle.paused"],"signatureSecret":"0123456789abcdef0123456789abcdef"}`},
			"PATCH /events/webhooks/{webhookID}":               {`{"name":"another"}`},
			"POST /sandboxes/{sandboxID}/reset":                none,
			"POST /sandboxes/{sandboxID}/hotplug-memory":       none,
			"POST /sandboxes/{sandboxID}/volume-mounts":        none,
			"POST /sandboxes/{sandboxID}/commit":               none,
			"POST /templates":                                  none,
			"POST /v2/templates":                               none,
			"POST /templates/{templateID}":                     none,
			"PATCH /templates/{templateID}":                    none,
			"PATCH /v2/templates/{templateID}":                 none,
			"POST /templates/{templateID}/builds/{buildID}":    none,
			"PATCH /api-keys/{keyID}":                          none,
			"POST /access-tokens":                              none,
			"POST /nodes/{nodeID}":                             none,
			"POST /admin/teams/{teamID}/sandboxes/kill":        none,
			"POST /admin/teams/{teamID}/builds/cancel":         none,
			"POST /admin/teams/{teamID}/api-keys":              none,
		},
		ended: "404 sandbox_terminated", kept: "404 sandbox_terminated",
		but: map[string]map[string]string{
			"hidden": {
				"POST /sandboxes/{sandboxID}/rollback":     "clients take a 404 for a sandbox that is not there",
				"PUT /templates/{templateID}/files/{hash}": "the address is the secret, and there is no other",
			},
			"sent":  {"PUT /templates/{templateID}/files/{hash}": "the query is the secret, and is judged first"},
			"ended": {"GET /events/sandboxes/{id}": "the events of a sandbox outlive it"},
			"asleep": {
				"POST /sandboxes/{sandboxID}/connect":    wakesIt,
				"POST /v2/sandboxes/{sandboxID}/connect": wakesIt,
				"POST /sandboxes/{sandboxID}/resume":     wakesIt,
			},
		},
	},
	{
		name: "sandbox0", routes: sandbox0.Endpoints(),
		params: map[string]kind{"id": ofSandbox, "ctx": ofContext, "snapshot": ofSnapshot, "template": ofBuilt, "volume": ofVolume},
		bodies: map[string][]string{
			"POST /api/v1/sandboxes":                             {`{"template":"<origin>"}`, `{"snapshot_id":"<snapshot>"}`},
			"PUT /api/v1/sandboxes/{id}":                         {`{"config":{"ttl":600}}`},
			"POST /api/v1/sandboxes/{id}/pause":                  {`{}`},
			"POST /api/v1/sandboxes/{id}/resume":                 {`{}`},
			"POST /api/v1/sandboxes/{id}/refresh":                {`{}`},
			"PUT /api/v1/sandboxes/{id}/network":                 {`{"mode":"block-all"}`},
			"PUT /api/v1/sandboxes/{id}/services":                {`{"services":[]}`},
			"POST /api/v1/sandboxes/{id}/contexts":               {`{"cmd":{"command":["true"]}}`},
			"POST /api/v1/sandboxes/{id}/contexts/{ctx}/restart": none,
			"POST /api/v1/sandboxes/{id}/contexts/{ctx}/input":   {`{"data":"x"}`},
			"POST /api/v1/sandboxes/{id}/contexts/{ctx}/exec":    {`{"data":"x"}`},
			"POST /api/v1/sandboxes/{id}/contexts/{ctx}/resize":  {`{"rows":9,"cols":9}`},
			"POST /api/v1/sandboxes/{id}/contexts/{ctx}/signal":  {`{"signal":"TERM"}`},
			"POST /api/v1/sandboxes/{id}/files":                  {`bytes`},
			"POST /api/v1/sandboxes/{id}/files/move":             {`{"source":"/a","destination":"/b"}`},
			"POST /api/v1/sandboxes/{id}/snapshots":              {`{}`, `{"name":"<name>"}`},
			"POST /api/v1/sandboxes/{id}/rootfs/restore":         {`{"snapshot_id":"<snapshot>"}`},
			"POST /api/v1/sandboxes/{id}/fork":                   {`{}`},
			"POST /api/v1/sandboxvolumes":                        {`{}`},
		},
		ended: "404 not_found", kept: "404 not_found",
		but: map[string]map[string]string{
			"asleep": {"POST /api/v1/sandboxes/{id}/resume": wakesIt},
			"built":  {"POST /api/v1/sandboxes": startsFromIt},
		},
	},
	{
		name: "mitos", routes: mitos.Endpoints(), strict: true,
		params: map[string]kind{"id": ofSandbox, "port": ofNothing},
		header: map[string]string{"X-Sandbox-Id": "<sandbox>"},
		first:  map[string]string{"GET /mitos/sandbox.v1.Sandbox/Exec": framed(`{"open":{"pty":{"size":{"cols":80,"rows":24}}}}`)},
		query:  map[string]string{"GET /mitos/sandbox.v1.Sandbox/Exec": "?sandbox=<sandbox>"},
		bodies: map[string][]string{
			"POST /mitos/v1/templates":                      {`{"id":"<origin>"}`},
			"POST /mitos/v1/fork":                           {`{"template":"<origin>","id":"new"}`},
			"POST /mitos/v1/sandboxes/{id}/fork":            {`{"id":"child"}`},
			"POST /mitos/v1/set_timeout":                    {`{"sandbox":"<sandbox>","timeout_seconds":600}`},
			"POST /mitos/v1/pause":                          {`{"sandbox":"<sandbox>"}`},
			"POST /mitos/v1/resume":                         {`{"sandbox":"<sandbox>"}`},
			"POST /mitos/v1/preview":                        {`{"sandbox":"<sandbox>","port":8000}`},
			"POST /mitos/v1/sandboxes/{id}/forward":         none,
			"POST /mitos/v1/sandboxes/{id}/expose/{port}":   none,
			"GET /mitos/sandbox.v1.Sandbox/Exec":            {""},
			"POST /mitos/sandbox.v1.Sandbox/ExecStream":     {framed(`{"command":"true"}`)},
			"POST /mitos/sandbox.v1.Sandbox/RunCodeStream":  {framed(`{"code":"1"}`)},
			"POST /mitos/sandbox.v1.Sandbox/ReadFile":       {framed(`{"path":"/a"}`)},
			"POST /mitos/sandbox.v1.Sandbox/WriteFile":      {framed(`{"open":{"path":"/a"}}`)},
			"POST /mitos/sandbox.v1.Sandbox/List":           {`{"parent":"/a"}`},
			"POST /mitos/sandbox.v1.Sandbox/Stat":           {`{"path":"/a"}`},
			"POST /mitos/sandbox.v1.Sandbox/Mkdir":          {`{"path":"/a"}`},
			"POST /mitos/sandbox.v1.Sandbox/Remove":         {`{"path":"/a"}`},
			"POST /mitos/sandbox.v1.Sandbox/Exec":           {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/RunCode":        {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Archive":        {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Upload":         {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Watch":          {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Processes":      {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Signal":         {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/PortForward":    {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Vitals":         {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Fork":           {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Checkpoint":     {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/ExtendLifetime": {`{}`},
			"POST /mitos/sandbox.v1.Sandbox/Budget":         {`{}`},
		},
		ended: "404 not_found", kept: "404 not_found",
		but: map[string]map[string]string{
			"asleep": {"POST /mitos/v1/resume": wakesIt},
		},
	},
	{
		name: "volumecontent", routes: volumecontent.Endpoints(), token: true,
		params: map[string]kind{"volumeID": ofVolume},
		query: map[string]string{
			"GET /volumecontent/{volumeID}/path":    "?path=/",
			"PATCH /volumecontent/{volumeID}/path":  "?path=/",
			"DELETE /volumecontent/{volumeID}/path": "?path=/a",
			"GET /volumecontent/{volumeID}/dir":     "?path=/",
			"POST /volumecontent/{volumeID}/dir":    "?path=/a",
			"GET /volumecontent/{volumeID}/file":    "?path=/a",
			"PUT /volumecontent/{volumeID}/file":    "?path=/a",
		},
		bodies: map[string][]string{
			"PATCH /volumecontent/{volumeID}/path": {`{"mode":493}`},
			"POST /volumecontent/{volumeID}/dir":   none,
			"PUT /volumecontent/{volumeID}/file":   {`bytes`},
		},
	},
}

// framed is a message of a stream.
func framed(message string) string { return string([]byte{0, 0, 0, 0, byte(len(message))}) + message }
