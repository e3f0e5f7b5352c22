package v1

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// The sizes of pages.
const (
	defaultPage = 100
	maxPage     = 1000
	// maxPageBytes ends a page early. Metadata and hooks of control characters are six
	// times as long in JSON, and clients do not read without end.
	maxPageBytes = 8 << 20
)

// listView is a page of sandboxes, newest first.
type listView struct {
	Sandboxes []sandboxView `json:"sandboxes"`
	Next      *string       `json:"next" doc:"The cursor of the next page; null on the last."`
	Counts    countsView    `json:"counts" doc:"How many sandboxes the other filters match in each state, on all pages."`
}

type countsView struct {
	Pending    int `json:"pending"`
	Running    int `json:"running"`
	Paused     int `json:"paused"`
	Terminated int `json:"terminated"`
}

// query is the query string of a call.
type query struct{ url.Values }

// query returns the query string, in which there are only parameters of the route.
func (c *call) query() query { return query{c.r.URL.Query()} }

// flag returns a parameter that is true or false; an absent one is false.
func (q query) flag(name string) (bool, error) {
	switch text := q.Get(name); text {
	case "true", "1":
		return true, nil
	case "false", "0", "":
		return false, nil
	default:
		return false, body.Invalid(`%q must be true or false, not %q`, name, body.Short(text)).With("field", name)
	}
}

// number returns an integer parameter; an empty one is absent.
func (q query) number(name string, otherwise, least, most int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, body.Invalid("%q must be an integer from %d to %d, not %q", name, least, most, body.Short(text)).With("field", name)
	}
	return n, nil
}

// filter is what a list is asked for.
type filter struct {
	states   []lifecycle.State // empty: all that have not ended
	metadata map[string]string
	template string // empty for all
	name     string // of a sandbox of key; empty for all
	key      string
	after    *place
}

// place is a place in the list: after the sandbox with this birth and id. As a
// place, not a count, it stays right when sandboxes come and go.
type place struct {
	createdAt int64 // Unix microseconds
	id        string
}

func placeOf(sb *store.Sandbox) place { return place{sb.Record.CreatedAt.UnixMicro(), sb.ID} }

// compare orders the newest first.
func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(q.createdAt, p.createdAt), cmp.Compare(p.id, q.id))
}

func (p place) cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.createdAt, p.id))
}

// parseCursor accepts exactly what cursor returns.
func parseCursor(text string) (place, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	born, id, _ := strings.Cut(string(raw), " ")
	at, bad := strconv.ParseInt(born, 10, 64)
	p := place{at, id}
	if err != nil || bad != nil || p.cursor() != text {
		return place{}, body.Invalid(`"after" is not a cursor that this server gave`).WithRemedy("begin again without it").With("field", "after")
	}
	return p, nil
}

func (s *server) list(c *call) (reply, error) {
	q := c.query()
	limit, err := q.number("limit", defaultPage, 1, maxPage)
	if err != nil {
		return reply{}, err
	}
	f, err := parseFilter(q)
	if err != nil {
		return reply{}, err
	}
	f.key = c.key.ID
	all, err := dialect.Sandboxes(c.r, s.Sandboxes.All, c.key)
	if err != nil {
		return reply{}, err
	}
	page, more := f.page(all, int(limit))
	views := s.views(c.r.Context(), page...)
	v := listView{Sandboxes: views[:fitting(views)], Counts: f.counts(all)}
	if n := len(v.Sandboxes); more || n < len(page) {
		next := placeOf(page[n-1]).cursor()
		v.Next = &next
	}
	return ok(v)
}

// fitting returns how many of some sandboxes fit on a page: one at least.
func fitting(views []sandboxView) int {
	total := 0
	for i, v := range views {
		data, err := json.Marshal(v)
		if total += len(data); err == nil && total > maxPageBytes && i > 0 {
			return i
		}
	}
	return len(views)
}

