package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// kind is what a reference in a request names. The walk puts one in the place of
// <kind>.
type kind string

const (
	ofSandbox  kind = "sandbox"
	ofEnded    kind = "ended" // a sandbox that has ended
	ofSnapshot kind = "snapshot"
	ofBuilt    kind = "built" // a template that was built of steps
	ofOrigin   kind = "origin"
	ofBuild    kind = "build"
	ofHold     kind = "hold"
	ofPreview  kind = "preview"
	ofService  kind = "service"
	ofSSHKey   kind = "sshkey"
	ofSecret   kind = "secret"
	ofKey      kind = "key"
	ofVolume   kind = "volume"
	ofWebhook  kind = "webhook"
	ofContext  kind = "context"
	ofNothing  kind = "nothing" // what names no thing of anybody's
	ofName     kind = "name"    // what a new snapshot is to be called
)

// dialect is what the walk must know of one beside its routes.
type dialect struct {
	name   string
	routes []httpapi.Endpoint
	params map[string]kind     // what the parameters of paths name
	bodies map[string][]string // the least that each route with a body takes, in one way or several
	header map[string]string   // of requests
	query  map[string]string   // that a route cannot do without
	first  map[string]string   // the first message of a route that is a WebSocket
	// token makes a route prove itself by the token of the volume that it names.
	token bool
	// ended and kept say how a sandbox that has ended is answered: to whom asks it
	// for something, and to whom looks.
	ended, kept string
	// strict says that a route refuses what it does not know also where it only looks.
	// Clients of others are newer than this server, and send parameters of their own.
	strict bool
	// but are the routes that deviate, by what they deviate in.
	but map[string]map[string]string
}

// way is a request of a route, with <kind> in the place of what it names.
type way struct {
	httpapi.Endpoint
	d          *dialect
	path, body string
	w          *walker
}

func (r way) String() string { return r.Method + " " + r.Pattern }

// deviates reports whether a route is one that deviates in something.
func (r way) deviates(in string) bool {
	why := r.d.but[in][r.String()]
	if why != "" {
		r.w.used[in+" "+r.String()] = true
	}
	return why != ""
}

// walker walks over the routes of a dialect.
type walker struct {
	*world
	t      *testing.T
	used   map[string]bool
	things map[string]map[kind][]string // of each key, by id and by name
	first  map[string]string            // what routes answer alike
	keys   map[store.Role]string
	serial int
}

var placeholder = regexp.MustCompile(`<(\w+)>`)

// walk calls a test with every request of every route of every dialect.
func walk(t *testing.T, in string, test func(w *walker, r way)) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			w := &walker{world: newWorld(t), used: map[string]bool{}, things: map[string]map[kind][]string{}, first: map[string]string{}, keys: map[store.Role]string{}}
			if len(d.routes) == 0 {
				t.Fatal("no routes")
			}
			ran := 0
			for _, e := range d.routes {
				t.Run(e.Method+" "+e.Pattern, func(t *testing.T) {
					ran++
					w.t, w.world.t = t, t
					for _, r := range d.ways(t, e) {
						r.w = w
						test(w, r)
					}
				})
			}
			w.t, w.world.t = t, t
			for route := range d.but[in] {
				if ran == len(d.routes) && !w.used[in+" "+route] {
					t.Errorf("%s is said to deviate in %q, and does not", route, in)
				}
			}
		})
	}
}

