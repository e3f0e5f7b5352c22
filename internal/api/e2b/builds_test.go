package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/build"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// requested makes a template, and returns the path of its build.
func (w *world) requested(key, name string) string {
	w.T.Helper()
	a := answer{w.DoAs(key, "POST", "/v3/templates", `{"name":"`+name+`"}`).Is(http.StatusAccepted)}
	return "/templates/" + name + "/builds/" + a.Object()["buildID"].(string)
}

func TestBuildIsRequestedAsItIsNamed(t *testing.T) {
	for body, want := range map[string]string{
		`{"name":"a"}`:                           `"tags":["default"]`,
		`{"name":"a:v1"}`:                        `"tags":["v1"]`,
		`{"name":"a:v1","tags":["v2"]}`:          `"tags":["v1","v2"]`,
		`{"name":"A:default","tags":["x"]}`:      `"tags":["default","x"]`,
		`{"name":" default/a "}`:                 `"names":["a"]`,
		`{"alias":"a"}`:                          `"names":["a"]`,
		`{"name":"a","minFreeDiskMb":0}`:         `"aliases":["a"]`,
		`{"name":"a","cpuCount":1,"teamID":"x"}`: `"public":false`,
	} {
		if a := newWorld(t).do("POST", "/v3/templates", body).Is(http.StatusAccepted); !strings.Contains(a.Body, want) {
			t.Errorf("%s: got %s, want %s", body, a.Body, want)
		}
	}
	for body, want := range map[string]string{
		`{}`: "name", `{"name":""}`: "name", `{"name":"a b"}`: "a b", `{"name":"other/a"}`: "other/a", `{"name":"a","minFreeDiskMb":1}`: "minFreeDiskMb",
		`{"name":"a","cpuCount":0}`: "cpuCount", `{"name":"a","colour":"red"}`: "colour", `{"name":"a","tags":["x y"]}`: "x y",
	} {
		newWorld(t).do("POST", "/v3/templates", body).fails(http.StatusBadRequest, "", want)
	}
	newWorld(t).do("POST", "/v3/templates", `{"name":"base"}`).fails(http.StatusConflict, "template_exists", "base")
}

// TestNamesOfOthers: a name is that of a key, which no other takes, and what a key does
// not see it does not change.
func TestNamesOfOthers(t *testing.T) {
	w := newWorld(t)
	path := w.requested(apitest.FullKey, "theirs")
	answer{w.DoAs(apitest.OwnKey, "GET", "/templates/aliases/theirs", "")}.fails(http.StatusNotFound, "template_not_found", "")
	for _, call := range []string{
		"GET " + path + "/status", "POST /v2" + path, "GET /templates/theirs/tags", "GET /templates/theirs/files/" + strings.Repeat("a", 64), "GET /templates/theirs",
		"DELETE /templates/theirs",
	} {
		method, path, _ := strings.Cut(call, " ")
		body := ""
		if method == "POST" {
			body = `{"fromTemplate":"base"}`
		}
		answer{w.DoAs(apitest.OwnKey, method, path, body)}.fails(http.StatusNotFound, "", "theirs")
	}
	if a := w.DoAs(apitest.OwnKey, "GET", "/v2/templates", ""); strings.Contains(a.Body, "theirs") {
		t.Errorf("it is listed: %s", a.Body)
	}
	id := answer{w.DoAs(apitest.FullKey, "GET", "/templates/theirs", "")}.Is(http.StatusOK).Object()["templateID"].(string)
	w.do("GET", "/templates/theirs", "").fails(http.StatusNotFound, "template_not_found", "theirs")
	w.do("GET", "/templates/"+id, "").Is(http.StatusOK) // an admin sees it, by its id
	for key, name := range map[string]string{goodKey: id, apitest.FullKey: "theirs"} {
		if a := w.DoAs(key, "GET", "/v2/templates", ""); !strings.Contains(a.Body, `"aliases":["`+name+`"]`) {
			t.Errorf("it is not listed as %s: %s", name, a.Body)
		}
	}
	if own := (answer{w.DoAs(apitest.OwnKey, "POST", "/v3/templates", `{"name":"theirs"}`)}).Is(http.StatusAccepted).Object(); own["templateID"] == id {
		t.Error("two keys have one template")
	}
	answer{w.DoAs(apitest.OwnKey, "DELETE", "/templates/theirs", "")}.Is(http.StatusNoContent)
	answer{w.DoAs(apitest.FullKey, "GET", "/templates/theirs", "")}.Is(http.StatusOK)
	box := w.createAs(apitest.OwnKey)
	for _, name := range []string{"theirs", "theirs:v2", "THEIRS:default"} {
		answer{w.DoAs(apitest.OwnKey, "POST", "/sandboxes/"+box+"/snapshots", `{"name":"`+name+`"}`)}.Is(http.StatusCreated)
	}
	answer{w.DoAs(apitest.FullKey, "POST", "/v3/templates", `{"name":"theirs:v2"}`)}.Is(http.StatusAccepted)

	w.do("POST", "/v3/templates", `{"name":"built:v1"}`).Is(http.StatusAccepted)
	for _, name := range []string{"built", "built:v1", "built:v2", "default/built:v2"} {
		w.do("POST", "/sandboxes/"+w.create(`{"templateID":"base"}`)+"/snapshots", `{"name":"`+name+`"}`).fails(http.StatusConflict, "snapshot_exists", "built")
	}
}

