package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the "sqlite" driver

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestDamagedCheckpoint damages the checkpoint of a sleeping sandbox in many
// ways, one at a time. Each time the sandbox stays asleep, whoever wants to wake
// it is told why, and fsck finds it too; put right, it wakes as it was.
func TestDamagedCheckpoint(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	g, other := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
	for _, guest := range []*guest{g, other} {
		s.pause(ctx, guest.sb.ID)
		s.connect(ctx, guest.sb.ID)
	}
	earlier := s.keep(filepath.Join(s.dir(), "images"))
	before := g.ask(ctx)
	// So much that its layers are not merged, though most of the first is hidden.
	if err := g.sb.WriteFile(ctx, "later", strings.NewReader(strings.Repeat("written in the second generation", 1<<19))); err != nil {
		t.Fatal(err)
	}
	s.pause(ctx, g.sb.ID)
	s.pause(ctx, other.sb.ID)
	s.waitGone(g.sb.ID)
	eventually(t, 20*time.Second, "no merge", func() error {
		if n, err := s.metric(ctx, "drowse_layer_merges"); n != 0 || err != nil {
			return errors.Join(fmt.Errorf("%v sandboxes", n), err)
		}
		return nil
	})

	image, layers := s.checkpointOf(ctx, g.sb.ID), glob(filepath.Join(s.dir(), "layers", g.sb.ID+"*"))
	if len(layers) != 2 {
		t.Fatalf("layers %q, want those of two generations", layers)
	}
	damages := s.damages(t, image, s.checkpointOf(ctx, other.sb.ID), layers, earlier)
	// For a change, each is tried in one of the two ways.
	try := func(way int) (some []damage) {
		for i, d := range damages {
			if testmode.All() || i%2 == way {
				some = append(some, d)
			}
		}
		return some
	}
	for _, d := range try(0) {
		undo := d.do()
		s.checkDamaged(ctx, g, d.name)
		undo()
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if found, code := s.fsck(t); code != 0 {
		t.Errorf("fsck of a sound directory ends with %d: %+v", code, found)
	}
	for _, d := range try(1) {
		undo := d.do()
		found, code := s.fsck(t)
		if code != 1 || !slices.ContainsFunc(found, func(f fault) bool { return f.Sandbox == g.sb.ID }) {
			t.Errorf("%s: fsck ends with %d and finds %+v", d.name, code, found)
		}
		undo()
	}
	s.checkRepairKeepsEvidence(t, g.sb.ID, damages[0])

	s.start()
	now := g.ask(ctx)
	g.same(before, now)
	if got, want := now.generation(t), before.generation(t)+1; got != want {
		t.Errorf("it woke as generation %d, want %d: the attempts are none", got, want)
	}
	other.ask(ctx)
	t.Logf("%d damages, each refused and each found", len(damages))
}

// damage is one way to damage a checkpoint, which returns what undoes it.
type damage struct {
	name string
	do   func() (undo func())
}

// damages returns ways to damage the checkpoint in the directory image and the
// layers: each file changed in a byte, cut and removed; the images of two
// sandboxes swapped; an earlier manifest put in the place of this one.
func (s *server) damages(t *testing.T, image, other string, layers []string, earlier map[string][]byte) []damage {
	rng := rand.New(rand.NewPCG(12, 14))
	var all []damage
	for _, path := range regular(t, append([]string{image}, layers...)...) {
		name := strings.TrimPrefix(path, s.dir())
		all = append(all,
			damage{"flip a byte of " + name, func() func() { return flip(t, path, rng) }},
			damage{"cut " + name, func() func() {
				return altered(t, path, func(data []byte) []byte { return data[:rng.IntN(len(data))] })
			}},
			damage{"remove " + name, func() func() { return moved(t, path, path+"-away", s.dir()) }},
		)
	}
	all = append(all,
		damage{"swap images", func() func() {
			swap := func() {
				for _, r := range [][2]string{{image, image + "-x"}, {other, image}, {image + "-x", other}} {
					if err := os.Rename(r[0], r[1]); err != nil {
						t.Fatal(err)
					}
				}
			}
			swap()
			return swap
		}},
		damage{"remove a layer", func() func() { return moved(t, layers[0], layers[0]+"-away", s.dir()) }},
	)
	for path, manifest := range earlier {
		if filepath.Base(path) == "manifest.json" {
			all = append(all, damage{"roll back to " + path, func() func() {
				return altered(t, filepath.Join(image, "manifest.json"), func([]byte) []byte { return manifest })
			}})
		}
	}
	return all
}

// regular returns the regular files with something in them below dirs, but for
// what overlayfs keeps for itself.
func regular(t *testing.T, dirs ...string) (paths []string) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.Name() == ".work" {
				return fs.SkipDir
			}
			info, err := d.Info()
			if err == nil && info.Mode().IsRegular() && info.Size() > 0 {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// flip changes one byte of a file.
func flip(t *testing.T, path string, rng *rand.Rand) func() {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	at, mask := rng.Int64N(info.Size()), byte(1+rng.IntN(255))
	change := func(f *os.File) {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{b[0] ^ mask}, at); err != nil {
			t.Fatal(err)
		}
	}
	change(f)
	return func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		change(f)
	}
}

