package e2b

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// put adds a sandbox as it is.
func (w *world) put(id string, startedAt time.Time, state lifecycle.State, change func(*store.Sandbox)) {
	sb := store.Sandbox{
		ID:     id,
		Config: store.Config{Template: "tmplbase", Alias: "base"},
		Record: lifecycle.Record{State: state, Generation: 1, StartedAt: startedAt},
	}
	if state == lifecycle.Running {
		sb.Record.EndAt = startedAt.Add(24 * time.Hour)
	} else {
		sb.Record.PausedAt = startedAt.Add(time.Second)
		sb.Record.Checkpoint = &lifecycle.Checkpoint{Mode: lifecycle.Memory}
	}
	if change != nil {
		change(&sb)
	}
	w.Fake.Sandboxes[id] = sb
}

// five is a world with five sandboxes; c and d have started at once.
func five(t *testing.T) *world {
	w := newWorld(t)
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	w.put("e", at(1), lifecycle.Running, func(sb *store.Sandbox) { sb.Config.Metadata = map[string]string{"a": "1"} })
	w.put("d", at(2), lifecycle.Paused, func(sb *store.Sandbox) { sb.Config.Metadata = map[string]string{"a": "1", "b": "x=y"} })
	w.put("c", at(2), lifecycle.Running, func(sb *store.Sandbox) { sb.Config.Metadata = map[string]string{"a": "2", "b": "x=y"} })
	w.put("b", at(3), lifecycle.Paused, func(sb *store.Sandbox) { sb.Config.Template, sb.Config.Alias = "tmplother", "" })
	w.put("a", at(4), lifecycle.Running, func(sb *store.Sandbox) { sb.Config.Template, sb.Config.Alias = "tmplother", "" })
	return w
}

func TestListFilters(t *testing.T) {
	tests := map[string]struct {
		query, ids string
		running    string
	}{
		"all, newest first":       {"", "a b c d e", "3"},
		"descending":              {"order=desc", "a b c d e", "3"},
		"ascending, ties by id":   {"order=asc", "e c d b a", "3"},
		"running":                 {"state=running", "a c e", "3"},
		"paused":                  {"state=paused", "b d", "3"},
		"both":                    {"state=running,paused", "a b c d e", "3"},
		"both, comma escaped":     {"state=running%2Cpaused", "a b c d e", "3"},
		"both, repeated":          {"state=running&state=paused", "a b c d e", "3"},
		"no state named":          {"state=", "a b c d e", "3"},
		"metadata":                {"metadata=a%3D1", "d e", "1"},
		"metadata of two":         {"metadata=" + url.QueryEscape("a=1&b=x%253Dy"), "d", "0"},
		"metadata and state":      {"state=paused&metadata=a%3D1", "d", "1"},
		"metadata contradicting":  {"metadata=" + url.QueryEscape("a=1&a=2"), "", "0"},
		"metadata, no such key":   {"metadata=z%3D", "", "0"},
		"empty metadata":          {"metadata=", "a b c d e", "3"},
		"template id":             {"template=tmplother", "a b", "1"},
		"template alias":          {"template=Base", "c d e", "2"},
		"unknown template":        {"template=nope", "", "0"},
		"started after":           {"startedAfter=2026-09-01T12:00:02.123456Z", "a b c d", "2"},
		"a microsecond later":     {"startedAfter=2026-09-01T12:00:02.123457Z", "a b", "1"},
		"within the microsecond":  {"startedAfter=2026-09-01T12:00:02.123456999Z", "a b c d", "2"},
		"started after, Python":   {"startedAfter=2026-09-01T12:00:02.123456%2B00:00", "a b c d", "2"},
		"offset, plus unescaped":  {"startedAfter=2026-09-01T14:00:02.123456+02:00", "a b c d", "2"},
		"started after, whole":    {"startedAfter=2026-09-01T12:00:03Z", "a b", "1"},
		"everything at once":      {"state=running&metadata=b%3Dx%25253Dy&order=asc&template=base&startedAfter=2026-09-01T12:00:00Z&limit=1", "c", "1"},
		"other parameters":        {"foo=bar", "a b c d e", "3"},
		"limit reached, not more": {"limit=5", "a b c d e", "3"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := five(t).do("GET", "/v2/sandboxes?"+tt.query, "").is(http.StatusOK)
			if got := a.ids(); got != tt.ids {
				t.Errorf("got %q, want %q", got, tt.ids)
			}
			if got := a.Header.Get("X-Total-Running"); got != tt.running {
				t.Errorf("X-Total-Running %s, want %s", got, tt.running)
			}
			if _, more := a.Header["X-Next-Token"]; more {
				t.Error("X-Next-Token although there is no more")
			}
		})
	}
}

func TestListRefuses(t *testing.T) {
	for query, message := range map[string]string{
		"state=stopped":                          `"state"`,
		"state=running,killed":                   `"killed"`,
		"order=up":                               `"order"`,
		"limit=0":                                `"limit" must be between 1 and 100`,
		"limit=101":                              `"limit"`,
		"limit=-1":                               `"limit"`,
		"limit=ten":                              `"limit"`,
		"startedAfter=yesterday":                 `"startedAfter"`,
		"startedAfter=2026-09-01T12:00:00":       `"startedAfter"`,
		"template=base:v1":                       `"template"`,
		"metadata=a":                             `"metadata"`,
		"metadata=a%3Db%3Dc":                     `"metadata"`,
		"metadata=a%3Db%26":                      `"metadata"`,
		"metadata=%25zz":                         `"metadata"`,
		"metadata=a%3D%2525z":                    `"metadata"`,
		"nextToken=!!!":                          `"nextToken"`,
		"nextToken=AAAA":                         `"nextToken"`,
		"%zz":                                    "query string",
		"a;b":                                    "query string",
		"order=asc&nextToken=" + tokenOf("desc"): `order "desc", not "asc"`,
		"nextToken=" + tokenOf("asc"):            `order "asc", not "desc"`,
		"nextToken=" + tokenOf("up"):             `"nextToken"`,
	} {
		t.Run(query, func(t *testing.T) {
			five(t).do("GET", "/v2/sandboxes?"+query, "").fails(http.StatusBadRequest, "invalid_request", message)
		})
	}
}

