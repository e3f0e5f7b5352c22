package template

import (
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestCopyInstalled: a base gets what packages brought into /etc and /var, and
// nothing that administrators wrote there.
func TestCopyInstalled(t *testing.T) {
	host, root := t.TempDir(), t.TempDir()
	sum := func(text string) string { return fmt.Sprintf("%x", md5.Sum([]byte(text))) }
	write := func(name, text string, mode fs.FileMode) {
		t.Helper()
		path := filepath.Join(host, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/tool.d/as-shipped", "shipped", 0o644)
	write("etc/tool.d/edited", "password=secret", 0o644)
	write("etc/tool.d/closed", "shipped", 0o640)
	write("etc/tool.d/obsolete", "shipped", 0o644)
	write("etc/tool.d/own", "of no package", 0o644)
	write("etc/removed", "shipped", 0o644)
	write("etc/apt/apt.conf.d/50hooks", "shipped", 0o644)
	write("etc/profile.d/slow.sh", "shipped", 0o644)
	write("etc/pam.d/su", "auth required pam_winbind.so", 0o644)
	write("etc/pam.d/common-auth", "auth required pam_ldap.so", 0o644)
	write("etc/pam.d/vpn", "auth required pam_ldap.so", 0o644)
	write("var/lib/toold/data", "x", 0o644)
	write("var/lib/dpkg/status", "Package: tool\nStatus: install ok installed\nConffiles:\n /etc/tool.d/as-shipped "+sum("shipped")+
		"\n /etc/tool.d/edited "+sum("shipped")+"\n /etc/tool.d/closed "+sum("shipped")+"\n /etc/tool.d/obsolete "+sum("shipped")+" obsolete\n /etc/tool.d/gone "+sum("")+
		"\n /etc/apt/apt.conf.d/50hooks "+sum("shipped")+"\n /etc/profile.d/slow.sh "+sum("shipped")+"\n /etc/pam.d/su "+sum("shipped")+"\n /etc/../etc/x "+sum("")+
		"\nDescription: a tool\n /etc/tool.d/own "+sum("of no package")+
		"\n\nPackage: old\nStatus: deinstall ok config-files\nConffiles:\n /etc/removed "+sum("shipped")+"\n", 0o644)
	write("var/lib/dpkg/info/tool.list", "/.\n/etc\n/etc/tool.d\n/etc/tool.link\n/var\n/var/lib\n/var/lib/toold\n/var/run/toold\n/usr/bin/tool\n", 0o644)
	write("var/lib/dpkg/info/tool.postinst", "adduser --system toold\nadduser x-toold-y\n", 0o755)
	write("etc/passwd", "root:x:0:0:The boss:/root:/bin/zsh\ntoold:x:107:117:Of room 7,,,:/var/lib/toold:/bin/false\ndeploy:x:108:118::/srv:/bin/sh\nx-toold:x:109:117::/:\nme:x:1001:1001::/home/me:\ngames:x:105:60::/:\n", 0o644)
	write("etc/group", "toold:x:117:me,toold\ndeploy:x:118:\n", 0o644)
	if err := errors.Join(
		os.Symlink("tool.d/as-shipped", filepath.Join(host, "etc/tool.link")),
		os.Chown(filepath.Join(host, "var/lib/toold"), 107, 118), os.Chmod(filepath.Join(host, "var/lib/toold"), fs.ModeSticky|0o770),
		os.MkdirAll(filepath.Join(host, "var/run/toold"), 0o755),
		os.MkdirAll(filepath.Join(root, "etc"), 0o755), os.MkdirAll(filepath.Join(root, "var/lib"), 0o755), os.Symlink("/run", filepath.Join(root, "var/run")),
	); err != nil {
		t.Fatal(err)
	}
	for name, text := range accounts(host) {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyInstalled(host, root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat("/run/toold"); err == nil {
		t.Error("a link in the base leads out of it")
	}
	for name, want := range map[string]string{
		"etc/tool.d/as-shipped": "shipped",
		"etc/pam.d/su":          "auth sufficient pam_rootok.so\n" + pamOther,
		"etc/pam.d/common-auth": pamModules["common-auth"],
		"etc/passwd":            etcFiles["passwd"] + "toold:x:107:117::/var/lib/toold:/bin/false\n",
		"etc/group":             etcFiles["group"] + "toold:x:117:toold\n",
	} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	var copied []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			copied = append(copied, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	want := []string{
		"etc/group", "etc/pam.d/common-account", "etc/pam.d/common-auth", "etc/pam.d/common-password", "etc/pam.d/common-session",
		"etc/pam.d/common-session-noninteractive", "etc/pam.d/other", "etc/pam.d/su", "etc/passwd", "etc/shadow", "etc/tool.d/as-shipped", "etc/tool.link", "var/run",
	}
	if err != nil || !slices.Equal(copied, want) {
		t.Errorf("copied %q, %v; want %q", copied, err, want)
	}
	info, err := os.Stat(filepath.Join(root, "var/lib/toold"))
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o770 {
		t.Fatalf("var/lib/toold: %v, %v", info, err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 107 || st.Gid != 0 {
		t.Errorf("it is of %d:%d, want the user of the package, and no group that the base does not have", st.Uid, st.Gid)
	}
}
