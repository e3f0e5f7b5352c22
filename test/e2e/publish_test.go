package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/drowse-dev/drowse/client"
)

// describe is a script that says of everything below some directories what it is: as
// a sandbox sees it, and as other programs have unpacked it.
const describe = `for f in $(find data home/user usr/bin bin -print | sort); do
	if [ -L $f ]; then echo $f $(stat -c '%u %g' $f) to $(readlink $f)
	elif [ ! -f $f ]; then echo $f $(stat -c '%a %u %g %F' $f)
	else echo $f $(stat -c '%a %u %g %s %Y %h' $f) $(md5sum <$f); fi
done | grep -v -e ^usr/bin/sudo -e ^usr/bin/drowse-hold`

// changes is what a sandbox does to its files, in every way that layers know.
const changes = `set -e
cd /data
rm kept; rm -r gone; mv moved there; echo in >there/in; rm -r again; mkdir again; echo new >again/new
echo one >a; ln a b; ln -s ../etc/hosts link; mkdir -p deep/er; chmod 2750 deep; echo more >>grown
mv dir/sub dir/sub2; mv dir dir2; mkdir dir; echo x >dir/x; rm file; mkdir file; echo in >file/in
rm -r tofile; echo file >tofile; printf '' >empty; echo spaces >'with=sign'; echo äö >umläut
chmod 4755 grown; touch -d '2001-02-03 04:05:06' empty; sudo chown 0:0 empty`

func busyboxLayer(t testing.TB) v1.Layer {
	t.Helper()
	program, err := os.ReadFile("/usr/bin/busybox") // static; of the package busybox-static
	if err != nil {
		t.Fatal(err)
	}
	files := []imageFile{{name: "bin/busybox", data: string(program), mode: 0o755}, {name: "data/", kind: '5', mode: 0o755, uid: 1000}}
	for _, applet := range strings.Fields("sh id cat stat ls find sort readlink md5sum rm mv mkdir ln mkfifo chmod chown touch grep printf echo head sleep") {
		files = append(files, imageFile{name: "bin/" + applet, link: "busybox", kind: '2'})
	}
	for _, dir := range strings.Fields("gone gone/sub moved moved/below again dir dir/sub tofile") {
		files = append(files, imageFile{name: "data/" + dir + "/", kind: '5', mode: 0o755, uid: 1000}, imageFile{name: "data/" + dir + "/f", data: dir, mode: 0o644, uid: 1000})
	}
	for _, name := range strings.Fields("kept grown file same") {
		files = append(files, imageFile{name: "data/" + name, data: name, mode: 0o644, uid: 1000})
	}
	return imageLayer(t, files...)
}

