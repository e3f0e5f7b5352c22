// Package packaging tests what a release is made of: its archives, and the script
// that installs them.
package packaging

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// program stands for drowse: it has a version, and writes down what it is asked.
const program = `#!/bin/sh
echo "drowse $*" >>/log
case $1 in
version) echo "drowse     VERSION"; echo "go         1" ;;
completion) echo "complete drowse" ;;
pause) [ ! -e /awake ] ;;
esac
`

const systemctl = `#!/bin/sh
echo "systemctl $*" >>/log
case $1 in
is-active) [ -e /active ] ;;
restart) [ ! -e /broken ] && : >/active ;;
disable) rm -f /active ;;
esac
`

// release makes a release of one version in a new directory below dir.
func release(t *testing.T, dir, version, program string) string {
	t.Helper()
	made, err := os.MkdirTemp(dir, "release")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(made, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(made, "drowse-linux-"+runtime.GOARCH), strings.ReplaceAll(program, "VERSION", version), 0o755)
	archives(t, made, version)
	return made
}

func archives(t *testing.T, dir, version string) {
	t.Helper()
	cmd := exec.Command("../script/archives", version, dir)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("script/archives: %v\n%s", err, out)
	}
}

func write(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func digest(t *testing.T, name string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(read(t, name)))
	return hex.EncodeToString(sum[:])
}

// TestArchives makes archives of the same files at another time and with other
// modes, and looks at what is in them.
func TestArchives(t *testing.T) {
	dir := release(t, t.TempDir(), "1.2.3", program)
	name := filepath.Join(dir, "drowse-1.2.3-linux-"+runtime.GOARCH+".tar.gz")
	first := digest(t, name)
	sums := read(t, filepath.Join(dir, "SHA256SUMS"))

	binary := filepath.Join(dir, "drowse-linux-"+runtime.GOARCH)
	if err := errors.Join(os.Chmod(binary, 0o700), os.Chtimes(binary, time.Unix(1, 0), time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	defer syscall.Umask(syscall.Umask(0o077))
	archives(t, dir, "1.2.3")
	if got := digest(t, name); got != first {
		t.Errorf("the archive's digest is %s, and was %s", got, first)
	}
	if got := read(t, filepath.Join(dir, "SHA256SUMS")); got != sums {
		t.Errorf("SHA256SUMS is\n%s\nand was\n%s", got, sums)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != "SHA256SUMS" && !strings.Contains(sums, digest(t, filepath.Join(dir, f.Name()))+"  "+f.Name()+"\n") {
			t.Errorf("SHA256SUMS lacks %s", f.Name())
		}
	}

	var got []string
	contents := entries(t, name)
	for _, h := range contents {
		got = append(got, fmt.Sprintf("%s %o", strings.TrimPrefix(h.Name, "drowse-1.2.3-linux-"+runtime.GOARCH+"/"), h.Mode))
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s belongs to %d:%d (%q, %q), and is of %s", h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime)
		}
	}
	want := []string{
		" 755", "INSTALL 644", "LICENSE 644", "SHA256SUMS 644", "drowse 755", "drowse.cil 644", "drowse.default 644",
		"drowse.service 644", "install.sh 755", "monitoring/ 755", "monitoring/alerts.yml 644", "monitoring/dashboard.json 644",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the archive has\n%q, want\n%q", got, want)
	}
}

func entries(t *testing.T, name string) []*tar.Header {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("the compression notes the time %s and the name %q", z.ModTime, z.Name)
	}
	var all []*tar.Header
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
}

// machine is a root directory with BusyBox, in which the script runs.
type machine struct {
	t    *testing.T
	root string
	uid  uint32
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a root directory of its own takes root")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is missing: apt-get install busybox-static")
	}
	m := &machine{t: t, root: t.TempDir()}
	write(t, m.path("bin/busybox"), read(t, busybox), 0o755)
	for dir, mode := range map[string]fs.FileMode{"tmp": 0o777 | fs.ModeSticky, "proc": 0o755, "dev": 0o755, "usr/local/bin": 0o755} {
		if err := errors.Join(os.MkdirAll(m.path(dir), 0o755), os.Chmod(m.path(dir), mode)); err != nil {
			t.Fatal(err)
		}
	}
	null := m.path("dev/null")
	if err := errors.Join(syscall.Mknod(null, syscall.S_IFCHR, 1<<8|3), os.Chmod(null, 0o666), os.Chmod(filepath.Dir(m.root), 0o755)); err != nil {
		t.Fatal(err)
	}
	if out, err := m.command("/bin/busybox", "--install", "-s", "/bin").CombinedOutput(); err != nil {
		t.Fatalf("busybox: %v\n%s", err, out)
	}
	write(t, m.path("install.sh"), read(t, "install.sh"), 0o755)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

