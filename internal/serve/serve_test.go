package serve

import (
	"net"
	"testing"

	"github.com/drowse-dev/drowse/internal/serve/settings"
)

// TestExports: what a new server tells its user to paste leads E2B's clients here
// with everything they do, getHost() included, and nowhere to E2B's cloud.
func TestExports(t *testing.T) {
	const key = "e2b_0123"
	urls := func(base string) []string {
		return []string{"E2B_API_URL=" + base, "E2B_SANDBOX_URL=" + base, "E2B_VOLUME_API_URL=" + base}
	}
	for name, tt := range map[string]struct {
		o    Options
		want []string
	}{
		"on this machine":          {Options{}, append([]string{"E2B_DOMAIN=localhost:3000"}, urls("http://127.0.0.1:3000")...)},
		"TLS on this machine":      {Options{Server: settings.Server{TLSCert: "c"}}, append([]string{"E2B_DOMAIN=localhost:3000"}, urls("https://127.0.0.1:3000")...)},
		"a domain behind a proxy":  {Options{Server: settings.Server{Domain: "sbx.test"}}, append([]string{"E2B_DOMAIN=sbx.test"}, urls("http://127.0.0.1:3000")...)},
		"a domain, and TLS itself": {Options{Server: settings.Server{Domain: "sbx.test", TLSCert: "c"}}, []string{"E2B_DOMAIN=sbx.test"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := exports(tt.o, key, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3000})
			want := ""
			for _, line := range append([]string{"E2B_API_KEY=" + key}, tt.want...) {
				want += "  export " + line + "\n"
			}
			if got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}
