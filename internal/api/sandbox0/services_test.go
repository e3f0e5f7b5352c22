package sandbox0

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/service"
)

// appOf is a service with everything that can be said of one.
const appOf = `{"id":"web","display_name":"The shop","port":8000,
	"runtime":{"type":"cmd","command":["serve","--fast"],"cwd":"/srv","env_vars":{"A":"b"}},
	"ingress":{"public":true,"routes":[
		{"id":"root","path_prefix":"/","resume":true},
		{"id":"admin","path_prefix":"admin/","methods":["get","POST"],"resume":false,"auth":{"mode":"bearer","bearer_token_sha256":"` + digest + `"}}]},
	"health_check":{"path":"health"}}`

const digest = "2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B" // of "secret"

func services(items ...string) string {
	return `{"services":[` + strings.Join(items, ",") + `]}`
}

func (w *world) services(a apitest.Answer) []any {
	w.T.Helper()
	return data(a, http.StatusOK)["services"].([]any)
}

func TestServicesArePublished(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Domain = "sandboxes.test" })
	id := w.claim("")
	at := all + "/" + id + "/services"
	if list := w.services(w.Do("GET", at, "")); len(list) != 0 {
		t.Errorf("a new sandbox has %v", list)
	}
	put := w.Do("PUT", at, services(appOf, `{"id":"hand","port":9000,"ingress":{"public":false}}`, `{"id":"worker","runtime":{"type":"cmd","command":["work"]},"ingress":{"public":false}}`))
	list := w.services(put)
	if len(list) != 3 || data(put, 200)["exposure_domain"] != "sandboxes.test" {
		t.Fatalf("%s", put.Body)
	}
	want := map[string]any{
		"id": "web", "display_name": "The shop", "port": 8000., "publishable": true, "publish_blockers": []any{}, "public_url": "http://8000-" + id + ".sandboxes.test",
		"runtime":      map[string]any{"type": "cmd", "command": []any{"serve", "--fast"}, "cwd": "/srv", "env_vars": map[string]any{"A": "b"}},
		"health_check": map[string]any{"path": "/health"},
		"ingress": map[string]any{"public": true, "routes": []any{
			map[string]any{"id": "root", "path_prefix": "/", "resume": true},
			map[string]any{"id": "admin", "path_prefix": "/admin", "methods": []any{"GET", "POST"}, "resume": false, "auth": map[string]any{"mode": "bearer", "bearer_token_sha256": strings.ToLower(digest)}},
		}},
	}
	if !reflect.DeepEqual(list[0], want) {
		t.Errorf("got  %v\nwant %v", list[0], want)
	}
	sb, _ := w.Fake.Find(t.Context(), id)
	one := sb.Config.Services[0]
	if len(sb.Config.Services) != 2 || !one.Resume || one.Ready.Check != service.CheckHTTP || one.Restart != service.OnFailure ||
		one.Env["SANDBOX0_SERVICE_ID"] != "web" || one.Env["SANDBOX0_SERVICE_PORT"] != "8000" || one.Env["SANDBOX0_SERVICE_RUNTIME"] != "cmd" || !sb.Record.Settings.Serves {
		t.Errorf("stored as %+v", sb.Config.Services)
	}
	// What was got can be put, and the detail says the same.
	again, err := json.Marshal(map[string]any{"services": list})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.services(w.Do("PUT", at, string(again))); !reflect.DeepEqual(got, list) {
		t.Errorf("put back: %v", got)
	}
	if got := w.sandbox(id)["services"]; !reflect.DeepEqual(got, any(list)) {
		t.Errorf("in the detail: %v", got)
	}
	// A key that may only look sees no variables and no code.
	for _, secret := range []string{`"b"`} {
		if a := w.DoAs(apitest.ReadKey, "GET", at, ""); a.Status != http.StatusOK || strings.Contains(a.Body, secret) {
			t.Errorf("one that may look sees %s in %d %s", secret, a.Status, a.Body)
		}
	}
	if a := w.DoAs(apitest.ReadKey, "PUT", at, services()); a.Status != http.StatusForbidden {
		t.Errorf("one that may look changes them: %d", a.Status)
	}
	if got := w.services(w.Do("PUT", at, services())); len(got) != 0 {
		t.Errorf("cleared: %v", got)
	}
	if sb, _ := w.Fake.Find(t.Context(), id); len(sb.Config.Services)+len(sb.Config.Entrances) != 0 || sb.Record.Settings.Serves {
		t.Errorf("stored as %+v", sb.Config)
	}
}

