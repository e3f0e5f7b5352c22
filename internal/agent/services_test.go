package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// host does a request in the name of the host and decodes the answer.
func (s *server) host(method, path string, query url.Values, into any) int {
	s.t.Helper()
	res, text := s.do(method, path+"?"+query.Encode(), nil, map[string]string{agentapi.HeaderInit: testSecret})
	if res.StatusCode == http.StatusOK && into != nil {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			s.t.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
	return res.StatusCode
}

// service waits until a service is in a state, and returns how it is.
func (s *server) service(name string, state service.State) service.Status {
	s.t.Helper()
	var last service.Status
	for end := time.Now().Add(testmode.Patience()); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var r service.Report
		s.host("GET", agentapi.PathServices, nil, &r)
		for _, st := range r.Services {
			if st.Name == name {
				last = st
			}
		}
		if last.State == state {
			return last
		}
	}
	s.t.Fatalf("service %s is %+v, want %s", name, last, state)
	return last
}

func (s *server) serviceLog(name string) string {
	s.t.Helper()
	var lines service.Lines
	s.host("GET", agentapi.PathServiceLog, url.Values{agentapi.ParamService: {name}}, &lines)
	var text strings.Builder
	for _, l := range lines.Lines {
		fmt.Fprintln(&text, l.Text)
	}
	return text.String()
}

func shellService(name, line string) service.Service {
	return service.Service{Name: name, Shell: line}.WithDefaults()
}

// TestServices starts services with /init: as whom, where and with what it was said,
// with their output in order; and a second /init leaves alone what has not changed.
func TestServices(t *testing.T) {
	s := newServer(t)
	defer s.endServices()
	web := shellService("web", `echo "$(id -u) $PWD $HOME $PORT $A $B"; echo two >&2; echo three; exec sleep 1000`)
	web.Env, web.User, web.Cwd, web.Port, web.Ready.Check = map[string]string{"A": "own"}, "root", s.dir, 8000, service.CheckStarted
	list := []service.Service{web, {Name: "argv", Command: []string{"sleep", "1000"}, Restart: service.Never}}
	list[1] = list[1].WithDefaults()
	req := agentapi.InitRequest{EnvVars: map[string]string{"A": "sandbox", "B": "sandbox"}, Services: list}
	s.init(req)
	before, argv := s.service("web", service.IsReady), s.service("argv", service.IsReady)
	if got, want := s.serviceLog("web"), fmt.Sprintf("0 %s %s 8000 own sandbox\ntwo\nthree\n", s.dir, s.rootHome); got != want {
		t.Errorf("it has written %q, want %q", got, want)
	}
	s.init(req)
	if after := s.service("web", service.IsReady); after.PID != before.PID || after.Starts != 1 {
		t.Errorf("after another /init it is %+v, was %+v", after, before)
	}
	if code := s.host("POST", agentapi.PathServiceRestart, url.Values{agentapi.ParamService: {"web"}}, nil); code != http.StatusNoContent {
		t.Errorf("restart: %d", code)
	}
	var ready service.Status
	s.host("GET", agentapi.PathServiceReady, url.Values{agentapi.ParamService: {"argv"}}, &ready)
	if ready.State != service.IsReady || ready.PID != argv.PID {
		t.Errorf("argv is %+v", ready)
	}
	for end := time.Now().Add(testmode.Patience()); s.service("web", service.IsReady).PID == before.PID; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was not started again")
		}
	}
	for _, path := range []string{agentapi.PathServiceLog, agentapi.PathServiceReady} {
		if code := s.host("GET", path, url.Values{agentapi.ParamService: {"unknown"}}, nil); code != http.StatusNotFound {
			t.Errorf("%s of an unknown service: %d", path, code)
		}
		if res, _ := s.do("GET", path, nil, nil); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without the host's secret: %d", path, res.StatusCode)
		}
	}
}

// endServices ends all services, and waits until their processes have ended.
func (s *server) endServices() {
	s.t.Helper()
	s.init(agentapi.InitRequest{Services: []service.Service{}})
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(20 * time.Millisecond) {
		left := len(s.agent.observer.serving())
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d services run on", left)
		}
	}
}

// TestServiceEnds ends services: what they have started ends with them, what cannot
// be started says so, and none of it is the end of work.
func TestServiceEnds(t *testing.T) {
	s := newServer(t)
	defer s.endServices()
	bad := shellService("bad", "sleep 1000 & echo $!; exit 3")
	nobody, missing := shellService("nobody", "true"), shellService("missing", "")
	nobody.User = "nobody-here"
	missing.Command = []string{filepath.Join(s.dir, "missing")}
	s.init(agentapi.InitRequest{Services: []service.Service{bad, nobody, missing}})
	if st := s.service("bad", service.BackingOff); st.LastEnd != "exit status 3" {
		t.Errorf("bad: %+v", st)
	}
	var pid int
	if _, err := fmt.Sscan(s.serviceLog("bad"), &pid); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testmode.Patience()); ; time.Sleep(20 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if syscall.Kill(pid, 0) != nil || err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("what it has started runs on: %s", stat)
		}
	}
	for name, want := range map[string]string{"nobody": "user 'nobody-here' does not exist", "missing": missing.Command[0]} {
		if st := s.service(name, service.BackingOff); !strings.Contains(st.LastEnd, want) {
			t.Errorf("%s: %+v, want %q", name, st, want)
		}
	}
	var seen agentapi.Activity
	if s.host("GET", agentapi.PathActivity, nil, &seen); !seen.LastEnd.IsZero() || len(seen.Processes) != 0 {
		t.Errorf("services are work: %+v", seen)
	}
}
