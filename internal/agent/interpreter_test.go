package agent

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/interpreter"
)

// Kernels are the user's processes, with a command's environment, and the
// kernel itself is no work.
func TestKernels(t *testing.T) {
	s := newServer(t)
	s.agent.kernels.dir = filepath.Join(s.dir, "run", "kernels")
	kernels := interpreter.New(s.agent.kernels, t.Logf)
	server := httptest.NewServer(kernels)
	t.Cleanup(server.Close)
	t.Cleanup(kernels.Close)
	post := func(path, body string) string {
		t.Helper()
		res, err := http.Post(server.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	created := post("/contexts", `{"language": "bash", "cwd": "`+s.home+`"}`)
	_, id, _ := strings.Cut(created, `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	body := `{"context_id": "` + id + `", "code": "echo $EUID $PWD $HOME $E2B_SANDBOX $OF_THE_AGENT."}`
	if got, want := post("/execute", body), "65534 "+s.home+" "+s.home+" true ."; !strings.Contains(got, want) {
		t.Errorf("cell in %s: got %s, want %q", created, got, want)
	}

	pids := s.agent.kernels.running()
	if len(pids) != 1 {
		t.Fatalf("kernels: %v", pids)
	}
	for pid := range pids {
		command, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "cmdline"))
		if err != nil || !bytes.Contains(command, []byte("kernel.sh")) {
			t.Errorf("pid %d: %q, %v", pid, command, err)
		}
	}
	kernels.Close()
	eventually(t, "no kernels", func() bool { return len(s.agent.kernels.running()) == 0 })
}

// A kernel is exempt, what its cells start is not.
func TestKernelsAreNoWork(t *testing.T) {
	o := newObserver(true, nil)
	o.kernels = func() map[int]bool { return map[int]bool{10: true} }
	l := o.newLook(wallNow(), 0)
	stats := []procStat{
		{pid: 10, parent: 1, session: 10, start: 5, state: 'S'},
		{pid: 11, parent: 10, session: 10, start: 6, state: 'S'},
		{pid: 12, parent: 11, session: 10, start: 7, state: 'S'},
	}
	l.add(stats)
	for i, want := range []bool{false, true, true} {
		if got := l.counts(l.sample(&stats[i])); got != want {
			t.Errorf("pid %d counts: %v, want %v", stats[i].pid, got, want)
		}
	}
}

// TestCodeNeedsTheToken: a secured sandbox runs no code for those who only know
// its address. What else the port answers is no secret.
func TestCodeNeedsTheToken(t *testing.T) {
	s := newServer(t)
	token := "sandbox-token"
	s.init(agentapi.InitRequest{AccessToken: &token})
	reached := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"POST", "/execute", token, http.StatusTeapot},
		{"POST", "/execute", "", http.StatusUnauthorized},
		{"POST", "/execute", "other", http.StatusUnauthorized},
		{"OPTIONS", "/execute", "", http.StatusTeapot},
		{"POST", "/contexts", "", http.StatusTeapot},
		{"GET", "/health", "", http.StatusTeapot},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		if c.token != "" {
			r.Header.Set(agentapi.HeaderAccessToken, c.token)
		}
		w := httptest.NewRecorder()
		s.agent.guardCode(reached).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s %s with token %q: %d, want %d", c.method, c.path, c.token, w.Code, c.want)
		}
	}
}