// TestUpdateIsWhole: what is refused in part changes nothing, whichever part it is.
func TestUpdateIsWhole(t *testing.T) {
	w := newWorld(t)
	w.Fake.Limit = time.Hour
	id := w.claim(`{"config":{"ttl":600,` + services(appOf)[1:] + `}`)
	before, _ := w.Fake.Find(t.Context(), id)
	entries := len(w.Fake.Log())
	for what, body := range map[string]string{
		"a ttl over the limit":          `{"config":{"ttl":7200,"hard_ttl":9000,"network":{"mode":"block-all"},` + services()[1:] + `}`,
		"no ttl, over the limit":        `{"config":{"ttl":0,"hard_ttl":9000}}`,
		"a rule that is none":           `{"config":{"ttl":900,"hard_ttl":9000,"network":{"mode":"allow-all","egress":{"allowedDomains":["not a name"]}},` + services()[1:] + `}`,
		"no wake, with what is to wake": `{"config":{"ttl":900,"auto_resume":false}}`,
	} {
		fails(w.Do("PUT", all+"/"+id, body), http.StatusBadRequest, "bad_request")
		after, _ := w.Fake.Find(t.Context(), id)
		if !reflect.DeepEqual(after, before) || len(w.Fake.Log()) != entries {
			t.Errorf("%s: refused, and the sandbox was %+v and is %+v", what, before, after)
		}
	}
	d := data(w.Do("PUT", all+"/"+id, `{"config":{"ttl":900,"hard_ttl":9000,"auto_resume":false,"network":{"mode":"block-all"},`+services()[1:]+`}`), http.StatusOK)
	if d["expires_at"] != "2026-09-01T12:15:00.123456Z" || d["hard_expires_at"] != "2026-09-01T14:30:00.123456Z" || d["auto_resume"] != false || d["services"] != nil && len(d["services"].([]any)) > 0 {
		t.Errorf("an update of everything gives %v", d)
	}
	if sb, _ := w.Fake.Find(t.Context(), id); sb.Config.AllowInternet == nil || *sb.Config.AllowInternet {
		t.Errorf("the internet is open: %+v", sb.Config)
	}
}

// TestServicesOfAClaim: they are there from the start, and an update replaces them.
func TestServicesOfAClaim(t *testing.T) {
	w := newWorld(t)
	id := w.claim(`{"config":` + services(appOf) + `}`)
	sb, _ := w.Fake.Find(t.Context(), id)
	if len(sb.Config.Services) != 1 || len(sb.Config.Entrances) != 1 {
		t.Fatalf("%+v", sb.Config)
	}
	d := data(w.Do("PUT", all+"/"+id, `{"config":{"ttl":900,`+services(`{"id":"fn","runtime":{"type":"function","function":{"runtime":"python","source":{"type":"inline","code":"def handler(r): return 1"}}},"ingress":{"public":true}}`)[1:]+`}`), http.StatusOK)
	list := d["services"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["id"] != "fn" || list[0].(map[string]any)["port"] != 49900. {
		t.Errorf("%v", list)
	}
	for what, body := range map[string]string{
		"two at a port":           `{"config":{"hard_ttl":900,` + services(`{"id":"a","port":80,"ingress":{"public":true}}`, `{"id":"b","port":80,"ingress":{"public":true}}`)[1:] + `}`,
		"resume without a wake":   `{"config":{"hard_ttl":900,"auto_resume":false,` + services(appOf)[1:] + `}`,
		"longer than it can live": `{"config":{"ttl":99,"hard_ttl":9,` + services()[1:] + `}`,
	} {
		if a := w.Do("PUT", all+"/"+id, body); a.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, a.Status, a.Body)
		}
	}
	sb, _ = w.Fake.Find(t.Context(), id)
	if sb.Record.Settings.MaxLifetime != 0 || len(sb.Config.Services) != 1 || sb.Config.Services[0].Name != "fn" {
		t.Errorf("a refused update left %+v", sb)
	}
}

