package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager of a change of state (sd_notify(3)). Without
// one it does nothing.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("service manager not told", "state", state, "err", err)
	}
}

// watch tells the service manager that the server is well, twice in the time
// after which that would restart it, and as long as check finds it so.
func watch(ctx context.Context, log *slog.Logger, check func(context.Context) error) {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("no watchdog", "err", err)
	}
	if within <= 0 {
		return
	}
	tick := time.NewTicker(within / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := checkWithin(ctx, within, check); err != nil {
			log.Error("the server is not well; the service manager is not told otherwise", "err", err)
			continue
		}
		notify(log, daemon.SdNotifyWatchdog)
	}
}

func checkWithin(ctx context.Context, d time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return check(ctx)
}
