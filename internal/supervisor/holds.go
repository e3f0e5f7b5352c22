package supervisor

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// Hold counts the sandbox as busy until l.Until at the latest. A lease with a
// known id is replaced.
func (s *Supervisor) Hold(ctx context.Context, id string, l lifecycle.Lease, actor string) (lifecycle.Lease, error) {
	if l.ID == "" {
		l.ID = "hold" + ids.NewOp()
	}
	if err := fields.CheckHold(l); err != nil {
		return lifecycle.Lease{}, err
	}
	sb, err := s.adjust(ctx, id, lifecycle.LeaseRequested{Meta: call("", actor), Lease: l})
	if err != nil {
		return lifecycle.Lease{}, err
	}
	i := slices.IndexFunc(sb.Record.Leases, func(x lifecycle.Lease) bool { return x.ID == l.ID })
	return sb.Record.Leases[i], nil
}

// ReleaseHold ends a lease before its time.
func (s *Supervisor) ReleaseHold(ctx context.Context, id, hold, actor string) error {
	_, err := s.adjust(ctx, id, lifecycle.LeaseReleased{Meta: call("", actor), ID: hold})
	return err
}
