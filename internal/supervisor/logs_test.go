package supervisor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient/hostile"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// diary is the log of an agent.
type diary struct {
	b     *bench
	lines []agentapi.LogLine
	asked int
}

func (b *bench) keepDiary() *diary {
	b.logs = true
	d := &diary{b: b}
	b.journal = func(after string) (agentapi.Log, bool) {
		d.asked++
		n, _ := strconv.Atoi(after)
		return agentapi.Log{Lines: d.lines[min(n, len(d.lines)):]}, true
	}
	return d
}

func (d *diary) write(messages ...string) {
	d.b.set(func() {
		for _, m := range messages {
			d.lines = append(d.lines, agentapi.LogLine{Seq: int64(len(d.lines) + 1), At: time.Now(), Level: "info", Message: m})
		}
	})
}

// logOf returns the messages of a sandbox's log, without what happened to the
// sandbox.
func logOf(t *testing.T, s *Supervisor, id string) string {
	t.Helper()
	lines, err := s.SandboxLog(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i, l := range lines {
		if i > 0 && l.At.Before(lines[i-1].At) {
			t.Errorf("line %d is before the one that it follows", i)
		}
		if l.Fields["event"] == "" {
			all = append(all, l.Message)
		}
	}
	return strings.Join(all, " ")
}

// TestLog: what an agent tells is kept over a pause, after which it tells it
// again, and over a restart of the server; a sandbox that sleeps is not woken.
func TestLog(t *testing.T) { synctest.Test(t, testLog) }

func testLog(t *testing.T) {
	b := newBench(t)
	d := b.keepDiary()
	s, stop := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	wantCount(t, s, id, 1, 1)
	d.write("one", "two")
	if got := logOf(t, s, id); got != "one two" {
		t.Errorf("running: %q", got)
	}
	d.write("three")
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	asked := d.asked
	if got := logOf(t, s, id); got != "one two three" {
		t.Errorf("paused: %q", got)
	}
	stop()
	s, _ = b.open()
	if got := logOf(t, s, id); got != "one two three" || d.asked != asked || record(t, s, id).State != lifecycle.Paused {
		t.Errorf("paused, on another server: %q, asked %d times more", got, d.asked-asked)
	}
	wantCount(t, s, id, 2, 2)
	time.Sleep(time.Millisecond) // a wake takes time
	d.write("four")
	for range 2 {
		if got := logOf(t, s, id); got != "one two three four" {
			t.Errorf("awake again: %q", got)
		}
	}
	lines, err := s.SandboxLog(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, l := range lines {
		if l.Fields["event"] != "" {
			events = append(events, strings.TrimPrefix(l.Message, "sandbox "))
		}
	}
	if got := strings.Join(events, " "); !strings.HasPrefix(got, "created running pausing: memory paused") || !strings.HasSuffix(got, "resuming resumed") {
		t.Errorf("what happened to it: %s", got)
	}
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SandboxLog(t.Context(), id); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("the log of a killed sandbox: %v", err)
	}
	testmode.Eventually(t, "no log on the disk", func() bool {
		left, err := os.ReadDir(filepath.Join(b.dir, "logs"))
		return err == nil && len(left) == 0
	})
}

// TestLogIsFetchedForAPauseOnlyIfUsed: what nobody has used has nothing to tell.
func TestLogIsFetchedForAPauseOnlyIfUsed(t *testing.T) {
	b := newBench(t)
	d := b.keepDiary()
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil || d.asked != 0 {
		t.Errorf("pause: %v, asked %d times", err, d.asked)
	}
}

// TestLogOfAHostileAgent: whatever it says is bounded and harmless, and none at
// all does not keep the sandbox from sleeping.
func TestLogOfAHostileAgent(t *testing.T) { synctest.Test(t, testLogOfAHostileAgent) }

func testLogOfAHostileAgent(t *testing.T) {
	b := newBench(t)
	b.logs = true
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	wantCount(t, s, id, 1, 1)
	if got := logOf(t, s, id); got != "" {
		t.Errorf("of an agent that has no log: %q", got)
	}
	many := map[string]string{}
	for n := range 100 {
		many[strings.Repeat("n", 1000)+strconv.Itoa(n)] = "v\x1b[0m"
	}
	seq := int64(0)
	b.set(func() {
		b.journal = func(string) (agentapi.Log, bool) {
			var said agentapi.Log
			for range 2 * agentapi.MaxLogLines {
				seq++
				said.Lines = append(said.Lines, agentapi.LogLine{
					Seq: seq, At: time.Now().Add(1000 * time.Hour), Level: "loud", Message: strings.Repeat("x", 300) + "\n\x1b[0m", Fields: many,
				})
			}
			for i := range said.Lines { // as many as fit into an answer
				if i >= 5 {
					said.Lines[i].Fields = nil
				}
			}
			return said, true
		}
	})
	for range 5 {
		lines, err := s.SandboxLog(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			if l.At.After(time.Now()) || l.Level == "loud" || strings.ContainsAny(l.Message, "\n\x1b") || len(l.Fields) > 8 {
				t.Fatalf("line %+v", l)
			}
		}
	}
	info, err := os.Stat(filepath.Join(b.dir, "logs", id))
	if err != nil || info.Size() > 256<<10 || info.Size() == 0 {
		t.Errorf("the file: %v, %v", info, err)
	}
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Error(err)
	}
}

// TestKillDoesNotWaitForTheLog: a log that is being fetched from a guest which
// is gone, and falls silent with its network, holds nobody up.
func TestKillDoesNotWaitForTheLog(t *testing.T) {
	w := newWorldIn(t, t.TempDir())
	var silent atomic.Bool
	asked := make(chan struct{}, 1)
	w.agent = func() func(net.Conn) {
		if !silent.Load() {
			return nil
		}
		asked <- struct{}{}
		return hostile.AfterHead(hostile.Listen)
	}
	w.tune = func(o *Options) { o.LogDir = filepath.Join(w.dir, "logs") }
	srv, err := w.open()
	if err != nil {
		t.Fatal(err)
	}
	s := srv.s
	defer s.Stop(context.Background())
	id := create(t, s, CreateRequest{Settings: sleepy})
	silent.Store(true)
	read := make(chan error, 1)
	go func() {
		_, err := s.SandboxLog(t.Context(), id)
		read <- err
	}()
	<-asked
	begin := time.Now()
	if err := s.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	<-read // the answer that it gets is the log's or the sandbox's end
	testmode.Eventually(t, "the end", func() bool { return record(t, s, id).Op == nil })
	if took := time.Since(begin); took > pollTimeout/2 {
		t.Errorf("the end took %s", took)
	}
}
