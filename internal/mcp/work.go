package mcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drowse-dev/drowse/client"
)

const (
	defaultTimeout = 10 * time.Minute
	maxTimeout     = 24 * time.Hour
	defaultOutput  = 32 << 10 // of each of stdout and stderr
	maxOutput      = 1 << 20

	// killWithin bounds the last call for a command that nobody waits for.
	killWithin = 10 * time.Second

	maxImage   = 4 << 20 // bytes
	maxImages  = 8
	maxResults = 50
)

// shell runs a command line as a login shell does, by bash where there is one.
const shell = `if [ -x /bin/bash ]; then exec /bin/bash -l -c "$0"; else exec /bin/sh -l -c "$0"; fi`

type execIn struct {
	named
	Command        string            `json:"command" jsonschema:"a command line of a shell: pipes, variables and && work"`
	Cwd            string            `json:"cwd,omitempty" jsonschema:"directory to run in; left out: the user's home directory"`
	User           string            `json:"user,omitempty" jsonschema:"run as this user, such as root; left out: the template's"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"environment variables of this command"`
	Stdin          string            `json:"stdin,omitempty" jsonschema:"input; left out: none"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" jsonschema:"kill the command after this many seconds; left out: 600"`
	Background     bool              `json:"background,omitempty" jsonschema:"return at once and let the command run on, for example a server; its output is not kept, so send it to a file"`
	MaxOutput      int               `json:"max_output_bytes,omitempty" jsonschema:"how much of each of stdout and stderr to return; the middle of more is cut out; left out: 32768"`
}

type execOut struct {
	PID         int      `json:"pid,omitempty" jsonschema:"of the command inside the sandbox"`
	ExitCode    *int     `json:"exit_code,omitempty" jsonschema:"0 is success; 128 and a signal's number if a signal ended it; missing if it runs on or its end is not known"`
	Reason      string   `json:"reason,omitempty" jsonschema:"why the sandbox ended the command, such as for want of memory"`
	TimedOut    bool     `json:"timed_out" jsonschema:"the command was killed when its time was over"`
	Stdout      string   `json:"stdout" jsonschema:"without control sequences"`
	Stderr      string   `json:"stderr" jsonschema:"without control sequences"`
	StdoutBytes int64    `json:"stdout_bytes" jsonschema:"how much it printed"`
	StderrBytes int64    `json:"stderr_bytes" jsonschema:"how much it printed"`
	StdoutCut   int64    `json:"stdout_cut_bytes" jsonschema:"how much of that was cut out of stdout above"`
	StderrCut   int64    `json:"stderr_cut_bytes" jsonschema:"how much of that was cut out of stderr above"`
	Seconds     float64  `json:"seconds" jsonschema:"how long it took, a wake included"`
	Slept       bool     `json:"slept_before" jsonschema:"the sandbox was asleep, and was woken"`
	Error       *failure `json:"error,omitempty" jsonschema:"why the end of the command is not known"`
}

type codeIn struct {
	named
	Code           string            `json:"code" jsonschema:"a cell, as in a notebook; the value of its last expression is a result"`
	Language       string            `json:"language,omitempty" jsonschema:"python, javascript, typescript, bash, or what a kernel in the template knows; left out: python"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"environment variables of this cell"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" jsonschema:"interrupt the cell after this many seconds; left out: 600"`
	MaxOutput      int               `json:"max_output_bytes,omitempty" jsonschema:"how much of each of stdout, stderr and each result to return; the middle of more is cut out; left out: 32768"`
}

type codeOut struct {
	Results     []resultView  `json:"results" jsonschema:"what the code shows, and the value of its last expression; images follow as image content"`
	ResultsLeft int           `json:"results_left_out" jsonschema:"how many more results there were"`
	Stdout      string        `json:"stdout" jsonschema:"without control sequences"`
	Stderr      string        `json:"stderr" jsonschema:"without control sequences"`
	StdoutCut   int64         `json:"stdout_cut_bytes" jsonschema:"how much was cut out of stdout above"`
	StderrCut   int64         `json:"stderr_cut_bytes" jsonschema:"how much was cut out of stderr above"`
	Exception   *exception    `json:"exception,omitempty" jsonschema:"how the code failed; missing if it did not"`
	TimedOut    bool          `json:"timed_out" jsonschema:"the code was interrupted when its time was over"`
	Seconds     float64       `json:"seconds" jsonschema:"how long it took, a wake included"`
	Slept       bool          `json:"slept_before" jsonschema:"the sandbox was asleep, and was woken"`
	Error       *failure      `json:"error,omitempty" jsonschema:"why the end of the code is not known"`
	images      []mcp.Content // beside the JSON
}

type resultView struct {
	Value bool              `json:"value" jsonschema:"the value of the last expression"`
	Data  map[string]string `json:"data" jsonschema:"by kind: text, html, markdown, json, …; the size of an image, which follows"`
}

type exception struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// addWork adds the tools that run something.
func addWork(s *Server) {
	outputs := map[string]float64{"timeout_seconds": maxTimeout.Seconds(), "max_output_bytes": maxOutput}
	none := map[string]float64{"timeout_seconds": 0, "max_output_bytes": 0}
	addWith(s, tool{
		name: "exec", title: "Run a command", destroys: true, least: none, most: outputs,
		about: "Run a shell command in a sandbox, wait for its end and return its exit code and output. Wakes a sandbox that sleeps. " +
			"While the command runs the sandbox does not fall asleep, and output comes as progress. Cancelling the call kills the command. An exit code other than 0 is no error of this tool.",
	}, runCommand)
	addWith(s, tool{
		name: "run_code", title: "Run code", destroys: true, least: none, most: outputs,
		about: "Run code in a kernel of a sandbox, as a notebook does: variables and imports stay from call to call, and over sleep. Wakes a sandbox that sleeps. " +
			"Tables and charts come as results. Output comes as progress. Cancelling the call interrupts the code.",
	}, runCode)
}

