package serve

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/serve/settings"
)

// localURL is where clients on this machine reach a server.
func localURL(o Options, addr net.Addr) string {
	u := url.URL{Scheme: "http", Host: addr.String()}
	if o.TLS() {
		u.Scheme = "https"
	}
	if at, ok := addr.(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		// An address of IPv6 that is all of them is all of IPv4 too.
		u.Host = fmt.Sprintf("127.0.0.1:%d", at.Port)
	}
	return u.String()
}

// announce leaves in the state directory what leads the command line of root here,
// wherever the server listens.
func announce(o Options, addr net.Addr) error {
	if !o.TLS() {
		_ = os.Remove(filepath.Join(o.StateDir, settings.CertificateFile)) // of a server that had one
	}
	if err := keepFile(filepath.Join(o.StateDir, settings.URLFile), localURL(o, addr)+"\n"); err != nil {
		return fmt.Errorf("save the server's URL: %w", err)
	}
	return nil
}

// keepFile sees to it that a file for its owner alone has a text. It writes nothing where
// it has: so a server starts again on a full disk.
func keepFile(path, text string) error {
	const mode = 0o600
	if info, err := os.Lstat(path); err == nil && info.Mode() == mode {
		if has, err := os.ReadFile(path); err == nil && string(has) == text {
			return nil
		}
	}
	return durable.Replace(path, []byte(text), mode)
}

// firstKey sees to it that there is an admin key, and that root on this machine has
// it. A person sees it; a journal, which others read, gets its place.
func firstKey(ctx context.Context, o Options, keys *auth.Keys, addr net.Addr) error {
	made, _, err := keys.EnsureFirst(ctx, o.APIKey)
	if errdef.Is(err, errdef.Exists) { // another server of the database has just made it
		if err = keys.Refresh(ctx); err == nil {
			made, _, err = keys.EnsureFirst(ctx, o.APIKey)
		}
	}
	if err != nil {
		return err
	}
	path := filepath.Join(o.StateDir, settings.KeyFile)
	if key := o.APIKey + made; key != "" {
		if err := keepFile(path, key+"\n"); err != nil {
			return fmt.Errorf("save API key: %w", err)
		}
	}
	switch {
	case made == "":
	case o.Person:
		fmt.Fprintf(o.Notices, "\nThe first key was made, an admin key. It is shown only now (and kept for root in %s):\n\n%s\n", path, exports(o, made, addr))
	default:
		fmt.Fprintf(o.Notices, "The first key was made, an admin key. Only root can read it, in %s:\n\n%s\n", path, exports(o, "$(cat "+path+")", addr))
	}
	return nil
}

// exports are what E2B's clients on this machine read. Behind a domain with TLS
// the domain says it all; otherwise each address has its own, and the domain
// is for the host names of ports, which would lead to E2B's cloud.
func exports(o Options, key string, addr net.Addr) string {
	text := "  export E2B_API_KEY=" + key + "\n  export E2B_DOMAIN=" + cmp.Or(o.Domain, localDomain(addr.String())) + "\n"
	if o.linkDomain() != "" && o.TLS() {
		return text + "\nThat is for E2B's SDKs. E2B_DOMAIN leads to the API and to the ports of sandboxes.\n"
	}
	api, sandbox := localURL(o, addr), localURL(o, addr)
	if o.linkDomain() != o.Domain { // the certificate has these names
		api, sandbox = "https://api."+o.Domain, "https://sandbox."+o.Domain
	}
	for _, v := range [][2]string{{"E2B_API_URL", api}, {"E2B_SANDBOX_URL", sandbox}, {"E2B_VOLUME_API_URL", api}} {
		text += fmt.Sprintf("  export %s=%s\n", v[0], v[1])
	}
	return text + "\nThat is for E2B's SDKs. E2B_DOMAIN is for the URLs of sandboxes' ports, and\nE2B_VOLUME_API_URL for the files of volumes.\n"
}
