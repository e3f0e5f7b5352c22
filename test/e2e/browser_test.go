package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestBrowser goes to sandboxes with a real browser, by host name and by path.
func TestBrowser(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 3*time.Minute)
	b := startBrowser(ctx, t)
	for _, way := range []struct {
		name   string
		byHost bool
	}{{"by host", true}, {"by path", false}} {
		t.Run(way.name, func(t *testing.T) {
			s := newServer(t, stateDir(t))
			if way.byHost {
				_, port := splitAddress(t, s.addr)
				s.args = []string{"--domain", "localhost:" + port} // browsers know what is below localhost
			}
			t.Cleanup(s.cleanUp)
			s.start()
			v := &visit{t, s, b, way.byHost}
			t.Run("waiting", func(t *testing.T) { v.with(t).checkWaiting(ctx) })
			t.Run("preview", func(t *testing.T) { v.with(t).checkPreview(ctx) })
		})
	}
}

func splitAddress(t testing.TB, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// visit is a browser at a server.
type visit struct {
	t      *testing.T
	s      *server
	b      *browser
	byHost bool
}

func (v visit) with(t *testing.T) *visit {
	v.t = t
	return &v
}

// url is the address of a port of a sandbox.
func (v *visit) url(id string, port int) string {
	if v.byHost {
		_, listening := splitAddress(v.t, v.s.addr)
		return fmt.Sprintf("http://%d-%s.localhost:%s/", port, id, listening)
	}
	return fmt.Sprintf("http://%s/s/%s/%d/", v.s.addr, id, port)
}

// result is what the guest's page finds when it has loaded.
type result struct {
	Data struct {
		Cookies string // that the guest got
		URI     string
	}
	Echo     string // through a WebSocket
	Script   bool   // was loaded
	Colour   string // by the style sheet
	Readable string // cookies that scripts see
	Error    string
}

// app waits until the page is the guest's, without going anywhere.
func (v *visit) app(ctx context.Context) result {
	v.t.Helper()
	r := v.page(ctx)
	if r.Error != "" || r.Echo != "from the page" || !r.Script || r.Colour != "rgb(1, 2, 3)" {
		v.t.Errorf("the page found %+v", r)
	}
	return r
}

// public is app for the page of a port that is open to everybody: below a path
// its scripts run, in an origin of their own, which reads no answer.
func (v *visit) public(ctx context.Context) {
	v.t.Helper()
	if v.byHost {
		v.app(ctx)
		return
	}
	if r := v.page(ctx); r.Error == "" {
		v.t.Errorf("the page reads what the server answers it: %+v", r)
	}
	var origin string
	if err := v.b.eval(ctx, "window.origin", &origin); err != nil || origin != "null" {
		v.t.Errorf("the page's origin is %q, %v; want its own", origin, err)
	}
}

// page returns what the guest's page found, when it is there.
func (v *visit) page(ctx context.Context) result {
	v.t.Helper()
	var r *result
	eventually(v.t, 30*time.Second, "the guest's page is there", func() error {
		var raw json.RawMessage
		if err := v.b.eval(ctx, "window.result || null", &raw); err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		if r == nil {
			return errors.New("another page, or it is not ready")
		}
		return nil
	})
	return *r
}

// checkWaiting goes to a sandbox that is falling asleep and takes long to wake:
// a page says so, and gives way to the sandbox's own without being touched.
func (v *visit) checkWaiting(ctx context.Context) {
	t := v.t
	o := sleeper
	o.Hooks = client.Hooks{PrePause: client.Hook{Command: "sleep 3"}, PostResume: client.Hook{Command: "sleep 4"}}
	g := v.s.startGuest(ctx, o)
	before := g.ask(ctx)
	paused := make(chan error, 1)
	go func() { paused <- v.s.client.Pause(ctx, g.sb.ID) }()
	eventually(t, 30*time.Second, "it is falling asleep", func() error {
		info, err := v.s.client.Get(ctx, g.sb.ID)
		if err == nil && info.Phase != "pausing" {
			err = fmt.Errorf("phase %q", info.Phase)
		}
		return err
	})
	v.b.open(ctx, v.url(g.sb.ID, guestPort)+"page/")
	if text := v.b.text(ctx); !strings.Contains(text, "waking up") {
		t.Errorf("the page says %q", text)
	}
	v.public(ctx)
	if err := <-paused; err != nil {
		t.Error(err)
	}
	if got, want := g.ask(ctx).generation(t), before.generation(t)+1; got != want {
		t.Errorf("generation %d, want %d", got, want)
	}
}

// checkPreview goes to a private sandbox: with a link it is let in, and stays
// so until the link is revoked; without, it is refused and wakes nothing.
func (v *visit) checkPreview(ctx context.Context) {
	t := v.t
	g := v.s.startGuestIn(ctx, v.s.createPrivate(ctx), "serve")
	page := v.url(g.sb.ID, guestPort) + "page/"
	v.s.pause(ctx, g.sb.ID)
	v.refused(ctx, page, "E2b-Traffic-Access-Token")
	v.refused(ctx, page+"?drowse_preview=p1.e30.AAAA", "not valid")
	if err := v.s.is(ctx, g.sb.ID, client.Paused); err != nil {
		t.Errorf("who may not come in woke it: %v", err)
	}
	link, err := v.s.client.CreatePreview(ctx, g.sb.ID, client.PreviewOptions{Port: guestPort, Path: "/page/?a=b"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(link.URL, page) {
		t.Errorf("link %s, want %s and more", link.URL, page)
	}
	v.b.open(ctx, link.URL)
	v.checkInside(v.app(ctx), link)
	if got := v.b.address(ctx); got != page+"?a=b" {
		t.Errorf("the browser is at %s, want %s", got, page+"?a=b")
	}
	cookies := v.b.cookies(ctx)
	if len(cookies) != 1 || cookies[0].Value != link.Token || !cookies[0].HTTPOnly || cookies[0].SameSite != "Lax" ||
		!strings.HasSuffix(v.url(g.sb.ID, guestPort), cookies[0].Path) {
		t.Errorf("cookies %+v", cookies)
	}
	v.b.open(ctx, page) // by the cookie alone, and asleep
	v.checkInside(v.app(ctx), link)
	v.s.pause(ctx, g.sb.ID)
	v.b.open(ctx, page)
	v.checkInside(v.app(ctx), link)
	v.refused(ctx, v.url(g.sb.ID, secondPort)+"page/", "E2b-Traffic-Access-Token")

	if err := v.s.client.RevokePreview(ctx, g.sb.ID, link.ID); err != nil {
		t.Fatal(err)
	}
	v.refused(ctx, page, "revoked")
	if cookies := v.b.cookies(ctx); len(cookies) > 0 {
		t.Errorf("the browser keeps a cookie that is good for nothing: %+v", cookies)
	}
	v.refused(ctx, link.URL, "revoked")
}

// checkInside checks that the link's token went no further than the server.
func (v *visit) checkInside(r result, link client.Preview) {
	v.t.Helper()
	if strings.Contains(r.Data.Cookies+r.Data.URI, link.Token) {
		v.t.Errorf("the guest got the token: %+v", r.Data)
	}
	if strings.Contains(r.Readable, link.Token) {
		v.t.Errorf("scripts see the token: %q", r.Readable)
	}
}

// refused goes where the browser must not be let in.
func (v *visit) refused(ctx context.Context, url, says string) {
	v.t.Helper()
	v.b.open(ctx, url)
	if text := v.b.text(ctx); !strings.HasPrefix(text, "403") || !strings.Contains(strings.ToLower(text), strings.ToLower(says)) {
		v.t.Errorf("%s: the page says %q, want 403 and %q", url, text, says)
	}
}

// createPrivate makes a sandbox whose ports are not open to everybody. E2B's
// dialect has that.
func (s *server) createPrivate(ctx context.Context) *client.Sandbox {
	s.t.Helper()
	header := http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	const body = `{"templateID":"base","timeout":600,"secure":true,"autoPause":true,"autoResume":{"enabled":true},"network":{"allowPublicTraffic":false}}`
	got, err := s.raw(ctx, http.MethodPost, "/sandboxes", header, strings.NewReader(body))
	if err != nil || got.status != http.StatusCreated {
		s.t.Fatalf("create: status %d, %v: %s", got.status, err, got.body)
	}
	var made struct{ SandboxID string }
	if err := json.Unmarshal(got.body, &made); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.ids = append(s.ids, made.SandboxID)
	s.mu.Unlock()
	sb, _, err := s.client.Open(ctx, made.SandboxID)
	if err != nil {
		s.t.Fatal(err)
	}
	return sb
}
