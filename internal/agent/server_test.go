package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

func TestHealthIsOpen(t *testing.T) {
	s := newServer(t)
	token := "tok"
	s.init(agentapi.InitRequest{AccessToken: &token})
	res, body := s.do("GET", "/health", nil, nil)
	if res.StatusCode != http.StatusNoContent || body != "" {
		t.Errorf("got %d %q", res.StatusCode, body)
	}
}

// Every route that is not open by contract asks for the token.
func TestTokenIsRequired(t *testing.T) {
	s := newServer(t)
	token := "tok"
	s.init(agentapi.InitRequest{AccessToken: &token})
	var targets []string
	for route := range s.agent.routes {
		// Holds are for who is inside, without a token.
		if route != "GET /health" && !strings.Contains(route, agentapi.PathHolds) {
			targets = append(targets, route)
		}
	}
	for _, method := range []string{"process.Process/List", "process.Process/Start", "filesystem.Filesystem/Stat"} {
		targets = append(targets, "POST /"+method)
	}
	for _, target := range targets {
		method, path, _ := strings.Cut(target, " ")
		for name, value := range map[string]string{"missing": "", "wrong": "tokk"} {
			t.Run(target+" "+name, func(t *testing.T) {
				headers := map[string]string{"Content-Type": "application/json"}
				if value != "" {
					headers[agentapi.HeaderAccessToken] = value
				}
				res, body := s.do(method, path, strings.NewReader("{}"), headers)
				wantMessage(t, res, body, 401)
			})
		}
	}
	res, body := s.do("POST", "/process.Process/List", strings.NewReader("{}"), map[string]string{"Content-Type": "application/json", agentapi.HeaderAccessToken: token})
	if res.StatusCode != 200 || body != "{}" {
		t.Errorf("with the token: %d %s", res.StatusCode, body)
	}
}

func TestInit(t *testing.T) {
	s := newServer(t)
	if err := os.MkdirAll(s.agent.options.Root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	hosts := writeFile(t, s.agent.options.Root+"/etc/hosts", "127.0.0.1\tlocalhost\n10.1.1.1 of-the-user # kept")
	one, two, none := "one", "two", ""
	envs := func(token string) (int, map[string]string) {
		res, body := s.do("GET", "/envs", nil, map[string]string{agentapi.HeaderAccessToken: token})
		var env map[string]string
		_ = json.Unmarshal([]byte(body), &env)
		return res.StatusCode, env
	}
	s.init(agentapi.InitRequest{EnvVars: map[string]string{"A": "1", "B": "2"}, AccessToken: &one, SandboxID: "sbx", TemplateID: "tpl"})
	if status, env := envs(one); status != 200 || fmt.Sprint(env) != "map[A:1 B:2 E2B_SANDBOX:true E2B_SANDBOX_ID:sbx E2B_TEMPLATE_ID:tpl]" {
		t.Errorf("/envs = %d %v", status, env)
	}
	// The host replaces what it names and leaves what it does not.
	s.init(agentapi.InitRequest{EnvVars: map[string]string{"C": "3"}, SandboxID: "fork"})
	if status, env := envs(one); status != 200 || fmt.Sprint(env) != "map[C:3 E2B_SANDBOX:true E2B_SANDBOX_ID:fork E2B_TEMPLATE_ID:tpl]" {
		t.Errorf("/envs = %d %v", status, env)
	}
	if got := readFile(t, hosts); got != "127.0.0.1\tlocalhost\n10.1.1.1 of-the-user # kept\n127.0.0.1\tfork # this sandbox\n" {
		t.Errorf("/etc/hosts is %q", got)
	}
	s.init(agentapi.InitRequest{AccessToken: &two})
	if status, _ := envs(one); status != 401 {
		t.Errorf("the old token: %d", status)
	}
	if status, env := envs(two); status != 200 || env["C"] != "3" {
		t.Errorf("the new token: %d %v", status, env)
	}
	s.init(agentapi.InitRequest{AccessToken: &none})
	if status, _ := envs(""); status != 200 {
		t.Errorf("no token: %d", status)
	}
}

func TestInitRefused(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		name, secret, body string
		want               int
	}{
		{"no secret", "", "{}", 401},
		{"wrong secret", "x", "{}", 401},
		{"not JSON", testSecret, "{", 400},
		{"bad variable", testSecret, `{"envVars":{"A=B":"x"}}`, 400},
		{"bad timestamp", testSecret, `{"timestamp":"now"}`, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.do("POST", "/init", strings.NewReader(tt.body), map[string]string{agentapi.HeaderInit: tt.secret})
			wantMessage(t, res, body, tt.want)
		})
	}
	for _, body := range []string{"", "{}", `{"hyperloopIP":"1.2.3.4","lifecycleID":"x","caBundle":"","volumeMounts":[]}`} {
		if res, text := s.do("POST", "/init", strings.NewReader(body), map[string]string{agentapi.HeaderInit: testSecret}); res.StatusCode != 204 {
			t.Errorf("%q: %d %s", body, res.StatusCode, text)
		}
	}
}

