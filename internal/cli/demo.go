package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

const (
	// demoLife is the sandbox's timeout while things are set up in it, so that
	// a slow machine does not put it to sleep in between.
	demoLife = time.Minute
	// demoNap is the timeout that the demo waits for.
	demoNap = 2 * time.Second
	// demoPatience bounds each wait.
	demoPatience = 60 * time.Second
	demoPoll     = 20 * time.Millisecond

	demoNote = "drowse-demo-note"
)

func (a *app) demoCommand() *cobra.Command {
	var keep, screen bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "watch a sandbox fall asleep and wake up",
		Long: `Create a sandbox with a process that counts in memory, wait until its timeout
pauses it, check that no process or memory of it is left on the host, wake it
with one HTTP request, and check that process, count and file are unchanged.

If no server answers, the demo starts its own, on a free loopback port with its
own key and state directory, and removes it at the end. This needs root, as any
server does.

With --tui two sandboxes sleep and wake on a screen until you end it, and what they
have in memory and in files is compared byte for byte after each sleep.`,
		Args: exactArgs(),
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the state directory and the log of the demo's own server")
	cmd.Flags().BoolVar(&screen, "tui", false, "watch two sandboxes sleep and wake on a screen, until you end it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &demo{app: a, keep: keep}
		if screen {
			return d.demonstrate(cmd.Context(), d.watch)
		}
		return d.demonstrate(cmd.Context(), d.run)
	}
	return cmd
}

// demo is one run of the demo.
type demo struct {
	app   *app
	keep  bool
	steps []demoStep

	client  *client.Client
	own     *ownServer // nil if one was there
	sandbox *client.Sandbox
	alive   bool  // the sandbox is still to be killed
	second  *demo // another sandbox of the same server; nil without a screen

	counter   counterProgram
	pid       int
	note      string
	processes bool // the sandbox's host processes can be seen from here

	before, woken reading
}

// demoStep is what is told of one step.
type demoStep struct {
	Name         string `json:"name"`
	Milliseconds int64  `json:"milliseconds"`
	Detail       string `json:"detail,omitempty"`
	Error        string `json:"error,omitempty"`
}

// demonstrate runs the demo, and cleans up after it.
func (d *demo) demonstrate(ctx context.Context, run func(context.Context) error) error {
	a := d.app
	err := run(ctx)
	if cleanErr := d.cleanUp(ctx); err == nil {
		err = cleanErr
	} else if cleanErr != nil {
		a.complain("demo: clean up: "+cleanErr.Error(), "")
	}
	if a.output == "json" {
		_ = a.print(map[string]any{"ok": err == nil, "steps": d.steps}, nil)
	} else if err == nil {
		_, err = fmt.Fprintln(a.Stdout, "demo: ok")
	}
	switch {
	case err == nil || ctx.Err() != nil || len(d.steps) == 0:
		return err
	case d.own != nil:
		err = hint(err, "the server's log is %s", d.own.log)
	}
	return &exitError{code: exitFailure, err: err}
}

// namedStep is a step of the demo, which tells what it has seen.
type namedStep struct {
	name string
	run  func(context.Context) (detail string, err error)
}

func (d *demo) run(ctx context.Context) error {
	return d.do(ctx, []namedStep{
		{"server ready", d.findServer},
		{"sandbox created", d.create},
		{"counter started", d.startCounter},
		{"file written", d.writeNote},
		{"seen on the host", d.lookAwake},
		{"fell asleep by itself", d.awaitSleep},
		{"memory is free", d.lookAsleep},
		{"woken by a request", d.wake},
		{"process carries on", d.checkCounter},
		{"file is the same", d.checkNote},
		{"sandbox killed", d.kill},
	})
}

// do runs steps until one fails.
func (d *demo) do(ctx context.Context, steps []namedStep) error {
	for _, step := range steps {
		if err := d.step(ctx, step.name, step.run); err != nil {
			return fmt.Errorf("demo: %s: %w", step.name, err)
		}
	}
	return nil
}