// ways returns the requests of a route.
func (d *dialect) ways(t *testing.T, e httpapi.Endpoint) []way {
	segs := strings.Split(e.Pattern, "/")
	for i, seg := range segs {
		if !httpapi.IsParam(seg) {
			continue
		}
		k, known := d.params[strings.Trim(seg, "{}")]
		if !known {
			t.Fatalf("teach the walk about the parameter %s of %s: see dialects", seg, d.name)
		}
		segs[i] = "<" + string(k) + ">"
	}
	path := strings.Join(segs, "/") + d.query[e.Method+" "+e.Pattern]
	bodies, known := d.bodies[e.Method+" "+e.Pattern]
	if !known {
		if e.Method != http.MethodGet && e.Method != http.MethodDelete {
			t.Fatalf("teach the walk about %s %s: which body does it take? See dialects", e.Method, e.Pattern)
		}
		bodies = []string{""}
	}
	var list []way
	for _, b := range bodies {
		list = append(list, way{Endpoint: e, d: d, path: path, body: b})
	}
	return list
}

// names returns the kinds of things that a request names.
func (r way) names() (kinds []kind) {
	for _, text := range []string{r.path, r.body, r.d.header["X-Sandbox-Id"]} {
		for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
			if k := kind(m[1]); k != ofNothing && k != ofName && !slices.Contains(kinds, k) && (text != r.d.header["X-Sandbox-Id"] || r.byHeader()) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

func (r way) byHeader() bool { return strings.Contains(r.Pattern, "sandbox.v1.Sandbox/") }

// send makes a request with a key. A thing that said does not have is the key's own.
func (w *walker) send(key string, r way, said map[kind]string, change ...func(*http.Request)) asked {
	w.t.Helper()
	fill := func(text string, escape func(string) string) string {
		return placeholder.ReplaceAllStringFunc(text, func(p string) string {
			k := kind(p[1 : len(p)-1])
			if ref, given := said[k]; given {
				return escape(ref)
			}
			return escape(w.own(key, k))
		})
	}
	inJSON := func(text string) string {
		b, _ := json.Marshal(text)
		return string(b[1 : len(b)-1])
	}
	at := w.url + fill(r.path, func(s string) string { return strings.ReplaceAll(url.PathEscape(s), "..", "%2e%2e") })
	req, err := http.NewRequestWithContext(w.t.Context(), r.Method, at, strings.NewReader(fill(r.body, inJSON)))
	if err != nil {
		w.t.Fatal(err)
	}
	switch {
	case key != "" && r.d.token:
		volume, given := said[ofVolume]
		if !given {
			volume = w.own(key, ofVolume)
		}
		req.Header.Set("Authorization", "Bearer "+w.token(key, volume))
	case key != "":
		req.Header.Set("X-API-Key", key)
	}
	for name, value := range r.d.header {
		if name != "X-Sandbox-Id" || r.byHeader() {
			req.Header.Set(name, url.PathEscape(fill(value, func(s string) string { return s })))
		}
	}
	if r.byHeader() {
		req.Header.Set("Content-Type", "application/json")
		if strings.HasPrefix(r.body, "\x00") {
			req.Header.Set("Content-Type", "application/connect+json")
		}
	}
	for _, f := range change {
		f(req)
	}
	if first := r.d.first[r.String()]; first != "" {
		return w.talk(req, first)
	}
	client := http.Client{Timeout: testmode.Patience()}
	resp, err := client.Do(req)
	if err != nil {
		w.t.Fatalf("%s: %v", r, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Errorf("%s: %v", r, err)
	}
	return asked{resp.StatusCode, string(text)}
}

// token returns what opens a volume to the holder of a key.
func (w *walker) token(key, volume string) string {
	k, err := w.parts.keys.Check(key)
	if err != nil {
		return "nonsense"
	}
	return w.sup.VolumeToken(k.ID, volume)
}

// talk sends the first message of a WebSocket, and returns what the last one says. An
// error in that has the status that it has elsewhere.
func (w *walker) talk(req *http.Request, first string) asked {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), testmode.Patience())
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPHeader: req.Header, Subprotocols: []string{"connect.sandbox.v1"}})
	if err != nil {
		if resp == nil {
			w.t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		return asked{resp.StatusCode, string(text)}
	}
	defer ws.CloseNow()
	if err := ws.Write(ctx, websocket.MessageBinary, []byte(first)); err != nil {
		w.t.Fatal(err)
	}
	last := asked{status: resp.StatusCode}
	for {
		_, message, err := ws.Read(ctx)
		if ctx.Err() != nil {
			w.t.Fatal("the WebSocket does not end")
		}
		if err != nil {
			break
		}
		last.body = string(message[min(5, len(message)):])
	}
	for word, status := range map[string]int{"not_found": 404, "not_resumable": 409, "internal": 500} {
		if failed := (asked{status, last.body}); code(failed) == fmt.Sprint(status, " ", word) {
			return failed
		}
	}
	return last
}