func TestBodyOfABuild(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "template or an image", `{"fromImage":"a","fromTemplate":"b"}`: "template or an image",
		`{"fromTemplate":"base","steps":[{"type":"ADD","args":["x"]}]}`: "ADD", `{"fromTemplate":"base","steps":[{"type":"RUN","args":["x"],"mount":1}]}`: "mount",
		`{"fromTemplate":"base","steps":{}}`: "steps", `{"fromImage":"a","fromImageRegistry":{"type":"aws","awsRegion":"x"}}`: "get-login-password",
		`{"fromImage":"a","fromImageRegistry":{"type":"other"}}`: "registry or gcp", `{"fromImage":"a","fromImageRegistry":{"type":"registry","username":"me"}}`: "password",
		`{"fromImage":"a","fromImageRegistry":{"type":"gcp","username":"me"}}`: "serviceAccountJson", `{"fromImage":"a","fromImageRegistry":"secret"}`: "object",
		`{"fromTemplate":"a","fromImageRegistry":{"type":"registry","username":"me","password":"x"}}`:                      "names none",
		`{"fromTemplate":"base","steps":[{"type":"COPY","args":["a","b"],"filesHash":"` + strings.Repeat("a", 64) + `"}]}`: "not uploaded",
	} {
		w := newWorld(t)
		w.do("POST", "/v2"+w.requested(goodKey, "a"), body).fails(http.StatusBadRequest, "", want)
	}
	w := newWorld(t)
	w.do("POST", "/v2"+w.requested(goodKey, "a")+"x", `{"fromTemplate":"base"}`).fails(http.StatusNotFound, "build_not_found", "")
}

func TestStatusOfABuild(t *testing.T) {
	w := newWorld(t)
	path := w.requested(goodKey, "a") + "/status"
	a := w.do("GET", path+"?logsOffset=5&limit=100", "").Is(http.StatusOK)
	if !strings.Contains(a.Body, `"status":"waiting"`) || !strings.Contains(a.Body, `"logEntries":[]`) || !strings.Contains(a.Body, `"logs":[]`) {
		t.Error(a.Body)
	}
	for _, query := range []string{"logsOffset=-1", "limit=0", "limit=101", "logsOffset=x"} {
		w.do("GET", path+"?"+query, "").fails(http.StatusBadRequest, "", "")
	}
}

