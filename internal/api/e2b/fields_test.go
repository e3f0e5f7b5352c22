package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// published are the fields of E2B's published schema, nested ones by their
// path, each with a value that asks for something: TestPublishedFields holds them
// to it. Clients of other servers that speak this API send the rest.
var published = map[string]string{
	"templateID": `"base"`, "timeout": "60", "autoPause": "true", "autoPauseMemory": "false", "autoResume": `{"enabled":true}`,
	"autoResume.enabled": "true", "secure": "true", "allow_internet_access": "false", "metadata": `{"a":"b"}`, "envVars": `{"A":"b"}`,
	"mcp": `{"a":{}}`, "iam": `{"tokens":{"a":{"audience":"x"}}}`, "volumeMounts": `[{"name":"v","path":"/mnt/v"}]`,
	"network.allowPublicTraffic": "false", "network.allowOut": `["1.1.1.1"]`, "network.denyOut": `["1.1.1.1"]`,
	"network.egressProxy": `{"address":"p.test:1"}`, "network.egressProxy.address": `"p.test:1"`, "network.egressProxy.username": `"u"`, "network.egressProxy.password": `"p"`,
	"egressProxy.address": `"p.test:1"`, "egressProxy.username": `"u"`, "egressProxy.password": `"p"`,
	"network.maskRequestHost": `"a"`, "network.rules": `{"a.test":[{}]}`, "network.httpsPorts": "[8443]",

	"network.deny_out": `["1.1.1.1"]`, "network.allow_public_traffic": "false", "network.dnsServers": `["1.1.1.1"]`, "dnsServers": `["1.1.1.1"]`,
	"allowInternetAccess": "false", "autoResumeEnabled": "true", "distributionScope": `["a"]`, "secrets": `{"A":"a"}`, "nodeID": `"a"`,
	"diskMiB": "128", "diskSizeMB": "128", "volumes": `{"/mnt/v":"v"}`, "filesystemFallback": "true", "ttl": "60", "hard_ttl": "60",
	"lifecycle": `{"onTimeout":"pause","autoResume":true}`, "lifecycle.onTimeout": `"pause"`, "lifecycle.someday": "1", "network.someday": "1",
	"autoResume.someday": "1", "someday": "1", "lifecycle.onTimeout.someday": "1", "resources": `{"cpu":1}`,
}

// changing are the calls on a sandbox that have a body.
var changing = []string{
	"POST /sandboxes/ID/pause", "POST /sandboxes/ID/connect", "POST /v2/sandboxes/ID/connect", "POST /sandboxes/ID/resume",
	"POST /sandboxes/ID/timeout", "POST /sandboxes/ID/refreshes", "PUT /sandboxes/ID/network",
}

// TestPublishedFields holds that the tests below send every field that E2B's
// schema has. test/conformance reads the list from the published SDKs, so that a
// new field fails here.
func TestPublishedFields(t *testing.T) {
	list, err := os.ReadFile("testdata/published.txt")
	if err != nil {
		t.Fatal(err)
	}
	calls := append([]string{"POST /sandboxes", "POST /v2/sandboxes"}, changing...)
	fields := everyField(t)
	maps.Copy(fields, ofOthers)
	for line := range strings.Lines(string(list)) {
		i := strings.LastIndex(line, " ")
		if i < 0 {
			t.Fatalf("%q is no call and a field", line)
		}
		call, path := line[:i], strings.TrimSpace(line[i:])
		if !slices.Contains(calls, call) {
			t.Errorf("no test sends fields to %s", call)
		}
		if !sends(fields, path) {
			t.Errorf("no test sends %q, which %s has", path, call)
		}
	}
}

// sends reports whether fields has one, what is in it, or an object around it that
// is refused.
func sends(fields map[string]string, path string) bool {
	if list, entry, ok := strings.Cut(path, "[]."); ok {
		return strings.Contains(fields[list], `"`+entry+`":`)
	}
	for _, sp := range body.Options.Spellings() {
		if sp.Option.Refused && strings.HasPrefix(path, sp.Path+".") {
			return fields[sp.Path] != ""
		}
	}
	within := func(field string) bool { return strings.HasPrefix(field, path+".") }
	return fields[path] != "" || slices.ContainsFunc(slices.Collect(maps.Keys(fields)), within)
}

