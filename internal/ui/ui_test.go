package ui_test

import (
	"context"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/ui"
	"github.com/drowse-dev/drowse/internal/ui/uitest"
)

// world is a dashboard on a listener.
type world struct {
	*uitest.Server
	t     *testing.T
	reads atomic.Int64 // of the event log of one sandbox
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ts := httptest.NewUnstartedServer(nil)
	s, err := uitest.New(ctx, ts.Listener)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: s, t: t}
	ts.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/sandboxes/") && strings.HasSuffix(r.URL.Path, "/events") {
			w.reads.Add(1)
		}
		s.HTTP.ServeHTTP(rw, r)
	})
	ts.Start()
	t.Cleanup(func() { cancel(); ts.Close() })
	return w
}

// browser keeps cookies and says of each request what browsers say.
type browser struct {
	*world
	cookies map[string]string
	token   string
}

var (
	// navigation is what a browser says of a page that a person goes to.
	navigation = http.Header{"Sec-Fetch-Site": {"none"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}
	// submission is what it says of a form of a page of this origin.
	submission = http.Header{"Sec-Fetch-Site": {"same-origin"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}
	// script is what it says of a request of a script of this origin, whichever page that is of.
	script = http.Header{"Sec-Fetch-Site": {"same-origin"}, "Sec-Fetch-Mode": {"cors"}, "Sec-Fetch-Dest": {"empty"}}
)

type answer struct {
	*http.Response
	body string
}

func (b *browser) send(method, path string, says http.Header, form url.Values) answer {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.URL+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header = says.Clone()
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range resp.Cookies() {
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return answer{resp, string(text)}
}

func (a answer) is(t *testing.T, status int, parts ...string) answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%s %s: %d, want %d: %.2000s", a.Request.Method, a.Request.URL, a.StatusCode, status, a.body)
	}
	for _, part := range parts {
		if !strings.Contains(a.body, part) {
			t.Errorf("%s %s does not have %q: %.3000s", a.Request.Method, a.Request.URL, part, a.body)
		}
	}
	return a
}

var tokenIn = regexp.MustCompile(`data-token="([^"]+)"`)

func (w *world) stranger() *browser { return &browser{world: w, cookies: map[string]string{}} }

// signIn returns a browser that has signed in with a new key of a role.
func (w *world) signIn(role store.Role) (*browser, store.Key) {
	w.t.Helper()
	key, text, err := w.Key(w.t.Context(), role)
	if err != nil {
		w.t.Fatal(err)
	}
	b := w.stranger()
	b.send("POST", "/ui/sign-in", submission, url.Values{"key": {text}}).is(w.t, http.StatusSeeOther)
	page := b.send("GET", "/ui/", navigation, nil).is(w.t, http.StatusOK)
	b.token = tokenIn.FindStringSubmatch(page.body)[1]
	return b, key
}

func (w *world) create(name string) string {
	w.t.Helper()
	sb, err := w.Fake.Create(w.t.Context(), supervisor.CreateRequest{Template: "base", Settings: lifecycle.Settings{OnTimeout: lifecycle.Pause}, Config: store.Config{Metadata: map[string]string{"name": name}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return sb.ID
}

// TestOtherPagesGetNothing: what a page of another site, or of a sandbox that has
// the same origin, can have a browser send in the name of who has signed in.
func TestOtherPagesGetNothing(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleAdmin)
	id := w.create("mine")
	says := func(site, mode, dest string) http.Header {
		return http.Header{"Sec-Fetch-Site": {site}, "Sec-Fetch-Mode": {mode}, "Sec-Fetch-Dest": {dest}}
	}
	for _, c := range []struct {
		name, method, path string
		says               http.Header
		form               url.Values
	}{
		{"a form of another site", "POST", "/pause", says("cross-site", "navigate", "document"), url.Values{"token": {b.token}}},
		{"a form of a sandbox's host", "POST", "/pause", says("same-site", "navigate", "document"), url.Values{"token": {b.token}}},
		{"a form of this origin without the token", "POST", "/pause", submission, url.Values{}},
		{"a form with another token", "POST", "/pause", submission, url.Values{"token": {"x"}}},
		{"a script of this origin that posts", "POST", "/kill", script, url.Values{}},
		{"a script of this origin that reads", "GET", "", script, nil},
		{"a script of another origin", "GET", "", says("cross-site", "cors", "empty"), nil},
		{"a frame", "GET", "", says("same-origin", "navigate", "iframe"), nil},
		{"an image", "GET", "", says("same-origin", "no-cors", "image"), nil},
		{"a script element", "GET", "", says("same-origin", "no-cors", "script"), nil},
		{"a browser that says nothing", "GET", "", http.Header{}, nil},
		{"a browser that says nothing and posts", "POST", "/pause", http.Header{}, url.Values{"token": {b.token}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := b.send(c.method, "/ui/sandboxes/"+id+c.path, c.says, c.form).is(t, http.StatusForbidden)
			if strings.Contains(a.body, "mine") || strings.Contains(a.body, b.token) {
				t.Errorf("it learns %s", a.body)
			}
		})
	}
	if sb, err := w.Fake.Find(t.Context(), id); err != nil || sb.Record.State != lifecycle.Running {
		t.Errorf("the sandbox is %s, %v", sb.Record.State, err)
	}
	b.send("POST", "/ui/sandboxes/"+id+"/pause", submission, url.Values{"token": {b.token}}).is(t, http.StatusSeeOther)
	if sb, _ := w.Fake.Find(t.Context(), id); sb.Record.State != lifecycle.Paused {
		t.Errorf("with all of it the sandbox is %s", sb.Record.State)
	}
	b.send("GET", "/ui/sandboxes/"+id, navigation, nil).is(t, http.StatusOK, id+" is paused")
}

// TestAnswersAreGuarded: no page can be framed, cached or reached by its opener, and
// none runs a script that is not ours.
func TestAnswersAreGuarded(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleAdmin)
	seen := map[string]bool{}
	for _, path := range []string{"/ui/", "/ui/", "/ui/sign-in", "/ui/link", "/ui/nothing", "/ui/sandboxes/i0"} {
		a := b.send("GET", path, navigation, nil)
		policy := a.Header.Get("Content-Security-Policy")
		for name, want := range map[string]string{
			"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%s: %s %q", path, name, got)
			}
		}
		if !strings.Contains(policy, "frame-ancestors 'none'") || !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || seen[policy] {
			t.Errorf("%s: policy %q", path, policy)
		}
		seen[policy] = true
	}
}

