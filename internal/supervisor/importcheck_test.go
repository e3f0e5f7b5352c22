package supervisor

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestImportChecksEveryText gives an import what no create stores, one text after
// the other.
func TestImportChecksEveryText(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	file := exportOf(t, first, from.asleep(first, CreateRequest{}))
	for name, change := range map[string]func(*bundle.Manifest){
		"host mask":      func(m *bundle.Manifest) { m.Config.HostMask = "a\r\nX-Injected: yes" },
		"long mask":      func(m *bundle.Manifest) { m.Config.HostMask = strings.Repeat("a", 256) },
		"token":          func(m *bundle.Manifest) { m.AgentToken = "x\r\nX-Injected: yes" },
		"long token":     func(m *bundle.Manifest) { m.AgentToken = strings.Repeat("a", 5000) },
		"metadata":       func(m *bundle.Manifest) { m.Config.Metadata = map[string]string{"a": "\x00"} },
		"long metadata":  func(m *bundle.Manifest) { m.Config.Metadata = map[string]string{"a": strings.Repeat("x", 1<<20)} },
		"variable":       func(m *bundle.Manifest) { m.Config.Env = map[string]string{"LD_PRELOAD=/x\x00A": "b"} },
		"empty variable": func(m *bundle.Manifest) { m.Config.Env = map[string]string{"": "b"} },
		"allowed name":   func(m *bundle.Manifest) { m.Config.AllowOut = []string{"a\nb"} },
		"denied network": func(m *bundle.Manifest) { m.Config.DenyOut = []string{"1.2.3.4/99"} },
		"port":           func(m *bundle.Manifest) { m.Config.HTTPSPorts = []int{70_000} },
		"port rule":      func(m *bundle.Manifest) { m.Config.Ports = store.Ports{strings.Repeat("8", 1000): ""} },
		"hook":           func(m *bundle.Manifest) { m.Config.Hooks.PrePause.Command = "true\x00" },
		"hook's time":    func(m *bundle.Manifest) { m.Config.Hooks.PrePause.Budget = -time.Second },
		"creation":       func(m *bundle.Manifest) { m.CreatedAt = time.Time{} },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := second.Import(t.Context(), bytes.NewReader(rewritten(t, file, change)), ImportRequest{})
			wantCode(t, err, "import_damaged")
			to.wantNothingLeft()
		})
	}
	if _, err := second.Import(t.Context(), bytes.NewReader(rewritten(t, file, func(m *bundle.Manifest) {
		m.Config.Metadata = map[string]string{"ünï": "códe\n", "": ""}
		m.Config.Env = map[string]string{"PATH": "/bin"}
		m.Config.HostMask = "localhost:${PORT}"
	})), ImportRequest{}); err != nil {
		t.Errorf("what a create stores: %v", err)
	}
}
