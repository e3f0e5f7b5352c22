package audit

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var admin = Actor{ID: "k1", Name: "first", Role: "admin"}

func open(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func read(t *testing.T, l *Log, q Query) []Entry {
	t.Helper()
	entries, err := l.Read(q)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// seqs are the numbers of entries, and what they left out.
func seqs(entries []Entry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, " %d", e.Seq)
		if e.Unlogged > 0 {
			fmt.Fprintf(&b, "(+%d)", e.Unlogged)
		}
	}
	return strings.TrimSpace(b.String())
}

// TestHandler says of which calls there is an entry, and what is in it.
func TestHandler(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "audit"))
	for _, c := range []struct {
		what    string
		serve   http.HandlerFunc
		want    string // of the entry: status, key, sandbox; empty for none
		aborted bool
	}{
		{"what no key was asked for", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, "", false},
		{"a look", func(w http.ResponseWriter, r *http.Request) { By(r.Context(), admin, true) }, "", false},
		{"a call", func(w http.ResponseWriter, r *http.Request) {
			By(r.Context(), admin, false)
			About(r.Context(), "i1")
			w.WriteHeader(http.StatusNoContent)
			About(r.Context(), "i2") // too late
		}, "204 k1 i1", false},
		{"a call that only writes", func(w http.ResponseWriter, r *http.Request) {
			By(r.Context(), admin, false)
			_, _ = w.Write([]byte("x"))
		}, "200 k1 ", false},
		{"a call without an answer", func(_ http.ResponseWriter, r *http.Request) { By(r.Context(), admin, false) }, "0 k1 ", false},
		{"a call that panics", func(_ http.ResponseWriter, r *http.Request) {
			By(r.Context(), admin, false)
			panic(http.ErrAbortHandler)
		}, "0 k1 ", true},
		{"progress before the answer", func(w http.ResponseWriter, r *http.Request) {
			By(r.Context(), admin, false)
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusConflict)
		}, "409 k1 ", false},
		{"no good key", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, "401  ", false},
		{"a look that the role is not enough for", func(w http.ResponseWriter, r *http.Request) {
			By(r.Context(), admin, true)
			w.WriteHeader(http.StatusForbidden)
		}, "403 k1 ", false},
	} {
		before := len(read(t, l, Query{Most: 100}))
		r := httptest.NewRequest(http.MethodPost, "/v1/sandboxes/"+strings.Repeat("é", 400)+"?secret=1", strings.NewReader("secret"))
		func() {
			defer func() {
				if p := recover(); (p != nil) != c.aborted {
					t.Errorf("%s: it panicked with %v", c.what, p)
				}
			}()
			l.Handler(c.serve).ServeHTTP(httptest.NewRecorder(), r)
		}()
		got := ""
		if all := read(t, l, Query{Most: 100}); len(all) > before {
			e := all[before]
			if e.Key == nil {
				e.Key = &Actor{}
			}
			got = fmt.Sprintf("%d %s %s", e.Status, e.Key.ID, e.Sandbox)
			if e.Address != "192.0.2.1" || e.Method != "POST" || len(e.Path) > maxText+3 || !strings.HasPrefix(e.Path, "/v1/sandboxes/%C3%A9") {
				t.Errorf("%s: the entry is %+v", c.what, e)
			}
		}
		if got != c.want {
			t.Errorf("%s: the entry says %q, want %q", c.what, got, c.want)
		}
	}
}

// TestHandlerPassesOn holds that an answer can within a log what it can without.
func TestHandlerPassesOn(t *testing.T) {
	for proto, wants := range map[int][]int{1: {200, 101}, 2: {200, 409}} {
		l := open(t, filepath.Join(t.TempDir(), "audit"))
		server := httptest.NewUnstartedServer(l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			By(r.Context(), admin, false)
			c := http.NewResponseController(w)
			if err := c.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Errorf("HTTP/%d: a deadline: %v", r.ProtoMajor, err)
			}
			if r.URL.Path == "/taken" {
				conn, _, err := c.Hijack()
				if err != nil {
					w.WriteHeader(http.StatusConflict)
					return
				}
				conn.Close()
				return
			}
			_, _ = w.Write([]byte("x"))
			if err := c.Flush(); err != nil {
				t.Errorf("HTTP/%d: flush: %v", r.ProtoMajor, err)
			}
			if _, ok := w.(http.Flusher); !ok {
				t.Errorf("HTTP/%d: the answer cannot be flushed", r.ProtoMajor)
			}
		})))
		server.EnableHTTP2 = proto == 2
		server.StartTLS()
		defer server.Close()
		for _, path := range []string{"/written", "/taken"} {
			resp, err := server.Client().Post(server.URL+path, "", nil) // never sent twice
			if err != nil {
				continue // the connection was taken
			}
			_, _ = io.Copy(io.Discard, resp.Body) // all of it: who goes away sooner breaks the flush
			resp.Body.Close()
			if resp.ProtoMajor != proto {
				t.Errorf("HTTP/%d: answered by HTTP/%d", proto, resp.ProtoMajor)
			}
		}
		server.Close() // waits for the handlers
		var got []int
		for _, e := range read(t, l, Query{Most: 100}) {
			got = append(got, e.Status)
		}
		if !slices.Equal(got, wants) {
			t.Errorf("HTTP/%d: the entries say %v, want %v", proto, got, wants)
		}
	}
}

