package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// stopTimeout is how long the demo's server may take to end.
const stopTimeout = 20 * time.Second

// ownServer is a server that the demo started.
type ownServer struct {
	url, key string
	dir, log string
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process has ended and err is set
	err      error
}

// startOwnServer starts this binary as a server with all of its own, in a
// directory beside usualDir.
func startOwnServer(executable, usualDir string) (*ownServer, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	secret := make([]byte, 20)
	_, _ = rand.Read(secret) // never fails
	s := &ownServer{url: "http://" + addr, key: "e2b_" + hex.EncodeToString(secret), ended: make(chan struct{})}
	log, err := os.CreateTemp("", "drowse-demo-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	s.log = log.Name()
	if s.dir, err = privateDir(usualDir); err != nil {
		return nil, errors.Join(err, os.Remove(s.log))
	}
	s.cmd = exec.Command(executable, "serve", "--listen", addr, "--state-dir", s.dir, "--light-sleep", "0") // it shows that memory is free
	s.cmd.Env = append(cleanEnvironment(), "DROWSE_API_KEY="+s.key)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = apart() // Ctrl-C is for the demo, which stops it in order
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a server: %w", err), os.Remove(s.log), os.Remove(s.dir))
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// privateDir makes a state directory beside the usual one: what holds temporary
// files often cannot hold the layers of a sandbox.
func privateDir(usual string) (string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(usual), "drowse-demo-")
	if err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "drowse-demo-")
}

// cleanEnvironment leaves out what would configure the server.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DROWSE_") })
}

// ready waits until the server is ready, or has ended because its host starts no
// sandbox.
func (s *ownServer) ready(ctx context.Context) (*client.Client, error) {
	c, err := client.New(client.Options{URL: s.url, APIKey: s.key})
	if err != nil {
		return nil, err
	}
	return c, until(ctx, "the server is ready", func() (bool, error) {
		select {
		case <-s.ended:
			return false, fmt.Errorf("the server ended at once: %v: %s", s.err, s.lastWords())
		default:
			return s.isReady(ctx), ctx.Err()
		}
	})
}

func (s *ownServer) isReady(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// lastWords returns the end of the log.
func (s *ownServer) lastWords() string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " / ")
}

// stop ends the server and removes its directory. The log stays if something
// failed.
func (s *ownServer) stop(keep, failed bool) error {
	err := s.terminate()
	if keep {
		return err
	}
	if err == nil {
		err = s.remove()
	}
	if err == nil && !failed {
		err = os.Remove(s.log)
	}
	return err
}

func (s *ownServer) terminate() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case <-s.ended:
		return nil
	case <-t.C:
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
	return fmt.Errorf("the demo's server did not end within %s of SIGTERM and was killed; its directory %s is left", stopTimeout, s.dir)
}

func (s *ownServer) remove() error {
	mounts, err := mountsBelow(s.dir)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("the demo's directory %s is left: still mounted is %s", s.dir, strings.Join(mounts, ", "))
	}
	return os.RemoveAll(s.dir)
}
