package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
)

// stormFactor bounds how much longer a request of a storm may take than one
// that wakes a sandbox alone. The goal is 3; the rest, and stormAlways, are for
// a busy machine.
const (
	stormFactor = 10
	stormAlways = 10 * time.Second
)

// TestStorm sends 1,000 requests of all kinds at once to one sandbox that
// sleeps: one resume, and each request is answered and served once.
func TestStorm(t *testing.T) {
	const requests = 1000
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	if err := g.sb.WriteFile(ctx, "known", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	storm := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: requests}}
	defer storm.CloseIdleConnections()
	kinds := g.kinds(storm)

	var alone []time.Duration
	for i := range 5 {
		s.pause(ctx, g.sb.ID)
		s.waitGone(g.sb.ID)
		begin := time.Now()
		if err := kinds[0].call(ctx, fmt.Sprintf("alone-%d", i)); err != nil {
			t.Fatal(err)
		}
		alone = append(alone, time.Since(begin))
	}
	before := g.ask(ctx)
	s.pause(ctx, g.sb.ID)
	s.waitGone(g.sb.ID)
	last := s.lastEvent(ctx, g.sb.ID)

	took := g.storm(ctx, kinds, 0, requests)
	t.Logf("one request alone that wakes: p50 %s", percentile(alone, 50))
	if most := max(stormFactor*percentile(alone, 50), stormAlways); percentile(took, 99) > most {
		t.Errorf("the slowest hundredth took longer than %s", most)
	}

	g.checkServedOnce(ctx, kinds, requests)
	now := g.ask(ctx)
	g.same(before, now)
	if got, want := now.generation(t), before.generation(t)+1; got != want {
		t.Errorf("generation %d, want %d", got, want)
	}
	if types := s.eventTypes(ctx, g.sb.ID, last); !slices.Equal(types, []string{"resuming", "resumed"}) {
		t.Errorf("events %q, want one resume", types)
	}
	// What the wake adds is the difference to this.
	g.storm(ctx, kinds, requests, requests)
}

// storm sends so many requests of all kinds at once, with ids from first on,
// and returns how long each took.
func (g *guest) storm(ctx context.Context, kinds []kind, first, requests int) []time.Duration {
	t := g.s.t
	t.Helper()
	info, err := g.s.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	took := make([]time.Duration, requests)
	begin := time.Now()
	for i := range requests {
		group.Go(func() error {
			kind := kinds[i%len(kinds)]
			err := kind.call(ctx, strconv.Itoa(first+i))
			took[i] = time.Since(begin)
			if err != nil {
				t.Errorf("request %d, %s, after %s: %v", first+i, kind.name, took[i], err)
			}
			return err
		})
	}
	if group.Wait() != nil {
		t.FailNow()
	}
	t.Logf("%d requests to a %s sandbox: p50 %s, p99 %s, all within %s", requests, info.State,
		percentile(took, 50), percentile(took, 99), percentile(took, 100))
	byKind := map[string][]time.Duration{}
	for i, d := range took {
		name := kinds[i%len(kinds)].name
		byKind[name] = append(byKind[name], d)
	}
	for name, took := range byKind {
		t.Logf("%d of kind %s: p50 %s, p99 %s", len(took), name, percentile(took, 50), percentile(took, 99))
	}
	return took
}

// kind is a kind of request. Its call has an id of its own.
type kind struct {
	name    string
	counted bool // the guest counts the ids
	call    func(ctx context.Context, id string) error
}