// TestLogOfABuild has a build fail in its third step, and asks for lines of its log in
// every way.
func TestLogOfABuild(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Builds = newBuilder(t, noTemplates(), talkingShop{}) })
	path := w.requested(goodKey, "a")
	steps := `[{"type":"ENV","args":["A","1"]},{"type":"ENV","args":["B","2"]},{"type":"RUN","args":["x"]}]`
	if a := w.do("POST", "/v2"+path, `{"fromTemplate":"base","steps":`+steps+`}`); a.Status != http.StatusAccepted || a.Body != "" {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	deadline := time.Now().Add(testmode.Patience())
	for w.do("GET", path+"/status", "").Is(http.StatusOK).Object()["status"] != "error" {
		if time.Now().After(deadline) {
			t.Fatal("the build does not end")
		}
		time.Sleep(time.Millisecond)
	}
	texts := func(path, list string) string {
		t.Helper()
		var all []string
		for _, line := range w.do("GET", path, "").Is(http.StatusOK).Object()[list].([]any) {
			line := line.(map[string]any)
			all = append(all, fmt.Sprintf("%v/%v/%v", line["step"], line["level"], line["message"]))
		}
		return strings.Join(all, ", ")
	}
	const from, one, two, three, failed = "base/info/FROM base", "1/info/ENV A 1", "2/info/ENV B 2", "3/info/RUN x", "3/error/no sandboxes today"
	for query, want := range map[string][]string{
		"":                              {from, one, two, three, failed},
		"?direction=forward&limit=2":    {from, one},
		"?direction=backward&limit=2":   {failed, three},
		"?level=warn":                   {failed},
		"?source=persistent&level=info": {from, one, two, three, failed},
		"?cursor=99999999999999":        {},
	} {
		if got, want := texts(path+"/logs"+query, "logs"), strings.Join(want, ", "); got != want {
			t.Errorf("logs%s: %s, want %s", query, got, want)
		}
	}
	for query, want := range map[string][]string{
		"?logsOffset=3": {three, failed}, "?logsOffset=1&limit=1": {one}, "?level=error": {failed}, "?level=error&logsOffset=1": {}, "?level=info&logsOffset=2&limit=1": {two},
	} {
		if got, want := texts(path+"/status"+query, "logEntries"), strings.Join(want, ", "); got != want {
			t.Errorf("status%s: %s, want %s", query, got, want)
		}
	}
	for _, query := range []string{"limit=101", "limit=0", "level=fatal", "direction=up", "source=none", "cursor=x"} {
		w.do("GET", path+"/logs?"+query, "").fails(http.StatusBadRequest, "", "")
	}
	w.do("GET", path+"/status?level=fatal", "").fails(http.StatusBadRequest, "", "level")
	w.do("GET", path+"x/logs", "").fails(http.StatusNotFound, "build_not_found", "")
	w.do("GET", "/templates/none/builds/x/logs", "").fails(http.StatusNotFound, "template_not_found", "")
}

