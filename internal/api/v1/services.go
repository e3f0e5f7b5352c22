package v1

import (
	"context"
	"net/http"
	"strconv"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/supervisor/services"
)

// Services is the services of sandboxes. One that is unknown is an errdef.NotFound
// with code "service_not_found".
type Services interface {
	Services(ctx context.Context, id string) ([]services.Serving, error)
	Service(ctx context.Context, id, name string) (services.Serving, error)
	SetServices(ctx context.Context, id string, list []service.Service, actor string) error
	SetService(ctx context.Context, id string, s service.Service, actor string) error
	RemoveService(ctx context.Context, id, name, actor string) error
	RestartService(ctx context.Context, id, name string) error
	ServiceLog(ctx context.Context, id, name string, after int64, most int) ([]service.Line, error)
}

// serviceInfoView is a service and how it is.
type serviceInfoView struct {
	Service body.Service       `json:"service"`
	Status  *serviceStatusView `json:"status" doc:"How it is; null while the sandbox sleeps, or if its agent does not answer."`
}

type servicesView struct {
	Services []serviceInfoView `json:"services"`
}

type serviceStatusView struct {
	State     service.State      `json:"state" doc:"waiting: for the services that it starts after; starting: its process runs and is not ready yet; ready; backing-off: it has ended and is started again at nextAt; done: it has ended with success and is not started again; failed: it has ended without and is not started again; stopping."`
	Since     *httpapi.Timestamp `json:"since" doc:"Of the state."`
	PID       *int               `json:"pid"`
	Starts    int                `json:"starts" doc:"How often it was started since the sandbox booted."`
	Failures  int                `json:"failures" doc:"How often it has ended in a row. It is 0 again once it has been ready for 10 seconds."`
	StartedAt *httpapi.Timestamp `json:"startedAt"`
	ReadyAt   *httpapi.Timestamp `json:"readyAt"`
	NextAt    *httpapi.Timestamp `json:"nextAt" doc:"When it is started again."`
	LastEnd   *string            `json:"lastEnd" doc:"What it ended of last."`
	WaitsFor  *string            `json:"waitsFor"`
}

type lineView struct {
	Seq  int64             `json:"seq" doc:"From 1 since the sandbox booted."`
	At   httpapi.Timestamp `json:"at" doc:"By the sandbox's clock."`
	Text string            `json:"text" doc:"Without what a terminal would act on."`
}

type linesView struct {
	Lines []lineView `json:"lines"`
}

// viewService shows a service. Its variables are for those who may use the sandbox.
func viewService(c *call, s services.Serving) serviceInfoView {
	v := serviceInfoView{Service: body.ViewService(s.Service)}
	if !auth.May(c.key, auth.Use) {
		v.Service.Env = nil
	}
	if st := s.Status; st != nil {
		v.Status = &serviceStatusView{
			State: st.State, Since: timeOrNull(st.Since), PID: orNull(st.PID), Starts: st.Starts, Failures: st.Failures,
			StartedAt: timeOrNull(st.StartedAt), ReadyAt: timeOrNull(st.ReadyAt), NextAt: timeOrNull(st.NextAt),
			LastEnd: orNull(st.LastEnd), WaitsFor: orNull(st.WaitsFor),
		}
	}
	return v
}

func viewServices(c *call, list []services.Serving) []serviceInfoView {
	views := make([]serviceInfoView, len(list))
	for i, one := range list {
		views[i] = viewService(c, one)
	}
	return views
}

func listServices(s *server, c *call) (reply, error) {
	list, err := s.Services.Services(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	return ok(servicesView{viewServices(c, list)})
}

func getService(s *server, c *call) (reply, error) {
	one, err := s.Services.Service(c.r.Context(), c.sandbox, c.params[serviceParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewService(c, one))
}

func setServices(s *server, c *call) (reply, error) {
	if err := s.Services.SetServices(c.r.Context(), c.sandbox, c.words["services"].Value.([]service.Service), c.actor); err != nil {
		return reply{}, err
	}
	return listServices(s, c)
}

func setService(s *server, c *call) (reply, error) {
	name := c.params[serviceParam]
	if said, ok := c.words["name"]; ok && said.Value.(string) != name {
		return reply{}, body.Invalid("the path names service %q and the body %q", body.Short(name), body.Short(said.Value.(string))).
			WithRemedy("leave the name out of the body").With("field", "name")
	}
	one, err := body.ReadService(name, c.words)
	if err != nil {
		return reply{}, err
	}
	if err := s.Services.SetService(c.r.Context(), c.sandbox, one, c.actor); err != nil {
		return reply{}, err
	}
	return getService(s, c)
}

func removeService(s *server, c *call) (reply, error) {
	if err := s.Services.RemoveService(c.r.Context(), c.sandbox, c.params[serviceParam], c.actor); err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusNoContent}, nil
}

func restartService(s *server, c *call) (reply, error) {
	if err := s.Services.RestartService(c.r.Context(), c.sandbox, c.params[serviceParam]); err != nil {
		return reply{}, err
	}
	return getService(s, c)
}

func serviceLog(s *server, c *call) (reply, error) {
	query := c.r.URL.Query()
	after, most := int64(0), service.MaxLines
	if text := query.Get("after"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return reply{}, body.Invalid(`"after" is %q, which is no number of a line`, body.Short(text)).With("field", "after")
		}
		after = n
	}
	if text := query.Get("lines"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > service.MaxLines {
			return reply{}, body.Invalid(`"lines" is %q`, body.Short(text)).WithRemedy("use a number from 1 to %d", service.MaxLines).With("field", "lines")
		}
		most = n
	}
	list, err := s.Services.ServiceLog(c.r.Context(), c.sandbox, c.params[serviceParam], after, most)
	if err != nil {
		return reply{}, err
	}
	v := linesView{Lines: make([]lineView, len(list))}
	for i, l := range list {
		v.Lines[i] = lineView{Seq: l.Seq, At: httpapi.Timestamp(l.At), Text: l.Text}
	}
	return ok(v)
}
