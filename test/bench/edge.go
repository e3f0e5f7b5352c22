package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The edge is measured with the whole supervisor behind it, over a runtime
// whose every user port is one nginx outside (edgeserver), next to other
// proxies in front of the same nginx. Proxies have one core to themselves;
// load and upstream share the other.
const (
	proxyCore  = "0"
	othersCore = "1"
	edgeRoutes = 100_000
	largeBody  = 1 << 30
	heldOnWake = 1000
)

// proxy is one of those that are compared.
type proxy struct {
	name string
	addr string
	host string // to ask for
	cmd  *exec.Cmd
	said *strings.Builder // on standard error

	sleeper string // of the edge: the host of a sandbox that sleeps
}

// edgeTools are the programs that it needs.
var edgeTools = []string{"nginx", "haproxy", "caddy", "wrk", "curl", "taskset"}

// edge measures B11 to B14.
func (b *bench) edge(ctx context.Context) (err error) {
	dir := filepath.Join(b.o.work, "edge")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var proxies []*proxy
	defer func() {
		for _, p := range slices.Backward(proxies) {
			err = errors.Join(err, p.stop())
		}
	}()
	for _, start := range []func(context.Context, *bench, string, string) (*proxy, error){startUpstream, startEdge, startNginx, startHAProxy, startCaddy} {
		upstream := ""
		if len(proxies) > 0 {
			upstream = proxies[0].addr
		}
		p, err := start(ctx, b, dir, upstream)
		if err != nil {
			return err
		}
		proxies = append(proxies, p)
		if err := p.await(ctx); err != nil {
			return err
		}
	}
	for _, connections := range []int{1, 32, 64, 256} {
		if err := b.edgeLoad(ctx, proxies, connections); err != nil {
			return err
		}
	}
	if err := b.edgeLarge(ctx, proxies, dir); err != nil {
		return err
	}
	if err := b.edgeEcho(ctx, proxies); err != nil {
		return err
	}
	return b.edgeHeld(ctx, proxies[1])
}

// load is what one run of wrk shows.
type load struct {
	perSecond float64
	p50       time.Duration
	cpu       time.Duration // of the proxy, per request
}

var (
	wrkRate = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkP50  = regexp.MustCompile(`50%\s+([0-9.]+)(us|ms|s)\n`)
	wrkAll  = regexp.MustCompile(`(\d+) requests in`)
	wrkBad  = regexp.MustCompile(`Non-2xx or 3xx responses|Socket errors`)
)

func (p *proxy) load(ctx context.Context, connections int, d time.Duration) (l load, err error) {
	args := []string{"-c", othersCore, "wrk", "-t1", "-c" + strconv.Itoa(connections), fmt.Sprintf("-d%ds", int(d.Seconds())), "--latency", "-H", "Host: " + p.host}
	before, err := cpuOf([]process{{pid: p.cmd.Process.Pid}})
	if err != nil {
		return l, err
	}
	out, err := exec.CommandContext(ctx, "taskset", append(args, "http://"+p.addr+"/small")...).CombinedOutput()
	if err != nil {
		return l, fmt.Errorf("wrk: %w: %s", err, out)
	}
	after, err := cpuOf([]process{{pid: p.cmd.Process.Pid}})
	if err != nil {
		return l, err
	}
	rate, p50, all := wrkRate.FindSubmatch(out), wrkP50.FindSubmatch(out), wrkAll.FindSubmatch(out)
	if rate == nil || p50 == nil || all == nil || wrkBad.Match(out) {
		return l, fmt.Errorf("%s: wrk reports: %s", p.name, out)
	}
	l.perSecond, _ = strconv.ParseFloat(string(rate[1]), 64)
	l.p50, err = time.ParseDuration(string(p50[1]) + string(p50[2]))
	n, _ := strconv.Atoi(string(all[1]))
	l.cpu = (after - before) / time.Duration(max(n, 1))
	return l, err
}

