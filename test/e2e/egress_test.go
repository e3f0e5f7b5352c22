package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// world is a server whose sandboxes have an internet.
type world struct {
	*server
	*internet
	ctx context.Context
}

func newWorld(t *testing.T, args ...string) world {
	t.Helper()
	ctx := deadline(t, 3*time.Minute)
	in := newInternet(t)
	in.name("good.test.", goodAddr)
	in.name("www.good.test.", goodAddr)
	in.name("evil.test.", evilAddr)
	return world{startServer(t, append(args, "--dns", dnsAddr+":53")...), in, ctx}
}

// hang is how long curl waits. What is refused is refused long before.
const hang = "20"

// curl asks inside for a URL and returns what came, or that it was refused.
func (w world) curl(sb *client.Sandbox, args ...string) string {
	w.server.t.Helper()
	exit, out := run(w.ctx, w.server.t, sb, append([]string{"curl", "--silent", "--insecure", "--noproxy", "*", "--max-time", hang}, args...)...)
	const timedOut = 28
	switch exit.Code {
	case 0:
		return out
	case timedOut:
		return "hangs"
	default:
		return "refused"
	}
}

// refusals returns what a sandbox was refused.
func (w world) refusals(sb *client.Sandbox) []client.Refusal {
	w.server.t.Helper()
	x, err := w.server.client.Explain(w.ctx, sb.ID)
	if err != nil {
		w.server.t.Fatal(err)
	}
	return x.Refusals
}

// expect asks for URLs inside, and compares what comes.
func (w world) expect(sb *client.Sandbox, want map[string]string) {
	w.server.t.Helper()
	for args, answer := range want {
		if got := w.curl(sb, strings.Fields(args)...); got != answer {
			w.server.t.Errorf("curl %s: got %q, want %q; refusals: %+v", args, got, answer, w.refusals(sb))
		}
	}
}

func from(addr, host string) string { return "this is " + addr + " for " + host }

// TestInternet reaches what is open to every sandbox, and nothing that is not,
// however it is written.
func TestInternet(t *testing.T) {
	w := newWorld(t)
	everywhere, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	_, open, _ := net.SplitHostPort(everywhere.Addr().String())
	_, own, _ := net.SplitHostPort(w.addr)
	w.name("metadata.test.", "169.254.169.254")
	w.name("private.test.", "10.0.0.1", "192.168.0.1")
	w.name("host.test.", w.host)
	w.name("mixed.test.", "10.0.0.1", goodAddr)
	neighbour := w.startGuest(w.ctx, client.CreateOptions{})
	sb := w.create(w.ctx, client.CreateOptions{})

	w.expect(sb, map[string]string{
		"http://good.test/":                from(goodAddr, "good.test"),
		"https://good.test/":               from(goodAddr, "good.test"),
		"http://" + goodAddr:               from(goodAddr, goodAddr),
		"https://" + evilAddr:              from(evilAddr, evilAddr),
		"http://[::ffff:" + goodAddr + "]": from(goodAddr, "[::ffff:"+goodAddr+"]"),
		"http://mixed.test/":               from(goodAddr, "mixed.test"),
	})

	var urls []string
	for _, addr := range forbidden {
		urls = append(urls, "http://"+addr+"/", "https://"+addr+"/", "http://[::ffff:"+addr+"]/")
	}
	urls = append(urls,
		"http://2852039166/", "http://0xa9fea9fe/", "http://0xa9.0xfe.0xa9.0xfe/", "http://0251.0376.0251.0376/", "http://169.254.43518/", "http://169.16689662/",
		"http://[fd00:ec2::254]/", "http://[fe80::1]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::1]/", "http://[2001:db8::1]/",
		"http://metadata.test/", "http://private.test/", "http://host.test:"+own+"/", "http://nowhere.test/",
		"http://169.254.77.1:"+own+"/", "http://169.254.77.1:8000/", "http://127.0.0.1:"+own+"/", "http://0.0.0.0:"+own+"/",
		"http://"+w.host+":"+own+"/", "http://"+w.host+":"+open+"/", "http://localhost:"+own+"/", "http://240.0.0.1/",
	)
	for _, u := range urls {
		if got := w.curl(sb, u); got != "refused" {
			t.Errorf("%s: %s", u, got)
		}
	}
	for _, addr := range forbidden {
		if n := w.requests(addr); n > 0 {
			t.Errorf("%s was reached %d times", addr, n)
		}
	}
	// UDP meets nobody, whatever the address, and is told so.
	upload(w.ctx, t, sb)
	for _, to := range []string{goodAddr + ":53", goodAddr + ":443", goodAddr + ":123", dnsAddr + ":53", "10.0.0.1:53", "169.254.77.1:9"} {
		if _, out := run(w.ctx, t, sb, "./guest", "udp", to); out != "refused\n" {
			t.Errorf("a datagram to %s: %s", to, out)
		}
	}
	// What connect itself returns is what became of the connection outside.
	w.noRoute(deadAddr)
	for to, want := range map[string]string{
		goodAddr + " 80":             "connected",
		goodAddr + " 81":             "ECONNREFUSED", // a closed port
		deadAddr + " 80":             "EHOSTUNREACH",
		"10.0.0.1 80":                "ECONNREFUSED",
		w.host + " " + own:           "ECONNREFUSED",
		runtime.Resolver + " " + own: "ECONNREFUSED",
	} {
		if _, got := run(w.ctx, t, sb, append([]string{"python3", "-c", connects, "once"}, strings.Fields(to)...)...); got != want+"\n" {
			t.Errorf("connect to %s: %s", to, got)
		}
	}
	neighbour.ask(w.ctx)
}

