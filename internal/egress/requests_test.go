package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// onlyGood is a gate that lets good.test through, and nothing else.
func onlyGood(t *testing.T) (*loop, *Gate) {
	l, g := newLoop(t)
	g.Set(mustPolicy(t, true, []string{"good.test", "other.test"}, []string{Everything}))
	return l, g
}

// comesBack sends text and returns what the echo sends back until the end.
func comesBack(t *testing.T, g *Gate, text string) string {
	t.Helper()
	c := arrive(t, g, "203.0.113.10:80")
	_ = c.SetDeadline(time.Now().Add(testmode.Patience()))
	_, _ = io.WriteString(c, text)
	_ = c.CloseWrite()
	got, _ := io.ReadAll(c)
	return string(got)
}

// TestEveryRequestIsJudgedByItsName: a server of many names answers for all of
// them on one connection, of which only the first request was looked at.
func TestEveryRequestIsJudgedByItsName(t *testing.T) {
	const first = "POST /1 HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n\r\nhello"
	const chunked = "POST /2 HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	get := func(host string) string { return "GET /x HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	for name, c := range map[string]struct{ allowed, refused string }{
		"a good one":            {first + get("good.test:80"), ""},
		"another allowed":       {first + get("other.test"), ""},
		"not allowed":           {first, get("evil.test")},
		"after chunks":          {chunked + chunked, get("evil.test")},
		"two hosts":             {first, "GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n"},
		"absolute":              {first, "GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n"},
		"no request":            {first, "hello, this is no request\r\n\r\n"},
		"bare line feeds":       {first, "GET / HTTP/1.1\nHost: evil.test\n\n"},
		"two lengths":           {get("good.test"), "POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n" + get("evil.test")},
		"length and chunks":     {get("good.test"), "POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get("evil.test")},
		"a later upgrade":       {first, "GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n" + get("evil.test")},
		"large heads":           {first + "GET / HTTP/1.1\r\nHost: good.test\r\nX: " + strings.Repeat("x", 40<<10) + "\r\n\r\n", get("evil.test")},
		"an end across buffers": {first + "GET / HTTP/1.1\r\nHost: good.test\r\nX: " + strings.Repeat("x", 4096-2-len("GET / HTTP/1.1\r\nHost: good.test\r\nX: ")) + "\r\n" + "Y: z\r\n\r\n", get("evil.test")},
		"a head without an end": {first, "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 100<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			_, g := onlyGood(t)
			got := comesBack(t, g, c.allowed+c.refused)
			// What is refused breaks the connection off, and with it what has not
			// come back yet.
			if c.refused == "" && got != c.allowed || !strings.HasPrefix(c.allowed, got) {
				t.Errorf("%q came back, want %q", got, c.allowed)
			}
			if want := c.refused != ""; want != slices.Contains(reasons(g), ReasonName) {
				t.Errorf("refused for %q", reasons(g))
			}
		})
	}
}

// TestUpgradesAreTakenByTheServer: what follows a request for another protocol
// is of that only if the server switches.
func TestUpgradesAreTakenByTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		passes bool
	}{
		"switched": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", true},
		"ignored":  {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			l, g := onlyGood(t)
			server := listen(t)
			l.server.Close()
			l.server = server
			seen := make(chan string, 2)
			go func() {
				conn, err := server.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				br := bufio.NewReader(conn)
				for line := ""; line != "\r\n"; {
					if line, err = br.ReadString('\n'); err != nil {
						return
					}
				}
				fmt.Fprint(conn, c.answer)
				rest, _ := io.ReadAll(br)
				seen <- string(rest)
			}()
			conn := arrive(t, g, "203.0.113.10:80")
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"+"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
			_ = conn.CloseWrite()
			if got := <-seen; (got != "") != c.passes {
				t.Errorf("the server got %q", got)
			}
		})
	}
}

// TestOneKeyLeavesRoomForOthers: 1,020 idle connections took 6,163 descriptors,
// and nothing bounded those of many sandboxes.
func TestOneKeyLeavesRoomForOthers(t *testing.T) {
	l, _ := newLoop(t)
	room := newRoom(100 * connDescriptors)
	gate := func(key string) *Gate {
		g := NewGate(l, room, key, func(Reason) {})
		g.Set(mustPolicy(t, true, nil, nil))
		return g
	}
	greedy := []*Gate{gate("greedy"), gate("greedy"), gate("greedy")}
	var open []net.Conn
	for i := range 90 {
		open = append(open, arrive(t, greedy[i%3], "203.0.113.10:80"))
	}
	through := 0
	for _, c := range open {
		if echoed(c, "a") {
			through++
		}
	}
	if through != 50 {
		t.Errorf("%d connections of one key went through, want half of 100", through)
	}
	other := gate("modest")
	if !echoed(arrive(t, other, "203.0.113.10:80"), "a") {
		t.Error("another key's connection was refused")
	}
	for _, c := range open {
		c.Close()
	}
	for end := time.Now().Add(testmode.Patience()); room.descriptors.Taken() > connDescriptors; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are still taken", room.descriptors.Taken())
		}
	}
	if !echoed(arrive(t, greedy[0], "203.0.113.10:80"), "a") {
		t.Error("nothing goes through after the others ended")
	}
}

// TestSniffedBytesAreBounded: each connection that is judged by name could make
// the server hold 64 KiB and more.
func TestSniffedBytesAreBounded(t *testing.T) {
	l, _ := newLoop(t)
	room := NewRoom()
	gates := make([]*Gate, 2)
	for i := range gates {
		gates[i] = NewGate(l, room, "greedy", func(Reason) {})
		gates[i].Set(mustPolicy(t, true, []string{"good.test"}, []string{Everything}))
	}
	begin := "GET / HTTP/1.1\r\nHost: good.test\r\nX: " + strings.Repeat("x", 60<<10)
	for i := range 300 {
		_, _ = io.WriteString(arrive(t, gates[i%2], "203.0.113.10:80"), begin)
	}
	for end := time.Now().Add(testmode.Patience()); room.buffers.Taken() < maxBuffers/3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d bytes are taken", room.buffers.Taken())
		}
	}
	if n := room.buffers.Taken(); n > maxBuffers/2 {
		t.Errorf("one key takes %d bytes", n)
	}
	modest := NewGate(l, room, "modest", func(Reason) {})
	modest.Set(mustPolicy(t, true, []string{"good.test"}, []string{Everything}))
	if !echoed(arrive(t, modest, "203.0.113.10:80"), request) {
		t.Error("another key's connection was refused")
	}
}

func TestBenchmarkingNetworkIsClosed(t *testing.T) {
	_, g := newLoop(t)
	g.Set(mustPolicy(t, true, []string{"198.18.0.0/15"}, nil))
	for _, to := range []string{"198.18.0.1:80", "198.19.255.255:80"} {
		if echoed(arrive(t, g, to), "a") {
			t.Errorf("%s was reached", to)
		}
	}
	if !echoed(arrive(t, g, "198.20.0.1:80"), "a") {
		t.Error("198.20.0.1 was refused")
	}
}
