package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/drowse-dev/drowse/client"
)

// The page that says how proxies are configured, and what it calls things.
const (
	proxyPage   = "../../docs/proxy.md"
	pageDomain  = "sandboxes.example.com"
	pageServer  = "127.0.0.1:3000"
	pageCert    = "/etc/ssl/sandboxes.pem"
	pageKey     = "/etc/ssl/sandboxes.key"
	proxyLimits = 2 * time.Minute
)

// inFront is a proxy as the page configures it.
type inFront struct {
	name   string
	listen func(addr string) (from, to string) // what the page's file says of port 443
	wrap   string                              // what its file is part of, with %s in its place
	start  func(dir, conf string) []string
}

var inFronts = []inFront{
	{
		name:   "nginx",
		listen: func(addr string) (string, string) { return "listen 443 ssl", "listen " + addr + " ssl" },
		wrap: `daemon off; worker_processes 1; pid DIR/nginx.pid; error_log stderr;
events {}
http {
	access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
	%s
}`,
		start: func(dir, conf string) []string { return []string{"nginx", "-p", dir, "-e", "stderr", "-c", conf} },
	},
	{
		name:   "haproxy",
		listen: func(addr string) (string, string) { return "bind :443", "bind " + addr },
		wrap:   "%s",
		start:  func(_, conf string) []string { return []string{"haproxy", "-db", "-f", conf} },
	},
	{
		name: "caddy",
		listen: func(addr string) (string, string) {
			_, port, _ := net.SplitHostPort(addr)
			return domain + ", *." + domain, domain + ":" + port + ", *." + domain + ":" + port
		},
		wrap: "{\n\tadmin off\n\tauto_https disable_redirects\n}\n%s",
		start: func(dir, conf string) []string {
			return []string{"env", "HOME=" + dir, "caddy", "run", "--adapter", "caddyfile", "--config", conf}
		},
	},
}

// TestProxiesInFront runs the configurations of the page on proxies, and sends
// through them what proxies break: answers and bodies in pieces, WebSockets,
// commands, large files, and requests that wake.
func TestProxiesInFront(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*proxyLimits)
	page, err := os.ReadFile(proxyPage)
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "--domain", domain, "--max-client-connections", "0")
	for _, p := range inFronts {
		t.Run(p.name, func(t *testing.T) {
			addr := p.run(ctx, t, string(page), s.addr)
			s.checkBehind(ctx, t, addr)
		})
	}
}

// run starts a proxy with the page's configuration, and returns where it listens.
func (p inFront) run(ctx context.Context, t *testing.T, page, server string) (addr string) {
	t.Helper()
	block := regexp.MustCompile("(?s)```" + p.name + "\n(.*?)```").FindStringSubmatch(page)
	if block == nil {
		t.Fatalf("%s has no configuration of %s", proxyPage, p.name)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // workers of nginx are another user's
		t.Fatal(err)
	}
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "cert.pem.key")
	authority().issue(t, 7, cert, key)
	addr = freeAddress(t)
	conf := block[1]
	replace := func(from, to string) {
		t.Helper()
		if !strings.Contains(conf, from) {
			t.Fatalf("the configuration of %s has no %q:\n%s", p.name, from, conf)
		}
		conf = strings.ReplaceAll(conf, from, to)
	}
	replace(pageServer, server)
	replace(pageCert, cert)
	if p.name != "haproxy" { // which has the key beside the certificate, under its name
		replace(pageKey, key)
	}
	if p.name != "haproxy" {
		replace(pageDomain, domain)
	}
	replace(p.listen(addr))
	text := strings.ReplaceAll(fmt.Sprintf(p.wrap, conf), "DIR", dir)
	path := filepath.Join(dir, "conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := p.start(dir, path)
	var said bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.name, &said)
		}
	})
	eventually(t, time.Minute, p.name+" listens", func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return addr
}

// checkBehind makes a sandbox through a proxy, and uses it.
func (s *server) checkBehind(ctx context.Context, t *testing.T, addr string) {
	// Through the proxy by any name of the domain; a sandbox in the path.
	through := &http.Client{Transport: (&route{addr: addr}).transport(http2)}
	t.Cleanup(through.CloseIdleConnections)
	c, err := client.New(client.Options{URL: "https://api." + domain, APIKey: apiKey, HTTPClient: through})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.Create(ctx, sleeper)
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill(ctx, t, made.ID)
	var lines bytes.Buffer
	exit, err := made.Run(ctx, client.Command{Args: []string{"sh", "-c", "read line; echo got $line; echo and >&2"}, Stdin: strings.NewReader("this\n"), Stdout: &lines, Stderr: &lines})
	if err != nil || exit.Code != 0 || !strings.Contains(lines.String(), "got this\n") {
		t.Errorf("a command: %v, %v, %q", exit, err, &lines)
	}
	const size = 20 << 20
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	if err := made.WriteFile(ctx, "large", bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	file, err := made.ReadFile(ctx, "large")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if n, err := io.Copy(sum, file); err != nil || n != size || [32]byte(sum.Sum(nil)) != sha256.Sum256(content) {
		t.Errorf("%d of %d bytes came back, %v", n, size, err)
	}

	straight, _, err := s.client.Open(ctx, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	g := s.startGuestIn(ctx, straight, "serve")
	for name, protocol := range map[string]func(*http.Protocols){"HTTP1": http1, "HTTP2": http2} {
		r := newRoute(t, g, "https", protocol)
		r.addr = addr
		t.Run(name+" events", func(t *testing.T) { r.checkEvents(ctx, t) })
		t.Run(name+" disconnect", func(t *testing.T) { r.checkDisconnect(ctx, t) })
		t.Run(name+" wake", func(t *testing.T) {
			s.pause(ctx, made.ID)
			r.do(ctx, t, http.MethodGet, "/hits", nil, http.StatusOK)
		})
	}
	ws := newRoute(t, g, "https", http1)
	ws.addr = addr
	conn, _, err := websocket.Dial(ctx, ws.url+"/ws?id=behind", &websocket.DialOptions{HTTPClient: ws.http})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := echo(ctx, conn, websocket.MessageText, []byte("hello")); err != nil {
		t.Error(err)
	}
	// The answer's URLs say https, as clients came.
	preview, err := c.CreatePreview(ctx, made.ID, client.PreviewOptions{Port: guestPort})
	if err != nil || !strings.HasPrefix(preview.URL, "https://") {
		t.Errorf("a preview is %+v, %v", preview, err)
	}
}
