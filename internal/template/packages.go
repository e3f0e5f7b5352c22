package template

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// A base is made so that its sandboxes can install packages as on a machine of
// their own: apt-get by root, npm and pip by everybody. What they install lies
// in their own layers, over the host's /usr.

const (
	dpkg = "var/lib/dpkg"
	apt  = "etc/apt"
)

// packageDirs are made in the base of a host that has dpkg, where it has none.
var packageDirs = []string{
	"etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d",
	"var/cache/apt", "var/cache/apt/archives", "var/cache/apt/archives/partial", "var/cache/debconf",
	"var/lib/apt", "var/lib/apt/lists", "var/lib/apt/lists/partial", "var/log/apt",
	dpkg + "/info", dpkg + "/parts", dpkg + "/triggers", dpkg + "/updates",
}

// dpkgNames is the part of dpkg's database that dpkg needs to install more. It
// has no part with what administrators have set for themselves: permissions of
// their own go by users that a sandbox does not have.
var dpkgNames = []string{"alternatives", "arch", "diversions", "info", "status", "triggers"}

// unwanted says of a file of the database that a base does without it: checksums
// of installed files are a third of it and not needed to install more, the lock
// is the host's own, and what its triggers wait for is its own matter.
func unwanted(path string) bool {
	switch filepath.Base(path) {
	case "Lock", "Unincorp":
		return true
	}
	return filepath.Ext(path) == ".md5sums"
}

// aptNames is what tells apt where packages come from and whose signature they
// need. The host's apt.conf is not in it: its hooks run programs for the host.
var aptNames = []string{"keyrings", "preferences", "preferences.d", "sources.list", "sources.list.d", "trusted.gpg", "trusted.gpg.d"}

// credentials finds a name or password in an address.
var credentials = lazyregexp.New(`://[^/\s]*@`)

// copyPackages copies from the host whose root is host what apt and dpkg need,
// if it has them.
func copyPackages(host, root string) error {
	if !exists(filepath.Join(host, dpkg, "status")) {
		return nil
	}
	for _, copied := range []struct {
		dir    string
		names  []string
		wanted func(path string) bool
	}{
		{dpkg, dpkgNames, func(path string) bool { return !unwanted(path) }},
		{apt, aptNames, withoutCredentials},
	} {
		if err := mkdir(filepath.Join(root, copied.dir), 0o755); err != nil {
			return err
		}
		for _, name := range copied.names {
			path := filepath.Join(copied.dir, name)
			if err := copyTree(filepath.Join(host, path), filepath.Join(root, path), copied.wanted); err != nil {
				return err
			}
		}
	}
	for _, name := range packageDirs {
		if err := mkdir(filepath.Join(root, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// Without the last one dpkg runs all triggers there are.
	for _, name := range []string{"statoverride", "available", "triggers/Unincorp"} {
		if err := writeFile(filepath.Join(root, dpkg, name), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withoutCredentials says whether the file at path names no server with a user
// or a password. What cannot be read, or is huge, is taken to do so.
func withoutCredentials(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	const most = 4 << 20
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	return err == nil && len(data) <= most && !credentials.Match(data)
}

// localDirs are directories in /usr/local that everybody may write to in a base,
// so that npm -g and pip put there what the user installs. The sandbox is the
// user's own, who may become root in it.
var localDirs = []string{
	"bin", "etc", "games", "include", "lib", "lib/node_modules", "sbin", "share", "share/doc", "share/man", "share/man/man1",
	"src",
}

// openLocal returns the directories below /usr that a base opens to everybody:
// those that the host at root has as plain directories for everybody to read, or
// does not have.
func openLocal(root string) []string {
	names := []string{"local"}
	for _, name := range localDirs {
		names = append(names, filepath.Join("local", name))
	}
	found, _ := filepath.Glob(filepath.Join(root, "usr/lib/python3*")) // the pattern is a good one
	for _, path := range found {
		version := filepath.Base(path)
		names = append(names, filepath.Join("local/lib", version), filepath.Join("local/lib", version, "dist-packages"))
	}
	slices.Sort(names)
	var open []string
	hidden := map[string]bool{}
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(root, "usr", name))
		if hidden[filepath.Dir(name)] || err == nil && (!info.IsDir() || info.Mode().Perm()&0o005 != 0o005) {
			hidden[name] = true
			continue
		}
		open = append(open, name)
	}
	return open
}

// installerSettings are files by their names below /usr.
var installerSettings = map[string]string{
	// By itself npm puts its commands where node is, which only root may change.
	"etc/npmrc": "prefix=/usr/local\n",
	// No service is started in a sandbox because its package was installed.
	"sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
}

// makeInstallers makes what lies over the host's /usr so that everybody can
// install packages.
func makeInstallers(host, usr string) error {
	for _, name := range openLocal(host) {
		if err := mkdir(filepath.Join(usr, name), 0o777); err != nil {
			return err
		}
	}
	for name, text := range installerSettings {
		dir := filepath.Dir(name)
		// Where /usr/sbin is a link to /usr/bin, a directory would hide that.
		if info, err := os.Lstat(filepath.Join(host, "usr", dir)); err == nil && !info.IsDir() {
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		if err := mkdir(filepath.Join(usr, dir), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := writeFile(filepath.Join(usr, name), []byte(text), mode); err != nil {
			return err
		}
	}
	return nil
}

// installerSources returns the files of the host at root that decide what
// copyPackages and copyInstalled make.
func installerSources(root string) []string {
	var files []string
	for _, name := range []string{dpkg + "/status", "etc/passwd", "etc/group", "etc/pam.d", "usr/lib/sysusers.d"} {
		files = append(files, filepath.Join(root, name))
	}
	for _, c := range conffiles(root) {
		files = append(files, filepath.Join(root, c.path))
	}
	for _, name := range aptNames {
		files = append(files, filepath.Join(root, apt, name))
	}
	return files
}
