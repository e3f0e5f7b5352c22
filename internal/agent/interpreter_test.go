package agent

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/interpreter"
	"github.com/drowse-dev/drowse/internal/testmode"
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
	testmode.Eventually(t, "no kernels", func() bool { return len(s.agent.kernels.running()) == 0 })
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

// TestKernelThatComputes: a kernel is work as long as a thread computes that an
// ended cell has left, and until it is seen to have stopped.
func TestKernelThatComputes(t *testing.T) {
	const tick = time.Second / 100
	o := newObserver(true, nil)
	o.kernels = func() map[int]bool { return map[int]bool{10: true} }
	start, ticks := wallNow(), uint64(500) // of the cells so far
	at := func(after time.Duration, used uint64) []agentapi.Process {
		t.Helper()
		ticks += used
		l := o.newLook(start.Add(after), 0)
		stat := procStat{pid: 10, parent: 1, session: 10, start: 5, state: 'S', name: "python3", ticks: ticks}
		l.add([]procStat{stat})
		s := l.sample(&stat)
		if l.counts(s) || !s.kernel {
			t.Fatal("it is taken for another process")
		}
		l.compareKernel(s, &stat)
		o.remember(l)
		return l.report()
	}
	if got := at(0, 0); len(got) != 0 {
		t.Errorf("at the end of a cell: %+v", got)
	}
	if got := at(time.Minute, uint64(time.Second/tick)); len(got) != 0 {
		t.Errorf("after a minute of idling: %+v", got)
	}
	if got := at(2*time.Minute, uint64(time.Minute/tick)); len(got) != 1 || !got[0].LastProgress.Equal(start.Add(2*time.Minute)) {
		t.Errorf("after a minute of computing: %+v", got)
	}
	if got := at(2*time.Minute+100*time.Millisecond, 10); len(got) != 1 {
		t.Errorf("while it computes: %+v", got)
	}
	end := start.Add(2*time.Minute + time.Second)
	at(2*time.Minute+time.Second, 90)
	if got := at(2*time.Minute+time.Second+workCounts, 0); len(got) != 0 {
		t.Errorf("when it has stopped: %+v", got)
	}
	if got := o.end(); !got.Equal(end) {
		t.Errorf("its work has ended at %s, want %s", got, end)
	}
}

// TestKernelAfterACell: what a kernel did for a cell is over with the cell.
func TestKernelAfterACell(t *testing.T) {
	s := newServer(t)
	s.agent.kernels.dir = filepath.Join(s.dir, "run", "kernels")
	kernels := interpreter.New(s.agent.kernels, t.Logf)
	t.Cleanup(kernels.Close)
	cells := watchCells(s.agent.observer, kernels)
	post := func(path string, body map[string]string) string {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		cells.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(text)))
		return w.Body.String()
	}
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(post("/contexts", map[string]string{"language": "bash", "cwd": s.home})), &made); err != nil {
		t.Fatal(err)
	}
	const computes = `for ((n = 0; n < 500000; n++)); do :; done; echo computed`
	for _, code := range []string{"true", computes, computes} {
		answer := post(interpreter.PathExecute, map[string]string{"context_id": made.ID, "code": code})
		if strings.Contains(answer, "computed") != (code == computes) {
			t.Fatalf("cell %q: %s", code, answer)
		}
		running := s.agent.kernels.running()
		if len(running) != 1 {
			t.Fatalf("kernels: %v", running)
		}
		work, err := s.agent.observer.look(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range work {
			if running[p.PID] {
				t.Errorf("after cell %q the kernel is work: %+v", code, p)
			}
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