// everyField returns each field that any of our clients sends to a create, with a
// value.
func everyField(t *testing.T) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for _, sp := range body.Options.Spellings() {
		if sample, ok := apitest.Samples[sp.Option.Name][sp.Form.Words]; ok {
			fields[sp.Path] = sample.Value
		} else if !sp.Option.Refused {
			t.Errorf("no sample of %s as %s", sp.Option.Name, sp.Form.Words)
		} else {
			fields[sp.Path] = `{"a":1}`
		}
	}
	maps.Copy(fields, published)
	return fields
}

// ofOthers are fields that creates do not have.
var ofOthers = map[string]string{"memory": "false", "mode": `"filesystem"`, "duration": "3600"}

// TestEveryFieldOfCreate sends every field that any of our clients knows, alone,
// to both creates: either the sandbox is another one for it, or it is refused by
// its name.
func TestEveryFieldOfCreate(t *testing.T) {
	for path, value := range everyField(t) {
		for _, create := range []string{"/sandboxes", "/v2/sandboxes"} {
			t.Run(create[1:]+" "+path, func(t *testing.T) { honouredOrRefused(t, create, path, value) })
		}
	}
}

// honouredOrRefused sends a field to a create.
func honouredOrRefused(t *testing.T, create, path, value string) {
	w := newWorld(t)
	w.WithVolumes("v", "x")
	text := "{" + apitest.Nested(path, value) + "}"
	if !isTemplate(path) {
		text = `{"templateID":"base",` + text[1:]
	}
	a := w.do("POST", create, text)
	if a.Status == http.StatusCreated {
		plain := newWorld(t)
		plain.do("POST", create, `{"templateID":"base"}`).Is(http.StatusCreated)
		got, without := w.Fake.Created[0], plain.Fake.Created[0]
		if len(got.Said) <= len(without.Said) && !isTemplate(path) {
			t.Errorf("%s: accepted, and nobody was told of it", text)
		}
		got.Said, without.Said = nil, nil
		if reflect.DeepEqual(got, without) && !says(path, value, got) {
			t.Errorf("%s: accepted without effect", text)
		}
		return
	}
	if !named(a.Body, path) {
		t.Errorf("%s: refused, but not by name: %s", text, a.Body)
	}
	a.Is(http.StatusBadRequest)
	if len(w.Fake.Created) != 0 {
		t.Errorf("%s: refused, and a sandbox was created", text)
	}
}

func isTemplate(path string) bool { return strings.HasPrefix(strings.ToLower(path), "template") }

// named reports whether a refusal names a field, or an object that it is in.
func named(refusal, path string) bool {
	plain := strings.NewReplacer("_", "", "Enabled", "", "enabled", "").Replace
	for name := range strings.SplitSeq(path, ".") {
		if name = strings.ToLower(plain(name)); name != "" && strings.Contains(strings.ToLower(plain(refusal)), name) {
			return true
		}
	}
	return false
}

// says reports whether a request has by default what a field asks for.
func says(path, value string, req supervisor.CreateRequest) bool {
	return isTemplate(path) && req.Template == "base" || path == "secure" && fmt.Sprint(req.Config.Secure) == value
}

// TestEveryFieldOfOthers sends every field to every other call that has a body:
// what changes nothing is refused by name.
func TestEveryFieldOfOthers(t *testing.T) {
	fields := everyField(t)
	maps.Copy(fields, ofOthers)
	for _, call := range changing {
		for path, value := range fields {
			t.Run(call+" "+path, func(t *testing.T) { changedOrRefused(t, call, path, value) })
		}
	}
}

