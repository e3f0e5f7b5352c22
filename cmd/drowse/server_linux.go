package main

import (
	"context"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/drowse-dev/drowse/internal/cli"
	"github.com/drowse-dev/drowse/internal/runtime/drivers"
	"github.com/drowse-dev/drowse/internal/serve"
	"github.com/drowse-dev/drowse/internal/serve/settings"
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
	o.Serve, o.Doctor = serveOn(os.Stdout, os.Stderr, term.IsTerminal(int(os.Stdout.Fd()))), serve.Doctor
	o.Fsck = func(ctx context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
		return serve.Fsck(ctx, w, serve.UpkeepOptions(o))
	}
	o.Backup = func(ctx context.Context, w io.Writer, o cli.UpkeepOptions) error {
		return serve.Backup(ctx, w, serve.UpkeepOptions(o))
	}
	o.GC = func(ctx context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
		return serve.GC(ctx, w, serve.UpkeepOptions(o))
	}
}

// serveOn returns what runs a server that tells on notices, which a person may read,
// what to know, and logs to log.
func serveOn(notices, log io.Writer, person bool) func(context.Context, settings.Server) error {
	return func(ctx context.Context, o settings.Server) error {
		logger, err := serve.NewLogger(log, o.LogFormat, o.LogLevel)
		if err != nil {
			return err
		}
		return serve.Run(ctx, serve.Options{Server: o, Log: logger, Notices: notices, Person: person})
	}
}
