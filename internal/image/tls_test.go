package image

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// envTLSRegistry has TestPullOverTLS pull that image and do nothing else, in a
// process of its own: Go reads once which authorities the host trusts.
const envTLSRegistry = "DROWSE_TEST_TLS_REGISTRY"

// TestPullOverTLS: a registry whose certificate the host trusts serves an image to
// who logs in. One that the host does not trust is refused as that, and gets no
// password.
func TestPullOverTLS(t *testing.T) {
	login := &Login{"me", "secret"}
	if ref := os.Getenv(envTLSRegistry); ref != "" {
		img, _, err := pulled(t, newStore(t), ref, login)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(img.Digest); err != nil {
			t.Fatal(err)
		}
		return
	}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != login.User || password != login.Password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that do not trust it
	s.StartTLS()
	t.Cleanup(s.Close)
	ref := strings.TrimPrefix(s.URL, "https://") + "/tls:1"
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img := imageWith(t, layerOf(t, item{name: "x"}))
	auth := &authn.Basic{Username: login.User, Password: login.Password}
	if err := remote.Push(r, img, remote.WithTransport(s.Client().Transport), remote.WithAuth(auth)); err != nil {
		t.Fatal(err)
	}

	_, _, err = pulled(t, newStore(t), ref, login)
	if codeOf(err) != "image_registry_untrusted" || strings.Contains(err.Error(), login.Password) {
		t.Errorf("from a registry that is not trusted: %v", err)
	}

	authority := filepath.Join(t.TempDir(), "authority.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(authority, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPullOverTLS$")
	cmd.Env = append(os.Environ(), envTLSRegistry+"="+ref, "SSL_CERT_FILE="+authority)
	out, err := cmd.CombinedOutput()
	want, _ := img.Digest()
	if err != nil || !strings.Contains(string(out), want.String()) {
		t.Errorf("from one that is: %v, and it printed\n%s\nwant %s", err, out, want)
	}
}
