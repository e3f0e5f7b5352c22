package e2e

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

//go:embed testdata/openfiles.py
var openFiles string

// holders are two processes that hold files open, in a sandbox or on the host.
type holders struct {
	t       *testing.T
	request func(ctx context.Context, body string) (*http.Request, error)
}

// ask has them do something, and returns what came of it.
func (h holders) ask(ctx context.Context, seed uint64, what string) string {
	h.t.Helper()
	out, err := h.try(ctx, seed, what)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h holders) try(ctx context.Context, seed uint64, what string) (string, error) {
	req, err := h.request(ctx, fmt.Sprintf("%d %s", seed, what))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, out)
	}
	return string(out), err
}

func holdersIn(ctx context.Context, t *testing.T, sb *client.Sandbox) holders {
	return holders{t, func(ctx context.Context, body string) (*http.Request, error) {
		return sb.Request(ctx, http.MethodPost, guestPort, "/", strings.NewReader(body))
	}}
}

func startHolders(ctx context.Context, t *testing.T, sb *client.Sandbox) holders {
	t.Helper()
	p, err := sb.Start(ctx, client.Command{Args: []string{"sudo", "/usr/bin/python3", "-c", openFiles, strconv.Itoa(guestPort), "/var/tmp/held"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	h := holdersIn(ctx, t, sb)
	h.await(ctx)
	return h
}

func (h holders) await(ctx context.Context) {
	h.t.Helper()
	eventually(h.t, time.Minute, "the holders' first answer", func() error {
		_, err := h.try(ctx, 0, "0")
		return err
	})
}

func holdersOnHost(ctx context.Context, t *testing.T) holders {
	t.Helper()
	address := freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "-c", openFiles, port, t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	h := holders{t, func(ctx context.Context, body string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address, strings.NewReader(body))
	}}
	h.await(ctx)
	return h
}

// TestOpenFiles has two processes of a sandbox do the same random things to open files as
// two on the host: they write, map, truncate, rename and remove them. The sandbox sleeps
// in between, now and then without anything done, and is forked. All answers must be the
// same, and times before and after each sleep.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 10*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	inside, host := startHolders(ctx, t, sb), holdersOnHost(ctx, t)
	var steps []string
	for round := range uint64(testmode.Choose(20, 200)) {
		seed := testmode.Seed()<<32 + round
		want := strings.SplitAfter(host.ask(ctx, seed, "60"), "\n")
		got := strings.SplitAfter(inside.ask(ctx, seed, "60"), "\n")
		for i, step := range want {
			if i >= len(got) || got[i] != step {
				t.Fatalf("round %d, after\n%s\non the host\n%sin the sandbox\n%s", round, strings.Join(steps[max(0, len(steps)-150):], ""), step, strings.Join(got[min(i, len(got)):], ""))
			}
			steps = append(steps, step)
		}
		steps = append(steps, "asleep\n")
		before := inside.ask(ctx, 0, "times")
		switch {
		case round%5 == 3:
			children, err := client.NewSnapshots(s.client).Fork(ctx, sb.ID, client.ForkOptions{Count: 1})
			if err != nil || children[0].Err != nil {
				t.Fatalf("%v, %+v", err, children)
			}
			s.kill(ctx, t, sb.ID)
			sb = children[0].Sandbox
			s.mu.Lock()
			s.ids = append(s.ids, sb.ID)
			s.mu.Unlock()
			inside = holdersIn(ctx, t, sb)
		case round%5 == 1:
			s.pause(ctx, sb.ID)
			s.connect(ctx, sb.ID)
			fallthrough
		default:
			s.pause(ctx, sb.ID)
		}
		if after := inside.ask(ctx, 0, "times"); after != before {
			t.Fatalf("round %d: it woke with\n%s\nbefore\n%s\nafter\n%s", round, after, before, strings.Join(steps, ""))
		}
	}
}

// TestOpenFileIsNotWritten has programs hold files open for writing that they seldom
// write. A pause writes none of them if the sandbox did not since the pause before.
func TestOpenFileIsNotWritten(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	const mib = 100
	p, err := sb.Start(ctx, client.Command{Args: []string{"bash", "-c", fmt.Sprintf(`
		cd /var/tmp
		head -c %dM /dev/urandom >large
		exec 3<>large 4>>log
		mkfifo next
		echo ready >log
		while read -r line <next; do echo "$line" >&4; done`, mib)}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	var sum string
	eventually(t, time.Minute, "the files", func() error {
		exit, out := run(ctx, t, sb, "sh", "-c", "cd /var/tmp && grep -q ready log && sha256sum large")
		if sum = out; exit.Code != 0 {
			return fmt.Errorf("exit %d: %s", exit.Code, out)
		}
		return nil
	})
	written := func() int64 {
		t.Helper()
		s.pause(ctx, sb.ID)
		e := s.entries(ctx, sb.ID, "paused")
		return e[len(e)-1].Bytes
	}
	if n := written(); n < mib<<20 {
		t.Fatalf("the pause after the file was written wrote %d bytes", n)
	}
	for range 3 {
		if _, out := run(ctx, t, sb, "sha256sum", "/var/tmp/large"); !strings.HasPrefix(sum, strings.Fields(out)[0]) {
			t.Errorf("it woke with %s, want %s", out, sum)
		}
		if n := written(); n > mib<<20/2 {
			t.Errorf("a pause wrote %d bytes, and nothing was written inside", n)
		}
	}
	if exit, out := run(ctx, t, sb, "sh", "-c", "cd /var/tmp; echo more >next; until grep more log; do sleep 0.1; done"); exit.Code != 0 {
		t.Fatal(out)
	}
	s.pause(ctx, sb.ID)
	if _, out := run(ctx, t, sb, "cat", "/var/tmp/log"); out != "ready\nmore\n" {
		t.Errorf("what was appended after a wake is lost: %q", out)
	}
}

// TestOpenFileInOverlay has a program map a file for writing after a wake, in an overlay of
// its own over the sandbox's files. It was mapped to be read before.
func TestOpenFileInOverlay(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	p, err := sb.Start(ctx, client.Command{Args: []string{"unshare", "-rm", "sh", "-c", `
		cd && mkdir lower upper work merged && mount -t overlay overlay -o lowerdir=$PWD/lower,upperdir=$PWD/upper,workdir=$PWD/work $PWD/merged && exec python3 -c "$0"`, `
import mmap, os
open("merged/f", "wb").write(b"a" * 65536)
os.mkfifo("next")
rw, ro = os.open("merged/f", os.O_RDWR), os.open("merged/f", os.O_RDONLY)
mmap.mmap(ro, 65536, mmap.MAP_SHARED, mmap.PROT_READ).close()
open("ready", "w").close()
open("next").read()
mmap.mmap(rw, 65536, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)[0:1] = b"b"
open("written", "w").write(os.pread(rw, 2, 0).decode() + open("merged/f").read(2))
`}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	eventually(t, time.Minute, "the overlay", func() error {
		if exit, out := run(ctx, t, sb, "cat", "ready"); exit.Code != 0 {
			return errors.New(out)
		}
		return nil
	})
	s.pause(ctx, sb.ID)
	eventually(t, time.Minute, "the mapping is written", func() error {
		exit, out := run(ctx, t, sb, "sh", "-c", "[ -e next ] && timeout 5 sh -c 'echo >next'; rm -f next; cat written upper/f | head -c 6")
		if out != "bababa" {
			return fmt.Errorf("exit %d: %q", exit.Code, out)
		}
		return nil
	})
}
