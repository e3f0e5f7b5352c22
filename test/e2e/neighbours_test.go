package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

var (
	neighboursCycles = flag.Int("neighbours.cycles", 1, "how many sandboxes the good neighbour makes beside each attack of TestBadNeighbours")
	neighboursWidth  = flag.Int("neighbours.width", 5, "how many attacks of TestBadNeighbours there are at once")
	neighboursOnly   = flag.String("neighbours.only", "", "only attacks whose names match this")
	neighboursTable  = flag.String("neighbours.table", "", "write what TestBadNeighbours measured to this file")
)

// Bounds of TestBadNeighbours.
const (
	// neighbourMemory is by how much the server may grow, at any time.
	neighbourMemory = 200 << 20
	// neighbourPatience bounds one step of the good neighbour. How fast the
	// steps are is measured, and is for the machine to say.
	neighbourPatience = time.Minute
	// attackPatience is how long an attack has to become one, after the good
	// neighbour has done its work.
	attackPatience = 30 * time.Second
)

// TestBadNeighbours has one API key do its worst, in one way after the other,
// while another key makes a sandbox, works in it, lets it sleep and wakes it.
// Whatever the first one does, the second one gets what it asks for; the server
// stays small; and nothing is left when the attack is over.
//
// With -neighbours.width 1 and -neighbours.cycles 20 the attacks come one by
// one, and the times tell what each of them costs the neighbour. "make soak"
// and "make neighbours" do that.
func TestBadNeighbours(t *testing.T) {
	only := regexp.MustCompile(*neighboursOnly)
	chosen := slices.DeleteFunc(slices.Clone(attacks), func(a attack) bool { return !only.MatchString(a.name) })
	rounds := (len(chosen) + *neighboursWidth - 1) / *neighboursWidth
	ctx := deadline(t, time.Duration(rounds+1)*(time.Minute+time.Duration(*neighboursCycles)*15*time.Second))
	w := newWorld(t)
	w.ctx = ctx
	good := w.tenant(ctx, t, "good", "127.0.0.1", client.KeyLimits{})
	// What an administrator grants; the rest is for the server to keep.
	bad := w.tenant(ctx, t, "bad", "127.0.0.2", client.KeyLimits{MaxRunning: 32, MaxMemoryMiB: 12 << 10})
	good.work(ctx, 1) // what is made at first use
	w.waitWarm(1)
	n := &neighbourhood{world: w, t: t, good: good, bad: bad, before: w.usage(ctx), quiet: steps{}}
	n.beQuiet(ctx)
	for r := range rounds {
		var some []attack // those next to each other are of one kind, and are spread
		for i := r; i < len(chosen); i += rounds {
			some = append(some, chosen[i])
		}
		n.round(ctx, some)
	}
	n.beQuiet(ctx)
	n.checkCounted(ctx)
	n.report()
}

// neighbourhood is a server with a good and a bad tenant.
type neighbourhood struct {
	world
	t         *testing.T
	good, bad *tenant
	before    usage
	quiet     steps
	rows      []neighbourRow
}

// neighbourRow is what was measured beside some attacks.
type neighbourRow struct {
	attacks []attack
	beside  steps
	grown   int64 // by how many bytes the server was larger, at most
}

// steps are how long each of the good neighbour's steps took, each time.
type steps map[string][]time.Duration

// stepNames are in the order in which the good neighbour does them.
var stepNames = []string{"create", "run", "pause", "wake"}

func (s steps) add(other steps) {
	for name, took := range other {
		s[name] = append(s[name], took...)
	}
}

// beQuiet has the good neighbour work beside a sandbox of the other key that does
// nothing. Without any, the good one would have all runtimes that are made ahead.
func (n *neighbourhood) beQuiet(ctx context.Context) {
	n.t.Helper()
	if _, err := n.bad.c.Create(ctx, sleeper); err != nil {
		n.t.Fatal(err)
	}
	n.quiet.add(n.good.work(ctx, *neighboursCycles))
	n.bad.leave(ctx)
}

