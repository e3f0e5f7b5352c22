package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Dashboard is a server's pages for people, at /ui.
type Dashboard struct{ c *Client }

// NewDashboard returns the dashboard of the server of a client.
func NewDashboard(c *Client) Dashboard { return Dashboard{c} }

// SignInLink lets a browser into a dashboard, once.
type SignInLink struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// SignInLink makes a link that signs a browser in, with the rights of the client's
// API key. Whoever has it can use it.
func (d Dashboard) SignInLink(ctx context.Context) (SignInLink, error) {
	var out struct {
		Reference string    `json:"relativeURL"`
		ExpiresAt time.Time `json:"expiresAt"`
	}
	if err := d.c.call(ctx, http.MethodPost, "/ui/links", nil, nil, &out); err != nil {
		return SignInLink{}, fmt.Errorf("make a link to the dashboard: %w", err)
	}
	ref, err := url.Parse(out.Reference)
	if err != nil {
		return SignInLink{}, fmt.Errorf("make a link to the dashboard: %w", err)
	}
	u := d.c.api.JoinPath(ref.Path)
	u.Fragment = ref.Fragment
	return SignInLink{URL: u.String(), ExpiresAt: out.ExpiresAt}, nil
}
