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
	s     *server
	guest *guest

	mu sync.Mutex
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
	sc := &scene{s: s, History: history.History{Settings: set}}
	creator := &observer{sc: sc, n: 1, rng: rng}
	done := creator.call(history.Create, 0)
	sc.guest = &guest{s: s, sb: s.create(ctx, client.CreateOptions{
		Timeout: set.Timeout, OnTimeout: client.Action(set.OnTimeout), AutoResume: &set.AutoResume,
	})}
	done(nil, func(op *history.Op) { op.Generation = 1 }) // the client does not tell
	sc.guest.startCounter(ctx)

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
	creator.kill(ctx)
	sc.addLog(ctx)
	return sc.History
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
	page, err := sc.s.client.Events(ctx, client.EventOptions{Sandbox: sc.guest.sb.ID, Limit: 1000})
	if err != nil {
		sc.s.t.Error(err)
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

// observer is one client.
type observer struct {
	sc  *scene
	n   int
	rng *rand.Rand
}

// call notes a call and returns what notes its answer.
func (o *observer) call(kind history.Kind, timeout time.Duration) func(err error, answer func(op *history.Op)) {
	op := history.Op{Kind: kind, Client: o.n, Timeout: timeout, At: time.Now().Truncate(time.Microsecond), Call: stamp()}
	return func(err error, answer func(op *history.Op)) {
		op.Return = stamp()
		op.Outcome, op.Err = outcomeOf(err), err
		if e, ok := errors.AsType[*client.Error](err); ok && op.Outcome == history.Ended {
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
	c, id := o.sc.s.client, o.sc.guest.sb.ID
	switch n := o.rng.IntN(1000); {
	case n < 280:
		o.exec(ctx, o.request)
	case n < 380:
		o.exec(ctx, o.command)
	case n < 560:
		done := o.call(history.Read, 0)
		info, err := c.Find(ctx, id)
		done(err, func(op *history.Op) { op.See(recordOf(info)) })
	case n < 680:
		done := o.call(history.Pause, 0)
		done(c.Pause(ctx, id), nil)
	case n < 840:
		d := o.duration()
		done := o.call(history.Connect, d)
		info, err := c.Resume(ctx, id, d)
		done(err, func(op *history.Op) { op.Generation, op.End = info.Generation, info.EndAt })
	case n < 990:
		d := o.duration()
		done := o.call(history.SetTimeout, d)
		end, err := o.setTimeout(ctx, d)
		done(err, func(op *history.Op) { op.End = end })
	default:
		o.kill(ctx)
	}
}

// setTimeout returns the end that was granted, which the client does not tell.
func (o *observer) setTimeout(ctx context.Context, d time.Duration) (time.Time, error) {
	header := http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	body := fmt.Sprintf(`{"timeoutSeconds": %f}`, d.Seconds())
	got, err := o.sc.s.raw(ctx, http.MethodPost, "/v1/sandboxes/"+o.sc.guest.sb.ID+"/timeout", header, strings.NewReader(body))
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

func (o *observer) kill(ctx context.Context) {
	done := o.call(history.Kill, 0)
	done(o.sc.s.client.Kill(ctx, o.sc.guest.sb.ID), nil)
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
	generation, _ := strconv.ParseInt(got.Generation, 10, 64)
	answer := func(op *history.Op) { op.Generation, op.Count = generation, got.Count }
	access(err, answer)
	switch outcomeOf(err) {
	case history.Unknown:
		cut(nil, nil)
		counting(err, nil)
	case history.OK:
		counting(nil, answer)
	}
}

// request is a way in through a port.
func (o *observer) request(ctx context.Context) (got counted, err error) {
	req, err := o.sc.guest.sb.Request(ctx, http.MethodPost, guestPort, "/", nil)
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
	if status == http.StatusBadGateway && bytes.Contains(body, []byte("not found")) {
		e.Code = "sandbox_not_running"
	}
	return e
}

// command is a way in through the agent, which starts a process.
func (o *observer) command(ctx context.Context) (got counted, err error) {
	var out bytes.Buffer
	exit, err := o.sc.guest.sb.Run(ctx, client.Command{Args: []string{"./guest", "count"}, Stdout: &out, Stderr: &out})
	if err != nil {
		return got, err
	}
	if exit.Code != 0 {
		return got, &client.Error{Message: fmt.Sprintf("%s: %s", exit.Status, out.String())}
	}
	err = json.Unmarshal(out.Bytes(), &got)
	return got, err
}
