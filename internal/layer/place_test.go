package layer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestResolvePlace(t *testing.T) {
	at := t.TempDir()
	for _, dir := range []string{"usr/lib/drowse", "mnt/a/sub", "run/x"} {
		if err := os.MkdirAll(filepath.Join(at, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, link := range map[string]string{
		"lib": "usr/lib", "abs": "/usr/lib", "out": "../../../../../etc", "in": "/mnt/a/sub/../../../usr", "loop": "/loop",
		"gone": "/nowhere/..", "dots": "/./usr//lib/.", "var": "/run", "back": "/run/x/../../usr", "run/y": "/usr", "slash": "/",
	} {
		if err := os.Symlink(link, filepath.Join(at, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(at, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct{ path, trail string }{
		"/mnt/data":                    {path: "/mnt/data"},
		"/new/deep/dir":                {path: "/new/deep/dir"},
		"/lib/drowse":                  {path: "/usr/lib/drowse"},
		"/abs/drowse":                  {path: "/usr/lib/drowse"},
		"/dots/drowse/x":               {path: "/usr/lib/drowse/x"},
		"/out/x":                       {path: "/etc/x"},
		"/in/lib":                      {path: "/usr/lib", trail: "/mnt/a/sub"},
		"/slash/mnt":                   {path: "/mnt"},
		"/var/data":                    {path: "/run/data"},
		"/run/y/z":                     {path: "/run/y/z"}, // not there: /run is hidden
		"/loop":                        {},
		"/gone/x":                      {},
		"/back/lib":                    {},
		"/file":                        {},
		"/file/x":                      {},
		"/" + strings.Repeat("n", 300): {},
	} {
		got, err := ResolvePlace(at, name, []string{"/run"})
		if want.path == "" {
			if !errors.Is(err, ErrNoPlace) {
				t.Errorf("%.40s leads to %+v, %v", name, got, err)
			}
			continue
		}
		if err != nil || got.Path != want.path || want.trail != "" && !slices.Contains(got.Trail, want.trail) {
			t.Errorf("%s leads to %+v, %v; want %+v", name, got, err, want)
		}
	}
}
