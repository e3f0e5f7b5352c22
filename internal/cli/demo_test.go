package cli

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

func TestHostProcesses(t *testing.T) {
	id := fmt.Sprintf("i0test%015d", os.Getpid()) // of no other run on this machine
	gv := t.TempDir()
	bundle := filepath.Join(gv, "bundles", id+"r0000001")
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "container-id"), []byte("warm-one"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		arg  string
		want int
	}{
		"names the sandbox":        {id, 1},
		"made ahead":               {"--bundle=" + gv + "/waiting/warm-one", 1},
		"made ahead, by its log":   {"--panic-log=" + gv + "/waiting/warm-one/sentry.log", 1},
		"made ahead for another":   {"--bundle=" + gv + "/waiting/warm-two", 0},
		"made ahead, other server": {"--bundle=" + gv + "x/waiting/warm-one", 0},
	} {
		t.Run(name, func(t *testing.T) { testHostProcesses(t, id, c.arg, c.want) })
	}
}

func testHostProcesses(t *testing.T, id, arg string, want int) {
	if got, err := hostProcesses(id); err != nil || got.count != 0 || got.String() != "no process, 0 MiB" {
		t.Fatalf("before: got %v, %v", got, err)
	}
	cmd := exec.Command("sh", "-c", "read line; echo here; read line", arg)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Its command line and memory are in place when it reads.
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("here\n"))); err != nil {
		t.Fatal(err)
	}
	got, err := hostProcesses(id)
	if err != nil || got.count != want || (got.bytes > 0) != (want > 0) {
		t.Errorf("got %+v, %v; want %d process with memory", got, err, want)
	}
	_ = stdin.Close()
	_ = cmd.Wait()
	if got, err := hostProcesses(id); err != nil || got.count != 0 {
		t.Errorf("after: got %v, %v", got, err)
	}
}

func TestMountsBelow(t *testing.T) {
	if got, err := mountsBelow("/proc"); err != nil || len(got) == 0 || got[0] != "/proc" {
		t.Errorf("/proc: got %v, %v", got, err)
	}
	if got, err := mountsBelow("/pro"); err != nil || len(got) != 0 {
		t.Errorf("/pro: got %v, %v", got, err)
	}
	if got, err := mountsBelow(t.TempDir()); err != nil || len(got) != 0 {
		t.Errorf("temporary directory: got %v, %v", got, err)
	}
}

func TestReadingContinues(t *testing.T) {
	before := reading{pid: 7, word: "w", count: 10}
	for _, tt := range []struct {
		name string
		r    reading
		want string // part of the complaint
	}{
		{"went on", reading{7, "w", 12}, ""},
		{"stood still", reading{7, "w", 10}, ""},
		{"other process", reading{8, "w", 12}, "pid 7 was started, 7 answered first and 8 later"},
		{"started anew", reading{7, "x", 12}, "started anew"},
		{"went back", reading{7, "w", 9}, "from 10 to 9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.r.continues(before, 7)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestParseReading(t *testing.T) {
	for _, tt := range []struct {
		text string
		want reading
		ok   bool
	}{
		{"", reading{}, true},
		{"1 w 2", reading{}, true}, // the line is not whole
		{"1 w 2\n", reading{1, "w", 2}, true},
		{"1 w 2\n1 w 3\n1 w", reading{1, "w", 3}, true},
		{"<html>\n", reading{}, false},
	} {
		if got, err := parseReading(tt.text); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%q: got %+v, %v", tt.text, got, err)
		}
	}
}

// TestPythonCounter runs the program that the demo runs in a sandbox with
// Python.
func TestPythonCounter(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here; the demo then uses bash")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	_ = ln.Close()
	cmd := exec.Command(python, "-c", pythonProgram(port))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var readings []reading
	err = until(t.Context(), "it counts", func() (bool, error) {
		resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(port))
		if err != nil {
			return false, nil // not up yet
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return false, err
		}
		r, err := parseReading(string(body))
		readings = append(readings, r)
		return r.count > readings[0].count, err
	})
	if err != nil {
		t.Fatal(err)
	}
	// The shim of a version manager may stand between us and the process.
	last := readings[len(readings)-1]
	if err := last.continues(readings[0], last.pid); err != nil {
		t.Error(err)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                    "0s",
		1400 * time.Millisecond:         "1s",
		59600 * time.Millisecond:        "1m0s",
		2*time.Hour + 3*time.Minute + 4: "2h3m",
		50 * time.Hour:                  "2d2h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestParsePlace(t *testing.T) {
	for text, want := range map[string]place{
		"file":        {"", "file"},
		"i0abc:file":  {"i0abc", "file"},
		"i0abc:/a:b":  {"i0abc", "/a:b"},
		"i0abc:":      {"i0abc", ""},
		"./a:b":       {"", "./a:b"},
		"Some:thing":  {"Some", "thing"},
		"some dir:x":  {"", "some dir:x"},
		":x":          {"", ":x"},
		"-":           {"", "-"},
		"i0-client:x": {"i0-client", "x"},
	} {
		if got := parsePlace(text); got != want {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
}

// TestDemoSleepsMeanwhile: a sandbox of the demo that falls asleep by itself, just before
// the key that pauses it, is asleep as it was to be.
func TestDemoSleepsMeanwhile(t *testing.T) {
	code := "already_paused"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"error": {"code": %q, "message": "no"}}`, code)
	}))
	defer server.Close()
	c, err := client.New(client.Options{URL: server.URL, APIKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	w := watched{&demo{client: c, sandbox: &client.Sandbox{ID: "i1"}}}
	if err := w.Pause(t.Context()); err != nil {
		t.Errorf("a sandbox that sleeps already: %v", err)
	}
	if code = "pause_failed"; w.Pause(t.Context()) == nil {
		t.Error("a pause that fails has no error")
	}
}