// TestLoginOfABuild: a login goes to whoever fetches the image, and nowhere else.
func TestLoginOfABuild(t *testing.T) {
	for sent, want := range map[string]image.Login{
		`{"type":"registry","username":"me","password":"hidden"}`:    {User: "me", Password: "hidden"},
		`{"type":"gcp","serviceAccountJson":"{\"key\":\"hidden\"}"}`: {User: "_json_key", Password: `{"key":"hidden"}`},
	} {
		asked := make(chan build.Base, 1)
		w := newWorld(t, func(o *Options) { o.Builds = newBuilder(t, noTemplates(), talkingShop{asked: asked}) })
		path := w.requested(goodKey, "a")
		if a := w.do("POST", "/v2"+path, `{"fromImage":"registry.test/a","fromImageRegistry":`+sent+`}`); a.Status != http.StatusAccepted {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		if got := <-asked; got.Login == nil || *got.Login != want || got.Image != "registry.test/a" {
			t.Errorf("%s: asked for %+v", sent, got)
		}
		for _, said := range []string{w.do("GET", path+"/status", "").Body, w.do("GET", "/templates/a", "").Body, w.Log.String()} {
			if strings.Contains(said, "hidden") {
				t.Errorf("the password is told: %s", said)
			}
		}
	}
}

// talkingShop is a workshop that knows the base, and has no sandboxes.
type talkingShop struct {
	noShop
	asked chan build.Base // what is asked for, unless it is nil
}

func (s talkingShop) Resolve(_ context.Context, base build.Base) (build.Origin, error) {
	if s.asked != nil {
		s.asked <- base
	}
	return build.Origin{Template: "t", Alias: "base"}, nil
}

func (talkingShop) Begin(context.Context, build.Origin, build.Spec) (string, error) {
	return "", errors.New("no sandboxes today")
}

// files asks as a key where the files of a step of a template are to be sent.
func (w *world) files(key, template, hash string) *url.URL {
	w.T.Helper()
	given := answer{w.DoAs(key, "GET", "/templates/"+template+"/files/"+hash, "")}.Is(http.StatusCreated).Object()
	where, err := url.Parse(given["url"].(string))
	if err != nil {
		w.T.Fatal(err)
	}
	return where
}

// upload sends files to an address, without a key.
func (w *world) upload(target, files string) answer {
	return w.send(httptest.NewRequest("PUT", target, strings.NewReader(files)))
}

func TestFilesAreSentToAnAddressThatIsGivenOut(t *testing.T) {
	w := newWorld(t)
	w.requested(goodKey, "a")
	w.requested(goodKey, "b")
	hash := strings.Repeat("a", 64)
	path := "/templates/a/files/" + hash
	w.do("GET", "/templates/a/files/abc", "").fails(http.StatusBadRequest, "build_files_invalid", "")
	if given := w.do("GET", path, "").Is(http.StatusCreated).Object(); given["present"] != false {
		t.Errorf("files are there that nobody has sent: %v", given)
	}
	where := w.files(goodKey, "a", hash)
	if where.Scheme != "http" || where.Host != "example.com" || !strings.HasSuffix(where.Path, "/files/"+hash) {
		t.Fatalf("files go to %s", where)
	}
	query := where.Query()
	for name, change := range map[string]func(url.Values){
		"no signature": func(q url.Values) { q.Del("signature") }, "another signature": func(q url.Values) { q.Set("signature", "x"+q.Get("signature")) },
		"another time": func(q url.Values) { q.Set("given", "9"+q.Get("given")) }, "no time": func(q url.Values) { q.Del("given") },
		"another key": func(q url.Values) { q.Set("key", apitest.KeyIDOf(apitest.FullKey)) }, "no key": func(q url.Values) { q.Del("key") },
	} {
		t.Run(name, func(t *testing.T) {
			changed, _ := url.ParseQuery(query.Encode())
			change(changed)
			w.upload(where.Path+"?"+changed.Encode(), "files").fails(http.StatusForbidden, "signature_invalid", "")
		})
	}
	for _, other := range []string{w.files(goodKey, "b", hash).Path, w.files(goodKey, "a", strings.Repeat("b", 64)).Path, path} {
		w.upload(other+"?"+query.Encode(), "files").fails(http.StatusForbidden, "signature_invalid", "")
	}
	id := strings.Split(where.Path, "/")[2]
	old := url.Values{"key": {apitest.KeyID}, "given": {"1"}, "signature": {fmt.Sprintf("signed:upload:%q %q %q %q", apitest.KeyID, id, hash, "1")}}
	w.upload(where.Path+"?"+old.Encode(), "files").fails(http.StatusForbidden, "signature_expired", "")
	large := httptest.NewRequest("PUT", where.RequestURI(), strings.NewReader("an archive"))
	large.ContentLength = 5 << 30
	w.send(large).fails(http.StatusBadRequest, "build_files_too_large", "GiB")
	w.upload(where.RequestURI(), "an archive").Is(http.StatusOK)
	if again := w.do("GET", path, "").Is(http.StatusCreated).Object(); again["present"] != true {
		t.Errorf("files that were sent are not there: %v", again)
	}
	if b := w.do("GET", "/templates/b/files/"+hash, "").Is(http.StatusCreated).Object(); b["present"] != false {
		t.Error("the files of one template are another's too")
	}
}

// TestAddressOfFilesEnds: an address is good for the key that was given it, for one
// template and for the builds that waited then. It ends with any of them, also where
// another key makes a template of the same name.
func TestAddressOfFilesEnds(t *testing.T) {
	hash := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		end    func(w *world, keys *revocable, build string)
		status int
		code   string
	}{
		"the key":             {func(w *world, keys *revocable, _ string) { keys.revoked = apitest.KeyIDOf(apitest.OwnKey) }, http.StatusUnauthorized, "api_key_unknown"},
		"the role of the key": {func(w *world, keys *revocable, _ string) { keys.reads = apitest.KeyIDOf(apitest.OwnKey) }, http.StatusForbidden, "role_insufficient"},
		"the template": {func(w *world, _ *revocable, _ string) {
			w.DoAs(apitest.OwnKey, "DELETE", "/templates/a", "").Is(http.StatusNoContent)
		}, http.StatusNotFound, "template_not_found"},
		"another of that name": {func(w *world, _ *revocable, _ string) {
			w.DoAs(apitest.OwnKey, "DELETE", "/templates/a", "").Is(http.StatusNoContent)
			w.requested(apitest.FullKey, "a")
			w.requested(apitest.OwnKey, "a")
		}, http.StatusNotFound, "template_not_found"},
		"the build": {func(w *world, _ *revocable, build string) {
			if a := w.DoAs(apitest.OwnKey, "POST", "/v2"+build, `{"fromTemplate":"base"}`); a.Status != http.StatusAccepted {
				w.T.Fatal(a.Status)
			}
			w.requested(apitest.OwnKey, "a") // waits for files too, and for none of this address
		}, http.StatusBadRequest, "build_started"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := &revocable{}
			w := newWorld(t, func(o *Options) { o.Builds, o.Auth = newBuilder(t, noTemplates(), talkingShop{}), keys })
			build := w.requested(apitest.OwnKey, "a")
			target := w.files(apitest.OwnKey, "a", hash).RequestURI()
			c.end(w, keys, build)
			w.upload(target, "files of somebody else").fails(c.status, c.code, "")
			for _, key := range []string{apitest.FullKey, apitest.OwnKey} {
				if a := w.DoAs(key, "GET", "/templates/a/files/"+hash, ""); strings.Contains(a.Body, `"present":true`) {
					t.Errorf("the files are there: %s", a.Body)
				}
			}
		})
	}
}

