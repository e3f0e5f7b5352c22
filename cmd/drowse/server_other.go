//go:build !linux

package main

import "github.com/drowse-dev/drowse/internal/cli"

func handover() {}

// addServer adds nothing: commands that need a server's machine say that this
// build has none.
func addServer(*cli.Options) {}