func (m *machine) has(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// withSystemd has the machine run systemd.
func (m *machine) withSystemd() {
	write(m.t, m.path("run/systemd/system/made"), "", 0o644)
	write(m.t, m.path("bin/systemctl"), systemctl, 0o755)
}

func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(m.t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/bin:/usr/local/bin", "TMPDIR=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root, Credential: &syscall.Credential{Uid: m.uid, Gid: m.uid}}
	return cmd
}

// install runs the script, and returns what it printed and what it called.
func (m *machine) install(args ...string) (out, calls string, err error) {
	m.t.Helper()
	_ = os.Remove(m.path("log"))
	printed, err := m.command(append([]string{"/bin/sh", "/install.sh"}, args...)...).CombinedOutput()
	log, _ := os.ReadFile(m.path("log"))
	return string(printed), string(log), err
}

func (m *machine) mustInstall(args ...string) (out, calls string) {
	m.t.Helper()
	out, calls, err := m.install(args...)
	if err != nil {
		m.t.Fatalf("install.sh %q: %v\n%s", args, err, out)
	}
	return out, calls
}

// release makes a release inside the machine, and returns where it is there.
func (m *machine) release(version, program string) string {
	m.t.Helper()
	return strings.TrimPrefix(release(m.t, m.root, version, program), m.root)
}

// tree is everything on the machine but the log, by its digest.
func (m *machine) tree() map[string]string {
	m.t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(m.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Type().IsRegular() && d.Name() != "log":
			tree[path] = digest(m.t, path)
		case !d.Type().IsRegular():
			tree[path] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return tree
}

// unchanged fails the test for each file that is not as in the tree before.
func (m *machine) unchanged(before map[string]string) {
	m.t.Helper()
	after := m.tree()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			m.t.Errorf("%s is %q, and was %q", name, after[name], before[name])
		}
		delete(after, name)
	}
	for name := range after {
		m.t.Errorf("%s is new", name)
	}
}

func contains(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in\n%s", w, text)
		}
	}
}

func TestInstall(t *testing.T) {
	m := newMachine(t)
	m.withSystemd()
	first, second := m.release("1.0.0", program), m.release("1.1.0", program)

	out, calls := m.mustInstall(first)
	contains(t, out, "installed: drowse 1.0.0")
	contains(t, calls, "systemctl daemon-reload\nsystemctl enable drowse.service\n", "systemctl restart drowse.service")
	for name, want := range map[string]string{
		"usr/local/lib/systemd/system/drowse.service": read(t, "drowse.service"), "etc/default/drowse": read(t, "drowse.default"),
		"usr/local/share/drowse/drowse.cil": read(t, "drowse.cil"), "usr/local/share/drowse/monitoring/alerts.yml": read(t, "monitoring/alerts.yml"),
		"usr/local/share/bash-completion/completions/drowse": "complete drowse\n", "usr/local/share/zsh/site-functions/_drowse": "complete drowse\n",
		"usr/local/share/fish/vendor_completions.d/drowse.fish": "complete drowse\n",
	} {
		if got := read(t, m.path(name)); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}

	write(t, m.path("etc/default/drowse"), "DROWSE_MAX_RUNNING=1\n", 0o644)
	out, calls = m.mustInstall(first)
	contains(t, out, "installed already: drowse 1.0.0")
	if strings.Contains(calls, "restart") {
		t.Errorf("the same version again restarts the server:\n%s", calls)
	}

	out, calls = m.mustInstall(second)
	contains(t, out, "upgraded: drowse 1.0.0 -> drowse 1.1.0")
	contains(t, calls, "systemctl restart drowse.service")
	if got := read(t, m.path("etc/default/drowse")); got != "DROWSE_MAX_RUNNING=1\n" {
		t.Errorf("the upgrade changed the settings to %q", got)
	}

	write(t, m.path("var/lib/drowse/drowse.db"), "all of it", 0o600)
	_, calls = m.mustInstall("--uninstall")
	contains(t, calls, "drowse pause --all --state-dir /var/lib/drowse\nsystemctl disable --now drowse.service\n")
	if m.has("usr/local/bin/drowse") || m.has("usr/local/share/drowse") || m.has("usr/local/share/zsh/site-functions/_drowse") || m.has("usr/local/lib/systemd/system/drowse.service") {
		t.Error("the program is still there")
	}
	if !m.has("var/lib/drowse/drowse.db") || !m.has("etc/default/drowse") {
		t.Error("the state or the settings are gone")
	}
	m.mustInstall("--uninstall") // nothing is there

	m.mustInstall(second)
	_, calls = m.mustInstall("--uninstall", "--purge")
	contains(t, calls, "drowse kill --all --yes --state-dir /var/lib/drowse\n")
	if m.has("var/lib/drowse") || m.has("etc/default/drowse") {
		t.Error("the purge left files")
	}
}

