package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func itoa(n int) string { return strconv.Itoa(n) }

// activity asks PID 1 as the host does.
func (s *sandbox) activity(t *testing.T) agentapi.Activity {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), "GET", "http://sandbox"+agentapi.PathActivity, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(agentapi.HeaderInit, testSecret)
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return decodeActivity(t, res.StatusCode, res.Body)
}

func (s *server) activity() agentapi.Activity {
	s.t.Helper()
	res, body := s.do("GET", agentapi.PathActivity, nil, map[string]string{agentapi.HeaderInit: testSecret})
	return decodeActivity(s.t, res.StatusCode, strings.NewReader(body))
}

func decodeActivity(t *testing.T, status int, body io.Reader) agentapi.Activity {
	t.Helper()
	var act agentapi.Activity
	if err := json.NewDecoder(body).Decode(&act); err != nil || status != http.StatusOK {
		t.Fatalf("activity = %d, %v", status, err)
	}
	for _, p := range act.Processes {
		if p.Since.After(act.Now) || p.LastProgress.After(act.Now) || p.LastProgress.Before(p.Since.Add(-time.Second)) || p.Command == "" {
			t.Errorf("process %+v at %v", p, act.Now)
		}
	}
	return act
}

// start begins a command whose client goes away at once.
func (s *sandbox) start(t *testing.T, command string) int {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	stream, err := s.api.Start(ctx, basic("root", shell(command)))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	return int(stream.Msg().GetEvent().GetStart().GetPid())
}

// findCommand looks for the end of a command line, for python may be a shim.
func findCommand(act agentapi.Activity, line string) (agentapi.Process, bool) {
	for _, p := range act.Processes {
		if strings.HasSuffix(p.Command, line) {
			return p, true
		}
	}
	return agentapi.Process{}, false
}

// await looks until done, and returns what was seen last.
func await(t *testing.T, look func() agentapi.Activity, what string, done func(agentapi.Activity) bool) (act agentapi.Activity) {
	t.Helper()
	testmode.Eventually(t, what, func() bool {
		act = look()
		return done(act)
	})
	return act
}

func (s *sandbox) await(t *testing.T, what string, done func(agentapi.Activity) bool) agentapi.Activity {
	t.Helper()
	return await(t, func() agentapi.Activity { return s.activity(t) }, what, done)
}

// rests is true once a command runs, has made no progress for a while, and sleeps with all that was
// started with it: what waits for the processor or the disk may only be slow.
func rests(line string) func(agentapi.Activity) bool {
	return func(act agentapi.Activity) bool {
		p, ok := findCommand(act, line)
		return ok && act.Now.Sub(p.LastProgress) > 500*time.Millisecond &&
			!slices.ContainsFunc(act.Processes, func(q agentapi.Process) bool { return q.Root == p.Root && processState(q.PID) != "S" })
	}
}

// shows is true once exactly these commands run.
func shows(lines ...string) func(agentapi.Activity) bool {
	return func(act agentapi.Activity) bool {
		for _, line := range lines {
			if _, ok := findCommand(act, line); !ok {
				return false
			}
		}
		return len(act.Processes) == len(lines)
	}
}

func (s *sandbox) kill(t *testing.T, pids ...int) {
	t.Helper()
	text := strings.Trim(fmt.Sprint(pids), "[]")
	if r := s.run(t, "kill -9 "+text); r.end.GetExitCode() != 0 {
		t.Fatalf("kill %s: %q %v", text, r.stderr, r.err)
	}
}

