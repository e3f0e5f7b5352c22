package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/client"
)

// builds is a server that builds one template: it has the files of one hash, and its
// log has 250 lines.
type builds struct {
	t      *testing.T
	sent   map[string]string // files by hash
	recipe map[string]any
	reason string // why the build fails; empty if it does not
}

const (
	hashHere   = "1111111111111111111111111111111111111111111111111111111111111111"
	hashAbsent = "2222222222222222222222222222222222222222222222222222222222222222"
	logLines   = 250
)

func (b *builds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, v any) {
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			b.t.Error(err)
		}
	}
	hash, ofFiles := strings.CutPrefix(r.URL.Path, "/templates/app/files/")
	switch {
	case r.Method == http.MethodPut && ofFiles && r.URL.Query().Get("signature") == "good":
		data, err := io.ReadAll(r.Body)
		if err != nil {
			b.t.Error(err)
		}
		b.sent[hash] = string(data)
		answer(http.StatusOK, map[string]any{})
	case r.Method == http.MethodGet && ofFiles: // the address is one that leads nowhere from here
		answer(http.StatusCreated, map[string]any{"present": hash == hashHere, "url": "http://elsewhere.invalid/templates/app/files/" + hash + "?signature=good"})
	case r.Method+r.URL.Path == "POST/v3/templates":
		answer(http.StatusAccepted, map[string]any{"templateID": "app", "buildID": "b1"})
	case r.Method+r.URL.Path == "POST/v2/templates/app/builds/b1":
		if err := json.NewDecoder(r.Body).Decode(&b.recipe); err != nil {
			b.t.Error(err)
		}
		answer(http.StatusAccepted, map[string]any{})
	case r.Method+r.URL.Path == "GET/templates/app/builds/b1/status":
		from, _ := strconv.Atoi(r.URL.Query().Get("logsOffset"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		lines := []map[string]string{}
		for i := from; i < min(from+limit, logLines); i++ {
			lines = append(lines, map[string]string{"message": fmt.Sprint(i), "step": "1", "level": "info", "timestamp": "2026-01-01T00:00:00Z"})
		}
		status := map[string]any{"status": "ready", "logEntries": lines}
		if b.reason != "" {
			status["status"], status["reason"] = "error", map[string]string{"message": b.reason, "step": "2"}
		}
		answer(http.StatusOK, status)
	case r.Method+r.URL.Path == "GET/v1/templates/app":
		answer(http.StatusOK, map[string]any{"id": "app", "names": []string{"app"}, "source": "build"})
	default:
		answer(http.StatusNotFound, map[string]any{"code": 404, "message": "there is no " + r.Method + " " + r.URL.Path})
	}
}

// TestBuild sends the files that the server lacks, by the way that leads to it, passes
// on the whole log, and returns the template or the step that failed.
func TestBuild(t *testing.T) {
	b := &builds{t: t, sent: map[string]string{}}
	srv := httptest.NewServer(b)
	defer srv.Close()
	c, err := client.New(client.Options{URL: srv.URL, APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	files := func(hash string) *client.BuildFiles {
		return &client.BuildFiles{Hash: hash, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("of " + hash[:1])), nil }}
	}
	var log []string
	o := client.BuildOptions{
		Name: "app", Image: "python:3.12", Start: "serve", CPUs: 2,
		Steps: []client.BuildStep{
			{Kind: "RUN", Args: []string{"true"}}, {Kind: "COPY", Args: []string{"a", "/a"}, Files: files(hashHere)}, {Kind: "COPY", Args: []string{"b", "/b"}, Files: files(hashAbsent)},
		},
		Progress: func(l client.BuildLine) { log = append(log, l.Text) },
	}
	made, err := client.NewTemplates(c).Build(t.Context(), o)
	if err != nil || made.ID != "app" {
		t.Fatalf("built %+v, %v", made, err)
	}
	if len(b.sent) != 1 || b.sent[hashAbsent] != "of 2" {
		t.Errorf("the server got the files %q", b.sent)
	}
	if len(log) != logLines || !slices.IsSortedFunc(log, func(x, y string) int { a, _ := strconv.Atoi(x); b, _ := strconv.Atoi(y); return a - b }) {
		t.Errorf("the log has %d lines, want %d in order", len(log), logLines)
	}
	if text, _ := json.Marshal(b.recipe); string(text) != `{"force":false,"fromImage":"python:3.12","startCmd":"serve","steps":[{"args":["true"],"type":"RUN"},{"args":["a","/a"],"filesHash":"`+hashHere+`","type":"COPY"},{"args":["b","/b"],"filesHash":"`+hashAbsent+`","type":"COPY"}]}` {
		t.Errorf("the recipe is %s", text)
	}

	b.reason = "the command ended with exit status 3\n"
	_, err = client.NewTemplates(c).Build(t.Context(), o)
	if e, ok := errors.AsType[*client.BuildError](err); !ok || *e != (client.BuildError{Template: "app", Step: 2, Reason: "the command ended with exit status 3"}) {
		t.Errorf("a build that fails: %v", err)
	}

	broken := errors.New("the disk is gone")
	o.Steps[2].Files.Open = func() (io.ReadCloser, error) { return nil, broken }
	if _, err := client.NewTemplates(c).Build(t.Context(), o); !errors.Is(err, broken) || !strings.Contains(err.Error(), "step 3") {
		t.Errorf("with files that cannot be read: %v", err)
	}
}