// round makes some attacks at once, and has the good neighbour work beside them.
func (n *neighbourhood) round(ctx context.Context, attacks []attack) {
	host := hostState(n.t, n.server)
	attacking, end := context.WithCancel(ctx)
	defer end()
	size := n.sizes(attacking)
	var under []*attacker
	var ready sync.WaitGroup
	for _, a := range attacks {
		x := &attacker{world: n.world, tenant: n.bad, attack: a, t: n.t}
		under = append(under, x)
		ready.Go(func() { a.begin(attacking, x) })
	}
	ready.Wait()
	if err := setPriority(lowest); err != nil {
		n.t.Fatal(err)
	}
	begin := time.Now()
	row := neighbourRow{attacks: attacks, beside: n.good.work(ctx, *neighboursCycles)}
	for _, name := range stepNames {
		n.t.Logf("%s: %s took %v", row.names(), name, row.beside[name])
	}
	took := since(begin)
	if err := setPriority(0); err != nil {
		n.t.Fatal(err)
	}
	for _, x := range under {
		eventually(n.t, attackPatience, x.attack.name+": an attack", x.wasOne)
		n.t.Logf("%s: %d times in %s", x.attack.name, x.hits.Load(), took)
	}
	end()
	for _, x := range under {
		x.background.Wait()
	}
	row.grown = <-size - n.before.memory
	if row.grown > neighbourMemory {
		n.t.Errorf("%s: the server grew by %d MiB, and may by %d", row.names(), row.grown>>20, neighbourMemory>>20)
	}
	n.rows = append(n.rows, row)
	n.bad.leave(ctx)
	n.checkNothingLeft(ctx, row.names(), host)
}

func (r neighbourRow) names() string {
	var names []string
	for _, a := range r.attacks {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}

// checkNothingLeft waits until the host and the server are as they were before
// an attack.
func (n *neighbourhood) checkNothingLeft(ctx context.Context, attack string, host []string) {
	n.t.Helper()
	settled := eventually(n.t, time.Minute, attack+": nothing is left", func() error {
		httpClient.CloseIdleConnections()
		n.good.http.CloseIdleConnections()
		lost, added := difference(host, hostState(n.t, n.server))
		if len(lost)+len(added) > 0 {
			return fmt.Errorf("added %q, lost %q", added, lost)
		}
		after := n.usage(ctx)
		if after.goroutines > n.before.goroutines+leaksGoroutines || after.descriptors > n.before.descriptors+leaksDescriptors {
			return fmt.Errorf("the server had %s and has %s", n.before, after)
		}
		return nil
	})
	n.t.Logf("%s: nothing is left after %s", attack, settled.Round(time.Millisecond))
}

// sizes looks at how large the server is until ctx ends, and returns the most.
func (n *neighbourhood) sizes(ctx context.Context) <-chan int64 {
	most := make(chan int64, 1)
	status := fmt.Sprintf("/proc/%d/status", n.pid())
	go func() {
		largest := int64(0)
		for ; ctx.Err() == nil; time.Sleep(5 * pollEvery) {
			text, err := os.ReadFile(status)
			if err != nil {
				n.t.Error(err)
				break
			}
			_, rest, _ := strings.Cut(string(text), "VmRSS:")
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				n.t.Error(err)
				break
			}
			largest = max(largest, kib<<10)
		}
		most <- largest
	}()
	return most
}

// tenant has an API key and an address of its own.
type tenant struct {
	s    *server
	addr string // the server's
	t    *testing.T
	key  client.Key
	c    *client.Client
	http *http.Client
	from net.IP
}

