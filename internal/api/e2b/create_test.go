package e2b

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

const (
	v1 = "/sandboxes"
	v2 = "/v2/sandboxes"
)

func TestCreateTranslates(t *testing.T) {
	no, yes := false, true
	actor := "key:b6f0c1de-0000-4000-8000-000000000001"
	request := func(change func(*supervisor.CreateRequest)) supervisor.CreateRequest {
		r := supervisor.CreateRequest{
			Template: "base", Actor: actor,
			Settings: lifecycle.Settings{Timeout: 300 * time.Second},
			Config:   store.Config{Key: apitest.KeyID, Secure: true},
		}
		change(&r)
		return r
	}
	tests := map[string]struct {
		path, body string
		want       supervisor.CreateRequest
	}{
		"minimal v2": {v2, `{"templateID":"base"}`, request(func(*supervisor.CreateRequest) {})},
		"minimal v1": {v1, `{"templateID":"base"}`, request(func(r *supervisor.CreateRequest) {
			r.Settings.Timeout, r.Config.Secure = 15*time.Second, false
		})},
		"Python": {v1, `{"templateID":"base","timeout":300,"autoPause":false,"metadata":{},"envVars":{},"secure":true,"allow_internet_access":true,"mcp":null,"network":null}`,
			request(func(r *supervisor.CreateRequest) { r.Settings.OnTimeout, r.Config.AllowInternet = lifecycle.Kill, &yes })},
		"timeout":         {v2, `{"templateID":"base","timeout":1}`, request(func(r *supervisor.CreateRequest) { r.Settings.Timeout = time.Second })},
		"longest timeout": {v2, `{"templateID":"base","timeout":86400}`, request(func(r *supervisor.CreateRequest) { r.Settings.Timeout = 24 * time.Hour })},
		"auto-pause":      {v2, `{"templateID":"base","autoPause":true,"autoPauseMemory":true}`, request(func(r *supervisor.CreateRequest) { r.Settings.OnTimeout = lifecycle.Pause })},
		"auto-pause without memory": {v2, `{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":false}}`, request(func(r *supervisor.CreateRequest) {
			r.Settings.OnTimeout, r.Settings.PauseMode = lifecycle.Pause, lifecycle.Filesystem
		})},
		"auto-resume": {v2, `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`, request(func(r *supervisor.CreateRequest) {
			r.Settings.OnTimeout, r.Settings.AutoResume = lifecycle.Pause, true
		})},
		"auto-resume off":   {v2, `{"templateID":"base","autoResume":{"enabled":false}}`, request(func(*supervisor.CreateRequest) {})},
		"null is absent":    {v2, `{"templateID":"base","timeout":null,"autoPause":null,"autoResume":null,"metadata":null,"iam":null,"volumeMounts":null}`, request(func(*supervisor.CreateRequest) {})},
		"memory by default": {v2, `{"templateID":"base","autoPauseMemory":true}`, request(func(*supervisor.CreateRequest) {})},
		"rules for what it may reach": {v2, `{"templateID":"base","network":{"allowOut":["a.test"],"denyOut":["0.0.0.0/0"],"maskRequestHost":"x"}}`, request(func(r *supervisor.CreateRequest) {
			r.Config.AllowOut, r.Config.DenyOut = []string{"a.test"}, []string{"0.0.0.0/0"}
			r.Config.HostMask, r.Config.Network = "x", json.RawMessage(`{"maskRequestHost":"x"}`)
		})},
		"no internet":             {v2, `{"templateID":"base","allow_internet_access":false}`, request(func(r *supervisor.CreateRequest) { r.Config.AllowInternet = &no })},
		"null of another dialect": {v2, `{"templateID":"base","idleTimeout":null}`, request(func(*supervisor.CreateRequest) {})},
		"metadata and variables": {v2, `{"templateID":"base","metadata":{"a":"1","é":""},"envVars":{"PATH":"/bin","X":""}}`, request(func(r *supervisor.CreateRequest) {
			r.Config.Metadata = map[string]string{"a": "1", "é": ""}
			r.Config.Env = map[string]string{"PATH": "/bin", "X": ""}
		})},
		"volumes": {v2, `{"templateID":"base","volumeMounts":[{"name":"v","path":"/mnt/v"}]}`, request(func(r *supervisor.CreateRequest) {
			r.Config.Volumes = []store.VolumeMount{{Name: "v", Path: "/mnt/v"}}
		})},
		"private ports": {v1, `{"templateID":"base","secure":true,"network":{"allowPublicTraffic":false,"rules":null,"allowOut":[],"egressProxy":null}}`, request(func(r *supervisor.CreateRequest) {
			r.Settings.Timeout, r.Config.PrivatePorts = 15*time.Second, true
			r.Config.Network = json.RawMessage(`{"allowPublicTraffic":false}`)
		})},
		"private ports alone": {v1, `{"templateID":"base","network":{"allowPublicTraffic":false,"rules":null,"allowOut":[],"egressProxy":null}}`, request(func(r *supervisor.CreateRequest) {
			r.Settings.Timeout, r.Config.PrivatePorts = 15*time.Second, true
			r.Config.Network = json.RawMessage(`{"allowPublicTraffic":false}`)
		})},
		"host mask and HTTPS ports": {v2, `{"templateID":"base","network":{"maskRequestHost":"localhost:${PORT}","httpsPorts":[8443]}}`, request(func(r *supervisor.CreateRequest) {
			r.Config.HostMask, r.Config.HTTPSPorts = "localhost:${PORT}", []int{8443}
			r.Config.Network = json.RawMessage(`{"maskRequestHost":"localhost:${PORT}","httpsPorts":[8443]}`)
		})},
		"public ports": {v1, `{"templateID":"base","network":{"allowPublicTraffic":true}}`, request(func(r *supervisor.CreateRequest) {
			r.Settings.Timeout, r.Config.Secure = 15*time.Second, false
			r.Config.Network = json.RawMessage(`{"allowPublicTraffic":true}`)
		})},
		"template in other letters": {v2, `{"templateID":" Base:default "}`, request(func(*supervisor.CreateRequest) {})},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.WithVolumes("v")
			w.do("POST", tt.path, tt.body).Is(http.StatusCreated)
			got := w.Fake.Created[0]
			if got.Said = nil; got.Settings.PauseMode == lifecycle.Memory {
				got.Settings.PauseMode = "" // the same
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	tests := map[string]struct {
		path, body    string
		code, message string
	}{
		"no body":                 {v2, ``, "", "empty"},
		"white space":             {v2, " \n", "", "empty"},
		"null":                    {v2, `null`, "", "not null"},
		"array":                   {v2, `[]`, "", "the request body must be an object, not an array"},
		"no template":             {v2, `{}`, "", `"templateID" is required`},
		"null template":           {v2, `{"templateID":null}`, "", `"templateID" is required`},
		"template of wrong type":  {v2, `{"templateID":1}`, "", `"templateID" must be a string, not a number`},
		"unparsable template":     {v2, `{"templateID":"../etc"}`, "", "../etc"},
		"template with two tags":  {v2, `{"templateID":"a:b:c"}`, "", "a:b:c"},
		"timeout 0":               {v2, `{"templateID":"base","timeout":0}`, "", "Timeout must be greater than 0"},
		"timeout 0, v1":           {v1, `{"templateID":"base","timeout":0}`, "", "Timeout must be greater than 0"},
		"negative timeout":        {v2, `{"templateID":"base","timeout":-5}`, "", "Timeout must be greater than 0"},
		"timeout beyond 32 bits":  {v2, `{"templateID":"base","timeout":4294967296}`, "", `"timeout" must be an integer of 32 bits, not 4294967296`},
		"fractional timeout":      {v2, `{"templateID":"base","timeout":1.5}`, "", `"timeout" must be an integer`},
		"timeout as text":         {v2, `{"templateID":"base","timeout":"60"}`, "", `"timeout" must be an integer of 32 bits, not "60"`},
		"autoPause as text":       {v2, `{"templateID":"base","autoPause":"yes"}`, "", `"autoPause" must be a boolean`},
		"enabled as text":         {v2, `{"templateID":"base","autoResume":{"enabled":"x"}}`, "", `"autoResume.enabled" must be a boolean`},
		"enabled missing":         {v2, `{"templateID":"base","autoPause":true,"autoResume":{}}`, "", `"autoResume.enabled" is required`},
		"resume without pause":    {v2, `{"templateID":"base","autoResume":{"enabled":true}}`, "", `autoResume is on`},
		"no memory without pause": {v2, `{"templateID":"base","autoPauseMemory":false}`, "invalid_request", "autoPause"},
		"no memory with resume":   {v2, `{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`, "auto_resume_needs_memory", "autoResume"},
		"metadata as array":       {v2, `{"templateID":"base","metadata":[]}`, "", `"metadata" must be an object`},
		"number in metadata":      {v2, `{"templateID":"base","metadata":{"a":1}}`, "", `"metadata.a" must be a string, not a number`},
		"null in metadata":        {v2, `{"templateID":"base","metadata":{"a":null}}`, "", `"metadata.a" must be a string, not null`},
		"object in variables":     {v2, `{"templateID":"base","envVars":{"a":{}}}`, "", `"envVars.a" must be a string, not an object`},
		"variable with =":         {v2, `{"templateID":"base","envVars":{"a=b":""}}`, "", "a=b"},
		"variable without name":   {v2, `{"templateID":"base","envVars":{"":""}}`, "", "envVars"},
		"NUL in a variable":       {v2, `{"templateID":"base","envVars":{"a":"\u0000"}}`, "", "NUL"},
		"volumes as object":       {v2, `{"templateID":"base","volumeMounts":{"name":"v","path":"/v"}}`, "", `"volumeMounts" must be an array`},
		"a volume without name":   {v2, `{"templateID":"base","volumeMounts":[{"path":1}]}`, "", `"path" must be a string`},
		"identity":                {v2, `{"templateID":"base","iam":{"tokens":{"a":{"audience":"x"}}}}`, "not_supported", "iam"},
		"mcp":                     {v2, `{"templateID":"base","mcp":{"github":{}}}`, "not_supported", "mcp"},
		"mcp without servers":     {v2, `{"templateID":"base","mcp":{}}`, "not_supported", "mcp"},
		"egress proxy":            {v2, `{"templateID":"base","network":{"egressProxy":{"address":"127.0.0.1:1"}}}`, "network_invalid", "network.egressProxy"},
		"rules":                   {v2, `{"templateID":"base","network":{"rules":{"a.b":[]}}}`, "not_supported", "network.rules"},
		"a URL as host mask":      {v2, `{"templateID":"base","network":{"maskRequestHost":"http://localhost"}}`, "", `"network.maskRequestHost" must be a host`},
		"two lines as host mask":  {v2, `{"templateID":"base","network":{"maskRequestHost":"a\r\nX: b"}}`, "", `"network.maskRequestHost" must be a host`},
		"other words in the mask": {v2, `{"templateID":"base","network":{"maskRequestHost":"${HOST}:1"}}`, "", `"network.maskRequestHost" must be a host`},
		"the agent by HTTPS":      {v2, `{"templateID":"base","network":{"httpsPorts":[443,49983]}}`, "", `"network.httpsPorts": 49983`},
		"no HTTPS port":           {v2, `{"templateID":"base","network":{"httpsPorts":[0]}}`, "", `"network.httpsPorts" is 0`},
		"many HTTPS ports":        {v2, `{"templateID":"base","network":{"httpsPorts":[1` + strings.Repeat(",1", 128) + `]}}`, "", `"network.httpsPorts" has 129 entries`},
		"network as list":         {v2, `{"templateID":"base","network":[]}`, "", `"network" must be an object`},
		"ttl alone":               {v2, `{"templateID":"base","ttl":60}`, "ambiguous_field", `"ttl" alone could mean timeoutSeconds or maxLifetimeSeconds`},
		"private and not secure":  {v1, `{"templateID":"base","secure":false,"network":{"allowPublicTraffic":false}}`, "", `"secure": true`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.do("POST", tt.path, tt.body).fails(http.StatusBadRequest, tt.code, tt.message)
			if len(w.Fake.Created) != 0 {
				t.Error("a sandbox was created")
			}
		})
	}
}

// TestNoTimeout: CubeSandbox's clients send -1 for no limit, and get that where the
// server has no ceiling.
func TestNoTimeout(t *testing.T) {
	const never = "9999-01-01T00:00:00.000000Z"
	for _, create := range []string{v1, v2} {
		t.Run(create[1:], func(t *testing.T) {
			w := newWorld(t)
			until := func(id string) (endAt any, deadline time.Time) {
				return w.do("GET", "/sandboxes/"+id, "").Is(http.StatusOK).Object()["endAt"], w.Fake.Sandboxes[id].Record.EndAt
			}
			wantNever := func(after, id string) {
				t.Helper()
				if endAt, deadline := until(id); endAt != never || !deadline.IsZero() {
					t.Errorf("%s it ends at %v, %s, want never", after, endAt, deadline)
				}
			}
			id := w.do("POST", create, `{"templateID":"base","timeout":-1}`).Is(http.StatusCreated).Object()["sandboxID"].(string)
			wantNever("created,", id)

			w.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`).Is(http.StatusNoContent)
			if endAt, deadline := until(id); endAt == never || deadline.IsZero() {
				t.Fatalf("it still ends at %v", endAt)
			}
			w.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":-1}`).Is(http.StatusNoContent)
			wantNever("by the timeout call", id)

			for _, call := range []string{"/sandboxes/" + id + "/resume", "/sandboxes/" + id + "/connect", "/v2/sandboxes/" + id + "/connect"} {
				w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
				w.do("POST", call, `{"timeout":-1}`).Is(http.StatusCreated)
				wantNever("by "+call, id)
			}
		})
	}
}

