// Package agentbin carries the program that runs inside every sandbox. The
// build puts it into bin/ before this package is compiled.
package agentbin

import (
	"embed"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// bin also holds a file that is always there, so that the package compiles,
// for vetting and for tests that need no sandbox, before the agent is built.
//
//go:embed bin
var bin embed.FS

// Program returns the agent's executable.
func Program() ([]byte, error) {
	data, err := bin.ReadFile("bin/drowse-agent")
	if err != nil {
		return nil, errdef.New(errdef.Internal, "no_agent", "this binary was built without the agent").
			WithRemedy("build it with: make build")
	}
	return data, nil
}