// edgeLoad measures small requests, the proxies in turn.
func (b *bench) edgeLoad(ctx context.Context, proxies []*proxy, connections int) error {
	rounds, length := 5, 5*time.Second
	if b.o.few {
		rounds, length = 3, 2*time.Second
	}
	loads := map[string][]load{}
	for range rounds {
		for _, p := range proxies {
			l, err := p.load(ctx, connections, length)
			if err != nil {
				return err
			}
			loads[p.name] = append(loads[p.name], l)
		}
	}
	of := func(get func(l, direct load) float64) map[string][]float64 {
		values := map[string][]float64{}
		for name, list := range loads {
			for i, l := range list {
				values[name] = append(values[name], get(l, loads["direct"][i]))
			}
		}
		return values
	}
	what := fmt.Sprintf("small requests on %d connections", connections)
	rate := of(func(l, _ load) float64 { return l.perSecond / 1000 })
	added := of(func(l, direct load) float64 { return float64(l.p50-direct.p50) / float64(time.Microsecond) })
	cpu := of(func(l, _ load) float64 { return float64(l.cpu) / float64(time.Microsecond) })
	b.report.edge("B11", what+": CPU of the proxy per request", "µs", cpu, 2.5, 1.25)
	b.report.edge("B11", what+": added p50", "µs", added, 2, 1.25)
	b.report.edge("B12", what+", 100,000 sandboxes: thousands per second", "", rate, 1/0.5, 1/0.9)
	return nil
}

// edgeLarge measures bodies of 1 GiB.
func (b *bench) edgeLarge(ctx context.Context, proxies []*proxy, dir string) error {
	rounds := 3
	if b.o.few {
		rounds = 1
	}
	body := filepath.Join(dir, "to-upload")
	if err := sparse(body, largeBody); err != nil {
		return err
	}
	for _, d := range []struct {
		what string
		args []string
	}{
		{"download of 1 GiB", []string{"/large"}},
		{"upload of 1 GiB", []string{"/upload", "-X", "POST", "-H", "Expect:", "-T", body}},
	} {
		rate := map[string][]float64{}
		for range rounds {
			for _, p := range proxies {
				args := []string{"-c", othersCore, "curl", "-sS", "-f", "-o", "/dev/null", "-w", "%{time_total}", "-H", "Host: " + p.host, "http://" + p.addr + d.args[0]}
				out, err := exec.CommandContext(ctx, "taskset", append(args, d.args[1:]...)...).Output()
				if err != nil {
					return fmt.Errorf("%s through %s: %w", d.what, p.name, err)
				}
				seconds, err := strconv.ParseFloat(string(out), 64)
				if err != nil {
					return err
				}
				rate[p.name] = append(rate[p.name], 1/seconds)
			}
		}
		b.report.edge("B13", d.what+": GiB per second", "", rate, 0, 1/0.8)
	}
	return nil
}

// edgeEcho measures echoes of 64 bytes over an upgraded connection.
func (b *bench) edgeEcho(ctx context.Context, proxies []*proxy) error {
	n := 5000
	if b.o.few {
		n = 1000
	}
	p99 := map[string][]float64{}
	for range 3 {
		for _, p := range proxies {
			if p.name == "haproxy" || p.name == "caddy" {
				continue // they need configuration of their own for it
			}
			v, err := echoes(p, n)
			if err != nil {
				return fmt.Errorf("echo through %s: %w", p.name, err)
			}
			p99[p.name] = append(p99[p.name], v)
		}
	}
	b.report.edge("B13", "echo of 64 bytes, upgraded: p99", "µs", p99, 0, 0)
	return nil
}

func echoes(p *proxy, n int) (p99 float64, err error) {
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	fmt.Fprintf(conn, "GET /echo HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", p.host)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return 0, fmt.Errorf("no upgrade: %+v, %w", resp, err)
	}
	var took []float64
	buf := make([]byte, 64)
	for range n {
		begin := time.Now()
		if _, err := conn.Write(buf); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(br, buf); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(begin))/float64(time.Microsecond))
	}
	return quantile(took, 0.99), nil
}