// asker returns a new key of the least role that may call a route.
func (w *walker) asker(r way) string { return w.key(least(r)) }

func least(r way) store.Role {
	for _, role := range []store.Role{store.RoleOwn, store.RoleFull} {
		if auth.May(store.Key{Role: role}, r.Needs) || r.Needs == "" {
			return role
		}
	}
	return store.RoleAdmin
}

// always returns the same key of a role: who is refused too often has to wait.
func (w *walker) always(role store.Role) string {
	if w.keys[role] == "" {
		w.keys[role] = w.key(role)
	}
	return w.keys[role]
}

// key makes an API key.
func (w *walker) key(role store.Role) string {
	w.t.Helper()
	w.serial++
	return w.wants(w.ask(testKey, "POST", "/v1/keys", fmt.Sprintf(`{"name":"k%d","role":%q}`, w.serial, role)), 201, "").field("key")
}

// own returns the id of a thing of a key, which is made if there is none.
func (w *walker) own(key string, k kind) string { return w.refs(key, k)[0] }

// refs returns the id and the name, if it has one, of a thing of a key.
func (w *walker) refs(key string, k kind) []string {
	w.t.Helper()
	if key == "" {
		return []string{unknown(k)}
	}
	if w.things[key] == nil {
		w.things[key] = map[kind][]string{}
	}
	if w.things[key][k] == nil {
		w.things[key][k] = w.make(key, k)
	}
	return w.things[key][k]
}