// Who comes first with a secret is the host, and nobody else.
func TestFirstInit(t *testing.T) {
	s := newServer(t)
	s.agent.host.secret = ""
	var names []string
	s.agent.host.setName = func(name string) error {
		names = append(names, name)
		return nil
	}
	for _, c := range []struct {
		secret string
		want   int
	}{{"", 401}, {"first", 204}, {"", 401}, {"second", 401}, {"first", 204}} {
		res, _ := s.do("POST", "/init", strings.NewReader(`{"sandboxID":"by `+c.secret+`"}`), map[string]string{agentapi.HeaderInit: c.secret})
		if res.StatusCode != c.want {
			t.Errorf("secret %q: %d, want %d", c.secret, res.StatusCode, c.want)
		}
	}
	if want := []string{"by first"}; !slices.Equal(names, want) {
		t.Errorf("host named %q, want %q", names, want)
	}
}

// The host names its successor, and is none from then on.
func TestSuccessorOfTheHost(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct {
		secret, successor string
		want              int
	}{{"second", "second", 401}, {testSecret, "second", 204}, {testSecret, "", 401}, {"second", "", 204}, {"second", "", 204}} {
		res, _ := s.do("POST", "/init", strings.NewReader(`{"hostSecret":"`+c.successor+`"}`), map[string]string{agentapi.HeaderInit: c.secret})
		if res.StatusCode != c.want {
			t.Errorf("secret %q: %d, want %d", c.secret, res.StatusCode, c.want)
		}
	}
}