// TestInstallUnpacked installs out of an archive that somebody has unpacked.
func TestInstallUnpacked(t *testing.T) {
	m := newMachine(t)
	dir := m.release("1.0.0", program)
	name := "drowse-1.0.0-linux-" + runtime.GOARCH
	if out, err := exec.Command("tar", "-C", m.root, "-xzf", m.path(dir+"/"+name+".tar.gz")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := m.command("/bin/sh", "/"+name+"/install.sh").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	contains(t, string(out), "installed: drowse 1.0.0", `Start "drowse serve" as root`)

	write(t, m.path(name+"/drowse.service"), "another", 0o644)
	failed, _, err := m.install("/" + name)
	if err == nil {
		t.Error("a changed file of an archive was installed")
	}
	contains(t, failed, "drowse.service is damaged or incomplete")
}

// TestInstallRefuses has inputs that are wrong. Each is refused with what happened
// and the next step, and leaves the machine as it was.
func TestInstallRefuses(t *testing.T) {
	whole := func(m *machine) string { return m.release("1.1.0", program) }
	archive := "drowse-1.1.0-linux-" + runtime.GOARCH + ".tar.gz"
	for name, c := range map[string]struct {
		prepare func(m *machine) []string // returns the arguments
		want    string
	}{
		"option":      {func(m *machine) []string { return []string{"--force", whole(m)} }, "there is no option --force"},
		"two sources": {func(m *machine) []string { return []string{whole(m), "/tmp"} }, "more than one SOURCE"},
		"purge alone": {func(m *machine) []string { return []string{"--purge", whole(m)} }, "goes with --uninstall"},
		"sums":        {func(m *machine) []string { return []string{"--sums", "abc", whole(m)} }, "--sums takes a SHA-256"},
		"no sums":     {func(*machine) []string { return []string{"--sums"} }, "--sums takes a SHA-256"},
		"other sums":  {func(m *machine) []string { return []string{"--sums", strings.Repeat("0", 64), whole(m)} }, "another SHA-256 than --sums says"},
		"not root":    {func(m *machine) []string { m.uid = 65534; return []string{whole(m)} }, "this needs root"},
		"no such":     {func(*machine) []string { return []string{"/nowhere"} }, "/nowhere is no directory"},
		"empty":       {func(*machine) []string { return []string{"/tmp"} }, "/tmp has no file SHA256SUMS"},
		"scheme":      {func(*machine) []string { return []string{"ftp://192.0.2.1/drowse"} }, "no address that this can fetch"},
		"plain HTTP":  {func(*machine) []string { return []string{"http://192.0.2.1/drowse"} }, "can be changed on the way"},
		"unverified":  {func(*machine) []string { return []string{"https://192.0.2.1/drowse"} }, "curl is missing"},
		"a web page": {func(m *machine) []string {
			dir := whole(m)
			write(m.t, m.path(dir+"/SHA256SUMS"), "<html>", 0o644)
			return []string{dir}
		}, "is no list of digests"},
		"a path that leads out": {func(m *machine) []string {
			dir := whole(m)
			write(m.t, m.path(dir+"/SHA256SUMS"), strings.Repeat("0", 64)+"  drowse\n"+strings.Repeat("0", 64)+"  a/../../x\n", 0o644)
			return []string{dir}
		}, "is no list of digests"},
		"other machine": {func(m *machine) []string {
			dir := whole(m)
			write(m.t, m.path(dir+"/SHA256SUMS"), strings.Repeat("0", 64)+"  drowse-1.1.0-linux-m68k.tar.gz\n", 0o644)
			return []string{dir}
		}, "does not have exactly one archive for linux-"},
		"half": {func(m *machine) []string {
			dir := whole(m)
			if err := os.Truncate(m.path(dir+"/"+archive), 1000); err != nil {
				m.t.Fatal(err)
			}
			return []string{dir}
		}, "damaged or incomplete"},
		"missing": {func(m *machine) []string {
			dir := whole(m)
			if err := os.Remove(m.path(dir + "/" + archive)); err != nil {
				m.t.Fatal(err)
			}
			return []string{dir}
		}, "has no file drowse-1.1.0"},
		"does not start": {func(m *machine) []string { return []string{m.release("1.1.0", "#!/bin/sh\nexit 1\n")} }, "does not start on this machine"},
		"a package": {func(m *machine) []string {
			write(m.t, m.path("usr/bin/drowse"), program, 0o755)
			return []string{whole(m)}
		}, "a package has installed drowse"},
		"some are awake": {func(m *machine) []string {
			write(m.t, m.path("awake"), "", 0o644)
			return []string{"--uninstall"}
		}, "not all sandboxes could be paused"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.withSystemd()
			m.mustInstall(m.release("1.0.0", program))
			args := c.prepare(m)
			before := m.tree()
			out, _, err := m.install(args...)
			if err == nil {
				t.Errorf("it succeeded:\n%s", out)
			}
			contains(t, out, c.want, "\nNothing was changed.\nNext: ")
			m.unchanged(before)
		})
	}
}