// make makes a thing.
func (w *walker) make(key string, k kind) []string {
	w.t.Helper()
	w.serial++
	name := fmt.Sprintf("the-%s-%d", k, w.serial)
	do := func(key, method, path, body string) asked {
		w.t.Helper()
		a := w.ask(key, method, path, body)
		if a.status >= 300 {
			w.t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
		}
		return a
	}
	switch k {
	case ofSandbox:
		a := do(key, "POST", "/v1/sandboxes", fmt.Sprintf(`{"name":%q,"timeout":3600,"onTimeout":"pause","autoResume":true}`, name))
		return []string{a.field("id"), name}
	case ofSnapshot, ofOrigin:
		a := do(key, "POST", "/v1/sandboxes/"+w.own(key, ofSandbox)+"/snapshots", fmt.Sprintf(`{"name":%q}`, name))
		refs := []string{a.field("id"), name}
		if k == ofOrigin {
			refs = append(refs, w.refs(key, ofBuilt)...)
		}
		return refs
	case ofBuilt, ofBuild:
		a := do(key, "POST", "/v3/templates", fmt.Sprintf(`{"name":%q}`, name))
		id, build := a.field("templateID"), a.field("buildID")
		do(key, "POST", "/v2/templates/"+id+"/builds/"+build, `{"fromTemplate":"base"}`)
		for end := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
			a := do(key, "GET", "/templates/"+id+"/builds/"+build+"/status", "")
			if a.field("status") == "ready" {
				break
			}
			if a.field("status") == "error" || time.Now().After(end) {
				w.t.Fatalf("the build: %s", a.body)
			}
		}
		w.things[key][ofBuilt], w.things[key][ofBuild] = []string{id, name}, []string{build}
		return w.things[key][k]
	case ofName:
		return []string{name}
	case ofContext:
		a := do(key, "POST", "/api/v1/sandboxes/"+w.own(key, ofSandbox)+"/contexts", `{"cmd":{"command":["true"]}}`)
		var made struct{ Data struct{ ID string } }
		if err := json.Unmarshal([]byte(a.body), &made); err != nil {
			w.t.Fatal(err)
		}
		return []string{made.Data.ID}
	case ofHold:
		return []string{do(key, "POST", "/v1/sandboxes/"+w.own(key, ofSandbox)+"/holds", `{"reason":"tests","seconds":3600}`).field("id")}
	case ofPreview:
		return []string{do(key, "POST", "/v1/sandboxes/"+w.own(key, ofSandbox)+"/previews", `{"port":8000}`).field("id")}
	case ofService:
		do(key, "PUT", "/v1/sandboxes/"+w.own(key, ofSandbox)+"/services/"+name, `{"command":"serve"}`)
		return []string{name}
	case ofSSHKey:
		public, err := newPublicKey()
		if err != nil {
			w.t.Fatal(err)
		}
		return []string{do(key, "POST", "/v1/ssh-keys", fmt.Sprintf(`{"publicKey":%q}`, public)).field("id")}
	case ofSecret:
		do(key, "PUT", "/v1/secrets/"+name, `{"hosts":["api.example.com"],"value":"a-long-value"}`)
		return []string{name}
	case ofKey:
		return []string{do(testKey, "POST", "/v1/keys", fmt.Sprintf(`{"name":%q}`, name)).field("id")}
	case ofVolume:
		return []string{do(testKey, "POST", "/v1/volumes", fmt.Sprintf(`{"name":%q}`, name)).field("id")}
	case ofWebhook:
		return []string{do(testKey, "POST", "/events/webhooks", fmt.Sprintf(`{"name":%q,"url":"http://127.0.0.1:9/","enabled":false,"events":["sandbox.lifecycle.paused"],"signatureSecret":"0123456789abcdef0123456789abcdef"}`, name)).field("id")}
	}
	return []string{unknown(k)}
}

// unknown returns a reference of the form of an id that nothing has.
func unknown(k kind) string {
	switch k {
	case ofSnapshot, ofOrigin:
		return "s00000000000000000000"
	case ofBuilt:
		return "t00000000000000000000"
	case ofBuild, ofKey, ofContext:
		return "00000000-0000-4000-8000-000000000000"
	case ofNothing:
		return "8000"
	}
	return "i00000000000000000000"
}

