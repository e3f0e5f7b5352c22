package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var upgradeFrom = flag.String("upgrade.from", "", "a drowse with an older gVisor to upgrade from, instead of one that the test builds")

// otherGVisor has the linker make a build whose memory images are not those of
// drowseBinary.
const otherGVisor = "-ldflags=-s -w -X github.com/drowse-dev/drowse/internal/runtime/gvisor.patched=older"

// TestUpgradeOfTheServer pauses under one build, goes on under another, and back.
// Sleepers wake with the build that wrote their image, what ran runs on, and what
// starts afresh has the server's own. gc then removes what nobody needs.
func TestUpgradeOfTheServer(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(path string) error{
		"with another gVisor": func(path string) error {
			if *upgradeFrom == "" {
				return goBuild(path, "./cmd/drowse", otherGVisor)
			}
			program, err := os.ReadFile(*upgradeFrom)
			return errors.Join(err, os.WriteFile(path, program, 0o755))
		},
		"with the same gVisor": func(path string) error {
			program, err := os.ReadFile(drowseBinary)
			return errors.Join(err, os.WriteFile(path, append(program, "another build"...), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := filepath.Join(t.TempDir(), "drowse")
			if err := build(old); err != nil {
				t.Fatal(err)
			}
			testUpgrade(t, old, name == "with another gVisor")
		})
	}
}

// upgrade is one in progress.
type upgrade struct {
	*server
	old, new string // digests
}

func testUpgrade(t *testing.T, installed string, unreadable bool) {
	ctx := deadline(t, 3*time.Minute)
	s := newServer(t, stateDir(t))
	s.binary = installed
	t.Cleanup(s.cleanUp)
	s.start()
	u := upgrade{server: s, old: sha256Of(t, installed), new: sha256Of(t, drowseBinary)}
	asleep, awake := s.startGuest(ctx, sleeper), s.startGuest(ctx, sleeper)
	slept, ran := asleep.ask(ctx), awake.ask(ctx)
	s.pause(ctx, asleep.sb.ID)
	u.checkImage(asleep, u.old)

	// As one installs: over the old program, which nobody else has.
	if err := errors.Join(s.stop(), os.Remove(installed)); err != nil {
		t.Fatal(err)
	}
	s.binary = ""
	s.start()
	awake.same(ran, awake.ask(ctx))
	u.checkRuntime(awake, u.old)
	begin := time.Now()
	s.connect(ctx, asleep.sb.ID)
	t.Logf("a wake with the older build took %s", since(begin))
	asleep.same(slept, asleep.ask(ctx))
	u.checkRuntime(asleep, u.old)
	u.checkRuntime(s.startGuest(ctx, sleeper), u.new)

	// The next pauses are of the runtimes' own build, and so are the next wakes,
	// also after a crash and before the runtime is found again.
	for _, g := range []*guest{asleep, awake} {
		before := g.ask(ctx)
		s.pause(ctx, g.sb.ID)
		u.checkImage(g, u.old)
		s.connect(ctx, g.sb.ID)
		g.same(before, g.ask(ctx))
		u.checkRuntime(g, u.old)
	}
	before := asleep.ask(ctx)
	s.crash()
	s.start()
	asleep.same(before, asleep.ask(ctx))
	before = asleep.ask(ctx)
	s.pause(ctx, asleep.sb.ID)
	s.waitGone(asleep.sb.ID)
	if unreadable {
		u.checkLost(ctx, asleep, before)
	}
	s.kill(ctx, t, awake.sb.ID)
	u.checkCollected(ctx, asleep)
}

// checkLost takes the program away that a sandbox needs, which stays asleep until
// it is back.
func (u upgrade) checkLost(ctx context.Context, g *guest, before report) {
	u.t.Helper()
	path := filepath.Join(u.dir(), "builds", u.old)
	program, err := os.ReadFile(path)
	if err != nil {
		u.t.Fatal(err)
	}
	for what, wrong := range map[string][]byte{"missing": nil, "damaged": append(bytes.Clone(program), "?"...)} {
		if err := os.Remove(path); err != nil {
			u.t.Fatal(err)
		}
		says := "not kept here"
		if wrong != nil {
			says = "is damaged"
			if err := os.WriteFile(path, wrong, 0o700); err != nil {
				u.t.Fatal(err)
			}
		}
		u.checkStaysAsleep(ctx, g, what, "checkpoint_unreadable", says)
		if out := u.why(ctx, g.sb.ID); !strings.Contains(out, u.old) || !strings.Contains(out, path) {
			u.t.Errorf("%s: why says nothing of the program, nor of where it belongs:\n%s", what, out)
		}
		if err := os.WriteFile(path, program, 0o700); err != nil {
			u.t.Fatal(err)
		}
	}
	u.connect(ctx, g.sb.ID)
	g.same(before, g.ask(ctx))
	u.pause(ctx, g.sb.ID)
}

// checkCollected: fsck finds what is needed whole, and names what is not; gc
// leaves it until the last image that needs it has gone.
func (u upgrade) checkCollected(ctx context.Context, last *guest) {
	t := u.t.(*testing.T)
	t.Helper()
	if err := u.stop(); err != nil {
		t.Fatal(err)
	}
	if faults, code := u.fsck(t); code != 0 {
		t.Errorf("fsck: %d, %+v", code, faults)
	}
	path := filepath.Join(u.dir(), "builds", u.old)
	restore := altered(t, path, func(program []byte) []byte { return program[:len(program)-1] })
	faults, code := u.fsck(t)
	if !slices.ContainsFunc(faults, func(f fault) bool { return f.Kind == "build" && strings.Contains(f.What, u.old) }) || code == 0 {
		t.Errorf("fsck of a damaged program: %d, %+v", code, faults)
	}
	restore()
	collected := func(build string) bool {
		found, _ := u.gc(t)
		return slices.ContainsFunc(found, func(g garbage) bool { return g.Kind == "build" && g.ID == build && g.Removed })
	}
	if collected(u.old) {
		t.Fatal("gc removed a program that is needed")
	}
	u.start()
	u.kill(ctx, t, last.sb.ID)
	if err := u.stop(); err != nil {
		t.Fatal(err)
	}
	if !collected(u.old) {
		t.Error("gc left a program that nobody needs")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", path, err)
	}
	u.start()
}

// checkImage holds that the memory image of a sandbox names a build, whose
// program is kept.
func (u upgrade) checkImage(g *guest, want string) {
	u.t.Helper()
	// The one before goes in the background.
	eventually(u.t, time.Minute, "the sandbox has one image", func() error {
		var of []string
		for _, path := range glob(filepath.Join(u.dir(), "images/*/manifest.json")) {
			var manifest struct {
				Build string
				Stack []string
			}
			data, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(data, &manifest)
			}
			if err != nil {
				return err
			}
			if strings.HasPrefix(strings.Join(manifest.Stack, " "), g.sb.ID) {
				of = append(of, manifest.Build)
			}
		}
		if !slices.Equal(of, []string{want}) {
			return fmt.Errorf("its images are of %q, want %s", of, want)
		}
		return nil
	})
	path := filepath.Join(u.dir(), "builds", want)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		u.t.Errorf("%s: %v, %v", path, info, err)
	}
	if got := sha256Of(u.t, path); got != want {
		u.t.Errorf("%s has the digest %s", path, got)
	}
}

var processID = regexp.MustCompile(`^process (\d+) `)

// checkRuntime holds that all processes of a sandbox's runtime run one build.
func (u upgrade) checkRuntime(g *guest, want string) {
	u.t.Helper()
	found := processes(u.dir(), g.sb.ID)
	if len(found) < 2 { // at least the sentry and the file server
		u.t.Fatalf("it runs as %q", found)
	}
	seen := map[string]string{}
	for _, line := range found {
		pid, err := strconv.Atoi(processID.FindStringSubmatch(line)[1])
		if err != nil {
			u.t.Fatal(err)
		}
		exe := fmt.Sprintf("/proc/%d/exe", pid)
		var file unix.Stat_t
		if unix.Stat(exe, &file) != nil {
			continue // it has ended
		}
		id := fmt.Sprint(file.Dev, file.Ino)
		if seen[id] == "" {
			seen[id] = sha256Of(u.t, exe)
		}
		if seen[id] != want {
			u.t.Errorf("%s runs build %s, want %s", line, seen[id], want)
		}
	}
}

func sha256Of(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
