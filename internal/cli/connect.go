package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/serve/settings"
)

// callTimeout bounds a call that should be short. Making a sandbox from a
// template that has to be fetched first may take a while.
const callTimeout = 2 * time.Minute

// stateDirectory returns the state directory that flags, environment and
// default name.
func (a *app) stateDirectory() string {
	return cmp.Or(a.stateDir, a.Getenv("DROWSE_STATE_DIR"), defaultStateDir)
}

func (a *app) serverURL() string {
	if namesState(a) {
		return localURL(a)
	}
	return withScheme(cmp.Or(a.url, a.Getenv("DROWSE_URL"), a.Getenv("E2B_API_URL"), localURL(a), client.DefaultURL))
}

// namesState tells whether the command line names the server by its state directory:
// variables may be of another.
func namesState(a *app) bool { return a.stateDir != "" && a.url == "" && localURL(a) != "" }

// localURL is where the server of the state directory said that it listens; empty
// if it is not there for this user.
func localURL(a *app) string {
	b, err := os.ReadFile(filepath.Join(a.stateDirectory(), settings.URLFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// connect returns a client for the server that flags and environment name.
func (a *app) connect() (*client.Client, error) {
	key, _ := a.apiKey(a.serverURL())
	return connectWith(a, key)
}

// connectWith is connect with a key that somebody else has given.
func connectWith(a *app, key string) (*client.Client, error) {
	trusted, err := certificates(a)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = trusted
	c, err := client.New(client.Options{
		URL:        a.serverURL(),
		SandboxURL: withScheme(cmp.Or(a.sandboxURL, a.Getenv("DROWSE_SANDBOX_URL"), a.Getenv("E2B_SANDBOX_URL"))),
		APIKey:     key,
		HTTPClient: &http.Client{Transport: transport},
	})
	if err != nil {
		return nil, usagef("%w", err)
	}
	return c, nil
}

// certificates says whom to trust: the authorities of this machine, those of
// --cacert, and at the address that the state directory names its own server,
// whatever names its certificate has.
func certificates(a *app) (*tls.Config, error) {
	if file := cmp.Or(a.cacert, a.Getenv("DROWSE_CACERT")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, usagef("--cacert: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, usagef("--cacert %s: want a file with certificates in PEM", file)
		}
		return &tls.Config{RootCAs: pool}, nil
	}
	if a.serverURL() != localURL(a) {
		return nil, nil
	}
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection compares the whole certificate
		VerifyConnection: func(s tls.ConnectionState) error {
			file := filepath.Join(a.stateDirectory(), settings.CertificateFile)
			text, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("whom to trust: %w", err)
			}
			if block, _ := pem.Decode(text); block == nil || !bytes.Equal(block.Bytes, s.PeerCertificates[0].Raw) {
				return fmt.Errorf("the certificate is not the one that the server wrote to %s", file)
			}
			return nil
		},
	}, nil
}

// apiKey returns the key for a server or, where there is none, how to come by
// one. No key is no failure before the server says so: that nothing listens is
// the better news.
func (a *app) apiKey(server string) (key, step string) {
	if key, _ := keyGiven(a); key != "" {
		return key, ""
	}
	if !isLoopback(server) && server != localURL(a) {
		return "", "set DROWSE_API_KEY: the key in the state directory is for a server on this machine"
	}
	file := keyFile(a)
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrPermission):
		return "", fmt.Sprintf("set DROWSE_API_KEY, or use sudo: only root may read %s", file)
	case err != nil:
		return "", fmt.Sprintf("set DROWSE_API_KEY, or name the server's --state-dir: there is no %s", file)
	}
	return strings.TrimSpace(string(b)), ""
}

// withScheme completes a URL that is a host alone. An API key goes to other machines
// in plain text only if somebody says so.
func withScheme(text string) string {
	switch {
	case text == "" || strings.Contains(text, "://"):
		return text
	case isLoopback("http://" + text):
		return "http://" + text
	}
	return "https://" + text
}

func keyFile(a *app) string { return filepath.Join(a.stateDirectory(), settings.KeyFile) }

// keyGiven is the key that flags or environment give, and which of them.
func keyGiven(a *app) (key, from string) {
	if a.key != "" {
		return a.key, "--api-key"
	}
	for _, name := range []string{"DROWSE_API_KEY", "E2B_API_KEY"} {
		if key := a.Getenv(name); key != "" && !namesState(a) {
			return key, name
		}
	}
	return "", ""
}

// keyIsOfFile tells whether it is the key in the state directory that calls are made with.
func keyIsOfFile(a *app) bool {
	key, _ := keyGiven(a)
	return key == ""
}

func isLoopback(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// call connects and makes a short call.
func (a *app) call(ctx context.Context, f func(context.Context, *client.Client) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = f(bounded, c)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("no answer within %s: %w", callTimeout, err)
	}
	return a.explainKey(c.URL(), err)
}

// explainKey adds to a refusal by the server, not by a sandbox, how to come by a
// key.
func (a *app) explainKey(server string, err error) error {
	if !errors.Is(err, client.ErrUnauthorized) {
		return err
	}
	key, step := a.apiKey(server)
	_, from := keyGiven(a)
	switch _, unfinished := os.Stat(keyFile(a) + ".new"); {
	case step != "":
	case from != "":
		step = fmt.Sprintf("the key is that of %s: give a valid one, with --api-key or DROWSE_API_KEY", from)
	case key == "":
		step = "give a valid key with --api-key or DROWSE_API_KEY"
	case unfinished == nil:
		step = fmt.Sprintf("the key is that of %s; a rotation that was cut off left the next one: mv %[1]s.new %[1]s", keyFile(a))
	default:
		step = fmt.Sprintf("the key is that of %s, which was revoked or is another server's: write a valid admin key into it, or set DROWSE_API_KEY", keyFile(a))
	}
	return hint(err, "%s", step)
}

// missing adds the next step to an error about a sandbox that is not there.
func missing(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status == http.StatusNotFound && stepOf(e) == "" {
		return hint(err, "drowse ls lists the sandboxes")
	}
	return err
}
