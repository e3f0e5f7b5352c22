package template

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

func buildBase(t *testing.T, dir string, agent string) (*Store, Template) {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.packages = t.TempDir() // none
	base, err := s.BuildBase(agentOf(agent))
	if err != nil {
		t.Fatal(err)
	}
	return s, base
}

func TestBaseIsStableAndNamedByContent(t *testing.T) {
	dir := t.TempDir()
	s, first := buildBase(t, dir, "agent 1")
	_, again := buildBase(t, dir, "agent 1")
	if first.ID != again.ID {
		t.Errorf("the same host gave %s and %s", first.ID, again.ID)
	}
	packed := agentOf("agent 1")
	packed.Program = func() ([]byte, error) { return nil, errors.New("the agent was unpacked") }
	if built, err := s.BuildBase(packed); err != nil || built.ID != first.ID {
		t.Errorf("a base that is there: %s, %v", built.ID, err)
	}
	_, other := buildBase(t, dir, "agent 2")
	if other.ID == first.ID {
		t.Error("another agent gave the same id")
	}
	for _, name := range []string{"base", " Base ", "code-interpreter-v1", first.ID} {
		got, err := s.Resolve(name)
		if err != nil || got.ID != first.ID {
			t.Errorf("resolve %q: %s, %v", name, got.ID, err)
		}
	}
	for _, name := range []string{"", "nope", "..", "../base", "base/../base", "a.b"} {
		if _, err := s.Resolve(name); !errdef.Is(err, errdef.NotFound) {
			t.Errorf("resolve %q: %v, want not_found", name, err)
		}
	}
}

// TestOptIsSharedOnlyIfAskedFor: a start with other directories makes another
// base, and finds the first again.
func TestOptIsSharedOnlyIfAskedFor(t *testing.T) {
	if _, err := os.Stat("/opt"); err != nil {
		t.Fatalf("this host has no /opt to show: %v", err)
	}
	dir := t.TempDir()
	ids := map[bool]string{}
	for _, shown := range []bool{false, true, false, true} {
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		s.packages = t.TempDir()
		var share []string
		if shown {
			share = []string{Opt}
		}
		if _, err := s.BuildBase(agentOf("agent"), share...); err != nil {
			t.Fatal(err)
		}
		base, err := s.Resolve("base")
		if err != nil {
			t.Fatal(err)
		}
		if has := slices.ContainsFunc(base.Trees, func(tree layer.Tree) bool { return tree.Path == "/opt" }); has != shown {
			t.Errorf("the base %s shows /opt: %v, want %v", base.ID, has, shown)
		}
		if id, ok := ids[shown]; ok && id != base.ID {
			t.Errorf("another base, %s, where %s was one", base.ID, id)
		}
		ids[shown] = base.ID
		if _, err := os.Stat(filepath.Join(s.Dir(base.ID), "root/opt")); err != nil {
			t.Error(err)
		}
	}
}

