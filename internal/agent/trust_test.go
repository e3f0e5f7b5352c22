package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

const (
	ownCertificate    = "-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n"
	systemCertificate = "# the system's\n-----BEGIN CERTIFICATE-----\nc3lzdGVt\n-----END CERTIFICATE-----" // without a final line break
)

// TestTrust adds a certificate to what systems of several kinds trust, once.
func TestTrust(t *testing.T) {
	for name, c := range map[string]struct {
		files, links map[string]string
		dirs         []string
		want         map[string]string
	}{
		"Debian": {
			files: map[string]string{"etc/ssl/certs/ca-certificates.crt": systemCertificate},
			dirs:  []string{"usr/local/share/ca-certificates"},
			want: map[string]string{
				"etc/ssl/certs/ca-certificates.crt":                  systemCertificate + "\n" + ownCertificate,
				"usr/local/share/ca-certificates/drowse-sandbox.crt": ownCertificate,
				agentapi.TrustedFile:                                 systemCertificate + "\n" + ownCertificate,
			},
		},
		"Fedora": {
			files: map[string]string{"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": systemCertificate + "\n"},
			links: map[string]string{"etc/pki/tls/certs/ca-bundle.crt": "../../ca-trust/extracted/pem/tls-ca-bundle.pem"},
			dirs:  []string{"etc/pki/ca-trust/source/anchors", "etc/pki/tls/certs"},
			want: map[string]string{
				"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": systemCertificate + "\n" + ownCertificate,
				agentapi.TrustedFile: systemCertificate + "\n" + ownCertificate,
			},
		},
		"nothing": {want: map[string]string{agentapi.TrustedFile: ownCertificate, agentapi.AuthorityFile: ownCertificate}},
		"no file": {dirs: []string{"etc/ssl/certs/ca-certificates.crt"}, want: map[string]string{agentapi.TrustedFile: ownCertificate}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			in := func(path string) string { return filepath.Join(root, path) }
			for _, dir := range c.dirs {
				if err := os.MkdirAll(in(dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for path, text := range c.files {
				if err := os.MkdirAll(filepath.Dir(in(path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(in(path), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for path, to := range c.links {
				if err := os.Symlink(to, in(path)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // every wake says it again
				if err := trust(root, ownCertificate); err != nil {
					t.Fatal(err)
				}
			}
			for path, want := range c.want {
				if got, err := os.ReadFile(in(path)); err != nil || string(got) != want {
					t.Errorf("%s has %q, %v; want %q", path, got, err, want)
				}
			}
			for path := range c.links {
				if info, err := os.Lstat(in(path)); err != nil || info.Mode()&os.ModeSymlink == 0 {
					t.Errorf("%s is no link any more: %v, %v", path, info, err)
				}
			}
		})
	}
}

// TestInitTrusts takes the authority from the host, and tells every process.
func TestInitTrusts(t *testing.T) {
	s := newServer(t)
	s.init(agentapi.InitRequest{Authority: ownCertificate, EnvVars: map[string]string{"CURL_CA_BUNDLE": "/of/the/user"}})
	if got, err := os.ReadFile(filepath.Join(s.dir, "system", agentapi.TrustedFile)); err != nil || string(got) != ownCertificate {
		t.Errorf("trusted are %q, %v", got, err)
	}
	env := s.agent.settings.env()
	if env["SSL_CERT_FILE"] != agentapi.TrustedFile || env["NODE_EXTRA_CA_CERTS"] != agentapi.AuthorityFile || env["CURL_CA_BUNDLE"] != "/of/the/user" {
		t.Errorf("the environment is %s", strings.Join(envList(env), "\n"))
	}
}
