package v1

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// least is what a body cannot be without, by the field and the route.
var least = map[string]map[string]string{
	"openHold":       {"reason": `"build"`, "seconds": "60"},
	"createPreview":  {"port": "8000"},
	"createKey":      {"name": `"n"`},
	"addSSHKey":      {"publicKey": `"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPu4Wk/k3E7S5MrpnAX/vW7U2XRJpjdtx1FTYmvlXeCV"`},
	"setSecret":      {"hosts": `["api.example.com"]`, "value": `"first-value"`},
	"rotateSecret":   {"value": `"first-value"`},
	"createVolume":   {"name": `"n"`},
	"setTimeout":     {"timeoutSeconds": "600"},
	"flatSetTimeout": {"sandbox": `"$ID"`, "timeoutSeconds": "600"},
	"flatPause":      {"sandbox": `"$ID"`},
	"flatResume":     {"sandbox": `"$ID"`},
	"pullTemplate":   {"image": `"n"`},
	"restoreSandbox": {"snapshot": `"first"`},
	"setTemplate":    {"template": `"base"`},
	"setServices":    {"services": `[]`},
	"setService":     {"command": `"serve"`, "port": "8000"},
}

// others are values of the options that are not of a sandbox, each other than
// what the routes do by default and other than in least.
var others = map[string]map[string]string{
	"mode":             {body.AsMode.Words: `"filesystem"`, body.AsKeeping.Words: "false"},
	"timeoutSeconds":   {body.UntilSeconds.Words: "90", body.UntilMillis.Words: "90000", body.InSeconds.Words: "5400", body.InMillis.Words: "5400000"},
	"reason":           {body.AsText.Words: `"another"`},
	"seconds":          {body.InSomeSeconds.Words: "90"},
	"id":               {body.AsText.Words: `"another"`},
	"port":             {body.AsPort.Words: "9000"},
	"value":            {body.AsText.Words: `"another-value"`},
	"hosts":            {body.AsRules.Words: `["*.example.com:8443"]`},
	"headers":          {body.AsTexts.Words: `{"X-Key":"{}"}`},
	"query":            {body.AsTexts.Words: `{"key":"{}"}`},
	"env":              {body.AsText.Words: `"ANOTHER"`, body.AsVars.Words: `{"A":"b"}`},
	"plain":            {body.AsFlag.Words: "true"},
	"expiresInSeconds": {body.InSomeSeconds.Words: "90", body.InSecondsOrNever.Words: "90"},
	"pinned":           {body.AsFlag.Words: "true"},
	"keepLast":         {body.AsCount.Words: "1"},
	"path":             {body.AsPath.Words: `"/a"`},
	"name":             {body.AsText.Words: `"another"`},
	"key":              {body.AsText.Words: `"` + chosenKey + `"`},
	"publicKey":        {body.AsText.Words: `"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGNbRHdLNNfsP3wYArvIeHN3ITHH6pHp1nYb968L+GwJ"`},
	"role":             {body.AsRole.Words: `"read"`},
	"count":            {body.AsCount.Words: "3"},
	"maxRunning":       {body.AsCount.Words: "3", body.AsLimit.Words: "3"},
	"maxSandboxes":     {body.AsCount.Words: "3", body.AsLimit.Words: "3"},
	"maxMemoryMiB":     {body.AsCount.Words: "3000", body.AsLimit.Words: "3000"},
	"maxDiskMiB":       {body.AsCount.Words: "3000", body.AsLimit.Words: "3000"},
	"maxRate":          {body.AsCount.Words: "3", body.AsLimit.Words: "3"},
	"diskMiB":          {body.AsCount.Words: "300"},
	"sandbox":          {body.AsText.Words: `"$ID"`},
	"server":           {body.AsText.Words: `"srv_b"`},
	"snapshot":         {body.AsText.Words: `"x1"`},
	"replace":          {body.AsFlag.Words: "true"},
	"undo":             {body.AsFlag.Words: "true"},
	"draining":         {body.AsFlag.Words: "true"},
	"discard":          {body.AsFlag.Words: "true"},
	// The sandbox of the test has the other value, which can be said again.
	"onTimeout":         {body.AsAction.Words: `"kill"`, body.AsPausing.Words: "false"},
	"autoResume":        {body.AsFlag.Words: "false"},
	"stallAfterSeconds": {body.InSecondsOrNever.Words: "60"},
	"template":          {body.AsTemplate.Words: `"another"`, body.AsText.Words: `"another"`},
	"image":             {body.AsText.Words: `"another"`},
	"command":           {body.AsCommand.Words: `["another","one"]`},
	"route":             {body.AsText.Words: `"/a"`},
	"cwd":               {body.AsText.Words: `"/a"`},
	"user":              {body.AsText.Words: `"root"`},
	"restart":           {body.AsRestart.Words: `"always"`},
	"maxBackoffSeconds": {body.InSomeSeconds.Words: "90"},
	"after":             {body.AsRules.Words: `["another"]`},
	"resume":            {body.AsFlag.Words: "true"},

	"ready.http":            {body.AsText.Words: `"/a"`},
	"ready.command":         {body.AsText.Words: `"true"`},
	"ready.port":            {body.AsFlag.Words: "false"},
	"ready.timeoutSeconds":  {body.InSomeSeconds.Words: "90"},
	"ready.intervalSeconds": {body.InSomeSeconds.Words: "9"},
}

