package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// systemDirs are the host's top-level directories that a sandbox sees
// read-only. It is an allow-list: what is not named stays hidden, also what
// appears later.
var systemDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// Opt is a directory of the host that a base shows only if it is asked for: what
// administrators install by hand often has passwords in files that everybody on
// the host may read.
const Opt = "opt"

// etcNames is the harmless part of the host's /etc, by name or pattern. Files
// with keys, passwords, users, mounts or host identity are not in it.
var etcNames = []string{
	"alternatives", "bash.bashrc", "bash_completion", "bindresvport.blacklist", "ca-certificates.conf",
	"adduser.conf", "debconf.conf", "debian_version", "deluser.conf", "dpkg", "fonts", "gai.conf", "host.conf", "inputrc", "issue", "java*", "ld.so.cache",
	"ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.gen", "localtime", "login.defs", "lsb-release",
	"magic", "magic.mime", "mailcap", "mime.types", "networks", "nsswitch.conf", "os-release", "perl",
	"protocols", "python*", "R", "rpc", "services", "shells", "skel", "ssl/certs", "ssl/openssl.cnf",
	"terminfo", "timezone", "xattr.conf", "redhat-release", "alpine-release", "crypto-policies", "pki/tls/certs", "pki/ca-trust",
}

// emptyDirs are made in every base, with their modes.
var emptyDirs = []struct {
	path string
	mode fs.FileMode
}{
	{"dev", 0o755}, {"etc", 0o755}, {"home", 0o755}, {"media", 0o755}, {"mnt", 0o755}, {"opt", 0o755}, {"proc", 0o555},
	{"root", 0o700}, {"run", 0o755}, {"srv", 0o755}, {"sys", 0o555}, {"tmp", fs.ModeSticky | 0o777},
	{"var", 0o755}, {"var/cache", 0o755}, {"var/lib", 0o755}, {"var/log", 0o755}, {"var/spool", 0o755},
	{"var/tmp", fs.ModeSticky | 0o777},
}

// etcFiles are written rather than copied.
var etcFiles = map[string]string{
	// The users and groups are those that every Debian has, by its numbers:
	// packages name them.
	"passwd": `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
games:x:5:60:games:/usr/games:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
lp:x:7:7:lp:/var/spool/lpd:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
news:x:9:9:news:/var/spool/news:/usr/sbin/nologin
uucp:x:10:10:uucp:/var/spool/uucp:/usr/sbin/nologin
proxy:x:13:13:proxy:/bin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
list:x:38:38:Mailing List Manager:/var/list:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`,
	"group": `root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
lp:x:7:
mail:x:8:
news:x:9:
uucp:x:10:
man:x:12:
proxy:x:13:
kmem:x:15:
dialout:x:20:
fax:x:21:
voice:x:22:
cdrom:x:24:
floppy:x:25:
tape:x:26:
sudo:x:27:user
audio:x:29:
dip:x:30:
www-data:x:33:
backup:x:34:
operator:x:37:
list:x:38:
irc:x:39:
src:x:40:
shadow:x:42:
utmp:x:43:
video:x:44:
sasl:x:45:
plugdev:x:46:
staff:x:50:
games:x:60:
users:x:100:
user:x:1000:
nogroup:x:65534:
`,
	// Debian's pip refuses to install anything where apt does. A sandbox is
	// there to be changed.
	"pip.conf": "[global]\nbreak-system-packages = true\n",
	"npmrc":    installerSettings["etc/npmrc"],
	// As the agent has it for commands; su and login forget theirs.
	"default/locale": "LANG=C.UTF-8\n",
	"hosts":          "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
	"profile":        profile,
	"resolv.conf":    "nameserver " + runtime.Resolver + "\n",
}

// etcLinks are files that differ in each sandbox. The agent writes them, in memory:
// a fork gets its own, and no layer has one.
var etcLinks = map[string]string{
	"hostname":   agentapi.HostnameFile,
	"machine-id": agentapi.MachineIDFile,
}

// profile is what login shells read. Every command that E2B's clients run is
// one, so that it starts no process of its own.
const profile = `if [ "${EUID:-$(id -u)}" = 0 ]; then
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
	PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games
fi
export PATH
if [ -n "${PS1-}" ] && [ -n "${BASH-}" ] && [ -f /etc/bash.bashrc ]; then
	. /etc/bash.bashrc
fi
for script in /etc/profile.d/*.sh; do
	[ ! -r "$script" ] || . "$script"
done
unset script
`

// UserID is that of the user, and of its group, as which programs run in a
// sandbox unless another is asked for.
const UserID = 1000

const shadowGroup = 42 // as in etcFiles

const baseFormat = "4" // changes when BuildBase would make something else of the same host

// Agent is the program that runs inside every sandbox.
type Agent struct {
	// Sum tells it from every other one.
	Sum string
	// Program returns its bytes, which are needed only where a template is made: to
	// unpack them takes a good part of a server's start.
	Program func() ([]byte, error)
}

