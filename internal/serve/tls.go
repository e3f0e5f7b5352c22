package serve

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// certificate is a key pair in files, which are read again when they change:
// certificates are renewed while the server runs. A copy of the certificate tells
// the command line on this machine, before it is shown there, whom to trust: its
// names are not this machine's addresses.
type certificate struct {
	certFile, keyFile, copyFile string

	mu      sync.Mutex
	current *tls.Certificate
	stamp   string    // of the files that current was read from
	checked time.Time // when the files were looked at
}

// checkEvery bounds how often the files are looked at.
const checkEvery = time.Second

// loadTLS returns the configuration for a key pair in files; nil if none is
// given. The certificate is copied to copyFile.
func loadTLS(certFile, keyFile, copyFile string) (*tls.Config, error) {
	if certFile == "" && keyFile == "" {
		return nil, nil
	}
	c := &certificate{certFile: certFile, keyFile: keyFile, copyFile: copyFile}
	stamp, err := c.look()
	if err == nil {
		err = c.read(stamp)
	}
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "bad_certificate", "cannot use the TLS certificate: %w", err).
			WithRemedy("give a PEM certificate chain with --tls-cert and its key with --tls-key")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}, nil
}

// get implements tls.Config.GetCertificate. If the files cannot be read, as in
// the middle of a renewal, the certificate stays as it was.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) > checkEvery {
		c.checked = time.Now()
		if stamp, err := c.look(); err == nil && stamp != c.stamp {
			_ = c.read(stamp)
		}
	}
	return c.current, nil
}

// look returns what changes when the files do.
func (c *certificate) look() (stamp string, err error) {
	for _, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		stamp += fmt.Sprintf("%d %d\n", info.ModTime().UnixNano(), info.Size())
	}
	return stamp, nil
}

func (c *certificate) read(stamp string) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	if err := replaceFile(c.copyFile, string(leaf)); err != nil {
		return err
	}
	c.current, c.stamp = &pair, stamp
	return nil
}
