package contract

import (
	"context"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	supervised "github.com/drowse-dev/drowse/internal/supervisor/services"
)

// Services are what the agents of sandboxes supervise.
type Services interface {
	Services(ctx context.Context, id string) ([]supervised.Serving, error)
	Service(ctx context.Context, id, name string) (supervised.Serving, error)
	SetServices(ctx context.Context, id string, list []service.Service, actor string) error
	SetService(ctx context.Context, id string, s service.Service, actor string) error
	RemoveService(ctx context.Context, id, name, actor string) error
	RestartService(ctx context.Context, id, name string) error
}

func serving(name, command string) service.Service {
	return service.Service{Name: name, Shell: command}.WithDefaults()
}

func services(w world) {
	ctx, s := w.t.Context(), w.s.Services
	has := func(id string, want ...service.Service) {
		w.t.Helper()
		list, err := s.Services(ctx, id)
		w.ok("list", err)
		stored := w.find(id).Config.Services
		for i, one := range want {
			if len(list) != len(want) || list[i].Name != one.Name || list[i].Shell != one.Shell || len(stored) != len(want) || stored[i].Name != one.Name {
				w.t.Errorf("it has %+v, stored as %+v, want %+v", list, stored, want)
			}
		}
	}
	web, db, other := serving("web", "serve"), serving("db", "store"), serving("web", "other")
	for _, id := range []string{w.create().ID, w.paused().ID} {
		was := w.find(id).Record.State
		w.ok("set all", s.SetServices(ctx, id, []service.Service{web, db}, "setter"))
		if last := w.last(id); last.Type != lifecycle.EntryUpdated || last.Actor != "setter" {
			w.t.Errorf("the last event is %+v", last)
		}
		has(id, web, db)
		w.ok("replace", s.SetService(ctx, id, other, "test"))
		has(id, other, db)
		w.refused("two of a name", s.SetServices(ctx, id, []service.Service{web, other}, "test"), errdef.Invalid, "service_invalid")
		if one, err := s.Service(ctx, id, "web"); err != nil || one.Shell != "other" {
			w.t.Errorf("the service is %+v, %v", one, err)
		}
		_, err := s.Service(ctx, id, "none")
		w.refused("unknown", err, errdef.NotFound, "service_not_found")
		w.refused("remove unknown", s.RemoveService(ctx, id, "none", "test"), errdef.NotFound, "service_not_found")
		w.refused("restart unknown", s.RestartService(ctx, id, "none"), errdef.NotFound, "service_not_found")
		w.ok("remove", s.RemoveService(ctx, id, "web", "test"))
		has(id, db)
		w.is(id, was, 1)
		if was == lifecycle.Paused {
			w.refused("restart in one that sleeps", s.RestartService(ctx, id, "db"), errdef.WrongState, "not_running")
		}
		w.ok("kill", w.s.Kill(ctx, id, "test"))
		if err := s.SetService(ctx, id, web, "test"); !errdef.Is(err, errdef.NotFound) {
			w.t.Errorf("set after its end: %v", describe(err))
		}
	}
	w.refused("of no sandbox", s.SetService(ctx, "i00000000000000000009", web, "test"), errdef.NotFound, "sandbox_not_found")
}
