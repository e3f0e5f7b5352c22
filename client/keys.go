package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Role says what an API key is good for.
type Role string

// The roles.
const (
	RoleAdmin Role = "admin" // everything
	RoleFull  Role = "full"  // everything with sandboxes, whoever has made them
	RoleOwn   Role = "own"   // everything with the sandboxes that the key has made; it sees no others
	RoleRead  Role = "read"  // to look at sandboxes from outside
)

// KeyOptions says what a new API key is to be.
type KeyOptions struct {
	Name   string        // what or whom it is for
	Role   Role          // empty means RoleFull
	For    time.Duration // how long it is good; zero means for ever
	Limits KeyLimits
}

// KeyLimits bound what the sandboxes that a key has made take together, and the calls
// that it makes. Zero is no bound.
type KeyLimits struct {
	MaxRunning   int `json:"maxRunning"`   // how many run at once; a wake counts, whoever asks for it
	MaxSandboxes int `json:"maxSandboxes"` // how many there are, those that sleep included
	MaxMemoryMiB int `json:"maxMemoryMiB"` // the memory limits of those that run, added up
	MaxDiskMiB   int `json:"maxDiskMiB"`   // the limits on disk of all of them, added up
	MaxRate      int `json:"maxRate"`      // calls of the API per second; zero is what the server allows every key
}

// KeyLimitsChange is what becomes of the limits of a key; nil leaves one as it is, and
// zero takes it away.
type KeyLimitsChange struct {
	MaxRunning   *int `json:"maxRunning,omitempty"`
	MaxSandboxes *int `json:"maxSandboxes,omitempty"`
	MaxMemoryMiB *int `json:"maxMemoryMiB,omitempty"`
	MaxDiskMiB   *int `json:"maxDiskMiB,omitempty"`
	MaxRate      *int `json:"maxRate,omitempty"`
}

// KeyUse is what the sandboxes that a key has made take together.
type KeyUse struct {
	Running   int `json:"running"`
	Sandboxes int `json:"sandboxes"`
	MemoryMiB int `json:"memoryMiB"`
	DiskMiB   int `json:"diskMiB"`
}

// KeyCost is what the sandboxes and requests of a key cost the server itself.
type KeyCost struct {
	// Now.
	Starting      int   `json:"starting"`      // sandboxes on their way up, those that wait for a turn included
	Requests      int   `json:"requests"`      // requests and streams open into its sandboxes
	Descriptors   int   `json:"descriptors"`   // of connections out of its sandboxes
	BufferedBytes int   `json:"bufferedBytes"` // that wait for clients and guests: of bodies, input, output and connections out
	KeptBytes     int   `json:"keptBytes"`     // kept for clients who ask later
	Sessions      int   `json:"sessions"`      // over SSH and of terminals
	LogBytes      int64 `json:"logBytes"`      // kept of what its sandboxes log

	// Since the server's start.
	DatabaseBytes     int64   `json:"databaseBytes"`     // written
	CheckpointSeconds float64 `json:"checkpointSeconds"` // spent to checksum checkpoints, make them durable and verify them
}

// Key is an API key.
type Key struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Role       Role      `json:"role"`
	Mask       string    `json:"mask"` // how its text begins and ends
	CreatedAt  time.Time `json:"createdAt"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`  // zero for never
	LastUsedAt time.Time `json:"lastUsedAt,omitzero"` // zero for never
	Limits     KeyLimits `json:"limits"`
	Use        KeyUse    `json:"use"` // now
	Cost       KeyCost   `json:"cost"`
	Text       string    `json:"key,omitempty"` // what is sent with calls; from CreateKey and RotateKey alone
}

// CreateKey makes an API key. Its Text is shown now and never again. Only an
// admin key may; all others get ErrForbidden from the calls on keys.
func (c *Client) CreateKey(ctx context.Context, o KeyOptions) (Key, error) {
	in := struct {
		Name    string  `json:"name"`
		Role    Role    `json:"role,omitempty"`
		Expires seconds `json:"expiresInSeconds,omitempty"`
		Running int     `json:"maxRunning,omitempty"`
		All     int     `json:"maxSandboxes,omitempty"`
		Memory  int     `json:"maxMemoryMiB,omitempty"`
		Disk    int     `json:"maxDiskMiB,omitempty"`
		Rate    int     `json:"maxRate,omitempty"`
	}{o.Name, o.Role, seconds(o.For), o.Limits.MaxRunning, o.Limits.MaxSandboxes, o.Limits.MaxMemoryMiB, o.Limits.MaxDiskMiB, o.Limits.MaxRate}
	var k Key
	if err := c.call(ctx, http.MethodPost, keysPath, nil, in, &k); err != nil {
		return Key{}, fmt.Errorf("make an API key: %w", err)
	}
	return k, nil
}

// Keys returns all API keys, oldest first, those that have expired included.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	var out struct {
		Keys []Key `json:"keys"`
	}
	if err := c.call(ctx, http.MethodGet, keysPath, nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list the API keys: %w", err)
	}
	return out.Keys, nil
}

// RenameKey gives an API key another name. ErrNotFound: there is none of that id.
func RenameKey(ctx context.Context, c *Client, id, name string) (Key, error) {
	var k Key
	if err := c.call(ctx, http.MethodPatch, keysPath+"/"+url.PathEscape(id), nil, map[string]string{"name": name}, &k); err != nil {
		return Key{}, fmt.Errorf("rename API key %s: %w", id, err)
	}
	return k, nil
}

// LimitKey changes limits of an API key. They hold from its next call, start and wake
// on; what runs already stays. ErrNotFound: there is none of that id.
func LimitKey(ctx context.Context, c *Client, id string, change KeyLimitsChange) (Key, error) {
	var k Key
	if err := c.call(ctx, http.MethodPatch, keysPath+"/"+url.PathEscape(id), nil, change, &k); err != nil {
		return Key{}, fmt.Errorf("limit API key %s: %w", id, err)
	}
	return k, nil
}

// RotateKey gives an API key another text, which is text, or a new one if that is
// empty. The id may be SelfKey. The old text is worthless at once, and what was opened
// with it ends. ErrNotFound: there is none of that id.
func RotateKey(ctx context.Context, c *Client, id, text string) (Key, error) {
	in := map[string]string{}
	if text != "" {
		in["key"] = text
	}
	var k Key
	if err := c.call(ctx, http.MethodPost, keysPath+"/"+url.PathEscape(id)+"/rotate", nil, in, &k); err != nil {
		return Key{}, fmt.Errorf("rotate API key %s: %w", id, err)
	}
	return k, nil
}

// SelfKey stands for the id of the key that a call is made with, in RotateKey.
const SelfKey = "self"

// RevokeKey makes an API key worthless at once; the sandboxes that it has made
// live on. ErrNotFound: there is none of that id. ErrConflict: it is the last
// with which others can be made.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	if err := c.call(ctx, http.MethodDelete, keysPath+"/"+url.PathEscape(id), nil, nil, nil); err != nil {
		return fmt.Errorf("revoke API key %s: %w", id, err)
	}
	return nil
}

const keysPath = "/v1/keys"
