package interpreter

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// addSpec installs a kernel.json, where the server looks first.
func (s *interpreterServer) addSpec(name string, spec object) {
	s.t.Helper()
	dir := filepath.Join(s.host.dir, "share/jupyter/kernels")
	writeSpec(s.t, dir, name, spec)
	if len(s.host.jupyter) == 0 || s.host.jupyter[0] != dir {
		s.host.jupyter = append([]string{dir}, s.host.jupyter...)
	}
}

func writeSpec(t *testing.T, dir, name string, spec object) {
	t.Helper()
	data, err := json.Marshal(spec)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, name), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name, "kernel.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ipykernel is the command line of a kernel that works.
func ipykernel(t *testing.T) []string {
	return []string{installed(t) + "/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"}
}

func TestWhichKernel(t *testing.T) {
	s := newJupyterServer(t)
	equal(t, "Jupyter's", s.run("python", "type(get_ipython()).__name__").text(), any("ZMQInteractiveShell"))
	equal(t, "Jupyter's, of another kind", strings.Contains(strings.Join(s.run("bash", "ps -o comm= -p $PPID").stdout, ""), "python"), true)
	equal(t, "ours", s.run("javascript", "'ours'").text(), any("ours"))
	equal(t, "by its own name", s.run("python3", "type(get_ipython()).__name__").text(), any("ZMQInteractiveShell"))
	// What the user sees is empty.
	equal(t, "names", s.run("python", "[n for n in ('sys', 'os', 'teach', 'plain', 'DataFormatter') if n in dir()]").text(), any("[]"))
	equal(t, "logged", s.log.String(), "")
}

// The Bash kernel knows nothing of our ways.
func TestForeignKernel(t *testing.T) {
	s := newJupyterServer(t)
	s.wantShell([]shellCell{
		{"printing", "echo hi; x=3", "hi\n", ""},
		{"variables and directory", "echo $x; cd /usr", "3\n", ""},
		{"directory kept", "pwd", "/usr\n", ""},
		{"failing", "false", "", "1"},
		{"unicode", "echo é😀", "é😀\n", ""},
	})
}

// A kernel that does not start is replaced by ours, if we have one.
func TestBrokenKernel(t *testing.T) {
	for _, c := range []struct {
		name string
		spec object
		says string
	}{
		{"fails", object{"argv": []string{"python3", "-c", "import sys; sys.exit('broken install')"}, "language": "python"},
			"the Jupyter kernel python3 ended at its start (exit status 1): broken install"},
		{"has no program", object{"argv": []string{"/does/not/exist"}, "language": "python"},
			"it needs /does/not/exist, which is not installed here"},
		{"is something else", object{"argv": []string{"python3", "-c", `
import json, socket, sys, time
s = socket.create_server(("127.0.0.1", json.load(open(sys.argv[1]))["shell_port"]))
s.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n" + b" " * 100)
time.sleep(1000)`, "{connection_file}"}, "language": "python"},
			"it does not speak ZMTP 3"},
	} {
		s := newServer(t)
		s.addSpec("python3", c.spec)
		equal(t, c.name, s.run("python", "'get_ipython' in globals()").text(), any("False"))
		if log := s.log.String(); !strings.Contains(log, c.says) {
			t.Errorf("%s: logged %q, want %q", c.name, log, c.says)
		}
		// There is none of ours for another language.
		c.spec["language"] = "Cobol"
		s.addSpec("python3", c.spec)
		status, text := s.call("POST", "/execute", object{"code": "1", "language": "cobol"})
		if status != 500 || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %q, want %q", c.name, status, text, c.says)
		}
	}
}

func TestLanguagesOfJupyter(t *testing.T) {
	s := newServer(t)
	argv := ipykernel(t)
	s.addSpec("ir", object{"argv": argv, "language": "R"})
	equal(t, "by language", s.create(object{"language": " R"}).Language, "r")
	equal(t, "by name", s.create(object{"language": "ir"}).Language, "ir")
	status, text := s.call("POST", "/contexts", object{"language": "cobol"})
	equal(t, "unknown", []any{status, text}, []any{500, "there is no kernel 'cobol': use python, javascript, typescript, bash or r"})
	status, text = s.call("POST", "/contexts", object{"language": "java"})
	equal(t, "known, and not there", []any{status, text}, []any{500,
		"language 'java' is not supported here: it needs a JDK with a Java kernel; there are python, javascript, typescript, bash and r"})

	// Whose variables we do not know how to set.
	s.addSpec("mystery", object{"argv": argv, "language": "mystery", "env": object{"OF_THE_SPEC": "${GLOBAL} ${NONE}"}})
	o := s.collect(s.start(t.Context(), object{"code": "1", "language": "mystery", "env_vars": object{"A": "b"}}))
	if len(o.errors) != 1 || o.errors[0]["value"] != "env_vars are not supported in a kernel for mystery: set them for the whole sandbox" {
		t.Errorf("errors %v", o.errors)
	}
	equal(t, "afterwards", s.run("mystery", "import os; os.environ['OF_THE_SPEC']").text(), any("global ${NONE}"))
}

// A kernel may want to be asked for an interrupt by a message.
func TestInterruptByMessage(t *testing.T) {
	s := newServer(t)
	s.addSpec("python3", object{"argv": ipykernel(t), "language": "python", "interrupt_mode": "message"})
	s.host.noInterrupts = true
	for _, c := range interrupted {
		if c.language == "python" {
			s.interrupt(c)
		}
	}
}

