package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// makeHostileTree makes what no path leads through, as the sandbox's own user:
// deep directories, long names, many names of one file, odd names, a huge file
// with nothing in it and, unless it is to be exported, what is no file.
const makeHostileTree = `
import os, socket, sys
def chain(first, name, n):
    os.mkdir(first); os.chdir(first)
    for _ in range(n):
        os.mkdir(name); os.chdir(name)
home = os.getcwd()
chain("deep", "d", 2200)
open("bottom", "w").write("at the bottom")
os.chdir(home)
chain("long", "n" * 250, 18)
open("linked", "w").write("one file")
for i in range(1000):
    os.link("linked", "link%d" % i)
os.chdir(home)
os.mkdir("odd"); os.chdir("odd")
for name in [b"\n", b"a\nb", b'"', b"\\", b"\x1b[2J", b"\xff\xfe", b" ", b"-rf", b"...", b".listing", b".work", b"\x01" * 255]:
    open(name, "w").write("odd")
os.chdir(home)
open("sparse", "w").truncate(1 << 40)
os.symlink("../" * 1300 + "etc", "up"); os.symlink("loop", "loop")
if sys.argv[1] == "all":
    os.mkfifo("fifo")
    socket.socket(socket.AF_UNIX).bind("socket")
`

// checkHostileTree looks at all of it, and adds to it.
const checkHostileTree = `
import os, sys
def enter(first, name, n):
    os.chdir(first)
    for _ in range(n):
        os.chdir(name)
home = os.getcwd()
enter("deep", "d", 2200)
text = open("bottom").read()
open("bottom", "w").write(text + "!")
os.chdir(home)
enter("long", "n" * 250, 18)
assert open("link7").read() == "one file", "link7"
assert len(os.listdir(".")) == 1001, len(os.listdir("."))
os.chdir(home)
assert len(os.listdir(b"odd")) == 12, os.listdir(b"odd")
assert os.stat("sparse").st_size == 1 << 40
print(text)
`

// TestHostileTree has a guest make the worst of trees. It sleeps and wakes with
// it, also afresh and after a merge, is exported and imported, and goes without a
// trace.
func TestHostileTree(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	python := func(sb *client.Sandbox, args ...string) string {
		t.Helper()
		exit, out := run(ctx, t, sb, append([]string{"python3", "-c"}, args...)...)
		if exit.Code != 0 {
			t.Fatalf("%s: %s", exit.Status, out)
		}
		return strings.TrimSpace(out)
	}
	python(sb, makeHostileTree, "portable")
	text := "at the bottom"
	for n := range testmode.Choose(2, 3) {
		t.Logf("paused in %s", s.pause(ctx, sb.ID))
		if got := python(sb, checkHostileTree); got != text {
			t.Fatalf("after wake %d, the bottom has %q, want %q", n+1, got, text)
		}
		text += "!"
	}
	if exit, out := run(ctx, t, sb, "sh", "-c", "mv deep deeper; mv deeper deep"); exit.Code != 0 {
		t.Error(out)
	}
	s.pause(ctx, sb.ID)
	file := s.exported(ctx, sb.ID)
	t.Logf("exported %d KiB", len(file)>>10)
	twin := s.imported(ctx, file, client.ImportOptions{NewID: true, Mode: client.Filesystem})
	s.connect(ctx, twin.ID)
	if got := python(twin, checkHostileTree); got != text {
		t.Errorf("the copy has %q, want %q", got, text)
	}

	special := s.create(ctx, sleeper)
	python(special, makeHostileTree, "all")
	s.pause(ctx, special.ID)
	if got := python(special, checkHostileTree); got != "at the bottom" {
		t.Errorf("with a socket and a FIFO, the bottom has %q", got)
	}
	for _, id := range []string{sb.ID, twin.ID, special.ID} {
		s.kill(ctx, t, id)
	}
	eventually(t, 30*time.Second, "the layers are removed", func() error {
		if left := s.glob("layers", "*"); len(left) > 0 {
			return errors.New(left[0] + " is left")
		}
		return nil
	})
}
