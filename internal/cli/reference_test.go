package cli

import (
	"bytes"
	"os"
	"testing"

	"github.com/spf13/cobra"
)

func TestReferenceIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../docs/cli.md")
	if err != nil || !bytes.Equal(got, Reference()) {
		t.Errorf("docs/cli.md is not what the commands say (%v): run go generate ./internal/cli", err)
	}
}

// TestEveryCommandSaysWhatItIs: help, reference and groups have no gaps.
func TestEveryCommandSaysWhatItIs(t *testing.T) {
	text := string(Reference())
	for _, cmd := range (&app{}).root().Commands() {
		if cmd.Short == "" || cmd.GroupID == "" || cmd.RunE == nil || !bytes.Contains([]byte(text), []byte("### "+cmd.CommandPath()+"\n")) {
			t.Errorf("%s: short %q, group %q", cmd.Name(), cmd.Short, cmd.GroupID)
		}
		if _, err := os.Stat("testdata/" + script(cmd)); err != nil {
			t.Errorf("%s has no script test: %v", cmd.Name(), err)
		}
	}
}

// script names the script that tests a command.
func script(cmd *cobra.Command) string {
	switch name := cmd.Name(); name {
	case "pause", "resume":
		return "pause_resume.txt"
	case "serve", "doctor", "version":
		return "server.txt"
	default:
		return name + ".txt"
	}
}
