package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// stream answers with server-sent events that fail in turn.
type stream struct {
	turns []func(http.ResponseWriter)
	asked []string // after and Last-Event-ID of each request
}

func (s *stream) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, r.URL.Query().Get("after")+" "+r.Header.Get("Last-Event-ID"))
	rec := httptest.NewRecorder()
	turn := s.turns[0]
	s.turns = s.turns[1:]
	turn(rec)
	if rec.Code == 0 {
		return nil, errors.New("connection refused")
	}
	resp := rec.Result()
	if rec.Flushed { // stays open without a word
		resp.Body = silent{r.Context()}
	}
	return resp, nil
}

type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, context.Cause(s.ctx)
}
func (s silent) Close() error { return nil }

func says(ids ...int) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "retry: 1000\n\n: keep-alive\n\n")
		for _, id := range ids {
			_, _ = fmt.Fprintf(w, "id: %d\nevent: updated\ndata: {\"id\": %d, \"type\": \"updated\",\ndata:  \"cause\": null}\n\n", id, id)
		}
		_, _ = fmt.Fprint(w, "id: 99\ndata: {\"id\": 99") // cut short
	}
}

func status(code int) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(code)
		_, _ = fmt.Fprint(w, `{"error":{"code":"x","message":"no"}}`)
	}
}

func quiet(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
}

// TestFollowReconnects: each event once and in order, whatever breaks.
func TestFollowReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{turns: []func(http.ResponseWriter){
			says(6, 7), status(503), says(), says(7, 8), quiet, says(8, 9), status(401),
		}}
		c, err := client.New(client.Options{URL: "http://server.invalid", HTTPClient: &http.Client{Transport: s}})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var ids []int64
		var last error
		for e, err := range c.Follow(t.Context(), client.EventOptions{After: 5}) {
			if err != nil {
				last = err
				continue
			}
			ids = append(ids, e.ID)
		}
		if want := []int64{6, 7, 8, 9}; !slices.Equal(ids, want) {
			t.Errorf("got %v, want %v", ids, want)
		}
		if want := []string{"5 ", "7 7", "7 7", "7 7", "8 8", "8 8", "9 9"}; !slices.Equal(s.asked, want) {
			t.Errorf("asked %q, want %q", s.asked, want)
		}
		if !errors.Is(last, client.ErrUnauthorized) || !strings.Contains(last.Error(), "follow events: no") {
			t.Errorf("got %v, want ErrUnauthorized", last)
		}
		// Waits of 1, 2, 4, 1, then a silent minute, and 2, 1: short again
		// whenever something came.
		if took := time.Since(begin); took != 71*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestFollowFromNow: where that was is known before the first event, and what
// happens while the stream is broken is not lost.
func TestFollowFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begins := func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "retry: 1000\nid: 41\n\n")
		}
		s := &stream{turns: []func(http.ResponseWriter){says(), begins, says(42), status(401)}}
		c, err := client.New(client.Options{URL: "http://server.invalid", HTTPClient: &http.Client{Transport: s}})
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		for e, err := range c.Follow(t.Context(), client.EventOptions{After: client.FromNow}) {
			if err == nil {
				ids = append(ids, e.ID)
			}
		}
		if want := []int64{42}; !slices.Equal(ids, want) {
			t.Errorf("got %v, want %v", ids, want)
		}
		if want := []string{"now ", "now ", "41 41", "42 42"}; !slices.Equal(s.asked, want) {
			t.Errorf("asked %q, want %q", s.asked, want)
		}
	})
}

func TestFollowThatCannotBegin(t *testing.T) {
	for name, turn := range map[string]func(http.ResponseWriter){
		"unavailable": status(503),
		"not found":   status(404),
		"no stream":   func(w http.ResponseWriter) { _, _ = w.Write([]byte("{}")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{turns: []func(http.ResponseWriter){turn}}
			c, err := client.New(client.Options{URL: "http://server.invalid", HTTPClient: &http.Client{Transport: s}})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, err := range c.Follow(t.Context(), client.EventOptions{}) {
				n++
				if _, ok := errors.AsType[*client.Error](err); !ok {
					t.Errorf("got %v", err)
				}
			}
			if n != 1 {
				t.Errorf("yielded %d times", n)
			}
		})
	}
}