// state is all that the server keeps, but for what passes by itself.
func (w *walker) state() string {
	w.t.Helper()
	p := w.parts
	sandboxes, err := p.sup.All(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	slices.SortFunc(sandboxes, func(a, b store.Sandbox) int { return strings.Compare(a.ID, b.ID) })
	volumes, err := p.sup.Volumes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	templates, err := p.sup.Templates()
	if err != nil {
		w.t.Fatal(err)
	}
	keys := p.keys.List()
	for i := range keys {
		keys[i].LastUsedAt = time.Time{}
	}
	all := []any{sandboxes, p.sup.AllSnapshots(), volumes, templates, p.builder.Templates(), keys, p.hooks.List()}
	for _, k := range keys {
		previews := []any{}
		for _, sb := range sandboxes {
			if sb.Config.Key == k.ID {
				links, err := p.sup.Previews(w.t.Context(), sb.ID)
				previews = append(previews, links, err != nil)
			}
		}
		all = append(all, previews, p.sshKeys.Of(k.ID), p.secrets.Of(k.ID))
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// unchanged wants the state to be as it was.
func (w *walker) unchanged(before string) {
	w.t.Helper()
	after := w.state()
	if after == before {
		return
	}
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range was {
		if i >= len(is) || was[i] != is[i] {
			w.t.Errorf("something was changed: %s\nit was %s", strings.Join(is[max(0, i-3):min(len(is), i+3)], ""), strings.Join(was[max(0, i-3):min(len(was), i+3)], ""))
			return
		}
	}
	w.t.Error("something was added")
}

// wrongKey is well formed.
const wrongKey = "e2b_ffffffffffffffffffffffffffffffffffffffff"

// alike wants the same of all routes.
func (w *walker) alike(what, answer string) {
	w.t.Helper()
	if w.first[what] == "" {
		w.first[what] = answer
	}
	if answer != w.first[what] {
		w.t.Errorf("%s: %s\nelsewhere it is %s", what, answer, w.first[what])
	}
}

// TestEveryRouteKnowsWhoAsks sends every request without a key, with one that there is
// not, and with one of each role that may not.
func TestEveryRouteKnowsWhoAsks(t *testing.T) {
	walk(t, "keys", func(w *walker, r way) {
		if r.Needs == "" {
			if a := w.send("", r, nil); a.status == http.StatusUnauthorized && !r.deviates("keys") {
				w.t.Errorf("%d %s", a.status, a.body)
			}
			return
		}
		owner := w.always(least(r))
		things := map[kind]string{}
		for _, k := range r.names() {
			things[k] = w.own(owner, k)
		}
		same := func(of string, a asked, status int) {
			w.t.Helper()
			if a.status != status || strings.Contains(a.body+w.log.String(), wrongKey) {
				w.t.Errorf("%s: %d %s", of, a.status, a.body)
			}
			w.alike(fmt.Sprint(of, r.byHeader()), a.body)
		}
		weak := map[store.Role]string{}
		for _, role := range []store.Role{store.RoleRead, store.RoleOwn, store.RoleFull} {
			if !auth.May(store.Key{Role: role}, r.Needs) {
				weak[role] = w.always(role)
			}
		}
		before := w.state()
		same("none", w.send("", r, things), 401)
		same("bad", w.send("nonsense", r, things), 401)
		same("unknown", w.send(wrongKey, r, things), 401)
		for role, key := range weak {
			same(fmt.Sprint(role, r.Needs), w.send(key, r, things), 403)
		}
		w.unchanged(before)
	})
}

// strange are texts that cannot be ids.
var strange = []string{strings.Repeat("a", 300), "..", "a/b", "UPPER", "é", "a\x00b", "-a", "%2e"}

// TestEveryRouteHidesWhatIsNotThere has every request name things that there are not,
// and those of another key: the answers are the same.
func TestEveryRouteHidesWhatIsNotThere(t *testing.T) {
	walk(t, "hidden", func(w *walker, r way) {
		key := w.asker(r)
		other := w.always(store.RoleOwn)
		own := auth.May(store.Key{Role: store.RoleOwn}, r.Needs)
		if len(r.names()) > 1 {
			for _, k := range r.names() {
				w.own(key, k)
			}
		}
		for _, k := range r.names() {
			refs, gone := w.refs(other, k), w.ended(other)
			before := w.state()
			send := func(ref string) asked {
				a := w.send(key, r, map[kind]string{k: ref})
				a.body = strings.ReplaceAll(a.body, ref, "ID")
				return a
			}
			hides := func(what string, good bool, a asked) {
				w.t.Helper()
				if !good && !unbuilt(a) && !r.deviates("hidden") {
					w.t.Errorf("%s %s: %d %s", what, k, a.status, a.body)
				}
			}
			for i, ref := range append(refs, unknown(k)) {
				none := send(absent(ref))
				hides("absent", none.status == http.StatusNotFound || i%2 == 1 && none.status == http.StatusBadRequest, none) // there is no such name
				shared := k == ofVolume || k == ofWebhook || k == ofKey
				if shared || i == len(refs) || !own && i%2 == 0 {
					continue // who may ask sees it
				}
				same := func(ref string, none asked) {
					w.t.Helper()
					got := send(ref)
					hides(fmt.Sprintf("want %d %s\ngot for %s of another key,", none.status, none.body, ref), got == none, got)
				}
				same(ref, none)
				if k == ofSandbox && i == 0 {
					same(gone, none)
				}
				if k == ofSandbox && strings.HasPrefix(r.body, "{") && !strings.Contains(r.body, "<sandbox>") {
					sent := r.body
					r.body = `{"nonsense":1}`
					same(ref, send(absent(ref)))
					r.body = sent
				}
			}
			for _, ref := range strange {
				got := send(ref)
				hides(fmt.Sprintf("%.20q as", ref), got.status == http.StatusNotFound || got.status == http.StatusBadRequest, got)
			}
			if !r.deviates("hidden") {
				w.unchanged(before)
			}
		}
	})
}

// unbuilt reports whether an answer is that of a route that this server does not have,
// whatever is sent.
func unbuilt(a asked) bool {
	return a.status == http.StatusNotImplemented || strings.Contains(a.body, "secrets_not_supported")
}

// absent returns a reference of the form of another that nothing has.
func absent(ref string) string {
	last := "a"
	if strings.HasSuffix(ref, last) {
		last = "b"
	}
	return ref[:len(ref)-1] + last
}

// ended returns a sandbox of a key that has ended.
func (w *walker) ended(key string) string {
	w.t.Helper()
	if w.things[key][ofEnded] == nil {
		id := w.make(key, ofSandbox)[0]
		w.wants(w.ask(key, "DELETE", "/v1/sandboxes/"+id, ""), 204, "")
		w.things[key][ofEnded] = []string{id}
	}
	return w.own(key, ofEnded)
}

// record returns the record of a sandbox.
func (w *walker) record(id string) lifecycle.Record {
	w.t.Helper()
	sb, err := w.sup.Find(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb.Record
}

// code is a status and an error's code, as far as a dialect has codes.
func code(a asked) string {
	var o map[string]any
	_ = json.Unmarshal([]byte(a.body), &o)
	if inner, is := o["error"].(map[string]any); is {
		o = inner
	}
	for _, name := range []string{"error_code", "code"} {
		if text, is := o[name].(string); is && a.status >= 300 {
			return fmt.Sprint(a.status, " ", text)
		}
	}
	return fmt.Sprint(a.status)
}

// TestEveryRouteKnowsTheEnded asks every route for a sandbox that has ended.
func TestEveryRouteKnowsTheEnded(t *testing.T) {
	walk(t, "ended", func(w *walker, r way) {
		if !slices.Contains(r.names(), ofSandbox) {
			return
		}
		key := w.asker(r)
		for _, k := range r.names() {
			w.own(key, k)
		}
		w.wants(w.ask(key, "DELETE", "/v1/sandboxes/"+w.own(key, ofSandbox), ""), 204, "")
		before := w.state()
		want := r.d.ended
		if r.Needs == auth.Look {
			want = r.d.kept
		}
		if a := w.send(key, r, nil); code(a) != want && !(unbuilt(a) && r.d.name != "e2b") && !r.deviates("ended") {
			w.t.Errorf("%s: %s, want %s", code(a), a.body, want)
		}
		w.unchanged(before)
	})
}

// TestEveryRouteLetsSleep asks every route for a sandbox that sleeps: to look wakes
// nothing, and what goes in wakes one that may be woken, or is refused.
func TestEveryRouteLetsSleep(t *testing.T) {
	walk(t, "asleep", func(w *walker, r way) {
		if !slices.Contains(r.names(), ofSandbox) {
			return
		}
		woke := map[bool]bool{}
		for _, may := range []bool{true, false} {
			key := w.asker(r)
			for _, k := range r.names() {
				w.own(key, k)
			}
			id := w.own(key, ofSandbox)
			w.wants(w.ask(key, "PATCH", "/v1/sandboxes/"+id, fmt.Sprintf(`{"autoResume":%t}`, may)), 200, "")
			w.wants(w.ask(key, "POST", "/v1/sandboxes/"+id+"/pause", ""), 200, "paused")
			before := w.record(id)
			a := w.send(key, r, nil)
			after := w.record(id)
			woke[may] = after.Generation > before.Generation
			switch {
			case a.status == http.StatusInternalServerError:
				w.t.Errorf("%d %s", a.status, a.body)
			case r.Needs == auth.Look && (a.status >= 300 && !unbuilt(a) || woke[may]) && !r.deviates("asleep"):
				w.t.Errorf("woke: %t, %d %s", woke[may], a.status, a.body)
			case woke[true] && !may && !woke[may]: // it goes in
				w.alike("asleep", code(a))
			case woke[false] && !r.deviates("asleep"):
				w.t.Errorf("it woke what is not to be woken: %d %s", a.status, a.body)
			}
		}
	})
}

// TestEveryRouteKeepsWhatWasBuilt: the result of a build is neither changed nor taken
// away by what is for snapshots, and no snapshot gets its name, nor a template's.
func TestEveryRouteKeepsWhatWasBuilt(t *testing.T) {
	walk(t, "built", func(w *walker, r way) {
		named := strings.Contains(r.body, "<name>")
		if !named && (r.Method == http.MethodGet || !slices.Contains(r.names(), ofSnapshot)) {
			return
		}
		key := w.asker(r)
		for _, k := range r.names() {
			w.own(key, k)
		}
		refs, k := w.refs(key, ofBuilt), ofSnapshot
		refs = append(refs, refs[1]+":default")
		for _, snap := range w.parts.sup.AllSnapshots() {
			if snap.Name == refs[1] {
				refs = append(refs, snap.ID)
			}
		}
		if len(refs) < 4 {
			w.t.Fatal("the result of the build is not there")
		}
		if named {
			k, refs = ofName, append([]string{"base"}, refs[1:3]...)
		}
		before := w.state()
		for _, ref := range refs {
			if a := w.send(key, r, map[kind]string{k: ref}); a.status/100 != 4 && !r.deviates("built") {
				w.t.Errorf("%s: %d %s", ref, a.status, a.body)
			}
		}
		if !r.deviates("built") {
			w.unchanged(before)
		}
	})
}

// TestEveryRouteReadsAllThatIsSent sends every route what it does not know: a field, a
// parameter of the query, what is no JSON, and a body where none is. What comes with a
// GET is no body.
func TestEveryRouteReadsAllThatIsSent(t *testing.T) {
	walk(t, "sent", func(w *walker, r way) {
		key := w.asker(r)
		for _, k := range r.names() {
			w.own(key, k)
		}
		before := w.state()
		wants := func(what, text string, a asked) {
			w.t.Helper()
			if (a.status != http.StatusBadRequest || !strings.Contains(a.body, text)) && !unbuilt(a) && !r.deviates("sent") {
				w.t.Errorf("%s: %d %s", what, a.status, a.body)
			}
		}
		query := func(req *http.Request) {
			q := req.URL.Query()
			q.Set("someday", "1")
			req.URL.RawQuery = q.Encode()
		}
		if r.Method != http.MethodGet || r.d.strict {
			wants("query", "someday", w.send(key, r, nil, query))
		}
		object := strings.HasPrefix(r.body, "{")
		if object {
			more := r
			more.body = strings.Replace(`{"someday":1,`+r.body[1:], ",}", "}", 1)
			wants("field", "someday", w.send(key, more, nil))
			for _, text := range []string{`{"a"`, `[]`, `"x"`, `{} {}`, `{"a":1,"a":2}`} {
				more.body = text
				wants(text, "", w.send(key, more, nil))
			}
		}
		if r.body == "" && r.Method != http.MethodGet {
			more := r
			more.body = `{"someday":1}`
			wants("a body", "someday", w.send(key, more, nil))
		}
		w.unchanged(before)
	})
}