// changedOrRefused sends a field to a call on a sandbox that there is.
func changedOrRefused(t *testing.T, call, path, value string) {
	method, target, _ := strings.Cut(call, " ")
	send := func(text string) (answer, store.Sandbox, []supervisor.PauseRequest) {
		w := newWorld(t)
		w.Fake.Defaults.StallAfter = time.Hour
		id := w.create(`{"templateID":"base","timeout":1,"autoPause":true,"metadata":{"x":"y"},"network":{"denyOut":["9.9.9.9"]}}`)
		if strings.HasSuffix(call, "/resume") {
			w.do("POST", "/sandboxes/"+id+"/pause", "").Is(http.StatusNoContent)
		}
		w.Fake.Pauses = nil
		a := w.do(method, strings.Replace(target, "ID", id, 1), text)
		return a, w.Fake.Sandboxes[id], w.Fake.Pauses
	}
	text := "{" + apitest.Nested(path, value) + "}"
	a, got, pauses := send(text)
	if a.Status < 300 {
		_, without, plainPauses := send("{}")
		if reflect.DeepEqual(got, without) && reflect.DeepEqual(pauses, plainPauses) && !has(got, path) {
			t.Errorf("%s %s: accepted without effect", call, text)
		}
		return
	}
	if a.Status != http.StatusBadRequest || !named(a.Body, path) {
		t.Errorf("%s %s: %d, and not by name: %s", call, text, a.Status, a.Body)
	}
}

// has reports whether the sandbox of the test above has what a field says
// already: that may be said again. Whether memory is restored says nothing of what runs.
func has(sb store.Sandbox, path string) bool {
	last := strings.ToLower(strings.NewReplacer("_", "", "lifecycle.", "").Replace(path))
	return isTemplate(path) || last == "secure" || strings.HasPrefix(last, "ontimeout") || last == "autopause" || last == "duration" ||
		strings.HasSuffix(last, "memory") && sb.Record.State == lifecycle.Running
}

// TestEveryFieldOfTheRest sends every field that any of our bodies knows to the
// calls on what is no sandbox, and to those that make other things of one, each
// beside what the call cannot do without: it changes the answer, what is stored or
// what is asked for, or it is refused by its name.
func TestEveryFieldOfTheRest(t *testing.T) {
	hook := hookBody(quiet)
	calls := []struct {
		call  string
		body  body.Vocabulary
		least string
	}{
		{"POST /events/webhooks", webhookBody, hook}, {"PATCH /events/webhooks/HOOK", webhookBody, `{}`},
		{"POST /api-keys", keyBody, `{"name": "n"}`}, {"POST /volumes", volumeBody, `{"name": "n"}`},
		{"POST /sandboxes/SANDBOX/fork", forkBody, `{}`}, {"POST /v2/sandboxes/SANDBOX/fork", forkBody, `{}`},
		{"POST /sandboxes/SANDBOX/clone", cloneBody, `{}`}, {"POST /sandboxes/SANDBOX/snapshots", snapshotBody, `{}`},
		{"POST /v3/templates", requestBody, `{"name": "n"}`}, {"POST /v2BUILD", startBody, `{"fromImage": "i"}`},
		{"POST /templates/tags", tagBody, `{"target": "built", "tags": ["x"]}`},
		{"DELETE /templates/tags", untagBody, `{"name": "built", "tags": ["x"]}`},
	}
	every := map[string]bool{"someday": true, "lifecycle.someday": true}
	for _, c := range calls {
		for _, sp := range slices.Concat(c.body.Spellings(), wakeBody.Spellings()) {
			every[sp.Path] = true
		}
	}
	values := map[string]string{
		"name": `"another"`, "url": `"http://127.0.0.1:9/other"`, "events": `["sandbox.lifecycle.paused"]`, "enabled": "false", "diskMiB": "300",
		// What these do is not shown; that they are read is, by what they refuse.
		"signatureSecret": `""`, "replayFrom": `"nonsense"`,
		"timeoutSeconds": "77", "count": "2", "strict": "true", "mode": `"filesystem"`,
		"tags": `["y"]`, "cpus": "1", "memoryMiB": "512", "minFreeDiskMb": "1", "teamID": `"a"`, "target": `"built:v2"`,
		"fromImage": `"other"`, "fromTemplate": `"base"`, "fromImageRegistry": `{"type":"gcp","serviceAccountJson":"{}"}`, "force": "true",
		"steps": `[{"type":"RUN"}]`, "startCmd": `"s"`, "readyCmd": `"r"`, "DELETE /templates/tags name": `"built2"`,
	}
	for _, c := range calls {
		t.Run(c.call, func(t *testing.T) {
			without := newRest(t, c.call).send(c.least, "", "")
			refuses := newRest(t, c.call)
			for _, path := range slices.Sorted(maps.Keys(every)) {
				option, value := "", "1"
				for _, sp := range c.body.Spellings() {
					if sp.Path == path {
						option, value = sp.Option.Name, cmp.Or(values[c.call+" "+sp.Option.Name], values[sp.Option.Name])
					}
				}
				r := refuses
				if option != "" {
					r = newRest(t, c.call)
				}
				got := r.send(c.least, path, value)
				// A bad value is named by what it is, too.
				word := cmp.Or(map[string]string{"signatureSecret": "secret", "replayFrom": "event_not_found", "strict": "too_many_sandboxes"}[option], path)
				refused := strings.HasPrefix(got, "4") && (named(got, path) || strings.Contains(got, word))
				switch {
				case dropped[c.call+" "+path] != "":
					if got != without {
						t.Errorf("%s: %s; without it %s", path, got, without)
					}
				case option == "" && !refused:
					t.Errorf("%s: %s; want a refusal that names it", path, got)
				case option != "" && !refused && (strings.HasPrefix(got, "4") || got == without):
					t.Errorf("%s: %s; without it %s", path, got, without)
				}
			}
		})
	}
}

