package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func TestLargest(t *testing.T) {
	all := map[int]procStat{}
	for _, p := range []procStat{
		{pid: 10, parent: 1, state: 'S', memory: 1 << 20},               // the agent
		{pid: 11, parent: 10, state: 'S', memory: 2 << 20},              // its child
		{pid: 12, parent: 11, state: 'R', memory: 9 << 20},              // a grandchild
		{pid: 13, parent: 10, state: 'Z', threads: 1, memory: 50 << 20}, // waits to be reaped
		{pid: 14, parent: 10, state: 'S'},                               // holds nothing
		{pid: 20, parent: 1, state: 'S', memory: 90 << 20},              // another's
		{pid: 21, parent: 99, state: 'S', memory: 90 << 20},             // whose parent has gone
		{pid: 22, parent: 23, state: 'S', memory: 90 << 20},             // in a circle
		{pid: 23, parent: 22, state: 'S', memory: 90 << 20},
		{pid: 15, parent: 10, state: 'S', memory: 9 << 20},
	} {
		all[p.pid] = p
	}
	var got []int
	for _, p := range largest(all, 10) {
		got = append(got, p.pid)
	}
	if want := "[12 15 11]"; fmt.Sprint(got) != want {
		t.Errorf("the largest are %v, want %s", got, want)
	}
}

// TestRelieve has real processes ended for want of memory. The largest goes first,
// and the command that it was part of says so at its end.
func TestRelieve(t *testing.T) {
	s := newServer(t)
	smallPID, small := s.start("root", shell("read x < <(sleep 1000)"))
	t.Cleanup(func() { small.Close(); _ = syscall.Kill(-int(smallPID), syscall.SIGKILL) })
	largePID, large := s.start("root", shell(`echo up; x=$(head -c 60000000 /dev/zero | tr '\0' x; sleep 1000); echo not here`))
	// What it started outlives it.
	t.Cleanup(func() { large.Close(); _ = syscall.Kill(-int(largePID), syscall.SIGKILL) })

	relieve := func(bytes string) (int, agentapi.Relief) {
		res, body := s.do("POST", agentapi.PathRelieve+"?"+agentapi.ParamBytes+"="+bytes, nil, map[string]string{agentapi.HeaderInit: testSecret})
		var said agentapi.Relief
		if res.StatusCode == http.StatusOK {
			if err := json.Unmarshal([]byte(body), &said); err != nil {
				t.Fatal(err)
			}
		}
		return res.StatusCode, said
	}
	for _, bytes := range []string{"", "0", "-1", "x"} {
		if code, _ := relieve(bytes); code != http.StatusBadRequest {
			t.Errorf("%q bytes: %d", bytes, code)
		}
	}
	if res, _ := s.do("POST", agentapi.PathRelieve+"?"+agentapi.ParamBytes+"=1", nil, nil); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the host's secret: %d", res.StatusCode)
	}
	// The shell takes what it reads into memory: until then, sleeping processes are
	// the largest there are.
	testmode.Eventually(t, "a large process", func() bool {
		var proc procReader
		if err := proc.open(); err != nil {
			t.Fatal(err)
		}
		defer proc.close()
		stat, ok := proc.stat(int(largePID))
		return ok && stat.memory > 60_000_000
	})
	code, said := relieve("1000")
	if code != http.StatusOK || len(said.Ended) != 1 || said.Ended[0].Bytes < 60_000_000 || !strings.Contains(said.Ended[0].Command, "head -c 60000000") {
		t.Fatalf("%d: %+v", code, said)
	}
	r := rest(large)
	if r.end.GetStatus() != "signal: killed" || !strings.HasPrefix(r.end.GetError(), fmt.Sprintf("out of memory: process %d (", said.Ended[0].PID)) {
		t.Errorf("it ended with %v, %v", r.end, r.err)
	}
	if err := syscall.Kill(int(smallPID), 0); err != nil {
		t.Errorf("the small one: %v", err)
	}
	lines := s.journal(t, 0)
	found := false
	for _, l := range lines {
		found = found || l.Level == "error" && strings.HasPrefix(l.Message, "out of memory: process ")
	}
	if !found {
		t.Errorf("the log has %+v", lines)
	}
}