// BuildBase makes the template "base" from this host and the agent's program,
// unless it is there already, and returns it. It shows the host's system
// directories, and those of share, which are names below its root.
func (s *Store) BuildBase(agent Agent, share ...string) (Template, error) {
	s.agent = agent
	shown := append(slices.Clone(systemDirs), share...)
	source, err := fingerprint(s.packages, agent.Sum, shown)
	if err != nil {
		return Template{}, fmt.Errorf("build template base: %w", err)
	}
	if t, ok := s.builtFrom(source); ok {
		return t, nil
	}
	program, err := agent.Program()
	if err != nil {
		return Template{}, err
	}
	tmp, err := os.MkdirTemp(s.dir, unfinishedBase)
	if err != nil {
		return Template{}, fmt.Errorf("build template base: %w", err)
	}
	defer os.RemoveAll(tmp)
	t, err := s.buildBase(tmp, program, shown)
	if err != nil {
		return Template{}, fmt.Errorf("build template base: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, t.ID, sourceName), []byte(source), 0o600); err != nil {
		return Template{}, fmt.Errorf("build template base: %w", err)
	}
	s.setAlias(t)
	return t, nil
}

// codeInterpreter is what E2B's code interpreter clients ask for if they are
// not told otherwise. Every base has what they need.
const codeInterpreter = "code-interpreter-v1"

// sourceName is the file of a base that says what it was built from.
const sourceName = "source"

// builtFrom returns the base that was built from the same sources, so that a
// start copies nothing, and needs no space, when nothing has changed.
func (s *Store) builtFrom(source string) (Template, bool) {
	found, err := filepath.Glob(filepath.Join(s.dir, "base*", sourceName))
	if err != nil {
		return Template{}, false
	}
	for _, path := range found {
		data, err := os.ReadFile(path)
		if err != nil || string(data) != source {
			continue
		}
		if t, err := s.Resolve(filepath.Base(filepath.Dir(path))); err == nil {
			s.setAlias(t)
			return t, true
		}
	}
	return Template{}, false
}

func (s *Store) setAlias(t Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alias[t.Alias] = t.ID
	s.alias[codeInterpreter] = t.ID
	s.alias[Host] = t.ID
}

// fingerprint returns a digest of all that a base is built from, by the agent's sum,
// and the names, sizes and times of the host's files; its packages are those at the
// root packages.
func fingerprint(packages, agent string, shown []string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q %q\n", baseFormat, agent, etcFiles, etcLinks)
	roots := []string{"/etc/skel"}
	for _, pattern := range etcNames {
		matches, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			return "", err
		}
		roots = append(roots, matches...)
	}
	for _, name := range shown {
		if info, err := os.Lstat("/" + name); err == nil {
			fmt.Fprintf(h, "%s %s\n", name, info.Mode())
		}
	}
	fmt.Fprintln(h, exists("/usr/bin/python3"), exists("/usr/bin/python"))
	fmt.Fprintf(h, "%q %q %q %q\n", openLocal("/"), installerSettings, pamModules, pamOther)
	roots = append(roots, installerSources(packages)...)
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil {
				fmt.Fprintf(h, "%q %s %d %d\n", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (s *Store) buildBase(tmp string, agent []byte, shown []string) (Template, error) {
	root := filepath.Join(tmp, "root")
	if err := makeRoot(root, s.packages); err != nil {
		return Template{}, err
	}
	if err := makeUsr(filepath.Join(tmp, "usr"), agent); err != nil {
		return Template{}, err
	}
	trees, err := linkSystem(root, shown)
	if err != nil {
		return Template{}, err
	}
	sum, err := hashTree(tmp)
	if err != nil {
		return Template{}, err
	}
	t := Template{ID: "base" + digestOf(sum, trees), Alias: "base"}
	dir := filepath.Join(s.dir, t.ID)
	t.Trees = append([]layer.Tree{{Name: "root", Path: "/", Lowers: []string{filepath.Join(dir, "root")}}}, trees...)
	for i := range t.Trees {
		if t.Trees[i].Name == "usr" {
			t.Trees[i].Lowers = append([]string{filepath.Join(dir, "usr")}, t.Trees[i].Lowers...)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		return t, nil
	}
	data, err := json.Marshal(t)
	if err != nil {
		return Template{}, err
	}
	if err := os.WriteFile(filepath.Join(tmp, manifestName), data, 0o600); err != nil {
		return Template{}, err
	}
	// What has this name is taken for whole, also after a power cut.
	if !planted.In(planted.UnsyncedBase) {
		if err := durable.SyncFilesystem(tmp); err != nil {
			return Template{}, err
		}
	}
	if err := os.Rename(tmp, dir); err != nil {
		return Template{}, err
	}
	return t, durable.Sync(s.dir)
}

// makeRoot makes everything of the template but the system directories.
func makeRoot(root, packages string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	for _, d := range emptyDirs {
		if err := mkdir(filepath.Join(root, d.path), d.mode); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{"var/run": "/run", "var/lock": "/run/lock"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			return err
		}
	}
	if err := copyEtc("/etc", filepath.Join(root, "etc")); err != nil {
		return err
	}
	if err := mkdir(filepath.Join(root, "etc/default"), 0o755); err != nil {
		return err
	}
	for name, text := range etcFiles {
		if err := writeFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for name, text := range accounts(packages) {
		if err := writeFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// PAM's helper, which is of the group shadow, reads it for everybody else.
	shadow := filepath.Join(root, "etc/shadow")
	if err := errors.Join(os.Chown(shadow, 0, shadowGroup), os.Chmod(shadow, 0o640)); err != nil {
		return err
	}
	for name, target := range etcLinks {
		if err := os.Symlink(target, filepath.Join(root, "etc", name)); err != nil {
			return err
		}
	}
	if err := errors.Join(copyPackages(packages, root), copyInstalled(packages, root)); err != nil {
		return err
	}
	return makeHome(filepath.Join(root, "home/user"))
}

// mkdir makes a directory with exactly this mode, whatever the umask.
func mkdir(path string, mode fs.FileMode) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func copyEtc(etc, to string) error {
	for _, pattern := range etcNames {
		matches, err := filepath.Glob(filepath.Join(etc, pattern))
		if err != nil {
			return err
		}
		for _, from := range matches {
			if err := copyTree(from, to+strings.TrimPrefix(from, etc), everything); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyTree copies directories, regular files that everybody may read, and
// symbolic links as they are. What is private to its owner is left out, and so
// are files that are not wanted and what goes away meanwhile.
func copyTree(from, to string, wanted func(path string) bool) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return gone(err)
		}
		info, err := d.Info()
		if err != nil {
			return gone(err)
		}
		target := to + strings.TrimPrefix(path, from)
		switch {
		case d.IsDir():
			if info.Mode().Perm()&0o005 != 0o005 {
				return fs.SkipDir
			}
			return mkdir(target, 0o755)
		case !wanted(path):
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return gone(err)
			}
			return os.Symlink(link, target)
		case d.Type().IsRegular() && info.Mode().Perm()&0o004 != 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return gone(err)
			}
			return writeFile(target, data, info.Mode().Perm()&0o755)
		}
		return nil
	})
}

func everything(string) bool { return true }

// makeHome makes the user's home directory from the usual skeleton.
func makeHome(home string) error {
	if err := mkdir(home, 0o755); err != nil {
		return err
	}
	for _, name := range []string{".bashrc", ".profile", ".bash_logout"} {
		if data, err := os.ReadFile(filepath.Join("/etc/skel", name)); err == nil {
			if err := writeFile(filepath.Join(home, name), data, 0o644); err != nil {
				return err
			}
		}
	}
	return filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, UserID, UserID)
	})
}

