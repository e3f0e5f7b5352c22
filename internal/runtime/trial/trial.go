// Package trial starts a sandbox of the machine's own to learn whether it can:
// nothing else tells.
package trial

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Timeout bounds a trial. A machine that takes longer serves nobody in time.
const Timeout = 2 * time.Minute

// Run mounts trees where spec says, starts a runtime over them, waits for its
// agent, and removes all of it.
func Run(ctx context.Context, driver runtime.Driver, layers *layer.Store, trees []layer.Tree, spec runtime.Spec) (err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx), driver, layers, spec)) }()
	if err := layers.Mount(spec.Rootfs, trees, nil, spec.ID); err != nil {
		return err
	}
	inst, err := driver.Start(ctx, spec)
	if err != nil {
		return err
	}
	return awaitAgent(ctx, inst)
}

// awaitAgent returns when the agent of a runtime accepts connections.
func awaitAgent(ctx context.Context, inst runtime.Instance) error {
	conn, err := runtime.DialPatiently(ctx, inst, agentapi.Port)
	switch {
	case err == nil:
		return conn.Close()
	case ctx.Err() != nil:
		return fmt.Errorf("the trial sandbox did not answer within %s: %w", Timeout, ctx.Err())
	case errors.Is(err, runtime.ErrExited):
		return errors.New("the trial sandbox ended by itself")
	}
	return err
}

// end removes what there is of a trial. Each goes after what uses it is gone.
func end(ctx context.Context, driver runtime.Driver, layers *layer.Store, spec runtime.Spec) error {
	if err := driver.Remove(ctx, spec.ID); err != nil {
		return err
	}
	if err := layer.Unmount(spec.Rootfs); err != nil {
		return err
	}
	return layers.RemoveLayer(spec.ID)
}