// tenant makes an API key, which sees its own sandboxes alone.
func (w world) tenant(ctx context.Context, t *testing.T, name, from string, limits client.KeyLimits) *tenant {
	t.Helper()
	key, err := w.client.CreateKey(ctx, client.KeyOptions{Name: name, Role: client.RoleOwn, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	x := &tenant{s: w.server, addr: w.addr, t: t, key: key, from: net.ParseIP(from)}
	if err := x.connect(key.Text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.http.CloseIdleConnections)
	return x
}

// connect makes what the tenant calls the server with.
func (x *tenant) connect(key string) (err error) {
	x.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return x.dial(ctx) }}}
	x.c, err = client.New(client.Options{URL: "http://" + x.addr, APIKey: key, HTTPClient: x.http})
	return err
}

// dial connects to the server from the tenant's address.
func (x *tenant) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: x.from}}).DialContext(ctx, "tcp", x.addr)
}

// lowest is the priority of a process that runs only when hardly anybody else wants to.
const lowest = 19

// setPriority gives all threads of this process a priority. The attacker's client would
// be on another machine: what it takes of the processors is not the server's to divide.
// What the server does for it is.
func setPriority(priority int) error {
	for range 2 { // a thread may start another meanwhile
		for _, task := range glob("/proc/self/task/*") {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err == nil {
				err = syscall.Setpriority(syscall.PRIO_PROCESS, tid, priority)
			}
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("set the priority of thread %s: %w", task, err)
			}
		}
	}
	return nil
}

// envNeighbour has this program be the client of a good neighbour: it holds an errand.
const envNeighbour = "DROWSE_E2E_NEIGHBOUR"

// errand is what the client of a good neighbour is to do.
type errand struct {
	Addr, Key string
	From      net.IP
	Cycles    int
}

// errandDone is what it prints of that.
type errandDone struct {
	Took   steps
	Errors []string
}

// work makes so many sandboxes, one after the other, works in each, lets it
// sleep, wakes it and ends it. A process of its own does, so that it does not wait for
// what else this one does.
func (x *tenant) work(ctx context.Context, cycles int) steps {
	x.t.Helper()
	self, err := os.Executable()
	if err != nil {
		x.t.Fatal(err)
	}
	todo, err := json.Marshal(errand{x.s.addr, x.key.Text, x.from, cycles})
	if err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), envNeighbour+"="+string(todo))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		x.t.Fatalf("the good neighbour: %v\n%s", err, errs.Bytes())
	}
	var done errandDone
	if err := json.Unmarshal(out.Bytes(), &done); err != nil {
		x.t.Fatalf("the good neighbour said %q: %v", out.Bytes(), err)
	}
	for _, err := range done.Errors {
		x.t.Error(err)
	}
	return done.Took
}

// runErrand is the good neighbour's client.
func runErrand(text string) error {
	var e errand
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	if err := setPriority(0); err != nil { // other than its parent's
		return err
	}
	x := &tenant{addr: e.Addr, from: e.From}
	if err := x.connect(e.Key); err != nil {
		return err
	}
	ctx := context.Background()
	done := errandDone{Took: steps{}}
	for i := range e.Cycles {
		one, err := x.cycle(ctx)
		done.Took.add(one)
		if err != nil {
			done.Errors = append(done.Errors, fmt.Sprintf("cycle %d of the good neighbour: %v", i+1, err))
		}
	}
	return json.NewEncoder(os.Stdout).Encode(done)
}