func TestFunctionsGetPorts(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	fn := func(name, port string) string {
		return fmt.Sprintf(`{"id":%q%s,"runtime":{"type":"function","function":{"runtime":"python","handler":"a.b","max_concurrency":3,"source":{"type":"inline","code":"x"}}},"ingress":{"public":true}}`, name, port)
	}
	ports := func(items ...string) (list []float64) {
		for _, one := range w.services(w.Do("PUT", all+"/"+id+"/services", services(items...))) {
			list = append(list, one.(map[string]any)["port"].(float64))
		}
		return list
	}
	if got := ports(fn("one", ""), fn("two", fmt.Sprintf(`,"port":%d`, agentapi.Port)), fn("three", `,"port":49900`)); !slices.Equal(got, []float64{49901, 49902, 49900}) {
		t.Errorf("ports %v", got)
	}
	if got := ports(fn("two", "")); !slices.Equal(got, []float64{49902}) {
		t.Errorf("it has moved to %v", got)
	}
	f := w.services(w.Do("GET", all+"/"+id+"/services", ""))[0].(map[string]any)["runtime"].(map[string]any)
	if want := map[string]any{"type": "function", "function": map[string]any{"runtime": "python", "handler": "a.b", "max_concurrency": 3., "source": map[string]any{"type": "inline", "code": "x"}}}; !reflect.DeepEqual(f, want) {
		t.Errorf("%v", f)
	}
}

