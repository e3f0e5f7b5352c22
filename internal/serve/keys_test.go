package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// asked is the answer to a request.
type asked struct {
	status int
	body   string
}

// field returns a field of an answer that is an object.
func (a asked) field(name string) string {
	var o map[string]any
	_ = json.Unmarshal([]byte(a.body), &o)
	text, _ := o[name].(string)
	return text
}

// ask makes a request with a key. A path such as "id:8000/" goes to that port of
// that sandbox.
func (w *world) ask(key, method, path, body string) asked {
	w.t.Helper()
	sandbox, rest, port := strings.Cut(path, ":")
	if port {
		path = rest[strings.IndexByte(rest, '/'):]
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	if port {
		req.Header.Set("E2b-Sandbox-Id", sandbox)
		req.Header.Set("E2b-Sandbox-Port", rest[:strings.IndexByte(rest, '/')])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Error(err)
		return asked{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	return asked{resp.StatusCode, string(text)}
}

func (w *world) wants(a asked, status int, text string) asked {
	w.t.Helper()
	if a.status != status || !strings.Contains(a.body, text) {
		w.t.Errorf("answered with %d: %s; want %d with %q", a.status, a.body, status, text)
	}
	return a
}

// TestKeysInBothDialects has two keys of role own use both dialects: each has its
// own limit and its own sandboxes.
func TestKeysInBothDialects(t *testing.T) {
	w := newWorld(t)
	made := w.wants(w.ask(testKey, "POST", "/v1/keys", `{"name":"one","role":"own","maxRunning":10}`), 201, `"key"`)
	one := made.field("key")
	other := w.wants(w.ask(testKey, "POST", "/v1/keys", `{"name":"other","role":"own"}`), 201, `"key"`).field("key")

	// 50 creates at once, half of them in each dialect, against a limit of 10.
	var calls sync.WaitGroup
	answers := make([]asked, 50)
	for i := range answers {
		calls.Go(func() {
			if i%2 == 0 {
				answers[i] = w.ask(one, "POST", "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`)
			} else {
				answers[i] = w.ask(one, "POST", "/v1/sandboxes", `{"timeout":600,"onTimeout":"pause","autoResume":true}`)
			}
		})
	}
	calls.Wait()
	var ids []string
	for _, a := range answers {
		if a.status == http.StatusCreated {
			ids = append(ids, a.field("sandboxID")+a.field("id"))
			continue
		}
		w.wants(a, http.StatusTooManyRequests, "limit of 10 running sandboxes")
		w.wants(a, http.StatusTooManyRequests, `"key_limit_reached"`)
	}
	if len(ids) != 10 {
		t.Fatalf("%d sandboxes were made, want 10", len(ids))
	}

	// Both dialects show each key what is its own.
	for _, path := range []string{"/v1/sandboxes", "/sandboxes", "/v2/sandboxes"} {
		all, none := w.ask(one, "GET", path, ""), w.ask(other, "GET", path, "")
		for _, id := range ids {
			w.wants(all, 200, id)
			if strings.Contains(none.body, id) {
				t.Errorf("%s shows another key's sandbox: %s", path, none.body)
			}
		}
	}
	w.wants(w.ask(other, "DELETE", "/sandboxes/"+ids[0], ""), 404, "doesn't exist")
	w.wants(w.ask(other, "DELETE", "/v1/sandboxes/"+ids[0], ""), 404, "sandbox_not_found")

	// A wake by traffic is bound by the limit as well.
	w.wants(w.ask(one, "POST", "/sandboxes/"+ids[0]+"/pause", "{}"), 204, "")
	tenth := w.wants(w.ask(one, "POST", "/v1/sandboxes", `{}`), 201, "").field("id")
	w.wants(w.ask("", "GET", fmt.Sprintf("%s:%d/", ids[0], userPort), ""), 429, "key_limit_reached")
	w.wants(w.ask(testKey, "POST", "/v1/sandboxes/"+ids[0]+"/resume", "{}"), 429, `"used":10`)
	w.wants(w.ask(one, "DELETE", "/v1/sandboxes/"+tenth, ""), 204, "")
	w.wants(w.ask("", "GET", fmt.Sprintf("%s:%d/", ids[0], userPort), ""), 204, "")

	w.wants(w.ask(testKey, "DELETE", "/v1/keys/"+made.field("id"), ""), 204, "")
	for _, path := range []string{"/v1/sandboxes", "/v2/sandboxes"} {
		w.wants(w.ask(one, "GET", path, ""), 401, "unknown API key")
	}
	w.wants(w.ask(testKey, "GET", "/v1/sandboxes/"+ids[0], ""), 200, `"running"`)

	// Where a request comes from proves nothing.
	w.wants(w.ask("", "GET", "/metrics", ""), 401, "")

	// What can be read of a server has no key in it.
	places := map[string]string{
		"the log":     w.log.String(),
		"the events":  w.ask(testKey, "GET", "/v1/events?limit=1000", "").body,
		"the keys":    w.ask(testKey, "GET", "/v1/keys", "").body,
		"the metrics": w.wants(w.ask(testKey, "GET", "/metrics", ""), 200, "drowse_").body,
	}
	for place, text := range places {
		for _, key := range []string{testKey, one, other} {
			if strings.Contains(text, key) {
				t.Errorf("a key is in %s", place)
			}
		}
	}
}

// TestRefusedAgainAndAgain: a key whose calls fail again and again hears of it later
// after the first 500 in a while, at 100 per second. So does an address that has no
// good key. Nobody else waits for them.
func TestRefusedAgainAndAgain(t *testing.T) {
	w := newWorld(t)
	one := w.wants(w.ask(testKey, "POST", "/v1/keys", `{"name":"one","role":"own"}`), 201, `"key"`).field("key")
	for _, who := range []struct {
		key, path, want string
		status          int
	}{
		{one, "/v1/sandboxes/i0unknown", "sandbox_not_found", 404},
		{testKey[:len(testKey)-1] + "0", "/sandboxes", "unknown API key", 401},
	} {
		begin := time.Now()
		for range 600 {
			w.wants(w.ask(who.key, "GET", who.path, ""), who.status, who.want)
		}
		if took := time.Since(begin); took < 900*time.Millisecond {
			t.Errorf("600 answers %d took %s, want a second at least", who.status, took)
		}
	}
}
