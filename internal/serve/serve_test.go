package serve

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/serve/settings"
	"github.com/drowse-dev/drowse/internal/store/memstore"
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
		"a domain, and ACME":       {Options{Server: settings.Server{Domain: "sbx.test", ACMEEmail: "e", ACMEDNSHook: "/h"}}, []string{"E2B_DOMAIN=sbx.test"}},
		"ACME, names alone": {Options{Server: settings.Server{Domain: "sbx.test", ACMEEmail: "e"}},
			[]string{"E2B_DOMAIN=sbx.test", "E2B_API_URL=https://api.sbx.test", "E2B_SANDBOX_URL=https://sandbox.sbx.test", "E2B_VOLUME_API_URL=https://api.sbx.test"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := exports(tt.o, key, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3000})
			want := ""
			for _, line := range append([]string{"E2B_API_KEY=" + key}, tt.want...) {
				want += "  export " + line + "\n"
			}
			got, what, _ := strings.Cut(got, "\n\n")
			if got += "\n"; got != want || !strings.Contains(what, "E2B_DOMAIN") || strings.Contains(what, "VOLUME") != (len(tt.want) > 1) {
				t.Errorf("got\n%s\n%s\nwant\n%s", got, what, want)
			}
		})
	}
}

// TestFirstKey: who starts a server on a terminal sees its first key; a journal, which
// others can read, gets the place where root finds it.
func TestFirstKey(t *testing.T) {
	for _, person := range []bool{true, false} {
		keys, err := auth.Load(t.Context(), memstore.Open(memstore.NewData(), memstore.Hooks{}))
		if err != nil {
			t.Fatal(err)
		}
		var notices strings.Builder
		o := Options{Server: settings.Server{StateDir: t.TempDir()}, Notices: &notices, Person: person}
		if err := firstKey(t.Context(), o, keys, &net.TCPAddr{IP: net.IPv4zero, Port: 3000}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(o.StateDir, settings.KeyFile)
		key, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := notices.String(); strings.Contains(got, strings.TrimSpace(string(key))) != person || !strings.Contains(got, path) || !strings.Contains(got, "E2B_API_URL=http://127.0.0.1:3000") {
			t.Errorf("to a person (%v) it says:\n%s", person, got)
		}
	}
}