// kinds returns the kinds of a storm, each as often as it is in it.
func (g *guest) kinds(storm *http.Client) []kind {
	ask := func(method string, port int, target, body, want string) func(context.Context, string) error {
		return func(ctx context.Context, id string) error {
			req, err := g.sb.Request(ctx, method, port, strings.ReplaceAll(target, "ID", id), strings.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("Content-Type", "application/json")
			return expect(storm, req, http.StatusOK, want)
		}
	}
	hit := kind{"request to a server", true, ask(http.MethodPost, guestPort, "/hit?id=ID", "", "")}
	socket := kind{"WebSocket", true, func(ctx context.Context, id string) error {
		conn, err := g.webSocket(ctx, "/ws?id="+id)
		if err != nil {
			return err
		}
		defer conn.CloseNow()
		if err := echo(ctx, conn, websocket.MessageText, []byte("hello "+id)); err != nil {
			return err
		}
		return conn.Close(websocket.StatusNormalClosure, "")
	}}
	read := kind{"file read", false, ask(http.MethodGet, agentPort, "/files?path=known", "", "content")}
	list := kind{"process list", false, ask(http.MethodPost, agentPort, "/process.Process/List", "{}", "processes")}
	command := kind{"command", true, func(ctx context.Context, id string) error {
		_, err := g.sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "echo " + id + " >>served"}})
		return err
	}}
	return []kind{
		hit, hit, hit, hit, hit, hit, hit, hit, socket, socket, socket, socket,
		read, read, read, read, list, list, list, command,
	}
}

// checkServedOnce looks at what the guest, and the file that commands append
// to, have counted.
func (g *guest) checkServedOnce(ctx context.Context, kinds []kind, requests int) {
	t := g.s.t
	t.Helper()
	var hits map[string]int
	if err := g.call(ctx, http.MethodGet, "/hits", nil, &hits); err != nil {
		t.Fatal(err)
	}
	file, err := g.sb.ReadFile(ctx, "served")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	served, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(served) {
		hits[string(bytes.TrimSpace(line))]++
	}
	counted := 0
	for i := range requests {
		if k := kinds[i%len(kinds)]; k.counted {
			counted++
			if n := hits[strconv.Itoa(i)]; n != 1 {
				t.Errorf("request %d, %s, was served %d times", i, k.name, n)
			}
		}
	}
	t.Logf("%d of the requests are counted inside", counted)
}

// webSocket opens a WebSocket to the guest.
func (g *guest) webSocket(ctx context.Context, target string) (*websocket.Conn, error) {
	req, err := g.sb.Request(ctx, http.MethodGet, guestPort, target, nil)
	if err != nil {
		return nil, err
	}
	conn, resp, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPHeader: req.Header, HTTPClient: httpClient})
	if err != nil && resp != nil && resp.Body != nil {
		body, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%w: %s", err, body)
	}
	if err == nil {
		conn.SetReadLimit(4 << 20)
	}
	return conn, err
}

// echo sends a message and waits for it to come back.
func echo(ctx context.Context, conn *websocket.Conn, kind websocket.MessageType, message []byte) error {
	if err := conn.Write(ctx, kind, message); err != nil {
		return err
	}
	gotKind, got, err := conn.Read(ctx)
	if err != nil {
		return err
	}
	if gotKind != kind || !bytes.Equal(got, message) {
		return fmt.Errorf("a message of %d bytes came back as %s of %d bytes", len(message), gotKind, len(got))
	}
	return nil
}

// expect makes a request and checks status and content of the answer.
func expect(c *http.Client, req *http.Request, status int, content string) error {
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != status || !strings.Contains(string(body), content) {
		return fmt.Errorf("%s %s: %s: %.300s; want %d with %q", req.Method, req.URL.Path, resp.Status, body, status, content)
	}
	return nil
}

// lastEvent returns the id of a sandbox's newest event.
func (s *server) lastEvent(ctx context.Context, id string) int64 {
	s.t.Helper()
	events := s.events(ctx, id, 0)
	return events[len(events)-1].ID
}

// eventTypes returns the types of a sandbox's events after one of them.
func (s *server) eventTypes(ctx context.Context, id string, after int64) []string {
	s.t.Helper()
	types := []string{}
	for _, e := range s.events(ctx, id, after) {
		types = append(types, e.Type)
	}
	return types
}

func (s *server) events(ctx context.Context, id string, after int64) []client.Event {
	s.t.Helper()
	var all []client.Event
	for {
		page, err := s.client.Events(ctx, client.EventOptions{Sandbox: id, After: after})
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page.Events) == 0 {
			return all
		}
		all = append(all, page.Events...)
		after = all[len(all)-1].ID
	}
}

