package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// bundles are where systems keep the certificates that they trust, in one file.
// The first that is there is the system's; all that are there get the sandbox's
// own, for programs that do not look at variables.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, Red Hat
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // Alpine, and LibreSSL
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
}

// anchors are directories of which the system's own tool makes the bundle anew.
var anchors = []string{"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors"}

// anchorFile is what the sandbox's authority is called there.
const anchorFile = "drowse-sandbox.crt"

// maxBundle bounds what is read of a bundle. The largest have some 250 KiB.
const maxBundle = 4 << 20

// trust has the programs below root trust a certificate.
func trust(root, certificate string) error {
	own := []byte(certificate)
	system := readFirst(root, bundles)
	all := system
	if !bytes.Contains(system, bytes.TrimSpace(own)) {
		all = joined(system, own)
	}
	in := func(path string) string { return filepath.Join(root, path) }
	if err := errors.Join(replaceFile(in(agentapi.AuthorityFile), own), replaceFile(in(agentapi.TrustedFile), all)); err != nil {
		return err
	}
	for _, dir := range anchors {
		if info, err := os.Stat(in(dir)); err == nil && info.IsDir() {
			_ = replaceFile(filepath.Join(in(dir), anchorFile), own) // for later; the bundle has it now
		}
	}
	for _, name := range bundles {
		if has, err := readBundle(in(name)); err == nil && !bytes.Contains(has, bytes.TrimSpace(own)) {
			// A file that cannot be changed leaves the variables, which name another.
			_ = replaceFile(in(name), joined(has, own))
		}
	}
	return nil
}

// readFirst returns the first of the files that can be read; nothing for none.
func readFirst(root string, names []string) []byte {
	for _, name := range names {
		if data, err := readBundle(filepath.Join(root, name)); err == nil {
			return data
		}
	}
	return nil
}

// errNoBundle is of something that is no file of certificates.
var errNoBundle = errors.New("this is no file of certificates, or too large a one")

func readBundle(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBundle {
		return nil, errNoBundle
	}
	return os.ReadFile(name)
}

func joined(system, own []byte) []byte {
	all := bytes.Clone(system)
	if n := len(all); n > 0 && all[n-1] != '\n' {
		all = append(all, '\n')
	}
	return append(all, own...)
}

// replaceFile gives a file other contents, so that readers see one or the other. A
// link stays one.
func replaceFile(name string, data []byte) error {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	if has, err := os.ReadFile(name); err == nil && bytes.Equal(has, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	next := name + ".drowse"
	if err := os.WriteFile(next, data, 0o644); err != nil {
		return err
	}
	return os.Rename(next, name)
}
