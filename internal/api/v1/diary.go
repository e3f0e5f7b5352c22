package v1

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/usage"
)

// Diaries tell what sandboxes logged and what they used. No sandbox is woken, or
// counts as active, because somebody asks.
type Diaries interface {
	// SandboxLog returns the log of a sandbox that has not ended, oldest first.
	SandboxLog(ctx context.Context, id string) ([]journal.Line, error)
	// Samples returns what it used in a time, oldest first; zero times bound nothing.
	Samples(ctx context.Context, id string, from, to time.Time) ([]usage.Sample, error)
	// LastSample returns the last of them; false if there is none.
	LastSample(id string) (usage.Sample, bool)
}

type logLineView struct {
	At      httpapi.Timestamp `json:"at"`
	Level   journal.Level     `json:"level"`
	Message string            `json:"message" doc:"What a terminal would act on is escaped in what a sandbox said."`
	Fields  map[string]string `json:"fields"`
}

type logView struct {
	Lines []logLineView `json:"lines" doc:"Oldest first."`
	Next  string        `json:"next" doc:"What to give as after for the lines that follow."`
}

// maxLogLines is how many lines one answer has.
const maxLogLines = 1000

var sandboxLogQuery = []param{
	{"after", "query", "The next of an answer: only lines after those, the first ones if there are more than lines.", schema{"type": "string"}},
	{"lines", "query", "Maximum number of lines, without after the last ones (default: 1000).", schema{"type": "integer", "minimum": 1, "maximum": maxLogLines}},
}

func sandboxLog(s *server, c *call) (reply, error) {
	q := c.query()
	most, err := q.number("lines", maxLogLines, 1, maxLogLines)
	if err != nil {
		return reply{}, err
	}
	mark, err := journal.ParseMark(q.Get("after"))
	if err != nil {
		return reply{}, err
	}
	if _, err := s.Sandboxes.Find(c.r.Context(), c.sandbox); err != nil {
		return reply{}, err
	}
	lines, err := s.Diaries.SandboxLog(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	if q.Get("after") == "" { // the last ones; those before count as read
		skip := max(0, len(lines)-int(most))
		mark, lines = mark.Past(lines[:skip]), lines[skip:]
	} else {
		lines = mark.After(lines)
		lines = lines[:min(len(lines), int(most))]
	}
	v := logView{Lines: make([]logLineView, len(lines)), Next: mark.Past(lines).String()}
	for i, l := range lines {
		v.Lines[i] = logLineView{httpapi.Timestamp(l.At), l.Level, l.Message, l.Fields}
		if l.Fields == nil {
			v.Lines[i].Fields = map[string]string{}
		}
	}
	return ok(v)
}

// sampleView is what a sandbox used at a time.
type sampleView struct {
	At               httpapi.Timestamp `json:"at"`
	CPUPercent       float64           `json:"cpuPercent" doc:"Of all CPUs that it may use."`
	MemoryBytes      int64             `json:"memoryBytes" doc:"With what its runtime takes for itself."`
	MemoryLimitBytes int64             `json:"memoryLimitBytes"`
	CacheBytes       int64             `json:"cacheBytes" doc:"Of the memory, what caches files."`
	DiskBytes        int64             `json:"diskBytes" doc:"What its own files took when they were last measured."`
	DiskLimitBytes   int64             `json:"diskLimitBytes" doc:"Without a limit, the size of the server's disk."`
}

func viewSample(limits store.Limits, s usage.Sample) sampleView {
	return sampleView{
		At: httpapi.Timestamp(s.At), CPUPercent: math.Round(100*s.CPUPercent) / 100,
		MemoryBytes: s.Memory, MemoryLimitBytes: int64(limits.MemoryMiB) << 20, CacheBytes: s.Cache, DiskBytes: s.DiskUsed, DiskLimitBytes: s.DiskTotal,
	}
}

type samplesView struct {
	Samples []sampleView `json:"samples" doc:"Oldest first. Some hundreds are kept since the server's start; the older, the further apart."`
}

func sandboxUsage(s *server, c *call) (reply, error) {
	sb, err := s.Sandboxes.Find(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	samples, err := s.Diaries.Samples(c.r.Context(), c.sandbox, time.Time{}, time.Time{})
	if err != nil {
		return reply{}, err
	}
	v := samplesView{Samples: make([]sampleView, len(samples))}
	for i, one := range samples {
		v.Samples[i] = viewSample(sb.Config.Limits, one)
	}
	return ok(v)
}

// usedView is a sandbox with what it used last.
type usedView struct {
	Sandbox string          `json:"sandbox"`
	Name    *string         `json:"name"`
	State   lifecycle.State `json:"state"`
	CPUs    float64         `json:"cpus" doc:"How many it may use."`
	Last    *sampleView     `json:"last" doc:"The last sample, which for a paused sandbox is from before its pause; null if none was taken since the server's start."`
}

type usageView struct {
	Sandboxes []usedView `json:"sandboxes" doc:"Those that have not ended, newest first."`
}

var usageQuery = []param{{sandboxParam, "query", "Ids of sandboxes, separated by commas (default: all). Those that have ended are left out.", schema{"type": "string"}}}

func fleetUsage(s *server, c *call) (reply, error) {
	q := c.query()
	var ids []string
	if text := strings.Join(q.Values[sandboxParam], ","); text != "" {
		ids = strings.Split(text, ",")
	}
	if len(ids) > maxPage {
		return reply{}, body.Invalid("%q has %d ids; %d are allowed", sandboxParam, len(ids), maxPage).With("field", sandboxParam)
	}
	all, err := dialect.Sandboxes(c.r, s.Sandboxes.Page, c.key, store.Selection{
		IDs: ids, Status: store.NotEnded, Order: store.Newest,
	})
	if err != nil {
		return reply{}, err
	}
	v := usageView{Sandboxes: make([]usedView, len(all.Sandboxes))}
	for i, sb := range all.Sandboxes {
		v.Sandboxes[i] = usedView{Sandbox: sb.ID, Name: orNull(sb.Config.Name), State: sb.Record.State, CPUs: sb.Config.Limits.CPUs}
		if last, measured := s.Diaries.LastSample(sb.ID); measured {
			sample := viewSample(sb.Config.Limits, last)
			v.Sandboxes[i].Last = &sample
		}
	}
	return ok(v)
}
