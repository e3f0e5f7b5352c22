package template

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCopyPackages: a base gets the database of dpkg and the sources of apt, but
// neither locks, nor what names a password or a user of the host, nor what is
// closed to others there.
func TestCopyPackages(t *testing.T) {
	host, root := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"var/lib/dpkg/status":                      "Package: x\n",
		"var/lib/dpkg/status-old":                  "",
		"var/lib/dpkg/lock":                        "",
		"var/lib/dpkg/statoverride":                "root messagebus 4754 /usr/lib/helper\n",
		"var/lib/dpkg/info/x.list":                 "/usr/bin/x\n",
		"var/lib/dpkg/info/x.md5sums":              "",
		"var/lib/dpkg/info/x.postinst":             "#!/bin/sh\n",
		"var/lib/dpkg/triggers/File":               "/usr/lib x\n",
		"var/lib/dpkg/triggers/Lock":               "",
		"var/lib/dpkg/triggers/Unincorp":           "x x\n",
		"etc/apt/sources.list":                     "deb https://packages.example/debian bookworm main # a@b\n",
		"etc/apt/sources.list.d/private.list":      "deb https://me:secret@packages.example/debian bookworm main\n",
		"etc/apt/sources.list.d/token.sources":     "URIs: https://token@packages.example/\n",
		"etc/apt/sources.list.d/public.sources":    "URIs: https://packages.example/~me@home/\n",
		"etc/apt/auth.conf":                        "machine packages.example login me password secret\n",
		"etc/apt/auth.conf.d/x.conf":               "machine packages.example login me password secret\n",
		"etc/apt/apt.conf.d/50hooks":               "DPkg::Post-Invoke { \"/opt/hook\"; };\n",
		"etc/apt/trusted.gpg.d/debian-archive.asc": "-----BEGIN\n",
	} {
		path := filepath.Join(host, name)
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, "postinst") {
			mode = 0o755
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(host, "etc/apt/sources.list.d/closed.list")
	if err := os.WriteFile(closed, []byte("deb https://packages.example/ x main\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(host, "etc/apt/keyrings")
	if err := errors.Join(os.Mkdir(private, 0o700), os.WriteFile(filepath.Join(private, "x.gpg"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"etc", "var", "var/cache", "var/lib", "var/log"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyPackages(host, root); err != nil {
		t.Fatal(err)
	}
	var copied []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			copied = append(copied, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	want := []string{
		"etc/apt/sources.list", "etc/apt/sources.list.d/public.sources", "etc/apt/trusted.gpg.d/debian-archive.asc",
		"var/lib/dpkg/available", "var/lib/dpkg/info/x.list", "var/lib/dpkg/info/x.postinst", "var/lib/dpkg/statoverride",
		"var/lib/dpkg/status", "var/lib/dpkg/triggers/File", "var/lib/dpkg/triggers/Unincorp",
	}
	if err != nil || !slices.Equal(copied, want) {
		t.Errorf("copied %q, %v; want %q", copied, err, want)
	}
	for _, name := range []string{"var/lib/dpkg/statoverride", "var/lib/dpkg/triggers/Unincorp"} {
		if data, err := os.ReadFile(filepath.Join(root, name)); err != nil || len(data) > 0 {
			t.Errorf("%s has %q, %v; want nothing", name, data, err)
		}
	}
	if info, err := os.Stat(filepath.Join(root, "var/lib/dpkg/info/x.postinst")); err != nil || info.Mode() != 0o755 {
		t.Errorf("the script: %v, %v", info, err)
	}
}

// TestHostWithoutDpkg gets nothing that belongs to it.
func TestHostWithoutDpkg(t *testing.T) {
	root := t.TempDir()
	if err := copyPackages(t.TempDir(), root); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestOpenLocal: what the host keeps closed in /usr/local, or has as something
// else than a directory, stays as it is.
func TestOpenLocal(t *testing.T) {
	host := t.TempDir()
	at := func(name string) string { return filepath.Join(host, "usr", name) }
	if err := errors.Join(
		os.MkdirAll(at("local/lib/python3.11"), 0o755), os.MkdirAll(at("lib/python3.11"), 0o755), os.MkdirAll(at("local/bin"), 0o755),
		os.Mkdir(at("local/etc"), 0o700), os.Mkdir(at("local/share"), 0o750),
		os.Symlink("/elsewhere", at("local/src")), os.Symlink("bin", at("sbin")), os.WriteFile(at("local/games"), nil, 0o644),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"local", "local/bin", "local/include", "local/lib", "local/lib/node_modules",
		"local/lib/python3.11", "local/lib/python3.11/dist-packages", "local/sbin",
	}
	if got := openLocal(host); !slices.Equal(got, want) {
		t.Errorf("open are %q, want %q", got, want)
	}
	usr := t.TempDir()
	if err := makeInstallers(host, usr); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(usr, "local/bin")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("/usr/local/bin: %v, %v", info, err)
	}
	if _, err := os.Lstat(filepath.Join(usr, "sbin")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the host has as a link: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(usr, "local/share")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that the host keeps closed: %v", err)
	}
}

// TestCopyOfWhatGoesAway leaves out what the host removes meanwhile, and copies
// all else.
func TestCopyOfWhatGoesAway(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	for _, name := range []string{"a", "b", "c", "d"} {
		if err := os.WriteFile(filepath.Join(from, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := copyTree(from, to, func(path string) bool {
		switch filepath.Base(path) {
		case "a": // before b is looked at
			os.Remove(filepath.Join(from, "b"))
		case "c": // before it is read
			os.Remove(path)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	var copied []string
	entries, err := os.ReadDir(to)
	for _, e := range entries {
		copied = append(copied, e.Name())
	}
	if want := []string{"a", "d"}; err != nil || !slices.Equal(copied, want) {
		t.Errorf("copied %q, %v; want %q", copied, err, want)
	}
}