func tokenOf(o order) string { return cursor{order: o, startedAt: 1, id: "x"}.token() }

func TestListV1(t *testing.T) {
	w := five(t)
	if got := w.do("GET", "/sandboxes", "").is(http.StatusOK).ids(); got != "a c e" {
		t.Errorf("got %q, want what runs, newest first", got)
	}
	if got := w.do("GET", "/sandboxes?metadata=b%3Dx%25253Dy&limit=0", "").is(http.StatusOK).ids(); got != "c" {
		t.Errorf("got %q with metadata", got)
	}
	w.do("GET", "/sandboxes?metadata=x", "").fails(http.StatusBadRequest, "", "metadata")
	if a := newWorld(t).do("GET", "/sandboxes", ""); a.Body != "[]" {
		t.Errorf("an empty list is %s", a.Body)
	}
	if a := newWorld(t).do("GET", "/v2/sandboxes", ""); a.Body != "[]" {
		t.Errorf("an empty list is %s", a.Body)
	}
}

func TestListedHasExactlyItsFields(t *testing.T) {
	w := newWorld(t)
	w.create(`{"templateID":"base","metadata":{"a":"b"},"allow_internet_access":false,"network":{"allowPublicTraffic":false}}`)
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		hasKeys(t, w.do("GET", path, "").list()[0],
			"templateID sandboxID clientID alias startedAt endAt cpuCount memoryMB diskSizeMB state envdVersion metadata")
	}
}

func TestStartedAfterAcceptsWhatStartedAtSays(t *testing.T) {
	w := five(t)
	for _, o := range w.do("GET", "/v2/sandboxes", "").list() {
		query := url.Values{"startedAfter": {o["startedAt"].(string)}, "order": {"asc"}}
		if ids := w.do("GET", "/v2/sandboxes?"+query.Encode(), "").ids(); !strings.Contains(ids, o["sandboxID"].(string)) {
			t.Errorf("%s is not in what started at or after its start: %s", o["sandboxID"], ids)
		}
	}
}

// pages follows the tokens of a list, calling between before each further page.
func pages(t *testing.T, w *world, query url.Values, between func(page int)) string {
	t.Helper()
	var ids []string
	for page := 1; ; page++ {
		a := w.do("GET", "/v2/sandboxes?"+query.Encode(), "").is(http.StatusOK)
		ids = append(ids, a.ids())
		token := a.Header.Get("X-Next-Token")
		if token == "" {
			return strings.Join(ids, " ")
		}
		query.Set("nextToken", token)
		between(page)
	}
}

func TestPages(t *testing.T) {
	for _, order := range []string{"asc", "desc"} {
		want := five(t).do("GET", "/v2/sandboxes?order="+order, "").ids()
		for limit := 1; limit <= 6; limit++ {
			query := url.Values{"order": {order}, "limit": {fmt.Sprint(limit)}}
			if got := pages(t, five(t), query, func(int) {}); got != want {
				t.Errorf("%s by %d: %q, want %q", order, limit, got, want)
			}
		}
	}
}

func TestPagesAreStable(t *testing.T) {
	w := five(t)
	got := pages(t, w, url.Values{"limit": {"2"}}, func(page int) {
		if page == 1 { // "a b" has been seen
			w.put("z", epoch.Add(time.Minute), lifecycle.Running, nil)
			delete(w.Fake.Sandboxes, "a")
			delete(w.Fake.Sandboxes, "b") // the one that the token names
			delete(w.Fake.Sandboxes, "d")
		}
	})
	if got != "a b c e" {
		t.Errorf("got %q, want each once, without the new one and the one killed", got)
	}
}

func TestEveryPageHasTheTotal(t *testing.T) {
	w := five(t)
	a := w.do("GET", "/v2/sandboxes?limit=1", "")
	b := w.do("GET", "/v2/sandboxes?limit=1&nextToken="+a.Header.Get("X-Next-Token"), "")
	if a.Header.Get("X-Total-Running") != "3" || b.Header.Get("X-Total-Running") != "3" {
		t.Errorf("totals %s and %s, want 3", a.Header.Get("X-Total-Running"), b.Header.Get("X-Total-Running"))
	}
}

func TestDefaultPageIsAHundred(t *testing.T) {
	w := newWorld(t)
	for i := range 101 {
		w.put(fmt.Sprintf("i%03d", i), epoch, lifecycle.Paused, nil)
	}
	a := w.do("GET", "/v2/sandboxes", "")
	if n := len(a.list()); n != 100 || a.Header.Get("X-Next-Token") == "" {
		t.Errorf("%d on the first page, next %q", n, a.Header.Get("X-Next-Token"))
	}
}

func BenchmarkListPageOf10000(b *testing.B) {
	all := make([]store.Sandbox, 10_000)
	for i := range all {
		all[i].ID = fmt.Sprintf("i%05d", i*7919%10_000)
		all[i].Record = lifecycle.Record{State: lifecycle.Paused, StartedAt: epoch.Add(time.Duration(i*6007%10_000) * time.Second)}
	}
	q, _, err := parseListQuery(nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		q.From(all)
	}
}