// revocable is the usual keys, of which one can be revoked, or may only read.
type revocable struct {
	apitest.Keyring
	revoked, reads string
}

func (r *revocable) Current(id string) (store.Key, error) {
	if id == r.revoked {
		id = "none"
	}
	key, err := r.Keyring.Current(id)
	if id == r.reads {
		key.Role = store.RoleRead
	}
	return key, err
}

func TestBuiltTemplateIsShownAndDeleted(t *testing.T) {
	w := newWorld(t)
	w.requested(goodKey, "a")
	one := w.do("GET", "/templates/a", "").Is(http.StatusOK).Object()
	builds := one["builds"].([]any)
	if one["names"].([]any)[0] != "a" || len(builds) != 1 || builds[0].(map[string]any)["cpuCount"].(float64) < 1 {
		t.Errorf("it is %v", one)
	}
	all := listed(t, w.do("GET", "/templates", "").Is(http.StatusOK))
	for _, v := range append(all, builds[0].(map[string]any)) {
		if v["diskSizeMB"] != 1024.0 {
			t.Errorf("the disk of %v is %v", v, v["diskSizeMB"])
		}
	}
	if a := w.do("GET", "/templates/aliases/a", "").Is(http.StatusOK).Object(); a["templateID"] != one["templateID"] {
		t.Errorf("the name stands for %v", a)
	}
	w.do("POST", "/templates/tags", `{"target":"a","tags":["x"]}`).fails(http.StatusNotFound, "template_tag_not_found", "")
	w.do("DELETE", "/templates/tags", `{"name":"a","tags":["default"]}`).fails(http.StatusBadRequest, "template_tag_fixed", "")
	w.do("DELETE", "/templates/a:default", "").fails(http.StatusBadRequest, "template_tag_fixed", "")
	w.do("DELETE", "/templates/tags", `{"name":"a","tags":[]}`).fails(http.StatusBadRequest, "", "tags")
	for _, tag := range []string{":x", "b:x"} {
		w.do("POST", "/templates/tags", `{"target":"a","tags":["`+tag+`"]}`).fails(http.StatusBadRequest, "", tag)
		w.do("DELETE", "/templates/tags", `{"name":"a","tags":["`+tag+`"]}`).fails(http.StatusBadRequest, "", tag)
	}
	w.do("POST", "/templates/tags", `{"target":"a","tags":["default/A:x"]}`).fails(http.StatusNotFound, "template_tag_not_found", "")
	w.do("DELETE", "/templates/a", "").Is(http.StatusNoContent)
	w.do("DELETE", "/templates/a", "").fails(http.StatusNotFound, "", "")
	w.do("GET", "/templates/aliases/a", "").fails(http.StatusNotFound, "", "")
}

// listed reads a list of objects.
func listed(t *testing.T, a apitest.Answer) (list []map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.Body), &list); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	return list
}

func TestTemplatesAreListedInPages(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"b", "a", "c"} {
		w.requested(goodKey, name)
	}
	whole := w.do("GET", "/v2/templates", "").Is(http.StatusOK)
	if whole.Header.Get("X-Next-Token") != "" {
		t.Error("there is a page after the last")
	}
	var want, got []any
	for _, v := range listed(t, whole) {
		want = append(want, v["templateID"])
	}
	for token := ""; ; {
		page := w.do("GET", "/v2/templates?limit=1&nextToken="+token, "").Is(http.StatusOK)
		for _, v := range listed(t, page) {
			got = append(got, v["templateID"])
		}
		if token = page.Header.Get("X-Next-Token"); token == "" || len(got) > len(want) {
			break
		}
	}
	if len(want) < 4 || !slices.Equal(got, want) {
		t.Errorf("page by page %v, together %v", got, want)
	}
	for _, query := range []string{"limit=0", "limit=101", "nextToken=%21"} {
		w.do("GET", "/v2/templates?"+query, "").fails(http.StatusBadRequest, "", "")
	}
}
