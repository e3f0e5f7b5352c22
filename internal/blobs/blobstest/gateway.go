package blobstest

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/ownthread"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// GatewayVersion is that of github.com/versity/versitygw which script/test installs.
const GatewayVersion = "v1.8.0"

// What opens a gateway, and the bucket that it has.
const (
	AccessKey = "drowse-test"
	SecretKey = "this-is-the-secret-of-the-test"
	Bucket    = "blobs"
)

// Server is a gateway: a program that speaks the API of S3, and has its objects in a
// directory of its own.
type Server struct {
	// Addr is its address on the loopback.
	Addr string

	program string
	dir     string
	ended   chan struct{} // of the process
	said    *testmode.Output
	process *os.Process // nil while it is down
}

// Gateway starts a gateway that ends with the test, and returns the URL of its bucket.
// The environment has its credentials until then.
func Gateway(t testing.TB) string {
	t.Helper()
	g := NewGateway(t)
	for _, e := range g.Env() {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	return g.URL()
}

// NewGateway starts a gateway that ends with the test. What uses it needs Env.
func NewGateway(t testing.TB) *Server {
	t.Helper()
	g := &Server{program: program(t), dir: t.TempDir()}
	for _, name := range []string{filepath.Join("root", Bucket), "meta"} {
		if err := os.MkdirAll(filepath.Join(g.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() && g.said != nil {
			t.Logf("the gateway said:\n%s", g.said)
		}
		g.Kill()
	})
	g.Start(t)
	return g
}

// program returns the path of the gateway's program.
func program(t testing.TB) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	var top string
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			top = dir
			break
		}
		if dir == filepath.Dir(dir) {
			// The paths in a program that was built with -trimpath are none: its tests
			// run in their package's directory.
			if file == "" {
				t.Fatal("the repository is not found above the working directory")
			}
			wd, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			file, dir = "", filepath.Join(wd, "x")
		}
	}
	below := filepath.Join("bin", "tools", "versitygw-"+GatewayVersion)
	path := filepath.Join(top, below, "versitygw")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the gateway for object storage is missing. Install it: GOBIN=$PWD/%s go install github.com/versity/versitygw/cmd/versitygw@%s\n(in the repository, as script/test does: %v)", below, GatewayVersion, err)
	}
	return path
}

// URL is that of the bucket.
func (g *Server) URL() string { return "s3://" + Bucket + "?endpoint=http://" + g.Addr }

// Env is what the environment of a program has that may use the gateway.
func (g *Server) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey, "AWS_SESSION_TOKEN="}
}

// Dir is the directory of the bucket: the objects are the files below it.
func (g *Server) Dir() string { return filepath.Join(g.dir, "root", Bucket) }

// Start starts the gateway again, at the same address if it had one.
func (g *Server) Start(t testing.TB) {
	t.Helper()
	if g.process != nil {
		t.Fatal("the gateway runs already")
	}
	// Another program may get a port between when it is chosen and when it is used.
	for attempt := 1; ; attempt++ {
		err := g.start()
		if err == nil {
			return
		}
		if attempt == 5 {
			t.Fatalf("start the gateway: %v\n%s", err, g.said)
		}
	}
}

func (g *Server) start() error {
	addr := g.Addr
	if addr == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addr = l.Addr().String()
		if err := l.Close(); err != nil {
			return err
		}
	}
	g.said = &testmode.Output{}
	cmd := exec.Command(g.program, "--port", addr, "--quiet", "--keep-alive", "posix", "--sidecar", filepath.Join(g.dir, "meta"), filepath.Join(g.dir, "root"))
	cmd.Env = []string{"ROOT_ACCESS_KEY=" + AccessKey, "ROOT_SECRET_KEY=" + SecretKey, "HOME=" + g.dir, "TMPDIR=" + g.dir, "GOGC=50"}
	cmd.Dir = g.dir
	cmd.Stdout, cmd.Stderr = g.said, g.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // however the test's program ends
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = ownthread.Run(func() error { // it dies with the thread that has started it
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait() // it is killed
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		return err
	}
	g.process, g.ended = cmd.Process, ended
	if err := g.answers(addr); err != nil {
		g.Kill()
		return err
	}
	g.Addr = addr
	return nil
}

// answers waits until the gateway answers.
func (g *Server) answers(addr string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(testmode.Patience()); ; {
		resp, err := client.Get("http://" + addr + "/")
		if err == nil {
			return resp.Body.Close()
		}
		select {
		case <-g.ended:
			return errors.New("it has ended")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it does not answer: %w", err)
		}
	}
}

// Kill ends the gateway at once, as a machine does that loses its power. Its objects
// stay until the test's end.
func (g *Server) Kill() {
	if g.process == nil {
		return
	}
	_ = g.process.Kill() // it may have ended
	<-g.ended
	g.process = nil
}

// Hang stops the gateway's process: it still accepts connections, and answers nothing.
// Continue undoes it.
func (g *Server) Hang(t testing.TB) { g.tell(t, syscall.SIGSTOP) }

// Continue lets a gateway go on after Hang.
func (g *Server) Continue(t testing.TB) { g.tell(t, syscall.SIGCONT) }

func (g *Server) tell(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := g.process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
