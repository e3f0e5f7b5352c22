package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/client/agentpb/process/processconnect"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// sandbox is the agent as PID 1 of namespaces of its own, on its real port.
type sandbox struct {
	pid    int // as seen from outside
	client *http.Client
	api    processconnect.ProcessClient
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	out, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"pid1"}, &syscall.ProcAttr{
		Env:   []string{"PATH=" + os.Getenv("PATH"), "OF_THE_AGENT=x"},
		Files: []uintptr{out.Fd(), out.Fd(), 2},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(pid, &status, 0, nil)
	})
	s := &sandbox{pid: pid}
	s.client = &http.Client{Transport: &http.Transport{DialContext: s.dial}}
	s.api = processconnect.NewProcessClient(s.client, "http://sandbox")
	if got := s.init(t, testSecret); got != http.StatusNoContent {
		t.Fatalf("the first /init = %d", got)
	}
	return s
}

// init calls /init as a host that knows secret.
func (s *sandbox) init(t *testing.T, secret string) (status int) {
	t.Helper()
	body := strings.NewReader(`{"sandboxID":"named"}`)
	req, err := http.NewRequestWithContext(testContext(t), "POST", "http://sandbox/init", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(agentapi.HeaderInit, secret)
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return res.StatusCode
}

// mountOwn gives PID 1 the view of its own namespace, and a /run and an /etc to
// write to.
func mountOwn() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return errors.Join(
		unix.Mount("proc", "/proc", "proc", 0, ""), unix.Mount("run", "/run", "tmpfs", 0, ""),
		os.Mkdir("/run/upper", 0o755), os.Mkdir("/run/work", 0o755),
		unix.Mount("etc", "/etc", "overlay", 0, "lowerdir=/etc,upperdir=/run/upper,workdir=/run/work"),
	)
}

// dial connects from inside the network namespace, where loopback is brought
// up first, and again until the agent listens.
func (s *sandbox) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	type dialed struct {
		conn net.Conn
		err  error
	}
	result := make(chan dialed)
	go func() {
		// Not unlocked: the thread dies with its goroutine rather than
		// returning to the pool in the wrong namespace.
		runtime.LockOSThread()
		conn, err := dialInside(ctx, s.pid)
		result <- dialed{conn, err}
	}()
	d := <-result
	return d.conn, d.err
}

func dialInside(ctx context.Context, pid int) (net.Conn, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	if err := loopbackUp(); err != nil {
		return nil, err
	}
	address := &unix.SockaddrInet4{Port: agentapi.Port, Addr: [4]byte{127, 0, 0, 1}}
	for retry := time.NewTicker(5 * time.Millisecond); ; {
		// By hand, since the resolver and dialer of package net may do their
		// work on another thread.
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		if err = unix.Connect(fd, address); err == nil {
			f := os.NewFile(uintptr(fd), "socket")
			defer f.Close()
			return net.FileConn(f)
		}
		unix.Close(fd)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

func (s *sandbox) run(t *testing.T, command string) result {
	t.Helper()
	stream, err := s.api.Start(testContext(t), basic("root", shell(command)))
	if err != nil {
		t.Fatal(err)
	}
	return collect(t, stream, startedEvent(stream))
}

// children of PID 1, as seen from outside: zombies are among them.
func (s *sandbox) children(t *testing.T) []string {
	t.Helper()
	var all []string
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", s.pid, task.Name()))
		all = append(all, strings.Fields(string(list))...)
	}
	return all
}

func TestPID1(t *testing.T) {
	s := newSandbox(t)
	if r := s.run(t, "echo $PPID; env"); !strings.HasPrefix(r.stdout, "1\n") || strings.Contains(r.stdout, "OF_THE_AGENT") || strings.Contains(r.stdout, testSecret) {
		t.Fatalf("stdout %q, %v", r.stdout, r.err)
	}
	// Orphans: their parent is gone when they end.
	for range 5 {
		s.run(t, "for i in 1 2 3 4; do (true &) ; (sleep 0.05 >/dev/null 2>&1 &); done")
	}
	deadline := time.After(testmode.Patience())
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for left := s.children(t); len(left) > 0; left = s.children(t) {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatalf("unreaped: %v", left)
		}
	}
	list, err := s.api.List(testContext(t), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
	for secret, want := range map[string]int{testSecret: 204, "x": 401} {
		if got := s.init(t, secret); got != want {
			t.Errorf("/init with %q = %d, want %d", secret, got, want)
		}
	}
	if got, want := s.run(t, "hostname").stdout, "named\n"; got != want {
		t.Errorf("host name %q, want %q", got, want)
	}
}

// Many short processes and orphans at once: no exit is missed or mixed up.
func TestPID1UnderLoad(t *testing.T) {
	s := newSandbox(t)
	results := make(chan string)
	const workers, rounds = 8, 15
	for w := range workers {
		go func() {
			for i := range rounds {
				code := (w*rounds + i) % 200
				stream, err := s.api.Start(testContext(t), basic("root", shell(fmt.Sprintf("(true &); exit %d", code))))
				if err != nil {
					results <- err.Error()
					return
				}
				for stream.Receive() {
					if end := stream.Msg().GetEvent().GetEnd(); end != nil && int(end.ExitCode) != code {
						results <- fmt.Sprintf("exit code %d, want %d", end.ExitCode, code)
					}
				}
				if stream.Err() != nil {
					results <- stream.Err().Error()
				}
				stream.Close()
			}
			results <- ""
		}()
	}
	for done := 0; done < workers; {
		if r := <-results; r == "" {
			done++
		} else {
			t.Fatal(r)
		}
	}
}
