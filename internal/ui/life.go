package ui

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

// life is a part of a sandbox's life as a bar.
type life struct {
	Spans      []lifeSpan
	Begin, End time.Time
	sums       map[string]time.Duration // by the word for a state
}

// lifeSpan is a time in one state. Positions are thousandths of the bar.
type lifeSpan struct {
	X, Width int64
	State    string
	Text     string
}

// lifeChange is what a life is drawn from: that a sandbox came into a state, and why.
type lifeChange struct {
	Time      time.Time
	To, Cause string
}

// changesIn returns what events say of states, in their order.
func changesIn(events []client.Event) []lifeChange {
	all := make([]lifeChange, len(events))
	for n, e := range events {
		all[n] = lifeChange{e.Time, e.To, e.Cause}
	}
	return all
}

// lifeWidth is the length of the bar.
const lifeWidth = 1000

// What a bar shows besides the states and phases of sandboxes.
const (
	notThere = "none"    // before the sandbox was created
	notKnown = "unknown" // before the first event that was read
)

// The words for what a sandbox does in a bar.
const (
	runs, sleeps, onTheWay = "awake", "asleep", "on the way"
	absent, unknown, ended = "not there yet", "not known", "ended"
)

func wordFor(state string) string {
	switch state {
	case string(client.Running):
		return runs
	case string(client.Paused):
		return sleeps
	case string(client.Terminated):
		return ended
	case notThere:
		return absent
	case notKnown:
		return unknown
	}
	return onTheWay
}

// Awake returns how long the sandbox ran.
func (l life) Awake() time.Duration { return l.sums[runs] }

// Asleep returns how long the sandbox slept.
func (l life) Asleep() time.Duration { return l.sums[sleeps] }

// Words is the bar for those who do not see it.
func (l life) Words() string {
	var parts []string
	for _, word := range []string{runs, sleeps, onTheWay, ended, absent, unknown} {
		if d := l.sums[word]; d >= time.Second {
			parts = append(parts, word+" "+span(d))
		}
	}
	return "Last hour: " + strings.Join(parts, ", ")
}

// wholeLife is the life of a sandbox as far back as its changes go, oldest first.
func wholeLife(all []lifeChange, i client.Info, now time.Time) life {
	end := now
	if i.Tombstone != nil {
		end = i.Tombstone.At
	}
	if len(all) == 0 {
		return life{End: end}
	}
	return lifeOf(all, all[0].Time, end)
}

// lifeOf draws the time between begin and end from changes, oldest first.
func lifeOf(all []lifeChange, begin, end time.Time) life {
	l := life{Begin: begin, End: end, sums: map[string]time.Duration{}}
	whole := max(1, end.Sub(begin))
	place := func(t time.Time) int64 { return int64(lifeWidth * float64(t.Sub(begin)) / float64(whole)) }
	for _, e := range spellsOf(all, end) {
		from := slices.MaxFunc([]time.Time{e.Time, begin}, time.Time.Compare)
		if !e.until.After(from) {
			continue
		}
		l.sums[wordFor(e.To)] += e.until.Sub(from)
		x := place(from)
		// What is shorter than a thousandth would cover what follows.
		if w := place(e.until) - x; w > 0 {
			l.Spans = append(l.Spans, lifeSpan{x, w, e.To, spanText(e)})
		}
	}
	return l
}

// spell is a time in one state, by the change that began it.
type spell struct {
	lifeChange
	until time.Time
}

// spellsOf returns the times between changes, oldest first. While the state stays, it is
// one. Where the clock was set back, one ends before it begins.
func spellsOf(all []lifeChange, end time.Time) (spells []spell) {
	for n := 0; n < len(all); {
		s := spell{all[n], end}
		for n < len(all) && all[n].To == s.To {
			n++
		}
		if n < len(all) {
			s.until = all[n].Time
		}
		spells = append(spells, s)
	}
	return spells
}

// spanText says what a part of a bar is, how long it was and why it began.
func spanText(e spell) string {
	switch e.To {
	case notThere:
		return "not there yet"
	case notKnown:
		return "not known: the event log was read no further back"
	}
	text := fmt.Sprintf("%s for %s, from %s", e.To, span(e.until.Sub(e.Time)), e.Time.UTC().Format("2006-01-02 15:04:05"))
	if e.Cause != "" {
		text += ", because of " + e.Cause
	}
	return text
}

// What the page of all sandboxes reads of the event log, at most.
const (
	hourBack   = time.Hour
	hourEvents = 200 // of one sandbox
	hourCalls  = 4   // at a time
	tailEvents = 1000
)

// hourKept is what a session remembers of the last hour of a sandbox: its newest
// changes, and a digest of what it was when they were read. A page that follows the
// server asks for no more than those of sandboxes that have changed.
type hourKept struct {
	mark   [sha256.Size]byte
	newest []lifeChange
}

// mostKept bounds the changes that are remembered of a sandbox, and mostRemembered the
// sandboxes and their changes that one session remembers. A key has many sessions.
const mostKept, mostRemembered = 40, 1000

