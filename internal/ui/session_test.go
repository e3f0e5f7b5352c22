package ui

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// oneKey lets everybody in.
type oneKey struct{}

func (oneKey) Check(string) (Holder, error)        { return Holder{ID: "k1", Role: client.RoleFull}, nil }
func (oneKey) Lend(context.Context, string) string { return "lent" }
func (oneKey) Bind(ctx context.Context, _ string) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

// TestIdleSessions: what a person does keeps a session, what a page asks for by itself
// does not, and what hangs on a session ends with it.
func TestIdleSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), Options{Keys: oneKey{}}).(*server)
		ask := func(method, path, mode string, cookie *http.Cookie, token string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			r.Header.Set("Sec-Fetch-Mode", mode)
			r.Header.Set("Sec-Fetch-Dest", map[string]string{"navigate": "document"}[mode])
			r.Header.Set(tokenHeader, token)
			if cookie != nil {
				r.AddCookie(cookie)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w
		}
		cookie := ask("POST", "/ui/sign-in", "navigate", nil, "").Result().Cookies()[0]
		var session *session
		for _, session = range s.sessions.all {
		}
		for range 5 { // 5 hours: a person looks at a page now and then
			time.Sleep(time.Hour)
			if got := ask("GET", "/ui/nothing", "navigate", cookie, ""); got.Code != http.StatusNotFound {
				t.Fatalf("in use: %d", got.Code)
			}
		}
		time.Sleep(time.Hour)
		session.use() // a key in a terminal
		time.Sleep(time.Hour + 59*time.Minute)
		if got := ask("GET", "/ui/nothing", "cors", cookie, session.token); got.Code != http.StatusNotFound {
			t.Fatalf("an open page: %d", got.Code)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if session.ctx.Err() == nil {
			t.Error("what hangs on the session goes on")
		}
		if got := ask("GET", "/ui/nothing", "navigate", cookie, ""); got.Code != http.StatusSeeOther {
			t.Errorf("after 2 hours without use: %d", got.Code)
		}
		session.use() // which comes late
	})
}

// TestEndsMeanwhile: whatever went wrong with a request whose session has ended, its
// browser is told to sign in.
func TestEndsMeanwhile(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	v := &visit{s: &server{Options: Options{Log: slog.New(slog.DiscardHandler)}}, r: httptest.NewRequest(http.MethodGet, "/ui/events", nil), session: &session{ctx: ctx}}
	end()
	if p := v.problemOf(context.Canceled); p.Status != http.StatusUnauthorized {
		t.Errorf("told %+v", p)
	}
}

// TestSeveralTakeLong: several sandboxes have time to be paused one after the other, and
// of those that have too little it is told what became of them.
func TestSeveralTakeLong(t *testing.T) {
	for _, c := range []struct {
		each   time.Duration
		paused int
		want   map[string]int // how many are told what
	}{
		{45 * time.Second, perPage, map[string]int{}},
		{4 * time.Minute, 8, map[string]int{"it may still be doing what was asked for": 4, "this one was not begun": perPage - 12}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ids := url.Values{"do": {"pause"}}
			for n := range perPage {
				ids.Add("id", fmt.Sprint("i", n))
			}
			r := httptest.NewRequest(http.MethodPost, "/ui/sandboxes", nil)
			r.PostForm = ids
			s := &session{ctx: t.Context(), http: &http.Client{Transport: slow(c.each)}, key: "lent"}
			v := &visit{s: &server{Options: Options{Log: slog.New(slog.DiscardHandler)}}, w: httptest.NewRecorder(), r: r, session: s}
			if err := actOnSeveral(v); err != nil {
				t.Fatal(err)
			}
			n := s.told()[0]
			if want := fmt.Sprintf("%d of %d chosen", c.paused, perPage); !strings.Contains(n.Text, want) {
				t.Errorf("%s each: told %q, want %s", c.each, n.Text, want)
			}
			got := map[string]int{}
			for _, f := range n.Each {
				_, text, _ := strings.Cut(strings.ReplaceAll(f.Message, ", and ", "; "), "; ")
				if got[text]++; f.Step == "" {
					t.Errorf("%s each: no next step in %+v", c.each, f)
				}
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("%s each: told %v, want %v", c.each, got, c.want)
			}
		})
	}
}

// slow is a server that answers after a while.
type slow time.Duration

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(time.Duration(s)):
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
	}
}

// TestLinkExpires: a link to sign in is good for a minute.
func TestLinkExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all links
		k := link{until: time.Now().Add(linkTime), key: t.Context()}
		var texts []string
		for range 2 {
			text, ok := all.add(k, time.Now())
			if !ok {
				t.Fatal("no link")
			}
			texts = append(texts, text)
		}
		time.Sleep(59 * time.Second)
		if _, ok := all.take(texts[0], time.Now()); !ok {
			t.Error("it is worth nothing after 59 seconds")
		}
		time.Sleep(time.Second)
		if _, ok := all.take(texts[1], time.Now()); ok {
			t.Error("it is good after a minute")
		}
	})
}
