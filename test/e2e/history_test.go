package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/lifecycle/history"
)

const (
	histories        = 100
	historiesAtOnce  = 2
	historyClients   = 16
	historyCheck     = 20 * time.Second // bounds the check of one history
	historyTimeout   = 2 * time.Minute  // of each sandbox at first: for the guest to come up
	historyPatience  = time.Minute      // bounds each call; nothing in order comes near
	historyThinkMost = 400 * time.Millisecond
)

// TestHistories has 16 clients at a time use one sandbox, over and over, and
// checks that what they saw is linearizable. The clients' choices follow from
// the number of the history; when things happen does not.
func TestHistories(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 10*time.Minute)
	s := startServer(t)
	var next atomic.Uint64
	var workers sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	begin := time.Now()
	for range historiesAtOnce {
		workers.Go(func() {
			for n := next.Add(1); n <= histories && !t.Failed(); n = next.Add(1) {
				h := s.recordHistory(ctx, n)
				if err := h.Check(historyCheck); err != nil {
					t.Errorf("history %d: %v; see %s", n, err, drawn(t, h))
				}
				mu.Lock()
				for _, o := range h.Ops {
					seen[o.Sort()]++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	t.Logf("%d histories in %s: %v", histories, since(begin), seen)
	for _, k := range []string{
		"create: ok", "access: ok", "count: ok", "cut: ok", "pause: ok", "connect: ok", "set timeout: ok", "kill: ok", "read: ok",
		"paused by call", "paused by timeout", "pause_cancelled by timeout", "resumed by call", "resumed by access",
		"terminated by call", "terminated by timeout",
	} {
		if seen[k] == 0 {
			t.Errorf("no %s in any history", k)
		}
	}
}

// drawn returns the path of a picture, which outlives the test.
func drawn(t *testing.T, h history.History) string {
	f, err := os.CreateTemp("", "drowse-history-*.html")
	if err != nil {
		t.Error(err)
		return ""
	}
	if err := errors.Join(h.Draw(f, historyCheck), f.Close()); err != nil {
		t.Error(err)
	}
	return f.Name()
}

// scene is one sandbox with a counting program in it, and what was seen of it.
type scene struct {
	t       testing.TB
	servers []*server // any of them is asked
	guests  []*guest  // the sandbox, as it is seen through each of them
	// uncertain reports whether a server, by its number, may have told what it knew last to who
	// has asked it since an instant; nil for never.
	uncertain func(via int, since int64) bool

	mu       sync.Mutex
	promised int64 // the last generation of which the answer to a pause has said that its checkpoint is copied
	history.History
}

// stamp is where on the scale of a history this instant lies. The server's log
// is on the same one.
func stamp() int64 { return time.Now().UnixNano() }

func (s *server) recordHistory(ctx context.Context, n uint64) history.History {
	rng := rand.New(rand.NewPCG(n, 0))
	set := lifecycle.Settings{Timeout: historyTimeout, OnTimeout: lifecycle.Kill}
	if rng.IntN(3) > 0 {
		set.OnTimeout = lifecycle.Pause
		set.AutoResume = rng.IntN(4) > 0
	}
	sc := &scene{t: s.t, servers: []*server{s}, History: history.History{Settings: set}}
	creator := &observer{sc: sc, n: 1, rng: rng}
	creator.create(ctx)

	var clients sync.WaitGroup
	for c := range historyClients {
		clients.Go(func() {
			o := &observer{sc: sc, n: c + 1, rng: rand.New(rand.NewPCG(n, uint64(c+1)))}
			for range 2 + o.rng.IntN(2) {
				time.Sleep(time.Duration(o.rng.Int64N(int64(historyThinkMost))))
				o.once(ctx)
			}
		})
	}
	clients.Wait()
	_ = creator.kill(ctx) // noted
	sc.addLog(ctx)
	return sc.History
}

// create makes the sandbox, and starts what counts in it.
func (o *observer) create(ctx context.Context) {
	set := o.sc.Settings
	first := o.sc.servers[o.choose()]
	done := o.call(history.Create, 0)
	sb := first.create(ctx, client.CreateOptions{Timeout: set.Timeout, OnTimeout: client.Action(set.OnTimeout), AutoResume: &set.AutoResume})
	done(nil, func(op *history.Op) { op.Generation = 1 }) // the client does not tell
	g := &guest{s: first, sb: sb}
	g.startCounter(ctx)
	for _, s := range o.sc.servers {
		o.sc.guests = append(o.sc.guests, g.through(ctx, s))
	}
}

// startCounter starts what counts in the sandbox.
func (g *guest) startCounter(ctx context.Context) {
	g.upload(ctx)
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"./guest", "counter"}})
	if err != nil {
		g.s.t.Error(err)
		return
	}
	p.Detach()
	eventually(g.s.t, 10*time.Second, "guest answers", func() error {
		return g.call(ctx, http.MethodGet, "/", nil, &struct{}{})
	})
}

// addLog adds what the sandbox did by itself. An entry was committed between
// the time that it bears and that of the next.
func (sc *scene) addLog(ctx context.Context) {
	page, err := sc.servers[0].client.Events(ctx, client.EventOptions{Sandbox: sc.id(), Limit: 1000})
	if err != nil {
		sc.t.Error(err)
		return
	}
	committed := stamp()
	for i := len(page.Events) - 1; i >= 0; i-- {
		e := page.Events[i]
		entry := lifecycle.Entry{
			Type: lifecycle.EntryType(e.Type), At: e.Time, Generation: e.Generation, Cause: lifecycle.Cause(e.Cause), Detail: e.Detail,
		}
		sc.Ops = append(sc.Ops, history.FromLog(entry, e.Time.UnixNano(), committed))
		committed = e.Time.Add(time.Microsecond).UnixNano() // it is truncated
	}
}

func (sc *scene) id() string { return sc.guests[0].sb.ID }

// observer is one client.
type observer struct {
	sc  *scene
	n   int
	rng *rand.Rand
	via int // the server that it asks next
}

// choose chooses the server that is asked next.
func (o *observer) choose() int {
	o.via = o.rng.IntN(len(o.sc.servers))
	return o.via
}

// client is how that server is asked.
func (o *observer) client() *client.Client { return o.sc.servers[o.via].client }

func (o *observer) guest() *guest { return o.sc.guests[o.via] }

// call notes a call and returns what notes its answer.
func (o *observer) call(kind history.Kind, timeout time.Duration) func(err error, answer func(op *history.Op)) {
	op := history.Op{Kind: kind, Client: o.n, Timeout: timeout, At: time.Now().Truncate(time.Microsecond), Call: stamp()}
	if o.sc.Servers {
		op.Via = fmt.Sprintf("via %d", o.via)
	}
	return func(err error, answer func(op *history.Op)) {
		op.Return = stamp()
		if o.sc.Servers {
			err = ofServers(err)
		}
		op.Outcome, op.Err = outcomeOf(err), err
		if e, ok := errors.AsType[*client.Error](err); ok && e.Context["endedAt"] != nil {
			op.Reason = lifecycle.Reason(e.Cause)
		}
		if answer != nil && err == nil {
			answer(&op)
		}
		o.sc.mu.Lock()
		defer o.sc.mu.Unlock()
		o.sc.Ops = append(o.sc.Ops, op)
	}
}

func outcomeOf(err error) history.Outcome {
	e, refused := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
		return history.OK
	case !refused, errors.Is(err, client.ErrInterrupted): // the connection broke
		return history.Unknown
	}
	if e.Context["endedAt"] != nil {
		return history.Ended
	}
	switch e.Code {
	case "sandbox_terminated": // while a pause waited for its copy
		return history.Ended
	case "already_paused", "not_running":
		return history.Asleep
	case "sandbox_not_running", "not_resumable":
		return history.Unreachable
	}
	return history.Failed
}

