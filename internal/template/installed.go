package template

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A program in the host's /usr often needs more than that: its configuration in
// /etc, directories in /var, a user of its own. A base has of it what the
// packages brought, which is as public as /usr, and nothing that the host's
// administrators have set.

// conffile is a file of configuration as its package brought it.
type conffile struct{ path, md5 string }

// ownEtc are directories of /etc that a base fills itself. What packages have in
// profile.d would run before every command, most of which are login shells.
var ownEtc = []string{"etc/apt/", "etc/profile.d/"}

// conffiles returns those of all installed packages of the host, without the
// first slash.
func conffiles(host string) []conffile {
	status, _ := os.ReadFile(filepath.Join(host, dpkg, "status"))
	var found []conffile
	installed, listed := false, false
	for line := range strings.Lines(string(status)) {
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ":")
		switch {
		case line == "":
			installed, listed = false, false
		case field == "Status":
			installed = strings.HasSuffix(value, " ok installed")
		case !strings.HasPrefix(line, " "):
			listed = field == "Conffiles"
		case installed && listed:
			// Obsolete ones have a third word.
			if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "/etc/") && shared(f[0][1:]) {
				found = append(found, conffile{f[0][1:], f[1]})
			}
		}
	}
	return found
}

func shared(path string) bool {
	return filepath.IsLocal(path) && !slices.ContainsFunc(ownEtc, func(own string) bool { return strings.HasPrefix(path+"/", own) })
}

// copyInstalled copies from the host whose root is host what its packages have
// outside /usr, where root has nothing yet: configuration that nobody has
// changed, links in /etc, and directories, empty.
func copyInstalled(host, root string) error {
	to, err := os.OpenRoot(root) // links in it lead nowhere else
	if err != nil {
		return err
	}
	defer to.Close()
	for _, c := range conffiles(host) {
		if err := copyConffile(filepath.Join(host, c.path), to, c); err != nil {
			return err
		}
	}
	ids, err := readIDs(root)
	if err != nil {
		return err
	}
	for _, path := range listed(host) {
		if err := copyListed(filepath.Join(host, path), to, path, ids); err != nil {
			return err
		}
	}
	return copyPAM(host, to)
}

func copyConffile(from string, to *os.Root, c conffile) error {
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 || has(to, c.path) {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return gone(err)
	}
	if sum := md5.Sum(data); hex.EncodeToString(sum[:]) != c.md5 {
		return nil // the administrators' own, who may have written a password into it
	}
	return put(to, c.path, data, info.Mode().Perm()&0o755)
}

// put writes a file that is not there, with the directories above it.
func put(to *os.Root, path string, data []byte, mode fs.FileMode) error {
	return errors.Join(makeAll(to, filepath.Dir(path)), to.WriteFile(path, data, 0o600), to.Chmod(path, mode))
}

// makeAll is MkdirAll whatever the umask.
func makeAll(to *os.Root, path string) error {
	if has(to, path) {
		return nil
	}
	return errors.Join(makeAll(to, filepath.Dir(path)), to.Mkdir(path, 0o700), to.Chmod(path, 0o755))
}