// percentile returns the value that p per cent of the durations do not exceed.
func percentile(durations []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[(len(sorted)*p+99)/100-1].Round(100 * time.Microsecond)
}

var wakesAtOnce = flag.Int("wakes.sandboxes", 50, "how many sandboxes TestManyWakeAtOnce has")

// TestManyWakeAtOnce sends ten requests at once to each of many sandboxes that
// sleep.
func TestManyWakeAtOnce(t *testing.T) {
	const each = 10
	sandboxes := *wakesAtOnce
	ctx := deadline(t, 5*time.Minute)
	// How long they wait is for the machine to say, not for this test.
	s := startServer(t, "--wake-timeout", "2m")
	guests := make([]*guest, sandboxes)
	begin := time.Now()
	var making errgroup.Group
	making.SetLimit(8)
	for i := range guests {
		making.Go(func() error {
			g, err := s.makeSleepingServer(ctx)
			guests[i] = g
			return err
		})
	}
	if err := making.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sandboxes made and asleep within %s", sandboxes, since(begin))

	crowd := &http.Client{Transport: &http.Transport{}}
	defer crowd.CloseIdleConnections()
	took := make([]time.Duration, sandboxes*each)
	var waking sync.WaitGroup
	begin = time.Now()
	for i, g := range guests {
		for j := range each {
			waking.Go(func() {
				if err := g.askQuietly(ctx, crowd, j%2 == 0); err != nil {
					t.Errorf("sandbox %s: %v", g.sb.ID, err)
				}
				took[i*each+j] = time.Since(begin)
			})
		}
	}
	waking.Wait()
	t.Logf("%d requests to %d sleeping sandboxes: p50 %s, p99 %s, all within %s", len(took), sandboxes,
		percentile(took, 50), percentile(took, 99), percentile(took, 100))
	for _, g := range guests {
		if info, err := s.client.Get(ctx, g.sb.ID); err != nil || info.State != client.Running || info.Generation != 2 {
			t.Errorf("sandbox %s is %s in generation %d, %v; want one resume", g.sb.ID, info.State, info.Generation, err)
		}
	}
	var killing errgroup.Group
	killing.SetLimit(8)
	for _, g := range guests {
		killing.Go(func() error { return s.client.Kill(ctx, g.sb.ID) })
	}
	if err := killing.Wait(); err != nil {
		t.Error(err)
	}
}

// makeSleepingServer makes a sandbox with a file server, which is smaller than
// the guest program, and pauses it.
func (s *server) makeSleepingServer(ctx context.Context) (*guest, error) {
	sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: 10 * time.Minute, OnTimeout: client.Pause, AutoResume: new(true)})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.ids = append(s.ids, sb.ID)
	s.mu.Unlock()
	g := &guest{s: s, sb: sb}
	if err := sb.WriteFile(ctx, "known", strings.NewReader("content")); err != nil {
		return nil, err
	}
	p, err := sb.Start(ctx, client.Command{Args: []string{"python3", "-m", "http.server", strconv.Itoa(guestPort)}})
	if err != nil {
		return nil, err
	}
	p.Detach()
	if err := poll(20*time.Second, func() error { return g.askQuietly(ctx, httpClient, true) }); err != nil {
		return nil, errors.Join(fmt.Errorf("the server in %s does not come up", sb.ID), err)
	}
	return g, s.client.Pause(ctx, sb.ID)
}

// askQuietly reads the known file from the server in a sandbox, or from its
// agent.
func (g *guest) askQuietly(ctx context.Context, c *http.Client, server bool) error {
	port, target := agentPort, "/files?path=known"
	if server {
		port, target = guestPort, "/known"
	}
	req, err := g.sb.Request(ctx, http.MethodGet, port, target, nil)
	if err != nil {
		return err
	}
	return expect(c, req, http.StatusOK, "content")
}