// TestWhatServicesCannotBe: each is refused by its name, and nothing is changed.
func TestWhatServicesCannotBe(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	at := all + "/" + id + "/services"
	w.services(w.Do("PUT", at, services(appOf)))
	route := func(r string) string {
		return `{"id":"web","port":80,"runtime":{"type":"cmd","command":["x"]},"ingress":{"public":true,"routes":[` + r + `]}}`
	}
	for _, c := range [][]string{
		{`{"port":80,"ingress":{"public":true}}`, "id"},
		{`{"id":"web","port":80}`, "ingress.public"},
		{`{"id":"Web!","port":80,"ingress":{"public":true}}`, "not the name of a service"},
		{`{"id":"web","ingress":{"public":true}}`, "without a port"},
		{`{"id":"web","port":49983,"ingress":{"public":true}}`, "agent"},
		{`{"id":"web","port":0,"ingress":{"public":true}}`, "port"},
		{`{"id":"web","port":80,"ingress":{"public":true},"runtime":{"command":["x"]}}`, "runtime.type"},
		{`{"id":"web","port":80,"ingress":{"public":true},"runtime":{"type":"nextjs"}}`, "runtime.type"},
		{`{"id":"web","port":80,"ingress":{"public":true},"runtime":{"type":"cmd"}}`, "no command"},
		{`{"id":"web","ingress":{"public":true},"runtime":{"type":"function"}}`, "source.code"},
		{`{"id":"web","ingress":{"public":true},"runtime":{"type":"function","function":{"runtime":"node","source":{"type":"inline","code":"x"}}}}`, "function.runtime"},
		{`{"id":"web","ingress":{"public":true},"runtime":{"type":"function","function":{"handler":"a()","source":{"code":"x"}}}}`, "handler"},
		{`{"id":"web","ingress":{"public":true},"runtime":{"type":"function","function":{"max_concurrency":-1,"source":{"code":"x"}}}}`, "max_concurrency"},
		{`{"id":"web","port":80,"ingress":{"public":true},"someday":1}`, "someday"},
		{`{"id":"web","port":80,"ingress":{"public":true,"routes":[{"id":"r","resume":true}]}}`, "nothing would start it"},
		{route(`{"path_prefix":"/"}`), "id"}, {route(`{"id":"r"},{"id":"r","path_prefix":"/a"}`), "two routes"},
		{route(`{"id":"r"},{"id":"s","path_prefix":"//"}`), "two routes"}, {route(`{"id":"r","path_prefix":"/a b"}`), "no route"}, {route(`{"id":"r","path_prefix":"/%61"}`), "no route"},
		{route(`{"id":"r","methods":["G T"]}`), "no method"}, {route(`{"id":"r","auth":{"mode":"magic"}}`), "auth.mode"},
		{route(`{"id":"r","auth":{"mode":"bearer"}}`), "SHA-256"}, {route(`{"id":"r","auth":{"bearer_token_sha256":"` + digest + `"}}`), "auth.mode"},
		{route(`{"id":"r","auth":{"mode":"header","header_value_sha256":"` + digest + `"}}`), "header_name"},
		{route(`{"id":"r","auth":{"mode":"header","header_name":"a b","header_value_sha256":"` + digest + `"}}`), "no header"},
		{route(`{"id":"r","cors":{"allowed_origins":["*"]}}`), "cors"}, {route(`{"id":"r","rate_limit":{"rps":1,"burst":1}}`), "rate_limit"},
		{route(`{"id":"r","rewrite_prefix":"/x"}`), "rewrite_prefix"}, {route(`{"id":"r","timeout_seconds":5}`), "timeout_seconds"},
		{`{"id":"web","ingress":{"public":true},"runtime":{"type":"function","function":{"source":{"code":"` + strings.Repeat("x", 33<<10) + `"}}}}`, "bytes of text"},
	} {
		a := w.Do("PUT", at, services(c[0]))
		if len(c[0]) > 300 {
			c[0] = c[0][:300]
		}
		if a.Status != http.StatusBadRequest || !strings.Contains(a.Body, c[1]) || !strings.Contains(a.Body, `"bad_request"`) {
			t.Errorf("%s: %d %s, want %q", c[0], a.Status, a.Body, c[1])
		}
	}
	off := w.claim(`{"config":{"auto_resume":false}}`)
	fails(w.Do("PUT", all+"/"+off+"/services", services(appOf)), http.StatusBadRequest, "bad_request", "auto_resume is off")
	if list := w.services(w.Do("GET", at, "")); len(list) != 1 {
		t.Errorf("what is left: %v", list)
	}
	// What says nothing is nothing.
	w.services(w.Do("PUT", at, services(route(`{"id":"r","cors":null,"rate_limit":null,"rewrite_prefix":null,"timeout_seconds":0,"auth":{"mode":"none"}}`))))
}

// serveFunction runs a function as a service does, and returns what asks it.
func serveFunction(t *testing.T, handler string, most int, code string) func(method, path, body string) (int, http.Header, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	command := callFunction(handler, most, code)
	run := exec.CommandContext(ctx, command[0], command[1:]...)
	run.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", port))
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = run.Wait() })
	address := fmt.Sprintf("127.0.0.1:%d", port)
	for end := time.Now().Add(soon); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal("the function does not listen")
		}
	}
	return func(method, path, body string) (int, http.Header, string) {
		t.Helper()
		var sent io.Reader
		if body != "" {
			sent = io.MultiReader(strings.NewReader(body)) // chunked
		}
		req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, sent)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil, err.Error()
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return res.StatusCode, res.Header, err.Error()
		}
		return res.StatusCode, res.Header, string(text)
	}
}