// duration is a timeout, mostly one that runs out while others call.
func (o *observer) duration() time.Duration {
	most := []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, time.Minute}[o.rng.IntN(3)]
	return (time.Millisecond + time.Duration(o.rng.Int64N(int64(most)))).Truncate(time.Microsecond)
}

func (o *observer) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	o.choose()
	c, id := o.client(), o.sc.id()
	switch n := o.rng.IntN(1000); {
	case n < 280:
		o.exec(ctx, o.request)
	case n < 380:
		o.exec(ctx, o.command)
	case n < 560:
		done := o.call(history.Read, 0)
		since := stamp()
		info, err := c.Find(ctx, id)
		if o.sc.uncertain != nil && o.sc.uncertain(o.via, since) {
			err = errors.New("of a server that is cut off")
		}
		done(err, func(op *history.Op) { op.See(recordOf(info)) })
	case n < 680:
		_, _ = o.pause(ctx)
	case n < 840:
		_ = o.connect(ctx, o.duration())
	case n < 990:
		d := o.duration()
		done := o.call(history.SetTimeout, d)
		end, err := o.setTimeout(ctx, d)
		done(err, func(op *history.Op) { op.End = end })
	case o.sc.Servers && n < 998: // it is to be seen for longer
	default:
		_ = o.kill(ctx) // noted, as each
	}
}

func (o *observer) pause(ctx context.Context) (client.Info, error) {
	done := o.call(history.Pause, 0)
	info, err := o.client().PauseWith(ctx, o.sc.id(), "")
	done(err, func(*history.Op) {
		// The answer tells of the sandbox as it is by then: it may have woken, with the checkpoint of the
		// generation before, and may be asleep again.
		if info.State == client.Paused && info.Phase == "" && info.Checkpoint != nil && info.Checkpoint.Durability == client.Replicated {
			o.sc.promised = max(o.sc.promised, info.Generation)
		}
	})
	return info, err
}