// makeUsr makes what lies over the host's /usr: the agent; sudo, which is the
// agent under another name, because the host may have none and its own would
// need a set-up; drowse-hold, the agent too; and python for hosts that only
// call it python3.
func makeUsr(usr string, agent []byte) error {
	for _, d := range []string{"", "bin", "lib", "lib/drowse"} {
		if err := mkdir(filepath.Join(usr, d), 0o755); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(usr, "lib/drowse/agent"), agent, 0o755); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(usr, "bin/sudo"), agent, fs.ModeSetuid|0o755); err != nil {
		return err
	}
	if err := errors.Join(os.Symlink("sudo", filepath.Join(usr, "bin/sudoedit")), os.Symlink("../lib/drowse/agent", filepath.Join(usr, "bin/drowse-hold"))); err != nil {
		return err
	}
	if exists("/usr/bin/python3") && !exists("/usr/bin/python") {
		if err := os.Symlink("python3", filepath.Join(usr, "bin/python")); err != nil {
			return err
		}
	}
	return makeInstallers("/", usr)
}

// gone drops the error of what is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// linkSystem gives each system directory of the host its place: a symbolic
// link stays one, a directory becomes a tree of its own.
func linkSystem(root string, shown []string) ([]layer.Tree, error) {
	var trees []layer.Tree
	for _, name := range shown {
		host := filepath.Join("/", name)
		info, err := os.Lstat(host)
		if err != nil {
			continue
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			link, err := os.Readlink(host)
			if err != nil {
				return nil, err
			}
			if err := errors.Join(gone(os.Remove(filepath.Join(root, name))), os.Symlink(link, filepath.Join(root, name))); err != nil {
				return nil, err
			}
			continue
		}
		if err := mkdir(filepath.Join(root, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		trees = append(trees, layer.Tree{Name: name, Path: host, Lowers: []string{host}, Shared: 1})
	}
	return trees, nil
}

// digestOf returns a short digest of what was generated, and of which directories
// of the host are shown.
func digestOf(generated string, shown []layer.Tree) string {
	h := sha256.New()
	fmt.Fprintln(h, generated)
	for _, tree := range shown {
		fmt.Fprintf(h, "%q %q %q\n", tree.Name, tree.Path, tree.Lowers)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// hashTree returns a hex digest of everything below dir.
func hashTree(dir string) (string, error) {
	h := sha256.New()
	io.WriteString(h, baseFormat)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == "." {
			return nil
		}
		fmt.Fprintf(h, "%q %s\n", rel, info.Mode())
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			fmt.Fprintf(h, "%q\n", link)
			return err
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			fmt.Fprintf(h, "%d\n", len(data))
			h.Write(data)
			return err
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
