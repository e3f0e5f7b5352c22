package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

const interpreterPort = 49999

// jupyterTemplate makes a template of s that is base with Jupyter's kernels, as
// script/kernels installs them, in /opt.
func (s *server) jupyterTemplate() string {
	s.t.Helper()
	kernels := filepath.Join(cmp.Or(os.Getenv("DROWSE_TEST_CACHE"), "/var/tmp/drowse-test-cache"), "kernels")
	kernels, err := filepath.EvalSymlinks(kernels)
	if err == nil {
		_, err = os.Stat(filepath.Join(kernels, "installed"))
	}
	if err != nil {
		s.t.Fatalf("Jupyter's kernels are not installed: run script/kernels (%v)", err)
	}
	found, err := filepath.Glob(filepath.Join(s.dir(), "templates", "base*", "template.json"))
	if err != nil || len(found) != 1 {
		s.t.Fatalf("templates %q, %v", found, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		s.t.Fatal(err)
	}
	var template struct {
		ID    string           `json:"id"`
		Alias string           `json:"alias"`
		Trees []map[string]any `json:"trees"`
	}
	if err := json.Unmarshal(data, &template); err != nil {
		s.t.Fatal(err)
	}
	added := false
	for _, tree := range template.Trees {
		if lowers, ok := tree["lowers"].([]any); ok && tree["path"] == "/opt" {
			tree["lowers"] = slices.Insert(lowers, 0, any(kernels))
			added = true
		}
	}
	if !added {
		s.t.Fatalf("no /opt in %s", data)
	}
	template.ID, template.Alias = "jupyter", "jupyter"
	if data, err = json.Marshal(template); err != nil {
		s.t.Fatal(err)
	}
	dir := filepath.Join(s.dir(), "templates", template.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "template.json"), data, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return template.ID
}

// cell is what the code interpreter answered.
type cell struct {
	stdout string
	main   map[string]any
	shown  []map[string]any
	errors []string
}

// runCode runs a cell in a sandbox, which that wakes.
func (s *server) runCode(ctx context.Context, sb *client.Sandbox, language, code string) cell {
	s.t.Helper()
	body, err := json.Marshal(map[string]string{"code": code, "language": language})
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := sb.Request(ctx, http.MethodPost, interpreterPort, "/execute", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Access-Token", envdToken(ctx, s, sb.ID))
	resp, err := httpClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("execute %q: %s %s", code, resp.Status, text)
	}
	var c cell
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			s.t.Fatalf("execute %q: %v after %+v", code, err, c)
		}
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			s.t.Fatalf("line %q: %v", line, err)
		}
		switch m["type"] {
		case "stdout":
			c.stdout += m["text"].(string)
		case "error":
			c.errors = append(c.errors, m["name"].(string)+": "+m["value"].(string)+"\n"+m["traceback"].(string))
		case "result":
			c.shown = append(c.shown, m)
			if m["is_main_result"] == true {
				c.main = m
			}
		case "end_of_execution":
			return c
		}
	}
}

// TestJupyterKernel runs cells in a Jupyter kernel of a sandbox, which sleeps
// and wakes in between, and falls asleep with an idle kernel.
func TestJupyterKernel(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t, "--share-opt")
	o := sleeper
	o.Template = s.jupyterTemplate()
	o.Env = map[string]string{"JUPYTER_PATH": "/opt/share/jupyter"}
	sb := s.create(ctx, o)
	text := func(code, want string) {
		t.Helper()
		if c := s.runCode(ctx, sb, "python", code); c.main["text"] != want || len(c.errors) > 0 {
			t.Errorf("cell %q: %+v, want %q", code, c, want)
		}
	}
	text("import os\nkept = ['before']\ntype(get_ipython()).__name__", "ZMQInteractiveShell")
	_, out := run(ctx, t, sb, "sh", "-c", "ps -eo rss,args | grep '[i]pykernel'")
	t.Logf("KiB and kernel: %s", out)
	// A thread goes on over a pause, as the kernel itself does.
	text("import threading, time\nticks = 0\ndef tick():\n    global ticks\n    while True:\n        ticks += 1\n        time.sleep(0.1)\n"+
		"threading.Thread(target=tick, daemon=True).start()\nos.getpid() > 1", "True")
	for range 2 {
		s.pause(ctx, sb.ID)
		text("kept.append('after'); before = ticks; time.sleep(1); ticks > before", "True")
	}
	text("kept", "['before', 'after', 'after']")
	c := s.runCode(ctx, sb, "python", "import pandas as pd\nimport matplotlib.pyplot as plt\nplt.bar(['a'], [1]); plt.show()\npd.DataFrame({'n': [1]})")
	if len(c.shown) != 2 || len(c.errors) > 0 || c.shown[0]["png"] == nil || c.shown[0]["chart"].(map[string]any)["type"] != "bar" ||
		c.main["html"] == nil || c.main["data"] == nil {
		t.Errorf("figure and frame: %+v", c)
	}
	// The other kernel was installed for another place, and does not start here.
	if c := s.runCode(ctx, sb, "bash", "echo $0"); !strings.Contains(c.stdout, "kernel.sh") {
		t.Errorf("bash: %+v", c)
	}
	// An idle kernel keeps nothing awake.
	idle := 2 * time.Second
	if _, err := s.client.Patch(ctx, sb.ID, client.PatchOptions{IdleTimeout: &idle}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "asleep with an idle kernel", func() error { return s.is(ctx, sb.ID, client.Paused) })
	text("kept[0]", "before")
}