// edgeHeld measures requests that wait for one wake.
func (b *bench) edgeHeld(ctx context.Context, p *proxy) error {
	before, err := residentSet(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	failed := make(chan error, heldOnWake)
	begin := time.Now()
	for range heldOnWake {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/small", nil)
			req.Host, req.Close = p.sleeper, true
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("status %d", resp.StatusCode)
				}
			}
			if err != nil {
				failed <- err
			}
		})
	}
	var most int64
	for time.Since(begin) < 900*time.Millisecond { // the wake takes a second
		if now, err := residentSet(p.cmd.Process.Pid); err == nil {
			most = max(most, now)
		}
		time.Sleep(10 * time.Millisecond)
	}
	wg.Wait()
	took := time.Since(begin)
	select {
	case err := <-failed:
		return fmt.Errorf("a request that waited for the wake: %w", err)
	default:
	}
	b.report.plain("B14", fmt.Sprintf("%d requests that wait for one wake: memory of each", heldOnWake), "KiB", []float64{float64(most-before) / heldOnWake / 1024}, 24)
	b.report.plain("B14", "the last of them is answered, after the wake", "ms", []float64{milliseconds(took) - 1000}, 500)
	return nil
}

func startUpstream(_ context.Context, _ *bench, dir, _ string) (*proxy, error) {
	root := filepath.Join(dir, "www")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := sparse(filepath.Join(root, "large"), largeBody); err != nil {
		return nil, err
	}
	back, err := startBack()
	if err != nil {
		return nil, err
	}
	const addr = "127.0.0.1:4000"
	conf := nginxConf(dir, "upstream", fmt.Sprintf(`
	server {
		listen %s; root %s; sendfile on; keepalive_requests 1000000000; client_max_body_size 0;
		location = /small { return 200 "hello from inside\n"; }
		location = /upload { proxy_pass http://%[3]s; proxy_request_buffering off; proxy_http_version 1.1; }
		location = /echo { proxy_pass http://%[3]s; proxy_http_version 1.1; proxy_set_header Connection Upgrade; proxy_set_header Upgrade echo; }
	}`, addr, root, back))
	return launch("direct", addr, "localhost", othersCore, nginxArgs(dir, "upstream", conf))
}

// startBack serves upgraded connections that echo, and uploads.
func startBack() (addr string, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				if req.Header.Get("Upgrade") == "" {
					readUpload(c, req)
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				_, _ = io.Copy(c, br)
			}()
		}
	}()
	return ln.Addr().String(), nil
}

// readUpload answers an upload when it is there whole, and not before: a proxy
// could take an early answer for leave to drop the rest.
func readUpload(c net.Conn, req *http.Request) {
	status := "400 Bad Request"
	if n, err := io.Copy(io.Discard, req.Body); err == nil && n == largeBody {
		status = "200 OK"
	}
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
}

func startEdge(_ context.Context, b *bench, dir, upstream string) (*proxy, error) {
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	program := filepath.Join(filepath.Dir(b.o.guest), "edgeserver")
	const addr = "127.0.0.1:4001"
	cmd := exec.Command("taskset", "-c", proxyCore, program, "-listen", addr, "-upstream", upstream, "-dir", state, "-sandboxes", strconv.Itoa(edgeRoutes))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &proxy{name: "drowse", addr: addr, cmd: cmd, said: &strings.Builder{}}
	var running, sleeper string
	if _, err := fmt.Fscan(out, &running, &sleeper); err != nil {
		return nil, errors.Join(fmt.Errorf("edgeserver: %w", err), p.stop())
	}
	p.host, p.sleeper = "8000-"+running+".sbx.test", "8000-"+sleeper+".sbx.test"
	return p, nil
}