func TestGeneration(t *testing.T) {
	s := newServer(t)
	for _, n := range []int64{0, 1, 12} {
		s.init(agentapi.InitRequest{Generation: &n})
		if got := readFile(t, s.generated); got != fmt.Sprintln(n) {
			t.Errorf("generation %q, want %d", got, n)
		}
	}
	s.init(agentapi.InitRequest{})
	if got := readFile(t, s.generated); got != "12\n" {
		t.Errorf("generation %q after an /init without", got)
	}
	if info, err := os.Stat(s.generated); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// A file with the sandbox's name is written again only where it is not as it was left.
func TestNames(t *testing.T) {
	s := newServer(t)
	if err := os.MkdirAll(s.agent.options.Root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	beside := func(name string) string { return filepath.Join(filepath.Dir(s.generated), filepath.Base(name)) }
	hosts := writeFile(t, s.agent.options.Root+"/etc/hosts", "127.0.0.1\tlocalhost\n")
	of := func(id string) map[string]string {
		return map[string]string{
			beside(agentapi.HostnameFile): id + "\n", beside(agentapi.MachineIDFile): machineID(id) + "\n",
			hosts: "127.0.0.1\tlocalhost\n127.0.0.1\t" + id + " # this sandbox\n",
		}
	}
	infos := func() map[string]os.FileInfo {
		all := map[string]os.FileInfo{}
		for file := range of("") {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			all[file] = info
		}
		return all
	}
	check := func(id string) {
		t.Helper()
		body := strings.NewReader(`{"sandboxID":"` + id + `"}`)
		r := httptest.NewRequest("POST", "/init", body) // not by a connection, where the answer may come before the files
		r.Header.Set(agentapi.HeaderInit, testSecret)
		w := httptest.NewRecorder()
		s.agent.ServeHTTP(w, r)
		if w.Code != http.StatusNoContent {
			t.Fatalf("/init = %d %s", w.Code, w.Body)
		}
		for file, want := range of(id) {
			if got := readFile(t, file); got != want {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
	}
	check("one")
	before := infos()
	check("one")
	for file, now := range infos() {
		if !os.SameFile(before[file], now) {
			t.Errorf("%s was written again", file)
		}
	}
	for file, text := range of("two") { // of the same size
		writeFile(t, file, text)
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(time.Second)); err != nil { // the clock of files is coarse
			t.Fatal(err)
		}
	}
	check("one")
	for file := range of("") {
		if file == hosts {
			continue // without it a sandbox has no names
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	check("one")
	check("fork")
}

func TestInstance(t *testing.T) {
	s := newServer(t)
	file := filepath.Join(filepath.Dir(s.generated), filepath.Base(agentapi.InstanceFile))
	for _, c := range []struct{ sent, want string }{{"first", "first\n"}, {"second", "second\n"}, {"", "second\n"}} {
		s.init(agentapi.InitRequest{Instance: c.sent})
		if got := readFile(t, file); got != c.want {
			t.Errorf("after %q the instance is %q", c.sent, got)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// A timestamp near ours leaves the clock alone; this test could not tell
// otherwise without moving the machine's clock.
func TestTimestamp(t *testing.T) {
	s := newServer(t)
	before := time.Now()
	s.init(agentapi.InitRequest{Timestamp: before.Add(100 * time.Millisecond)})
	if wall := time.Now().Round(0).Sub(before.Round(0)) - time.Since(before); wall.Abs() > 50*time.Millisecond {
		t.Errorf("the clock moved by %v", wall)
	}
}

func TestRouting(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 404},
		{"GET", "/none", 404},
		{"GET", "/health/", 404},
		{"GET", "//health", 404},
		{"GET", "/process.Process", 404},
		{"POST", "/freeze", 404},
		{"POST", "/health", 405},
		{"DELETE", "/files", 405},
		{"GET", "/init", 405},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			res, body := s.do(tt.method, tt.path, nil, nil)
			wantMessage(t, res, body, tt.want)
		})
	}
	if res, _ := s.do("POST", "/process.Process/None", strings.NewReader("{}"), nil); res.StatusCode != 404 {
		t.Errorf("unknown method: %d", res.StatusCode)
	}
}

func TestCORS(t *testing.T) {
	s := newServer(t)
	token := "tok"
	s.init(agentapi.InitRequest{AccessToken: &token})
	for _, path := range []string{"/files?path=x", "/process.Process/Start", "/none"} {
		res, body := s.do("OPTIONS", path, nil, map[string]string{
			"Origin": "https://example.com", "Access-Control-Request-Method": "POST",
			"Access-Control-Request-Headers": "authorization,x-access-token",
		})
		h := res.Header
		if res.StatusCode != 204 || body != "" || h.Get("Access-Control-Allow-Origin") != "*" ||
			h.Get("Access-Control-Allow-Headers") != "authorization,x-access-token" || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") {
			t.Errorf("%s: %d %v", path, res.StatusCode, h)
		}
	}
	for _, path := range []string{"/health", "/files?path=x", "/none"} {
		if res, _ := s.do("GET", path, nil, nil); res.Header.Get("Access-Control-Allow-Origin") != "*" || res.Header.Get("Access-Control-Expose-Headers") == "" {
			t.Errorf("%s: %v", path, res.Header)
		}
	}
}

func TestMetrics(t *testing.T) {
	s := newServer(t)
	res, body := s.do("GET", "/metrics", nil, nil)
	var m map[string]float64
	if err := json.Unmarshal([]byte(body), &m); err != nil || res.StatusCode != 200 {
		t.Fatalf("got %d %s", res.StatusCode, body)
	}
	for _, key := range []string{"ts", "cpu_count", "mem_total", "mem_used", "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"} {
		if m[key] <= 0 {
			t.Errorf("%s = %v", key, m[key])
		}
	}
	if _, ok := m["mem_cache"]; !ok || len(m) != 10 {
		t.Errorf("keys: %v", m)
	}
	if pct := m["cpu_used_pct"]; pct < 0 || pct > 100 || m["mem_used"] > m["mem_total"] || m["disk_used"] > m["disk_total"] {
		t.Errorf("metrics: %v", m)
	}
}

func TestParseCPU(t *testing.T) {
	got := parseCPU("cpu  10 1 5 100 4 1 2 1 7 0\ncpu0 1 2 3\n")
	if want := (cpuTime{busy: 20, total: 124}); got != want {
		t.Errorf("parseCPU = %+v, want %+v", got, want)
	}
	for _, text := range []string{"", "cpu", "cpu x y z"} {
		if got := parseCPU(text); got != (cpuTime{}) {
			t.Errorf("parseCPU(%q) = %+v", text, got)
		}
	}
}

func TestCPUUsage(t *testing.T) {
	var u cpuUsage
	for _, step := range []struct {
		now  cpuTime
		want float64
	}{
		{cpuTime{}, 0},
		{cpuTime{busy: 50, total: 200}, 25},
		{cpuTime{busy: 51, total: 201}, 25}, // too little to tell
		{cpuTime{busy: 150, total: 300}, 100},
		{cpuTime{busy: 150, total: 400}, 0},
		{cpuTime{busy: 10, total: 10}, 0}, // counters that went back
	} {
		if got := u.since(step.now); got != step.want {
			t.Errorf("since(%+v) = %v, want %v", step.now, got, step.want)
		}
	}
}

func TestAccounts(t *testing.T) {
	dir := t.TempDir()
	passwd := writeFile(t, dir+"/passwd", "# comment\nroot:x:0:0:root:/root:/bin/bash\nbad line\nx:x:NaN:1:::\nuser:x:1000:1000::/home/user:/bin/zsh\nuser:x:7:7::/other:\nalias:x:1000:5:::\n")
	group := writeFile(t, dir+"/group", "root:x:0:\nsudo:x:27:user,root\ndocker:x:999: user\nself:x:1000:user\n")
	as := readAccounts(passwd, group)
	if got := fmt.Sprintf("%+v", *as.byName["user"]); got != "{name:user uid:1000 gid:1000 home:/home/user shell:/bin/zsh groups:[1000 27 999]}" {
		t.Errorf("user = %s", got)
	}
	if a := as.byName["alias"]; a.home != "/" || a.shell != "/bin/sh" {
		t.Errorf("alias = %+v", a)
	}
	if as.owner(1000) != "user" || as.owner(42) != "42" || as.group(27) != "sudo" || as.group(43) != "43" {
		t.Errorf("names: %s %s %s %s", as.owner(1000), as.owner(42), as.group(27), as.group(43))
	}
	if root := readAccounts(dir+"/none", dir+"/none").byName["root"]; root == nil || root.uid != 0 || root.home != "/root" {
		t.Errorf("root without a passwd file: %+v", root)
	}
}

func TestReadSmall(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		want string
		err  error
	}{
		{writeFile(t, dir+"/empty", ""), "", nil},
		{writeFile(t, dir+"/text", "four"), "four", nil},
		{writeFile(t, dir+"/most", strings.Repeat("x", 64)), strings.Repeat("x", 64), nil},
		{writeFile(t, dir+"/more", strings.Repeat("x", 65)), "", syscall.EFBIG},
		{"/proc/self/comm", "", nil}, // which says that it has no bytes
		{"/proc/self/status", "", syscall.EFBIG},
		{dir, "", syscall.EINVAL},
		{dir + "/fifo", "", syscall.EINVAL},
		{dir + "/none", "", syscall.ENOENT},
	} {
		if strings.HasSuffix(c.path, "/comm") {
			comm, err := os.ReadFile(c.path)
			if err != nil {
				t.Fatal(err)
			}
			c.want = string(comm)
		}
		got, err := readSmall(c.path, 64)
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", c.path, got, err, c.want, c.err)
		}
	}
}

func TestDefaultUser(t *testing.T) {
	s := newServer(t)
	writeFile(t, s.agent.options.PasswdFile, "root:x:0:0::"+s.rootHome+":/bin/sh\n")
	if r := s.run("", shell("id -u")); r.stdout != "0\n" {
		t.Errorf("without a user named user: uid %q, %v", r.stdout, r.err)
	}
	s.init(agentapi.InitRequest{DefaultUser: "gone"})
	wantCode(t, s.run("", shell("true")).err, connect.CodeUnauthenticated)
	_, err := s.process.List(testContext(t), basic("gone", &processpb.ListRequest{}))
	wantCode(t, err, connect.CodeUnauthenticated)
}

// A panic in a handler costs its connection, not the agent.
func TestPanic(t *testing.T) {
	s := newServer(t)
	stderr := os.Stderr
	t.Cleanup(func() { os.Stderr = stderr })
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	os.Stderr = null
	s.agent.routes["GET /panic"] = route{handler: func(http.ResponseWriter, *http.Request) { panic("on purpose") }}
	if _, err := http.Get(s.url + "/panic"); err == nil {
		t.Error("an answer")
	}
	if res, _ := s.do("GET", "/health", nil, nil); res.StatusCode != 204 {
		t.Errorf("afterwards: %d", res.StatusCode)
	}
}

// TestUnprobed: a wake waits for each system call with which a connection is set up.
func TestUnprobed(t *testing.T) {
	l, err := listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	probed := -1
	cerr := raw.Control(func(fd uintptr) { probed, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE) })
	if err := errors.Join(cerr, err); err != nil || probed != 0 {
		t.Errorf("SO_KEEPALIVE is %d (%v), want 0", probed, err)
	}
}