// connects connects once and prints what connect returned, or again and again
// and adds each to a file.
const connects = `
import errno, socket, sys, time
how, addr, port = sys.argv[1:]
while True:
    s = socket.socket()
    try:
        s.connect((addr, int(port)))
        got = "connected"
    except OSError as e:
        got = errno.errorcode.get(e.errno, str(e))
    s.close()
    if how == "once":
        print(got)
        break
    open("connects", "a").write(got + "\n")
    time.sleep(0.01)
`

// TestNoInternet finds no one to talk to inside, and no resolver.
func TestNoInternet(t *testing.T) {
	w := newWorld(t)
	for name, o := range map[string]client.CreateOptions{
		"no internet": {NoInternet: true},
		"all denied":  {DenyOut: []string{"0.0.0.0/0"}},
	} {
		sb := w.create(w.ctx, o)
		upload(w.ctx, t, sb)
		w.expect(sb, map[string]string{
			"http://good.test/": "refused", "http://random-7f3a.good.test/": "refused", "https://" + goodAddr: "refused", "http://[::ffff:" + goodAddr + "]": "refused",
		})
		for _, to := range []string{"169.254.77.1:53", dnsAddr + ":53", "8.8.8.8:53"} {
			if _, out := run(w.ctx, t, sb, "./guest", "udp", to); out != "refused\n" {
				t.Errorf("%s: a question to %s: %s", name, to, out)
			}
		}
		for _, to := range []string{"169.254.77.1:53", dnsAddr + ":53"} {
			if got := w.curl(sb, "telnet://"+to); got != "refused" {
				t.Errorf("%s: %s by TCP: %s", name, to, got)
			}
		}
	}
	if n := w.questions(); n > 0 {
		t.Errorf("%d questions for names left a sandbox without internet", n)
	}
	if n := w.requests(goodAddr); n > 0 {
		t.Errorf("%d requests left a sandbox without internet", n)
	}
}

// TestAllowedNames lets a sandbox reach one name and nothing else.
func TestAllowedNames(t *testing.T) {
	w := newWorld(t)
	w.name("rebind.test.", goodAddr)
	sb := w.create(w.ctx, client.CreateOptions{
		AllowOut: []string{"good.test", "*.good.test", "rebind.test"}, DenyOut: []string{"0.0.0.0/0"},
	})
	w.expect(sb, map[string]string{
		"http://good.test/":      from(goodAddr, "good.test"),
		"https://good.test/":     from(goodAddr, "good.test"),
		"https://www.good.test/": from(goodAddr, "www.good.test"),
		"http://rebind.test/":    from(goodAddr, "rebind.test"),

		"http://evil.test/":           "refused",
		"https://" + evilAddr:         "refused", // no name
		"http://" + evilAddr:          "refused",
		"https://" + goodAddr:         "refused",
		"http://secret.evil.test/":    "refused",
		"http://metadata.evil.test./": "refused",
		// A name that is not allowed, at an address of one that is.
		"--resolve evil.test:443:" + goodAddr + " https://evil.test/": "refused",
		"--resolve evil.test:80:" + goodAddr + " http://evil.test/":   "refused",
		// A name that is allowed, at an address that is another's: the name decides.
		"--resolve good.test:443:" + evilAddr + " https://good.test/": from(goodAddr, "good.test"),
		"--header Host:good.test http://" + evilAddr:                  from(goodAddr, "good.test"),
	})
	if n := w.requests(evilAddr); n > 0 {
		t.Errorf("%s was reached %d times", evilAddr, n)
	}
	for _, name := range []string{"evil.test.", "secret.evil.test.", "metadata.evil.test."} {
		if w.asked[name] > 0 {
			t.Errorf("%s was asked for outside", name)
		}
	}
	for _, addr := range []string{"10.0.0.1", "169.254.169.254", w.host} {
		w.name("rebind.test.", addr)
		w.expect(sb, map[string]string{
			"http://rebind.test/": "refused",
			"--resolve rebind.test:80:" + goodAddr + " http://rebind.test/": "refused",
		})
	}
	if n := w.requests("10.0.0.1") + w.requests("169.254.169.254"); n > 0 {
		t.Errorf("forbidden addresses were reached %d times", n)
	}
	x, err := w.server.client.Explain(w.ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Refusals) == 0 || !strings.Contains(x.Refusals[0].Target, "rebind.test") || x.Refusals[0].Reason != "closed" {
		t.Errorf("the explanation has the refusals %+v", x.Refusals)
	}
}