// A process counts as long as it lives: in another session, with its parent
// and the root gone, with no client.
func TestActivityTrees(t *testing.T) {
	s := newSandbox(t)
	if act := s.activity(t); len(act.Processes) != 0 || act.Processes == nil || act.Leases == nil || !act.LastEnd.IsZero() {
		t.Fatalf("at first: %+v", act)
	}
	script := "sleep 71 & setsid sleep 72 & sleep 70; :"
	root := s.start(t, script)
	act := s.await(t, "all up", shows("/bin/bash -c "+script, "sleep 71", "sleep 72", "sleep 70"))
	for _, p := range act.Processes {
		if p.Root != root || act.Now.Sub(p.Since) > 30*time.Second {
			t.Errorf("with the root %d alive: %+v", root, p)
		}
	}
	s.kill(t, root)
	act = s.await(t, "without the root", shows("sleep 71", "sleep 72", "sleep 70"))
	for _, p := range act.Processes {
		if p.Root != root {
			t.Errorf("after the root %d: %+v", root, p)
		}
	}
	s.kill(t, act.Processes[0].PID, act.Processes[1].PID, act.Processes[2].PID)
	s.await(t, "empty", shows())

	// Never seen with their parents: the session tells, or nothing does.
	if r := s.run(t, "(sleep 73 >/dev/null 2>&1 &); read up < <(setsid sh -c 'echo up; exec sleep 74 >/dev/null 2>&1')"); r.err != nil {
		t.Fatal(r.err)
	} else {
		root = int(r.pid)
	}
	act = s.await(t, "orphans only", shows("sleep 73", "sleep 74"))
	for line, want := range map[string]int{"sleep 73": root, "sleep 74": 0} {
		if p, _ := findCommand(act, line); p.Root != want {
			t.Errorf("orphan: %+v, want root %d", p, want)
		}
	}
	s.kill(t, act.Processes[0].PID, act.Processes[1].PID)
	s.await(t, "empty", shows())
}

func TestActivityPTY(t *testing.T) {
	s := newSandbox(t)
	stream, err := s.api.Start(testContext(t), basic("root", &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/sleep", Args: []string{"75"}}, Pty: &processpb.PTY{},
	}))
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	defer stream.Close()
	root := int(stream.Msg().GetEvent().GetStart().GetPid())
	if act := s.await(t, "up", shows("/bin/sleep 75")); act.Processes[0].Root != root || act.Processes[0].PID != root {
		t.Errorf("got %+v", act)
	}
}

// Who has ended and is not waited for by its parent does not count.
func TestActivityZombies(t *testing.T) {
	s := newSandbox(t)
	root := s.start(t, "sleep 0.01 & exec sleep 76")
	s.await(t, "exec", shows("sleep 76"))
	r := s.run(t, "for i in $(seq 500); do grep -l ') Z '"+itoa(root)+" /proc/[0-9]*/stat && exit; sleep 0.02; done; exit 1")
	if !strings.Contains(r.stdout, "/stat") {
		t.Fatalf("no zombie: %+v", r)
	}
	if act := s.activity(t); !shows("sleep 76")(act) {
		t.Errorf("got %+v", act)
	}
}

// The end of the last process is known to the moment, whoever it was.
func TestActivityLastEnd(t *testing.T) {
	s := newSandbox(t)
	between := func(name string, from, to time.Time) {
		t.Helper()
		act := s.await(t, "empty", shows())
		// What came of the wait is not to be seen in the time.
		if act.LastEnd.Before(from) || act.LastEnd.After(to) {
			t.Errorf("%s: ended at %v, want between %v and %v", name, act.LastEnd, from, to)
		}
	}
	began := time.Now()
	s.run(t, "true")
	between("a command", began, time.Now())

	// An orphan tells its own end.
	r := s.run(t, "mkfifo /tmp/$$.fifo; (setsid sh -c 'read x; date +%s%N >/tmp/'$$'.end' </tmp/$$.fifo >/dev/null 2>&1 &); echo $$")
	name := "/tmp/" + strings.TrimSpace(r.stdout)
	t.Cleanup(func() { os.Remove(name + ".fifo"); os.Remove(name + ".end") })
	s.activity(t)
	released := time.Now()
	s.run(t, "echo >"+name+".fifo")
	s.await(t, "empty", shows())
	after := time.Now()
	between("an orphan", released, after)
	act := s.activity(t)
	ended, err := strconv.ParseInt(strings.TrimSpace(readFile(t, name+".end")), 10, 64)
	if late := act.LastEnd.Sub(time.Unix(0, ended)); err != nil || late < 0 || late > testmode.Patience() {
		t.Errorf("the orphan ended at %d, LastEnd %v, %v", ended, act.LastEnd, err)
	}
	// Looking is not work, and changes nothing.
	if again := s.activity(t); !again.LastEnd.Equal(act.LastEnd) {
		t.Errorf("LastEnd moved from %v to %v", act.LastEnd, again.LastEnd)
	}
}

