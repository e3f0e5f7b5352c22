package supervisor

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

// hasCode checks an error's code, and that no token is in it.
func hasCode(t *testing.T, what string, err error, code, token string) {
	t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Code != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
	if err != nil && token != "" && strings.Contains(err.Error(), token) {
		t.Errorf("%s: the token is in the error", what)
	}
}

func TestPreview(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	ctx := t.Context()
	id, other := create(t, s, CreateRequest{Settings: sleepy}), create(t, s, CreateRequest{Settings: sleepy})
	before := time.Now()
	p, token, err := s.CreatePreview(ctx, id, preview.Request{Port: 8000, For: 90*time.Minute + time.Millisecond, Actor: "key:a"})
	if err != nil {
		t.Fatal(err)
	}
	if p.ExpiresAt.Before(before.Add(90*time.Minute)) || p.ExpiresAt.After(time.Now().Add(90*time.Minute+2*time.Second)) || p.ExpiresAt.Nanosecond() != 0 || p.Actor != "key:a" {
		t.Errorf("got %+v", p)
	}
	if err := s.CheckPreview(ctx, id, 8000, token); err != nil {
		t.Errorf("a good link: %v", err)
	}
	hasCode(t, "another port", s.CheckPreview(ctx, id, 8001, token), "preview_invalid", token)
	hasCode(t, "another sandbox", s.CheckPreview(ctx, other, 8000, token), "preview_invalid", token)
	hasCode(t, "no sandbox", s.CheckPreview(ctx, "inope", 8000, token), "sandbox_not_found", token)

	if err := s.Pause(ctx, id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckPreview(ctx, id, 8000, token); err != nil {
		t.Errorf("a good link to a paused sandbox: %v", err)
	}
	second, _, err := s.CreatePreview(ctx, id, preview.Request{Port: 9000, For: time.Minute})
	if err != nil {
		t.Errorf("a link to a paused sandbox: %v", err)
	}
	if list, err := s.Previews(ctx, id); err != nil || !slices.Equal(list, []store.Preview{p, second}) {
		t.Errorf("listed %+v, %v", list, err)
	}
	if sb, err := s.Find(ctx, id); err != nil || sb.Record.State != lifecycle.Paused {
		t.Errorf("it is %s, %v: a link is no wake", sb.Record.State, err)
	}

	stop()
	s, _ = b.open()
	if err := s.CheckPreview(ctx, id, 8000, token); err != nil {
		t.Errorf("a good link after a restart: %v", err)
	}
	if err := s.RevokePreview(ctx, id, p.ID, "key:b"); err != nil {
		t.Fatal(err)
	}
	hasCode(t, "a revoked link", s.CheckPreview(ctx, id, 8000, token), "preview_revoked", token)
	hasCode(t, "revoking it again", s.RevokePreview(ctx, id, p.ID, ""), "preview_not_found", "")
	hasCode(t, "revoking by the token", s.RevokePreview(ctx, id, token, ""), "preview_not_found", token)

	events, err := s.Events(ctx, id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	log, _ := json.Marshal(events)
	if strings.Contains(string(log), token) || !strings.Contains(string(log), "preview link "+p.ID+" revoked") {
		t.Errorf("the event log: %s", log)
	}

	if err := s.Kill(ctx, id, ""); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Previews(ctx, id); err != nil || len(list) > 0 {
		t.Errorf("the links of an ended sandbox: %v, %v", list, err)
	}
	_, _, err = s.CreatePreview(ctx, id, preview.Request{Port: 8000, For: time.Minute})
	hasCode(t, "a link to an ended sandbox", err, "sandbox_terminated", "")
	hasCode(t, "revoking of an ended sandbox", s.RevokePreview(ctx, id, second.ID, ""), "sandbox_terminated", "")
}

func TestPreviewsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldIn(t, t.TempDir())
		srv, err := w.open()
		if err != nil {
			t.Fatal(err)
		}
		s := srv.s
		defer func() {
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			w.powerOff()
		}()
		sb, err := s.Create(t.Context(), CreateRequest{Template: "test"})
		if err != nil {
			t.Fatal(err)
		}
		id := sb.ID
		_, short, err := s.CreatePreview(t.Context(), id, preview.Request{Port: 8000, For: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		long, lasting, err := s.CreatePreview(t.Context(), id, preview.Request{Port: 8000, For: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if err := s.CheckPreview(t.Context(), id, 8000, short); err != nil {
			t.Errorf("before its end: %v", err)
		}
		time.Sleep(2 * time.Second)
		hasCode(t, "after its end", s.CheckPreview(t.Context(), id, 8000, short), "preview_expired", short)
		if err := s.CheckPreview(t.Context(), id, 8000, lasting); err != nil {
			t.Errorf("the other: %v", err)
		}
		if list, err := s.Previews(t.Context(), id); err != nil || len(list) != 1 || list[0] != long {
			t.Errorf("listed %+v, %v", list, err)
		}
		third, _, err := s.CreatePreview(t.Context(), id, preview.Request{Port: 8000, For: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if sb, err := s.Find(t.Context(), id); err != nil || !slices.Equal(sb.Config.Previews, []store.Preview{long, third}) {
			t.Errorf("stored %+v, %v: expired ones are forgotten", sb.Config.Previews, err)
		}
	})
}