// TestInstallStopsHalfWay has a file that cannot be written. The program is replaced
// last, so the one before stays.
func TestInstallStopsHalfWay(t *testing.T) {
	m := newMachine(t)
	m.withSystemd()
	m.mustInstall(m.release("1.0.0", program))
	monitoring := m.path("usr/local/share/drowse/monitoring")
	if err := os.RemoveAll(monitoring); err != nil {
		t.Fatal(err)
	}
	write(t, monitoring, "no directory", 0o644)
	dir := m.release("1.1.0", program)
	out, calls, err := m.install(dir)
	if err == nil {
		t.Error("it succeeded")
	}
	contains(t, out, "/usr/local/share/drowse/monitoring/alerts.yml could not be written", "the server was not restarted", "Next: ")
	if strings.Contains(calls, "restart") || !strings.Contains(read(t, m.path("usr/local/bin/drowse")), "1.0.0") || m.has("usr/local/bin/drowse.try") {
		t.Error("the program was replaced, or is there twice")
	}
	if err := os.Remove(monitoring); err != nil {
		t.Fatal(err)
	}
	out, calls = m.mustInstall(dir)
	contains(t, out, "upgraded: drowse 1.0.0 -> drowse 1.1.0")
	contains(t, calls, "systemctl restart")
}

// TestInstallStartFails has a server that does not start after an upgrade.
func TestInstallStartFails(t *testing.T) {
	m := newMachine(t)
	m.withSystemd()
	m.mustInstall(m.release("1.0.0", program))
	write(t, m.path("broken"), "", 0o644)
	dir := m.release("1.1.0", program)
	out, _, err := m.install(dir)
	if err == nil {
		t.Error("it succeeded")
	}
	contains(t, out, "the server does not start", "drowse is installed", "Next: see \"drowse doctor\"")
}

// TestInstallFromServer fetches a release, and then one of which a half arrives.
func TestInstallFromServer(t *testing.T) {
	m := newMachine(t)
	dir := m.path(m.release("1.0.0", program))
	var half atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if half.Load() && strings.HasSuffix(r.URL.Path, ".gz") {
			w.Header().Set("Content-Length", "1000000")
			_, _ = w.Write([]byte("half of it"))
			panic(http.ErrAbortHandler)
		}
		http.FileServer(http.Dir(dir)).ServeHTTP(w, r)
	}))
	defer server.Close()
	args := []string{"--sums", digest(t, filepath.Join(dir, "SHA256SUMS")), server.URL + "/"}

	half.Store(true)
	before := m.tree()
	out, _, err := m.install(args...)
	if err == nil {
		t.Error("half of an archive was installed")
	}
	contains(t, out, "could not be fetched", "Nothing was changed.")
	m.unchanged(before)
	half.Store(false)
	out, _ = m.mustInstall(args...)
	contains(t, out, "installed: drowse 1.0.0")
}