func (x *tenant) cycle(ctx context.Context) (took steps, err error) {
	took = steps{}
	var sb *client.Sandbox
	// What is counted in a file tells that it is the same sandbox all the while.
	count := func(ctx context.Context, want string) error {
		var out bytes.Buffer
		exit, err := sb.Run(ctx, client.Command{Args: []string{"sh", "-c", "echo 1 >>n; wc -l <n"}, Stdout: &out, Stderr: &out})
		if err == nil && strings.TrimSpace(out.String()) != want {
			err = fmt.Errorf("%s with %q, want %q", exit.Status, out.String(), want)
		}
		return err
	}
	for i, step := range []func(ctx context.Context) error{
		func(ctx context.Context) (err error) {
			o := sleeper
			o.Timeout = 10 * time.Minute
			sb, err = x.c.Create(ctx, o)
			return err
		},
		func(ctx context.Context) error { return count(ctx, "1") },
		func(ctx context.Context) error { return x.c.Pause(ctx, sb.ID) },
		func(ctx context.Context) error { return count(ctx, "2") },
	} {
		begin := time.Now()
		stepping, cancel := context.WithTimeout(ctx, neighbourPatience)
		err := step(stepping)
		cancel()
		if err != nil {
			return took, fmt.Errorf("%s, after %s: %w", stepNames[i], since(begin), err)
		}
		took[stepNames[i]] = []time.Duration{time.Since(begin)}
	}
	return took, x.c.Kill(ctx, sb.ID)
}

// leave ends all that the tenant has.
func (x *tenant) leave(ctx context.Context) {
	x.t.Helper()
	eventually(x.t, time.Minute, "all sandboxes of "+x.key.Name+" are killed", func() error {
		list, err := x.c.List(ctx, client.ListOptions{})
		if err != nil {
			return err
		}
		var errs []error
		for _, info := range list {
			if err := x.c.Kill(ctx, info.ID); err != nil && !errors.Is(err, client.ErrNotFound) {
				errs = append(errs, err)
			}
		}
		if len(list) > 0 && len(errs) == 0 {
			return fmt.Errorf("there were %d", len(list))
		}
		return errors.Join(errs...)
	})
	x.http.CloseIdleConnections()
}

// attacker is a tenant that makes one attack.
type attacker struct {
	world
	*tenant
	attack     attack
	t          *testing.T
	hits       atomic.Int64
	background sync.WaitGroup
}

// wasOne returns an error if there were too few blows.
func (a *attacker) wasOne() error {
	if hits := a.hits.Load(); hits < int64(a.attack.least) {
		return fmt.Errorf("%d times; want %d and more", hits, a.attack.least)
	}
	return nil
}

// hit counts one blow of the attack, which must have been one.
func (a *attacker) hit() { a.hits.Add(1) }

