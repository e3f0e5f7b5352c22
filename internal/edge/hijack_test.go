package edge

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestControlPlaneWebSocket has a handler of the control plane speak WebSocket,
// with a client whose first message comes with its request.
func TestControlPlaneWebSocket(t *testing.T) {
	f := newFleet(t, echo)
	ended := make(chan error, 2)
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			ended <- err
			return
		}
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				ended <- err
				return
			}
			if err := c.Write(r.Context(), kind, data); err != nil {
				ended <- err
				return
			}
		}
	})
	url := f.serveWith(t, Options{Control: control})
	ctx, cancel := context.WithTimeout(t.Context(), testmode.Patience())
	defer cancel()

	c, _, err := websocket.Dial(ctx, url+"/api/v1/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * watchEvery) // for the watcher of clients that go away, who must not read
	for _, text := range []string{"one", strings.Repeat("two", 5000)} {
		if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != text {
			t.Fatalf("echoed %.20q, %v", got, err)
		}
	}
	c.Close(websocket.StatusNormalClosure, "")
	if err := <-ended; websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the handler saw %v", err)
	}

	raw, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.SetDeadline(time.Now().Add(testmode.Patience()))
	hello := "\x81\x82\x00\x00\x00\x00hi"
	_, _ = io.WriteString(raw, "GET /x HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"+hello)
	in := bufio.NewReader(raw)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Connection") != "Upgrade" {
		t.Fatalf("%v, %v", resp, err)
	}
	frame := make([]byte, 4)
	if _, err := io.ReadFull(in, frame); err != nil || string(frame[2:]) != "hi" {
		t.Errorf("echoed %q, %v", frame, err)
	}
	raw.Close()
	if err := <-ended; err == nil {
		t.Error("the handler did not see that the client has gone")
	}
}