func startNginx(_ context.Context, _ *bench, dir, upstream string) (*proxy, error) {
	const addr = "127.0.0.1:4002"
	routes := filepath.Join(dir, "nginx.routes")
	if err := writeRoutes(routes, func(host string) string { return host + " inside;\n" }); err != nil {
		return nil, err
	}
	conf := nginxConf(dir, "nginx", fmt.Sprintf(`
	map_hash_max_size 1048576; map_hash_bucket_size 128;
	map $host $to { include %s; }
	upstream inside { server %s; keepalive 512; keepalive_requests 1000000000; }
	map $http_upgrade $hop { default ""; echo Upgrade; }
	server {
		listen %s; keepalive_requests 1000000000; client_max_body_size 0;
		location / {
			proxy_pass http://$to; proxy_http_version 1.1; proxy_buffering off; proxy_request_buffering off;
			proxy_set_header Host $host; proxy_set_header Connection $hop; proxy_set_header Upgrade $http_upgrade;
		}
	}`, routes, upstream, addr))
	return launch("nginx", addr, routeHost, proxyCore, nginxArgs(dir, "nginx", conf))
}

// routeHost is the one of the routes that is asked for.
const routeHost = "8000-i00000000000000050000.sbx.test"

func writeRoutes(path string, line func(host string) string) error {
	var text strings.Builder
	for i := range edgeRoutes {
		text.WriteString(line(fmt.Sprintf("8000-i%020d.sbx.test", i)))
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

func nginxConf(dir, name, http string) string {
	return fmt.Sprintf(`daemon off; master_process off; worker_processes 1; pid %[1]s/%[2]s.pid; error_log %[1]s/%[2]s.log;
events { worker_connections 8192; }
http {
	access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;%[3]s
}`, dir, name, http)
}

// nginxArgs writes a configuration and returns the command for it.
func nginxArgs(dir, name, conf string) []string {
	path := filepath.Join(dir, name+".conf")
	_ = os.WriteFile(path, []byte(conf), 0o644) // nginx says so if it is not there
	return []string{"nginx", "-p", dir, "-e", filepath.Join(dir, name+".log"), "-c", path}
}

func startHAProxy(_ context.Context, _ *bench, dir, upstream string) (*proxy, error) {
	const addr = "127.0.0.1:4003"
	routes := filepath.Join(dir, "haproxy.routes")
	if err := writeRoutes(routes, func(host string) string { return host + " inside\n" }); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "haproxy.conf")
	text := fmt.Sprintf(`global
	nbthread 1
	maxconn 4096
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	http-reuse always
frontend f
	bind %s
	use_backend %%[req.hdr(host),map(%s,none)]
backend inside
	server s %s
`, addr, routes, upstream)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return launch("haproxy", addr, routeHost, proxyCore, []string{"haproxy", "-db", "-f", conf})
}

func startCaddy(_ context.Context, _ *bench, dir, upstream string) (*proxy, error) {
	const addr = "127.0.0.1:4004"
	conf := filepath.Join(dir, "Caddyfile")
	text := fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n}\nhttp://%s {\n\treverse_proxy %s {\n\t\tflush_interval -1\n\t}\n}\n", ":4004", upstream)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return launch("caddy", addr, routeHost, proxyCore, []string{"env", "HOME=" + dir, "caddy", "run", "--adapter", "caddyfile", "--config", conf})
}

// launch starts a proxy on a core of its own.
func launch(name, addr, host, core string, args []string) (*proxy, error) {
	cmd := exec.Command("taskset", append([]string{"-c", core}, args...)...)
	said := &strings.Builder{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &proxy{name: name, addr: addr, host: host, cmd: cmd, said: said}, nil
}

// await waits until the proxy answers.
func (p *proxy) await(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/small", nil)
		if err != nil {
			return err
		}
		req.Host = p.host
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		if time.Now().After(end) {
			err = errors.Join(fmt.Errorf("%s does not answer: %w", p.name, err), p.stop())
			return fmt.Errorf("%w: %s", err, p.said)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *proxy) stop() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = p.cmd.Wait() // it was killed
	return nil
}

// sparse makes a file of zeros that takes no space.
func sparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}
