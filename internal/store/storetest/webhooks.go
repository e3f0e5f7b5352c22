package storetest

import (
	"encoding/json"
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
	if err := s.DeleteWebhook(t.Context(), "late"); err != nil {
		t.Error(err)
	}
	s = h.reopen(t, s)
	if got := webhooks(t, s); slices.ContainsFunc(got, func(w store.Webhook) bool { return w.ID == "late" }) {
		t.Errorf("after it was deleted: %+v", got)
	}
	wantClass(t, errdef.NotFound, func() error { return s.DeleteWebhook(t.Context(), "late") })
}
