package e2b

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
)

// logView is a line of a log.
type logView struct {
	Timestamp httpapi.Timestamp `json:"timestamp"`
	Message   string            `json:"message"`
	Level     journal.Level     `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// oldLogView is a line in its old form: an object as text, which the CLI takes
// apart again.
type oldLogView struct {
	Timestamp httpapi.Timestamp `json:"timestamp"`
	Line      string            `json:"line"`
}

func viewOldLog(l journal.Line) (oldLogView, error) {
	object := maps.Clone(l.Fields)
	if object == nil {
		object = map[string]string{}
	}
	object["level"], object["logger"], object["message"] = string(l.Level), "sandbox", l.Message
	line, err := httpapi.Encode(http.StatusOK, nil, object)
	return oldLogView{httpapi.Timestamp(l.At), string(line.Body)}, err
}

func viewLog(l journal.Line) logView {
	v := logView{httpapi.Timestamp(l.At), l.Message, l.Level, l.Fields}
	if v.Fields == nil {
		v.Fields = map[string]string{}
	}
	return v
}

// Bounds of what is asked of a log.
const (
	maxLogPage   = 1000
	maxLogSearch = 256 // bytes
)

// levels are the levels of lines, the least bad first.
var levels = []journal.Level{journal.Debug, journal.Info, journal.Warn, journal.Error}

// logQuery is what a log is asked for.
type logQuery struct {
	cursor   time.Time // inclusive; zero for none
	limit    int
	backward bool // newest first, from the cursor to the past
	level    journal.Level
	search   string // in small letters
}

func parseLogQuery(params url.Values) (q logQuery, err error) {
	if q.cursor, err = parseMillis(params, "cursor"); err != nil {
		return q, err
	}
	if q.limit, err = parseCount(params, "limit", maxLogPage, 1, maxLogPage); err != nil {
		return q, err
	}
	switch text := params.Get("direction"); text {
	case "", "backward":
		q.backward = true
	case "forward":
	default:
		return q, badRequest(`"direction" must be forward or backward`)
	}
	if q.level, err = parseLevel(params); err != nil {
		return q, err
	}
	q.search = strings.ToLower(params.Get("search"))
	if len(q.search) > maxLogSearch {
		return q, badRequest(`"search" must have %d bytes at most`, maxLogSearch)
	}
	return q, nil
}

// parseLevel returns the least level of the lines that are asked for; empty for all.
func parseLevel(params url.Values) (journal.Level, error) {
	level := journal.Level(params.Get("level"))
	if level != "" && !slices.Contains(levels, level) {
		return "", badRequest(`"level" must be debug, info, warn or error`)
	}
	return level, nil
}

func parseMillis(params url.Values, name string) (time.Time, error) {
	n, err := parseInteger(params, name, 1000*mostSeconds, "a time in milliseconds since 1970")
	if n < 0 || err != nil {
		return time.Time{}, err
	}
	return time.UnixMilli(n), nil
}

// apply returns the lines that are asked for, of lines that are oldest first. A
// cursor is in milliseconds, and so is the comparison with it.
func (q logQuery) apply(lines []journal.Line) []journal.Line {
	var found []journal.Line
	if q.backward {
		lines = slices.Clone(lines)
		slices.Reverse(lines)
	}
	for _, l := range lines {
		if len(found) == q.limit {
			break
		}
		if q.holds(l) {
			found = append(found, l)
		}
	}
	return found
}

func (q logQuery) holds(l journal.Line) bool {
	at, cursor := l.At.UnixMilli(), q.cursor.UnixMilli()
	switch {
	case !q.cursor.IsZero() && q.backward && at > cursor, !q.cursor.IsZero() && !q.backward && at < cursor:
		return false
	case slices.Index(levels, l.Level) < slices.Index(levels, q.level): // -1 for none
		return false
	}
	return strings.Contains(strings.ToLower(l.Message), q.search)
}

func (s *server) logsV2(c *call) (reply, error) {
	lines, err := s.log(c, parseLogQuery)
	if err != nil {
		return reply{}, err
	}
	views := make([]logView, 0, len(lines))
	for _, l := range lines {
		views = append(views, viewLog(l))
	}
	return reply{Status: http.StatusOK, Body: map[string]any{"logs": views}}, nil
}

// logsV1 is the old log: oldest first, from a start on.
func (s *server) logsV1(c *call) (reply, error) {
	lines, err := s.log(c, func(params url.Values) (q logQuery, err error) {
		if q.cursor, err = parseMillis(params, "start"); err != nil {
			return q, err
		}
		q.limit, err = parseCount(params, "limit", maxLogPage, 1, maxLogPage)
		return q, err
	})
	if err != nil {
		return reply{}, err
	}
	old, views := make([]oldLogView, 0, len(lines)), make([]logView, 0, len(lines))
	for _, l := range lines {
		o, err := viewOldLog(l)
		if err != nil {
			return reply{}, err
		}
		old = append(old, o)
		views = append(views, viewLog(l))
	}
	return reply{Status: http.StatusOK, Body: map[string]any{"logs": old, "logEntries": views}}, nil
}

// log returns the lines that a call asks for.
func (s *server) log(c *call, parse func(url.Values) (logQuery, error)) ([]journal.Line, error) {
	sb, err := s.find(c)
	if err != nil {
		return nil, err
	}
	q, err := parse(c.query)
	if err != nil {
		return nil, err
	}
	lines, err := s.Sandboxes.SandboxLog(c.r.Context(), sb.ID)
	return q.apply(lines), err
}
