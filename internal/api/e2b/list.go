package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

const maxPage = 100

// listQuery is what a list is asked for.
type listQuery struct {
	states       []string // empty for all
	metadata     metadataFilter
	template     string // empty for all
	startedAfter int64  // inclusive, Unix microseconds
	filterStart  bool
	order        order
	limit        int
	after        *cursor
}

// listV1 is the old list: what runs, newest first, in one piece.
func (s *server) listV1(c *call) (reply, error) {
	metadata, err := parseMetadata(c.query.Get("metadata"))
	if err != nil {
		return reply{}, err
	}
	q := listQuery{order: descending, states: []string{stateRunning}, metadata: metadata}
	all, err := dialect.Sandboxes(c.r, s.Sandboxes.List, c.key)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusOK, Body: s.listedViews(q.sorted(q.inState(q.matching(all))))}, nil
}

// listV2 is the list in pages.
func (s *server) listV2(c *call) (reply, error) {
	q, err := parseListQuery(c.query)
	if err != nil {
		return reply{}, err
	}
	all, err := dialect.Sandboxes(c.r, s.Sandboxes.List, c.key)
	if err != nil {
		return reply{}, err
	}
	matching := q.matching(all)
	header := http.Header{"X-Total-Running": {strconv.Itoa(countRunning(matching))}}
	page, more := q.page(q.inState(matching))
	if more {
		header.Set("X-Next-Token", cursorAt(q.order, page[len(page)-1]).token())
	}
	return reply{Status: http.StatusOK, Header: header, Body: s.listedViews(page)}, nil
}

// pageLimit returns how long a page of a list may be.
func pageLimit(params url.Values) (int, error) {
	return parseCount(params, "limit", maxPage, 1, maxPage)
}

// parseListQuery judges the parameters. An empty one is absent: that is how
// some clients send what they do not ask for.
func parseListQuery(params url.Values) (q listQuery, err error) {
	if q.states, err = parseStates(params["state"]); err != nil {
		return q, err
	}
	if q.metadata, err = parseMetadata(params.Get("metadata")); err != nil {
		return q, err
	}
	if q.order, err = parseOrder(params.Get("order")); err != nil {
		return q, err
	}
	if q.startedAfter, q.filterStart, err = parseStartedAfter(params.Get("startedAfter")); err != nil {
		return q, err
	}
	if q.template, err = parseTemplateFilter(params.Get("template")); err != nil {
		return q, err
	}
	if q.limit, err = pageLimit(params); err != nil {
		return q, err
	}
	if token := params.Get("nextToken"); token != "" {
		after, err := parseToken(token, q.order)
		if err != nil {
			return q, err
		}
		q.after = &after
	}
	return q, nil
}

// parseStates parses lists joined by commas.
func parseStates(lists []string) ([]string, error) {
	var states []string
	for state := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		switch state {
		case "":
		case stateRunning, statePaused:
			states = append(states, state)
		default:
			return nil, badRequest(`"state" must be %q, %q or both joined by a comma, not %q`, stateRunning, statePaused, state)
		}
	}
	return states, nil
}

func parseOrder(text string) (order, error) {
	switch o := order(text); o {
	case "":
		return descending, nil
	case ascending, descending:
		return o, nil
	default:
		return "", badRequest(`"order" must be %q or %q, not %q`, ascending, descending, text)
	}
}

func parseStartedAfter(text string) (at int64, filter bool, err error) {
	if text == "" {
		return 0, false, nil
	}
	// A "+" of an offset that was not escaped has been decoded to a space.
	t, err := time.Parse(time.RFC3339Nano, strings.Replace(text, " ", "+", 1))
	if err != nil {
		return 0, false, badRequest(`"startedAfter" must be a time as in RFC 3339, such as 2026-01-02T15:04:05.000006Z, not %q`, text)
	}
	return micros(t), true, nil
}

func parseTemplateFilter(text string) (string, error) {
	if strings.Contains(text, ":") {
		return "", badRequest(`"template" must be an id or alias without a tag, not %q`, text)
	}
	return origin.Ref(text), nil
}

// parseCount parses a number that has bounds; def is what it is if not said.
func parseCount(params url.Values, name string, def, least, most int) (int, error) {
	text := params.Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, badRequest("%q must be between %d and %d, not %.100q", name, least, most, text)
	}
	return n, nil
}

// matching returns the sandboxes that pass every filter but that on state. It
// leaves out what this dialect does not show, should the list contain it.
func (q listQuery) matching(all []store.Sandbox) []*store.Sandbox {
	var found []*store.Sandbox
	for i := range all {
		if visible(all[i].Record) && q.matches(&all[i]) {
			found = append(found, &all[i])
		}
	}
	return found
}

// visible reports whether a sandbox has run and has not ended.
func visible(r lifecycle.Record) bool {
	return (r.State == lifecycle.Running || r.State == lifecycle.Paused) && r.Phase() != lifecycle.Killing
}

func (q listQuery) matches(sb *store.Sandbox) bool {
	if q.filterStart && micros(sb.Record.StartedAt) < q.startedAfter {
		return false
	}
	if q.template != "" && !sb.Config.IsOf(q.template) {
		return false
	}
	return q.metadata.holds(sb.Config.Metadata)
}

func countRunning(sandboxes []*store.Sandbox) int {
	n := 0
	for _, sb := range sandboxes {
		if state, _ := shown(sb.Record); state == stateRunning {
			n++
		}
	}
	return n
}

// inState keeps the sandboxes in one of the states asked for; it reuses the
// slice.
func (q listQuery) inState(sandboxes []*store.Sandbox) []*store.Sandbox {
	if len(q.states) == 0 {
		return sandboxes
	}
	return slices.DeleteFunc(sandboxes, func(sb *store.Sandbox) bool {
		state, _ := shown(sb.Record)
		return !slices.Contains(q.states, state)
	})
}

func (q listQuery) sorted(sandboxes []*store.Sandbox) []*store.Sandbox {
	slices.SortFunc(sandboxes, func(a, b *store.Sandbox) int {
		return cursorAt(q.order, a).compare(cursorAt(q.order, b))
	})
	return sandboxes
}

// page returns the sandboxes after the cursor, up to the limit, and whether
// there are more.
func (q listQuery) page(sandboxes []*store.Sandbox) (page []*store.Sandbox, more bool) {
	if q.after != nil {
		sandboxes = slices.DeleteFunc(sandboxes, func(sb *store.Sandbox) bool {
			return cursorAt(q.order, sb).compare(*q.after) <= 0
		})
	}
	page = q.sorted(sandboxes)
	if len(page) <= q.limit {
		return page, false
	}
	return page[:q.limit], true
}

// listedViews returns a slice that is never nil: an empty list is "[]".
func (s *server) listedViews(sandboxes []*store.Sandbox) []listedView {
	views := make([]listedView, 0, len(sandboxes))
	for _, sb := range sandboxes {
		views = append(views, s.listedView(sb))
	}
	return views
}
