package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// curl is a sandbox, and a client of it that is nothing but curl.
type curl struct {
	ctx   context.Context
	s     *server
	id    string
	token string // of its agent
}

// curlCreate makes a sandbox of the options, which are JSON as in
// docs/api/options.md.
func (s *server) curlCreate(ctx context.Context, options string) *curl {
	s.t.Helper()
	c := &curl{ctx: ctx, s: s}
	var made struct{ ID, Token string }
	c.api(http.MethodPost, "/v1/sandboxes", options, &made)
	c.id, c.token = made.ID, made.Token
	s.mu.Lock()
	s.ids = append(s.ids, c.id)
	s.mu.Unlock()
	return c
}

// command is curl with these arguments for this path.
func (c *curl) command(path string, args ...string) *exec.Cmd {
	args = append([]string{"--silent", "--show-error", "--noproxy", "*"}, args...)
	return exec.CommandContext(c.ctx, "curl", append(args, "http://"+c.s.addr+path)...)
}

// do makes one request, and returns the status and the body of the answer.
func (c *curl) do(path string, args ...string) (int, string) {
	c.s.t.Helper()
	cmd := c.command(path, append(args, "--write-out", "\n%{http_code}")...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		c.s.t.Fatalf("curl %s: %v: %s", path, err, &complaint)
	}
	end := bytes.LastIndexByte(out, '\n')
	status, err := strconv.Atoi(string(out[end+1:]))
	if err != nil {
		c.s.t.Fatal(err)
	}
	return status, string(out[:end])
}

// api makes a request to the control plane, which must go well. A body makes
// it JSON; into receives the answer, if it is not nil.
func (c *curl) api(method, path, body string, into any) {
	c.s.t.Helper()
	args := []string{"--request", method, "--header", "X-API-Key: " + apiKey}
	if body != "" {
		args = append(args, "--json", body)
	}
	status, answer := c.do(path, args...)
	if status/100 != 2 {
		c.s.t.Fatalf("%s %s: status %d: %s", method, path, status, answer)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal([]byte(answer), into); err != nil {
		c.s.t.Fatalf("%s %s: %v: %s", method, path, err, answer)
	}
}

// on is a call on the sandbox itself.
func (c *curl) on(method, path, body string) client.Info {
	c.s.t.Helper()
	var info client.Info
	c.api(method, "/v1/sandboxes/"+c.id+path, body, &info)
	return info
}

func (c *curl) info() client.Info {
	c.s.t.Helper()
	return c.on(http.MethodGet, "", "")
}

func (c *curl) explain() client.Explanation {
	c.s.t.Helper()
	var x client.Explanation
	c.api(http.MethodGet, "/v1/sandboxes/"+c.id+"/lifecycle", "", &x)
	return x
}

// setTimeout returns the deadline that was granted.
func (c *curl) setTimeout(seconds int) time.Time {
	c.s.t.Helper()
	return c.on(http.MethodPost, "/timeout", fmt.Sprintf(`{"timeoutSeconds": %d}`, seconds)).EndAt
}

// inside are the headers of a request to the agent.
func (c *curl) inside() []string {
	return []string{
		"--header", "E2b-Sandbox-Id: " + c.id, "--header", "E2b-Sandbox-Port: " + strconv.Itoa(agentPort),
		"--header", "X-Access-Token: " + c.token,
	}
}

// read asks for a file inside, which may wake the sandbox.
func (c *curl) read(path string) (status int, content string) {
	c.s.t.Helper()
	return c.do("/files?username=user&path="+path, c.inside()...)
}

// background starts a command inside, and leaves as soon as it runs.
func (c *curl) background(script string) {
	c.s.t.Helper()
	message, err := json.Marshal(map[string]any{
		"process": map[string]any{"cmd": "/bin/bash", "args": []string{"-c", script}},
		"stdin":   false,
	})
	if err != nil {
		c.s.t.Fatal(err)
	}
	cmd := c.command("/process.Process/Start", append(c.inside(), "--no-buffer",
		"--header", "Content-Type: application/connect+json", "--header", "Connect-Protocol-Version: 1",
		"--header", "Authorization: Basic dXNlcjo=", "--data-binary", "@-")...)
	cmd.Stdin = bytes.NewReader(enveloped(message))
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.s.t.Fatal(err)
	}
	if err := startCommand(cmd); err != nil {
		c.s.t.Fatal(err)
	}
	first, err := readEnveloped(bufio.NewReader(out))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || !strings.Contains(first, `"start"`) {
		c.s.t.Fatalf("start %q: %q, %v; want an event that it has started", script, first, err)
	}
}

// enveloped frames a message as the Connect protocol's streams do: flags, and
// its length.
func enveloped(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

func readEnveloped(r io.Reader) (string, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	message := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, message)
	return string(message), err
}
