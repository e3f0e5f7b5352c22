package storetest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// useSettings returns what holds for a create, and nil for nothing.
func useSettings(t *testing.T, s store.Store, key, template string, now time.Time) *store.TemplateSettings {
	t.Helper()
	said, known, err := s.UseTemplateSettings(t.Context(), key, template, now)
	if err != nil {
		t.Fatal(err)
	}
	if !known {
		return nil
	}
	return &said
}

func setSettings(t *testing.T, s store.Store, key, template string, said store.TemplateSettings, now time.Time) {
	t.Helper()
	if err := s.SetTemplateSettings(t.Context(), key, template, said, now); err != nil {
		t.Fatal(err)
	}
}

func testTemplateSettings(t *testing.T, h harness) {
	s := h.open(t)
	var said store.TemplateSettings
	fill(t, &said, utc)
	other := store.TemplateSettings{MemoryMiB: 1}
	addKey(t, s, key(1, epoch))
	setSettings(t, s, "key-1", "t", said, elsewhere(1))
	setSettings(t, s, "key-1", "t", said, elsewhere(1))
	setSettings(t, s, "key-2", "t", other, utc(1))
	if useSettings(t, s, "key-1", "t2", utc(1)) != nil {
		t.Error("a template that nothing was said of has settings")
	}
	// Two creates are to come, before a restart and after it.
	for range 2 {
		wantClass(t, errdef.Exhausted, func() error {
			return s.SetTemplateSettings(t.Context(), "key-1", "t", other, utc(1).Add(store.SettingsCreateWithin-time.Nanosecond))
		})
		s = h.reopen(t, s)
		if got := useSettings(t, s, "key-1", "t", utc(1)); !reflect.DeepEqual(got, &said) {
			t.Errorf("the settings are %+v, want %+v", got, said)
		}
	}
	setSettings(t, s, "key-1", "t", other, utc(1))
	setSettings(t, s, "key-1", "t", said, utc(1).Add(store.SettingsCreateWithin)) // nobody came
	if err := s.RemoveKey(t.Context(), "key-1"); err != nil {
		t.Fatal(err)
	}
	if useSettings(t, s, "key-1", "t", utc(1)) != nil || useSettings(t, s, "key-2", "t", utc(1)) == nil {
		t.Error("the settings of a removed key are kept, or others went with them")
	}
	late := utc(1).Add(store.SettingsLife)
	if useSettings(t, s, "key-2", "t", late.Add(-1)) == nil || useSettings(t, s, "key-2", "t", late) != nil {
		t.Error("settings do not hold for their life")
	}
	large := store.TemplateSettings{AllowOut: []string{strings.Repeat("x", store.MostSettingsBytes)}}
	wantClass(t, errdef.Invalid, func() error { return s.SetTemplateSettings(t.Context(), "key-2", "large", large, utc(1)) })

	for i := range store.MostSettings + 2 {
		setSettings(t, s, "key-3", fmt.Sprint("t", i), other, utc(1).Add(time.Duration(i)))
	}
	setSettings(t, s, "key-4", "t", other, utc(1))
	for i, want := range []bool{false, false, true} {
		if got := useSettings(t, s, "key-3", fmt.Sprint("t", i), utc(1)); (got != nil) != want {
			t.Errorf("with two too many, number %d is %v", i, got)
		}
	}
	setSettings(t, s, "key-3", "earlier", other, epoch) // the clock was set back
	if useSettings(t, s, "key-3", "earlier", epoch) == nil || useSettings(t, s, "key-3", "t2", utc(1)) != nil {
		t.Error("what was said last made no room, or went itself")
	}
}

// testTemplateSettingsWriters holds that of several who say different things at once one
// is heard, and that as many creates are awaited as said the same.
func testTemplateSettingsWriters(t *testing.T, h harness) {
	s := h.open(t)
	if n := atOnce(t, 8, errdef.Exhausted, func(i int) error {
		return s.SetTemplateSettings(t.Context(), "k", "t", store.TemplateSettings{MemoryMiB: i + 1}, epoch)
	}); n != 1 {
		t.Errorf("%d were heard at once", n)
	}
	said := *useSettings(t, s, "k", "t", epoch)
	const creates = 8
	if n := atOnce(t, creates, errdef.Exhausted, func(int) error { return s.SetTemplateSettings(t.Context(), "k", "t", said, epoch) }); n != creates {
		t.Errorf("%d of %d that say the same were heard", n, creates)
	}
	differs := func() error {
		return s.SetTemplateSettings(t.Context(), "k", "t", store.TemplateSettings{Internet: true}, epoch)
	}
	atOnce(t, creates-1, errdef.Exhausted, func(int) error {
		_, _, err := s.UseTemplateSettings(t.Context(), "k", "t", epoch)
		return err
	})
	wantClass(t, errdef.Exhausted, differs)
	useSettings(t, s, "k", "t", epoch)
	if err := differs(); err != nil {
		t.Errorf("with no create to come: %v", err)
	}
}