// TestFunctions runs what a function can return, with the Python of this machine.
func TestFunctions(t *testing.T) {
	ask := serveFunction(t, "app.handle", 0, `
import base64
class app:
    calls = 0
    def handle(request):
        app.calls += 1
        what = request["path"]
        if what == "/none": return None
        if what == "/text": return "é"
        if what == "/list": return [1, 2]
        if what == "/echo": return {"status": 201, "headers": {"X-Many": ["a", "b"], "x-none": None, "content-length": "9"}, "body": {"m": request["method"], "q": request["raw_query"], "b": base64.b64decode(request["body_base64"]).decode()}}
        if what == "/base64": return {"body_base64": base64.b64encode(b"\x00\xff").decode()}
        if what == "/parts": return {"body": (str(n) for n in range(3))}
        if what == "/later": return later()
        if what == "/flow": return {"body": flow()}
        if what == "/half": return {"body": half()}
        if what == "/calls": return str(app.calls)
        if what == "/split": return {"headers": {"x": "a\r\nb: c"}}
        raise Exception("secret of the traceback")
async def later(): return "later"
async def flow():
    yield "a"
    yield b"b"
def half():
    yield "a"
    raise Exception()
`)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/none", "", 204, ""}, {"GET", "/text", "", 200, "é"}, {"HEAD", "/text", "", 200, ""}, {"GET", "/list", "", 200, "[1,2]"},
		{"POST", "/echo?a=1&b=%20", "hello", 201, `{"m":"POST","q":"a=1&b=%20","b":"hello"}`}, {"BREW", "/ech%6f", "", 201, `{"m":"BREW","q":"","b":""}`},
		{"GET", "/base64", "", 200, "\x00\xff"}, {"GET", "/parts", "", 200, "012"}, {"GET", "/later", "", 200, "later"}, {"GET", "/flow", "", 200, "ab"},
		{"GET", "/half", "", 200, "unexpected EOF"}, {"GET", "/calls", "", 200, "12"},
	} {
		status, header, got := ask(c.method, c.path, c.body)
		if status != c.status || got != c.want {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, status, got, c.status, c.want)
		}
		if c.path == "/echo?a=1&b=%20" && (!slices.Equal(header.Values("X-Many"), []string{"a", "b"}) || header.Get("Content-Type") != "application/json" || header.Get("X-None") != "") {
			t.Errorf("fields %v", header)
		}
	}
	for _, path := range []string{"/raise", "/split"} {
		if status, header, got := ask("GET", path, ""); status != 500 || strings.Contains(got, "secret") || header.Get("B") != "" {
			t.Errorf("%s: %d %v %q", path, status, header, got)
		}
	}
	if status, _, got := ask("POST", "/text", strings.Repeat("x", 8<<20+1)); status != 413 && status != 0 {
		t.Errorf("a large request: %d %q", status, got)
	}
	if status, _, _ := ask("GET", "/text", ""); status != 200 {
		t.Errorf("after all that: %d", status)
	}
}

// TestFunctionsAreBounded: with as many requests under way as it may have, a
// function gets no more.
func TestFunctionsAreBounded(t *testing.T) {
	goOn := filepath.Join(t.TempDir(), "go")
	ask := serveFunction(t, "", 1, fmt.Sprintf(`
import os, time
def handler(request):
    while not os.path.exists(%q): time.sleep(0.02)
    return "done"
`, goOn))
	answers := make(chan int, 2)
	for range cap(answers) {
		go func() { status, _, _ := ask("GET", "/", ""); answers <- status }()
	}
	if status := <-answers; status != http.StatusTooManyRequests {
		t.Errorf("the first answer is %d", status)
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if status := <-answers; status != http.StatusOK {
		t.Errorf("the other one is %d", status)
	}
	if status, _, _ := ask("GET", "/", ""); status != http.StatusOK {
		t.Errorf("and then %d", status)
	}
}
