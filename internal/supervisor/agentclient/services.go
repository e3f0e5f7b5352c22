package agentclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/service"
)

// Services asks how the services are, and what has happened since an event. The
// times are by the guest's clock.
func (a Agent) Services(ctx context.Context, after int64) (service.Report, error) {
	var said servicesAnswer
	err := a.call(ctx, http.MethodGet, agentapi.PathServices+"?"+url.Values{agentapi.ParamAfter: {strconv.FormatInt(after, 10)}}.Encode(), nil, &said)
	return said.report(), err
}

// Serve makes a list all services that run.
func (a Agent) Serve(ctx context.Context, list []service.Service) error {
	if list == nil {
		list = []service.Service{}
	}
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return a.call(ctx, http.MethodPost, agentapi.PathServices, body, nil)
}

// RestartService ends what runs of a service, and starts it at once.
func (a Agent) RestartService(ctx context.Context, name string) error {
	return a.call(ctx, http.MethodPost, agentapi.PathServiceRestart+"?"+url.Values{agentapi.ParamService: {name}}.Encode(), nil, nil)
}

// AwaitService returns how a service is once it is ready, or is known not to be
// soon. It waits until ctx ends.
func (a Agent) AwaitService(ctx context.Context, name string) (service.Status, error) {
	var said service.Status
	err := a.call(ctx, http.MethodGet, agentapi.PathServiceReady+"?"+url.Values{agentapi.ParamService: {name}}.Encode(), nil, &said)
	return cleanStatus(said), err
}

// ServiceLog asks for the lines that a service has written after one of them, no
// more than most of the last.
func (a Agent) ServiceLog(ctx context.Context, name string, after int64, most int) ([]service.Line, error) {
	var said linesAnswer
	query := url.Values{agentapi.ParamService: {name}, agentapi.ParamAfter: {strconv.FormatInt(after, 10)}, agentapi.ParamLines: {strconv.Itoa(most)}}
	err := a.call(ctx, http.MethodGet, agentapi.PathServiceLog+"?"+query.Encode(), nil, &said)
	return said.list(most), err
}

// servicesAnswer is service.Report as a hostile agent may send it: with no more in
// it than a true one has.
type servicesAnswer struct {
	Now      time.Time                         `json:"now"`
	Services [service.Most]*service.Status     `json:"services"`
	Events   [service.MaxEvents]*service.Event `json:"events"`
	Life     string                            `json:"life"`
}

// report returns what was said, fit to be kept and shown.
func (a *servicesAnswer) report() service.Report {
	r := service.Report{Now: a.Now, Life: human.Line(a.Life, service.MaxName)}
	for _, s := range a.Services {
		if s != nil {
			r.Services = append(r.Services, cleanStatus(*s))
		}
	}
	for _, e := range a.Events {
		if e != nil {
			e.Service, e.Detail = human.Line(e.Service, service.MaxName), human.Line(e.Detail, service.MaxDetail)
			e.Type = service.EventType(human.Line(string(e.Type), service.MaxName))
			r.Events = append(r.Events, *e)
		}
	}
	return r
}

func cleanStatus(s service.Status) service.Status {
	s.Name, s.State = human.Line(s.Name, service.MaxName), service.State(human.Line(string(s.State), service.MaxName))
	s.LastEnd, s.WaitsFor = human.Line(s.LastEnd, service.MaxDetail), human.Line(s.WaitsFor, service.MaxDetail)
	s.PID, s.Starts, s.Failures = max(s.PID, 0), max(s.Starts, 0), max(s.Failures, 0)
	return s
}

// linesAnswer is service.Lines, likewise.
type linesAnswer struct {
	Lines [service.MaxLines]*service.Line `json:"lines"`
}

func (a *linesAnswer) list(most int) []service.Line {
	var list []service.Line
	for _, l := range a.Lines {
		if l != nil && len(list) < most {
			l.Text = human.Line(l.Text, service.MaxLine)
			list = append(list, *l)
		}
	}
	return list
}

// StatusError is an answer of an agent that is no success.
type StatusError struct {
	Path string
	Code int
}

// Error implements error.
func (e *StatusError) Error() string { return fmt.Sprintf("%s: the agent answered %d", e.Path, e.Code) }
