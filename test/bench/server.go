package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/client"
)

const (
	serverAddr = "127.0.0.1:3000"
	serverURL  = "http://" + serverAddr
	serverKey  = "e2b_0000000000000000000000000000000000000000"
)

// server is a drowse server with a state directory of its own.
type server struct {
	cmd    *exec.Cmd
	log    string
	ready  time.Duration // from its start to its first answer
	client *client.Client
	ended  chan error
	light  bool // sandboxes sleep lightly
}

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// startServer starts a server and waits until it answers.
func startServer(ctx context.Context, drowse, stateDir, log string, args ...string) (*server, error) {
	return startServerAt(ctx, serverAddr, drowse, stateDir, log, args...)
}

// startServerAt is startServer for one that listens at another address.
func startServerAt(ctx context.Context, addr, drowse, stateDir, log string, args ...string) (*server, error) {
	c, err := client.New(client.Options{URL: "http://" + addr, APIKey: serverKey})
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s := &server{log: log, client: c, ended: make(chan error, 1)}
	s.cmd = exec.Command(drowse, "serve", "--listen", addr, "--state-dir", stateDir, "--log-format", "json")
	s.cmd.Args = append(s.cmd.Args, args...)
	s.cmd.Env = append(os.Environ(), "DROWSE_API_KEY="+serverKey, "DROWSE_LIGHT_SLEEP=0") // most rows are about images
	s.cmd.Stdout, s.cmd.Stderr = out, out
	start := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { s.ended <- s.cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for c.Health(ctx) != nil {
		select {
		case err := <-s.ended:
			text, _ := os.ReadFile(log)
			return nil, fmt.Errorf("the server ended at once: %v: %s", err, text)
		case <-ctx.Done():
			return nil, fmt.Errorf("the server does not answer: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	s.ready = time.Since(start)
	return s, nil
}

// stop ends the server in order.
func (s *server) stop() error {
	http.DefaultClient.CloseIdleConnections()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-s.ended:
		if err != nil {
			return fmt.Errorf("the server ended: %w", err)
		}
		return nil
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.ended
		return fmt.Errorf("the server did not end within %s of SIGTERM", stopTimeout)
	}
}

// reported returns how many bytes the server says the last pause of a sandbox
// has written.
func (s *server) reported(sandbox string) (int64, error) {
	f, err := os.Open(s.log)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var last int64 = -1
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var line struct {
			Msg     string `json:"msg"`
			Sandbox string `json:"sandbox"`
			Bytes   int64  `json:"bytes"`
		}
		if !bytes.HasPrefix(lines.Bytes(), []byte("{")) || json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		if line.Msg == "sandbox paused" && line.Sandbox == sandbox {
			last = line.Bytes
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if last < 0 {
		return 0, fmt.Errorf("the server's log %s knows no pause of sandbox %s", s.log, sandbox)
	}
	return last, nil
}

// build makes a template of base that is kept running, as E2B's clients do.
func (s *server) build(ctx context.Context, name, start, ready string) error {
	call := func(method, path string, body, into any) error {
		var data bytes.Buffer
		if body != nil {
			if err := json.NewEncoder(&data).Encode(body); err != nil {
				return err
			}
		}
		req, err := http.NewRequestWithContext(ctx, method, serverURL+path, &data)
		if err != nil {
			return err
		}
		req.Header.Set("X-API-Key", serverKey)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return err
		}
		if resp.StatusCode >= 300 {
			return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(text, into)
	}
	var made struct {
		BuildID string `json:"buildID"`
	}
	if err := call(http.MethodPost, "/v3/templates", map[string]any{"name": name}, &made); err != nil {
		return err
	}
	build := "/builds/" + made.BuildID
	err := call(http.MethodPost, "/v2/templates/"+name+build, map[string]any{"fromTemplate": "base", "steps": []any{}, "startCmd": start, "readyCmd": ready}, nil)
	for err == nil {
		var now struct {
			Status string          `json:"status"`
			Reason json.RawMessage `json:"reason"`
		}
		switch err = call(http.MethodGet, "/templates/"+name+build+"/status", nil, &now); {
		case err != nil:
		case now.Status == "ready":
			return nil
		case now.Status == "error":
			return fmt.Errorf("build %s: %s", name, now.Reason)
		default:
			err = sleep(ctx, 50*time.Millisecond)
		}
	}
	return err
}
