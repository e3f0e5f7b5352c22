package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// PreviewOptions says what a preview link is to be.
type PreviewOptions struct {
	Port int           // of a server in the sandbox
	For  time.Duration // how long it is good, 30 days at most; zero means an hour
	Path string        // where the link leads, such as "/docs?page=2"; empty means "/"
}

// Preview is a link by which whoever has it reaches one port of a sandbox for a
// while. It wakes the sandbox where traffic to that port does.
type Preview struct {
	ID        string    `json:"id"`
	Port      int       `json:"port"`
	CreatedAt time.Time `json:"createdAt"`
	ExpiresAt time.Time `json:"expiresAt"`
	Actor     string    `json:"actor,omitempty"` // who made it
	Token     string    `json:"token,omitempty"` // what it proves itself by; from CreatePreview alone
	URL       string    `json:"url,omitempty"`   // the link; from CreatePreview alone
}

// CreatePreview makes a link to a port of a sandbox, running or asleep. It is
// no activity and wakes nothing. Its URL is shown now and never again.
func (c *Client) CreatePreview(ctx context.Context, id string, o PreviewOptions) (Preview, error) {
	in := struct {
		Port    int     `json:"port"`
		Expires seconds `json:"expiresInSeconds,omitempty"`
		Path    string  `json:"path,omitempty"`
	}{o.Port, seconds(o.For), o.Path}
	var p Preview
	if err := c.on(ctx, http.MethodPost, id, "/previews", in, &p); err != nil {
		return Preview{}, fmt.Errorf("make a preview link to sandbox %s: %w", id, err)
	}
	return p, nil
}

// Previews returns the links of a sandbox that are good, oldest first.
func (c *Client) Previews(ctx context.Context, id string) ([]Preview, error) {
	var out struct {
		Previews []Preview `json:"previews"`
	}
	if err := c.on(ctx, http.MethodGet, id, "/previews", nil, &out); err != nil {
		return nil, fmt.Errorf("list the preview links of sandbox %s: %w", id, err)
	}
	return out.Previews, nil
}

// RevokePreview makes a link worthless before its time. ErrNotFound: there is
// none of that id, or it has expired.
func (c *Client) RevokePreview(ctx context.Context, id, preview string) error {
	if err := c.on(ctx, http.MethodDelete, id, "/previews/"+url.PathEscape(preview), nil, nil); err != nil {
		return fmt.Errorf("revoke preview link %s of sandbox %s: %w", preview, id, err)
	}
	return nil
}