func has(root *os.Root, path string) bool {
	_, err := root.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// listed returns what the host's packages have in /etc and /var, in order.
func listed(host string) []string {
	lists, _ := filepath.Glob(filepath.Join(host, dpkg, "info/*.list")) // the pattern is a good one
	var paths []string
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for line := range strings.Lines(string(data)) {
			path := strings.TrimSuffix(strings.TrimPrefix(line, "/"), "\n")
			if (strings.HasPrefix(path, "etc/") || strings.HasPrefix(path, "var/")) && shared(path) {
				paths = append(paths, path)
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// copyListed makes a directory or a link of a package.
func copyListed(from string, to *os.Root, path string, known ids) error {
	var st unix.Stat_t
	if unix.Lstat(from, &st) != nil || has(to, path) {
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		link, err := os.Readlink(from)
		if err != nil || strings.HasPrefix(path, "var/") {
			return gone(err)
		}
		return errors.Join(makeAll(to, filepath.Dir(path)), to.Symlink(link, path))
	case unix.S_IFDIR:
		uid, gid := 0, 0
		if known.users[st.Uid] {
			uid = int(st.Uid)
		}
		if known.groups[st.Gid] {
			gid = int(st.Gid)
		}
		mode := fs.FileMode(st.Mode & 0o777)
		if st.Mode&unix.S_ISVTX != 0 {
			mode |= fs.ModeSticky
		}
		if st.Mode&unix.S_ISGID != 0 {
			mode |= fs.ModeSetgid
		}
		return errors.Join(makeAll(to, path), to.Lchown(path, uid, gid), to.Chmod(path, mode))
	}
	return nil
}

// ids are the users and groups of a base.
type ids struct{ users, groups map[uint32]bool }

func readIDs(root string) (ids, error) {
	known := ids{map[uint32]bool{}, map[uint32]bool{}}
	for name, into := range map[string]map[uint32]bool{"passwd": known.users, "group": known.groups} {
		data, err := os.ReadFile(filepath.Join(root, "etc", name))
		if err != nil {
			return known, err
		}
		for line := range strings.Lines(string(data)) {
			if id, ok := idOf(strings.Split(line, ":")); ok {
				into[id] = true
			}
		}
	}
	return known, nil
}

func idOf(fields []string) (uint32, bool) {
	if len(fields) < 4 {
		return 0, false
	}
	id, err := strconv.ParseUint(fields[2], 10, 32)
	return uint32(id), err == nil
}

// accounts returns passwd, group and shadow of a base: the usual users, and those
// that the packages of the host at root host have made for themselves, by the
// same numbers, because files in /usr are theirs.
func accounts(host string) map[string]string {
	users, groups := newTable([]byte(etcFiles["passwd"])), newTable([]byte(etcFiles["group"]))
	byPackage := madeByPackages(host)
	for _, f := range ofSystem(host, "passwd", 7) {
		if byPackage(f[0]) && users.byID(f[2]) == "" {
			f[1], f[4] = "x", ""
			users.add(f[0], strings.Join(f, ":"))
		}
	}
	for _, f := range ofSystem(host, "group", 4) {
		if byPackage(f[0]) && groups.byID(f[2]) == "" {
			members := slices.DeleteFunc(strings.Split(f[3], ","), func(name string) bool { return users.line(name) == nil })
			groups.add(f[0], strings.Join([]string{f[0], "x", f[2], strings.Join(members, ",")}, ":"))
		}
	}
	// Without a line of its own there, PAM knows no user.
	var shadow strings.Builder
	for line := range strings.Lines(string(users.text)) {
		name, _, _ := strings.Cut(line, ":")
		shadow.WriteString(name + ":*:19000:0:99999:7:::\n")
	}
	return map[string]string{"passwd": string(users.text), "group": string(groups.text), "shadow": shadow.String()}
}

// ofSystem returns the lines of the host's file for those that are neither people
// nor the same on every machine.
func ofSystem(host, name string, fields int) [][]string {
	data, _ := os.ReadFile(filepath.Join(host, "etc", name))
	var found [][]string
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if id, ok := idOf(f); ok && len(f) == fields && id >= 100 && id < UserID {
			found = append(found, f)
		}
	}
	return found
}

// madeByPackages says of a name whether a package of the host makes a user or a
// group of that name.
func madeByPackages(host string) func(name string) bool {
	var scripts [][]byte
	for _, pattern := range []string{dpkg + "/info/*.preinst", dpkg + "/info/*.postinst", "usr/lib/sysusers.d/*.conf"} {
		files, _ := filepath.Glob(filepath.Join(host, pattern)) // the patterns are good ones
		for _, file := range files {
			data, _ := os.ReadFile(file)
			scripts = append(scripts, data)
		}
	}
	return func(name string) bool {
		word := regexp.MustCompile(`(^|[^\w.-])` + regexp.QuoteMeta(name) + `([^\w-]|$)`)
		return slices.ContainsFunc(scripts, func(script []byte) bool {
			return bytes.Contains(script, []byte(name)) && word.Match(script)
		})
	}
}

// pamModules are what all services of a base ask, by the names that Debian's
// services include. The host's own may ask modules that are for its people.
var pamModules = map[string]string{
	"common-auth":                   "auth required pam_unix.so nullok\n",
	"common-account":                "account required pam_unix.so\n",
	"common-password":               "password required pam_unix.so nullok sha512\n",
	"common-session":                "session required pam_unix.so\n",
	"common-session-noninteractive": "session required pam_unix.so\n",
}

const pamOther = `auth include common-auth
account include common-account
password include common-password
session include common-session
`

// pamOfRoot are services that ask root for no password. All that have no file of
// their own are as "other".
var pamOfRoot = []string{"chfn", "chpasswd", "chsh", "newusers", "runuser", "runuser-l", "su", "su-l"}

// copyPAM adds what a base lacks to what its packages have brought.
func copyPAM(host string, to *os.Root) error {
	if !exists(filepath.Join(host, "etc/pam.d")) {
		return nil
	}
	files := map[string]string{"other": pamOther}
	for name, text := range pamModules {
		files[name] = text
	}
	for _, name := range pamOfRoot {
		// A file that no installed package has would make dpkg ask.
		if exists(filepath.Join(host, "etc/pam.d", name)) {
			files[name] = "auth sufficient pam_rootok.so\n" + pamOther
		}
	}
	for name, text := range files {
		if path := filepath.Join("etc/pam.d", name); !has(to, path) {
			if err := put(to, path, []byte(text), 0o644); err != nil {
				return fmt.Errorf("write %s: %w", path, err)
			}
		}
	}
	return nil
}
