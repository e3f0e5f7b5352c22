package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

func (s *server) volume(ctx context.Context, name string) client.Volume {
	s.t.Helper()
	v, err := s.client.CreateVolume(ctx, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// withVolume is a sandbox that sleeps and wakes, and has a volume at /mnt/data.
func withVolume(name string) client.CreateOptions {
	o := sleeper
	o.Volumes = map[string]string{"/mnt/data": name}
	return o
}

// content makes a request for a file of a volume.
func (s *server) content(ctx context.Context, v client.Volume, method, what, path, body string) answer {
	s.t.Helper()
	target := fmt.Sprintf("/volumecontent/%s/%s?path=%s", v.ID, what, url.QueryEscape(path))
	got, err := s.raw(ctx, method, target, http.Header{"Authorization": {"Bearer " + v.Token}}, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

// wantContent does the same, and checks what comes back.
func (s *server) wantContent(ctx context.Context, v client.Volume, method, what, path, body string, status int, want string) {
	s.t.Helper()
	if got := s.content(ctx, v, method, what, path, body); got.status != status || want != "" && string(got.body) != want {
		s.t.Errorf("%s %s of %s: %d %q, want %d %q", method, what, path, got.status, got.body, status, want)
	}
}

// shell runs a script in a sandbox, and checks what it says.
func (s *server) shell(ctx context.Context, sb *client.Sandbox, script, want string) {
	s.t.Helper()
	if exit, out := run(ctx, s.t, sb, "bash", "-c", "cd /mnt/data && "+script); exit.Code != 0 || out != want {
		s.t.Errorf("%s: %s: %q, want %q", script, exit.Status, out, want)
	}
}

// TestVolumes has two sandboxes share a volume: awake, over the sleep of one and
// a change behind its back, over a crash of the server, and after the end of
// one.
func TestVolumes(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	s.waitWarm(1)
	warm := warmOnes(s)
	v := s.volume(ctx, "data")
	a, b := s.create(ctx, withVolume("data")), s.create(ctx, withVolume("data"))
	for _, sb := range []*client.Sandbox{a, b} {
		if cid := s.containerID(sb.ID); slices.Contains(warm, cid) {
			t.Errorf("%s was made before it was known what it mounts", cid)
		}
	}

	// What one does the other sees, also where it has looked before.
	s.shell(ctx, a, "id -un && echo one >file && mkdir dir && stat -c '%U %a' . file", "user\nuser 755\nuser 644\n")
	s.shell(ctx, b, "cat file && ls", "one\ndir\nfile\n")
	s.shell(ctx, a, "cat file && sleep 0.01", "one\n")
	s.shell(ctx, b, "echo two >>file && mv file dir/moved && ln -s dir/moved link", "")
	s.shell(ctx, a, "cat dir/moved link && test ! -e file && rm link", "one\ntwo\none\ntwo\n")
	s.shell(ctx, b, "test ! -e link && sudo chown root dir/moved && stat -c %U dir/moved", "root\n")
	s.wantContent(ctx, v, "GET", "file", "/dir/moved", "", http.StatusOK, "one\ntwo\n")
	s.wantContent(ctx, v, "PUT", "file", "/put", "from outside", http.StatusCreated, "")
	s.shell(ctx, a, "cat put && rm put", "from outside")
	s.wantContent(ctx, v, "GET", "path", "/put", "", http.StatusNotFound, "")

	// One sleeps, with a program that has a file open and stands in a directory.
	const program = `cd /mnt/data/dir && exec 3<moved 4>>log && echo begun >&4 && while ! [ -e ../go ]; do sleep 0.05; done; cat <&3 >&4; echo ended >&4; touch done`
	p, err := a.Start(ctx, client.Command{Args: []string{"bash", "-c", program}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	eventually(t, 10*time.Second, "the program runs", func() error {
		if got := s.content(ctx, v, "GET", "file", "/dir/log", ""); string(got.body) != "begun\n" {
			return fmt.Errorf("its log has %q", got.body)
		}
		return nil
	})
	s.pause(ctx, a.ID)
	for _, m := range s.each() {
		if found := inLayers(t, m.home, "moved"); len(found) > 0 {
			t.Errorf("what was kept of the sandbox has files of the volume: %q", found)
		}
	}
	s.shell(ctx, b, "sudo bash -c 'echo three >>dir/moved' && echo new >file", "")
	s.wantContent(ctx, v, "PUT", "file", "/dir/log", "cleared\n", http.StatusCreated, "")
	var refused *client.Error
	if err := s.client.DeleteVolume(ctx, v.ID); !errors.As(err, &refused) || refused.Code != "volume_in_use" || !strings.Contains(refused.Message, a.ID) || !strings.Contains(refused.Message, b.ID) {
		t.Errorf("delete of a volume in use: %v", err)
	}
	s.connect(ctx, a.ID)
	s.shell(ctx, a, "cat file && touch go", "new\n")
	eventually(t, 10*time.Second, "the program ends", func() error {
		if got := s.content(ctx, v, "GET", "path", "/dir/done", ""); got.status != http.StatusOK {
			return fmt.Errorf("%d %s", got.status, got.body)
		}
		return nil
	})
	s.shell(ctx, b, "cat dir/log", "cleared\none\ntwo\nthree\nended\n")

	// The server crashes; one sleeps, one is awake.
	s.pause(ctx, b.ID)
	s.crash()
	s.start()
	s.shell(ctx, a, "echo later >file", "")
	s.shell(ctx, b, "cat file", "later\n")
	details := s.details(ctx, a.ID)
	if got, want := string(details["volumeMounts"]), `[{"name":"data","path":"/mnt/data"}]`; got != want {
		t.Errorf("volumeMounts is %s, want %s", got, want)
	}

	s.kill(ctx, t, a.ID)
	s.shell(ctx, b, "cat file", "later\n")
	s.kill(ctx, t, b.ID)
	third := s.create(ctx, withVolume("data"))
	s.shell(ctx, third, "cat file", "later\n")
	s.kill(ctx, t, third.ID)
	if err := s.client.DeleteVolume(ctx, v.ID); err != nil {
		t.Fatal(err)
	}
	if left := s.glob("volumes", "vol*"); len(left) > 0 {
		t.Errorf("left of the volume: %q", left)
	}
	if _, err := s.client.Create(ctx, withVolume("data")); !errors.As(err, &refused) || refused.Code != "volume_mount_invalid" || refused.Status != http.StatusBadRequest {
		t.Errorf("create with a volume that is gone: %v", err)
	}
}

// inLayers returns the files of a name in what is kept of sandboxes.
func inLayers(t *testing.T, dir, name string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "layers"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestHostileVolume has a sandbox swap a directory for links that lead out, as
// fast as it can, while its files are asked for from outside.
func TestHostileVolume(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	v := s.volume(ctx, "data")
	sb := s.create(ctx, withVolume("data"))
	dir := filepath.Dir(filepath.Dir(s.glob("volumes", v.ID)[0])) // of the server that has it
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `mkdir d && echo own >d/secret && ln -s ../.. up && ln -s ` + dir + ` abs && touch ready
		while :; do mv -T d x && mv -T up d; mv -T d up && mv -T abs d; mv -T d abs && mv -T x d; done`
	p, err := sb.Start(ctx, client.Command{Args: []string{"bash", "-c", "cd /mnt/data && " + script}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	eventually(t, 10*time.Second, "the sandbox is hostile", func() error {
		if got := s.content(ctx, v, "GET", "path", "/ready", ""); got.status != http.StatusOK {
			return fmt.Errorf("%d %s", got.status, got.body)
		}
		return nil
	})
	seen := map[string]int{}
	// On until both have been met; ctx ends it otherwise.
	for n := 0; n < 200 || seen[""] == 0 || seen["volume_path_invalid"] == 0; n++ {
		for _, c := range []struct{ method, what, path, body string }{
			{"GET", "file", "/d/secret", ""},
			{"PUT", "file", "/d/secret", "own\n"},
			{"GET", "dir", "/d", ""},
			{"POST", "dir", "/d/made", ""},
			{"PATCH", "path", "/d/secret", `{"mode":438}`},
			{"DELETE", "path", "/d/made", ""},
		} {
			got := s.content(ctx, v, c.method, c.what, c.path, c.body)
			if got.status >= http.StatusInternalServerError || bytes.Equal(got.body, []byte("secret")) || bytes.Contains(got.body, []byte("drowse.db")) {
				t.Fatalf("%v: %d %s", c, got.status, got.body)
			}
			var e struct{ Code string }
			_ = json.Unmarshal(got.body, &e)
			seen[e.Code]++
		}
	}
	t.Logf("met %v", seen)
	info, err := os.Stat(secret)
	if data, readErr := os.ReadFile(secret); err != nil || readErr != nil || info.Mode() != 0o600 || string(data) != "secret" {
		t.Errorf("the secret is %v %q, %v", info, data, errors.Join(err, readErr))
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made outside: %v", err)
	}
	if strings.Contains(s.log.String(), v.Token) {
		t.Error("the token of the volume is in the log")
	}
}

// TestVolumesThatNobodyOwns leaves a server that crashed directories of volumes
// that are in no record, and takes the one of a volume away.
func TestVolumesThatNobodyOwns(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	v := s.volume(ctx, "data")
	s.wantContent(ctx, v, "PUT", "file", "/file", "kept", http.StatusCreated, "")
	s.crash()
	at := func(name string) string { return filepath.Join(s.dir(), "volumes", name) }
	for _, dir := range []string{"volempty", "voldeleted.deleted/dir", "volfull/dir", ".writing"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at(".writing/half"), []byte("ha"), 0o600); err != nil {
		t.Fatal(err)
	}
	volumes := func(all []garbage) (list []garbage) {
		for _, g := range all {
			if g.Kind == "volume" {
				list = append(list, g)
			}
		}
		return list
	}
	things, code := s.gc(t, "--dry-run")
	found := volumes(things)
	if code != 0 || len(found) != 3 || found[0].ID != "voldeleted.deleted" || found[0].Left != "" || found[1].ID != "volempty" || found[1].Left != "" ||
		found[2].ID != "volfull" || !strings.Contains(found[2].Left, "it has files") {
		t.Errorf("gc --dry-run ends with %d and finds %+v", code, found)
	}
	things, code = s.gc(t)
	if found := volumes(things); code != 0 || len(found) != 3 || !found[0].Removed || !found[1].Removed || found[2].Removed {
		t.Errorf("gc ends with %d and %+v", code, found)
	}
	if err := os.Rename(at(v.ID), at("away")); err != nil {
		t.Fatal(err)
	}
	faults, code := s.fsck(t, "--repair")
	if code != 1 || !slices.ContainsFunc(faults, func(f fault) bool { return f.Kind == "volume" && strings.Contains(f.What, "data has no directory") }) ||
		!slices.ContainsFunc(faults, func(f fault) bool {
			return strings.Contains(f.What, "volfull") && strings.HasPrefix(f.Repair, "kept") && !f.Repaired
		}) {
		t.Errorf("fsck --repair ends with %d and %+v", code, faults)
	}
	if err := errors.Join(os.Rename(at("away"), at(v.ID)), os.RemoveAll(at("volfull"))); err != nil {
		t.Fatal(err)
	}
	if faults, code := s.fsck(t); code != 0 {
		t.Errorf("fsck then ends with %d and %+v", code, faults)
	}
	s.start()
	s.wantContent(ctx, v, "GET", "file", "/file", "", http.StatusOK, "kept")
	if left := glob(at("vol*")); len(left) != 1 || len(glob(at(".writing/*"))) > 0 {
		t.Errorf("there are %q", left)
	}
}
