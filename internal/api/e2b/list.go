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

// listV1 is the old list: what runs, newest first, in one piece.
func (s *server) listV1(c *call) (reply, error) {
	metadata, err := parseMetadata(c.query.Get("metadata"))
	if err != nil {
		return reply{}, err
	}
	page, err := dialect.Sandboxes(c.r, s.Sandboxes.Page, c.key, store.Selection{Metadata: metadata, Status: runs, Order: store.LatestStart})
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusOK, Body: s.listedViews(page.Sandboxes)}, nil
}

// listV2 is the list in pages.
func (s *server) listV2(c *call) (reply, error) {
	q, order, err := parseListQuery(c.query)
	if err != nil {
		return reply{}, err
	}
	page, err := dialect.Sandboxes(c.r, s.Sandboxes.Page, c.key, q)
	if err != nil {
		return reply{}, err
	}
	header := http.Header{"X-Total-Running": {strconv.Itoa(page.Count(runs))}}
	if n := len(page.Sandboxes); page.More {
		header.Set("X-Next-Token", cursorAt(order, &page.Sandboxes[n-1]).token())
	}
	return reply{Status: http.StatusOK, Header: header, Body: s.listedViews(page.Sandboxes)}, nil
}

// pageLimit returns how long a page of a list may be.
func pageLimit(params url.Values) (int, error) {
	return parseCount(params, "limit", maxPage, 1, maxPage)
}

// parseListQuery judges the parameters. An empty one is absent: that is how
// some clients send what they do not ask for.
func parseListQuery(params url.Values) (q store.Selection, o order, err error) {
	states, err := parseStates(params["state"])
	if err != nil {
		return q, o, err
	}
	q.Status = func(r lifecycle.Record) bool { return visible(r) && (len(states) == 0 || in(states, r)) }
	if q.Metadata, err = parseMetadata(params.Get("metadata")); err != nil {
		return q, o, err
	}
	if o, err = parseOrder(params.Get("order")); err != nil {
		return q, o, err
	}
	q.Order = o.ofStore()
	if q.StartedFrom, err = parseStartedAfter(params.Get("startedAfter")); err != nil {
		return q, o, err
	}
	if q.Template, err = parseTemplateFilter(params.Get("template")); err != nil {
		return q, o, err
	}
	if q.Limit, err = pageLimit(params); err != nil {
		return q, o, err
	}
	if token := params.Get("nextToken"); token != "" {
		after, err := parseToken(token, o)
		if err != nil {
			return q, o, err
		}
		q.After = &store.Place{At: after.startedAt, ID: after.id}
	}
	return q, o, nil
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

func parseStartedAfter(text string) (at *int64, err error) {
	if text == "" {
		return nil, nil
	}
	// A "+" of an offset that was not escaped has been decoded to a space.
	t, err := time.Parse(time.RFC3339Nano, strings.Replace(text, " ", "+", 1))
	if err != nil {
		return nil, badRequest(`"startedAfter" must be a time as in RFC 3339, such as 2026-01-02T15:04:05.000006Z, not %q`, text)
	}
	start := micros(t)
	return &start, nil
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

// visible reports whether a sandbox has run and has not ended.
func visible(r lifecycle.Record) bool {
	return (r.State == lifecycle.Running || r.State == lifecycle.Paused) && r.Phase() != lifecycle.Killing
}

// runs reports whether a sandbox is shown as one that runs.
func runs(r lifecycle.Record) bool { return visible(r) && in([]string{stateRunning}, r) }

// in reports whether a sandbox is shown in one of some states.
func in(states []string, r lifecycle.Record) bool {
	state, _ := shown(r)
	return slices.Contains(states, state)
}

// listedViews returns a slice that is never nil: an empty list is "[]".
func (s *server) listedViews(sandboxes []store.Sandbox) []listedView {
	views := make([]listedView, 0, len(sandboxes))
	for i := range sandboxes {
		views = append(views, s.listedView(&sandboxes[i]))
	}
	return views
}
