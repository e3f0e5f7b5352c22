// Command drowse runs sandboxes that sleep when idle and wake on the first
// request: it is the server, the command line and, because gVisor is linked in
// and starts itself again for every sandbox, the runtime. Where the server does
// not run, on systems other than Linux, it is the command line alone.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/drowse-dev/drowse/internal/cli"
)

func main() {
	handover()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends the process at once

	// A reader of our output that goes away is an error to handle, not the end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	o := cli.Options{
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		Getenv:     os.Getenv,
		Executable: executable,
	}
	addServer(&o)
	return cli.Main(ctx, args, o)
}

// stopSignals are those that end a command in order, except what whoever
// started it, such as nohup, wants ignored.
func stopSignals() []os.Signal {
	stop := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			stop = append(stop, s)
		}
	}
	return stop
}