// rest is a call that the tests of every field make.
type rest struct {
	w              *world
	method, target string
	asked          *[]string
}

func newRest(t *testing.T, call string) rest {
	t.Helper()
	r := rest{asked: new([]string)}
	r.w = newWorld(t, func(o *Options) {
		o.Snapshots, o.Builds = askedSnapshots{o.Snapshots, r.asked}, askedBuilds{o.Builds, r.asked}
	})
	hook := r.w.do("POST", "/events/webhooks", hookBody(quiet)).Is(http.StatusCreated).Object()["id"].(string)
	path := r.w.requested(goodKey, "built")
	r.w.requested(goodKey, "built2")
	ids := strings.NewReplacer("HOOK", hook, "SANDBOX", r.w.create(`{"templateID":"base"}`), "BUILD", path)
	r.method, r.target, _ = strings.Cut(ids.Replace(call), " ")
	return r
}

// send makes the call with one field more than the least, or in the place of
// another, and returns what it answers, has stored and has asked for, as far as
// that is the same each time.
func (r rest) send(least, path, value string) string {
	t := r.w.T
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(least), &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, path)
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if path != "" {
		text = []byte(strings.Replace("{"+apitest.Nested(path, value)+","+string(text[1:]), ",}", "}", 1))
	}
	*r.asked = nil
	a := r.w.do(r.method, r.target, string(text))
	var o map[string]any
	if strings.HasPrefix(a.Body, "{") {
		o = a.Object()
	}
	for _, name := range []string{"id", "createdAt", "mask", "key", "buildID", "templateID"} {
		delete(o, name)
	}
	volumes, err := r.w.Fake.Volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(a.Status, o, volumes, *r.asked)
}

// dropped are the fields that are read and have no effect, each with the client
// that sends it, and why nobody misses the effect.
var dropped = map[string]string{
	"POST /v3/templates teamID":              "E2B's generated clients have it for keys of several teams; a key here is of the one server",
	"POST /v2BUILD steps[0].forceUpload":     "e2b 2.51.0 and 2.63.0 send how they treat files before they send them: whether again,",
	"POST /v2BUILD steps[0].resolveSymlinks": "what links in them stand for,",
	"POST /v2BUILD steps[0].gzip":            "and how they pack them, which the archive shows itself",
}

// askedSnapshots and askedBuilds note what is asked for.
type askedSnapshots struct {
	snapshotsOf
	asked *[]string
}

type snapshotsOf interface{ Snapshots } // an embedded Snapshots would hide its method of that name

func (x askedSnapshots) TakeSnapshot(ctx context.Context, id string, req supervisor.SnapshotRequest) (store.Snapshot, error) {
	*x.asked = append(*x.asked, fmt.Sprint(req))
	return x.snapshotsOf.TakeSnapshot(ctx, id, req)
}