func TestOldBasesGo(t *testing.T) {
	dir := t.TempDir()
	_, old := buildBase(t, dir, "agent 1")
	_, used := buildBase(t, dir, "agent 2")
	s, current := buildBase(t, dir, "agent 3")
	for _, name := range []string{".base-unfinished", "other"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	isUsed := func(id string) bool { return id == used.ID }
	// Who has built none does not know which is current.
	if bases, err := At(dir).OldBases(isUsed); err != nil || !slices.Equal(bases, []string{".base-unfinished"}) {
		t.Errorf("old without a current one: %v, %v", bases, err)
	}
	bases, err := s.OldBases(isUsed)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range bases {
		if err := s.RemoveBase(id); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{used.ID, current.ID, "other"}
	slices.Sort(want)
	slices.Sort(left)
	if !slices.Equal(left, want) {
		t.Errorf("left %v, want %v (%s is old)", left, want, old.ID)
	}
}

// TestSystem: the digest of what a template shows of the host tells other files
// from the same, and not when they were installed.
func TestSystem(t *testing.T) {
	host := t.TempDir()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shown := Template{Trees: []layer.Tree{{Name: "usr", Lowers: []string{s.Dir("base1/usr"), host}}}}
	digest := func(of Template) string {
		t.Helper()
		system, err := s.System(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		return system.Digest
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(host, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("program", "1")
	first := digest(shown)
	write("program", "2")
	if err := os.Mkdir(filepath.Join(host, "__pycache__"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("__pycache__/x", "1")
	if digest(shown) != first {
		t.Error("another time of the same changes it")
	}
	write("program", "12")
	second := digest(shown)
	write("more", "")
	if third := digest(shown); first == second || second == third {
		t.Errorf("a change of the host is not seen: %s, %s, %s", first, second, third)
	}
	if digest(Template{Trees: []layer.Tree{{Name: "usr", Lowers: []string{s.Dir("base1/usr")}}}}) != "" {
		t.Error("a template that shows nothing of the host has a digest of it")
	}
}

// TestBaseShowsNothingPrivate walks all that was generated: nothing of the
// host's secrets, homes or identity may be in it.
func TestBaseShowsNothingPrivate(t *testing.T) {
	dir := t.TempDir()
	_, base := buildBase(t, dir, "agent")
	root := filepath.Join(dir, base.ID, "root")
	for _, empty := range []string{"root", "home/user/.ssh", "var/lib/apt/lists/partial", "var/log/apt", "srv", "mnt", "etc/ssh", "etc/ssl/private", "etc/sudoers", "etc/fstab", "etc/crontab"} {
		entries, err := os.ReadDir(filepath.Join(root, empty))
		if err == nil && len(entries) > 0 {
			t.Errorf("%s has %d entries", empty, len(entries))
		}
		if _, err := os.Lstat(filepath.Join(root, empty)); err == nil && strings.HasPrefix(empty, "etc/") {
			t.Errorf("%s exists", empty)
		}
	}
	if target, err := os.Readlink(filepath.Join(root, "etc/machine-id")); err != nil || target != agentapi.MachineIDFile {
		t.Errorf("etc/machine-id leads to %q, %v", target, err)
	}
	want := accounts(t.TempDir())
	for _, name := range []string{"shadow", "passwd", "group"} {
		got, err := os.ReadFile(filepath.Join(root, "etc", name))
		if err != nil || string(got) != want[name] {
			t.Errorf("%s is not the generated one: %v", name, err)
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&(fs.ModeDevice|fs.ModeSocket|fs.ModeNamedPipe) != 0 {
			t.Errorf("%s is %s", path, d.Type())
		}
		if strings.HasSuffix(path, ".key") {
			t.Errorf("a key: %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestEtc copies what programs need of an /etc: among it the configuration of R,
// without which R does not find its libraries.
func TestEtc(t *testing.T) {
	etc, to := t.TempDir(), t.TempDir()
	for name, mode := range map[string]fs.FileMode{
		"R/Renviron": 0o644, "R/Rprofile.site": 0o644, "R/secret": 0o600, "os-release": 0o644, "shadow": 0o644, "Rserve.pwd": 0o644,
	} {
		path := filepath.Join(etc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyEtc(etc, to); err != nil {
		t.Fatal(err)
	}
	var copied []string
	err := filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			copied = append(copied, strings.TrimPrefix(path, to+"/"))
		}
		return err
	})
	if want := []string{"R/Renviron", "R/Rprofile.site", "os-release"}; err != nil || !slices.Equal(copied, want) {
		t.Errorf("copied %q, %v; want %q", copied, err, want)
	}
}

func TestBaseTrees(t *testing.T) {
	dir := t.TempDir()
	_, base := buildBase(t, dir, "agent")
	var usr []string
	for _, tree := range base.Trees {
		for _, l := range tree.Lowers {
			if !strings.HasPrefix(l, dir) && !slices.Contains(systemDirs, strings.TrimPrefix(l, "/")) {
				t.Errorf("the host's %s is shown", l)
			}
		}
		if tree.Name == "usr" {
			usr = tree.Lowers
		}
	}
	if base.Trees[0].Path != "/" || len(usr) != 2 || usr[1] != "/usr" {
		t.Fatalf("trees %+v", base.Trees)
	}
	agent, err := os.Stat(filepath.Join(usr[0], strings.TrimPrefix(AgentPath, "/usr/")))
	if err != nil || agent.Mode() != 0o755 {
		t.Errorf("agent: %v, %v", agent, err)
	}
	sudo, err := os.Stat(filepath.Join(usr[0], "bin/sudo"))
	if err != nil || sudo.Mode() != fs.ModeSetuid|0o755 {
		t.Errorf("sudo: %v, %v", sudo, err)
	}
	home, err := os.Stat(filepath.Join(dir, base.ID, "root/home/user"))
	if err != nil || home.Mode().Perm() != 0o755 {
		t.Errorf("home: %v, %v", home, err)
	}
}

// TestNamesOfNothing: what cannot be the name of a file is the name of no template.
func TestNamesOfNothing(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "../oci", "oci/blobs", "a:b", "nothing", "a\x00b", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("x", 10_000), "img" + strings.Repeat("0", 300)} {
		if _, err := s.Resolve(name); !errdef.Is(err, errdef.NotFound) {
			t.Errorf("%.20q: %v", name, err)
		}
	}
}

// agentOf returns an agent whose program is a text.
func agentOf(text string) Agent {
	return Agent{Sum: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Program: func() ([]byte, error) { return []byte(text), nil }}
}
