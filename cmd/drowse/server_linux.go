package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/drowse-dev/drowse/internal/cli"
	"github.com/drowse-dev/drowse/internal/edge"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime/drivers"
	"github.com/drowse-dev/drowse/internal/serve"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// handover becomes the runtime if this process was started as such.
func handover() {
	if len(os.Args) > 1 && os.Args[1] == "runsc" {
		os.Args = os.Args[1:] // gVisor's own tool, to compare with
	}
	drivers.Handover()
}

// addServer gives the command line what runs on the machine of a server.
func addServer(o *cli.Options) {
	o.Serve, o.Doctor = serveOn(os.Stdout, os.Stderr), serve.Doctor
	o.Fsck = func(ctx context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
		return serve.Fsck(ctx, w, serve.UpkeepOptions(o))
	}
	o.GC = func(ctx context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
		return serve.GC(ctx, w, serve.UpkeepOptions(o))
	}
}

// serveOn returns what runs a server that tells a person what to know on
// notices and logs to log.
func serveOn(notices, log io.Writer) func(context.Context, cli.ServeOptions) error {
	return func(ctx context.Context, o cli.ServeOptions) error {
		logger, err := newLogger(log, o.LogFormat, o.LogLevel)
		if err != nil {
			return err
		}
		return serve.Run(ctx, serve.Options{
			Listen:     o.Listen,
			Domain:     o.Domain,
			StateDir:   o.StateDir,
			APIKey:     o.APIKey,
			MaxTimeout: o.MaxTimeout,
			Defaults: supervisor.Defaults{
				OnTimeout: lifecycle.Action(o.DefaultOnTimeout), IdleTimeout: o.DefaultIdleTimeout, OnIdle: lifecycle.Action(o.DefaultOnIdle),
				AutoResume: o.DefaultAutoResume, RefreshOnActivity: o.DefaultRefresh, FilesystemFallback: o.DefaultFallback,
				MaxLifetime: o.DefaultMaxLifetime, PausedRetention: o.DefaultRetention, CheckpointEvery: o.DefaultCheckpointEvery,
				StallAfter: o.StallAfter,
			},
			DefaultTimeout:  o.DefaultTimeout,
			WakeTimeout:     o.WakeTimeout,
			Drain:           o.Drain,
			WakeQueue:       o.WakeQueue,
			MaxRunning:      o.MaxRunning,
			EarlyWakeMiB:    o.EarlyWakeMiB,
			SSHListen:       o.SSHListen,
			WarmRuntimes:    o.WarmRuntimes,
			DiskReadMiB:     o.DiskReadMiB,
			DiskWriteMiB:    o.DiskWriteMiB,
			ShareOpt:        o.ShareOpt,
			Trial:           o.Trial,
			VolumeDiskMiB:   o.VolumeDiskMiB,
			DNS:             o.DNS.AddrPort,
			PauseOnShutdown: o.OnShutdown == "pause",
			ShutdownTimeout: o.ShutdownTimeout,
			TLSCert:         o.TLSCert,
			TLSKey:          o.TLSKey,
			AccessLog:       o.AccessLog,
			Limits:          edge.Limits{PerClient: o.MaxClientConnections, PerSandbox: o.MaxSandboxRequests, IdleStream: o.IdleStream},
			Log:             logger,
			Notices:         notices,
		})
	}
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	o := &slog.HandlerOptions{Level: least, ReplaceAttr: shortened}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}

// maxLogValue is how many bytes of one value the log has: some are what clients
// and guests have sent. A stack of our own is as long as it is.
const maxLogValue = 2048

func shortened(_ []string, a slog.Attr) slog.Attr {
	if a.Key == "stack" {
		return a
	}
	switch a.Value.Kind() {
	case slog.KindString:
	case slog.KindAny:
		if _, ok := a.Value.Any().(error); !ok {
			return a
		}
	default:
		return a
	}
	if text := a.Value.String(); len(text) > maxLogValue {
		a.Value = slog.StringValue(strings.ToValidUTF8(text[:maxLogValue], "") + fmt.Sprintf("... (%d bytes)", len(text)))
	}
	return a
}