// Fork has one child more, which does not start.
func (x askedSnapshots) Fork(ctx context.Context, id string, req supervisor.ForkRequest) ([]supervisor.Forked, error) {
	if req.Timeout != nil {
		*x.asked = append(*x.asked, req.Timeout.String())
	}
	*x.asked = append(*x.asked, fmt.Sprint(req.Count))
	children, err := x.snapshotsOf.Fork(ctx, id, req)
	more := supervisor.Forked{Err: errdef.New(errdef.Exhausted, "too_many_sandboxes", "no more")}
	if req.All {
		return nil, more.Err
	}
	return append(children, more), err
}

type askedBuilds struct {
	Builds
	asked *[]string
}

func (x askedBuilds) Request(req build.Request) (build.Template, build.Build, error) {
	*x.asked = append(*x.asked, fmt.Sprint(req))
	return x.Builds.Request(req)
}

func (x askedBuilds) Start(_ context.Context, _, _ string, r build.Recipe) error {
	as := image.Login{}
	if r.Base.Login != nil {
		as = *r.Base.Login
	}
	*x.asked = append(*x.asked, fmt.Sprint(r.Base.Image, r.Base.Template, as, r.Force, fmt.Sprintf("%#v", r.Steps), r.Start, r.Ready))
	return nil
}

func (x askedBuilds) Tag(_ context.Context, id, from string, tags []string) (string, error) {
	*x.asked = append(*x.asked, fmt.Sprint(id, from, tags))
	return "", nil
}

func (x askedBuilds) Untag(_ context.Context, name string, tags []string) error {
	*x.asked = append(*x.asked, fmt.Sprint(name, tags))
	return nil
}

// TestEveryFieldOfABuild sends every field that a registry's login or a step can
// have to each kind of it: what changes nothing is refused by its name, unless it
// is one of those that are dropped.
func TestEveryFieldOfABuild(t *testing.T) {
	const call = "POST /v2BUILD"
	values := map[string]string{"username": `"me"`, "password": `"hidden"`, "serviceAccountJson": `"{}"`, "aws": `"x"`, "args": `["y"]`, "force": "true", "filesHash": `"h"`, "packing": "true"}
	for name, kind := range map[string]struct {
		body          body.Vocabulary
		at            string
		whole, around string // an object of the kind, and the body around it
	}{
		"registry": {loginBody, "fromImageRegistry", `{"type":"registry","username":"a","password":"b"}`, `{"fromImage":"i","fromImageRegistry":%s}`},
		"gcp":      {loginBody, "fromImageRegistry", `{"type":"gcp","serviceAccountJson":"a"}`, `{"fromImage":"i","fromImageRegistry":%s}`},
		"step":     {stepBody, "steps[0]", `{"type":"RUN","args":["x"]}`, `{"fromImage":"i","steps":[%s]}`},
	} {
		t.Run(name, func(t *testing.T) {
			without := newRest(t, call).send(fmt.Sprintf(kind.around, kind.whole), "", "")
			if !strings.HasPrefix(without, "202") {
				t.Fatal(without)
			}
			fields := map[string]string{"someday": "1", "Type": `"registry"`, "userName": `"me"`}
			for _, sp := range kind.body.Spellings() {
				if sp.Path != "type" {
					fields[sp.Path] = values[sp.Option.Name]
				}
			}
			for field, value := range fields {
				var object map[string]json.RawMessage
				if err := json.Unmarshal([]byte(kind.whole), &object); err != nil {
					t.Fatal(err)
				}
				object[field] = json.RawMessage(value)
				text, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				got := newRest(t, call).send(fmt.Sprintf(kind.around, text), "", "")
				switch {
				case strings.HasPrefix(got, "4"):
					if !strings.Contains(got, field) || strings.Contains(got, "hidden") {
						t.Errorf("%s: %s; want a refusal that names it, and not the password", field, got)
					}
				case got == without && dropped[call+" "+kind.at+"."+field] == "":
					t.Errorf("%s: accepted without effect", field)
				}
			}
		})
	}
}