// outputs is what something prints while it runs.
type outputs struct {
	stdout, stderr capture
	progress       *progress
}

func (c call) outputs(ctx context.Context, limit int) *outputs {
	limit = cmp.Or(limit, defaultOutput)
	return &outputs{capture{limit: limit}, capture{limit: limit}, newProgress(ctx, c.req)}
}

func runCommand(ctx context.Context, c call, in execIn) (execOut, result, error) {
	begin := time.Now()
	sb, info, err := c.open(ctx, in.Sandbox)
	if err != nil {
		return execOut{}, result{}, err
	}
	printed := c.outputs(ctx, in.MaxOutput)
	defer printed.progress.stop()
	cmd := client.Command{Args: []string{"/bin/sh", "-c", shell, in.Command}, Env: in.Env, Dir: in.Cwd}
	if in.Stdin != "" {
		cmd.Stdin = strings.NewReader(in.Stdin)
	}
	if !in.Background {
		cmd.Timeout = cmp.Or(seconds(in.TimeoutSeconds), defaultTimeout)
		cmd.Stdout, cmd.Stderr = printed.progress.tee("stdout", &printed.stdout), printed.progress.tee("stderr", &printed.stderr)
	}
	p, err := sb.As(in.User).Start(ctx, cmd)
	if err != nil {
		return execOut{}, result{}, err
	}
	out := execOut{PID: p.PID(), Slept: info.State == client.Paused}
	if in.Background {
		p.Detach()
		out.Seconds = since(begin)
		return out, result{}, nil
	}
	exit, err := p.Wait()
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
		defer cancel()
		_ = p.Kill(cleanup)
	}
	if ctx.Err() != nil {
		return execOut{}, result{}, ctx.Err()
	}
	printed.progress.stop()
	out.Stdout, out.StdoutCut = printed.stdout.text()
	out.Stderr, out.StderrCut = printed.stderr.text()
	out.StdoutBytes, out.StderrBytes, out.Seconds = printed.stdout.total, printed.stderr.total, since(begin)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		out.TimedOut = true
	case err != nil:
		out.Error = c.explain(ctx, in.Sandbox, err)
	default:
		out.ExitCode, out.Reason = new(exit.ShellCode()), short(exit.Reason)
	}
	return out, result{failed: out.Error != nil}, nil
}

func runCode(ctx context.Context, c call, in codeIn) (codeOut, result, error) {
	begin := time.Now()
	sb, info, err := c.open(ctx, in.Sandbox)
	if err != nil {
		return codeOut{}, result{}, err
	}
	printed := c.outputs(ctx, in.MaxOutput)
	defer printed.progress.stop()
	out := codeOut{Results: []resultView{}, Slept: info.State == client.Paused}
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(seconds(in.TimeoutSeconds), defaultTimeout))
	defer cancel()
	failed, err := sb.RunCode(bounded, client.Code{
		Text: in.Code, Language: in.Language, Env: in.Env,
		Stdout: printed.progress.tee("stdout", &printed.stdout), Stderr: printed.progress.tee("stderr", &printed.stderr),
		Result: func(r client.CodeResult) { out.add(r, cmp.Or(in.MaxOutput, defaultOutput)) },
	})
	if ctx.Err() != nil {
		return codeOut{}, result{}, ctx.Err()
	}
	printed.progress.stop()
	out.Stdout, out.StdoutCut = printed.stdout.text()
	out.Stderr, out.StderrCut = printed.stderr.text()
	out.Seconds = since(begin)
	switch {
	case bounded.Err() != nil && err != nil:
		out.TimedOut = true
	case errors.Is(err, client.ErrInterrupted):
		out.Error = c.explain(ctx, in.Sandbox, err)
	case err != nil:
		return codeOut{}, result{}, err
	case failed != nil:
		out.Exception = &exception{short(failed.Name), short(failed.Value), long(failed.Traceback)}
	}
	return out, result{failed: out.Error != nil, content: out.images}, nil
}

// add shows a result: what a model reads as text, and images beside it.
func (o *codeOut) add(r client.CodeResult, limit int) {
	if len(o.Results) >= maxResults {
		o.ResultsLeft++
		return
	}
	view := resultView{Value: r.Main, Data: map[string]string{}}
	for kind, data := range r.Data {
		mime, isImage := map[string]string{"png": "image/png", "jpeg": "image/jpeg"}[kind]
		switch image, err := base64.StdEncoding.DecodeString(data); {
		case !isImage:
			c := capture{limit: limit}
			_, _ = c.Write([]byte(data))
			view.Data[short(kind)], _ = c.text()
		case err != nil, len(image) > maxImage, len(o.images) >= maxImages:
			view.Data[kind] = fmt.Sprintf("image left out: %d bytes in base64; at most %d images of %d bytes are shown", len(data), maxImages, maxImage)
		default:
			view.Data[kind] = fmt.Sprintf("image %d below, %d bytes", len(o.images)+1, len(image))
			o.images = append(o.images, &mcp.ImageContent{Data: image, MIMEType: mime})
		}
	}
	o.Results = append(o.Results, view)
}

// long is text of a sandbox of several lines.
func long(text string) string {
	c := capture{limit: defaultOutput}
	_, _ = c.Write([]byte(text))
	text, _ = c.text()
	return text
}

func since(begin time.Time) float64 { return time.Since(begin).Round(time.Millisecond).Seconds() }