// TestEveryFieldOfEveryCall sends every field that any of our bodies knows to
// every route that reads a body, alone beside what the route cannot do without:
// it changes what the call does or answers, or it is refused by its name. The
// fields and the routes are those of the tables, so none can be forgotten.
func TestEveryFieldOfEveryCall(t *testing.T) {
	every := map[string]bool{"someday": true, "lifecycle.someday": true}
	for _, r := range routes() {
		for _, sp := range r.body.Spellings() {
			every[sp.Path] = true
		}
	}
	for _, r := range routes() {
		if r.body == nil {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			forms := map[string]body.Spelling{}
			for _, sp := range r.body.Spellings() {
				forms[sp.Path] = sp
			}
			c := newAttempt(t, r) // refusals leave it as it is
			for n, path := range slices.Sorted(maps.Keys(every)) {
				sp, known := forms[path]
				switch {
				case !known && n%4 > 0 && !testmode.All(): // one in four will do
				case !known:
					c.refusesByName(path, "1")
				case sp.Option.Refused:
					c.refusesByName(path, `{"a":1}`)
				default:
					takenOrRefused(t, r, sp)
				}
			}
		})
	}
}

// sampleOf returns a value of an option.
func sampleOf(t *testing.T, r route, sp body.Spelling) string {
	t.Helper()
	if value, ok := others[sp.Option.Name][sp.Form.Words]; ok && r.name != "createSandbox" {
		return value
	}
	sample, ok := apitest.Samples[sp.Option.Name][sp.Form.Words]
	if !ok {
		t.Errorf("no sample of %s as %s", sp.Option.Name, sp.Form.Words)
	}
	return sample.Value
}

// done is what a call has done, as far as it is the same each time.
type done struct {
	status int
	body   string
	world  string
}

// attempt is a call on a world of its own.
type attempt struct {
	t     *testing.T
	route route
	world *world
	id    string // of the sandbox there
}

func newAttempt(t *testing.T, r route) attempt {
	t.Helper()
	w := newWorld(t, func(o *Options) {
		o.Mover = movesTo{o.Sandboxes}
		if r.name == "patchServer" {
			o.Servers = apitest.Servers{{ID: "x1"}}
		}
		if r.name == "patchKey" || r.name == "rotateKey" {
			o.Keys = keyX1(t)
		}
	})
	id := w.create(`{"timeoutSeconds":3600,"onTimeout":"pause","autoResume":true,"metadata":{"x":"y"},"denyOut":["9.9.9.9"]}`)
	for _, name := range []string{"first", "x1"} { // as PathOf calls what is no sandbox
		w.do("POST", pathOf(id)+"/snapshots", fmt.Sprintf(`{"name":%q}`, name)).Is(http.StatusCreated)
	}
	if r.name == "createSandbox" {
		w.WithVolumes("x")
	}
	if r.name == "rotateSecret" {
		w.do("PUT", "/v1/secrets/x1", `{"hosts":["api.example.com"],"value":"the-old-value"}`).Is(http.StatusOK)
	}
	return attempt{t, r, w, id}
}

// with makes the call with the least body and one field more or in the place of
// another.
func (c attempt) with(option, path, value string) answer {
	c.t.Helper()
	var fields []string
	for name, value := range least[c.route.name] {
		if name != option {
			fields = append(fields, fmt.Sprintf("%q:%s", name, value))
		}
	}
	slices.Sort(fields)
	if path != "" {
		fields = append(fields, apitest.Nested(path, value))
	}
	text := strings.ReplaceAll("{"+strings.Join(fields, ",")+"}", "$ID", c.id)
	return c.world.do(strings.ToUpper(c.route.method), apitest.PathOf(c.route.pattern, sandboxParam, c.id), text)
}

