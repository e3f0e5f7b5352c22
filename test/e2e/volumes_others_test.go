package e2e

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// volumeHolder holds everything of a volume that can be held, and says what it is when
// it is told to.
const volumeHolder = `
import ctypes, errno, fcntl, json, mmap, os, subprocess, sys, time
os.chdir("/mnt/data")
libc = ctypes.CDLL(None, use_errno=True)
names = "replaced removed moved renamed todir tolink below/file truncated big".split()
fds = {n: os.open(n, os.O_RDWR) for n in names}
appender = os.open("log", os.O_WRONLY | os.O_APPEND)
locked = os.open("locked", os.O_RDWR); fcntl.flock(locked, fcntl.LOCK_EX)
link = os.open("link", os.O_PATH | os.O_NOFOLLOW)
mapped = mmap.mmap(os.open("mapped", os.O_RDWR), 0)
program = subprocess.Popen(["/mnt/data/program", "1000"])
ino = libc.inotify_init1(os.O_NONBLOCK)
watched = {libc.inotify_add_watch(ino, p.encode(), 0xfff): p for p in ["watched", "watcheddir", "replaced"]}
os.mkfifo("fifos/fifo"); fifo = os.open("fifos/fifo", os.O_RDWR)
os.chdir("cwd"); listing = os.open("/mnt/data/listing", os.O_DIRECTORY)
def attempt(f):
    try: return f()
    except OSError as e: return errno.errorcode[e.errno]
def report():
    r = {n: [attempt(lambda: os.pread(fd, 100, 0).decode()), attempt(lambda: os.pwrite(fd, b"!", 1)), attempt(lambda: os.fstat(fd).st_nlink)] for n, fd in fds.items()}
    r["big"] = r["big"][0][:6]
    r["log"] = attempt(lambda: os.write(appender, b"appended\n"))
    r["locked"] = attempt(lambda: fcntl.flock(locked, fcntl.LOCK_EX))
    r["link"] = attempt(lambda: os.readlink("", dir_fd=link))
    r["mapped"] = None if "asleep" in sys.argv else mapped[:3].decode()
    r["program"] = program.poll()
    r["cwd"] = attempt(lambda: os.listdir("."))
    r["listing"] = attempt(lambda: os.listdir(listing))
    r["make"] = attempt(lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY)))
    r["fifo"] = attempt(lambda: os.write(fifo, b"x")) 
    events = attempt(lambda: os.read(ino, 65536)); gone = set()
    while isinstance(events, bytes) and events:
        wd, mask, size = int.from_bytes(events[:4], "little"), int.from_bytes(events[4:8], "little"), int.from_bytes(events[12:16], "little")
        if mask & 0x8000: gone.add(watched[wd])
        events = events[16 + size:]
    r["watches gone"] = sorted(gone)
    return r
os.makedirs("/tmp/r", exist_ok=True); open("/tmp/r/begun", "w").close()
while not os.path.exists("/tmp/r/go"): time.sleep(.02)
open("/tmp/r/part", "w").write(json.dumps(report())); os.rename("/tmp/r/part", "/tmp/r/report")
time.sleep(1000)
`

// Somebody else makes these files, and changes them.
const (
	volumeFiles = `for f in replaced removed moved renamed todir tolink truncated log locked mapped watched; do echo old $f >$f; done
mkdir below cwd listing watcheddir fifos; echo old below >below/file; echo x >cwd/inside; ln -s target link; cp /bin/sleep program; head -c 40000000 /dev/zero | tr '\0' z >big`
	volumeChanges = `echo new >.n; mv .n replaced; rm removed; mkdir -p away; mv moved away; mv renamed renamed.1; rm todir; mkdir todir; rm tolink; ln -s log tolink; rm -rf below
: >truncated; rm big log locked link; echo new >.n; mv .n mapped; rm program watched; rm -rf watcheddir listing fifos; mv cwd away`
)

