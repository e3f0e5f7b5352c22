package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AuditEntry is a call of the server's API by somebody who wanted more than to look,
// or who was refused.
type AuditEntry struct {
	Seq      int64     `json:"seq"`     // counts entries, from 1
	At       time.Time `json:"at"`      // when the answer began
	Key      *AuditKey `json:"key"`     // nil if the call had no good key
	Address  string    `json:"address"` // of the client
	Method   string    `json:"method"`
	Path     string    `json:"path"`               // without the query; cut at 512 bytes
	Sandbox  string    `json:"sandbox,omitempty"`  // the id of the one that the call was about, or made
	Status   int       `json:"status,omitempty"`   // of the answer; 0 if the client had none
	Unlogged int       `json:"unlogged,omitempty"` // calls of the same key before it that were too many to log
}

// AuditKey is the API key of a call, as it was then.
type AuditKey struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Role Role   `json:"role"`
}

// AuditQuery says which entries are wanted.
type AuditQuery struct {
	First   bool   // the first ones after After, and not the last ones of all
	After   int64  // a Seq
	Most    int    // how many, at most 1000; 0 for 100
	Key     string // only with the API key of this id
	Sandbox string // only about the sandbox of this id
}

// Audit returns entries of the server's audit log, oldest first, and the Seq after
// which the next ones come. It needs an admin key.
func Audit(ctx context.Context, c *Client, q AuditQuery) (entries []AuditEntry, next int64, err error) {
	query := url.Values{}
	if q.First {
		query.Set("after", strconv.FormatInt(q.After, 10))
	}
	if q.Most > 0 {
		query.Set("limit", strconv.Itoa(q.Most))
	}
	if q.Key != "" {
		query.Set("key", q.Key)
	}
	if q.Sandbox != "" {
		query.Set("sandbox", q.Sandbox)
	}
	var out struct {
		Entries []AuditEntry `json:"entries"`
		Next    int64        `json:"next"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/audit", query, nil, &out); err != nil {
		return nil, 0, fmt.Errorf("read the audit log: %w", err)
	}
	return out.Entries, out.Next, nil
}
