package preview

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

const id = "ithe-sandbox"

// sandboxes are sandboxes that run, by their ids.
type sandboxes map[string]*store.Sandbox

func (s sandboxes) Find(_ context.Context, id string) (store.Sandbox, error) {
	sb := s[id]
	if sb == nil {
		return store.Sandbox{}, errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q does not exist", id)
	}
	return *sb, nil
}

func (s sandboxes) Get(ctx context.Context, id string) (store.Sandbox, error) { return s.Find(ctx, id) }

func (s sandboxes) Configure(_ context.Context, id, _, _ string, change func(*store.Config) error) error {
	return change(&s[id].Config)
}

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

// newLinks returns the links of one sandbox, whose makers all live.
func newLinks() *Links {
	return New(sandboxes{id: {ID: id}}, func(id string) string { return "key of " + id }, nil)
}

func TestPreviewRequests(t *testing.T) {
	s := newLinks()
	for code, requests := range map[string][]Request{
		"port_invalid":      {{Port: 0, For: time.Hour}, {Port: 65536, For: time.Hour}, {Port: agentapi.Port, For: time.Hour}},
		"timeout_invalid":   {{Port: 80}, {Port: 80, For: -time.Second}},
		"timeout_too_large": {{Port: 80, For: mostTime + time.Second}},
	} {
		for _, r := range requests {
			_, _, err := s.CreatePreview(t.Context(), id, r)
			hasCode(t, code, err, code, "")
		}
	}
	for range store.MaxPreviews {
		if _, _, err := s.CreatePreview(t.Context(), id, Request{Port: 80, For: mostTime}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := s.CreatePreview(t.Context(), id, Request{Port: 80, For: time.Hour})
	hasCode(t, "one more", err, "too_many_previews", "")
}

// TestPreviewForgeries changes a good token in every way that there is.
func TestPreviewForgeries(t *testing.T) {
	s := newLinks()
	p, token, err := s.CreatePreview(t.Context(), id, Request{Port: 8000, For: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	forged := []string{"", ".", "p1.", "p1..", "p1", token + ".", token + "A", token + "=", " " + token, token + "\n", strings.ToUpper(token),
		strings.Replace(token, "p1.", "p2.", 1), token[:len(token)-1], token[3:], strings.Repeat("p1.", 1<<20),
		"p1." + token, token[:strings.LastIndexByte(token, '.')] + "."}
	for i := range token {
		for _, c := range "Aa0-_.=" {
			if rune(token[i]) != c {
				forged = append(forged, token[:i]+string(c)+token[i+1:])
			}
		}
	}
	for _, f := range forged {
		hasCode(t, "a forged link", s.CheckPreview(t.Context(), id, 8000, f), "preview_invalid", "")
	}
	// Signed with another sandbox's key, or for another purpose.
	for _, key := range []string{"iother", ""} {
		f := s.token(key, p)
		hasCode(t, "a foreign link", s.CheckPreview(t.Context(), id, 8000, f), "preview_invalid", f)
	}
	if err := s.CheckPreview(t.Context(), id, 8000, token); err != nil {
		t.Errorf("the link itself: %v", err)
	}
}

// TestPreviewEndsWithItsMaker: a link whose maker is gone is as one that was revoked,
// and takes none of the places that the sandbox has for links.
func TestPreviewEndsWithItsMaker(t *testing.T) {
	var gone string
	s := newLinks()
	s.keyLives = func(id string) bool { return id != gone }
	link := func(actor string) string {
		t.Helper()
		_, token, err := s.CreatePreview(t.Context(), id, Request{Port: 80, For: time.Hour, Actor: "key:" + actor})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	kept := link("b")
	for range store.MaxPreviews - 2 {
		link("a")
	}
	lost := link("a")
	if err := s.CheckPreview(t.Context(), id, 80, lost); err != nil {
		t.Fatal(err)
	}
	gone = "a"
	hasCode(t, "a link of who is gone", s.CheckPreview(t.Context(), id, 80, lost), "preview_revoked", lost)
	if err := s.CheckPreview(t.Context(), id, 80, kept); err != nil {
		t.Errorf("a link of another: %v", err)
	}
	if list, err := s.Previews(t.Context(), id); err != nil || len(list) != 1 || list[0].Actor != "key:b" {
		t.Errorf("the links are %+v, %v", list, err)
	}
	link("b")
	gone = "" // what was forgotten does not come back
	hasCode(t, "a link that was forgotten", s.CheckPreview(t.Context(), id, 80, lost), "preview_revoked", lost)
}