// try makes a call on a world of its own.
func try(t *testing.T, r route, option, path, value string) done {
	t.Helper()
	c := newAttempt(t, r)
	a, w := c.with(option, path, value), c.world
	snaps := list(w.do("GET", "/v1/snapshots", "").Is(http.StatusOK).Object()["snapshots"])
	for _, snap := range snaps {
		snap["expiresAt"] = snap["expiresAt"] != nil // by the real clock
	}
	state, err := json.Marshal([]any{w.Fake.Sandboxes, w.Fake.Pauses, w.Fake.Created, snaps, w.secretValues(t)})
	if err != nil {
		t.Fatal(err)
	}
	return done{a.Status, withoutChance(t, a.Body), string(state)}
}

// chosenKey is the text of a key that the call has, and not chance.
const chosenKey = "e2b_0123456789abcdef0123456789abcdef"

// keyX1 returns keys with one of the id that PathOf puts into paths.
func keyX1(t *testing.T) Keys {
	t.Helper()
	st := memstore.Open(memstore.NewData(), memstore.Hooks{})
	if err := st.AddKey(t.Context(), store.Key{ID: "x1", Name: "as it was", Role: store.RoleOwn, CreatedAt: apitest.Epoch}); err != nil {
		t.Fatal(err)
	}
	keys, err := auth.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// secretValues returns what a sandbox would send of the secret that the tests make.
func (w *world) secretValues(t *testing.T) (values []string) {
	t.Helper()
	lent := w.vault.Lend(store.Config{Key: apitest.KeyID, Secrets: []store.SecretUse{{Name: "x1"}}}, nil)
	secrets, err := lent.For("api.example.com", 443)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets {
		values = append(values, s.Value)
	}
	return values
}

// withoutChance returns an answer without what is random or of the real clock.
func withoutChance(t *testing.T, text string) string {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return text
	}
	if o["version"] != nil { // a secret, which is, too
		delete(o, "id")
		delete(o, "createdAt")
		delete(o, "updatedAt")
	}
	if o["mask"] != nil || o["fingerprint"] != nil { // a key, which is made for real
		for _, name := range []string{"id", "mask", "createdAt"} {
			delete(o, name)
		}
		if o["key"] != chosenKey {
			delete(o, "key")
		}
		o["expiresAt"] = o["expiresAt"] != nil
	}
	plain, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

// refusesByName sends a field that a route does not have, or cannot do.
func (c attempt) refusesByName(path, value string) {
	c.t.Helper()
	got := c.with("", path, value)
	first, _, _ := strings.Cut(path, ".")
	if got.Status != http.StatusBadRequest && got.Status != http.StatusNotImplemented || !strings.Contains(got.Body, first) {
		c.t.Errorf("%s: %d %s; want a refusal that names it", path, got.Status, got.Body)
	}
}

// takenOrRefused sends a field that a route has.
func takenOrRefused(t *testing.T, r route, sp body.Spelling) {
	t.Helper()
	got := try(t, r, sp.Option.Name, sp.Path, sampleOf(t, r, sp))
	if got.status >= 300 {
		last := sp.Path[strings.LastIndex(sp.Path, ".")+1:]
		if got.status != http.StatusBadRequest || !strings.Contains(got.body, last) && !strings.Contains(got.body, sp.Option.Name) {
			t.Errorf("%s: %d %s; want a refusal that names it", sp.Path, got.status, got.body)
		}
		return
	}
	if sp.Option.Name == "sandbox" { // without it there is no call at all
		return
	}
	if without := try(t, r, "", "", ""); got == without {
		t.Errorf("%s: accepted without effect", sp.Path)
	}
}

// TestAMisspelledFieldIsToldItsName sends the name of every option with a letter
// too many: the refusal says which field was meant.
func TestAMisspelledFieldIsToldItsName(t *testing.T) {
	for _, r := range routes() {
		if r.body == nil {
			continue
		}
		c := newAttempt(t, r)
		for _, o := range r.body {
			if o.Refused {
				continue
			}
			got := c.with("", o.Name+"x", "1")
			if got.Status != http.StatusBadRequest || !strings.Contains(got.Body, `"unknown_field"`) || !strings.Contains(got.Body, `"meant":"`+o.Name) {
				t.Errorf("%s: %sx: %d %s", r.name, o.Name, got.Status, got.Body)
			}
		}
	}
}
