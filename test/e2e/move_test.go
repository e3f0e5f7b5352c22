package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// exported returns a paused sandbox as a file.
func (s *server) exported(ctx context.Context, id string) []byte {
	s.t.Helper()
	var b bytes.Buffer
	if _, err := s.client.Export(ctx, id, &b); err != nil {
		s.t.Fatal(err)
	}
	return b.Bytes()
}

// imported makes a sandbox of a file, and sees to it that it is looked after.
func (s *server) imported(ctx context.Context, file []byte, o client.ImportOptions) *client.Sandbox {
	s.t.Helper()
	info, err := s.client.Import(ctx, bytes.NewReader(file), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.ids = append(s.ids, info.ID)
	s.mu.Unlock()
	sb, _, err := s.client.Open(ctx, info.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	return sb
}

// TestMove takes a sandbox with a running program to another server. Its memory
// and files go on there, under the same id and the new server's tokens; the old
// server's open nothing.
func TestMove(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	from, to := startServer(t), startServer(t)
	g := from.startGuest(ctx, sleeper)
	if exit, out := run(ctx, t, g.sb, "sh", "-c", `printf 'a file' >kept; ln -s kept link; rm .bashrc; mkdir -p deep/er; printf x >deep/er/x; truncate -s 100G sparse; mv deep moved`); exit.Code != 0 {
		t.Fatal(out)
	}
	before := g.ask(ctx)
	oldToken := envdToken(ctx, from, g.sb.ID)
	var refused *client.Error
	if _, err := from.client.Export(ctx, g.sb.ID, &bytes.Buffer{}); !errors.As(err, &refused) || refused.Code != "not_paused" {
		t.Errorf("export of one that runs: %v", err)
	}
	from.pause(ctx, g.sb.ID)
	file := from.exported(ctx, g.sb.ID)
	t.Logf("exported %d KiB", len(file)>>10)
	from.kill(ctx, t, g.sb.ID)

	there := &guest{s: to, sb: to.imported(ctx, file, client.ImportOptions{}), first: g.first}
	if there.sb.ID != g.sb.ID {
		t.Errorf("%s became %s", g.sb.ID, there.sb.ID)
	}
	to.connect(ctx, there.sb.ID)
	there.same(before, there.ask(ctx))
	there.checkAppended(ctx)
	if exit, out := run(ctx, t, there.sb, "sh", "-c", `cat link moved/er/x; test ! -e .bashrc && stat -c %s sparse; echo $E2B_SANDBOX_ID`); exit.Code != 0 || out != "a filex107374182400\n"+g.sb.ID+"\n" {
		t.Errorf("the files: %s %q", exit.Status, out)
	}
	newToken := envdToken(ctx, to, there.sb.ID)
	for token, want := range map[string]int{newToken: http.StatusOK, oldToken: http.StatusUnauthorized} {
		header := http.Header{"E2b-Sandbox-Id": {there.sb.ID}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {token}}
		if got, err := to.raw(ctx, http.MethodGet, "/envs", header, nil); err != nil || got.status != want {
			t.Errorf("with the token %.8s: %d, %v, want %d", token, got.status, err, want)
		}
	}
	// It sleeps and wakes there like any other, over a restart too.
	for range 2 {
		before = there.ask(ctx)
		to.pause(ctx, there.sb.ID)
		to.crash()
		to.start()
		to.connect(ctx, there.sb.ID)
		there.same(before, there.ask(ctx))
	}

	// A copy has an id of its own, inside too; without the memory it boots afresh.
	twin := to.imported(ctx, file, client.ImportOptions{NewID: true})
	to.connect(ctx, twin.ID)
	if _, out := run(ctx, t, twin, "sh", "-c", "cat link; echo $E2B_SANDBOX_ID"); out != "a file"+twin.ID+"\n" {
		t.Errorf("the copy has %q", out)
	}
	afresh := to.imported(ctx, file, client.ImportOptions{NewID: true, Mode: client.Filesystem})
	to.connect(ctx, afresh.ID)
	if _, out := run(ctx, t, afresh, "sh", "-c", "cat link; pgrep guest || echo none"); out != "a filenone\n" {
		t.Errorf("booted afresh, it has %q", out)
	}
}

// envdToken returns the token that a sandbox's agent wants.
func envdToken(ctx context.Context, s *server, id string) string {
	s.t.Helper()
	return strings.Trim(string(s.details(ctx, id)["envdAccessToken"]), `"`)
}

// TestImportLeavesNothing breaks imports off: by damage, by the end of the
// client, by that of the server, and for want of space.
func TestImportLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	from := startServer(t)
	g := from.startGuest(ctx, sleeper)
	if err := g.call(ctx, "GET", "/hold?mib=64", nil, new(int)); err != nil {
		t.Fatal(err)
	}
	from.pause(ctx, g.sb.ID)
	file := from.exported(ctx, g.sb.ID)

	dir := smallDisk(t, 200)
	to := startServerIn(t, dir)
	nothing := func(after string) {
		t.Helper()
		if err := poll(goneWithin, func() error {
			if left := named(dir, "", "layers", "images", "imports"); len(left) > 0 {
				return errors.New(strings.Join(left, ", "))
			}
			return nil
		}); err != nil {
			t.Errorf("after %s: left: %v", after, err)
		}
	}
	damaged := bytes.Clone(file)
	damaged[len(damaged)/2] ^= 1
	for what, sent := range map[string][]byte{"damage": damaged, "a cut": file[:len(file)-100]} {
		var refused *client.Error
		if _, err := to.client.Import(ctx, bytes.NewReader(sent), client.ImportOptions{}); !errors.As(err, &refused) || refused.Code != "import_damaged" {
			t.Errorf("after %s: %v", what, err)
		}
		nothing(what)
	}
	free := fill(t, dir, int64(len(file)))
	var refused *client.Error
	if _, err := to.client.Import(ctx, bytes.NewReader(file), client.ImportOptions{}); !errors.As(err, &refused) || refused.Code != "disk_full" {
		t.Errorf("on a full disk: %v", err)
	}
	nothing("a full disk")
	free()
	awaitSpace(t, dir, 100<<20)

	for _, end := range []string{"client", "server"} {
		gone, leave := context.WithCancel(ctx)
		body := &stalling{data: file[:len(file)*3/4], stalled: make(chan struct{}), done: gone.Done()}
		answer := make(chan error, 1)
		go func() {
			_, err := to.client.Import(gone, body, client.ImportOptions{})
			answer <- err
		}()
		select {
		case <-body.stalled:
		case err := <-answer:
			t.Fatalf("the import ended before its body: %v", err)
		}
		eventually(t, time.Minute, "the import has begun", func() error {
			if len(named(dir, "", "imports")) == 0 {
				return errors.New("nothing is there")
			}
			return nil
		})
		if end == "server" {
			to.crash()
			to.start()
		}
		leave()
		if err := <-answer; err == nil {
			t.Errorf("the %s has gone, and the import worked", end)
		}
		nothing("the end of the " + end)
	}
	there := &guest{s: to, sb: to.imported(ctx, file, client.ImportOptions{}), first: g.first}
	to.connect(ctx, there.sb.ID)
	there.same(g.first, there.ask(ctx))
}

// stalling is a body that stops in the middle.
type stalling struct {
	data    []byte
	stalled chan struct{}
	done    <-chan struct{}
}

// Read implements io.Reader.
func (s *stalling) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		close(s.stalled)
		<-s.done
		return 0, context.Canceled
	}
	n := copy(p, s.data)
	s.data = s.data[n:]
	return n, nil
}

