// Command edgeserver is drowse's edge and supervisor over a runtime that is
// fake but for this: every user port of every sandbox is one TCP server
// outside. So the edge can be measured beside other proxies in front of the
// same server.
//
// It prints the id of a sandbox that runs, and of one that sleeps and takes a
// second to wake.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "the `address` to serve on")
	upstream := flag.String("upstream", "", "the `address` of the server that all sandboxes have")
	sandboxes := flag.Int("sandboxes", 0, "how many sleeping sandboxes there are beside")
	dir := flag.String("dir", "", "an empty `directory` for the state")
	flag.Parse()
	if err := run(context.Background(), *listen, *upstream, *dir, *sandboxes); err != nil {
		fmt.Fprintln(os.Stderr, "edgeserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, upstream, dir string, sandboxes int) error {
	st := memstore.Open(memstore.NewData(), memstore.Hooks{})
	for i := range sandboxes {
		if err := st.Commit(ctx, asleep(fmt.Sprintf("i%020d", i)), nil); err != nil {
			return err
		}
	}
	sup, err := supervise(ctx, st, dir, upstream)
	if err != nil {
		return err
	}
	running, err := create(ctx, sup)
	if err != nil {
		return err
	}
	sleeper, err := create(ctx, sup)
	if err != nil {
		return err
	}
	if err := sup.Pause(ctx, sleeper, supervisor.PauseRequest{}); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println(running, sleeper)
	return edge.NewServer(edge.Options{Sandboxes: sup, Control: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)}).Serve(ln)
}

// asleep is a sandbox that sleeps for ever.
func asleep(id string) store.Sandbox {
	now := time.Now().UTC()
	return store.Sandbox{ID: id, Config: store.Config{Template: "base"}, Record: lifecycle.Record{
		State: lifecycle.Paused, Generation: 1, Launch: 1, Launches: 1, CreatedAt: now, StartedAt: now, PausedAt: now,
		Checkpoint: &lifecycle.Checkpoint{ID: "c" + id, Mode: lifecycle.Filesystem},
	}}
}

func create(ctx context.Context, sup *supervisor.Supervisor) (string, error) {
	sb, err := sup.Create(ctx, supervisor.CreateRequest{Template: "base", Settings: lifecycle.Settings{
		Timeout: 24 * time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true, IdleTimeout: time.Hour, StallAfter: 30 * time.Minute,
	}})
	return sb.ID, err
}

func supervise(ctx context.Context, st store.Store, dir, upstream string) (*supervisor.Supervisor, error) {
	base := filepath.Join(dir, "templates", "base")
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700); err != nil {
		return nil, err
	}
	layers, err := layer.Open(dir)
	if err != nil {
		return nil, err
	}
	templates, err := template.Open(filepath.Join(dir, "templates"))
	if err != nil {
		return nil, err
	}
	volumes, err := volume.Open(filepath.Join(dir, "volumes"), os.Getuid())
	if err != nil {
		return nil, err
	}
	machine := fake.NewMachine(func(runtime.Spec, []byte) (fake.Program, error) { return agent{}, nil })
	sup, err := supervisor.New(ctx, supervisor.Options{
		Store: st, Layers: layers, Templates: templates, Volumes: volumes, Driver: driver{machine.Driver(), upstream}, RunDir: filepath.Join(dir, "rootfs"),
		Log: slog.New(slog.DiscardHandler), WakeTimeout: 30 * time.Second, WakeQueue: 4096,
	})
	if err != nil {
		return nil, err
	}
	// Only now, or it would be taken for an old build of itself.
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	return sup, os.WriteFile(filepath.Join(base, "template.json"), []byte(`{"id":"base"}`), 0o600)
}

// agent is what runs in the fake sandboxes.
type agent struct{}

// Serves implements fake.Program.
func (agent) Serves(int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == agentapi.PathActivity {
			_ = json.NewEncoder(w).Encode(agentapi.Activity{Now: time.Now()})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// Image implements fake.Program.
func (agent) Image() ([]byte, error) { return nil, nil }

// driver is the fake one, with user ports that are real.
type driver struct {
	*fake.Driver
	upstream string
}

// Start implements runtime.Driver.
func (d driver) Start(ctx context.Context, spec runtime.Spec) (runtime.Instance, error) {
	i, err := d.Driver.Start(ctx, spec)
	return instance{i, d.upstream}, err
}

// wakeTime is what a wake takes.
const wakeTime = time.Second

// Restore implements runtime.Driver.
func (d driver) Restore(ctx context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	time.Sleep(wakeTime)
	i, err := d.Driver.Restore(ctx, spec, image)
	return instance{i, d.upstream}, err
}

type instance struct {
	runtime.Instance
	upstream string
}

// Dial implements runtime.Instance.
func (i instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port == agentapi.Port || port == agentapi.TunnelPort {
		return i.Instance.Dial(ctx, port)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", i.upstream)
}