// step runs one step and prints its line.
func (d *demo) step(ctx context.Context, name string, run func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*demoPatience)
	defer cancel()
	start := time.Now()
	detail, err := run(ctx)
	took := time.Since(start)
	s := demoStep{Name: name, Milliseconds: took.Milliseconds(), Detail: detail}
	if err != nil {
		s.Error, detail = err.Error(), "FAILED"
	}
	d.steps = append(d.steps, s)
	if d.app.output == "json" {
		return err
	}
	line := fmt.Sprintf("  %-22s %8s   %s", name, short(took), detail)
	if _, printErr := fmt.Fprintln(d.app.Stdout, strings.TrimRight(line, " ")); err == nil {
		err = printErr
	}
	return err
}

// short is a duration as a person reads it.
func short(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// cleanUp kills the sandbox if it lives and stops the demo's own server.
func (d *demo) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoPatience)
	defer cancel()
	var killErr error
	for _, each := range []*demo{d, d.second} {
		if each == nil || !each.alive {
			continue
		}
		if err := d.client.Kill(ctx, each.sandbox.ID); !errors.Is(err, client.ErrNotFound) {
			killErr = errors.Join(killErr, err)
		}
	}
	if d.own == nil {
		return killErr
	}
	return errors.Join(killErr, d.own.stop(d.keep, d.failed()))
}

func (d *demo) failed() bool {
	return len(d.steps) == 0 || d.steps[len(d.steps)-1].Error != ""
}

