package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/powercut"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/fake"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// recordedEnv holds the state directory of the server that is recorded.
const recordedEnv = "DROWSE_SUPERVISOR_TEST_RECORDED"

// recordedVolumesEnv says that it is volumes that it deals with.
const recordedVolumesEnv = "DROWSE_SUPERVISOR_TEST_RECORDED_VOLUMES"

// TestMain lets the test binary be the process that TestPowerCut and
// TestVolumesPowerCut record.
func TestMain(m *testing.M) {
	if dir := os.Getenv(recordedEnv); dir != "" {
		use := useRecorded
		if os.Getenv(recordedVolumesEnv) != "" {
			use = useRecordedVolumes
		}
		if err := use(context.Background(), dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What the recorded process says of a sandbox and its counter: before a pause
// and when it has returned, and before a kill and when that has.
const (
	saidPausing = "pausing"
	saidPaused  = "paused"
	saidKilling = "killing"
	saidKilled  = "killed"
)

func sayOf(word, id string, n int64) { fmt.Println(word, id, n) }

// useRecorded lets sandboxes sleep and wake on a server with a real store and
// real images and layers.
func useRecorded(ctx context.Context, dir string) error {
	s, shut, err := openRecorded(ctx, dir, fake.NewMachine(bootRecorded))
	if err != nil {
		return err
	}
	first, err := s.Create(ctx, recordedRequest())
	if err != nil {
		return err
	}
	second, err := s.Create(ctx, recordedRequest())
	if err != nil {
		return err
	}
	for _, mode := range []lifecycle.Mode{lifecycle.Memory, lifecycle.Memory, lifecycle.Filesystem, lifecycle.Memory} {
		for _, id := range []string{first.ID, second.ID} {
			if err := sleepOnce(ctx, s, id, mode); err != nil {
				return err
			}
		}
	}
	sayOf(saidKilling, second.ID, 0)
	if err := s.Kill(ctx, second.ID, ""); err != nil {
		return err
	}
	sayOf(saidKilled, second.ID, 0)
	return errors.Join(sleepOnce(ctx, s, first.ID, lifecycle.Memory), shut())
}

func recordedRequest() CreateRequest {
	return CreateRequest{Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause}}
}

// sleepOnce wakes a sandbox if it sleeps, uses it, and pauses it.
func sleepOnce(ctx context.Context, s *Supervisor, id string, mode lifecycle.Mode) error {
	if _, err := s.Connect(ctx, id, WakeRequest{Timeout: time.Hour}); err != nil {
		return err
	}
	n, _, err := count(ctx, s, id)
	if err != nil {
		return err
	}
	if mode == lifecycle.Filesystem {
		n = 0 // the counter is in memory
	}
	sayOf(saidPausing, id, n)
	if err := s.Pause(ctx, id, PauseRequest{Mode: mode}); err != nil {
		return err
	}
	sayOf(saidPaused, id, n)
	return nil
}

// openRecorded starts a server on a machine.
func openRecorded(ctx context.Context, dir string, machine *fake.Machine) (s *Supervisor, shut func() error, err error) {
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(rootfs, 0o700); err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, filepath.Join(dir, "db"))
	if err != nil {
		return nil, nil, err
	}
	layers, err := layer.Open(dir)
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	volumes, err := volume.Open(filepath.Join(dir, "volumes"), os.Getuid())
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	driver := &writingDriver{machine.Driver(), layers}
	s, err = New(ctx, Options{
		Store: st, Layers: layers, Templates: template.At(filepath.Join(dir, "templates")), Volumes: volumes, Driver: driver, RunDir: rootfs,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), WakeTimeout: 20 * time.Second, WakeQueue: 100,
	})
	if err != nil {
		return nil, nil, errors.Join(err, st.Close())
	}
	return s, func() error { return errors.Join(s.Stop(ctx), st.Close()) }, nil
}

func bootRecorded(_ runtime.Spec, image []byte) (fake.Program, error) {
	g := &guest{}
	return g, g.recall(image)
}

// writingDriver has every new runtime write a file into its layer, as its
// processes would through the overlay.
type writingDriver struct {
	*fake.Driver
	layers *layer.Store
}

func (d *writingDriver) Start(ctx context.Context, spec runtime.Spec) (runtime.Instance, error) {
	inst, err := d.Driver.Start(ctx, spec)
	return inst, errors.Join(err, d.write(spec.ID))
}

func (d *writingDriver) Restore(ctx context.Context, spec runtime.Spec, image string) (runtime.Instance, error) {
	inst, err := d.Driver.Restore(ctx, spec, image)
	return inst, errors.Join(err, d.write(spec.ID))
}

func (d *writingDriver) write(id string) error {
	dir := filepath.Join(d.layers.LayerDir(id), "root")
	return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), []byte(id), 0o600))
}

// TestPowerCut cuts the power wherever a server may be that lets sandboxes sleep.
// A record of a pause means a checkpoint that is whole; a sandbox whose pause was
// answered wakes with the memory that it had.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	makeTemplate(t, dir)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), recordedEnv+"="+dir)
	powercut.Record(t, dir, child).Replay(t, 150, func(t *testing.T, dir string, said []string) {
		s, shut, err := openRecorded(t.Context(), dir, fake.NewMachine(bootRecorded)) // just switched on
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range all {
			if cp := sb.Record.Checkpoint; cp != nil && sb.Record.State != lifecycle.Terminated {
				if _, err := s.checkpoints.Verify(t.Context(), *cp); err != nil {
					t.Errorf("sandbox %s is %s: %v", sb.ID, sb.Record.State, err)
				}
			}
		}
		for id, told := range toldOf(said) {
			told.check(t, s, id)
		}
		if err := shut(); err != nil {
			t.Error(err)
		}
	})
}

func makeTemplate(t *testing.T, dir string) {
	t.Helper()
	at := filepath.Join(dir, "templates", "test")
	data, err := json.Marshal(template.Template{ID: "test"})
	if err := errors.Join(err, os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "template.json"), data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// told is what the recorded process had said of a sandbox.
type told struct {
	word   string  // the last
	counts []int64 // that it may have: of the last pause that had returned, and of one that had not
}

func toldOf(said []string) map[string]*told {
	all := map[string]*told{}
	for _, line := range said {
		var word, id string
		var n int64
		_, _ = fmt.Sscan(line, &word, &id, &n) // lines are whole
		if all[id] == nil {
			all[id] = &told{}
		}
		all[id].word = word
		switch word {
		case saidPausing:
			all[id].counts = append(all[id].counts, n)
		case saidPaused:
			all[id].counts = []int64{n}
		}
	}
	return all
}

func (o *told) check(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	r := record(t, s, id)
	ended := r.State == lifecycle.Terminated
	switch {
	case ended && (o.word == saidKilling || o.word == saidKilled):
		return
	case ended && o.word == saidPausing && len(o.counts) == 1:
		return // it has never slept: what it had is gone with the power
	case ended || o.word == saidKilled:
		t.Errorf("sandbox %s is %s after %q", id, r.State, o.word)
		return
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Errorf("sandbox %s does not wake after %q: %v", id, o.word, err)
		return
	}
	if n, _, err := count(t.Context(), s, id); err != nil || !slices.Contains(o.counts, n-1) {
		t.Errorf("sandbox %s counts %d, %v; it was paused with one of %s", id, n, err, strings.Trim(fmt.Sprint(o.counts), "[]"))
	}
}
