package v1

import (
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

// cursor is a place in the list, newest first.
func cursor(p store.Place) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.At, p.ID))
}

// parseCursor accepts exactly what cursor returns.
func parseCursor(text string) (store.Place, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	born, id, _ := strings.Cut(string(raw), " ")
	at, bad := strconv.ParseInt(born, 10, 64)
	p := store.Place{At: at, ID: id}
	if err != nil || bad != nil || cursor(p) != text {
		return store.Place{}, body.Invalid(`"after" is not a cursor that this server gave`).WithRemedy("begin again without it").With("field", "after")
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
	if f.Limit = int(limit); f.Name != "" {
		f.Key = c.key.ID
	}
	page, err := dialect.Sandboxes(c.r, s.Sandboxes.Page, c.key, f)
	if err != nil {
		return reply{}, err
	}
	views := s.views(c.r.Context(), pointers(page.Sandboxes)...)
	v := listView{Sandboxes: views[:fitting(views)], Counts: counts(page)}
	if n := len(v.Sandboxes); page.More || n < len(page.Sandboxes) {
		next := cursor(store.Newest.PlaceOf(&page.Sandboxes[n-1]))
		v.Next = &next
	}
	return ok(v)
}

func pointers(list []store.Sandbox) []*store.Sandbox {
	all := make([]*store.Sandbox, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
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

// parseFilter returns what a list is asked for. Without states it is all that have not ended.
func parseFilter(q query) (f store.Selection, err error) {
	var states []lifecycle.State
	for state := range strings.SplitSeq(strings.Join(q.Values["state"], ","), ",") {
		switch st := lifecycle.State(state); st {
		case "":
		case lifecycle.Pending, lifecycle.Running, lifecycle.Paused, lifecycle.Terminated:
			states = append(states, st)
		default:
			return f, body.Invalid(`"state" has %q`, body.Short(state)).
				WithRemedy("use pending, running, paused or terminated, joined by commas").With("field", "state")
		}
	}
	f.Status = func(r lifecycle.Record) bool {
		if len(states) == 0 {
			return r.State != lifecycle.Terminated
		}
		return slices.Contains(states, r.State)
	}
	metadata := map[string]string{}
	for _, pair := range q.Values["metadata"] {
		key, value, found := strings.Cut(pair, "=")
		if before, twice := metadata[key]; !found || twice && before != value {
			return f, body.Invalid(`"metadata" must be key=value, each key once`).With("field", "metadata")
		}
		metadata[key] = value
		f.Metadata = append(f.Metadata, [2]string{key, value})
	}
	f.Template = origin.Ref(q.Get("template"))
	f.Name = q.Get("name")
	if text := q.Get("after"); text != "" {
		after, err := parseCursor(text)
		if err != nil {
			return f, err
		}
		f.After = &after
	}
	f.Order = store.Newest
	return f, nil
}

// counts returns how many sandboxes there are in each state.
func counts(page store.Page) (n countsView) {
	of := map[lifecycle.State]*int{lifecycle.Pending: &n.Pending, lifecycle.Running: &n.Running, lifecycle.Paused: &n.Paused, lifecycle.Terminated: &n.Terminated}
	for outline, has := range page.Counts {
		*of[outline.State] += has
	}
	return n
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
