package volumecontent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/volume"
)

// volumes has one volume, v, and knows the token of another that is gone.
type volumes struct {
	store *volume.Store
	full  error // what comes after three bytes; nil for none
	files int   // that there is room for

	changed []string // ids, as told
}

func (v *volumes) Volume(_ context.Context, id string) (store.Volume, error) {
	if id != "v" {
		return store.Volume{}, store.ErrVolumeNotFound(id)
	}
	return store.Volume{ID: id}, nil
}

func (v *volumes) VolumeTokenKey(id, token string) (string, bool) {
	token, of, given := strings.Cut(token, " for ")
	if !given {
		of = apitest.GoodKey
	}
	return apitest.KeyIDOf(of), token == "token-of-"+id
}

func (v *volumes) VolumeFiles(id string) (*volume.Files, error) { return v.store.Files(id) }

func (v *volumes) VolumeUpload(_ context.Context, _ string, r io.Reader, files int) (io.ReadCloser, error) {
	if v.files < files {
		return nil, errdef.New(errdef.Exhausted, "volume_full", "the volume is full")
	}
	if v.full != nil {
		r = io.MultiReader(io.LimitReader(r, 3), fails{v.full})
	}
	return io.NopCloser(r), nil
}

func (v *volumes) VolumeChanged(id string) { v.changed = append(v.changed, id) }

// fails is a reader that has nothing but an error.
type fails struct{ err error }

func (f fails) Read([]byte) (int, error) { return 0, f.err }

type world struct {
	t    *testing.T
	v    *volumes
	dir  string
	log  apitest.Log
	http http.Handler
}

func newWorld(t *testing.T) *world {
	t.Helper()
	files, err := volume.Open(filepath.Join(t.TempDir(), "volumes"), os.Getuid())
	if err == nil {
		err = files.Make("v")
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, v: &volumes{store: files, files: 2}, dir: files.Dir("v")}
	w.http = New(Options{Volumes: w.v, Keys: apitest.Keyring{}, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	return w
}

// TestHasty: what a key was given of a volume is no way around its rate.
func TestHasty(t *testing.T) {
	w := newWorld(t)
	w.http = New(Options{Volumes: w.v, Keys: apitest.Hasty{}, Log: slog.New(slog.DiscardHandler)})
	rec := w.do("GET", "dir?path=/", "")
	if o := w.is(http.StatusTooManyRequests, rec); o["code"] != auth.CodeRate || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("it is %v with %v", o, rec.Header())
	}
}

func (w *world) send(method, target, token string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	rec := httptest.NewRecorder()
	w.http.ServeHTTP(rec, r)
	return rec
}

func (w *world) do(method, target, body string) *httptest.ResponseRecorder {
	return w.send(method, "/volumecontent/v/"+target, "token-of-v", strings.NewReader(body))
}

// is checks the status of an answer and returns its object.
func (w *world) is(status int, rec *httptest.ResponseRecorder) map[string]any {
	w.t.Helper()
	if rec.Code != status {
		w.t.Fatalf("status %d, want %d: %s", rec.Code, status, rec.Body)
	}
	var o map[string]any
	if err := json.Unmarshal(rec.Body.Bytes(), &o); err != nil {
		w.t.Fatalf("no JSON object: %s", rec.Body)
	}
	return o
}

func (w *world) fails(status int, code string, rec *httptest.ResponseRecorder) {
	w.t.Helper()
	if o := w.is(status, rec); o["code"] != code || o["message"] == "" {
		w.t.Errorf("got %v, want code %s", o, code)
	}
}

func TestFilesOfAVolume(t *testing.T) {
	w := newWorld(t)
	made := w.is(http.StatusCreated, w.do("PUT", "file?path=/a%20b/x&force=true&mode=416", "text"))
	if made["name"] != "x" || made["path"] != "/a b/x" || made["type"] != "file" || made["size"] != 4.0 || made["mode"] != 416.0 || made["uid"] != float64(os.Getuid()) {
		t.Errorf("made %v", made)
	}
	for _, field := range []string{"atime", "mtime", "ctime"} {
		if at, err := time.Parse(time.RFC3339, made[field].(string)); err != nil || time.Since(at) > time.Hour {
			t.Errorf("%s is %v", field, made[field])
		}
	}
	if _, has := made["target"]; has {
		t.Errorf("a file has a target: %v", made)
	}
	got := w.do("GET", "file?path=/a%20b/x", "")
	if got.Code != 200 || got.Body.String() != "text" || got.Header().Get("Content-Type") != "application/octet-stream" || got.Header().Get("Content-Length") != "4" {
		t.Errorf("read %d %v %q", got.Code, got.Header(), got.Body)
	}
	if head := w.do("HEAD", "file?path=/a%20b/x", ""); head.Code != 200 || head.Body.Len() > 0 || head.Header().Get("Content-Length") != "4" {
		t.Errorf("head %d %v %q", head.Code, head.Header(), head.Body)
	}
	if changed := w.is(http.StatusOK, w.do("PATCH", "path?path=/a%20b/x", `{"mode":384}`)); changed["mode"] != 384.0 {
		t.Errorf("changed %v", changed)
	}
	if dir := w.is(http.StatusCreated, w.do("POST", "dir?path=/d", "")); dir["type"] != "directory" {
		t.Errorf("made %v", dir)
	}
	if err := os.Symlink("d", filepath.Join(w.dir, "link")); err != nil {
		t.Fatal(err)
	}
	if link := w.is(http.StatusOK, w.do("GET", "path?path=link", "")); link["type"] != "symlink" || link["target"] != "d" {
		t.Errorf("the link is %v", link)
	}
	var list []map[string]any
	rec := w.do("GET", "dir?path=/&depth=2", "")
	if err := json.Unmarshal(rec.Body.Bytes(), &list); err != nil || rec.Code != 200 || len(list) != 4 || list[1]["path"] != "/a b/x" {
		t.Errorf("listed %d %s", rec.Code, rec.Body)
	}
	if rec := w.do("GET", "dir?path=/d", ""); rec.Code != 200 || rec.Body.String() != "[]" {
		t.Errorf("listed %d %s", rec.Code, rec.Body)
	}
	if rec := w.do("DELETE", "path?path=/a%20b", ""); rec.Code != http.StatusNoContent || rec.Body.Len() > 0 {
		t.Errorf("deleted: %d %s", rec.Code, rec.Body)
	}
	w.fails(http.StatusNotFound, "volume_path_not_found", w.do("GET", "path?path=/a%20b", ""))
}

// TestChanged: writes are told when they are done, whatever came of them, and reads are
// not.
func TestChanged(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, target string
		changes        int
	}{
		{"PUT", "file?path=/x", 1}, {"GET", "file?path=/x", 0}, {"GET", "path?path=/x", 0}, {"GET", "dir?path=/", 0},
		{"PATCH", "path?path=/x", 1}, {"POST", "dir?path=/d", 1}, {"DELETE", "path?path=/x", 1}, {"DELETE", "path?path=/x", 1}, {"PUT", "file", 1},
	} {
		w.v.changed = nil
		w.do(c.method, c.target, "{}")
		if len(w.v.changed) != c.changes || c.changes > 0 && w.v.changed[0] != "v" {
			t.Errorf("%s %s has changed %q", c.method, c.target, w.v.changed)
		}
	}
	w.v.changed = nil
	w.send("PUT", "/volumecontent/v/file?path=/x", "token-of-w", strings.NewReader(""))
	if w.v.changed != nil {
		t.Error("who may not write has changed something")
	}
}

