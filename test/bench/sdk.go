package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// sdk is a Node process that uses the published E2B SDK; see sdk.mjs.
type sdk struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
}

// startSDK runs sdk.mjs, which lies where the SDK is installed.
func startSDK(ctx context.Context, dir string) (*sdk, error) {
	cmd := exec.CommandContext(ctx, "node", filepath.Join(dir, "sdk.mjs"))
	cmd.Env = append(os.Environ(), "E2B_API_KEY="+serverKey, "E2B_API_URL="+serverURL, "E2B_SANDBOX_URL="+serverURL)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &sdk{cmd: cmd, in: in, answers: bufio.NewScanner(out)}, nil
}

// answer is what sdk.mjs says: times in milliseconds, as far as the operation
// has them.
type answer struct {
	Created, First, Done float64
	Sandbox              string
	Error                string
}

func (s *sdk) do(operation string) (answer, error) {
	var a answer
	if _, err := io.WriteString(s.in, operation+"\n"); err != nil {
		return a, fmt.Errorf("sdk: %w", err)
	}
	if !s.answers.Scan() {
		return a, fmt.Errorf("sdk: the process ended: %w", errors.Join(s.answers.Err(), io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(s.answers.Bytes(), &a); err != nil {
		return a, fmt.Errorf("sdk: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("sdk: %s", a.Error)
	}
	return a, nil
}

func (s *sdk) close() error {
	if err := s.in.Close(); err != nil {
		return err
	}
	return s.cmd.Wait()
}
