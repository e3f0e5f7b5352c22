package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// mapper prints a page of a mapped file that it has read, and one that it reads
// now for the first time.
const mapper = `
import mmap, os, time
library = mmap.mmap(os.open('/srv/library', os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
n, first = 0, library[:3].decode()
while True:
    n += 1
    page = n * 4096 % len(library)
    with open('said.new', 'w') as said:
        said.write(f'{n} {first} {library[page:page + 3].decode()}')
    os.rename('said.new', 'said')
    time.sleep(0.05)
`

// TestUpgradeUnderASleeper replaces a file that a program has mapped, as an
// upgrade of packages does, while its sandbox sleeps. The sandbox is not woken
// with its memory until the file is back, or its owner lets it boot afresh.
func TestUpgradeUnderASleeper(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	tree, err := os.MkdirTemp("", "dw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tree) })
	install := func(text string) { installed(t, tree, text) }
	install("old")
	o := sleeper
	o.Template = s.templateWith(tree)
	sb := s.create(ctx, o)
	if err := sb.WriteFile(ctx, "mapper.py", strings.NewReader(mapper)); err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(ctx, client.Command{Args: []string{"python3", "mapper.py"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	before := said(ctx, t, sb, 1)
	s.pause(ctx, sb.ID)
	begin := time.Now()
	s.connect(ctx, sb.ID)
	t.Logf("a wake over the files that it slept over took %s", since(begin))
	before = said(ctx, t, sb, before+1)
	s.pause(ctx, sb.ID)
	if err := os.WriteFile(filepath.Join(tree, "unused"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.connect(ctx, sb.ID)
	before = said(ctx, t, sb, before+1) // no program of it has that open
	s.pause(ctx, sb.ID)
	install("new")
	refused := func(state string) {
		t.Helper()
		_, err := s.client.Connect(ctx, sb.ID, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "/srv/library, which a program of it has open, has changed") {
			_, out := run(ctx, t, sb, "cat", "said")
			t.Fatalf("%s: connect: %v; the program says %q, want it to stay asleep", state, err, out)
		}
		if _, err := sb.ReadFile(ctx, "said"); err == nil {
			t.Errorf("%s: traffic wakes it", state)
		}
		if info, err := s.client.Get(ctx, sb.ID); err != nil || info.State != client.Paused {
			t.Errorf("%s: it is %+v, %v", state, info, err)
		}
	}
	refused("another file of the same size")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	refused("seen by another server")

	install("old")
	s.connect(ctx, sb.ID)
	said(ctx, t, sb, before+1) // it goes on
	s.pause(ctx, sb.ID)
	install("new")
	if _, err := s.client.Patch(ctx, sb.ID, client.PatchOptions{FilesystemFallback: new(true)}); err != nil {
		t.Fatal(err)
	}
	s.connect(ctx, sb.ID)
	if _, out := run(ctx, t, sb, "pgrep", "-f", "mapper.py"); out != "" {
		t.Errorf("the program still runs, as %s", out)
	}
	if _, out := run(ctx, t, sb, "head", "-c", "3", "/srv/library"); out != "new" {
		t.Errorf("the library is %q, want the new one", out)
	}
}

// templateWith makes a template of the server's: base, and a directory of the
// host below /srv.
func (s *server) templateWith(dir string) string {
	s.t.Helper()
	const id = "shared"
	path := func(id string) string { return filepath.Join(s.dir(), "templates", id, "template.json") }
	bases, err := filepath.Glob(path("base*"))
	if err != nil || len(bases) != 1 {
		s.t.Fatalf("bases %q, %v", bases, err)
	}
	data, err := os.ReadFile(bases[0])
	if err != nil {
		s.t.Fatal(err)
	}
	var base map[string]any
	if err := json.Unmarshal(data, &base); err != nil {
		s.t.Fatal(err)
	}
	base["id"], base["alias"] = id, id
	base["trees"] = append(base["trees"].([]any), map[string]any{"name": id, "path": "/srv", "lowers": []string{dir}})
	if data, err = json.Marshal(base); err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(path(id)), 0o700), os.WriteFile(path(id), data, 0o600)); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// installed puts a library of many pages, all of which begin with text, into
// dir by a rename. Its times are those of its package.
func installed(t *testing.T, dir, text string) {
	t.Helper()
	page := make([]byte, 4096)
	copy(page, text)
	path := filepath.Join(dir, "library")
	built := time.Unix(1_700_000_000+int64(text[0]), 0)
	err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path+".new", bytes.Repeat(page, 1024), 0o644),
		os.Chtimes(path+".new", built, built), os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
}

// said waits until the mapper has said something for the nth time, and returns
// how often it has by then. All of what it says is of one library.
func said(ctx context.Context, t *testing.T, sb *client.Sandbox, nth int) (n int) {
	t.Helper()
	eventually(t, 10*time.Second, "the program goes on", func() error {
		_, out := run(ctx, t, sb, "cat", "said")
		var first, later string
		if _, err := fmt.Sscan(out, &n, &first, &later); err != nil || n < nth {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
	return n
}
