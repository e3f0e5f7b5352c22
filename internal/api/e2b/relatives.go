package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Some other servers speak E2B's API, and their SDKs run against this one. What
// they have beside it is here. All else that they differ in is a spelling of an
// option, or a header that the edge knows.

// healthView is what CubeSandbox's SDK wants of /health. E2B's SDKs never ask.
type healthView struct {
	Status string `json:"status"`
}

func health(*server, *call) (reply, error) {
	return reply{Status: http.StatusOK, Body: healthView{"ok"}}, nil
}

// quotaView is what a key may take and takes, as Novita's clients read it. Zero
// is no limit.
type quotaView struct {
	Limit quotaLimitView `json:"limit"`
	Usage quotaUsageView `json:"usage"`
}

type quotaLimitView struct {
	ConcurrentInstances int     `json:"concurrentInstances"`
	ConcurrentVCPU      int     `json:"concurrentVcpu"`
	ConcurrentRAMMB     int     `json:"concurrentRamMb"`
	MaxLengthHours      float64 `json:"maxLengthHours"`
	DiskMB              int     `json:"diskMb"`
	MaxVCPU             int     `json:"maxVcpu"`
	MaxRAMMB            int     `json:"maxRamMb"`
}

type quotaUsageView struct {
	ConcurrentInstances int `json:"concurrentInstances"`
	ConcurrentVCPU      int `json:"concurrentVcpu"`
	ConcurrentRAMMB     int `json:"concurrentRamMb"`
}

// tellQuota tells the limits of the key of the call, and what its sandboxes take.
func tellQuota(s *server, c *call) (reply, error) {
	all, err := s.Sandboxes.Page(c.r.Context(), store.Selection{Key: c.key.ID, Status: runs})
	if err != nil {
		return reply{}, err
	}
	use, limits := s.Sandboxes.KeyUse(c.key.ID), c.key.Limits
	v := quotaView{
		Limit: quotaLimitView{
			ConcurrentInstances: limits.Running, ConcurrentRAMMB: limits.MemoryMiB, DiskMB: limits.DiskMiB,
			MaxLengthHours: s.MaxTimeout.Hours(), MaxRAMMB: limits.MemoryMiB,
		},
		Usage: quotaUsageView{ConcurrentInstances: use.Running, ConcurrentRAMMB: use.MemoryMiB},
	}
	for _, sb := range all.Sandboxes {
		v.Usage.ConcurrentVCPU += sb.Config.Limits.VCPUs()
	}
	return reply{Status: http.StatusOK, Body: v}, nil
}

// eventItem is an event as Novita's clients read it. All events are of what was
// done, so that each is a success.
type eventItem struct {
	EventID      string `json:"eventID"`
	RecordAt     int64  `json:"recordAt"` // Unix seconds
	TemplateID   string `json:"templateID"`
	TemplateName string `json:"templateName"`
	SandboxID    string `json:"sandboxID"`
	EventName    string `json:"eventName"`
	State        string `json:"state"`
	ErrorMessage string `json:"errorMsg"`
	StatusCode   int    `json:"statusCode"`
}

const eventSuccess = "success"

type eventPage struct {
	Items   []eventItem `json:"items"`
	Total   int         `json:"total"`
	HasMore bool        `json:"hasMore"`
}

// pageQuery is what a page of events is asked for.
type pageQuery struct {
	eventQuery
	sandbox, template string // empty for all
	state             string
	labels            []string  // create, pause and so on; empty for all
	from, to          time.Time // whole seconds; zero bounds nothing
}

func parsePageQuery(params url.Values) (q pageQuery, err error) {
	common := url.Values{}
	for _, name := range []string{"offset", "limit", "orderAsc"} {
		common.Set(name, strings.ToLower(params.Get(name))) // Python sends True
	}
	if q.eventQuery, err = parseEventQuery(common); err != nil {
		return q, err
	}
	q.template, q.state = params.Get("templateID"), params.Get("state")
	if id := params.Get("sandboxID"); id != "" {
		if q.sandbox, err = parseSandboxID(id); err != nil {
			return q, err
		}
	}
	for label := range strings.SplitSeq(params.Get("events"), ",") {
		if label != "" {
			q.labels = append(q.labels, label)
		}
	}
	if q.from, err = parseSeconds(params, "startTime"); err != nil {
		return q, err
	}
	q.to, err = parseSeconds(params, "endTime")
	return q, err
}

// asks reports whether a page has an event, as far as the event itself tells.
func (q pageQuery) asks(e store.Event, kind string) bool {
	return !e.At.Before(q.from) && (q.to.IsZero() || e.At.Unix() <= q.to.Unix()) &&
		(len(q.labels) == 0 || slices.Contains(q.labels, eventLabels[kind])) &&
		(q.state == "" || q.state == eventSuccess)
}

// asksTemplate reports whether a page has events of a sandbox that may be unknown.
func (q pageQuery) asksTemplate(sb store.Sandbox) bool {
	return q.template == "" || sb.Config.IsOf(q.template)
}

// eventsInPage answers with a page of the events that a time, a sandbox, a template
// and names pick out, and how many there are.
func eventsInPage(s *server, c *call) (reply, error) {
	q, err := parsePageQuery(c.query)
	if err != nil {
		return reply{}, err
	}
	page := eventPage{Items: []eventItem{}}
	err = walkEvents(c.r.Context(), s.Sandboxes, q.sandbox, q.ascending, func(e store.Event, kind string) (bool, error) {
		if !q.asks(e, kind) {
			return true, nil
		}
		sb, err := s.Sandboxes.Find(c.r.Context(), e.Sandbox)
		if err != nil && !errdef.Is(err, errdef.NotFound) {
			return false, err
		}
		if !q.asksTemplate(sb) {
			return true, nil
		}
		if page.Total++; page.Total > q.offset && len(page.Items) < q.limit {
			page.Items = append(page.Items, eventItem{
				EventID: eventID(e.Sandbox, e.Seq), RecordAt: e.At.Unix(), TemplateID: sb.Config.TemplateID(), TemplateName: sb.Config.TemplateName(),
				SandboxID: e.Sandbox, EventName: eventLabels[kind], State: eventSuccess, StatusCode: http.StatusOK,
			})
		}
		return page.Total < maxEventOffset, nil
	})
	page.HasMore = page.Total > q.offset+len(page.Items)
	return reply{Status: http.StatusOK, Body: page}, err
}
