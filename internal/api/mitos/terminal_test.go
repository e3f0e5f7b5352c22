package mitos

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var patience = testmode.Patience()

// dial opens a terminal on a server of the world.
func (w *world) dial(srv *httptest.Server, key, query string) (*websocket.Conn, *http.Response, error) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), patience)
	defer cancel()
	ws, res, err := websocket.Dial(ctx, srv.URL+service+"Exec"+query, &websocket.DialOptions{
		Subprotocols: []string{subprotocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + key}, "Origin": {"https://elsewhere.example"}},
	})
	if ws != nil {
		w.T.Cleanup(func() { ws.CloseNow() })
	}
	return ws, res, err
}

// answers reads to the end of a terminal.
func answers(t *testing.T, ws *websocket.Conn) (text string, status websocket.StatusCode) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, data, err := ws.Read(ctx)
		if err != nil {
			return text, websocket.CloseStatus(err)
		}
		text += fmt.Sprintf("%d%s\n", data[0], data[frameHead:])
	}
}

const opening = `{"open":{"pty":{"size":{"cols":80,"rows":24}}}}`

func TestTerminal(t *testing.T) {
	w := newWorld(t)
	a := &agent{run: func(_ context.Context, req *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		send(started(7))
		send(&processpb.ProcessEvent{Event: &processpb.ProcessEvent_Data{Data: &processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Pty{Pty: []byte("$ ")}}}})
		return send(ended(4, "exit status 4"))
	}}
	w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	srv := httptest.NewServer(w.HTTP)
	defer srv.Close()
	ws, _, err := w.dial(srv, apitest.GoodKey, "?sandbox=a")
	if err != nil || ws.Subprotocol() != subprotocol {
		t.Fatal(err)
	}
	if err := ws.Write(t.Context(), websocket.MessageBinary, raw(opening)); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("0{\"stdout\":%q}\n2{\"exit\":{\"exitCode\":4}}\n", base64.StdEncoding.EncodeToString([]byte("$ ")))
	if got, status := answers(t, ws); got != want || status != websocket.StatusNormalClosure {
		t.Errorf("got %s and %d\nwant %s", got, status, want)
	}
	if size := a.started[0].GetPty().GetSize(); size.GetCols() != 80 || size.GetRows() != 24 {
		t.Errorf("started %v", a.started[0])
	}
	if got := w.in.acquired[0]; !got.Stream {
		t.Errorf("access %+v", got)
	}
}

// TestTerminalsRefused: nobody gets a terminal who would not get a command, and
// before the upgrade.
func TestTerminalsRefused(t *testing.T) {
	w := newWorld(t)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	srv := httptest.NewServer(w.HTTP)
	defer srv.Close()
	for _, test := range []struct {
		key, query string
		status     int
	}{
		{"", "?sandbox=a", 401}, {"e2b_wrong", "?sandbox=a", 401}, {apitest.ReadKey, "?sandbox=a", 403}, {apitest.OwnKey, "?sandbox=a", 404},
		{apitest.GoodKey, "?sandbox=b", 404}, {apitest.GoodKey, "", 400}, {apitest.GoodKey, "?sandbox=a&sandbox=a", 400}, {apitest.GoodKey, "?sandbox=a&token=x", 400},
	} {
		_, res, err := w.dial(srv, test.key, test.query)
		if err == nil || res == nil || res.StatusCode != test.status {
			t.Errorf("%+v: %v, %v", test, res, err)
		}
	}
	if len(w.in.acquired) > 0 {
		t.Errorf("got in: %+v", w.in.acquired)
	}
}

// TestTerminalMessages: what cannot be ends a terminal with its reason, and its shell
// with it.
func TestTerminalMessages(t *testing.T) {
	for name, test := range map[string]struct {
		kind websocket.MessageType
		sent [][]byte
		want string
	}{
		"a text":         {websocket.MessageText, [][]byte{raw(opening)}, "binary frame"},
		"no frame":       {websocket.MessageBinary, [][]byte{{0, 0}}, "binary frame"},
		"a wrong length": {websocket.MessageBinary, [][]byte{append(raw(opening), 'x')}, "binary frame"},
		"compressed":     {websocket.MessageBinary, [][]byte{append([]byte{1}, raw(opening)[1:]...)}, "compressed"},
		"not opened":     {websocket.MessageBinary, [][]byte{raw(`{"stdin":"aGk="}`)}, "must have its size"},
		"no size":        {websocket.MessageBinary, [][]byte{raw(`{"open":{"pty":{"size":{"cols":80}}}}`)}, "must have its size"},
		"a command":      {websocket.MessageBinary, [][]byte{raw(`{"open":{"command":"x"}}`)}, "open.command"},
		"no JSON":        {websocket.MessageBinary, [][]byte{raw(`{`)}, "not valid JSON"},
		"no base64":      {websocket.MessageBinary, [][]byte{raw(opening), raw(`{"stdin":"!"}`)}, "base64"},
		"two at once":    {websocket.MessageBinary, [][]byte{raw(opening), raw(`{"stdin":"aGk=","resize":{"cols":1,"rows":1}}`)}, "stdin, or"},
		"half a size":    {websocket.MessageBinary, [][]byte{raw(opening), raw(`{"resize":{"cols":1}}`)}, "stdin, or"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := &agent{run: func(ctx context.Context, _ *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
				send(started(7))
				<-ctx.Done()
				return ctx.Err()
			}}
			w.inhabit(a)
			object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
			srv := httptest.NewServer(w.HTTP)
			defer srv.Close()
			ws, _, err := w.dial(srv, apitest.GoodKey, "?sandbox=a")
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range test.sent {
				if err := ws.Write(t.Context(), test.kind, m); err != nil {
					t.Fatal(err)
				}
			}
			if got, status := answers(t, ws); !strings.Contains(got, test.want) || status == websocket.StatusNormalClosure {
				t.Errorf("got %s and %d", got, status)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.started) != len(a.signals) {
				t.Errorf("%d shells were started, and %d killed", len(a.started), len(a.signals))
			}
		})
	}
}

// TestTerminalCut: a client of a sandbox that is put to sleep may connect again.
func TestTerminalCut(t *testing.T) {
	w := newWorld(t)
	a := &agent{run: func(ctx context.Context, _ *processpb.StartRequest, send func(*processpb.ProcessEvent) error) error {
		send(started(7))
		send(wrote("ready"))
		<-ctx.Done()
		return ctx.Err()
	}}
	cut := w.inhabit(a)
	object(t, w.create(apitest.GoodKey, "a"), http.StatusOK)
	srv := httptest.NewServer(w.HTTP)
	defer srv.Close()
	ws, _, err := w.dial(srv, apitest.GoodKey, "?sandbox=a")
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Write(t.Context(), websocket.MessageBinary, raw(opening)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ws.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	cut(errdef.New(errdef.Unavailable, "put_to_sleep", "the sandbox was put to sleep"))
	got, status := answers(t, ws)
	if status != websocket.StatusServiceRestart || !strings.HasPrefix(got, "2") || !strings.Contains(got, "put to sleep") {
		t.Errorf("got %s and %d", got, status)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.signals) > 0 {
		t.Errorf("a signal would have woken it: %v", a.signals)
	}
}
