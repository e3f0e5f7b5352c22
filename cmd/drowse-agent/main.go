// Command drowse-agent is PID 1 of a sandbox. Under the names sudo and sudoedit,
// set-uid, it is the sandbox's sudo; under the name drowse-hold, what keeps it awake;
// under the name drowse-name, what gives a fork its host name; with an argument, what
// serves an SSH client inside.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/drowse-dev/drowse/internal/agent"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

func init() {
	if os.Getpid() == 1 {
		agent.BeFirst()
	}
}

func main() {
	switch filepath.Base(os.Args[0]) {
	case "sudo":
		os.Exit(agent.Sudo(os.Args[1:]))
	case "sudoedit":
		os.Exit(agent.Sudo(append([]string{"-e"}, os.Args[1:]...)))
	case "drowse-hold":
		os.Exit(agent.Hold(os.Args[1:]))
	case agentapi.NameProgram:
		os.Exit(agent.Name(os.Args[1:]))
	}
	if len(os.Args) > 1 {
		os.Exit(agent.Tool(os.Args[1:]))
	}
	// The agent's memory is in every checkpoint of the sandbox.
	debug.SetGCPercent(50)
	if err := agent.Main(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "drowse-agent:", err)
		os.Exit(1)
	}
}
