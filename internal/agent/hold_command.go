package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
)

const holdUsage = `usage: drowse-hold [-for 10m] [-reason TEXT] -- COMMAND [ARG...]
       drowse-hold [-for 10m] [-reason TEXT]
       drowse-hold -release ID
       drowse-hold -list

Keep the sandbox awake: while a hold counts, it is not idle.

With a command, the hold lasts until the command ends, whose exit code is the
result. Without, it lasts as long as -for says, or until it is released; its id
is printed.

  -for DURATION   how long at most, like 90s or 1h30m (default 10m, up to 24h);
                  with a command it is renewed in time
  -reason TEXT    what for, up to 200 bytes (default: the command)
  -release ID     end a hold
  -list           print the holds there are

Exit codes: 2 for a wrong command line, 1 for anything else that fails here.
With a command: its own; 128 + N if signal N ended it; 125 if no hold could be
taken, 126 if the command cannot be run, 127 if there is no such command.
`

const (
	defaultHold = 10 * time.Minute

	// renewals is how often a hold is renewed in the time it lasts: failing
	// to do so once is no harm.
	renewals = 3

	holdTimeout = 10 * time.Second
)

// Hold is the program drowse-hold. It returns an exit status.
func Hold(args []string) int {
	o, err := parseHold(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(holdUsage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "drowse-hold: %v\n%s", err, holdUsage)
		return 2
	}
	c := holdClient{base: "http://127.0.0.1:" + strconv.Itoa(agentapi.Port), http: &http.Client{Timeout: holdTimeout}}
	switch {
	case o.list:
		err = c.printList(os.Stdout)
	case o.release != "":
		err = c.release(o.release)
	case len(o.command) > 0:
		return c.around(o)
	default:
		var lease agentapi.HeldWork
		if lease, err = c.take(o.request()); err == nil {
			fmt.Println(lease.ID)
		}
	}
	return reportHold(err, 1)
}

func reportHold(err error, code int) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "drowse-hold:", err)
	return code
}

type holdOptions struct {
	lasts   time.Duration
	reason  string
	release string
	list    bool
	command []string
}

func parseHold(args []string) (*holdOptions, error) {
	o := &holdOptions{}
	f := flag.NewFlagSet("drowse-hold", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.DurationVar(&o.lasts, "for", defaultHold, "")
	f.StringVar(&o.reason, "reason", "", "")
	f.StringVar(&o.release, "release", "", "")
	f.BoolVar(&o.list, "list", false, "")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.command = f.Args()
	return o, o.check(f)
}

// check refuses combinations rather than ignoring half of them.
func (o *holdOptions) check(f *flag.FlagSet) error {
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	alone := given["list"] || given["release"]
	switch {
	case alone && (f.NFlag() > 1 || f.NArg() > 0):
		return errors.New("-list and -release go with nothing else")
	case given["release"] && o.release == "":
		return errors.New("-release needs an id")
	case given["reason"] && o.reason == "":
		return errors.New("-reason is empty")
	case o.lasts < time.Second || o.lasts > agentapi.MaxLeaseSeconds*time.Second:
		return fmt.Errorf("-for %s: it must be at least 1s and at most 24h", o.lasts)
	case len(o.reason) > agentapi.MaxReason:
		return fmt.Errorf("-reason has %d bytes: at most %d", len(o.reason), agentapi.MaxReason)
	}
	return nil
}

func (o *holdOptions) request() agentapi.HoldRequest {
	reason := o.reason
	if reason == "" {
		reason = human.Line(strings.Join(o.command, " "), agentapi.MaxReason)
	}
	if reason == "" {
		reason = "drowse-hold"
	}
	return agentapi.HoldRequest{Reason: reason, Seconds: o.lasts.Seconds()}
}

// holdClient talks to the agent of this sandbox.
type holdClient struct {
	base string
	http *http.Client
}

func (c *holdClient) take(req agentapi.HoldRequest) (agentapi.HeldWork, error) {
	var lease agentapi.HeldWork
	body, err := json.Marshal(req)
	if err == nil {
		err = c.call(http.MethodPost, agentapi.PathHolds, body, &lease)
	}
	return lease, err
}

func (c *holdClient) release(id string) error {
	return c.call(http.MethodDelete, agentapi.PathHolds+"/"+url.PathEscape(id), nil, nil)
}

func (c *holdClient) call(method, path string, body []byte, answer any) error {
	req, err := http.NewRequest(method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("the sandbox's agent does not answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		var refusal struct {
			Message string `json:"message"`
		}
		if json.NewDecoder(resp.Body).Decode(&refusal) != nil || refusal.Message == "" {
			refusal.Message = resp.Status
		}
		return errors.New(refusal.Message)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

func (c *holdClient) printList(w io.Writer) error {
	var list []agentapi.HeldWork
	if err := c.call(http.MethodGet, agentapi.PathHolds, nil, &list); err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tUNTIL\tREASON")
	for _, l := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\n", l.ID, l.Until.Format(time.RFC3339), l.Reason)
	}
	return table.Flush()
}

// around runs a command under a hold.
func (c *holdClient) around(o *holdOptions) int {
	req := o.request()
	lease, err := c.take(req)
	if err != nil {
		return reportHold(err, 125)
	}
	req.ID = lease.ID
	defer func() { _ = c.release(lease.ID) }()

	signals := catchSignals()
	defer signal.Stop(signals)
	cmd := exec.Command(o.command[0], o.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		code := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = 127
		}
		return reportHold(err, code)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	renew := time.NewTicker(o.lasts / renewals)
	defer renew.Stop()
	for {
		select {
		case err := <-ended:
			return commandCode(cmd, err)
		case sig := <-signals:
			_ = cmd.Process.Signal(sig)
		case <-renew.C:
			if _, err := c.take(req); err != nil {
				_ = reportHold(fmt.Errorf("renew the hold: %w", err), 0)
			}
		}
	}
}

func commandCode(cmd *exec.Cmd, err error) int {
	if cmd.ProcessState == nil {
		return reportHold(err, 126)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// catchSignals takes the signals that are for the command. What was ignored,
// as under nohup, stays so; and what a terminal sends it sends to the command
// as well, which should not get it twice.
func catchSignals() chan os.Signal {
	signals := make(chan os.Signal, 16)
	forward := []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}
	typed := []os.Signal{syscall.SIGINT, syscall.SIGQUIT}
	if inForeground() {
		dropped := make(chan os.Signal, 1)
		notify(dropped, append(typed, syscall.SIGWINCH))
	} else {
		forward = append(forward, typed...)
	}
	notify(signals, forward)
	return signals
}

func notify(c chan os.Signal, signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// inForeground reports whether this process is one that a terminal sends
// signals to.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