func TestSessions(t *testing.T) {
	w := newWorld(t)
	t.Run("a value that was known before is worth nothing", func(t *testing.T) {
		_, text, err := w.Key(t.Context(), store.RoleFull)
		if err != nil {
			t.Fatal(err)
		}
		b := w.stranger()
		b.cookies["drowse_ui"] = "known"
		b.send("POST", "/ui/sign-in", submission, url.Values{"key": {text}}).is(t, http.StatusSeeOther)
		if got := b.cookies["drowse_ui"]; got == "known" || len(got) < 40 {
			t.Errorf("the cookie is %q", got)
		}
		first := b.cookies["drowse_ui"]
		b.send("POST", "/ui/sign-in", submission, url.Values{"key": {text}}).is(t, http.StatusForbidden, "signed in already")
		page := b.send("GET", "/ui/link", navigation, nil).is(t, http.StatusOK)
		b.send("GET", "/ui/link", script, nil).is(t, http.StatusForbidden)
		token := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(page.body)[1]
		b.send("POST", "/ui/sign-in", submission, url.Values{"key": {text}, "token": {token}}).is(t, http.StatusSeeOther)
		old := w.stranger()
		old.cookies["drowse_ui"] = first
		old.send("GET", "/ui/", navigation, nil).is(t, http.StatusSeeOther)
	})
	t.Run("two cookies", func(t *testing.T) {
		b, _ := w.signIn(store.RoleFull)
		says := navigation.Clone()
		says.Set("Cookie", "drowse_ui=planted")
		b.send("GET", "/ui/", says, nil).is(t, http.StatusOK)
		other, _ := w.signIn(store.RoleFull)
		says.Set("Cookie", "drowse_ui="+other.cookies["drowse_ui"])
		a := b.send("GET", "/ui/", says, nil).is(t, http.StatusBadRequest, "more than one session cookie")
		if gone := strings.Join(a.Header.Values("Set-Cookie"), "\n"); !strings.Contains(gone, "Path=/ui;") || !strings.Contains(gone, "Path=/ui/;") || strings.Count(gone, "Max-Age=0") != 3 {
			t.Errorf("the browser is told: %s", gone)
		}
		other.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK)
	})
	t.Run("a form of a page that has this origin", func(t *testing.T) {
		b, _ := w.signIn(store.RoleFull)
		_, text, err := w.Key(t.Context(), store.RoleFull)
		if err != nil {
			t.Fatal(err)
		}
		link := b.send("POST", "/ui/links", http.Header{"X-Api-Key": {text}}, nil).is(t, http.StatusCreated)
		secret := regexp.MustCompile(`/ui/link#([\w-]+)`).FindStringSubmatch(link.body)[1]
		was := b.cookies["drowse_ui"]
		b.send("POST", "/ui/sign-in", submission, url.Values{"key": {text}}).is(t, http.StatusForbidden)
		b.send("POST", "/ui/link", submission, url.Values{"secret": {secret}}).is(t, http.StatusForbidden)
		if b.cookies["drowse_ui"] != was {
			t.Error("the browser has another session")
		}
		b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK)
	})
	t.Run("a revoked key", func(t *testing.T) {
		b, key := w.signIn(store.RoleFull)
		stream := make(chan answer)
		says := script.Clone()
		says.Set("X-Drowse-Token", b.token)
		go func() { stream <- b.send("GET", "/ui/events", says, nil) }()
		select {
		case a := <-stream:
			t.Fatalf("the stream ended: %d %s", a.StatusCode, a.body)
		case <-time.After(200 * time.Millisecond): // it may not have begun: then it is refused below
		}
		if err := w.Keys.Revoke(t.Context(), key.ID); err != nil {
			t.Fatal(err)
		}
		select {
		case <-stream:
		case <-time.After(time.Minute):
			t.Error("the stream goes on")
		}
		a := b.send("GET", "/ui/", navigation, nil).is(t, http.StatusSeeOther)
		if to := a.Header.Get("Location"); !strings.HasPrefix(to, "/ui/sign-in") {
			t.Errorf("it is sent to %s", to)
		}
		b.send("GET", "/ui/events", says, nil).is(t, http.StatusUnauthorized)
	})
	t.Run("sign-out", func(t *testing.T) {
		b, _ := w.signIn(store.RoleFull)
		kept := b.cookies["drowse_ui"]
		b.send("POST", "/ui/sign-out", submission, url.Values{"token": {b.token}}).is(t, http.StatusSeeOther)
		if len(b.cookies) != 0 {
			t.Errorf("cookies are left: %v", b.cookies)
		}
		b.cookies["drowse_ui"] = kept
		b.send("GET", "/ui/", navigation, nil).is(t, http.StatusSeeOther)
	})
	t.Run("where to go on", func(t *testing.T) {
		_, text, err := w.Key(t.Context(), store.RoleFull)
		if err != nil {
			t.Fatal(err)
		}
		for next, want := range map[string]string{
			"/ui/?state=paused": "/ui/?state=paused", "//evil.example/ui/": "/ui/", "https://evil.example/ui/": "/ui/", "/s/i0/8000/": "/ui/",
			`/ui/\..\evil`: "/ui/", "/ui/../s/i0/80/": "/ui/", "javascript:alert(1)": "/ui/", "/ui/%2e%2e/s/i0/80/": "/ui/", "": "/ui/",
		} {
			a := w.stranger().send("POST", "/ui/sign-in", submission, url.Values{"key": {text}, "next": {next}}).is(t, http.StatusSeeOther)
			if got := a.Header.Get("Location"); got != want {
				t.Errorf("%q leads to %q", next, got)
			}
		}
	})
}

