package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/golden"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// whole is a manifest with everything in it that there can be.
func whole(t *testing.T) Manifest {
	var m Manifest
	golden.Fill(t, &m)
	m.Format, m.Kind, m.Mode = formatVersion, KindSandbox, "memory"
	m.Settings.RefreshOnActivity = lifecycle.RefreshOnRequests
	return m
}

func readManifest(t *testing.T, text string) (Manifest, error) {
	t.Helper()
	r, err := NewReader(strings.NewReader(string(archive(t, text))))
	if err != nil {
		return Manifest{}, err
	}
	return r.Manifest, nil
}

// TestManifestForm: nothing of a sandbox is lost in a manifest but what means
// nothing to another server, and what is written is what every server of this
// format reads.
func TestManifestForm(t *testing.T) {
	m := whole(t)
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Hold(t, filepath.Join("testdata", fmt.Sprintf("manifest-%d.json", formatVersion)), data)
	c := &m.Config
	c.Key, c.Previews, c.Idempotency, c.Before, c.Lineage, c.Build = "", nil, nil, nil, nil, "" // stay where they are
	c.Proxy.Sealed, c.Proxy.Password = "", ""                                                   // likewise
	for i := range c.Secrets {
		c.Secrets[i].Withheld = false // the importer says that
	}
	got, err := readManifest(t, string(data))
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%v; got %+v\nwant %+v", err, got, m)
	}
}

// TestEveryFormat: every format that was ever written is read, and what no
// program wrote, or a newer one, is refused by what it is.
func TestEveryFormat(t *testing.T) {
	for n := 1; n <= formatVersion; n++ {
		data, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("manifest-%d.json", n)))
		if err != nil {
			t.Errorf("nothing holds what format %d is: %v", n, err)
			continue
		}
		m, err := readManifest(t, strings.TrimSpace(string(data)))
		if err != nil || m.Format != n || m.ID == "" || m.Config.Template == "" || m.Settings.Timeout == 0 || len(m.Layers) == 0 || m.Image == nil {
			t.Errorf("format %d: %v; read as %+v", n, err, m)
		}
		if m.KnowsImage() != (n >= 3) || m.KnowsImage() != (m.Config.Image != "") {
			t.Errorf("format %d: it knows the image: %t; read as %q", n, m.KnowsImage(), m.Config.Image)
		}
		if (m.Config.User != "" && m.Config.Workdir != "") != (n >= 4) {
			t.Errorf("format %d: commands run as %q in %q", n, m.Config.User, m.Config.Workdir)
		}
		if (len(m.Config.Services) > 0 && m.Config.Services[0].Ready.Command != "") != (n >= 6) {
			t.Errorf("format %d: services %+v", n, m.Config.Services)
		}
		if (len(m.Config.Entrances) > 0 && m.Config.Entrances[0].Routes[0].Guard.SHA256 != "") != (n >= 7) {
			t.Errorf("format %d: entrances %+v", n, m.Config.Entrances)
		}
		if (m.Config.Proxy != nil && m.Config.Proxy.Lost) != (n >= 8) {
			t.Errorf("format %d: proxy %+v", n, m.Config.Proxy)
		}
		if (m.Config.Name != "" && m.Config.Built.ID != "") != (n >= 9) {
			t.Errorf("format %d: it is called %q, of %+v", n, m.Config.Name, m.Config.Built)
		}
		if want := map[bool]lifecycle.Refresh{false: lifecycle.RefreshOnWork, true: lifecycle.RefreshOnRequests}[n >= 9]; m.Settings.RefreshOnActivity != want {
			t.Errorf("format %d: refreshed by %q, want %q", n, m.Settings.RefreshOnActivity, want)
		}
		if m.Config.Key != "" || m.Config.Previews != nil {
			t.Errorf("format %d: it brings the key %q and the links %v", n, m.Config.Key, m.Config.Previews)
		}
	}
	newer := fmt.Sprintf(`{"format":%d,"kind":"sandbox","somethingNew":true}`, formatVersion+1)
	if _, err := readManifest(t, newer); !errdef.Is(err, errdef.Unsupported) || !strings.Contains(err.Error(), fmt.Sprintf("format %d", formatVersion+1)) {
		t.Errorf("a newer format: %v", err)
	}
	if _, err := readManifest(t, `{"format":0,"kind":"sandbox"}`); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("no format: %v", err)
	}
	unknown := fmt.Sprintf(`{"format":%d,"kind":"sandbox","somethingNew":true}`, formatVersion)
	if _, err := readManifest(t, unknown); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("a field that this format has not: %v", err)
	}
}