func parseFilter(q query) (f filter, err error) {
	for state := range strings.SplitSeq(strings.Join(q.Values["state"], ","), ",") {
		switch st := lifecycle.State(state); st {
		case "":
		case lifecycle.Pending, lifecycle.Running, lifecycle.Paused, lifecycle.Terminated:
			f.states = append(f.states, st)
		default:
			return f, body.Invalid(`"state" has %q`, body.Short(state)).
				WithRemedy("use pending, running, paused or terminated, joined by commas").With("field", "state")
		}
	}
	f.metadata = map[string]string{}
	for _, pair := range q.Values["metadata"] {
		key, value, found := strings.Cut(pair, "=")
		if before, twice := f.metadata[key]; !found || twice && before != value {
			return f, body.Invalid(`"metadata" must be key=value, each key once`).With("field", "metadata")
		}
		f.metadata[key] = value
	}
	f.template = origin.Ref(q.Get("template"))
	f.name = q.Get("name")
	if text := q.Get("after"); text != "" {
		after, err := parseCursor(text)
		if err != nil {
			return f, err
		}
		f.after = &after
	}
	return f, nil
}

func (f filter) matches(sb *store.Sandbox) bool {
	if len(f.states) == 0 && sb.Record.State == lifecycle.Terminated {
		return false
	}
	if len(f.states) > 0 && !slices.Contains(f.states, sb.Record.State) {
		return false
	}
	return f.selects(sb) && (f.after == nil || placeOf(sb).compare(*f.after) > 0)
}

// selects is matches for any state, on any page.
func (f filter) selects(sb *store.Sandbox) bool {
	if f.template != "" && !sb.Config.IsOf(f.template) {
		return false
	}
	if f.name != "" && (f.name != sb.Config.Name || f.key != sb.Config.Key) {
		return false
	}
	for key, want := range f.metadata {
		if has, ok := sb.Config.Metadata[key]; !ok || has != want {
			return false
		}
	}
	return true
}

// counts returns how many sandboxes there are in each state.
func (f filter) counts(all []store.Sandbox) (n countsView) {
	of := map[lifecycle.State]*int{lifecycle.Pending: &n.Pending, lifecycle.Running: &n.Running, lifecycle.Paused: &n.Paused, lifecycle.Terminated: &n.Terminated}
	for i := range all {
		if f.selects(&all[i]) {
			*of[all[i].Record.State]++
		}
	}
	return n
}

// page returns the first sandboxes that match, and whether there are more.
func (f filter) page(all []store.Sandbox, limit int) (found []*store.Sandbox, more bool) {
	for i := range all {
		if f.matches(&all[i]) {
			found = append(found, &all[i])
		}
	}
	slices.SortFunc(found, func(a, b *store.Sandbox) int { return placeOf(a).compare(placeOf(b)) })
	n := min(limit, len(found))
	return found[:n], n < len(found)
}

// errorsView lists the catalogue.
type errorsView struct {
	Errors []catalogueView `json:"errors"`
}

type catalogueView struct {
	Code        string       `json:"code"`
	Class       errdef.Class `json:"class"`
	Status      *int         `json:"status" doc:"HTTP status here; null if this dialect never gives it."`
	E2BStatus   *int         `json:"e2bStatus" doc:"HTTP status in the E2B dialect; null if that never gives it."`
	Meaning     string       `json:"meaning"`
	Remediation string       `json:"remediation"`
}

func (s *server) catalogue(*call) (reply, error) {
	v := errorsView{Errors: []catalogueView{}}
	for _, e := range errdef.Catalogue() {
		v.Errors = append(v.Errors, catalogueView{
			Code: e.Code, Class: e.Class, Status: orNull(e.Native()), E2BStatus: orNull(e.E2B()), Meaning: e.Meaning, Remediation: e.Remedy,
		})
	}
	return ok(v)
}

// now is the time as it is stored: UTC, in microseconds.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