// lastHours returns the last hour of each sandbox of a page. Only those that have
// changed within it, and since the session has seen them last, cost a call. Where the
// server grants no more calls, the hour is not known.
func lastHours(ctx context.Context, s *session, a api, list []client.Info, now time.Time) ([]life, error) {
	begin := now.Add(-hourBack)
	bars, kept := make([]life, len(list)), make([]*hourKept, len(list))
	before := s.remembered()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(hourCalls)
	for n, i := range list {
		since := changedAt(i)
		if i.Phase == "" && since.Before(begin) {
			bars[n] = lifeOf([]lifeChange{{Time: since, To: string(i.State)}}, begin, now)
			continue
		}
		mark := sha256.Sum256(fmt.Append(nil, i.State, i.Phase, i.Generation, since, i.LastError))
		if had, ok := before[i.ID]; ok && had.mark == mark {
			kept[n] = &had
			bars[n] = lifeOf(sinceBegin(had.newest, i, begin), begin, now)
			continue
		}
		g.Go(func() error {
			events, err := lastEvents(ctx, a, i.ID, hourEvents)
			switch {
			case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrLimit): // it was forgotten meanwhile, or too many calls
				bars[n] = lifeOf([]lifeChange{{Time: begin, To: notKnown}}, begin, now)
				return nil
			case err != nil:
				return err
			}
			all := changesIn(events)
			bars[n] = lifeOf(sinceBegin(all, i, begin), begin, now)
			if all = withinHour(all, begin); len(all) <= mostKept {
				kept[n] = &hourKept{mark, slices.Clone(all)}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	after, room := map[string]hourKept{}, mostRemembered
	for n, i := range list {
		if k := kept[n]; k != nil && len(k.newest) < room {
			room -= 1 + len(k.newest)
			after[i.ID] = *k
		}
	}
	s.remember(after)
	return bars, nil
}

// withinHour leaves out the changes before begin, all but the last of them. The newest
// is the first.
func withinHour(newest []lifeChange, begin time.Time) []lifeChange {
	for n, e := range newest {
		if !e.Time.After(begin) {
			return newest[:n+1]
		}
	}
	return newest
}

// changedAt returns when a sandbox came into its state, or later.
func changedAt(i client.Info) time.Time {
	switch {
	case i.Tombstone != nil:
		return i.Tombstone.At
	case i.State == client.Paused && !i.PausedAt.IsZero():
		return i.PausedAt
	case i.State == client.Running && !i.StartedAt.IsZero():
		return i.StartedAt
	}
	return i.CreatedAt
}

// sinceBegin returns the newest changes of a sandbox, oldest first, with one before
// them for what they do not say of the time from begin on.
func sinceBegin(newest []lifeChange, i client.Info, begin time.Time) []lifeChange {
	all := slices.Clone(newest)
	slices.Reverse(all)
	if len(all) > 0 && !all[0].Time.After(begin) {
		return all
	}
	before := notKnown
	if len(newest) < hourEvents && i.CreatedAt.After(begin) {
		before = notThere
	}
	return slices.Insert(all, 0, lifeChange{Time: begin, To: before})
}

// summary says how all sandboxes do, in a line.
func summary(ctx context.Context, a api, counts map[client.State]int, now time.Time) (string, error) {
	parts := []string{fmt.Sprintf("%d awake, %d asleep", counts[client.Running], counts[client.Paused])}
	woke, err := wakes(ctx, a, now)
	if errors.Is(err, client.ErrLimit) { // too many calls: it is told without
		return parts[0], nil
	}
	if err != nil {
		return "", err
	}
	if woke != "" {
		parts = append(parts, woke)
	}
	// The answer has all sandboxes that are alive, so it is asked for where these are few.
	if alive := counts[client.Running] + counts[client.Paused] + counts[client.Pending]; counts[client.Running] > 0 && alive <= tailEvents {
		used, err := client.UsageOf(ctx, a.Client)
		if errors.Is(err, client.ErrLimit) {
			return strings.Join(parts, " · "), nil
		}
		if err != nil {
			return "", err
		}
		var memory int64
		for _, u := range used {
			if u.State == client.Running && u.Last != nil {
				memory += u.Last.MemoryBytes
			}
		}
		parts = append(parts, human.Bytes(memory)+" of memory in use")
	}
	return strings.Join(parts, " · "), nil
}

// wakes counts the sandboxes that have woken in the last hour, or since the oldest of
// the last events where these do not go back so far. It returns no text if nothing is
// known.
func wakes(ctx context.Context, a api, now time.Time) (string, error) {
	end, err := a.Events(ctx, client.EventOptions{After: client.FromNow})
	if err != nil {
		return "", err
	}
	var tail client.EventPage
	after := max(0, end.Next-tailEvents)
	if err := a.call(ctx, http.MethodGet, "/v1/events", url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(tailEvents)}}, nil, &tail); err != nil {
		return "", err
	}
	begin := now.Add(-hourBack)
	if after > 0 {
		if len(tail.Events) == 0 {
			return "", nil
		}
		begin = slices.MaxFunc([]time.Time{begin, tail.Events[0].Time}, time.Time.Compare)
	}
	n := 0
	for _, e := range tail.Events {
		if e.Type == "resumed" && e.Cause != "checkpoint" && e.Cause != "restore" && e.Time.After(begin) {
			n++
		}
	}
	within, period := max(now.Sub(begin), time.Second), "hour"
	if within < hourBack {
		period = span(within)
	}
	return fmt.Sprintf("%d %s in the last %s (%.1f a minute)", n, plural(n, "wake"), period, float64(n)/within.Minutes()), nil
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
