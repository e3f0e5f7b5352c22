package memstore

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
)

// settings are those of a template, in the form that survives.
type settings struct {
	data    []byte
	waiting int
	at      time.Time
}

// SetTemplateSettings implements store.Store.
func (s *Store) SetTemplateSettings(_ context.Context, key, template string, said store.TemplateSettings, now time.Time) error {
	data, err := encode(said)
	if err != nil {
		return fmt.Errorf("store the settings of template %s: %w", template, err)
	}
	if err := store.FitSettings(template, len(template)+len(data)); err != nil {
		return err
	}
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	maps.DeleteFunc(s.d.settings, func(_ claim, x settings) bool { return now.Sub(x.at) >= store.SettingsLife })
	as, waiting := claim{key, template}, 0
	if old, known := s.d.settings[as]; known && string(old.data) == string(data) {
		waiting = old.waiting
	} else if old.waiting > 0 && now.Sub(old.at) < store.SettingsCreateWithin {
		return store.ErrTemplateDiffers(template)
	}
	s.d.settings[as] = settings{data, waiting + 1, now}
	s.d.dropOldestSettings(as)
	return nil
}

// dropOldestSettings drops those of a key that are too many, but not the last said.
func (d *Data) dropOldestSettings(last claim) {
	var (
		of     int
		oldest claim
	)
	for as, x := range d.settings {
		if as.key != last.key {
			continue
		}
		if of++; as != last && (oldest == claim{} || x.at.Before(d.settings[oldest].at)) {
			oldest = as
		}
	}
	if of > store.MostSettings {
		delete(d.settings, oldest)
	}
}

// UseTemplateSettings implements store.Store.
func (s *Store) UseTemplateSettings(_ context.Context, key, template string, now time.Time) (store.TemplateSettings, bool, error) {
	if err := s.lock(); err != nil {
		return store.TemplateSettings{}, false, err
	}
	defer s.d.mu.Unlock()
	x, known := s.d.settings[claim{key, template}]
	if !known || now.Sub(x.at) >= store.SettingsLife {
		return store.TemplateSettings{}, false, nil
	}
	x.waiting = max(0, x.waiting-1)
	s.d.settings[claim{key, template}] = x
	said, err := decode[store.TemplateSettings](x.data)
	return said, err == nil, err
}
