package gvisor

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
)

var golden = flag.Bool("golden", false, "write the present protocol between builds into testdata")

// TestProtocolForm: what one build asks another, and what it answers, is what it
// was in the first build that knows the protocol.
func TestProtocolForm(t *testing.T) {
	forms := []any{
		question{
			Protocol: 1, Ask: askCreate, Dir: "/dir", ID: "id", Bundle: "/bundle", Image: "/image", Netns: "/netns", Cgroups: "/cgroups",
			Spec: &peerSpec{Rootfs: "/root", Args: []string{"a"}, Env: []string{"A=1"}, Hostname: "host", CPUs: 2, MemoryMiB: 3, PIDs: 4, Mounts: []peerMount{{"/from", "/to"}}},
		},
		[]ask{askBuild, askCreate, askFind, askRestore, askFreeze, askThaw, askStopped, askCheckpoint},
		answer{Protocol: 1, Error: "error", Missing: true, Running: true, Version: "gvisor v1", Edits: "edits", Sentry: 2, Gofer: 3, MemoryLimit: 4, LateRoot: true, Stopped: true},
		[]string{peerName, placeVariable},
	}
	got, err := json.MarshalIndent(forms, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", "protocol-1.json")
	if *golden {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("builds that are kept on disk speak another protocol (%v): only add fields that may be missing.\n%s", err, got)
	}
}

// TestPeerSpec: another build is told everything that a runtime is made of, so
// that it describes the same one to its gVisor.
func TestPeerSpec(t *testing.T) {
	spec := runtime.Spec{
		ID: "i00000001", Rootfs: "/root", Args: []string{"/agent"}, Env: []string{"A=1"}, Hostname: "host",
		Limits: runtime.Limits{CPUs: 2, MemoryMiB: 256, PIDs: 512}, Mounts: []runtime.Mount{{Source: "/from", Path: "/to"}},
	}
	// What is not told is given to the runtime from outside.
	if got := peerSpecOf(spec).spec(spec.ID); !reflect.DeepEqual(got, spec) {
		t.Errorf("told as %+v, want %+v", got, spec)
	}
	for i := range reflect.TypeFor[runtime.Spec]().NumField() {
		name := reflect.TypeFor[runtime.Spec]().Field(i).Name
		told := !reflect.ValueOf(spec).Field(i).IsZero()
		outside := name == "Owner" || name == "Network" || name == "Sharers" || name == "Build" || name == "Unread" || name == "AllFirst" || name == "Late" || name == "Disk"
		if told == outside {
			t.Errorf("%s: decide whether another build has to know it, and add it here", name)
		}
	}
}

// copyOfSelf is this program as another build.
func copyOfSelf(t *testing.T) *builds.Program {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return programOf(t, append(program, "another build"...))
}

func programOf(t *testing.T, data []byte) *builds.Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := builds.Of(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestReader has images of every kind find what reads them.
func TestReader(t *testing.T) {
	needStatic(t)
	d, err := at(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d.kept = builds.At(filepath.Join(t.TempDir(), "builds"))
	self, err := builds.Self()
	if err != nil {
		t.Fatal(err)
	}
	other, unknown := copyOfSelf(t), strings.Repeat("0", 64)
	damaged, noBuild := programOf(t, []byte("damaged")), programOf(t, []byte("#!/bin/sh\necho '{}'\n"))
	for _, p := range []*builds.Program{other, damaged, noBuild} {
		if err := d.kept.Keep(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(d.kept.Path(damaged.Digest), []byte("changed"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, digest, version string
		want, says            string
	}{
		{"its own", self.Digest, imageVersion(), self.Digest, ""},
		{"another build's, which is kept", other.Digest, imageVersion(), other.Digest, ""},
		{"another build's of this gVisor, which is not here", unknown, imageVersion(), self.Digest, ""},
		{"another build's of this gVisor, which is damaged", damaged.Digest, imageVersion(), self.Digest, ""},
		{"an older server's, of this gVisor", "", imageVersion(), self.Digest, ""},
		{"an older server's, of another gVisor", "", "gvisor v0", "", "no build that can is kept"},
		{"another gVisor's, which is not here", unknown, "gvisor v0", "", "not kept here"},
		{"another gVisor's, which is damaged", damaged.Digest, "gvisor v0", "", "damaged"},
		{"a program's that is no drowse", noBuild.Digest, "gvisor v0", "", "version of build"},
		{"a build's that reads something else", other.Digest, "gvisor v0", "", "it reads images of " + imageVersion()},
		{"no build's", "../../bin/sh", "gvisor v0", "", "no digest"},
	} {
		got, err := d.Reader(c.digest, c.version)
		if got.Digest != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("the image is %s: %+v, %v; want %q, %q", c.name, got, err, c.want, c.says)
		}
		if err != nil && !errdef.Is(err, errdef.Unavailable) {
			t.Errorf("the image is %s: %v; want the class of what may come back", c.name, err)
		}
	}
}

// TestRestoreByAnotherBuild: a runtime of another build has its program, and goes
// on where the captured one was. What makes its processes is that build, although
// this one speaks with them, as both have the same gVisor.
func TestRestoreByAnotherBuild(t *testing.T) {
	r := newRig(t)
	d := r.reopen(t).(*Driver)
	other := copyOfSelf(t)
	if err := d.kept.Keep(other); err != nil {
		t.Fatal(err)
	}
	first := r.newSpec(t)
	inst, err := d.Start(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	askFresh(t, inst)
	image := r.capture(t, inst)
	if err := d.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	spec := r.again(t, first)
	spec.Build = other.Digest
	if inst, err = d.Restore(t.Context(), spec, image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(t.Context(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	askFresh(t, inst)
	if err := d.kept.Remove(other.Digest); err != nil { // it carries its program
		t.Fatal(err)
	}
	for name, inst := range map[string]runtime.Instance{"restored": inst, "found again": adopt(t, d, spec.ID)} {
		b, err := inst.(runtime.Built).Build()
		if err != nil || b.Digest != other.Digest || b.Version != imageVersion() {
			t.Errorf("%s: it is of %+v, %v; want build %s", name, b, err, other.Digest)
		}
		exe := executableOf(inst.(*instance).group)
		if p, err := builds.Of(exe); err != nil || p.Digest != other.Digest {
			t.Errorf("%s: it runs %+v, %v; want %s", name, p, err, other.Digest)
		}
	}
	if _, err := d.kept.Open(other.Digest); err != nil {
		t.Errorf("its program is not kept for its next image: %v", err)
	}
}

func adopt(t *testing.T, d *Driver, id string) runtime.Instance {
	t.Helper()
	inst, err := d.Adopt(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return inst
}
