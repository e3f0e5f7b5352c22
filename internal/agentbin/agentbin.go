// Package agentbin carries the program that runs inside every sandbox. The
// build puts it into bin/, compressed, before this package is compiled.
package agentbin

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"embed"
	"fmt"
	"runtime"

	"github.com/klauspost/compress/zstd"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// bin also holds a file that is always there, so that the package compiles,
// for vetting and for tests that need no sandbox, before the agent is built.
//
//go:embed bin
var bin embed.FS

// Program returns the agent's executable.
func Program() ([]byte, error) {
	packed, err := packed()
	if err != nil {
		return nil, err
	}
	return unpack(packed, runtime.GOARCH)
}

// Sum returns a digest that tells this agent from any other. It does not unpack the
// agent, which takes ten times as long.
func Sum() (string, error) {
	packed, err := packed()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(packed)), nil
}

func packed() ([]byte, error) {
	data, err := bin.ReadFile("bin/drowse-agent.zst")
	if err != nil {
		return nil, errdef.New(errdef.Internal, "no_agent", "this binary was built without the agent").
			WithRemedy("build it with: make build")
	}
	return data, nil
}

// unpack returns the agent, which must be one for this architecture.
func unpack(packed []byte, arch string) ([]byte, error) {
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	agent, err := r.DecodeAll(packed, nil)
	if err != nil {
		return nil, errdef.New(errdef.Internal, "no_agent", "this binary was built with an agent that cannot be unpacked: %w", err).
			WithRemedy("build it with: make build")
	}
	return agent, check(agent, arch)
}

// machines are the architectures by their numbers in ELF.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// check refuses an agent of another architecture, which a build for that has
// left there.
func check(agent []byte, arch string) error {
	f, err := elf.NewFile(bytes.NewReader(agent))
	if err != nil {
		return errdef.New(errdef.Internal, "no_agent", "this binary was built with an agent that is no program: %w", err).
			WithRemedy("build it with: make build")
	}
	if f.Machine != machines[arch] {
		return errdef.New(errdef.Internal, "no_agent", "this binary is for %s, but was built with an agent for %s", arch, f.Machine).
			WithRemedy("build it with: make build")
	}
	return nil
}
