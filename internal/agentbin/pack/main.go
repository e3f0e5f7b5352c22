// Command pack compresses the agent for [agentbin]. It leaves OUT alone if OUT has
// these bytes already, so that what embeds it need not be built again:
//
//	go run ./internal/agentbin/pack AGENT OUT
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack AGENT OUT")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(agent, out string) error {
	program, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	// One at a time: the same bytes on every machine.
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	packed := w.EncodeAll(program, nil)
	if have, err := os.ReadFile(out); err == nil && bytes.Equal(have, packed) {
		return nil
	}
	return os.WriteFile(out, packed, 0o644)
}
