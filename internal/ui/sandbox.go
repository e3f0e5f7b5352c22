package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// head is what all pages of one sandbox begin with.
type head struct {
	client.Info
	Tab  string
	Back string // the address of the page
}

// Name is what the people who made it call it.
func (h head) Name() string { return nameOf(h.Info) }

// Alive reports whether it has not ended.
func (h head) Alive() bool { return h.State != client.Terminated }

type sandboxData struct {
	Head   head
	Why    *client.Explanation
	Story  string // why, in a sentence
	Life   life
	Events []client.Event // newest first
	Use    *use           // nil before anything was measured
}

// sandbox shows one sandbox: why it is as it is, what comes next, and its life.
func sandbox(v *visit) error {
	a, h, err := v.open1("overview")
	if err != nil {
		return err
	}
	ctx := v.r.Context()
	d := sandboxData{Head: h}
	if d.Why, err = a.Explain(ctx, h.ID); err != nil {
		return err
	}
	now := time.Now()
	d.Story = story(h.Info, d.Why, now)
	all, err := lastEvents(ctx, a, h.ID, lifeEvents)
	if err != nil {
		return err
	}
	d.Events = slices.Clone(all[:min(len(all), mostEvents)])
	slices.Reverse(all)
	d.Life = wholeLife(changesIn(all), h.Info, now)
	if h.Alive() {
		var samples []sample
		err := a.call(ctx, http.MethodGet, "/sandboxes/"+url.PathEscape(h.ID)+"/metrics", nil, nil, &samples)
		if err != nil && !errors.Is(err, client.ErrNotFound) { // E2B's API has it not yet, or no more
			return err
		}
		if len(all) == lifeEvents { // when it slept before these is not known
			samples = slices.DeleteFunc(samples, func(s sample) bool { return s.At.Before(all[0].Time) })
		}
		d.Use = useOf(samples, sleepsIn(changesIn(all), now), h.State)
	}
	v.render(http.StatusOK, "sandbox", screen{Title: cmp.Or(h.Name(), h.ID), Section: "fleet", Scripts: []string{"charts.js"}, Data: d})
	return nil
}

// open1 returns the sandbox that a page is about.
func (v *visit) open1(tab string) (api, head, error) {
	a, err := v.api()
	if err != nil {
		return api{}, head{}, err
	}
	i, err := a.Find(v.r.Context(), v.r.PathValue("id"))
	return a, head{Info: i, Tab: tab, Back: v.r.URL.RequestURI()}, err
}

const (
	// mostEvents is how many events of a sandbox its page lists.
	mostEvents = 100
	// lifeEvents is how many its life is drawn from: of a longer one, the last part.
	lifeEvents = 1000
)

// lastEvents returns the last events of a sandbox, newest first.
func lastEvents(ctx context.Context, a api, id string, most int) ([]client.Event, error) {
	var p client.EventPage
	err := a.call(ctx, http.MethodGet, onSandbox(id, "/events"), url.Values{"before": {"now"}, "limit": {strconv.Itoa(most)}}, nil, &p)
	return p.Events, err
}

// story says why a sandbox is as it is, in a sentence.
func story(i client.Info, x *client.Explanation, now time.Time) string {
	switch t := x.Tombstone; {
	case t != nil:
		return fmt.Sprintf("It ended %s ago, by %s: %s.", span(now.Sub(t.At)), actorOf(t.Actor), t.Reason)
	case x.Operation != nil:
		return fmt.Sprintf("It is %s for %s, because of %s by %s.", x.Phase, span(now.Sub(x.Operation.StartedAt)), x.Operation.Cause, actorOf(x.Operation.Actor))
	case x.State == client.Paused:
		text := "It has slept for " + span(now.Sub(i.PausedAt)) + ", using no memory and no processor; "
		if x.Sleep == client.LightSleep {
			text = "It has slept lightly for " + span(now.Sub(i.PausedAt)) + ": its runtime stands by with its memory, using no processor, and wakes in milliseconds; "
		}
		switch x.Next.WaitsFor {
		case "traffic":
			return text + "the next request to it, or a resume, wakes it."
		case "resume":
			return text + "a resume wakes it; requests do not."
		}
		return text + x.Next.Text + "."
	case x.State == client.Running && x.Busy:
		return fmt.Sprintf("It is awake because of %s.", countHolds(x.Holds))
	case x.State == client.Running && x.Telemetry.DefersIdle:
		return "It counts as busy, because it has not reported its work."
	case x.State == client.Running && len(x.Holds) > 0:
		return "It is idle: what is open does not count as work."
	case x.State == client.Running:
		return "It is idle: no work keeps it awake."
	}
	return "It is " + string(x.State) + "."
}

// countHolds names what counts as work.
func countHolds(holds []client.Hold) string {
	var first *client.Hold
	n := 0
	for i, h := range holds {
		if h.Counts {
			if n++; first == nil {
				first = &holds[i]
			}
		}
	}
	if first == nil {
		return "work"
	}
	text := "a " + string(first.Kind)
	if first.Detail != "" {
		text += " (" + first.Detail + ")"
	}
	if n > 1 {
		text += fmt.Sprintf(" and %d more", n-1)
	}
	return text
}

type logData struct {
	Head   head
	Lines  []logLine
	Level  string
	Search string
}

// sandboxLog shows the newest lines of a sandbox's log, oldest first.
func sandboxLog(v *visit) error {
	a, h, err := v.open1("log")
	if err != nil {
		return err
	}
	asked := v.r.URL.Query()
	d := logData{Head: h, Level: asked.Get("level"), Search: asked.Get("search")}
	q := url.Values{"limit": {"500"}, "direction": {"backward"}}
	for name, value := range map[string]string{"level": d.Level, "search": d.Search} {
		if value != "" {
			q.Set(name, value)
		}
	}
	var out struct {
		Logs []logLine `json:"logs"`
	}
	if h.Alive() {
		err := a.call(v.r.Context(), http.MethodGet, "/v2/sandboxes/"+url.PathEscape(h.ID)+"/logs", q, nil, &out)
		if err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	slices.Reverse(out.Logs)
	d.Lines = out.Logs
	v.render(http.StatusOK, "log", screen{Title: "Log of " + cmp.Or(h.Name(), h.ID), Section: "fleet", Data: d})
	return nil
}