// forever calls f so many times at once, again and again until ctx ends. What f
// returns says whether it was a blow: refusals are none.
func (a *attacker) forever(ctx context.Context, width int, f func(i int) error) {
	for i := range width {
		a.background.Go(func() {
			for ctx.Err() == nil {
				if f(i) == nil {
					a.hit()
				} else {
					wait(ctx, pollEvery)
				}
			}
		})
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// sandboxes makes some, at once; those that it is refused are not there.
func (a *attacker) sandboxes(ctx context.Context, n int, o client.CreateOptions) []*client.Sandbox {
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 256
	}
	made := make([]*client.Sandbox, n)
	each(n, n, func(i int) { made[i], _ = a.c.Create(ctx, o) })
	return slices.DeleteFunc(made, func(sb *client.Sandbox) bool { return sb == nil })
}

// again has a sandbox run a command, again and again; one that has ended is
// followed by the next.
func (a *attacker) again(ctx context.Context, n int, o client.CreateOptions, args ...string) {
	all := a.sandboxes(ctx, n, o)
	a.forever(ctx, len(all), func(i int) error {
		a.hit() // a command that never ends is one
		_, err := all[i].As("root").Run(ctx, client.Command{Args: args, Timeout: 20 * time.Second})
		if errors.Is(err, client.ErrNotFound) {
			if next := a.sandboxes(ctx, 1, o); len(next) == 1 {
				all[i] = next[0]
			}
		}
		return err
	})
}

// do makes a request, and is done when its head has come.
func (a *attacker) do(req *http.Request, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	resp, err := a.http.Do(req)
	if err == nil && resp.StatusCode/100 != 2 {
		resp.Body.Close()
		err = errors.New(resp.Status)
	}
	return resp, err
}

// control makes a request to the control plane, whatever the answer.
func (a *attacker) control(ctx context.Context, method, path, body string) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+a.s.addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = http.Header{"X-Api-Key": {a.key.Text}, "Content-Type": {"application/json"}}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// checkCounted looks whether what the attacks cost was counted for the key that
// made them.
func (n *neighbourhood) checkCounted(ctx context.Context) {
	n.t.Helper()
	keys, err := n.client.Keys(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, k := range keys {
		if mine := k.ID == n.good.key.ID || k.ID == n.bad.key.ID; mine && (k.Cost.DatabaseBytes == 0 || k.Cost.Requests > 0 || k.Cost.BufferedBytes > 0) {
			n.t.Errorf("the key %q, whose sandboxes have ended, costs %+v", k.Name, k.Cost)
		}
		n.t.Logf("%s: %+v", k.Name, k.Cost)
	}
}

// report prints what was measured, and writes it to the file that the flag names.
func (n *neighbourhood) report() {
	text := n.table()
	n.t.Logf("\n%s", text)
	if *neighboursTable == "" || n.t.Failed() {
		return
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(*neighboursTable), 0o755), os.WriteFile(*neighboursTable, []byte(text), 0o644)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *neighbourhood) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What a bad neighbour costs

Made by `+"`make neighbours`"+`, on real sandboxes with gVisor.
One API key does its worst in the way that a line names; another makes a sandbox, runs a command in it, pauses it and wakes it, %d times.
All of that succeeded, nothing of the attack was left on the host afterwards, and the server never grew by more than %d MiB, or there would be no table.

The numbers are the median of each step, and how many times that is the median beside an idle sandbox of the first key, measured in the same run (%d times); then the same of the 95th percentile.
The goal is that a median is less than twice the quiet one; where it is not, it is in bold.
Attacker, neighbour and server share one machine with %d processors and cgroup %s.
The clients of both would be on other machines, and run on this one too: the neighbour's in a process of its own, the attacker's at the lowest priority (nice 19).
So the table has what the attacker's sandboxes and the server's work for the attacker cost the neighbour, and little of what the attacker's client costs.
Where the processors are all in use, that client is slower than one elsewhere would be.
*Server* is by how much the server's resident memory was larger than before the first attack, at most.

| Attack | What it shows | Create | Run | Pause | Wake | Server |
|---|---|---|---|---|---|---|
`, *neighboursCycles, neighbourMemory>>20, len(n.quiet[stepNames[0]]), runtime.NumCPU(), cgroupVersion())
	fmt.Fprintf(&b, "| (none) | |%s |\n", n.cells(n.quiet))
	for _, r := range n.rows {
		var shows []string
		for _, a := range r.attacks {
			shows = append(shows, a.shows)
		}
		fmt.Fprintf(&b, "| %s | %s |%s %+d MiB |\n", r.names(), strings.Join(shows, "; "), n.cells(r.beside), r.grown>>20)
	}
	return b.String()
}

// cells returns the median and the 95th percentile of each step, and what they are of
// the quiet ones.
func (n *neighbourhood) cells(s steps) string {
	var b strings.Builder
	for _, name := range stepNames {
		if len(s[name]) == 0 {
			b.WriteString(" – |")
			continue
		}
		times := func(percent int) (took time.Duration, factor float64) {
			took = percentile(s[name], percent)
			return took, float64(took) / float64(percentile(n.quiet[name], percent))
		}
		median, factor := times(50)
		high, highFactor := times(95)
		mark := ""
		if factor >= 2 {
			mark = "**"
		}
		fmt.Fprintf(&b, " %d ms, %s%.1f×%s; %d ms, %.1f× |", median.Milliseconds(), mark, factor, mark, high.Milliseconds(), highFactor)
	}
	return b.String()
}

// cgroupVersion returns that of this machine: it decides how the processors are
// shared between the server and all sandboxes.
func cgroupVersion() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "v2"
	}
	return "v1"
}
