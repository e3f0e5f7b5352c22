package storetest

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

func webhooks(t *testing.T, s store.Store) []store.Webhook {
	t.Helper()
	all, err := s.Webhooks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func putWebhook(t *testing.T, s store.Store, w store.Webhook) {
	t.Helper()
	if err := s.PutWebhook(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

func testWebhooks(t *testing.T, h harness) {
	s := h.open(t)
	if got := webhooks(t, s); len(got) != 0 {
		t.Errorf("an empty store has %+v", got)
	}
	late := store.Webhook{ID: "late", CreatedAt: epoch.Add(time.Hour)}
	putWebhook(t, s, late)
	var given, want store.Webhook
	fill(t, &given, elsewhere)
	fill(t, &want, utc)
	given.ID, want.ID = "full", "full"
	given.CreatedAt, want.CreatedAt = epoch, epoch
	putWebhook(t, s, given)
	given.Events[0] = "changed after it was put"
	webhooks(t, s)[0].Events[0] = "changed after it was read"
	s = h.reopen(t, s)
	all := webhooks(t, s)
	if len(all) != 2 || all[1].ID != "late" {
		t.Fatalf("webhooks %+v, want two, the oldest first", all)
	}
	diff(t, "webhook", all[0], want)
	if data, err := json.Marshal(all[0]); err != nil || strings.Contains(string(data), "Secret") {
		t.Errorf("as JSON: %s, %v; want no secret", data, err)
	}

	late.Cursor, late.Secret = 7, "other"
	putWebhook(t, s, late)
	s = h.reopen(t, s)
	if got := webhooks(t, s); len(got) != 2 || got[1].Cursor != 7 || got[1].Secret != "other" {
		t.Errorf("after a change: %+v", got)
	}

	got, err := s.ChangeWebhook(t.Context(), "late", func(w *store.Webhook) error {
		w.Cursor, w.Name = w.Cursor+1, "changed"
		return nil
	})
	if err != nil || got.Cursor != 8 || got.Name != "changed" || got.Secret != "other" {
		t.Errorf("changed to %+v, %v", got, err)
	}
	refused := errdef.New(errdef.Invalid, "webhook_invalid", "refused")
	wantClass(t, errdef.Invalid, func() error {
		_, err := s.ChangeWebhook(t.Context(), "late", func(w *store.Webhook) error {
			w.Name, w.Events = "refused", append(w.Events, "refused")
			return refused
		})
		return err
	})
	other := errors.New("other")
	if _, err := s.ChangeWebhook(t.Context(), "late", func(*store.Webhook) error { return other }); !errors.Is(err, other) {
		t.Errorf("an error of the change is returned as %v", err)
	}
	wantClass(t, errdef.NotFound, func() error {
		_, err := s.ChangeWebhook(t.Context(), "none", func(*store.Webhook) error { return nil })
		return err
	})
	s = h.reopen(t, s)
	if all := webhooks(t, s); len(all) != 2 || all[1].Cursor != 8 || all[1].Name != "changed" || len(all[1].Events) != 0 {
		t.Errorf("after changes: %+v", all)
	}
	if err := s.DeleteWebhook(t.Context(), "late"); err != nil {
		t.Error(err)
	}
	s = h.reopen(t, s)
	if got := webhooks(t, s); slices.ContainsFunc(got, func(w store.Webhook) bool { return w.ID == "late" }) {
		t.Errorf("after it was deleted: %+v", got)
	}
	wantClass(t, errdef.NotFound, func() error { return s.DeleteWebhook(t.Context(), "late") })
}