func (o *observer) connect(ctx context.Context, d time.Duration) error {
	done := o.call(history.Connect, d)
	info, err := o.client().Resume(ctx, o.sc.id(), d)
	done(err, func(op *history.Op) { op.Generation, op.End = info.Generation, info.EndAt })
	return err
}

// setTimeout returns the end that was granted, which the client does not tell.
func (o *observer) setTimeout(ctx context.Context, d time.Duration) (time.Time, error) {
	header := http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	body := fmt.Sprintf(`{"timeoutSeconds": %f}`, d.Seconds())
	got, err := o.sc.servers[o.via].raw(ctx, http.MethodPost, "/v1/sandboxes/"+o.sc.id()+"/timeout", header, strings.NewReader(body))
	if err != nil {
		return time.Time{}, err
	}
	var answer struct {
		EndAt time.Time
		Error struct {
			Code, Message, Cause string
			Context              map[string]any
		}
	}
	if err := json.Unmarshal(got.body, &answer); err != nil {
		return time.Time{}, err
	}
	if got.status != http.StatusOK {
		return time.Time{}, &client.Error{Status: got.status, Code: answer.Error.Code, Message: answer.Error.Message, Cause: answer.Error.Cause, Context: answer.Error.Context}
	}
	return answer.EndAt, nil
}

func (o *observer) kill(ctx context.Context) error {
	done := o.call(history.Kill, 0)
	err := o.client().Kill(ctx, o.sc.id())
	done(err, nil)
	return err
}

// recordOf is what a client knows of a record.
func recordOf(info client.Info) lifecycle.Record {
	r := lifecycle.Record{State: lifecycle.State(info.State), Generation: info.Generation, EndAt: info.EndAt}
	if info.Phase != "" {
		r.Op = &lifecycle.Operation{Phase: lifecycle.Phase(info.Phase)}
	}
	if info.Tombstone != nil {
		r.Tombstone = &lifecycle.Tombstone{Reason: lifecycle.Reason(info.Tombstone.Reason)}
	}
	return r
}

// counted is the answer of the program inside.
type counted struct {
	Count      int64
	Generation string
}

// exec reaches the program inside. That is an access and the counting at once:
// only the program's answer tells of either.
func (o *observer) exec(ctx context.Context, count func(ctx context.Context) (counted, error)) {
	access, counting, cut := o.call(history.Access, 0), o.call(history.Count, 0), o.call(history.Cut, 0)
	got, err := count(ctx)
	if o.sc.Servers {
		err = ofServers(err)
	}
	generation, _ := strconv.ParseInt(got.Generation, 10, 64)
	answer := func(op *history.Op) { op.Generation, op.Count = generation, got.Count }
	access(err, answer)
	switch outcomeOf(err) {
	case history.Unknown:
		if !o.sc.Servers { // where servers come and go connections break with them
			cut(nil, nil)
		}
		counting(err, nil)
	case history.OK:
		counting(nil, answer)
	}
}

// request is a way in through a port.
func (o *observer) request(ctx context.Context) (got counted, err error) {
	req, err := o.guest().sb.Request(ctx, http.MethodPost, guestPort, "/", nil)
	if err != nil {
		return got, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return got, err
	}
	if resp.StatusCode != http.StatusOK {
		return got, refusal(resp.StatusCode, data)
	}
	err = json.Unmarshal(data, &got)
	return got, err
}

// refusal is the answer of the proxy in front of a sandbox, in the form in which
// the client gives that of its own calls.
func refusal(status int, body []byte) error {
	if bytes.Contains(body, []byte(`"interrupted":true`)) {
		return client.ErrInterrupted
	}
	e := &client.Error{Status: status, Message: string(body)}
	var told struct {
		ErrorCode string `json:"error_code"`
	}
	if json.Unmarshal(body, &told) == nil { // what is not routed is told in text
		e.Code = told.ErrorCode
	}
	if status == http.StatusBadGateway && bytes.Contains(body, []byte("not found")) {
		e.Code = "sandbox_not_running"
	}
	return e
}

// command is a way in through the agent, which starts a process.
func (o *observer) command(ctx context.Context) (got counted, err error) {
	var out bytes.Buffer
	exit, err := o.guest().sb.Run(ctx, client.Command{Args: []string{"./guest", "count"}, Stdout: &out, Stderr: &out})
	if err != nil {
		return got, err
	}
	if exit.Code != 0 {
		return got, &client.Error{Message: fmt.Sprintf("%s: %s", exit.Status, out.String())}
	}
	err = json.Unmarshal(out.Bytes(), &got)
	return got, err
}