func TestCookieOfTLS(t *testing.T) {
	w := newWorld(t)
	_, text, err := w.Key(t.Context(), store.RoleFull)
	if err != nil {
		t.Fatal(err)
	}
	says := submission.Clone()
	says.Set("X-Forwarded-Proto", "https")
	a := w.stranger().send("POST", "/ui/sign-in", says, url.Values{"key": {text}}).is(t, http.StatusSeeOther)
	c := a.Cookies()[0]
	if c.Name != "__Secure-drowse_ui" || !c.Secure || !c.HttpOnly || c.Domain != "" || c.Path != ui.Path || c.SameSite != http.SameSiteStrictMode {
		t.Errorf("the cookie is %s", a.Header.Get("Set-Cookie"))
	}
}

func TestLinks(t *testing.T) {
	w := newWorld(t)
	key, text, err := w.Key(t.Context(), store.RoleOwn)
	if err != nil {
		t.Fatal(err)
	}
	b := w.stranger()
	b.send("POST", "/ui/links", http.Header{}, nil).is(t, http.StatusUnauthorized, "X-API-Key")
	get := func() string {
		a := b.send("POST", "/ui/links", http.Header{"X-Api-Key": {text}}, nil).is(t, http.StatusCreated)
		return regexp.MustCompile(`/ui/link#([\w-]+)`).FindStringSubmatch(a.body)[1]
	}
	secret := get()
	b.send("POST", "/ui/link", submission, url.Values{"secret": {secret}}).is(t, http.StatusSeeOther)
	b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK, "own of the test")
	b = w.stranger()
	b.send("POST", "/ui/link", submission, url.Values{"secret": {secret}}).is(t, http.StatusUnauthorized, "used already")
	late := get()
	if err := w.Keys.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	b.send("POST", "/ui/link", submission, url.Values{"secret": {late}}).is(t, http.StatusUnauthorized)
}

