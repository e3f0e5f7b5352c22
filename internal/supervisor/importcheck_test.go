package supervisor

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/service"
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
		"host mask":       func(m *bundle.Manifest) { m.Config.HostMask = "a\r\nX-Injected: yes" },
		"long mask":       func(m *bundle.Manifest) { m.Config.HostMask = strings.Repeat("a", 256) },
		"token":           func(m *bundle.Manifest) { m.AgentToken = "x\r\nX-Injected: yes" },
		"long token":      func(m *bundle.Manifest) { m.AgentToken = strings.Repeat("a", 5000) },
		"metadata":        func(m *bundle.Manifest) { m.Config.Metadata = map[string]string{"a": "\x00"} },
		"long metadata":   func(m *bundle.Manifest) { m.Config.Metadata = map[string]string{"a": strings.Repeat("x", 1<<20)} },
		"variable":        func(m *bundle.Manifest) { m.Config.Env = map[string]string{"LD_PRELOAD=/x\x00A": "b"} },
		"empty variable":  func(m *bundle.Manifest) { m.Config.Env = map[string]string{"": "b"} },
		"allowed name":    func(m *bundle.Manifest) { m.Config.AllowOut = []string{"a\nb"} },
		"denied network":  func(m *bundle.Manifest) { m.Config.DenyOut = []string{"1.2.3.4/99"} },
		"port":            func(m *bundle.Manifest) { m.Config.HTTPSPorts = []int{70_000} },
		"port rule":       func(m *bundle.Manifest) { m.Config.Ports = store.Ports{strings.Repeat("8", 1000): ""} },
		"hook":            func(m *bundle.Manifest) { m.Config.Hooks.PrePause.Command = "true\x00" },
		"hook's time":     func(m *bundle.Manifest) { m.Config.Hooks.PrePause.Budget = -time.Second },
		"name":            func(m *bundle.Manifest) { m.Config.Name = "a\x1b" },
		"template":        func(m *bundle.Manifest) { m.Config.Built.ID = "t\r\nX-Injected: yes" },
		"template's name": func(m *bundle.Manifest) { m.Config.Built.Name = strings.Repeat("a", 1000) },
		"user":            func(m *bundle.Manifest) { m.Config.User = "a\x1b[2J" },
		"long user":       func(m *bundle.Manifest) { m.Config.User = strings.Repeat("a", 1000) },
		"directory":       func(m *bundle.Manifest) { m.Config.Workdir = "/a\nb" },
		"long directory":  func(m *bundle.Manifest) { m.Config.Workdir = "/" + strings.Repeat("a", 1<<20) },
		"relative one":    func(m *bundle.Manifest) { m.Config.Workdir = "a" },
		"setting":         func(m *bundle.Manifest) { m.Config.FromServer = []string{"onIdle\x1b[2J"} },
		"long setting":    func(m *bundle.Manifest) { m.Config.FromServer = []string{strings.Repeat("a", 1<<20)} },
		"settings":        func(m *bundle.Manifest) { m.Config.FromServer = slices.Repeat([]string{"onIdle"}, 10_000) },
		"volume":          func(m *bundle.Manifest) { m.Config.Volumes = []store.VolumeMount{{Name: "a\x1b", Path: "/mnt/a"}} },
		"volume's path":   func(m *bundle.Manifest) { m.Config.Volumes = []store.VolumeMount{{Name: "a", Path: "/mnt/\r"}} },
		"secret":          func(m *bundle.Manifest) { m.Config.Secrets = []store.SecretUse{{Name: "a\n", Env: "A"}} },
		"authority":       func(m *bundle.Manifest) { m.Config.Authority = strings.Repeat("a", 1000) },
		"proxy":           func(m *bundle.Manifest) { m.Config.Proxy = &store.Proxy{Address: "a\nb:1080"} },
		"proxy's user": func(m *bundle.Manifest) {
			m.Config.Proxy = &store.Proxy{Address: "proxy.test:1080", Username: "a\x1b[2J"}
		},
		"creation": func(m *bundle.Manifest) { m.CreatedAt = time.Time{} },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := second.Import(t.Context(), bytes.NewReader(rewritten(t, file, change)), ImportRequest{})
			wantCode(t, err, "import_damaged")
			to.wantNothingLeft()
		})
	}
	for name, change := range map[string]func(*store.Config){
		"service": func(c *store.Config) {
			c.Services = []service.Service{service.Service{Name: "a\x1b", Shell: "true"}.WithDefaults()}
		},
		"its user": func(c *store.Config) {
			c.Services = []service.Service{service.Service{Name: "a", Shell: "true", User: strings.Repeat("a", 1000)}.WithDefaults()}
		},
		"entrance": func(c *store.Config) { c.Entrances = []service.Entrance{{Name: "a\x1b", Port: 8000}} },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := second.Import(t.Context(), bytes.NewReader(rewritten(t, file, func(m *bundle.Manifest) { change(&m.Config) })), ImportRequest{})
			if !errdef.Is(err, errdef.Invalid) {
				t.Errorf("%v, want it refused", err)
			}
			to.wantNothingLeft()
		})
	}
	if _, err := second.Import(t.Context(), bytes.NewReader(rewritten(t, file, func(m *bundle.Manifest) {
		m.Config.Metadata = map[string]string{"ünï": "códe\n", "": ""}
		m.Config.Env = map[string]string{"PATH": "/bin"}
		m.Config.HostMask = "localhost:${PORT}"
		m.Config.User, m.Config.Workdir, m.Config.FromServer = "üser", "/home/üser", []string{"onTimeout", "stallAfterSeconds"}
		m.Config.Proxy = &store.Proxy{Address: "proxy.example.com:1080", Username: "ünï"}
	})), ImportRequest{}); err != nil {
		t.Errorf("what a create stores: %v", err)
	}
}