// altered changes the content of a file, in place.
func altered(t *testing.T, path string, f func([]byte) []byte) func() {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		if err := os.WriteFile(path, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	write(f(slices.Clone(data)))
	return func() { write(data) }
}

// moved takes a file or directory out of the state directory.
func moved(t *testing.T, path, away, dir string) func() {
	away = filepath.Join(filepath.Dir(dir), filepath.Base(dir)+"-"+filepath.Base(away))
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Rename(away, path); err != nil {
			t.Fatal(err)
		}
	}
}

// keep returns the contents of the small files below dir.
func (s *server) keep(dir string) map[string][]byte {
	kept := map[string][]byte{}
	for _, path := range glob(filepath.Join(dir, "*", "manifest.json")) {
		data, err := os.ReadFile(path)
		if err != nil {
			s.t.Fatal(err)
		}
		kept[path] = data
	}
	return kept
}

// checkpointOf returns the directory of the memory image that a sandbox sleeps
// with. The server is asked nothing: the image names its layers.
func (s *server) checkpointOf(_ context.Context, id string) string {
	s.t.Helper()
	dir, newest := "", time.Time{}
	for _, path := range glob(filepath.Join(s.dir(), "images", "*", "manifest.json")) {
		// The one before may still be there, on its way out.
		manifest, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(manifest), id) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.ModTime().After(newest) {
			dir, newest = filepath.Dir(path), info.ModTime()
		}
	}
	if dir == "" {
		s.t.Fatalf("no image of %s", id)
	}
	return dir
}

// checkDamaged checks that a sandbox whose checkpoint is damaged is not woken.
func (s *server) checkDamaged(ctx context.Context, g *guest, what string) {
	s.t.Helper()
	s.checkStaysAsleep(ctx, g, what, "checkpoint_damaged", "damaged")
}

// checkStaysAsleep checks that a sandbox is not woken by a call, nor by a
// request, and that all are told why.
func (s *server) checkStaysAsleep(ctx context.Context, g *guest, what, code, why string) {
	t := s.t
	t.Helper()
	_, err := s.client.Connect(ctx, g.sb.ID, time.Minute)
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != code || e.Status != http.StatusServiceUnavailable || !strings.Contains(e.Message, why) || e.Remediation == "" {
		t.Errorf("%s: connect: %v (%+v), want %s", what, err, e, code)
	}
	var answer json.RawMessage
	err = g.call(ctx, http.MethodGet, "/state", nil, &answer)
	if err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), code) {
		t.Errorf("%s: request: %v, want %s", what, err, code)
	}
	info, err := s.client.Get(ctx, g.sb.ID)
	if err != nil || info.State != client.Paused || !strings.Contains(info.LastError, why) {
		t.Errorf("%s: it is %s, %q, %v; want paused, and why", what, info.State, info.LastError, err)
	}
	// What was captured last goes after its pause was answered.
	if err := poll(goneWithin, func() error { return s.left(g.sb.ID, false) }); err != nil {
		t.Errorf("%s: something runs: %v", what, err)
	}
}

