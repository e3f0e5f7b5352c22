package mitos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/interpreter"
)

const (
	defaultCodeTime = 60 * time.Second
	defaultLanguage = "python"
	// maxLine bounds one message of the interpreter: a guest is hostile.
	maxLine = 8 << 20
	// maxMedia is how many forms a result may have, and maxTraceback how many lines
	// an error.
	maxMedia     = 64
	maxTraceback = 10_000
	// maxRefusal bounds what is read of an answer that refuses.
	maxRefusal = 64 << 10
)

// event is a message of the interpreter. What is not named here is the data of a
// result by its kind.
type event struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	Main      bool   `json:"is_main_result"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// result is what a cell shows. Its text is that of the last expression.
type result struct {
	Result resultView `json:"result"`
}

type resultView struct {
	Text string            `json:"text,omitempty"`
	Data map[string][]byte `json:"data"` // by media type
}

type failure struct {
	Error failureView `json:"error"`
}

type failureView struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

type codeExit struct {
	ExitCode int `json:"exitCode"`
}

// runCode runs a cell in the sandbox's kernel for its language.
func runCode(s *server, c *call) error {
	words, err := c.message(codeBody)
	if err != nil {
		return err
	}
	language := defaultLanguage
	if w, given := words["language"]; given {
		language = w.Value.(string)
	}
	ctx, cancel := context.WithTimeout(c.ctx, seconds(words, defaultCodeTime))
	defer cancel()
	err = s.guest(c).cell(ctx, s.Room.Lasting(held.From(c.r, c.key.ID)), c.out, words["code"].Value.(string), language)
	if err != nil && isDeadline(ctx, c.ctx, err) {
		return errdef.New(errdef.Exhausted, "exec_timeout", "the code ran longer than it may, and was interrupted").
			WithRemedy("raise the timeout of the call, or split the work into shorter steps")
	}
	return err
}

// cell runs code and passes on what it says.
func (g inside) cell(ctx context.Context, room *held.Share, to *frames, code, language string) error {
	asked, err := json.Marshal(map[string]string{"code": code, "language": language})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, guest.URL(agentapi.PathCode), bytes.NewReader(asked))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := g.Client(agentapi.CodePort).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusalOf(res)
	}
	defer room.Free()
	lines := bufio.NewScanner(held.NewLines(res.Body, room, maxLine))
	lines.Buffer(nil, maxLine)
	failed := codeExit{}
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return guest.ErrBroken
		}
		var message any
		switch e.Type {
		case "stdout":
			message = output{Stdout: []byte(e.Text)}
		case "stderr":
			message = output{Stderr: []byte(e.Text)}
		case "result":
			message = result{resultOf(e, lines.Bytes())}
		case "error":
			failed.ExitCode = 1
			message = failure{failureView{e.Name, e.Value, strings.SplitN(e.Traceback, "\n", maxTraceback)}}
		case "end_of_execution":
			return to.finish(failed)
		default:
			continue
		}
		if err := to.send(message); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), held.ErrNoRoom) {
		return errdef.New(errdef.Exhausted, "too_many_bodies", "%s: no room was left for a result of the code", lines.Err()).WithRemedy("try again, or write it to a file, and read that")
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) || errors.Is(lines.Err(), held.ErrTooLarge) {
		return errdef.New(errdef.Exhausted, "result_too_large", "a result of the code is larger than %d MiB", maxLine>>20).
			WithRemedy("write it to a file, and read that")
	}
	return errOr(lines.Err(), guest.ErrBroken)
}

// resultOf returns the data of a result by media type: as the kernel wrote it.
func resultOf(e event, line []byte) resultView {
	v := resultView{Data: map[string][]byte{}}
	var extra json.RawMessage
	eachField(line, func(name string, raw json.RawMessage) {
		if media, known := interpreter.MediaType(name); known {
			v.Data[media] = plain(raw)
		} else if name == "extra" {
			extra = raw
		}
	})
	eachField(extra, func(media string, raw json.RawMessage) {
		if len(v.Data) < maxMedia {
			v.Data[media] = plain(raw)
		}
	})
	if e.Main {
		v.Text = e.Text
	}
	return v
}

// eachField calls do for the fields of an object, one after the other: a map of them
// could take ten times as much memory as they have bytes.
func eachField(object []byte, do func(name string, value json.RawMessage)) {
	in := json.NewDecoder(bytes.NewReader(object))
	if begin, err := in.Token(); err != nil || begin != json.Delim('{') {
		return
	}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return
		}
		if name, ok := name.(string); ok {
			do(name, value)
		}
	}
}

// plain returns a text without its quotes, and anything else as JSON.
func plain(raw json.RawMessage) []byte {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text)
	}
	return raw
}

// refusalOf is what an answer of the agent's that is no success is.
func refusalOf(res *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	var said struct {
		Message string `json:"message"`
		Detail  string `json:"detail"`
	}
	words := string(data)
	if json.Unmarshal(data, &said) == nil {
		words = said.Message + said.Detail
	}
	class := errdef.Unavailable
	switch {
	case res.StatusCode == http.StatusNotFound:
		class = errdef.NotFound
	case res.StatusCode == http.StatusForbidden, res.StatusCode == http.StatusUnauthorized:
		class = errdef.Forbidden
	case res.StatusCode == http.StatusInsufficientStorage, res.StatusCode == http.StatusTooManyRequests:
		class = errdef.Exhausted
	case res.StatusCode >= 400 && res.StatusCode < 500:
		class = errdef.Invalid
	}
	return errdef.New(class, "agent_refused", "the sandbox says: %s", human.Line(words, mostWords)).WithRemedy("correct what the message names").With("status", res.StatusCode)
}
