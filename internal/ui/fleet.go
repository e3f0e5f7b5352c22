package ui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// perPage is how many sandboxes a page of the fleet has.
const perPage = 50

// states are the ones that the fleet can be filtered by.
var states = []client.State{client.Running, client.Paused, client.Pending, client.Terminated}

// fleetFilter is what a page of the fleet is asked for.
type fleetFilter struct {
	State    string
	Template string
	Metadata string // key=value
	After    string // a cursor
}

func (f fleetFilter) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"state": f.State, "template": f.Template, "metadata": f.Metadata, "after": f.After} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// With returns the address of the fleet with another state, from its beginning.
func (f fleetFilter) With(state string) string {
	f.State, f.After = state, ""
	return fleetPath(f)
}

// From returns the address of the page of the fleet at a cursor.
func (f fleetFilter) From(cursor string) string {
	f.After = cursor
	return fleetPath(f)
}

func fleetPath(f fleetFilter) string {
	if q := f.query().Encode(); q != "" {
		return Path + "/?" + q
	}
	return Path + "/"
}

// stateCount is how many sandboxes there are in a state.
type stateCount struct {
	State client.State
	Count int
}

// fleetRow is one sandbox of the fleet.
type fleetRow struct {
	client.Info
	Use  *sample // nil if it was not measured
	Hour life
}

// Wakes is how often it has woken: each wake begins a generation.
func (r fleetRow) Wakes() int64 { return max(0, r.Generation-1) }

// Name is what the people who made it call it.
func (r fleetRow) Name() string { return nameOf(r.Info) }

// nameOf returns the name that a sandbox was given, or else what its metadata calls it.
func nameOf(i client.Info) string {
	if i.Name != "" {
		return i.Name
	}
	for _, key := range []string{"name", "title"} {
		if i.Metadata[key] != "" {
			return i.Metadata[key]
		}
	}
	return ""
}

// sandboxPage is a page of a list of sandboxes, as the server sends it.
type sandboxPage struct {
	Sandboxes []client.Info        `json:"sandboxes"`
	Next      string               `json:"next"` // cursor; empty on the last page
	Counts    map[client.State]int `json:"counts"`
}

type fleetData struct {
	Filter  fleetFilter
	Counts  []stateCount
	Rows    []fleetRow
	Summary string // of all sandboxes that the key sees; empty where the page is of some
	Next    string // cursor; empty on the last page
	Back    string // the address of this page
	Servers bool   // the sandboxes are on servers of one database
}

// fleet lists sandboxes. It asks for a page, whatever their number.
func fleet(v *visit) error {
	asked := v.r.URL.Query()
	if text := strings.TrimSpace(asked.Get("id")); text != "" {
		id, err := v.lookUp(text)
		if err != nil {
			return err
		}
		v.redirect(Path + "/sandboxes/" + url.PathEscape(id))
		return nil
	}
	f := fleetFilter{State: asked.Get("state"), Template: strings.TrimSpace(asked.Get("template")), Metadata: strings.TrimSpace(asked.Get("metadata")), After: asked.Get("after")}
	a, err := v.api()
	if err != nil {
		return err
	}
	q := f.query()
	q.Set("limit", strconv.Itoa(perPage))
	var list sandboxPage
	if err := a.call(v.r.Context(), http.MethodGet, "/v1/sandboxes", q, nil, &list); err != nil {
		return err
	}
	d := fleetData{Filter: f, Next: list.Next, Back: fleetPath(f)}
	for _, s := range states {
		d.Counts = append(d.Counts, stateCount{s, list.Counts[s]})
	}
	uses, err := lastSamples(v, a, list.Sandboxes)
	if err != nil {
		return err
	}
	now := time.Now()
	hours, err := lastHours(v.r.Context(), v.session, a, list.Sandboxes, now)
	if err != nil {
		return err
	}
	if f.Template == "" && f.Metadata == "" {
		if d.Summary, err = summary(v.r.Context(), a, list.Counts, now); err != nil {
			return err
		}
	}
	for n, i := range list.Sandboxes {
		row := fleetRow{Info: i, Hour: hours[n]}
		if use, ok := uses[i.ID]; ok && i.State == client.Running {
			row.Use = &use
		}
		d.Rows = append(d.Rows, row)
		d.Servers = d.Servers || i.Server != ""
	}
	v.render(http.StatusOK, "fleet", screen{Title: "Sandboxes", Section: "fleet", Data: d})
	return nil
}

// lookUp returns the id of the sandbox that a text stands for: its id, its name or the
// beginning of its id. A text that stands for none is returned as it is.
func (v *visit) lookUp(text string) (string, error) {
	a, err := v.api()
	if err != nil {
		return "", err
	}
	ctx := v.r.Context()
	if _, err := a.Get(ctx, text); err == nil || !errors.Is(err, client.ErrNotFound) {
		return text, err
	}
	named, err := a.List(ctx, client.ListOptions{Name: text})
	if err == nil && len(named) > 0 {
		return named[0].ID, nil
	}
	var begin []string
	all, err := a.List(ctx, client.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, i := range all {
		if strings.HasPrefix(i.ID, text) {
			begin = append(begin, i.ID)
		}
	}
	switch len(begin) {
	case 0:
		return text, nil
	case 1:
		return begin[0], nil
	}
	return "", refusal{http.StatusConflict, fmt.Sprintf("the ids of %d sandboxes begin with %.40q", len(begin), text), "give more of the id"}
}

// lastSamples returns what those sandboxes use that run.
func lastSamples(v *visit, a api, list []client.Info) (map[string]sample, error) {
	var ids []string
	for _, i := range list {
		if i.State == client.Running {
			ids = append(ids, i.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	slices.Sort(ids)
	var out struct {
		Sandboxes map[string]sample `json:"sandboxes"`
	}
	err := a.call(v.r.Context(), http.MethodGet, "/sandboxes/metrics", url.Values{"sandbox_ids": {strings.Join(ids, ",")}}, nil, &out)
	return out.Sandboxes, err
}
