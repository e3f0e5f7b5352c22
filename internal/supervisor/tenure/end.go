package tenure

import (
	"context"
	"errors"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// atOnce is how many runtimes are ended at a time.
const atOnce = 8

// End destroys all runtimes of a state directory on this machine, with their mounts in
// mounts, and nothing else of the sandboxes: another process has them now.
func End(ctx context.Context, runtimes sweep.Runtimes, mounts string) error {
	ids, err := runtimes.List(ctx)
	errs := make([]error, len(ids))
	var work errgroup.Group
	work.SetLimit(atOnce)
	for i, id := range ids {
		work.Go(func() error {
			errs[i] = errors.Join(runtimes.Remove(ctx, id), layer.Unmount(filepath.Join(mounts, id)))
			return nil
		})
	}
	_ = work.Wait() // each error is in errs
	return errors.Join(err, errors.Join(errs...))
}