// progressOf looks at a command for a while and reports whether its progress
// moved after the first look at it.
func progressOf(t *testing.T, look func() agentapi.Activity, line string, during time.Duration) bool {
	t.Helper()
	first, ok := findCommand(look(), line)
	if !ok {
		t.Fatalf("%q does not run", line)
	}
	poll := time.NewTicker(during / 10)
	defer poll.Stop()
	for range 10 {
		<-poll.C
		if p, ok := findCommand(look(), line); !ok || p.LastProgress.After(first.LastProgress) {
			return ok
		}
	}
	return false
}

func TestActivityProgress(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		name, script string
		want         bool
	}{
		{"computes", "while :; do :; done", true},
		{"sleeps", "exec -a quiet sleep 77", false},
		{"wedged", "read x < <(exec sleep 78)", false},
		{"writes to a file", "while :; do echo a line of text; read -t 0.1 x; done 2>/dev/null >/dev/null < <(exec sleep 79)", true},
		{"starts others", "while :; do /bin/sleep 0.2; done", true},
		{"waits for one that works", "bash -c 'while :; do :; done'; :", true},
		{"waits for one that writes", "bash -c 'while :; do echo a line of text; read -t 0.1 x; done 2>/dev/null >/dev/null < <(exec sleep 81)'; :", true},
		{"waits for one that waits", "bash -c \"bash -c 'while :; do :; done'; :\"; :", true},
		{"waits for one that is wedged", "bash -c 'read x < <(exec sleep 82)'; :", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, _ := s.start("root", shell(tt.script))
			line := "/bin/bash -c " + tt.script
			if strings.HasPrefix(tt.script, "exec") {
				line = "quiet 77"
			}
			// The first looks see it start.
			up := rests(line)
			if tt.want {
				up = func(act agentapi.Activity) bool {
					p, ok := findCommand(act, line)
					return ok && act.Now.Sub(p.Since) > 500*time.Millisecond
				}
			}
			await(t, s.activity, "up", up)
			s.activity()
			if got := progressOf(t, s.activity, line, 2*time.Second); got != tt.want {
				t.Errorf("progress = %v", got)
			}
			if err := s.signal(pid(n), processpb.Signal_SIGNAL_SIGKILL); err != nil {
				t.Error(err)
			}
		})
	}
}

// Bytes through the agent are progress, at the time they passed, even if the
// process does not take them yet.
func TestActivityBytes(t *testing.T) {
	s := newServer(t)
	n, _ := s.start("root", &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "/bin/sleep", Args: []string{"80"}}})
	await(t, s.activity, "up", rests("/bin/sleep 80"))
	before := time.Now()
	if p, _ := findCommand(s.activity(), "/bin/sleep 80"); !p.LastProgress.Before(before) {
		t.Errorf("quiet at %v, progress %v", before, p.LastProgress)
	}
	wantCode(t, s.send(pid(n), &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte("x")}}), 0)
	after := time.Now()
	if p, _ := findCommand(s.activity(), "/bin/sleep 80"); p.LastProgress.Before(before) || p.LastProgress.After(after) {
		t.Errorf("progress %v, want between %v and %v", p.LastProgress, before, after)
	}
}