// TestRead reads a log of several files, from either end, and goes on with it after
// it was opened again.
func TestRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir)
	at := time.Now()
	add := func(n int) {
		for range n {
			at = at.Add(time.Second)
			l.add(Entry{At: at, Key: &admin, Sandbox: fmt.Sprint("i", l.next%2)})
			if l.next%4 == 0 { // as if it were full
				l.size = maxFile
			}
		}
	}
	add(9)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.add(Entry{At: at, Key: &admin}) // closed: nobody hears of it
	// A power cut has left half an entry.
	last := filepath.Join(dir, "0000000000000008.jsonl")
	f, err := os.OpenFile(last, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(`{"seq":10,"at":`)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir)
	add(3)
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{Most: 100}, "1 2 3 4 5 6 7 8 9 10 11 12"},
		{Query{Most: 3}, "10 11 12"},
		{Query{Most: 6}, "7 8 9 10 11 12"},
		{Query{Most: 3, First: true}, "1 2 3"},
		{Query{Most: 3, First: true, After: 3}, "4 5 6"},
		{Query{Most: 3, First: true, After: 7}, "8 9 10"},
		{Query{Most: 3, First: true, After: 11}, "12"},
		{Query{Most: 3, First: true, After: 12}, ""},
		{Query{Most: 3, First: true, After: 1 << 40}, ""},
		{Query{Most: 2, Sandbox: "i1"}, "9 11"},
		{Query{Most: 2, Sandbox: "i1", First: true, After: 1}, "3 5"},
		{Query{Most: 2, Key: "k1"}, "11 12"},
		{Query{Most: 2, Key: "k2"}, ""},
	} {
		if got := seqs(read(t, l, c.q)); got != c.want {
			t.Errorf("%+v: %q, want %q", c.q, got, c.want)
		}
	}
}

// TestShares: no key can push out what others did, however often it calls.
func TestShares(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "audit"))
	at := time.Now()
	for range burst + 500 {
		l.add(Entry{At: at, Key: &admin})
	}
	for range strangersBurst + 50 {
		l.add(Entry{At: at, Status: http.StatusUnauthorized})
	}
	l.add(Entry{At: at, Key: &Actor{ID: "k2"}})
	l.add(Entry{At: at.Add(time.Minute), Key: &admin})
	l.add(Entry{At: at.Add(time.Minute)})
	got := read(t, l, Query{Most: 1 << 20})
	if want := burst + strangersBurst + 3; len(got) != want {
		t.Errorf("%d entries, want %d", len(got), want)
	}
	if got, want := seqs(got[len(got)-3:]), "1101 1102(+500) 1103(+50)"; got != want {
		t.Errorf("the last are %q, want %q", got, want)
	}
}

// TestBound has the oldest file go when there are too many.
func TestBound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir)
	at := time.Now()
	for range maxFiles + 5 {
		at = at.Add(time.Second)
		l.add(Entry{At: at, Key: &admin})
		l.size = maxFile
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != maxFiles {
		t.Fatalf("%d files, %v; want %d", len(names), err, maxFiles)
	}
	if first := read(t, l, Query{Most: 1, First: true}); seqs(first) != "6" {
		t.Errorf("the first is %q, want 6", seqs(first))
	}
}

// TestUnreadable says which file is damaged.
func TestUnreadable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir)
	l.add(Entry{At: time.Now(), Key: &admin})
	name := filepath.Join(dir, "0000000000000001.jsonl")
	if err := os.WriteFile(name, []byte("no entry\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(Query{Most: 1}); err == nil || !strings.Contains(err.Error(), "0000000000000001.jsonl has a line that is no entry") {
		t.Errorf("it was read: %v", err)
	}
}