// findServer uses the server that flags and environment name, or starts one.
func (d *demo) findServer(ctx context.Context) (string, error) {
	c, err := d.app.connect()
	if err != nil {
		return "", err
	}
	switch err := usable(ctx, c); {
	case err == nil:
		d.client = c
		return c.URL() + ", which was running", nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case d.app.namedServer() && !errors.Is(err, client.ErrUnreachable):
		return "", d.app.explainKey(c.URL(), err)
	}
	d.own, err = startOwnServer(d.app.Executable, d.app.stateDirectory())
	if err != nil {
		return "", err
	}
	if d.client, err = d.own.ready(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, started for this; log %s", d.client.URL(), d.own.log), nil
}

// usable reports whether a server answers that takes our key. Health alone
// would take another program on the port for a server.
func usable(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := c.Health(ctx); err != nil {
		return err
	}
	_, err := c.List(ctx, client.ListOptions{})
	return err
}

// namedServer reports whether the user said which server to use.
func (a *app) namedServer() bool {
	return a.url != "" || a.Getenv("DROWSE_URL") != "" || a.Getenv("E2B_API_URL") != ""
}

func (d *demo) create(ctx context.Context) (string, error) {
	var err error
	d.sandbox, err = createOwned(ctx, d.client, client.CreateOptions{
		Timeout: demoLife, OnTimeout: client.Pause, AutoResume: new(true),
		Metadata: map[string]string{"made-by": "drowse demo"},
	})
	if err != nil {
		return "", err
	}
	d.alive = true
	return d.sandbox.ID, nil
}

func (d *demo) startCounter(ctx context.Context) (string, error) {
	var err error
	if d.counter, err = chooseCounter(ctx, d.sandbox); err != nil {
		return "", err
	}
	err = d.start(ctx, client.Command{Args: d.counter.args})
	return fmt.Sprintf("pid %d, %s", d.pid, d.counter.what), err
}

// start starts the counter, and waits until it answers.
func (d *demo) start(ctx context.Context, c client.Command) error {
	// The stream ends with the step; the process does not.
	p, err := d.sandbox.Start(ctx, c)
	if err != nil {
		return err
	}
	d.pid = p.PID()
	p.Detach()
	return until(ctx, "the counter answers", func() (bool, error) {
		r, err := d.read(ctx)
		if _, ok := errors.AsType[*client.Error](err); ok {
			return false, nil // nothing listens yet, or the file is not there yet
		}
		return r.count > 0, err
	})
}

func (d *demo) writeNote(ctx context.Context) (string, error) {
	d.note = rand.Text()
	return demoNote, d.sandbox.WriteFile(ctx, demoNote, strings.NewReader(d.note))
}

// lookAwake counts the sandbox's processes on the host, for comparison.
func (d *demo) lookAwake(context.Context) (string, error) {
	if !isLoopback(d.client.URL()) {
		return "not from here: the server is on another machine", nil
	}
	found, err := hostProcesses(d.sandbox.ID)
	if err != nil {
		return "", err
	}
	d.processes = found.count > 0
	if !d.processes && d.own != nil {
		return "", errors.New("no process of it, although it runs")
	}
	if !d.processes {
		return "not from here: its processes cannot be seen", nil
	}
	return found.String(), nil
}

func (d *demo) awaitSleep(ctx context.Context) (string, error) {
	var err error
	if d.before, err = d.read(ctx); err != nil {
		return "", err
	}
	if err := d.client.SetTimeout(ctx, d.sandbox.ID, demoNap); err != nil {
		return "", err
	}
	err = until(ctx, "it sleeps", func() (bool, error) {
		info, err := d.client.Get(ctx, d.sandbox.ID)
		return info.State == client.Paused, err
	})
	return fmt.Sprintf("its timeout was set to %s; count was %d", demoNap, d.before.count), err
}

func (d *demo) lookAsleep(ctx context.Context) (string, error) {
	if !d.processes {
		// Long enough for the pause to be past the point where a request
		// would call it off.
		return "not seen from here", pause(ctx, time.Second)
	}
	var found hostUse
	err := until(ctx, "its processes are gone", func() (bool, error) {
		var err error
		found, err = hostProcesses(d.sandbox.ID)
		return found.count == 0, err
	})
	if err != nil {
		return "", fmt.Errorf("%w; there are %s", err, found)
	}
	return found.String(), nil
}

// wake makes one plain HTTP request and takes the time to its first byte.
func (d *demo) wake(ctx context.Context) (string, error) {
	var firstByte time.Duration
	var err error
	if d.woken, firstByte, err = d.timedRead(ctx); err != nil {
		return "", err
	}
	return "first byte of the answer after " + short(firstByte), nil
}

func (d *demo) checkCounter(ctx context.Context) (string, error) {
	if err := d.woken.continues(d.before, d.pid); err != nil {
		return "", err
	}
	last := d.woken
	err := until(ctx, "it counts on", func() (bool, error) {
		var err error
		last, err = d.read(ctx)
		return last.count > d.woken.count, err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("pid %d; count %d at wake, %d now", last.pid, d.woken.count, last.count), last.continues(d.woken, d.pid)
}

func (d *demo) checkNote(ctx context.Context) (string, error) {
	r, err := d.sandbox.ReadFile(ctx, demoNote)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }()
	got, err := io.ReadAll(io.LimitReader(r, 1<<10))
	if err != nil {
		return "", err
	}
	if string(got) != d.note {
		return "", fmt.Errorf("it holds %q, and %q was written", got, d.note)
	}
	return demoNote, nil
}

func (d *demo) kill(ctx context.Context) (string, error) {
	if err := d.client.Kill(ctx, d.sandbox.ID); err != nil {
		return "", err
	}
	d.alive = false
	if _, err := d.client.Get(ctx, d.sandbox.ID); !errors.Is(err, client.ErrNotFound) {
		return "", fmt.Errorf("it is still there: %v", err)
	}
	if !d.processes {
		return "", nil
	}
	return "nothing of it is left", until(ctx, "its processes are gone", func() (bool, error) {
		found, err := hostProcesses(d.sandbox.ID)
		return found.count == 0, err
	})
}

// read asks the counter.
func (d *demo) read(ctx context.Context) (reading, error) {
	r, _, err := d.timedRead(ctx)
	return r, err
}

// timedRead asks the counter, over a connection of its own, and takes the time to
// the first byte of the answer.
func (d *demo) timedRead(ctx context.Context) (r reading, firstByte time.Duration, err error) {
	start := time.Now()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: func() { firstByte = time.Since(start) },
	})
	req, err := d.counter.request(ctx, d.sandbox)
	if err != nil {
		return reading{}, 0, err
	}
	body, err := answerTo(req)
	if err != nil {
		return reading{}, 0, err
	}
	r, err = parseReading(string(body))
	return r, firstByte, err
}

// answerTo makes a request over a connection of its own, and returns what is answered.
func answerTo(req *http.Request) ([]byte, error) {
	hc := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &client.Error{Status: resp.StatusCode, Message: strings.TrimSpace(string(body))}
	}
	return body, err
}

// until polls until ok, for at most demoPatience.
func until(ctx context.Context, what string, ok func() (bool, error)) error {
	deadline := time.NewTimer(demoPatience)
	defer deadline.Stop()
	tick := time.NewTicker(demoPoll)
	defer tick.Stop()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("waited %s in vain until %s", demoPatience, what)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
