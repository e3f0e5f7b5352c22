package moving

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/secret"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/names"
)

// What the settings of a sandbox that comes from elsewhere are bounded by.
const (
	mostPairs     = 1024      // of metadata, and of environment variables
	mostText      = 256 << 10 // bytes of one of them
	mostList      = 4096      // addresses and names, and ports
	mostNetwork   = 64 << 10  // bytes
	mostCommand   = 64 << 10  // bytes of a hook
	mostBudget    = 24 * time.Hour
	mostHostMask  = 255
	mostTokenText = 1024
	mostSettings  = 64
	mostUser      = 256
	mostTemplate  = 256
	mostPath      = 4096
)

var (
	// hostMaskForm is a host and perhaps a port, in which ${PORT} can stand.
	hostMaskForm = lazyregexp.New(`^(\$\{PORT\}|[A-Za-z0-9._\-])+(:(\$\{PORT\}|[0-9]{1,5}))?$`)
	tokenForm    = lazyregexp.New(`^[0-9A-Za-z_.=+/\-]*$`)
	settingForm  = lazyregexp.New(`^[A-Za-z]{1,64}$`)
)

// Check refuses a manifest in which a text is none that a create could
// have stored: what a create checks, an import must not get past. Some go into
// headers of requests, others onto terminals.
func Check(m bundle.Manifest) error {
	c := m.Config
	for _, check := range []func() error{
		func() error { return checkPairs("metadata", c.Metadata, false) },
		func() error { return checkPairs("environment", c.Env, true) },
		func() error { return checkHostMask(c.HostMask) },
		func() error { return checkPlaces(c) },
		func() error { return checkNames(c) },
		func() error { return checkFromServer(c.FromServer) },
		func() error { return checkNetwork(c) },
		func() error { return secret.CheckUses(c.Secrets, c.Authority) },
		func() error { return checkHooks(c.Hooks) },
		func() error { return checkToken(m.AgentToken) },
		func() error { return checkCreated(m.CreatedAt) },
	} {
		if err := check(); err != nil {
			return layer.Damaged("%w", err)
		}
	}
	return nil
}

func checkPairs(what string, pairs map[string]string, names bool) error {
	if len(pairs) > mostPairs {
		return fmt.Errorf("its %s has %d entries; %d are allowed", what, len(pairs), mostPairs)
	}
	for name, value := range pairs {
		if err := checkText(name, mostText); err != nil {
			return fmt.Errorf("a name in its %s: %w", what, err)
		}
		if err := checkText(value, mostText); err != nil {
			return fmt.Errorf("its %s %.100q: %w", what, name, err)
		}
		if names && (name == "" || strings.Contains(name, "=")) {
			return fmt.Errorf("its %s has the name %.100q", what, name)
		}
	}
	return nil
}

func checkText(text string, most int) error {
	switch {
	case len(text) > most:
		return fmt.Errorf("%d bytes; %d are allowed", len(text), most)
	case !utf8.ValidString(text):
		return fmt.Errorf("%.100q is no UTF-8", text)
	case strings.Contains(text, "\x00"):
		return fmt.Errorf("%.100q has a NUL", text)
	}
	return nil
}

// checkLine is checkText for what people see in one line.
func checkLine(text string, most int) error {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%.100q has a control character", text)
	}
	return checkText(text, most)
}

// checkPlaces checks as whom and where commands run, and where volumes are. Which
// volumes and paths there may be is judged later.
func checkPlaces(c store.Config) error {
	if err := checkLine(c.User, mostUser); err != nil {
		return fmt.Errorf("its user: %w", err)
	}
	if err := checkLine(c.Workdir, mostPath); err != nil {
		return fmt.Errorf("its directory: %w", err)
	}
	if c.Workdir != "" && !path.IsAbs(c.Workdir) {
		return fmt.Errorf("its directory is %.100q, and not absolute", c.Workdir)
	}
	for _, m := range c.Volumes {
		for _, text := range []string{m.Volume, m.Name, m.Path} {
			if err := checkLine(text, mostPath); err != nil {
				return fmt.Errorf("a volume: %w", err)
			}
		}
	}
	return nil
}

// checkNames checks what the sandbox is called, and the template that it was made of.
func checkNames(c store.Config) error {
	if c.Name != "" {
		if err := names.Check(c.Name); err != nil {
			return err
		}
	}
	for _, text := range []string{c.Built.ID, c.Built.Name} {
		if err := checkLine(text, mostTemplate); err != nil {
			return fmt.Errorf("its template: %w", err)
		}
	}
	return nil
}

// checkFromServer checks the names of settings, of which a newer server may have
// others.
func checkFromServer(names []string) error {
	if len(names) > mostSettings {
		return fmt.Errorf("%d settings are its server's defaults; %d are allowed", len(names), mostSettings)
	}
	for _, name := range names {
		if !settingForm.MatchString(name) {
			return fmt.Errorf("a setting that is its server's default is called %.100q", name)
		}
	}
	return nil
}

func checkHostMask(mask string) error {
	if mask != "" && (len(mask) > mostHostMask || !hostMaskForm.MatchString(mask)) {
		return fmt.Errorf("its host mask is %.100q", mask)
	}
	return nil
}

// checkNetwork checks what a sandbox may reach, and its ports.
func checkNetwork(c store.Config) error {
	if n := len(c.AllowOut) + len(c.DenyOut) + len(c.HTTPSPorts) + len(c.Ports); n > mostList {
		return fmt.Errorf("it has %d rules and ports; %d are allowed", n, mostList)
	}
	if _, err := egress.NewPolicy(true, c.AllowOut, c.DenyOut); err != nil {
		return err
	}
	if c.Proxy != nil {
		if _, err := egress.ParseProxy(c.Proxy.Address, c.Proxy.Username); err != nil {
			return err
		}
		if err := checkLine(c.Proxy.Username, mostTokenText); err != nil {
			return fmt.Errorf("the user of its proxy: %w", err)
		}
	}
	for _, port := range c.HTTPSPorts {
		if port < 1 || port > 65535 {
			return fmt.Errorf("it has a port %d", port)
		}
	}
	for port := range c.Ports {
		if err := checkText(port, 32); err != nil {
			return fmt.Errorf("a rule for ports: %w", err)
		}
	}
	if len(c.Network) > mostNetwork || len(c.Network) > 0 && !json.Valid(c.Network) {
		return fmt.Errorf("its network has %d bytes that are not JSON, or too many", len(c.Network))
	}
	return nil
}

func checkHooks(h store.Hooks) error {
	for _, hook := range []store.Hook{h.PrePause, h.PostResume, h.PreKill} {
		if err := checkText(hook.Command, mostCommand); err != nil {
			return fmt.Errorf("a hook: %w", err)
		}
		if hook.Budget < 0 || hook.Budget > mostBudget {
			return fmt.Errorf("a hook may take %s", hook.Budget)
		}
	}
	return nil
}

// checkToken: the token goes into a header.
func checkToken(token string) error {
	if len(token) > mostTokenText || !tokenForm.MatchString(token) {
		return fmt.Errorf("its token has %d bytes, and is none", len(token))
	}
	return nil
}

func checkCreated(at time.Time) error {
	if at.Year() < 2000 || at.Year() > 9999 {
		return fmt.Errorf("it was created at %s", at)
	}
	return nil
}
