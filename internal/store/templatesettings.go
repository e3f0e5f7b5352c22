package store

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TemplateSettings is what an API key says of the sandboxes that it makes of a
// template.
type TemplateSettings struct {
	Internet    bool     `json:"internet,omitempty"`    // to reach what no rule allows
	AllowOut    []string `json:"allowOut,omitempty"`    // addresses, networks and names
	PublicPorts bool     `json:"publicPorts,omitempty"` // its ports are open without a token
	CPUs        float64  `json:"cpus,omitempty"`        // 0 for the server's own
	MemoryMiB   int      `json:"memoryMiB,omitempty"`   // likewise
}

// Bounds of the settings of templates.
const (
	// SettingsCreateWithin is how long the create of a sandbox may be behind the
	// settings that are for it.
	SettingsCreateWithin = 60 * time.Second
	// SettingsLife is how long settings hold after they were said last.
	SettingsLife = 24 * time.Hour
	// MostSettings is of how many templates an API key may say something. The next one
	// takes the place of the one that was spoken of longest ago.
	MostSettings = 256
	// MostSettingsBytes is how large those of one template may be, as they are stored.
	MostSettingsBytes = 128 << 10
)

// SettingsOfTemplates is what API keys said last of templates, in a call before that of
// the create.
type SettingsOfTemplates interface {
	// SetTemplateSettings stores settings, for a create that is to come. Two creates at
	// once that say different things could get each other's: it is errdef.Exhausted
	// while one is to come that others are for. It is errdef.Invalid if they are too large.
	SetTemplateSettings(ctx context.Context, key, template string, said TemplateSettings, now time.Time) error
	// UseTemplateSettings returns the settings for a create, which is to come no longer,
	// and false if there are none.
	UseTemplateSettings(ctx context.Context, key, template string, now time.Time) (TemplateSettings, bool, error)
}

// ErrTemplateDiffers is what SetTemplateSettings returns while others are to be used.
func ErrTemplateDiffers(template string) error {
	return errdef.New(errdef.Exhausted, "template_differs", "template %q was given another network or other resources just now, and the sandbox that these are for is not made yet", template).
		WithRemedy("try again in a moment; for sandboxes of two kinds at once give the template a second name").
		With("retry_after_ms", SettingsCreateWithin.Milliseconds())
}

// FitSettings refuses settings of a size in bytes that is too large.
func FitSettings(template string, bytes int) error {
	if bytes <= MostSettingsBytes {
		return nil
	}
	return errdef.New(errdef.Invalid, "template_settings_too_large", "what is said of template %q takes %d bytes, and may take %d", template, bytes, MostSettingsBytes).
		WithRemedy("allow fewer addresses and names").With("allowed", MostSettingsBytes)
}

// templateSettings is the part of a database with the settings of templates.
type templateSettings struct{ s *SQL }

// SetTemplateSettings implements [Store].
func (x templateSettings) SetTemplateSettings(ctx context.Context, key, template string, said TemplateSettings, now time.Time) error {
	data, err := encode(said)
	if err == nil {
		err = FitSettings(template, len(template)+len(data))
	}
	if err == nil {
		err = x.s.write(ctx, key, func(ctx context.Context, tx *sql.Tx) error {
			return setTemplateSettings(ctx, tx, key, template, data, now)
		})
	}
	return x.s.explain(err, "store the settings of template %s", template)
}

func setTemplateSettings(ctx context.Context, tx *sql.Tx, key, template, data string, now time.Time) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM template_settings WHERE set_at <= ?`, stamp(now.Add(-SettingsLife))); err != nil {
		return err
	}
	differs, err := holds(ctx, tx, `SELECT 1 FROM template_settings WHERE key = ? AND template = ? AND data <> ? AND waiting > 0 AND set_at > ?`,
		key, template, data, stamp(now.Add(-SettingsCreateWithin)))
	if err != nil {
		return err
	}
	if differs {
		return ErrTemplateDiffers(template)
	}
	if _, err := tx.ExecContext(ctx, `
		INSERT INTO template_settings (key, template, waiting, set_at, version, data) VALUES (?, ?, 1, ?, ?, ?)
		ON CONFLICT (key, template) DO UPDATE SET waiting = CASE WHEN template_settings.data = excluded.data THEN template_settings.waiting ELSE 0 END + 1,
			set_at = excluded.set_at, version = excluded.version, data = excluded.data`,
		key, template, stamp(now), formVersion, data); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		DELETE FROM template_settings WHERE key = ?1 AND template IN (
			SELECT template FROM template_settings WHERE key = ?1 ORDER BY template = ?2 DESC, set_at DESC LIMIT ?4 OFFSET ?3)`,
		key, template, MostSettings, math.MaxInt64)
	return err
}

// UseTemplateSettings implements [Store].
func (x templateSettings) UseTemplateSettings(ctx context.Context, key, template string, now time.Time) (said TemplateSettings, known bool, err error) {
	err = x.s.write(ctx, key, func(ctx context.Context, tx *sql.Tx) error {
		var (
			version int
			data    []byte
		)
		err := tx.QueryRowContext(ctx, `
			UPDATE template_settings SET waiting = CASE WHEN waiting > 0 THEN waiting - 1 ELSE 0 END WHERE key = ? AND template = ? AND set_at > ?
			RETURNING version, data`, key, template, stamp(now.Add(-SettingsLife))).Scan(&version, &data)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		known = err == nil
		if err == nil {
			err = decode("settings of template "+template, version, data, &said)
		}
		return err
	})
	if err != nil {
		said, known = TemplateSettings{}, false
	}
	return said, known, x.s.explain(err, "use the settings of template %s", template)
}
