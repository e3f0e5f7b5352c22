package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// recipeStep is a step of a build, as E2B's clients send it.
type recipeStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash,omitempty"`
}

func runs(command string) recipeStep { return recipeStep{Type: "RUN", Args: []string{command}} }

// recipeStatus is how far a build is.
type recipeStatus struct {
	Status     string
	LogEntries []struct{ Message, Step string }
	Reason     *struct{ Message, Step string }
}

// log is what the build has said, in lines.
func (r recipeStatus) log() string {
	var all strings.Builder
	for _, e := range r.LogEntries {
		fmt.Fprintln(&all, e.Message)
	}
	return all.String()
}

// requestBuild returns a build of a template that waits.
func (s *server) requestBuild(ctx context.Context, name string) string {
	s.t.Helper()
	var made struct{ BuildID string }
	s.call(ctx, http.MethodPost, "/v3/templates", fmt.Sprintf(`{"name":%q}`, name), &made)
	return made.BuildID
}

// startBuild begins it.
func (s *server) startBuild(ctx context.Context, name, id, from string, steps ...recipeStep) {
	s.t.Helper()
	text, err := json.Marshal(map[string]any{"fromTemplate": from, "steps": steps})
	if err != nil {
		s.t.Fatal(err)
	}
	s.call(ctx, http.MethodPost, "/v2/templates/"+name+"/builds/"+id, string(text), nil)
}

func (s *server) buildStatus(ctx context.Context, name, id string) (r recipeStatus) {
	s.t.Helper()
	s.call(ctx, http.MethodGet, "/templates/"+name+"/builds/"+id+"/status", "", &r)
	return r
}

// buildTemplate builds one, and returns how that ended.
func (s *server) buildTemplate(ctx context.Context, name, from string, steps ...recipeStep) recipeStatus {
	s.t.Helper()
	id := s.requestBuild(ctx, name)
	s.startBuild(ctx, name, id, from, steps...)
	return s.awaitBuild(ctx, name, id)
}

// awaitBuild waits until a build is over.
func (s *server) awaitBuild(ctx context.Context, name, id string) (r recipeStatus) {
	s.t.Helper()
	eventually(s.t, 2*time.Minute, "the end of the build", func() error {
		if r = s.buildStatus(ctx, name, id); r.Status != "ready" && r.Status != "error" {
			return errors.New(r.Status)
		}
		return nil
	})
	return r
}

// waitBuildSays waits until a build has said something.
func (s *server) waitBuildSays(ctx context.Context, name, id, text string) {
	s.t.Helper()
	eventually(s.t, time.Minute, "a line of the log", func() error {
		if r := s.buildStatus(ctx, name, id); !strings.Contains(r.log(), text+"\n") {
			return fmt.Errorf("%s: %s", r.Status, r.log())
		}
		return nil
	})
}

// noSandboxes waits until there are none.
func (s *server) noSandboxes(ctx context.Context) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, "the end of the build's sandboxes", func() error {
		all, err := s.client.List(ctx, client.ListOptions{})
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("%d sandboxes: %+v", len(all), all)
		}
		return err
	})
}

