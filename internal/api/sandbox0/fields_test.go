package sandbox0

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/apitest"
)

// samples has a value for every field that is honoured, other than what holds
// without it.
var samples = map[string]string{
	"template": `"other"`, "snapshot_id": `"kept"`, "mounts": `[{"sandboxvolume_id":"v","mount_point":"/a"}]`,
	"config.ttl": "77", "config.hard_ttl": "777", "config.auto_resume": "false", "config.env_vars": `{"A":"b"}`, "config.resources.memory": `"300Mi"`,
	"config.network.mode": `"block-all"`, "config.network.egress.allowedCidrs": `["203.0.113.1"]`, "config.network.egress.deniedCidrs": `["203.0.113.1"]`,
	"config.network.egress.allowedDomains": `["example.com"]`,
	"mode":                                 `"block-all"`, "egress.allowedCidrs": `["203.0.113.1"]`, "egress.deniedCidrs": `["203.0.113.1"]`, "egress.allowedDomains": `["example.com"]`,
	"memory": "false", "duration": "77",
	"type": `"repl"`, "repl.alias": `"bash"`, "repl.input": `"x"`, "cmd.command": `["echo","other"]`, "wait_until_done": "true", "cwd": `"/"`, "env_vars": `{"A":"b"}`,
	"pty_size.rows": "30", "pty_size.cols": "30", "ttl_sec": "30", "idle_timeout_sec": "30",
	"name": `"another"`, "expires_at": `"2027-01-01T00:00:00Z"`, "backend": `"s0fs"`, "access_mode": `"RWX"`, "default_posix_uid": "0", "default_posix_gid": "0", "source": `"/a"`, "destination": `"/b"`,
	"services": `[{"id":"web","port":8000,"runtime":{"type":"cmd","command":["serve"]},"ingress":{"public":true}}]`, "config.services": `[{"id":"web","port":8000,"ingress":{"public":false}}]`,
	"data": `"x"`, "rows": "30", "cols": "30", "signal": `"TERM"`,
}

// nested writes a field into an object, beside the fields of its siblings' rest.
func nested(path, value string) string {
	names := strings.Split(path, ".")
	text := value
	for i := len(names) - 1; i >= 0; i-- {
		text = fmt.Sprintf("{%q:%s}", names[i], text)
	}
	return text
}

// TestEveryFieldOfEveryBody sends every field that any body here knows to every
// route that reads one: a field that is not of that route, or that nothing here
// can honour, is refused by its name, and all others are read. The fields and
// routes are those of the tables, so that none can be forgotten.
func TestEveryFieldOfEveryBody(t *testing.T) {
	every := map[string]bool{"someday": true, "config.someday": true, "config.network.egress.someday": true}
	for _, r := range routes {
		for _, sp := range r.reads.Body.Spellings() {
			every[sp.Path] = true
		}
	}
	for _, r := range routes {
		if r.reads.Body == nil {
			continue
		}
		t.Run(r.method+" "+r.pattern, func(t *testing.T) {
			known := map[string]bool{} // whether it is honoured
			for _, sp := range r.reads.Body.Spellings() {
				known[sp.Path] = !sp.Option.Refused
			}
			for _, path := range slices.Sorted(maps.Keys(every)) {
				w := newWorld(t)
				id := w.claim(`{"config":{"auto_resume":false}}`)
				value, honoured := samples[path], known[path]
				if value == "" {
					value = `{"a":1}`
				}
				if honoured && samples[path] == "" {
					t.Errorf("no sample of %s", path)
				}
				a := w.Do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), nested(path, value))
				switch {
				case !honoured:
					first, _, _ := strings.Cut(path, ".")
					if a.Status != http.StatusBadRequest || !strings.Contains(a.Body, first) {
						t.Errorf("%s is not refused by its name: %d %s", path, a.Status, a.Body)
					}
				case strings.Contains(a.Body, "unknown_field"):
					t.Errorf("%s: %s", path, a.Body)
				}
				// What a refused field asks for when it is empty is nothing.
				if _, is := known[path]; is && !honoured {
					for _, nothing := range []string{"null", "[]", "{}"} {
						if a := w.Do(r.method, apitest.PathOf(r.pattern, sandboxParam, id), nested(path, nothing)); strings.Contains(a.Body, "not_supported") {
							t.Errorf("%s as %s: %s", path, nothing, a.Body)
						}
					}
				}
			}
		})
	}
}

// TestHonouredFieldsOfAClaim: each changes what is created, or the answer says why
// not.
func TestHonouredFieldsOfAClaim(t *testing.T) {
	made := func(body string) string {
		w := newWorld(t)
		w.claim("")
		a := w.Do("POST", all, body)
		if a.Status != http.StatusCreated {
			return fmt.Sprint(a.Status, a.Body)
		}
		return fmt.Sprintf("%+v", w.Fake.Created[1]) + fmt.Sprint(w.Fake.Created[1].Config.AllowInternet != nil)
	}
	without := made("{}")
	for _, sp := range claimBody.Spellings() {
		if !sp.Option.Refused && made(nested(sp.Path, samples[sp.Path])) == without {
			t.Errorf("%s is ignored", sp.Path)
		}
	}
}
