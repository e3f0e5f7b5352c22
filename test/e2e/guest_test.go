package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/test/e2e/filetree"
)

// Where the guest program and a sandbox's agent answer.
const (
	guestPort  = 8000
	secondPort = 8001
	agentPort  = 49983
)

// guest is the guest program in a sandbox.
type guest struct {
	s     *server
	sb    *client.Sandbox
	first report // what it said first
}

// report is what the guest says of itself.
type report struct {
	PID        int
	Born       string
	Counter    int64
	Deleted    string
	Generation string
	Now        time.Time

	asked, answered time.Time // on the host
}

func (r report) generation(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(r.Generation)
	if err != nil {
		t.Fatalf("generation: %v", err)
	}
	return n
}

// startGuest makes a sandbox and starts the guest program in it.
func (s *server) startGuest(ctx context.Context, o client.CreateOptions) *guest {
	s.t.Helper()
	return s.startGuestIn(ctx, s.create(ctx, o), "serve")
}

// startGuestIn starts the guest program with what it is to do.
func (s *server) startGuestIn(ctx context.Context, sb *client.Sandbox, command string) *guest {
	s.t.Helper()
	g := &guest{s: s, sb: sb}
	g.upload(ctx)
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"./guest", command}})
	if err != nil {
		s.t.Fatal(err)
	}
	p.Detach()
	eventually(s.t, 10*time.Second, "guest answers", func() (err error) {
		g.first, err = g.report(ctx)
		return err
	})
	return g
}

func (g *guest) upload(ctx context.Context) {
	g.s.t.Helper()
	upload(ctx, g.s.t, g.sb)
}

// upload puts the guest program into a sandbox.
func upload(ctx context.Context, t testing.TB, sb *client.Sandbox) {
	t.Helper()
	uploadProgram(ctx, t, sb, "guest", guestBinary)
}

func uploadProgram(ctx context.Context, t testing.TB, sb *client.Sandbox, name, from string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := sb.WriteFile(ctx, name, f); err != nil {
		t.Fatal(err)
	}
	if exit, out := run(ctx, t, sb, "chmod", "+x", name); exit.Code != 0 {
		t.Fatalf("chmod: %s: %s", exit.Status, out)
	}
}

// call makes one request to the guest and decodes the answer.
func (g *guest) call(ctx context.Context, method, target string, body, into any) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	req, err := g.sb.Request(ctx, method, guestPort, target, content)
	if err != nil {
		return err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: the answer ends after %d bytes: %w", method, target, len(data), err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: status %d: %s", method, target, resp.StatusCode, strings.TrimSpace(string(data)))
	}
	return json.Unmarshal(data, into)
}

// maxAnswer bounds one answer of the guest, a wake included.
const maxAnswer = 35 * time.Second

func (g *guest) report(ctx context.Context) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAnswer)
	defer cancel()
	r := report{asked: time.Now()}
	err := g.call(ctx, http.MethodGet, "/state", nil, &r)
	r.answered = time.Now()
	return r, err
}

// ask is report where it must work. It wakes a sandbox that traffic may wake.
func (g *guest) ask(ctx context.Context) report {
	g.s.t.Helper()
	r, err := g.report(ctx)
	if err != nil {
		g.s.t.Fatalf("guest of %s: %v", g.sb.ID, err)
	}
	return r
}

// slowest asks the guest again and again for as long as there is more to see,
// and returns how long the slowest answer took.
func (g *guest) slowest(ctx context.Context, more func() bool) time.Duration {
	g.s.t.Helper()
	var most time.Duration
	for ; more(); time.Sleep(pollEvery) {
		asked := time.Now()
		g.ask(ctx)
		most = max(most, since(asked))
	}
	return most
}

// same fails the test unless now comes from the same process as before, whose
// counter went on and whose open files are right.
func (g *guest) same(before, now report) {
	t := g.s.t
	t.Helper()
	if now.PID != before.PID || now.Born != before.Born {
		t.Errorf("process %d (%s) became %d (%s)", before.PID, before.Born, now.PID, now.Born)
	}
	if now.Counter < before.Counter {
		t.Errorf("counter went back from %d to %d", before.Counter, now.Counter)
	}
	if now.Deleted != g.first.Deleted {
		t.Errorf("content of the deleted file changed")
	}
}

// maxClockError is by how much the guest's clock may differ after a wake.
const maxClockError = 500 * time.Millisecond

func checkClock(t testing.TB, r report) time.Duration {
	t.Helper()
	var off time.Duration
	switch {
	case r.Now.Before(r.asked):
		off = r.Now.Sub(r.asked)
	case r.Now.After(r.answered):
		off = r.Now.Sub(r.answered)
	}
	if off.Abs() > maxClockError {
		t.Errorf("clock inside is off by %s", off)
	}
	return off
}

// checkAppended is appended where it must work.
func (g *guest) checkAppended(ctx context.Context) int64 {
	g.s.t.Helper()
	n, err := g.appended(ctx)
	if err != nil {
		g.s.t.Fatal(err)
	}
	return n
}

// appended reads the file that the guest appends to, and returns its length in
// lines. They must be 1, 2, 3 and so on.
func (g *guest) appended(ctx context.Context) (int64, error) {
	r, err := g.sb.ReadFile(ctx, "work/appended")
	if err != nil {
		return 0, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return 0, err
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1] // the last line may be under way
	n := int64(0)
	for line := range bytes.Lines(whole) {
		n++
		if got := string(bytes.TrimSpace(line)); got != strconv.FormatInt(n, 10) {
			return n, fmt.Errorf("line %d of the appended file is %q", n, got)
		}
	}
	return n, nil
}

// tree returns the listing of the guest's file tree, after carrying out steps.
func (g *guest) tree(ctx context.Context, steps ...filetree.Step) filetree.Listing {
	g.s.t.Helper()
	var l filetree.Listing
	err := error(nil)
	if len(steps) > 0 {
		err = g.call(ctx, http.MethodPost, "/tree", steps, &l)
	} else {
		err = g.call(ctx, http.MethodGet, "/tree", nil, &l)
	}
	if err != nil {
		g.s.t.Fatal(err)
	}
	return l
}

// checkTree compares the guest's file tree with what it must be.
func (g *guest) checkTree(ctx context.Context, when string, model *filetree.Model) {
	t := g.s.t
	t.Helper()
	got, want := g.tree(ctx), model.List()
	for _, line := range filetree.Diff(got, want) {
		t.Errorf("%s: %s", when, line)
	}
	if got.Hash() != want.Hash() {
		t.Errorf("%s: the tree's hash is wrong", when)
	}
}