// TestPublish pushes a snapshot to a registry and saves it to a file. Another server
// and another program find the files in both that the sandbox had.
func TestPublish(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	reg := startRegistry(t)
	reg.push("tools/busybox:1", v1.Config{Env: []string{"PATH=/bin:/usr/bin", "COLOR=blue"}, WorkingDir: "/data"}, busyboxLayer(t))
	s := newServer(t, stateDir(t))
	t.Cleanup(s.cleanUp)
	s.env = append(s.env, "DOCKER_CONFIG="+reg.config)
	s.start()
	if _, err := client.NewTemplates(s.client).Pull(ctx, client.PullOptions{Image: reg.addr + "/tools/busybox:1"}); err != nil {
		t.Fatal(err)
	}
	o := sleeper
	o.Template, o.Env = "busybox:1", map[string]string{"TOKEN": "hunter2"}
	sb := s.create(ctx, o)
	if exit, out := run(ctx, t, sb, "/bin/sh", "-c", changes); exit.Code != 0 {
		t.Fatal(out)
	}
	want := shellOut(ctx, t, sb, "cd /; "+describe)
	snaps := client.NewSnapshots(s.client)
	snap, err := snaps.Create(ctx, sb.ID, client.SnapshotOptions{Name: "prepared"})
	if err != nil {
		t.Fatal(err)
	}
	// A second layer of changes, over the one that the pause has frozen.
	s.pause(ctx, sb.ID)
	s.connect(ctx, sb.ID)
	if exit, out := run(ctx, t, sb, "/bin/sh", "-c", "cd /data; mv there back; rm back/in; echo again >back/again; rm -r dir2; mv again moved"); exit.Code != 0 {
		t.Fatal(out)
	}
	later := shellOut(ctx, t, sb, "cd /; "+describe)
	if _, err := snaps.Create(ctx, sb.ID, client.SnapshotOptions{Name: "later", Mode: client.Filesystem}); err != nil {
		t.Fatal(err)
	}

	var states []string
	push := func(name, tag string) client.PushedImage {
		t.Helper()
		img, err := snaps.Push(ctx, name, client.PushOptions{Image: reg.addr + "/" + tag, Progress: func(p client.LayerProgress) {
			if !slices.Contains(states, p.State) {
				states = append(states, p.State)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	made := push("prepared", "out/prepared:1")
	if again := push(snap.ID, "out/prepared:2"); again.Digest != made.Digest {
		t.Errorf("the same snapshot is %s and %s", made.Digest, again.Digest)
	}
	second := push("later", "out/later:1")
	if len(made.Layers) != 2 || len(second.Layers) != 2 || made.Layers[0] != second.Layers[0] || !slices.Contains(states, "sent") {
		t.Errorf("images %+v and %+v, %v", made, second, states)
	}

	// Another server.
	b := newServer(t, stateDir(t))
	t.Cleanup(b.cleanUp)
	b.env = append(b.env, "DOCKER_CONFIG="+reg.config)
	b.start()
	for ref, files := range map[string]string{"out/prepared:1": want, "out/later:1": later} {
		tmpl, err := client.NewTemplates(b.client).Pull(ctx, client.PullOptions{Image: reg.addr + "/" + ref})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(tmpl.Image.Env, func(v string) bool { return strings.Contains(v, "hunter2") }) || !slices.Contains(tmpl.Image.Env, "COLOR=blue") || tmpl.User != "user" || tmpl.Image.WorkingDir != "/data" {
			t.Errorf("the image is %+v", tmpl.Image)
		}
		there := b.create(ctx, client.CreateOptions{Template: tmpl.Names[0], Timeout: time.Hour})
		if got := shellOut(ctx, t, there, "cd /; "+describe); got != files {
			t.Errorf("%s on another server has\n%s\nwant\n%s", ref, got, files)
		}
		if exit, out := run(ctx, t, there, "/bin/sh", "-c", "sudo id -u; id -un; echo $COLOR; cat /etc/hostname"); exit.Code != 0 || out != "0\nuser\nblue\n"+there.ID+"\n" {
			t.Errorf("in a sandbox of %s: %d %q", ref, exit.Code, out)
		}
	}

	// Another program, from the file.
	for name, files := range map[string]string{"prepared": want, "later": later} {
		dir := t.TempDir()
		archive, err := os.Create(filepath.Join(dir, "image.tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer archive.Close()
		if _, err := snaps.Save(ctx, name, archive); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("set -e; mkdir %[1]s/layout; tar -C %[1]s/layout -xf %[1]s/image.tar; umoci unpack --image %[1]s/layout:%[2]s %[1]s/bundle >&2; cd %[1]s/bundle/rootfs; %[3]s", dir, name, describe)
		out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("umoci: %v\n%s", err, out)
		}
		if got := string(out); got != files {
			t.Errorf("umoci unpacks of %s\n%s\nwant\n%s", name, got, files)
		}
	}
	for _, name := range []string{"prepared", "later"} {
		if err := snaps.Delete(ctx, name); err != nil {
			t.Error(err)
		}
	}
	s.nothingLeft(ctx)
}