// TestRulesChange changes the rules of a sandbox that has a connection open, and
// takes it through a pause and the server through a crash.
func TestRulesChange(t *testing.T) {
	t.Run("deep sleep", func(t *testing.T) { changeRules(t, newWorld(t)) })
	t.Run("light sleep", func(t *testing.T) { changeRules(t, newWorld(t, "--light-sleep", "1h")) })
}

func changeRules(t *testing.T, w world) {
	sb := w.create(w.ctx, client.CreateOptions{DenyOut: []string{evilAddr}})
	open := map[string]string{"http://good.test/": from(goodAddr, "good.test"), "http://evil.test/": "refused"}
	shut := map[string]string{"http://good.test/": "refused", "http://" + evilAddr: "refused"}
	w.expect(sb, open)

	stream := make(chan string, 1)
	begun := w.requests(goodAddr)
	go func() { stream <- w.streamed(sb) }()
	eventually(t, 30*time.Second, "a stream is open", func() error {
		if w.requests(goodAddr) == begun {
			return errors.New("not yet")
		}
		return nil
	})
	w.patch(sb, client.PatchOptions{AllowInternet: new(false)})
	select {
	case got := <-stream:
		if got != "broken" {
			t.Errorf("the stream ended with %q", got)
		}
	case <-w.ctx.Done():
		t.Fatal("a stream goes on that is no longer allowed")
	}
	w.expect(sb, shut)
	w.pause(w.ctx, sb.ID)
	w.connect(w.ctx, sb.ID)
	w.expect(sb, shut)

	w.pause(w.ctx, sb.ID)
	w.patch(sb, client.PatchOptions{AllowInternet: new(true)})
	w.connect(w.ctx, sb.ID)
	w.expect(sb, open)
	w.pause(w.ctx, sb.ID)
	w.connect(w.ctx, sb.ID)
	w.expect(sb, open)

	// A connection that is begun while there is no server succeeds later.
	p, err := sb.Start(w.ctx, client.Command{Args: []string{"python3", "-c", connects, "on", goodAddr, "80"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	connected := func() int {
		_, out := run(w.ctx, t, sb, "sh", "-c", "touch connects; sort connects | uniq -c")
		var n int
		var what string
		if _, err := fmt.Sscan(out, &n, &what); out != "" && (err != nil || what != "connected" || strings.Count(out, "\n") > 1) {
			t.Errorf("connections begun before, while and after the server is down: %s", out)
		}
		return n
	}
	more := func(than int) {
		t.Helper()
		eventually(t, 30*time.Second, "connections go on", func() error {
			if connected() <= than {
				return errors.New("none more")
			}
			return nil
		})
	}
	more(0)
	w.crash()
	w.start()
	more(connected())
	run(w.ctx, t, sb, "pkill", "-f", "errno")
	w.expect(sb, open)
	w.patch(sb, client.PatchOptions{AllowOut: []string{"evil.test"}, DenyOut: []string{"0.0.0.0/0"}})
	w.crash()
	w.start()
	w.expect(sb, map[string]string{"http://good.test/": "refused", "http://evil.test/": from(evilAddr, "evil.test")})
	var shown struct{ AllowOut, DenyOut []string }
	if err := json.Unmarshal(w.details(w.ctx, sb.ID)["network"], &shown); err != nil || fmt.Sprint(shown) != "{[evil.test] [0.0.0.0/0]}" {
		t.Errorf("E2B's clients see %v, %v", shown, err)
	}
}

func (w world) patch(sb *client.Sandbox, o client.PatchOptions) {
	w.server.t.Helper()
	if _, err := w.server.client.Patch(w.ctx, sb.ID, o); err != nil {
		w.server.t.Fatal(err)
	}
}

// streamed reads a stream without an end inside, and says how it ended.
func (w world) streamed(sb *client.Sandbox) string {
	exit, err := sb.Run(w.ctx, client.Command{Args: []string{"curl", "--silent", "--no-buffer", "http://good.test/stream"}})
	switch {
	case err != nil:
		return err.Error()
	case exit.Code == 0:
		return "ended"
	default:
		return "broken"
	}
}
