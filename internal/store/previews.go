package store

import (
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Preview is a link by which whoever has it reaches one port of a sandbox for a
// while. What the link says is signed and not kept; it is good for as long as
// it is listed here.
type Preview struct {
	ID        string    `json:"id"`
	Port      int       `json:"port"`
	CreatedAt time.Time `json:"createdAt"`
	ExpiresAt time.Time `json:"expiresAt"`
	Actor     string    `json:"actor,omitempty"` // who made it
}

// MaxPreviews bounds how many links of one sandbox are good at once.
const MaxPreviews = 100

// LivePreviews returns the links that have not expired, oldest first.
func (c Config) LivePreviews(now time.Time) []Preview {
	return slices.DeleteFunc(slices.Clone(c.Previews), func(p Preview) bool { return !now.Before(p.ExpiresAt) })
}

// AddPreview lists a link, and forgets those that have expired.
func (c *Config) AddPreview(p Preview, now time.Time) error {
	live := c.LivePreviews(now)
	if len(live) >= MaxPreviews {
		return errdef.New(errdef.Exhausted, "too_many_previews", "the sandbox has %d preview links already", len(live)).
			WithRemedy("revoke some that nobody needs, or let them expire").With("allowed", MaxPreviews)
	}
	c.Previews = append(live, p)
	return nil
}

// RemovePreview takes a link off the list, and with it those that have expired.
func (c *Config) RemovePreview(id string, now time.Time) error {
	live := c.LivePreviews(now)
	left := slices.DeleteFunc(slices.Clone(live), func(p Preview) bool { return p.ID == id })
	if len(left) == len(live) {
		return errdef.New(errdef.NotFound, "preview_not_found", "the sandbox has no preview link of that id").
			WithRemedy("list its links: this one may have expired")
	}
	c.Previews = left
	return nil
}
