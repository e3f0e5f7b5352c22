package client

import (
	"context"
	"fmt"
	"net/http"
)

// Finding is one thing that the server has looked at on its host.
type Finding struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required"`         // without it no sandbox runs
	Detail   string `json:"detail"`           // what was found
	Remedy   string `json:"remedy,omitempty"` // what to do if it is not OK
}

// Doctor returns what the server finds of its host, and whether all that is required
// is there. It starts no sandbox, and needs an admin key. Findings may be 10 seconds
// old.
func Doctor(ctx context.Context, c *Client) (ok bool, findings []Finding, err error) {
	var out struct {
		OK       bool      `json:"ok"`
		Findings []Finding `json:"findings"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/doctor", nil, nil, &out); err != nil {
		return false, nil, fmt.Errorf("ask the server about its host: %w", err)
	}
	return out.OK, out.Findings, nil
}