func TestCreateOfAnUnknownTemplate(t *testing.T) {
	newWorld(t).do("POST", v2, `{"templateID":"Nope"}`).
		fails(http.StatusNotFound, "template_not_found", "template 'Nope' not found")
}

func TestMaxTimeoutIsNamedInItsUnit(t *testing.T) {
	for limit, want := range map[time.Duration]string{
		time.Hour: "1 hour ", 90 * time.Minute: "90 minutes ", 45 * time.Second: "45 seconds ", 48 * time.Hour: "48 hours ",
	} {
		w := newWorld(t, func(o *Options) { o.MaxTimeout = limit })
		w.do("POST", v2, `{"templateID":"base","timeout":1000000}`).
			fails(http.StatusBadRequest, "timeout_too_large", "Timeout cannot be greater than "+want+"(requested 1000000 s)")
	}
}

// keys returns the names of an object's fields.
func keys(o map[string]any) map[string]bool {
	names := map[string]bool{}
	for k := range o {
		names[k] = true
	}
	return names
}

func hasKeys(t *testing.T, o map[string]any, want string) {
	t.Helper()
	names := map[string]bool{}
	for _, k := range strings.Fields(want) {
		names[k] = true
	}
	if got := keys(o); !reflect.DeepEqual(got, names) {
		t.Errorf("fields %v, want %v", got, names)
	}
}