func TestWhatIsRefused(t *testing.T) {
	w := newWorld(t)
	w.do("PUT", "file?path=/file", "text")
	w.do("POST", "dir?path=/dir", "")
	for request, want := range map[string]struct {
		status int
		code   string
	}{
		"GET path":                          {400, "invalid_request"},
		"GET file":                          {400, "invalid_request"},
		"DELETE path":                       {400, "invalid_request"},
		"GET path?path=":                    {400, "volume_path_invalid"},
		"GET path?path=%00":                 {400, "volume_path_invalid"},
		"GET path?path=/none":               {404, "volume_path_not_found"},
		"GET file?path=/none":               {404, "volume_path_not_found"},
		"DELETE path?path=/none":            {404, "volume_path_not_found"},
		"DELETE path?path=/":                {400, "volume_path_invalid"},
		"GET file?path=/dir":                {400, "volume_path_invalid"},
		"GET dir?path=/file":                {400, "volume_path_invalid"},
		"GET dir?path=/&depth=0":            {400, "invalid_request"},
		"GET dir?path=/&depth=x":            {400, "invalid_request"},
		"PUT file?path=/dir":                {400, "volume_path_invalid"},
		"PUT file?path=/none/x":             {404, "volume_path_not_found"},
		"PUT file?path=/x&force=perhaps":    {400, "invalid_request"},
		"PUT file?path=/x&mode=0o644":       {400, "invalid_request"},
		"PUT file?path=/x&mode=4096":        {400, "invalid_request"},
		"PUT file?path=/x&uid=-1":           {400, "invalid_request"},
		"PUT file?path=/x&uid=4294967295":   {400, "invalid_request"},
		"POST dir?path=/dir":                {409, "volume_path_conflict"},
		"POST dir?path=/none/x":             {404, "volume_path_not_found"},
		"PATCH path?path=/file":             {400, "invalid_request"}, // without a body
		"POST path?path=/file":              {405, "method_not_allowed"},
		"GET other?path=/file":              {404, "unknown_path"},
		"PUT file?path=/" + long + "/x":     {400, "volume_path_invalid"},
		"POST dir?path=/file/x&force=true":  {400, "volume_path_invalid"},
		"POST dir?path=/x&gid=1&force=true": {201, ""},
	} {
		method, target, _ := strings.Cut(request, " ")
		if want.status == 201 {
			w.is(want.status, w.do(method, target, ""))
			continue
		}
		t.Run(request[:min(40, len(request))], func(t *testing.T) { w.fails(want.status, want.code, w.do(method, target, "")) })
	}
	if _, err := os.Lstat(filepath.Join(w.dir, "file")); err != nil {
		t.Error(err)
	}
	w.fails(400, "unknown_field", w.do("PUT", "file?path=/file&someday=1", "text"))
	w.fails(400, "unknown_field", w.do("DELETE", "path?path=/file", `{"someday":1}`))
	for _, body := range []string{"", `{"mode":"755"}`, `{`, `{"mode":4096}`, `{"uid":4294967295}`} {
		w.fails(400, "invalid_request", w.do("PATCH", "path?path=/file", body))
	}
}

