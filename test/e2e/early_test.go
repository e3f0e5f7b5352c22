package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestEarlyWake wakes a sandbox that runs before its memory has been read. It pauses
// it again at once, ends the server in the middle, and damages the image: what the
// sandbox sees of its memory is what it was, or it does not go on.
func TestEarlyWake(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t, "--early-wake", "1")
	g := s.startGuest(ctx, sleeper)
	digest := func() (string, error) {
		var out bytes.Buffer
		exit, err := g.sb.Run(ctx, client.Command{Args: []string{"sha256sum", "/dev/shm/noise"}, Stdout: &out, Stderr: &out})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("exit %+v: %s", exit, out.String())
		}
		return out.String(), err
	}
	if exit, out := run(ctx, t, g.sb, "sh", "-c", fmt.Sprintf("head -c %dM /dev/urandom >/dev/shm/noise", testmode.Choose(64, 128))); exit.Code != 0 {
		t.Fatalf("fill memory: %+v: %s", exit, out)
	}
	want, err := digest()
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		if got, err := digest(); err != nil || got != want {
			t.Fatalf("%s: the digest of its memory is %q, %v; was %q", when, got, err, want)
		}
		g.same(g.first, g.ask(ctx))
	}
	for range testmode.Choose(1, 3) {
		s.pause(ctx, g.sb.ID)
		g.ask(ctx)
		s.pause(ctx, g.sb.ID)
		begin := time.Now()
		g.ask(ctx)
		t.Logf("first answer after %s", since(begin))
		check("woken")
	}
	s.pause(ctx, g.sb.ID)
	g.ask(ctx)
	s.crash()
	s.start()
	check("after a crash of the server")

	s.pause(ctx, g.sb.ID)
	pages := largest(t, s.checkpointOf(ctx, g.sb.ID)) // the file of pages, or the pack that has most of them
	undo := altered(t, pages, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	if got, err := digest(); err == nil {
		t.Errorf("with a byte of its memory changed it gives the digest %q, which was %q", got, want)
	}
	eventually(t, time.Minute, "it is back at its checkpoint", func() error {
		info, err := s.client.Get(ctx, g.sb.ID)
		if err == nil && info.State != client.Paused {
			err = errors.New(string(info.State))
		}
		return err
	})
	s.checkDamaged(ctx, g, "a byte of its memory changed")
	info, err := s.client.Get(ctx, g.sb.ID)
	if err != nil || !strings.Contains(info.LastError, filepath.Base(pages)) {
		t.Errorf("its last error is %q, %v; want it to name the file", info.LastError, err)
	}
	undo()
	s.connect(ctx, g.sb.ID)
	check("with its image put back")
}

// largest returns the path of the largest file in a directory.
func largest(t *testing.T, dir string) (path string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	size := int64(-1)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > size {
			path, size = filepath.Join(dir, e.Name()), info.Size()
		}
	}
	return path
}