// TestBuildOfKilledServer kills the server while a step of a build runs, and deletes a
// template while one does. No sandbox is left, what was finished is not run again, and
// nothing at all is left when the template is gone.
func TestBuildOfKilledServer(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	first := runs("echo one >one")
	id := s.requestBuild(ctx, "killed")
	s.startBuild(ctx, "killed", id, "base", first, runs("echo begun; sleep 1000"))
	s.waitBuildSays(ctx, "killed", id, "begun")
	all, err := s.client.List(ctx, client.ListOptions{})
	if err != nil || len(all) != 1 {
		t.Fatalf("the sandboxes of the build: %+v, %v", all, err)
	}
	snaps := client.NewSnapshots(s.client)
	if _, err := snaps.Create(ctx, all[0].ID, client.SnapshotOptions{Name: "mine"}); err != nil {
		t.Fatal(err)
	}
	s.crash()
	s.start()
	if list, err := snaps.List(ctx, ""); err != nil || len(list) != 1 || list[0].Name != "mine" {
		t.Errorf("the snapshot that a user took of the build's sandbox: %+v, %v", list, err)
	}
	if err := snaps.Delete(ctx, "mine"); err != nil {
		t.Error(err)
	}
	if r := s.buildStatus(ctx, "killed", id); r.Status != "error" || r.Reason == nil || !strings.Contains(r.Reason.Message, "server was stopped") {
		t.Errorf("after the crash: %+v", r)
	}
	s.noSandboxes(ctx)
	if _, err := s.client.Create(ctx, client.CreateOptions{Template: "killed"}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a sandbox of a template that is not ready: %v", err)
	}

	r := s.buildTemplate(ctx, "killed", "base", first, runs("echo two >two"))
	if r.Status != "ready" || !strings.Contains(r.log(), "CACHED RUN echo one >one\n") {
		t.Fatalf("built again: %+v", r)
	}
	if made, err := client.NewTemplates(s.client).Get(ctx, "killed"); err != nil || made.Build == nil || made.Build.Status != "ready" || !slices.Equal(made.Names, []string{"killed"}) {
		t.Errorf("it is listed as %+v, %v", made, err)
	}
	sb := s.create(ctx, client.CreateOptions{Template: "killed"})
	if exit, out := run(ctx, t, sb, "cat", "one", "two"); exit.Code != 0 || out != "one\ntwo\n" {
		t.Errorf("%s %q", exit.Status, out)
	}
	s.kill(ctx, t, sb.ID)

	id = s.requestBuild(ctx, "killed")
	s.startBuild(ctx, "killed", id, "base", first, runs("echo begun; sleep 1000"))
	s.waitBuildSays(ctx, "killed", id, "begun")
	s.call(ctx, http.MethodDelete, "/templates/killed", "", nil)
	s.noSandboxes(ctx)
	s.nothingLeft(ctx)
	if left := s.glob("recipes", "*", "*"); len(left) > 0 {
		t.Errorf("left of the template: %q", left)
	}
}

// TestBuildIsBounded has a step write more than its sandbox may have. The build fails,
// and says why.
func TestBuildIsBounded(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, small(64))
	if _, err := client.NewSnapshots(s.client).Create(ctx, sb.ID, client.SnapshotOptions{Name: "small"}); err != nil {
		t.Fatal(err)
	}
	r := s.buildTemplate(ctx, "large", "small", runs("true"), runs("dd if=/dev/zero of=big bs=1M count=100; sleep 1000"))
	if r.Status != "error" || r.Reason == nil || r.Reason.Step != "2" || !strings.Contains(r.Reason.Message, "its disk limit") {
		t.Errorf("%+v", r)
	}
	s.call(ctx, http.MethodDelete, "/templates/large", "", nil)
	s.call(ctx, http.MethodDelete, "/templates/small", "", nil)
	s.nothingLeft(ctx)
}

// TestBuildThroughTmp has steps leave things in /tmp for the next ones, as many
// Dockerfiles do. The sandboxes begin without them, and without a copy.
func TestBuildThroughTmp(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	built := s.buildTemplate(ctx, "through-tmp", "base",
		runs(`mkdir -m 700 /tmp/d && echo one >/tmp/d/file && ln -s nowhere /tmp/link && echo gone >/tmp/gone`),
		runs(`cat /tmp/d/file >/home/user/seen && rm /tmp/gone && stat -c %a /tmp /tmp/d >>/home/user/seen`),
		runs(`printf '#!/bin/sh\necho ran\n' >/tmp/script`),
		runs(`chmod 755 /tmp/script`), // which changes no contents
		runs(`/tmp/script >>/home/user/seen && rm /tmp/script`),
		runs(`ls -A /tmp | sort >>/home/user/seen && rm -rf /tmp/*`),
		runs(`ls -A /tmp | wc -l >>/home/user/seen`),
	)
	if built.Status != "ready" {
		t.Fatalf("the build is %s: %s", built.Status, built.log())
	}
	sb := s.create(ctx, client.CreateOptions{Template: "through-tmp"})
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	if info, err := s.client.Get(ctx, sb.ID); err != nil || info.Alias != "through-tmp" {
		t.Errorf("woken it is %+v, %v", info, err)
	} else if _, out := run(ctx, t, sb, "sh", "-c", "echo -n $E2B_TEMPLATE_ID"); out != info.Template {
		t.Errorf("it has %q as E2B_TEMPLATE_ID, want %q", out, info.Template)
	}
	exit, out := run(ctx, t, sb, "sh", "-c", "cat seen; ls -A /tmp /var/tmp")
	if want := "one\n1777\n700\nran\nd\nlink\n0\n/tmp:\n\n/var/tmp:\n"; exit.Code != 0 || out != want {
		t.Errorf("%+v, it has %q, want %q", exit, out, want)
	}
}

