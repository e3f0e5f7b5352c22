package gvisor

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// beHog opens so many new files, or as many as it can, or watches them if the number is
// negative. It says how that went, and holds them until its input ends.
func beHog(most string) int {
	n, _ := strconv.Atoi(most)
	var files []*os.File
	var err error
	watcher, _ := unix.InotifyInit()
	for watched := 0; watched < -n && err == nil; watched++ {
		var f *os.File
		if f, err = os.CreateTemp("/", "watched-"); err == nil {
			_, err = unix.InotifyAddWatch(watcher, f.Name(), unix.IN_ALL_EVENTS)
			f.Close()
		}
	}
	for len(files) < n && err == nil {
		var f *os.File
		if f, err = os.CreateTemp("/", "file-"); err == nil {
			files = append(files, f)
		}
	}
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	fmt.Printf("%d of %d: %v\n", len(files), limit.Max, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return len(files)
}

// serveHogs starts processes that each open so many files, and answers with what they
// say. They stay.
func serveHogs() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.URL.Query().Get("count"))
		for range count {
			cmd := exec.Command("/guest", "hog", r.URL.Query().Get("files"))
			out, err := cmd.StdoutPipe()
			if err == nil {
				_, err = cmd.StdinPipe()
			}
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			line, _ := bufio.NewReader(out).ReadString('\n')
			fmt.Fprint(w, line)
		}
	}
}

// hogs has processes of a guest open so many files each, and returns what they say.
func hogs(t *testing.T, i *instance, count, files int) []string {
	t.Helper()
	resp, err := guestClient(i).Get(fmt.Sprintf("http://guest/hogs?count=%d&files=%d", count, files))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(body)), "\n")
}

// TestFewDescriptors has a guest open all the files it can, where gVisor may have few
// descriptors. Who opens too many is refused. The others go on, and it sleeps and wakes.
func TestFewDescriptors(t *testing.T) {
	if edits == "" {
		if testing.Short() {
			t.Skip("this gVisor is not edited: make test-plain tests the one that is")
		}
		t.Fatal("this gVisor is not edited, and panics without descriptors: run make test-plain")
	}
	const mark = "FEW_DESCRIPTORS"
	if os.Getenv(mark) == "" { // for a limit cannot be raised again
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Args[0] = os.Args[0]
		cmd.Env = append(os.Environ(), mark+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const few = 4096
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: few}); err != nil {
		t.Fatal(err)
	}
	r, d, first, inst := startOne(t, 0)
	for n, said := range hogs(t, inst, 5, few) {
		if !strings.HasSuffix(said, "too many open files") || !strings.Contains(said, " of 1024: ") {
			t.Errorf("hog %d says %q", n, said)
		}
	}
	if said := hogs(t, inst, 1, -few); !strings.HasSuffix(said[0], unix.ENOSPC.Error()) {
		t.Errorf("who watches files says %q", said)
	}
	modest := func(inst *instance) {
		t.Helper()
		for n, said := range hogs(t, inst, 5, 20) {
			if said != "20 of 1024: <nil>" {
				t.Errorf("process %d says %q", n, said)
			}
		}
	}
	modest(inst)
	image := r.capture(t, inst)
	spec := r.again(t, first)
	woken, err := d.Restore(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	modest(woken.(*instance))
	if err := d.Remove(t.Context(), spec.ID); err != nil {
		t.Error(err)
	}
}