// What is quiet from its start on has made no progress since then, however late
// somebody asks for the first time.
func TestActivityQuietFromItsStart(t *testing.T) {
	s := newServer(t)
	for try := range 10 {
		s.start("root", shell(fmt.Sprint("exec sleep 85", try)))
		time.Sleep(4 * firstLook)
		p, ok := findCommand(s.activity(), fmt.Sprint("sleep 85", try))
		quiet := p.LastProgress.Sub(p.Since)
		if ok && quiet < 3*firstLook {
			return
		}
		// On a busy machine the first look may be so late that it does not count.
		t.Logf("it made progress until %s after its start: %+v", quiet, p)
	}
	t.Error("none was found at rest from its start")
}

func TestActivityIdleServer(t *testing.T) {
	s := newServer(t)
	const line = "-m http.server --bind 127.0.0.1 0"
	s.start("root", shell("exec python3 "+line+" >/dev/null 2>&1"))
	await(t, s.activity, "settled", rests(line))
	if progressOf(t, s.activity, line, 5*time.Second) {
		t.Error("an idle server is at work")
	}
}

// Time asleep is not time without progress.
func TestActivityAfterSleep(t *testing.T) {
	s := newServer(t)
	n, _ := s.start("root", shell("exec sleep 84"))
	await(t, s.activity, "up", func(act agentapi.Activity) bool { _, ok := findCommand(act, "sleep 84"); return ok })
	s.activity()
	if res, _ := s.do("POST", agentapi.PathSync, nil, map[string]string{agentapi.HeaderInit: testSecret}); res.StatusCode != http.StatusNoContent {
		t.Fatalf("sync = %d", res.StatusCode)
	}
	// As if eight hours passed here.
	o := s.agent.observer
	o.mu.Lock()
	o.looked = o.looked.Add(-8 * time.Hour)
	sample := o.samples[int(n)]
	sample.at, sample.progress = sample.at.Add(-8*time.Hour), sample.progress.Add(-8*time.Hour)
	sample.root.moved.Add(-int64(8 * time.Hour))
	o.mu.Unlock()
	generation := int64(2)
	s.init(agentapi.InitRequest{Generation: &generation})
	act := s.activity()
	if p, ok := findCommand(act, "sleep 84"); !ok || act.Now.Sub(p.LastProgress) > time.Minute {
		t.Errorf("got %+v at %v", p, act.Now)
	}
}

func TestPrivateIsAuthenticated(t *testing.T) {
	s := newServer(t)
	for _, target := range []string{"GET " + agentapi.PathActivity, "GET " + agentapi.PathLog, "POST " + agentapi.PathSync, "POST /init"} {
		method, path, _ := strings.Cut(target, " ")
		for _, secret := range []string{"", "x", testSecret + "x"} {
			res, body := s.do(method, path, nil, map[string]string{agentapi.HeaderInit: secret})
			wantMessage(t, res, body, http.StatusUnauthorized)
		}
		res, body := s.do(method, path, nil, map[string]string{agentapi.HeaderInit: testSecret})
		if res.StatusCode/100 != 2 {
			t.Errorf("%s = %d %s", target, res.StatusCode, body)
		}
	}
	for _, target := range []string{"POST " + agentapi.PathActivity, "GET " + agentapi.PathSync} {
		method, path, _ := strings.Cut(target, " ")
		res, body := s.do(method, path, nil, map[string]string{agentapi.HeaderInit: testSecret})
		wantMessage(t, res, body, http.StatusMethodNotAllowed)
	}
	s.agent.host.secret = ""
	res, body := s.do("GET", agentapi.PathActivity, nil, nil)
	wantMessage(t, res, body, http.StatusUnauthorized)
}

// What is remembered is bounded by what is alive.
func TestObserverForgets(t *testing.T) {
	s := newServer(t)
	for range 5 {
		s.run("root", shell("true"))
	}
	s.activity()
	s.activity()
	o := s.agent.observer
	o.rootsMu.Lock()
	defer o.rootsMu.Unlock()
	if len(o.roots) != 0 {
		t.Errorf("%d roots are remembered", len(o.roots))
	}
}