// TestRoles: the dashboard shows and does what the API lets the key.
func TestRoles(t *testing.T) {
	w := newWorld(t)
	id := w.create("of nobody here")
	read, _ := w.signIn(store.RoleRead)
	page := read.send("GET", "/ui/sandboxes/"+id, navigation, nil).is(t, http.StatusOK, "of nobody here")
	if strings.Contains(page.body, "/kill") || strings.Contains(page.body, "/pause") {
		t.Error("a key that may only look is offered more")
	}
	read.send("POST", "/ui/sandboxes/"+id+"/kill", submission, url.Values{"token": {read.token}}).is(t, http.StatusSeeOther)
	read.send("GET", "/ui/sandboxes/"+id, navigation, nil).is(t, http.StatusOK, "another role", "running")
	read.send("GET", "/ui/sandboxes/"+id+"/files", navigation, nil).is(t, http.StatusForbidden, "from outside only")
	own, _ := w.signIn(store.RoleOwn)
	own.send("GET", "/ui/sandboxes/"+id, navigation, nil).is(t, http.StatusNotFound, "does not exist")
	if page := own.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK); strings.Contains(page.body, id) {
		t.Error("a key sees what another has made")
	}
}

// hostile is text that does something where it is not escaped.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>'{{.}}` + "\u202e"

func TestHostileTextIsEscaped(t *testing.T) {
	w := newWorld(t)
	id := w.create(hostile)
	b, _ := w.signIn(store.RoleAdmin)
	for _, path := range []string{"/ui/", "/ui/?metadata=" + url.QueryEscape("name="+hostile), "/ui/?template=" + url.QueryEscape(hostile), "/ui/?state=" + url.QueryEscape(hostile), "/ui/sandboxes/" + id, "/ui/sandboxes/" + id + "/log?search=" + url.QueryEscape(hostile), "/ui/sandboxes/" + url.PathEscape(hostile), "/ui/" + url.PathEscape(hostile)} {
		a := b.send("GET", path, navigation, nil)
		if strings.Contains(a.body, "<script>") || strings.Contains(a.body, "<img") {
			t.Errorf("%s has it as it is: %s", path, a.body)
		}
	}
	other := w.stranger()
	if a := other.send("GET", "/ui/sign-in?next="+url.QueryEscape("/ui/"+hostile), navigation, nil); strings.Contains(a.body, "<script>") {
		t.Errorf("sign-in has it as it is: %s", a.body)
	}
}

// TestLookUp: the field to go to a sandbox takes its id, the beginning of it, or the
// name that it was created with.
func TestLookUp(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleAdmin)
	made := b.send("POST", "/ui/new", submission, url.Values{"token": {b.token}, "template": {"base"}, "name": {"web-1"}}).is(t, http.StatusSeeOther)
	here := made.Header.Get("Location")
	id := strings.TrimPrefix(here, "/ui/sandboxes/")
	other := w.create("a title")
	b.send("GET", here, navigation, nil).is(t, http.StatusOK, "web-1")
	common := 0
	for id[:common+1] == other[:common+1] {
		common++
	}
	for text, want := range map[string]string{id: here, "web-1": here, id[:common+1]: here, "nothing": "/ui/sandboxes/nothing"} {
		a := b.send("GET", "/ui/?id="+url.QueryEscape(text), navigation, nil).is(t, http.StatusSeeOther)
		if got := a.Header.Get("Location"); got != want {
			t.Errorf("%q leads to %s, want %s", text, got, want)
		}
	}
	b.send("GET", "/ui/?id="+id[:common], navigation, nil).is(t, http.StatusConflict, "2 sandboxes")
	b.send("GET", "/ui/?id=..%2Fkeys", navigation, nil).is(t, http.StatusBadRequest)
}

// TestManySandboxes: a page of ten thousand is as quick as one of fifty, and all can
// be reached from it.
func TestManySandboxes(t *testing.T) {
	w := newWorld(t)
	const n = 10_000
	if err := w.Fill(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	b, _ := w.signIn(store.RoleAdmin)
	begin := time.Now()
	page := b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK, "running <b>6666</b>", "paused <b>3334</b>")
	t.Logf("a page of %d sandboxes: %s, %d bytes", n, time.Since(begin), len(page.body))
	if rows := strings.Count(page.body, `<th scope="row">`); rows != 50 {
		t.Errorf("it has %d rows", rows)
	}
	if bars := strings.Count(page.body, `aria-label="Last hour: `); bars != 50 || !strings.Contains(page.body, "6666 awake, 3334 asleep · 0 wakes in the last ") {
		t.Errorf("it has %d bars, and sums up: %s", bars, regexp.MustCompile(`<p class="faint summary">.*`).FindString(page.body))
	}
	older := regexp.MustCompile(`href="(/ui/\?[^"]*after=[^"]*)" rel="next"`)
	pages := 1
	for m := older.FindStringSubmatch(page.body); m != nil && pages < 5; m = older.FindStringSubmatch(page.body) {
		page = b.send("GET", strings.ReplaceAll(m[1], "&amp;", "&"), navigation, nil).is(t, http.StatusOK, `>Newest</a>`)
		pages++
	}
	if pages < 5 {
		t.Errorf("only %d pages follow each other", pages)
	}
	b.send("GET", "/ui/?metadata=part%3D3&state=paused", navigation, nil).is(t, http.StatusOK, "paused <b>477</b>", "number ")
}

