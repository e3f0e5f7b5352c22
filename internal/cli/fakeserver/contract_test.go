package fakeserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/contract"
)

// dialects is the server with what its own API has no use for.
type dialects struct {
	backend
	diary
}

func (d dialects) List(ctx context.Context) ([]store.Sandbox, error) {
	defer d.backend.s.leave()
	return d.backend.s.enter().List(ctx)
}

func (d dialects) Made(ctx context.Context, as store.Config) (store.Sandbox, bool, error) {
	defer d.backend.s.leave()
	sb, made, err := d.backend.s.enter().Made(ctx, as)
	sb, err = d.shown(sb, err)
	return sb, made, err
}

func (d dialects) Resume(ctx context.Context, id string, q supervisor.WakeRequest) (store.Sandbox, error) {
	defer d.backend.s.leave()
	return d.shown(d.backend.s.enter().Resume(ctx, d.backend.s.inner(id), q))
}

func (d dialects) Refresh(ctx context.Context, id string, timeout time.Duration, actor string) (store.Sandbox, error) {
	defer d.backend.s.leave()
	return d.shown(d.backend.s.enter().Refresh(ctx, d.backend.s.inner(id), timeout, actor))
}

// TestContract holds the fake server to what the command line relies on of a real
// one.
func TestContract(t *testing.T) {
	contract.Run(t, func(t *testing.T) contract.Server {
		s := New("key", t.TempDir())
		t.Cleanup(s.Close)
		return contract.Server{
			Supervisor: dialects{backend{s}, diary{s}}, Volumes: s.fake, Services: apitest.NewServices(backend{s}),
			Snapshots: snapshots{s, apitest.NewSnapshots(s.fake)}, Templates: apitest.NewTemplates(s.fake),
			Reach: func(_ context.Context, id string, port int, path string) error {
				if b, _ := s.acquire(id, port, path); b == nil {
					return errors.New("nobody is there")
				}
				return nil
			},
		}
	})
}
