package e2b

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/webhook"
)

const hookSecret = "the secret of a receiver"

func hookBody(url string) string {
	return fmt.Sprintf(`{"name": "n", "url": %q, "events": ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"], "signatureSecret": %q}`, url, hookSecret)
}

// quiet is a receiver that nobody listens for.
const quiet = "http://127.0.0.1:9/in"

func TestWebhooks(t *testing.T) {
	w := newWorld(t)
	if got := w.do("GET", "/events/webhooks", "").Is(http.StatusOK).Body; got != "[]" {
		t.Errorf("at first: %s", got)
	}
	made := w.do("POST", "/events/webhooks", hookBody(quiet)).Is(http.StatusCreated)
	id := made.Object()["id"].(string)
	for name, want := range map[string]any{"name": "n", "url": quiet, "enabled": true, "teamId": teamID} {
		if got := made.Object()[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	one := "/events/webhooks/" + id
	if got := w.do("GET", one, "").Is(http.StatusOK).Body; got != made.Body {
		t.Errorf("got %s, made %s", got, made.Body)
	}
	if got := w.do("GET", "/events/webhooks", "").Is(http.StatusOK).Body; got != "["+made.Body+"]" {
		t.Errorf("the list: %s", got)
	}
	changed := w.do("PATCH", one, `{"enabled": false, "events": ["sandbox.lifecycle.paused"], "signatureSecret": "another `+hookSecret+`"}`).Is(http.StatusOK)
	if o := changed.Object(); o["enabled"] != false || o["name"] != "n" || fmt.Sprint(o["events"]) != "[sandbox.lifecycle.paused]" {
		t.Errorf("changed: %s", changed.Body)
	}
	for _, path := range []string{"", "/deliveries", "/stats"} {
		if got := w.do("GET", one+path, "").Is(http.StatusOK).Body; strings.Contains(got+made.Body+changed.Body+w.Log.String(), hookSecret) {
			t.Errorf("%s shows the secret", path)
		}
	}
	w.do("DELETE", one, "").Is(http.StatusOK)
	for _, call := range []string{"GET ", "PATCH ", "DELETE ", "GET /deliveries", "GET /stats"} {
		method, path, _ := strings.Cut(call, " ")
		w.do(method, one+path, `{}`).fails(http.StatusNotFound, "webhook_not_found", "list the webhooks")
	}
}

func TestWebhooksAreJudged(t *testing.T) {
	w := newWorld(t)
	id := w.do("POST", "/events/webhooks", hookBody(quiet)).Is(http.StatusCreated).Object()["id"].(string)
	for name, body := range map[string]string{
		"nothing":        `{}`,
		"no secret":      `{"name": "n", "url": "http://a/", "events": ["sandbox.lifecycle.created"]}`,
		"a bad URL":      hookBody("gopher://a/"),
		"a password":     hookBody("http://u:p@a/"),
		"a bad event":    `{"name": "n", "url": "http://a/", "events": ["created"], "signatureSecret": "s"}`,
		"no events":      `{"name": "n", "url": "http://a/", "events": [], "signatureSecret": "s"}`,
		"a wrong type":   `{"name": 1}`,
		"what was never": `{"name": "n", "url": "http://a/", "events": ["sandbox.lifecycle.created"], "signatureSecret": "s", "replayFrom": "x"}`,
	} {
		t.Run(name, func(t *testing.T) { w.do("POST", "/events/webhooks", body).fails(http.StatusBadRequest, "", "") })
	}
	one := "/events/webhooks/" + id
	w.do("PATCH", one, `{"events": ["x"]}`).fails(http.StatusBadRequest, "", "no type of event")
	w.do("PATCH", one, `{"name": ""}`).fails(http.StatusBadRequest, "webhook_invalid", "name")
	for _, event := range []string{"", "x", "00000000-0000-8000-8000-000000000001", "00000000-0000-8000-8000-ffffffffffff", strings.Repeat("zz", 16)} {
		w.do("PATCH", one, fmt.Sprintf(`{"replayFrom": %q}`, event)).fails(http.StatusNotFound, "event_not_found", "")
	}
	w.do("GET", one+"/deliveries?limit=0", "").fails(http.StatusBadRequest, "", "")
}

// TestWebhookDelivery: what is delivered is what the list of events shows, and
// an event and all after it can be had again.
func TestWebhookDelivery(t *testing.T) {
	bodies := make(chan string, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if got := r.Header.Get("e2b-signature"); got != webhook.Sign(hookSecret, body) {
			t.Errorf("signature %q", got)
		}
		bodies <- string(body)
	}))
	defer receiver.Close()
	w := newWorld(t)
	one := "/events/webhooks/" + w.do("POST", "/events/webhooks", hookBody(receiver.URL)).Is(http.StatusCreated).Object()["id"].(string)
	sandbox := w.lives()
	w.create(`{"templateID": "base"}`)
	var listed []json.RawMessage
	all := w.do("GET", "/events/sandboxes?orderAsc=true&types=sandbox.lifecycle.created,sandbox.lifecycle.killed", "").Is(http.StatusOK)
	if err := json.Unmarshal([]byte(all.Body), &listed); err != nil || len(listed) != 3 {
		t.Fatalf("%d events, %v", len(listed), err)
	}
	for n, want := range listed {
		if got := <-bodies; got != string(want) {
			t.Errorf("delivery %d: %s, want %s", n, got, want)
		}
	}
	w.awaitDelivered(one, 3) // the outcome of what is under way does not count after a change
	var killed struct{ ID string }
	if err := json.Unmarshal(listed[1], &killed); err != nil {
		t.Fatal(err)
	}
	w.do("PATCH", one, fmt.Sprintf(`{"replayFrom": %q}`, killed.ID)).Is(http.StatusOK)
	for n, want := range listed[1:] {
		if got := <-bodies; got != string(want) || n == 0 && !strings.Contains(got, sandbox) {
			t.Errorf("replay %d: %s, want %s", n, got, want)
		}
	}
	w.awaitDelivered(one, 5)
	tries := w.do("GET", one+"/deliveries?limit=4", "").list()
	if len(tries) != 4 || tries[0]["eventType"] != "sandbox.lifecycle.created" || tries[0]["success"] != true || tries[0]["statusCode"].(float64) != 200 {
		t.Errorf("deliveries %v", tries)
	}
}

// awaitDelivered waits until a webhook has noted so many deliveries.
func (w *world) awaitDelivered(one string, n float64) {
	w.T.Helper()
	for deadline := time.Now().Add(testmode.Patience()); ; time.Sleep(time.Millisecond) {
		st := w.do("GET", one+"/stats", "").Is(http.StatusOK).Object()
		if st["delivered"] == n && st["caughtUp"] == true {
			return
		}
		if time.Now().After(deadline) {
			w.T.Fatalf("stats %v, want %v delivered", st, n)
		}
	}
}