// TestSocketWantsTheToken: a page of the same origin, or of another, opens no shell.
func TestSocketWantsTheToken(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleAdmin)
	id := w.create("mine")
	dial := func(origin string, protocols ...string) int {
		h := http.Header{"Origin": {origin}, "Cookie": {"drowse_ui=" + b.cookies["drowse_ui"]}}
		ws, resp, err := websocket.Dial(t.Context(), w.URL+"/ui/sandboxes/"+id+"/terminal/socket", &websocket.DialOptions{HTTPHeader: h, Subprotocols: protocols})
		if err == nil {
			ws.CloseNow()
		}
		return resp.StatusCode
	}
	for _, c := range []struct {
		name, origin string
		protocols    []string
		want         int
	}{
		{"no token", w.URL, []string{"drowse-terminal"}, http.StatusForbidden},
		{"another token", w.URL, []string{"drowse-terminal", "token.x"}, http.StatusForbidden},
		{"another origin", "http://evil.example", []string{"drowse-terminal", "token." + b.token}, http.StatusForbidden},
		{"a page of ours", w.URL, []string{"drowse-terminal", "token." + b.token}, http.StatusSwitchingProtocols},
	} {
		if got := dial(c.origin, c.protocols...); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestSleep: a sandbox's page and the list say how it sleeps.
func TestSleep(t *testing.T) {
	w := newWorld(t)
	id := w.create("asleep")
	b, _ := w.signIn(store.RoleAdmin)
	shows := func(parts ...string) {
		t.Helper()
		page := b.send("GET", "/ui/sandboxes/"+id, navigation, nil).is(t, http.StatusOK, parts...).body
		if awake := len(parts) == 0; strings.Contains(page, " sleep</span>") == awake {
			t.Errorf("it says how it sleeps, or does not, in %s", page)
		}
	}
	shows()
	if err := w.Fake.Pause(t.Context(), id, supervisor.PauseRequest{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	shows("deep sleep", "It has slept for", "using no memory and no processor")
	b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK, ">0 · 4.0 KiB kept")
	w.Fake.Light[id] = true
	shows("light sleep", "It has slept lightly for", "its runtime stands by with its memory")
	b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK, ">stands by · 4.0 KiB kept")
}

// TestLookingWakesNothing: no page looks into a sandbox that sleeps, or starts
// anything in one, before somebody asks for that.
func TestLookingWakesNothing(t *testing.T) {
	w := newWorld(t)
	id := w.create("asleep")
	if err := w.Fake.Pause(t.Context(), id, supervisor.PauseRequest{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	before := len(w.Fake.Log())
	b, _ := w.signIn(store.RoleAdmin)
	for _, path := range []string{"", "/log", "/terminal", "/files", "/files?path=/etc", "/file?path=/etc/passwd", "/download?path=/etc/passwd"} {
		b.send("GET", "/ui/sandboxes/"+id+path, navigation, nil).is(t, http.StatusOK)
	}
	says := script.Clone()
	says.Set("X-Drowse-Token", b.token)
	b.send("PUT", "/ui/sandboxes/"+id+"/file?path=/tmp/x", says, url.Values{}).is(t, http.StatusConflict, "asleep")
	if sb, err := w.Fake.Find(t.Context(), id); err != nil || sb.Record.State != lifecycle.Paused || len(w.Fake.Log()) != before {
		t.Errorf("the sandbox is %s, %v, with %v", sb.Record.State, err, w.Fake.Log()[before:])
	}
}

// TestEveryPage: each page is made of a server that has everything once, shows no
// more than the key sees, and has hostile text as text.
func TestEveryPage(t *testing.T) {
	w := newWorld(t)
	id := w.create(hostile)
	b, _ := w.signIn(store.RoleAdmin)
	post := func(path string, form url.Values) {
		t.Helper()
		form.Set("token", b.token)
		b.send("POST", path, submission, form).is(t, http.StatusSeeOther)
	}
	post("/ui/sandboxes/"+id+"/snapshot", url.Values{"name": {"kept"}, "for": {"2h"}})
	post("/ui/sandboxes/"+id+"/preview", url.Values{"port": {"8000"}, "for": {"1h"}})
	post("/ui/sandboxes/"+id+"/hold", url.Values{"for": {"1h"}, "reason": {hostile}})
	post("/ui/keys", url.Values{"do": {"create"}, "name": {"<script>alert(1)</script>"}, "role": {"read"}, "maxRunning": {"3"}, "maxRate": {"77"}})
	for path, want := range map[string]string{
		"/ui/new": "New sandbox", "/ui/new?snapshot=kept": "kept", "/ui/snapshots": "kept", "/ui/sandboxes/" + id + "/snapshots": "Go back",
		"/ui/sandboxes/" + id + "/previews": "Revoke", "/ui/sandboxes/" + id: "lease", "/ui/templates": "base", "/ui/templates/base": "base",
		"/ui/keys": ">77<",
	} {
		a := b.send("GET", path, navigation, nil).is(t, http.StatusOK, want)
		if strings.Contains(a.body, "<script>") || strings.Contains(a.body, "<img") {
			t.Errorf("%s has hostile text as it is", path)
		}
	}
	for _, role := range []store.Role{store.RoleFull, store.RoleOwn, store.RoleRead} {
		other, _ := w.signIn(role)
		other.send("GET", "/ui/keys", navigation, nil).is(t, http.StatusForbidden, "role")
		other.send("POST", "/ui/keys", submission, url.Values{"token": {other.token}, "do": {"create"}, "name": {"x"}, "role": {"admin"}}).is(t, http.StatusSeeOther)
	}
	made := w.Keys.List()[1]
	post("/ui/keys", url.Values{"do": {"limit"}, "key": {made.ID}, "maxDisk": {"4096"}, "maxRunning": {""}, "maxRate": {"0"}})
	if k := w.Keys.List()[1]; k.Limits != (store.KeyLimits{Running: 3, DiskMiB: 4096}) || k.Name != made.Name {
		t.Errorf("with other limits it is %+v", k)
	}
	if n := len(w.Keys.List()); n != 5 { // the four that have signed in, and the one made above
		t.Errorf("there are %d keys", n)
	}
	own, _ := w.signIn(store.RoleOwn)
	if a := own.send("GET", "/ui/snapshots", navigation, nil).is(t, http.StatusOK); strings.Contains(a.body, "kept") {
		t.Error("a key sees the snapshot of another")
	}
}

// TestLastHourAsksForChanges: a page that follows the server reads the events of those
// sandboxes alone that have changed, and is made though the key may ask no more.
func TestLastHourAsksForChanges(t *testing.T) {
	w := newWorld(t)
	if err := w.Fill(t.Context(), 40); err != nil {
		t.Fatal(err)
	}
	b, _ := w.signIn(store.RoleAdmin)
	w.reads.Store(0)
	look := func(want int64) string {
		t.Helper()
		page := b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK).body
		if got := w.reads.Swap(0); got != want {
			t.Errorf("%d sandboxes' events were read, want %d", got, want)
		}
		return page
	}
	look(0) // signing in has looked at it
	id := w.create("new")
	if !strings.Contains(look(1), `running for `) {
		t.Error("the bars have no parts")
	}
	if err := w.Fake.Pause(t.Context(), id, supervisor.PauseRequest{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	look(1)
	look(0)
	b.send("GET", "/ui/?state=terminated", navigation, nil).is(t, http.StatusOK)
	look(41) // nothing is remembered but the page that was made last

	_, text, err := w.Key(t.Context(), store.RoleRead)
	if err != nil {
		t.Fatal(err)
	}
	w.Keys.SetRate(1) // and ten at once
	other := w.stranger()
	other.send("POST", "/ui/sign-in", submission, url.Values{"key": {text}}).is(t, http.StatusSeeOther)
	other.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK, "not known 1h 00m", id, "awake, ")
}

// TestSeveral: what is done to several sandboxes goes on past one that fails, and says
// which that was.
func TestSeveral(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleFull)
	one, other := w.create("one"), w.create("other")
	many := []string{other}
	for n := range 59 {
		many = append(many, fmt.Sprintf("i%d", n))
	}
	send := func(b *browser, do string, ids ...string) string {
		t.Helper()
		b.send("POST", "/ui/sandboxes", submission, url.Values{"token": {b.token}, "do": {do}, "id": ids}).is(t, http.StatusSeeOther)
		return b.send("GET", "/ui/", navigation, nil).is(t, http.StatusOK).body
	}
	state := func(id string) lifecycle.State {
		sb, _ := w.Fake.Find(t.Context(), id)
		return sb.Record.State
	}
	for _, c := range []struct {
		do   string
		ids  []string
		want []string
	}{
		{"pause", nil, []string{"no sandbox is chosen", "Next step"}},
		{"pause", []string{one, one}, []string{"1 of 1 chosen sandboxes are paused"}},
		{"pause", []string{one, other, hostile}, []string{"1 of 3 chosen sandboxes are paused", `<li><code>` + one + `</code>`, "Next step", "&lt;script&gt;"}},
		{"resume", []string{one}, []string{"1 of 1 chosen sandboxes are running"}},
		{"kill", []string{one}, []string{"1 of 1 chosen sandboxes are killed"}},
		{"kill", []string{"..", "../keys", "", "."}, []string{"0 of 4", "Next step"}},
		{"kill", many, []string{"60 sandboxes are chosen", "Next step"}},
	} {
		page := send(b, c.do, c.ids...)
		for _, want := range c.want {
			if !strings.Contains(page, want) {
				t.Errorf("%s %v: no %q in %.3000s", c.do, c.ids, want, page)
			}
		}
		if strings.Contains(page, "<script>") {
			t.Errorf("%s: an id is there as it is", c.do)
		}
	}
	if state(one) != lifecycle.Terminated || state(other) != lifecycle.Paused {
		t.Errorf("they are %s and %s", state(one), state(other))
	}
	own, _ := w.signIn(store.RoleOwn)
	if page := send(own, "kill", other); !strings.Contains(page, "0 of 1") || state(other) != lifecycle.Paused {
		t.Errorf("a key kills the sandbox of another: it is %s", state(other))
	}
	read, _ := w.signIn(store.RoleRead)
	if page := send(read, "kill", other); !strings.Contains(page, "0 of 1") || strings.Contains(page, "checkbox") || state(other) != lifecycle.Paused {
		t.Errorf("a key that may only look is offered to kill: the sandbox is %s", state(other))
	}
	b.send("POST", "/ui/sandboxes", submission, url.Values{"token": {b.token}, "do": {"fork"}, "id": {other}}).is(t, http.StatusNotFound)
	b.send("POST", "/ui/sandboxes", submission, url.Values{"do": {"kill"}, "id": {other}}).is(t, http.StatusForbidden)
}

// TestVolumes: who may share volumes makes them, sees who has them, and deletes those
// that nobody has.
func TestVolumes(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleFull)
	post := func(form url.Values) string {
		t.Helper()
		form.Set("token", b.token)
		b.send("POST", "/ui/volumes", submission, form).is(t, http.StatusSeeOther)
		return b.send("GET", "/ui/volumes", navigation, nil).is(t, http.StatusOK).body
	}
	has := func(page, part string) {
		t.Helper()
		if !strings.Contains(page, part) || strings.Contains(page, "<script>") {
			t.Errorf("no %q in %s", part, page)
		}
	}
	has(post(url.Values{"do": {"create"}, "name": {"kept"}, "disk": {"512"}}), "The volume kept is made.")
	has(post(url.Values{"do": {"create"}, "name": {"kept"}}), "Next step")
	has(post(url.Values{"do": {"create"}, "name": {hostile}}), "Next step")
	has(post(url.Values{"do": {"create"}, "name": {"other"}, "disk": {"-1"}}), "Next step")
	list, err := w.Fake.Volumes(t.Context())
	if err != nil || len(list) != 1 || list[0].DiskMiB != 512 {
		t.Fatalf("there are %+v, %v", list, err)
	}
	var ids []string
	for n := range 7 {
		sb, err := w.Fake.Create(t.Context(), supervisor.CreateRequest{Template: "base", Config: store.Config{Name: fmt.Sprintf("user-%d", n), Volumes: []store.VolumeMount{{Volume: list[0].ID, Name: "kept", Path: "/data"}}}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID)
	}
	page := b.send("GET", "/ui/volumes", navigation, nil).is(t, http.StatusOK, "user-", "/data", "and 2 more", "512").body
	if strings.Contains(page, "-for-") {
		t.Error("the volume's token is shown")
	}
	used := int64(128 << 20)
	w.Fake.SetVolumeUse(list[0].ID, &used)
	b.send("GET", "/ui/volumes", navigation, nil).is(t, http.StatusOK, `value="25"`, "25%</meter> 128", "Measured "+w.Fake.Now.UTC().Format("2006-01-02"))
	w.Fake.SetVolumeUse(list[0].ID, nil)
	b.send("GET", "/ui/volumes", navigation, nil).is(t, http.StatusOK, "not known")
	has(post(url.Values{"do": {"delete"}, "volume": {list[0].ID}}), "Next step")
	for _, id := range ids {
		if err := w.Fake.Kill(t.Context(), id, "test"); err != nil {
			t.Fatal(err)
		}
	}
	has(post(url.Values{"do": {"delete"}, "volume": {list[0].ID}}), "No volumes.")
	for _, role := range []store.Role{store.RoleOwn, store.RoleRead} {
		other, _ := w.signIn(role)
		other.send("GET", "/ui/volumes", navigation, nil).is(t, http.StatusForbidden, "role")
		if page := other.send("GET", "/ui/", navigation, nil); strings.Contains(page.body, "/ui/volumes") {
			t.Errorf("a key of the role %s is offered volumes", role)
		}
	}
}

// TestSettings: the form of a sandbox's settings changes what somebody has changed in
// it, and nothing that was changed from elsewhere meanwhile.
func TestSettings(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleFull)
	id := w.create(hostile)
	at := "/ui/sandboxes/" + id + "/settings"
	page := b.send("GET", at, navigation, nil).is(t, http.StatusOK, `name="was-metadata" value="name=`, `<option selected>pause</option>`)
	if strings.Contains(page.body, "<script>") || strings.Contains(page.body, "readonly") {
		t.Errorf("the form: %s", page.body)
	}
	form := url.Values{"token": {b.token}}
	for _, m := range regexp.MustCompile(`name="was-(\w+)" value="([^"]*)"`).FindAllStringSubmatch(page.body, -1) {
		form.Set("was-"+m[1], html.UnescapeString(m[2]))
		form.Set(m[1], strings.ReplaceAll(html.UnescapeString(m[2]), "\n", "\r\n"))
	}
	if len(form) != 29 {
		t.Fatalf("the form has %d fields: %v", len(form), form)
	}
	settings := func() lifecycle.Settings {
		sb, err := w.Fake.Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return sb.Record.Settings
	}
	b.send("POST", at, submission, form).is(t, http.StatusSeeOther)
	b.send("GET", at, navigation, nil).is(t, http.StatusOK, "Nothing is changed")

	if _, err := w.Fake.Patch(t.Context(), id, supervisor.Patch{Settings: lifecycle.Patch{MaxLifetime: new(5 * time.Hour)}}, "another"); err != nil {
		t.Fatal(err)
	}
	form.Set("idleTimeout", "90m")
	form.Set("metadata", "team=blue\r\nkind=a=b")
	form.Set("ports", "8080/healthz=ignore")
	form.Set("autoResume", "yes")
	b.send("POST", at, submission, form).is(t, http.StatusSeeOther)
	b.send("GET", at, navigation, nil).is(t, http.StatusOK, "Changed: autoResume, idleTimeout, metadata, ports.", `value="1h30m"`, `value="5h"`, "8080/healthz=ignore", "kind=a=b")
	if got := settings(); got.IdleTimeout != 90*time.Minute || got.MaxLifetime != 5*time.Hour || !got.AutoResume || got.OnTimeout != lifecycle.Pause {
		t.Errorf("the settings are %+v", got)
	}
	before := len(w.Fake.Log())
	for field, text := range map[string]string{"idleTimeout": "soon", "maxLifetime": "", "metadata": "no equals", "ports": "8080=sing", "allowOut": "not an address!"} {
		bad := maps.Clone(form)
		bad.Set(field, text)
		bad.Set("pausedRetention", "7h")
		b.send("POST", at, submission, bad).is(t, http.StatusBadRequest, `role="alert"`, "Next step", `value="7h"`, html.EscapeString(text))
	}
	if len(w.Fake.Log()) != before {
		t.Errorf("a form that is refused changes the sandbox: %v", w.Fake.Log()[before:])
	}
	read, _ := w.signIn(store.RoleRead)
	if a := read.send("GET", "/ui/sandboxes/"+id, navigation, nil); strings.Contains(a.body, "/settings") {
		t.Error("a key that may only look is offered to change settings")
	}
	form.Set("token", read.token)
	read.send("POST", at, submission, form).is(t, http.StatusForbidden, "role")
	odd := w.create("two\nlines")
	b.send("GET", "/ui/sandboxes/"+odd+"/settings", navigation, nil).is(t, http.StatusOK, "readonly")
	b.send("POST", "/ui/sandboxes/"+odd+"/kill", submission, url.Values{"token": {b.token}})
	b.send("GET", "/ui/sandboxes/"+odd+"/settings", navigation, nil).is(t, http.StatusNotFound, "has ended")
}

// TestWhatIsWrittenInForms: a form that is refused comes back with what was in it,
// or with the reason at the top of the page that it was on.
func TestWhatIsWrittenInForms(t *testing.T) {
	w := newWorld(t)
	b, _ := w.signIn(store.RoleFull)
	id := w.create("here")
	for field, text := range map[string]string{"timeout": "soon", "cpus": "many", "metadata": "no equals", "env": "=x"} {
		form := url.Values{"token": {b.token}, "name": {"kept in the form"}}
		form.Set(field, text)
		b.send("POST", "/ui/new", submission, form).is(t, http.StatusBadRequest, "kept in the form", text, "Next step")
	}
	for action, form := range map[string]url.Values{"timeout": {"for": {"-5m"}}, "hold": {"for": {""}}, "fork": {"count": {"-1"}}, "preview": {"port": {"0"}, "for": {"1h"}}, "restore": {"snapshot": {"nothing"}}} {
		form.Set("token", b.token)
		b.send("POST", "/ui/sandboxes/"+id+"/"+action, submission, form).is(t, http.StatusSeeOther)
		b.send("GET", "/ui/sandboxes/"+id, navigation, nil).is(t, http.StatusOK, `role="alert"`, "Next step")
	}
	b.send("POST", "/ui/sandboxes/"+id+"/nothing", submission, url.Values{"token": {b.token}}).is(t, http.StatusNotFound)
}