// long is a name that no file can have.
var long = strings.Repeat("x", 256)

func TestTokens(t *testing.T) {
	w := newWorld(t)
	for _, r := range routes {
		target := strings.Replace(r.pattern, "{"+volumeParam+"}", "v", 1) + "?path=/x"
		for _, token := range []string{"", "wrong", "token-of-w", "token-of-"} {
			rec := w.send(r.method, target, token, strings.NewReader("{}"))
			w.fails(http.StatusUnauthorized, "volume_token_invalid", rec)
		}
		gone := strings.Replace(r.pattern, "{"+volumeParam+"}", "gone", 1) + "?path=/x"
		w.fails(http.StatusUnauthorized, "volume_token_invalid", w.send(r.method, gone, "token-of-v", strings.NewReader("{}")))
		w.fails(http.StatusNotFound, "volume_not_found", w.send(r.method, gone, "token-of-gone", strings.NewReader("{}")))
		// It ends with its key, and with what that may do.
		w.fails(http.StatusUnauthorized, "api_key_unknown", w.send(r.method, target, "token-of-v for a key that is no more", strings.NewReader("{}")))
		w.fails(http.StatusForbidden, "role_insufficient", w.send(r.method, target, "token-of-v for "+apitest.OwnKey, strings.NewReader("{}")))
	}
	if entries, err := os.ReadDir(w.dir); err != nil || len(entries) > 0 {
		t.Errorf("refused requests have left %v, %v", entries, err)
	}
	if log := w.log.String(); strings.Contains(log, "token-of") {
		t.Errorf("a token is in the log: %s", log)
	}
}

func TestBodiesThatEnd(t *testing.T) {
	w := newWorld(t)
	broken := io.MultiReader(strings.NewReader("te"), fails{errors.New("connection reset")})
	w.fails(http.StatusBadRequest, "invalid_request", w.send("PUT", "/volumecontent/v/file?path=/x", "token-of-v", broken))
	w.is(http.StatusCreated, w.do("PUT", "file?path=/x", "old"))
	w.v.full = errdef.New(errdef.Unavailable, "disk_full", "the disk is full")
	w.fails(http.StatusServiceUnavailable, "disk_full", w.do("PUT", "file?path=/x", "text"))
	w.v.full = errdef.New(errdef.Exhausted, "volume_full", "the volume is full")
	w.fails(http.StatusInsufficientStorage, "volume_full", w.do("PUT", "file?path=/x", "text"))
	for _, request := range []string{"PUT file?path=/a/b/c&force=true", "POST dir?path=/a/b/c/&force=true"} {
		method, target, _ := strings.Cut(request, " ")
		w.fails(http.StatusInsufficientStorage, "volume_full", w.do(method, target, ""))
	}
	if rec := w.do("GET", "file?path=/x", ""); rec.Body.String() != "old" {
		t.Errorf("the file became %q", rec.Body)
	}
}

// TestOurOwnFailures has the directory of a volume be gone: that is nothing a
// client is told the cause of.
func TestOurOwnFailures(t *testing.T) {
	w := newWorld(t)
	if err := os.Remove(w.dir); err != nil {
		t.Fatal(err)
	}
	rec := w.do("GET", "path?path=/", "")
	w.fails(http.StatusInternalServerError, "internal_server_error", rec)
	if strings.Contains(rec.Body.String(), "volumes") || !strings.Contains(w.log.String(), "open volume v") {
		t.Errorf("answered %s, logged %s", rec.Body, &w.log)
	}
}