func TestSandboxHasExactlyItsFields(t *testing.T) {
	w := newWorld(t)
	o := w.do("POST", v1, `{"templateID":"base"}`).Object()
	hasKeys(t, o, "domain templateID sandboxID clientID envdVersion alias")
	o = w.do("POST", v2, `{"templateID":"base"}`).Object()
	hasKeys(t, o, "domain templateID sandboxID clientID envdVersion alias envdAccessToken")
	o = w.do("POST", v2, `{"templateID":"base","network":{"allowPublicTraffic":false}}`).Object()
	hasKeys(t, o, "domain templateID sandboxID clientID envdVersion alias envdAccessToken trafficAccessToken")
	id := o["sandboxID"].(string)
	for field, want := range map[string]string{
		"templateID": "tmplbase", "alias": "base", "clientID": "drowse", "envdVersion": "0.6.13",
		"envdAccessToken": "envd-token-of-" + id, "trafficAccessToken": "traffic-token-of-" + id,
	} {
		if o[field] != want {
			t.Errorf("%s is %v, want %s", field, o[field], want)
		}
	}
}

// TestCreateOnce holds what a create with an idempotency key is answered, in
// both versions of it.
func TestCreateOnce(t *testing.T) {
	w := newWorld(t)
	send := func(path, key, text string) answer {
		r := httptest.NewRequest("POST", path, strings.NewReader(text))
		r.Header.Set("X-API-Key", apitest.GoodKey)
		r.Header.Set("Idempotency-Key", key)
		return w.send(r)
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		first := send(path, "a"+path, `{"templateID":"base","timeout":60}`).Is(http.StatusCreated)
		again := send(path, "a"+path, `{"timeout":60,"templateID":"base"}`).Is(http.StatusCreated)
		if first.Body != again.Body {
			t.Errorf("got %s, then %s", first.Body, again.Body)
		}
		send(path, "a"+path, `{"templateID":"base","timeout":61}`).fails(http.StatusUnprocessableEntity, "idempotency_key_reused", "something else")
		send(path, "b c", `{"templateID":"base"}`).fails(http.StatusBadRequest, "invalid_request", "Idempotency-Key")
	}
	// The two give a sandbox other defaults.
	send("/sandboxes", "a/v2/sandboxes", `{"templateID":"base","timeout":60}`).fails(http.StatusUnprocessableEntity, "idempotency_key_reused", "something else")
	if n := len(w.Fake.Created); n != 2 {
		t.Errorf("%d sandboxes were made, want 2", n)
	}
}