// fault is one that fsck finds.
type fault struct {
	Kind, Sandbox, What, Means, Repair string
	Repaired                           bool
}

// fsck checks the state directory of the server, which does not run, and returns
// the faults and the exit code.
func (s *server) fsck(t *testing.T, args ...string) ([]fault, int) {
	t.Helper()
	out, code := s.upkeep(t, append([]string{"fsck"}, args...)...)
	var report struct{ Faults []fault }
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("fsck: %v: %s", err, out)
	}
	return report.Faults, code
}

// upkeep runs a command on the state directory of the server, for JSON.
func (s *server) upkeep(t *testing.T, args ...string) (out []byte, code int) {
	t.Helper()
	cmd := exec.Command(drowseBinary, append(args, "-o", "json", "--state-dir", s.dir())...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if len(exit.Stderr) > 0 {
			out = append(out, exit.Stderr...)
		}
		return out, exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, 0
}

// checkRepairKeepsEvidence repairs a directory with a damaged checkpoint.
func (s *server) checkRepairKeepsEvidence(t *testing.T, id string, d damage) {
	t.Helper()
	undo := d.do()
	defer undo()
	files := regular(t, filepath.Join(s.dir(), "images"), filepath.Join(s.dir(), "layers"))
	found, code := s.fsck(t, "--repair")
	if code != 1 || len(found) != 1 || found[0].Repaired || found[0].Sandbox != id {
		t.Errorf("fsck --repair ends with %d and %+v, want the one fault left", code, found)
	}
	if now := regular(t, filepath.Join(s.dir(), "images"), filepath.Join(s.dir(), "layers")); !slices.Equal(now, files) {
		t.Errorf("fsck --repair left %q of %q", now, files)
	}
}

// TestGarbage stops a server by force, leaves it what nobody owns, and has it
// explained and removed by gc, and by fsck --repair.
func TestGarbage(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	lost := s.startGuest(ctx, sleeper)
	s.pause(ctx, g.sb.ID)
	s.waitGone(g.sb.ID)
	s.waitWarm(1)

	if out, code := s.upkeep(t, "gc", "--dry-run"); code != 5 || !strings.Contains(string(out), fmt.Sprintf("pid %d", s.pid())) {
		t.Errorf("gc beside a server ends with %d: %s", code, out)
	}
	if out, code := s.upkeep(t, "fsck"); code != 5 || !strings.Contains(string(out), fmt.Sprintf("pid %d", s.pid())) {
		t.Errorf("fsck beside a server ends with %d: %s", code, out)
	}
	s.crash()
	if things, code := s.gc(t, "--dry-run"); code != 0 || len(things) != 1 || things[0].Kind != "runtime" || !strings.Contains(things[0].Why, "waited") {
		t.Errorf("gc --dry-run ends with %d and finds %+v; want the runtime that waited", code, things)
	}

	// A database without the sandbox that runs, and files of nobody.
	forget(t, s.dir(), lost.sb.ID)
	for _, dir := range []string{"images/0123456789abcdef", "layers/" + g.sb.ID + "r0000009/root", "layers/" + g.sb.ID + "r0000008.deleted/root"} {
		if err := os.MkdirAll(filepath.Join(s.dir(), dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.age(lost.sb.ID, -time.Hour) // so that it is young however long this takes
	before := s.traces()
	things, code := s.gc(t, "--dry-run")
	if after := s.traces(); code != 0 || !slices.Equal(before, after) {
		t.Errorf("gc --dry-run ends with %d and changed %q into %q", code, before, after)
	}
	for _, want := range []struct{ kind, text, why string }{
		{"runtime", "warm-", "waited"},
		{"runtime", lost.sb.ID, "no record"},
		{"layer", lost.sb.ID, "no record"},
		{"layer", g.sb.ID + "r0000009", "is paused without it"},
		{"image", "0123456789abcdef", "no checkpoint"},
		{"unremoved", "r0000008.deleted", "being removed"},
	} {
		if !slices.ContainsFunc(things, func(g garbage) bool {
			return g.Kind == want.kind && strings.Contains(g.ID, want.text) && strings.Contains(g.Why, want.why)
		}) {
			t.Errorf("no %s %s that is nobody's because %q among %+v", want.kind, want.text, want.why, things)
		}
	}
	if i := slices.IndexFunc(things, func(g garbage) bool { return g.Kind == "runtime" && strings.Contains(g.ID, lost.sb.ID) }); i >= 0 &&
		(things[i].Processes == 0 || things[i].MemoryBytes == 0 || things[i].Left == "") {
		t.Errorf("the sandbox that is in no record: %+v, want what it takes, and that it is left for now", things[i])
	}

	// What was somebody's goes at once; what no record knows has its time.
	if found, code := s.fsck(t, "--repair"); code != 1 || !slices.ContainsFunc(found, func(f fault) bool { return f.Repaired }) {
		t.Errorf("fsck --repair ends with %d and %+v; want some repaired, some left", code, found)
	}
	s.age(lost.sb.ID, time.Hour)
	if things, code := s.gc(t); code != 0 || slices.ContainsFunc(things, func(g garbage) bool { return !g.Removed }) {
		t.Errorf("gc ends with %d and %+v; want all of it removed", code, things)
	}
	for _, left := range footprint(s.dir(), s.dir()) {
		t.Errorf("left behind: %s", left)
	}
	if found, code := s.fsck(t); code != 0 {
		t.Errorf("fsck then ends with %d and %+v", code, found)
	}
	s.ids = slices.DeleteFunc(s.ids, func(id string) bool { return id == lost.sb.ID })
	s.start()
	g.same(g.first, g.ask(ctx))
}

// traces returns what of the server's sandboxes shows on the host: of processes,
// which one it is.
func (s *server) traces() []string {
	found := slices.Concat(mounts(s.dir()), cgroups(s.dir(), s.dir()), named(s.dir(), "", "layers", "images", "run/rootfs", "run/gv/bundles", "run/gv/waiting"))
	for _, p := range processes(s.dir(), s.dir()) {
		which, _, _ := strings.Cut(p, " (")
		found = append(found, which)
	}
	slices.Sort(found)
	return found
}

// garbage is a thing that gc finds.
type garbage struct {
	Kind, ID, Path, Why, Left string
	Processes                 int
	MemoryBytes               int64
	Removed                   bool
}

func (s *server) gc(t *testing.T, args ...string) ([]garbage, int) {
	t.Helper()
	out, code := s.upkeep(t, append([]string{"gc"}, args...)...)
	var report struct{ Items []garbage }
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("gc: %v: %s", err, out)
	}
	return report.Items, code
}

// age makes what is there of a sandbox look so old.
func (s *server) age(id string, by time.Duration) {
	s.t.Helper()
	at := time.Now().Add(-by)
	for _, dir := range []string{"run/gv/bundles", "layers"} {
		for _, path := range glob(filepath.Join(s.dir(), dir, id+"*")) {
			if err := os.Chtimes(path, at, at); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// forget takes a sandbox out of the database of a server that does not run.
func forget(t *testing.T, dir, id string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "drowse.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, table := range []string{"events WHERE sandbox", "sandboxes WHERE id"} {
		if _, err := db.ExecContext(t.Context(), "DELETE FROM "+table+" = ?", id); err != nil {
			t.Fatal(err)
		}
	}
}