// TestMoveByCommandLine pipes a sandbox from one server to another.
func TestMoveByCommandLine(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	from, to := startServer(t), startServer(t)
	sb := from.create(ctx, sleeper)
	if exit, out := run(ctx, t, sb, "sh", "-c", "echo text >kept"); exit.Code != 0 {
		t.Fatal(out)
	}
	from.pause(ctx, sb.ID)
	cmd := exec.CommandContext(ctx, "sh", "-c", `"$DROWSE" export "$ID" --url "http://$FROM" | "$DROWSE" import --url "http://$TO"`)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "DROWSE_API_KEY=" + apiKey, "HOME=" + filepath.Dir(guestBinary),
		"DROWSE=" + drowseBinary, "ID=" + sb.ID, "FROM=" + from.addr, "TO=" + to.addr,
	}
	out, err := cmd.CombinedOutput()
	to.ids = append(to.ids, sb.ID)
	if err != nil || !strings.Contains(string(out), sb.ID+" is asleep") || !strings.Contains(string(out), sb.ID+" is exported") {
		t.Fatalf("%v: %s", err, out)
	}
	there, _, err := to.client.Open(ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	to.connect(ctx, sb.ID)
	if _, text := run(ctx, t, there, "cat", "kept"); text != "text\n" {
		t.Errorf("the file has %q", text)
	}
}