// TestBuildOfHostileFiles copies archives that no builder makes into a template. They
// change nothing outside of the sandbox of the build, whether the build fails or not.
func TestBuildOfHostileFiles(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	// A directory of the host that the server can write to, for names that lead out.
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("as it was"), 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 12)
	text := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o666} }
	for i, c := range []struct {
		name   string
		files  []tar.Header
		source string
		fails  bool // it must
	}{
		{"names with dots", []tar.Header{text("x"), text(up + victim[1:])}, "x", false},
		{"absolute names", []tar.Header{text("x"), text(victim)}, "x", false},
		{"through a link", []tar.Header{text("x"), {Name: "d", Typeflag: tar.TypeSymlink, Linkname: outside}, text("d/victim")}, ".", false},
		{"hard link out", []tar.Header{text("x"), {Name: "h", Typeflag: tar.TypeLink, Linkname: victim}, text("h")}, "h", true},
		{"devices", []tar.Header{text("x"), {Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666}, {Name: "mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}}, ".", false},
		{"a source with dots", []tar.Header{text("x")}, up + victim[1:], true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, h := range c.files {
				if h.Typeflag == tar.TypeReg {
					h.Size = 6
				}
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				if h.Typeflag == tar.TypeReg {
					if _, err := w.Write([]byte("struck")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprint("hostile", i)
			id := s.requestBuild(ctx, name)
			hash := fmt.Sprintf("%x", sha256.Sum256(archive.Bytes()))
			s.upload(ctx, name, hash, archive.Bytes())
			s.startBuild(ctx, name, id, "base", recipeStep{Type: "COPY", Args: []string{c.source, "/srv/copied/", "root", ""}, FilesHash: hash},
				runs("ls -lR /srv/copied; sudo dd if=/srv/copied/disk bs=1 count=1; sudo dd if=/srv/copied/mem bs=1 count=1; true"))
			r := s.awaitBuild(ctx, name, id)
			t.Logf("%s: %s", r.Status, r.log())
			if r.Status == "ready" && c.fails {
				t.Error("the build did not fail")
			}
			if strings.Contains(r.log(), "1 byte copied") {
				t.Error("a device of the archive can be read")
			}
			if got, err := os.ReadFile(victim); err != nil || string(got) != "as it was" {
				t.Errorf("the host's file is %q, %v", got, err)
			}
			if names, err := os.ReadDir(outside); err != nil || len(names) != 1 {
				t.Errorf("the host's directory has %v, %v", names, err)
			}
			s.call(ctx, http.MethodDelete, "/templates/"+name, "", nil)
		})
	}
	s.noSandboxes(ctx)
	s.nothingLeft(ctx)
}

// upload sends the files of a step.
func (s *server) upload(ctx context.Context, name, hash string, data []byte) {
	s.t.Helper()
	var where struct{ URL string }
	s.call(ctx, http.MethodGet, "/templates/"+name+"/files/"+hash, "", &where)
	at, err := url.Parse(where.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	if a, err := s.raw(ctx, http.MethodPut, at.RequestURI(), nil, bytes.NewReader(data)); err != nil || a.status != http.StatusOK {
		s.t.Fatalf("upload: %d %s, %v", a.status, a.body, err)
	}
}
