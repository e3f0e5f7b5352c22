package snapshots

import (
	"slices"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestConfigureEntrances: the entrances of a snapshot follow the services that are
// asked for, and those that are asked for replace them.
func TestConfigureEntrances(t *testing.T) {
	entrance := func(name string, port int, by service.Runtime) service.Entrance {
		return service.Entrance{Name: name, Port: port, Runtime: by, Public: true}
	}
	serving := func(name string, port int) service.Service {
		s := service.Service{Name: name, Shell: "serve"}.WithDefaults()
		s.Port = port
		return s
	}
	snap := store.Snapshot{
		ID: "s1", Checkpoint: lifecycle.Checkpoint{Mode: lifecycle.Filesystem},
		Config: store.Config{
			Services:  []service.Service{serving("web", 8000), serving("old", 8001)},
			Entrances: []service.Entrance{entrance("web", 8000, service.Command), entrance("old", 8001, service.Command), entrance("hand", 9000, service.Manual)},
		},
	}
	for about, c := range map[string]struct {
		asked store.Config
		want  []service.Entrance
	}{
		"nothing":          {store.Config{}, snap.Config.Entrances},
		"services":         {store.Config{Services: []service.Service{serving("web", 8080)}}, []service.Entrance{entrance("web", 8080, service.Command), entrance("hand", 9000, service.Manual)}},
		"no services":      {store.Config{Services: []service.Service{}}, []service.Entrance{entrance("hand", 9000, service.Manual)}},
		"entrances":        {store.Config{Services: []service.Service{}, Entrances: []service.Entrance{entrance("mine", 1000, service.Manual)}}, []service.Entrance{entrance("mine", 1000, service.Manual)}},
		"none of either":   {store.Config{Services: []service.Service{}, Entrances: []service.Entrance{}}, nil},
		"none, and others": {store.Config{Services: []service.Service{serving("web", 8000)}, Entrances: []service.Entrance{}}, nil},
	} {
		got, err := Configure(snap, c.asked)
		same := func(a, b service.Entrance) bool {
			return a.Name == b.Name && a.Port == b.Port && a.Runtime == b.Runtime
		}
		if err != nil || !slices.EqualFunc(got.Entrances, c.want, same) {
			t.Errorf("%s asked for: %+v, %v; want %+v", about, got.Entrances, err, c.want)
		}
	}
}
