package agent

import (
	"path/filepath"
	"strings"
	"testing"
)

var resolved = []struct{ path, home, workdir, want string }{
	{"", "/home/user", "", "/home/user"},
	{"", "/home/user", "/work", "/work"},
	{"", "/home/user", "~/code", "/home/user/code"},
	{"~", "/home/user", "/work", "/home/user"},
	{"~/x", "/home/user", "/work", "/home/user/x"},
	{"~/../x", "/home/user", "", "/home/x"},
	{"~name", "/home/user", "", ""},
	{"hello.txt", "/root", "/work", "/root/hello.txt"},
	{"./a/../b", "/root", "", "/root/b"},
	{"..", "/home/user", "", "/home"},
	{"/a/../b/", "/root", "", "/a/../b/"},
	{"a~b", "/root", "", "/root/a~b"},
	{"x", "", "", "/x"},
	{"a\x00b", "/root", "", ""},
}

func TestResolvePath(t *testing.T) {
	for _, tt := range resolved {
		t.Run(tt.path, func(t *testing.T) {
			got, err := resolvePath(tt.path, tt.home, tt.workdir)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("= %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// Every path that is accepted is absolute and fit for a system call, and what
// was relative cannot contain dots any more.
func FuzzResolvePath(f *testing.F) {
	for _, tt := range resolved {
		f.Add(tt.path, tt.home, tt.workdir)
	}
	for _, path := range []string{
		"/", "../..", "~/", "~//x", "~/../../..", "~\x00", "//", "/..", "./", "...", "a/../../..", "a//b/./c/", "\xff/~", "~\xff", "\n", "~/\x00",
		strings.Repeat("../", 100) + "etc/passwd", strings.Repeat("x", 5000), "~" + strings.Repeat("/..", 100),
	} {
		for _, workdir := range []string{"", "/work", "~", "~/code", "../..", "rel/", "~other"} {
			f.Add(path, "/home/user", workdir)
		}
		f.Add(path, "", "")
		f.Add(path, "/", "/")
		f.Add(path, "home", "")
	}
	f.Fuzz(func(t *testing.T, path, home, workdir string) {
		if strings.ContainsRune(home+workdir, 0) {
			return // from the passwd file and the host, not from a client
		}
		got, err := resolvePath(path, home, workdir)
		if err != nil {
			return
		}
		if !filepath.IsAbs(got) || strings.ContainsRune(got, 0) {
			t.Errorf("resolvePath(%q) = %q", path, got)
		}
		if path != "" && path[0] != '/' && path[0] != '~' && got != filepath.Clean(got) {
			t.Errorf("resolvePath(%q) = %q, not clean", path, got)
		}
	})
}