// TestVolumeChangedByOthers has a sandbox hold files of a volume that another removes,
// renames and replaces: before its pause, seen by it or not, or while it sleeps. It
// pauses and wakes, and what it holds is a deleted file.
func TestVolumeChangedByOthers(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	s := startServer(t)
	kept := map[string]string{
		"replaced": `["old replaced\n",1,0]`, "removed": `["old removed\n",1,0]`, "moved": `["old moved\n",1,0]`, "below/file": `["old below\n",1,0]`,
		"todir": `["old todir\n",1,0]`, "tolink": `["old tolink\n",1,0]`, "mapped": `"old"`, "link": `"target"`, "log": `9`,
	}
	both := map[string]string{
		"renamed": `["old renamed\n",1,1]`, "truncated": `["",1,1]`, "big": `"ESTALE"`, "locked": `null`, "program": `null`, "fifo": `1`,
		"cwd": `[]`, "listing": `[]`, "make": `"ENOENT"`, "watches gone": `["replaced","watched","watcheddir"]`,
	}
	lost := map[string]string{"replaced": `["new\n",1,1]`, "mapped": `null`, "link": `".."`, "log": `"ESTALE"`}
	for _, name := range []string{"removed", "moved", "below/file", "todir", "tolink"} {
		lost[name] = `["ESTALE","ESTALE",0]`
	}
	other := map[string]map[string]string{"seen": kept, "unseen": kept, "snapshot": kept, "asleep": lost}
	for when, want := range other {
		want = maps.Clone(want)
		maps.Copy(want, both)
		s.volume(ctx, when)
		holder, changer := s.create(ctx, withVolume(when)), s.create(ctx, withVolume(when))
		s.shell(ctx, changer, volumeFiles, "")
		p, err := holder.Start(ctx, client.Command{Args: []string{"python3", "-c", volumeHolder, when}})
		if err != nil {
			t.Fatal(err)
		}
		p.Detach()
		s.shell(ctx, holder, "until [ -e /tmp/r/begun ]; do sleep 0.05; done", "")
		if when == "asleep" {
			s.pause(ctx, holder.ID)
		}
		s.shell(ctx, changer, volumeChanges, "")
		switch when {
		case "seen":
			s.shell(ctx, holder, "ls -laR . >/dev/null; cat * >/dev/null 2>&1; true", "")
			s.pause(ctx, holder.ID)
		case "unseen":
			s.pause(ctx, holder.ID)
		case "snapshot":
			source, snaps := holder.ID, client.NewSnapshots(s.client)
			snap, err := snaps.Create(ctx, source, client.SnapshotOptions{})
			if err != nil {
				t.Fatal(err)
			}
			holder = s.create(ctx, client.CreateOptions{Timeout: time.Hour, Snapshot: snap.ID})
			s.kill(ctx, t, source)
			if err := snaps.Delete(ctx, snap.ID); err != nil {
				t.Error(err)
			}
		}
		if when != "snapshot" {
			s.connect(ctx, holder.ID)
		}
		s.shell(ctx, holder, "touch /tmp/r/go; until [ -e /tmp/r/report ]; do sleep 0.05; done", "")
		r, err := holder.ReadFile(ctx, "/tmp/r/report")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if when == "asleep" {
			want["watches gone"] = `["watched","watcheddir"]` // the other is the new one's
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if is := strings.ReplaceAll(string(got[name]), ", ", ","); is != want[name] {
				t.Errorf("%s: %s is %s, want %s", when, name, is, want[name])
			}
		}
		s.shell(ctx, changer, "ls -A; cat renamed.1", "away\nmapped\nrenamed.1\nreplaced\ntodir\ntolink\ntruncated\no!d renamed\n")
		s.pause(ctx, holder.ID) // and once more, with what it holds now
		s.connect(ctx, holder.ID)
		s.kill(ctx, t, holder.ID)
		s.kill(ctx, t, changer.ID)
	}
}

// TestVolumeAppends has two sandboxes make the same files at the same time, and append to
// the same files, by one handle each and by a new one for each line. One of them sleeps
// and wakes meanwhile. No line is lost, and who may not open what was just made is refused.
func TestVolumeAppends(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	s.volume(ctx, "data")
	const writer = `
import os, sys, time, traceback
os.chdir("/mnt/data")
def fail(*error):
    with open("failed", "w") as f: traceback.print_exception(*error, file=f)
sys.excepthook = fail
def appender(name): return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
kept = appender("kept")
open("begun" + sys.argv[1], "w").close()
while not os.path.exists("begun" + "21"[int(sys.argv[1]) - 1]): time.sleep(.001)
for n in range(300):
    os.makedirs(f"made/{n}/below", exist_ok=True)
    made = appender(f"made/{n}/below/file"); os.write(made, b"x"); os.close(made)
end = 0
for n in range(2000):
    line = f"sandbox {sys.argv[1]} line {n} {'x' * (n % 50)}.\n".encode()
    os.write(kept, line)
    at = os.lseek(kept, 0, os.SEEK_CUR)
    assert at >= end + len(line), (at, end, line)
    end = at
    each = appender("each"); os.write(each, line); os.close(each)
    if n > 1500: time.sleep(.002)
open("ended" + sys.argv[1], "w").close()
`
	var both [2]*client.Sandbox
	await := func(what string) {
		t.Helper()
		s.shell(ctx, both[1], "until [ -s failed ] || "+what+"; do sleep 0.02; done; cat failed 2>/dev/null || true", "")
	}
	for i := range both {
		both[i] = s.create(ctx, withVolume("data"))
		p, err := both[i].Start(ctx, client.Command{Args: []string{"python3", "-c", writer, strconv.Itoa(i + 1)}})
		if err != nil {
			t.Fatal(err)
		}
		p.Detach()
	}
	s.shell(ctx, both[0].As("root"), `python3 -c '
import os, socket
os.mkfifo("fifo", 0o600)
listener = socket.socket(socket.AF_UNIX); listener.bind("socket"); listener.listen(); os.chmod("socket", 0o600)
os.mkdir("private", 0o700)
os.setuid(1000)
def attempt(f, *args):
    try: return f(*args)
    except OSError as e: print(e.strerror)
attempt(os.open, "fifo", os.O_RDWR)
attempt(socket.socket(socket.AF_UNIX).connect, "socket")
attempt(os.open, "private/x", os.O_CREAT)
print(os.access("fifo", os.W_OK))'`, "Permission denied\nPermission denied\nPermission denied\nFalse\n")
	await("[ $(cat each kept 2>/dev/null | wc -l) -gt 6200 ]")
	s.pause(ctx, both[0].ID)
	await("[ -e ended2 ]")
	s.connect(ctx, both[0].ID)
	await("[ -e ended1 ]")
	s.shell(ctx, both[1], `cat made/*/below/file | wc -c
for f in kept each; do for s in 1 2; do grep -cE "^sandbox $s line [0-9]+ x*\.$" $f; grep "^sandbox $s line" $f | sort | uniq | wc -l; done; wc -l <$f; done`,
		"600\n"+strings.Repeat("2000\n2000\n2000\n2000\n4000\n", 2))
	for _, sb := range both {
		s.kill(ctx, t, sb.ID)
	}
}