func TestManyMessages(t *testing.T) {
	s := newJupyterServer(t)
	o := s.run("python", "for i in range(500): display(i); print(i)")
	equal(t, "results", []any{len(o.results), o.results[499]["text"]}, []any{500, "499"})
	equal(t, "output", strings.Count(strings.Join(o.stdout, ""), "\n"), 500)
	equal(t, "too much at once", s.run("python", "print('x' * (65 << 20))").errors[0]["name"], any("ValueError"))
	equal(t, "afterwards", s.run("python", "1").text(), any("1"))
}

// Connection files and sockets go with their kernel, and a kernel that is idle
// uses no CPU time.
func TestNothingIsLeftOfKernels(t *testing.T) {
	s := newJupyterServer(t)
	c := s.create(object{})
	pid := s.runIn(c, "import os; os.getpid()").text().(string)
	ticks := func() string {
		data, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(strings.Fields(string(data))[13:15])
	}
	// It may tidy up for a while.
	for deadline := time.Now().Add(waitLimit); ; {
		before := ticks()
		time.Sleep(2 * time.Second)
		if ticks() == before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("an idle kernel is never at rest")
		}
	}
	if status, text := s.call("DELETE", "/contexts/"+c.ID, nil); status != http.StatusOK {
		t.Fatalf("removal: %d %s", status, text)
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Error("the kernel is there after its removal")
	}
}

func TestFindSpec(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	argv := []string{"x"}
	writeSpec(t, first, "a-python", object{"argv": argv, "language": "Python"})
	writeSpec(t, first, "broken", object{"argv": []string{}, "language": "ruby"})
	writeSpec(t, first, "Deno", object{"argv": argv, "language": "typescript"})
	writeSpec(t, second, "python3", object{"argv": argv, "language": "python"})
	writeSpec(t, second, "deno", object{"argv": argv, "language": "javascript"})
	writeSpec(t, second, "julia-1.9", object{"argv": argv, "language": "julia"})
	if err := os.WriteFile(filepath.Join(first, "README"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(first, "pipe"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(first, "pipe", "kernel.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(first, "nothing"), first, second}
	for name, want := range map[string]string{
		"python":     second + "/python3", // is usual
		"a-python":   first + "/a-python",
		"typescript": first + "/Deno",
		"deno":       first + "/Deno",
		"javascript": "", // its name is taken
		"julia":      second + "/julia-1.9",
		"ruby":       "",
		"pipe":       "",
		"":           "",
	} {
		got := ""
		if spec := findSpec(dirs, name); spec != nil {
			got = spec.dir
		}
		equal(t, "kernel for "+name, got, want)
	}
}

func TestJupyterDirs(t *testing.T) {
	got := JupyterDirs(map[string]string{"HOME": "/home/user", "PATH": "/venv/bin:/usr/local/bin:/usr/bin:/bin:relative/bin:/usr/games", "JUPYTER_PATH": "/a:/b"})
	want := []string{
		"/a/kernels", "/b/kernels", "/home/user/.local/share/jupyter/kernels", "/venv/share/jupyter/kernels",
		"/usr/local/share/jupyter/kernels", "/usr/share/jupyter/kernels", "/share/jupyter/kernels",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = JupyterDirs(map[string]string{"HOME": "/h", "JUPYTER_DATA_DIR": "/data"})
	if got[0] != "/data/kernels" {
		t.Errorf("got %q", got)
	}
}

func TestSetVariables(t *testing.T) {
	value := "a 'b' \"c\"\n\\é"
	for language, want := range map[string]string{
		"python":     `__import__("os").environ.pop("B", None)` + "\n" + `__import__("os").environ["A"] = "a 'b' \"c\"\n\\é"`,
		"javascript": `delete globalThis.process.env["B"];` + "\n" + `globalThis.process.env["A"] = "a 'b' \"c\"\n\\é";`,
		"bash":       `export A=$'a \'b\' "c"\x0a\\é'` + "\nunset B",
		"r":          `Sys.setenv("A" = "a 'b' \"c\"\n\\é")` + "\n" + `Sys.unsetenv("B")`,
		"java":       `System.clearProperty("B");` + "\n" + `System.setProperty("A", "a 'b' \"c\"\n\\é");`,
	} {
		got, err := setVariables(language, map[string]*string{"A": &value, "B": nil})
		if err != nil || got != want {
			t.Errorf("%s: got\n%s, %v, want\n%s", language, got, err, want)
		}
	}
}

// What is not signed with the key of the kernel is not believed.
func TestUnsignedMessages(t *testing.T) {
	j := &jupyter{info: connectionInfo{Key: "key"}}
	message := func(key string) [][]byte {
		parts := [][]byte{[]byte(`{"msg_type": "status"}`), []byte(`{"msg_id": "parent"}`), []byte("{}"), []byte(`{"a": 1}`)}
		signature := (&jupyter{info: connectionInfo{Key: key}}).sign(parts)
		return append([][]byte{[]byte("topic"), []byte(delimiter), []byte(signature)}, parts...)
	}
	m := j.parse(message("key"))
	if m == nil || m.kind != "status" || m.parent != "parent" || string(m.content) != `{"a": 1}` {
		t.Errorf("signed: %+v", m)
	}
	for name, frames := range map[string][][]byte{
		"of another key": message("other"), "short": message("key")[:5], "empty": nil, "without a delimiter": message("key")[2:],
	} {
		if m := j.parse(frames); m != nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// A kernel that is held because its client does not read goes on when the
// client goes away.
func TestHeldKernelIsLetGo(t *testing.T) {
	s := newJupyterServer(t)
	res := s.send(t.Context(), http.MethodPost, "/execute", object{"code": "import time\nfor i in range(40): print('x' * (1 << 20)); time.sleep(0.05)"})
	if _, err := io.ReadFull(res.Body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(waitLimit); s.host.stops.Load() == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the kernel was not held")
		}
	}
	res.Body.Close()
	equal(t, "next", s.run("python", "'free'").text(), any("free"))
}
