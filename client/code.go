package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/drowse-dev/drowse/client/agentpb"
)

// Code is a cell to run in a kernel of a sandbox's code interpreter.
type Code struct {
	Text     string
	Language string            // empty means Python
	Env      map[string]string // of this cell

	// Stdout and Stderr receive what the cell prints; nil drops it. Result receives
	// what it shows, by MIME type. They are called from RunCode only.
	Stdout io.Writer
	Stderr io.Writer
	Result func(CodeResult)
}

// CodeResult is something that a cell shows, or the value of its last expression.
type CodeResult struct {
	Main bool              // the value of the last expression
	Data map[string]string // by kind: text, html, markdown, png and jpeg in base64, json, …
}

// CodeError is how a cell failed. All of it is text of the sandbox.
type CodeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// maxCodeLine bounds one message of the interpreter.
const maxCodeLine = 64 << 20

// RunCode runs a cell in the default kernel of its language, which keeps its
// variables from cell to cell and over pauses. That a cell fails is no error: it
// is the CodeError, nil otherwise. If ctx ends, the cell is interrupted.
func (s *Sandbox) RunCode(ctx context.Context, code Code) (*CodeError, error) {
	failed, err := s.runCode(ctx, code)
	if err != nil {
		return nil, fmt.Errorf("run code in sandbox %s: %w", s.ID, err)
	}
	return failed, nil
}

func (s *Sandbox) runCode(ctx context.Context, code Code) (*CodeError, error) {
	in := map[string]any{"code": code.Text}
	if code.Language != "" {
		in["language"] = code.Language
	}
	if len(code.Env) > 0 {
		in["env_vars"] = code.Env
	}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := s.Request(ctx, http.MethodPost, agentpb.CodePort, agentpb.PathCode, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set(agentpb.HeaderAccessToken, s.token)
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := s.client.http.Do(req)
	if err != nil {
		return nil, transportError(req.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, codeRefused(resp)
	}
	return code.read(ctx, resp.Body)
}

// codeRefused reads the answer of the proxy, which is JSON, or of the
// interpreter, which is text or JSON with a "detail".
func codeRefused(resp *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	e := parseError(resp.StatusCode, body)
	if e.Message != "" {
		return e
	}
	var wire struct {
		Detail string `json:"detail"`
	}
	e.Message = string(bytes.TrimSpace(body))
	if json.Unmarshal(body, &wire) == nil && wire.Detail != "" {
		e.Message = wire.Detail
	}
	return e
}

// read passes on what a cell says until it has ended.
func (c Code) read(ctx context.Context, body io.Reader) (failed *CodeError, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxCodeLine)
	for lines.Scan() {
		var m struct {
			Type string `json:"type"`
			Text string `json:"text"`
			Main bool   `json:"is_main_result"`
			CodeError
		}
		// The text of a result may be any JSON; resultData reads it.
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil && m.Type != "result" {
			return nil, fmt.Errorf("understand the interpreter's answer: %w", err)
		}
		switch m.Type {
		case "stdout":
			err = write(c.Stdout, m.Text)
		case "stderr":
			err = write(c.Stderr, m.Text)
		case "result":
			if c.Result != nil {
				c.Result(CodeResult{Main: m.Main, Data: resultData(lines.Bytes())})
			}
		case "error":
			failed = &m.CodeError
		case "end_of_execution":
			return failed, nil
		}
		if err != nil {
			return nil, err
		}
	}
	switch err := lines.Err(); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("a message of the interpreter has more than %d bytes", maxCodeLine)
	case err != nil:
		return nil, interrupted(err)
	}
	return nil, fmt.Errorf("%w before the code had ended", ErrInterrupted)
}

func write(w io.Writer, text string) error {
	if w == nil {
		return nil
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("%w of the code: %w", errOutput, err)
	}
	return nil
}

// resultData returns what a result has, by kind; what is no string as its JSON.
func resultData(line []byte) map[string]string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(line, &fields)
	data := map[string]string{}
	for kind, raw := range fields {
		if kind == "type" || kind == "is_main_result" {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		data[kind] = text
	}
	return data
}
