package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Snapshot is a checkpoint that sandboxes can start from. It is independent of
// the sandbox that it was taken of.
type Snapshot struct {
	ID         string    `json:"id"`
	Name       string    `json:"name,omitempty"`
	Sandbox    string    `json:"sandbox"`    // that it was taken of
	Generation int64     `json:"generation"` // of the sandbox at that time
	Template   string    `json:"template"`
	Alias      string    `json:"alias,omitempty"` // of the template
	Mode       Mode      `json:"mode"`
	CreatedAt  time.Time `json:"createdAt"`
	Key        string    `json:"key,omitempty"`      // the id of the API key that created it
	Bytes      int64     `json:"bytes"`              // written for it, or by the pause that it keeps
	FrozenMs   float64   `json:"frozenMs,omitempty"` // how long the running sandbox was frozen for it
	Undo       bool      `json:"undo,omitempty"`     // it keeps what the sandbox was before the last restore
	Pinned     bool      `json:"pinned,omitempty"`   // it neither expires nor makes room for newer ones
	KeepLast   int       `json:"keepLast,omitempty"` // of how many it is one that are kept; zero if it is not deleted for newer ones
	ExpiresAt  time.Time `json:"expiresAt,omitzero"` // zero for never
	// Durability is Local while it is on the disk of its server alone, and Replicated when
	// object storage has it too; empty where there is none.
	Durability Durability `json:"durability,omitempty"`
}

const snapshotsPath = "/v1/snapshots"

func snapshotPath(ref string) string { return snapshotsPath + "/" + url.PathEscape(ref) }

// Snapshots is the snapshots of a server.
type Snapshots struct{ c *Client }

// NewSnapshots returns the snapshots of the server of a client.
func NewSnapshots(c *Client) Snapshots { return Snapshots{c} }

// SnapshotOptions are what a snapshot is to be.
type SnapshotOptions struct {
	Name    string // to find it by; empty for none
	Replace bool   // take the name from the snapshot that has it, which is deleted
	Mode    Mode   // what it keeps; empty for all that the sandbox has

	ExpiresIn time.Duration // how long it is kept; zero for ever
	Pinned    bool          // it neither expires nor makes room for newer ones
	// KeepLast is how many snapshots of the sandbox are kept that were taken with a
	// KeepLast, this one included. Older ones are deleted, but for pinned ones. With
	// zero none is deleted, and this one is not deleted for a later one.
	KeepLast int
}

// Create takes a snapshot of a running or paused sandbox. ErrConflict: the name is
// taken.
func (s Snapshots) Create(ctx context.Context, sandbox string, o SnapshotOptions) (Snapshot, error) {
	body := map[string]any{}
	if o.Name != "" {
		body["name"] = o.Name
	}
	if o.Mode != "" {
		body["mode"] = o.Mode
	}
	if o.Replace {
		body["replace"] = true
	}
	if o.ExpiresIn != 0 {
		body["expiresInSeconds"] = o.ExpiresIn.Seconds()
	}
	if o.Pinned {
		body["pinned"] = true
	}
	if o.KeepLast != 0 {
		body["keepLast"] = o.KeepLast
	}
	var snap Snapshot
	if err := s.c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(sandbox)+"/snapshots", nil, body, &snap); err != nil {
		return Snapshot{}, fmt.Errorf("take snapshot of %s: %w", sandbox, err)
	}
	return snap, nil
}

// SnapshotChange is what becomes of a snapshot that stays; nil leaves a thing as it
// is.
type SnapshotChange struct {
	Pinned    *bool
	ExpiresIn *time.Duration // from now; zero for never
}

// Change changes how long a snapshot is kept, by its id or name.
func (s Snapshots) Change(ctx context.Context, ref string, o SnapshotChange) (Snapshot, error) {
	body := map[string]any{}
	if o.Pinned != nil {
		body["pinned"] = *o.Pinned
	}
	if o.ExpiresIn != nil {
		body["expiresInSeconds"] = o.ExpiresIn.Seconds()
	}
	var snap Snapshot
	if err := s.c.call(ctx, http.MethodPatch, snapshotPath(ref), nil, body, &snap); err != nil {
		return Snapshot{}, fmt.Errorf("change snapshot %s: %w", ref, err)
	}
	return snap, nil
}

// RestoreOptions say what a sandbox is to go back to.
type RestoreOptions struct {
	Snapshot string // id or name of one of its snapshots; empty for what it was before the last restore
	Mode     Mode   // what comes back; empty for all that the snapshot has
	Discard  bool   // do not keep what it is now
}

// Restored is a sandbox that went back.
type Restored struct {
	Info Info   `json:"sandbox"`
	Undo string `json:"undo,omitempty"` // the id of the snapshot that keeps what it was before; empty for none
}

// Restore takes a sandbox back to one of its snapshots. A paused one stays paused; a
// running one runs on from there. ErrNotFound: there is no such snapshot, or nothing
// to undo.
func (s Snapshots) Restore(ctx context.Context, sandbox string, o RestoreOptions) (Restored, error) {
	body := map[string]any{}
	if o.Snapshot != "" {
		body["snapshot"] = o.Snapshot
	} else {
		body["undo"] = true
	}
	if o.Mode != "" {
		body["mode"] = o.Mode
	}
	if o.Discard {
		body["discard"] = true
	}
	var out struct {
		Sandbox answered `json:"sandbox"`
		Undo    string   `json:"undo"`
	}
	if err := s.c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(sandbox)+"/restore", nil, body, &out); err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", sandbox, err)
	}
	return Restored{Info: out.Sandbox.info, Undo: out.Undo}, nil
}

// List returns all snapshots, newest first; of one sandbox, where that is not
// empty.
func (s Snapshots) List(ctx context.Context, sandbox string) ([]Snapshot, error) {
	path := snapshotsPath
	if sandbox != "" {
		path = "/v1/sandboxes/" + url.PathEscape(sandbox) + "/snapshots"
	}
	var out struct {
		Snapshots []Snapshot `json:"snapshots"`
	}
	if err := s.c.call(ctx, http.MethodGet, path, nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return out.Snapshots, nil
}

// Get returns a snapshot by its id or name.
func (s Snapshots) Get(ctx context.Context, ref string) (Snapshot, error) {
	var snap Snapshot
	if err := s.c.call(ctx, http.MethodGet, snapshotPath(ref), nil, nil, &snap); err != nil {
		return Snapshot{}, fmt.Errorf("get snapshot %s: %w", ref, err)
	}
	return snap, nil
}

// Delete deletes a snapshot, by its id or name. Sandboxes that started from it
// are kept.
func (s Snapshots) Delete(ctx context.Context, ref string) error {
	if err := s.c.call(ctx, http.MethodDelete, snapshotPath(ref), nil, nil, nil); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", ref, err)
	}
	return nil
}

// Child is a sandbox that a fork has started, or why there is none.
type Child struct {
	Sandbox *Sandbox // nil if it did not start
	Info    Info
	Err     error // nil if it did
}

// ForkOptions says what children a sandbox is to have.
type ForkOptions struct {
	Count   int            // at most 100; zero means one
	Timeout *time.Duration // of each; nil means that of the sandbox, and zero no limit
}

// Fork starts sandboxes that go on from what a sandbox is now, with its settings.
// The error is for a fork that has no children at all.
func (s Snapshots) Fork(ctx context.Context, sandbox string, o ForkOptions) ([]Child, error) {
	body := map[string]any{"count": max(o.Count, 1)}
	if o.Timeout != nil {
		body["timeoutSeconds"] = o.Timeout.Seconds()
	}
	var out struct {
		Children []struct {
			Sandbox *answered       `json:"sandbox"`
			Status  int             `json:"status"`
			Error   json.RawMessage `json:"error"`
		} `json:"children"`
	}
	if err := s.c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(sandbox)+"/fork", nil, body, &out); err != nil {
		return nil, fmt.Errorf("fork %s: %w", sandbox, err)
	}
	var children []Child
	for _, c := range out.Children {
		if c.Sandbox != nil {
			children = append(children, Child{Sandbox: s.c.handle(*c.Sandbox), Info: c.Sandbox.info})
			continue
		}
		children = append(children, Child{Err: parseError(c.Status, fmt.Appendf(nil, `{"error":%s}`, c.Error))})
	}
	return children, nil
}

// PushOptions says which image a snapshot becomes, and where.
type PushOptions struct {
	Image string // a reference with a tag, such as ghcr.io/owner/name:1
	// Progress is called as layers are read and sent; it may be nil.
	Progress func(LayerProgress)
}

// PushedImage is an image that a registry has got.
type PushedImage struct {
	Ref    string        `json:"ref"` // with its digest
	Digest string        `json:"digest"`
	Layers []PushedLayer `json:"layers"` // bottom first: what the sandbox started from, and what it changed
}

// PushedLayer is a layer of such an image.
type PushedLayer struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`  // as it is transferred
	Bytes  int64  `json:"bytes"` // uncompressed
}

// Push has the server send the files of a snapshot to a registry as an OCI image,
// with the server's credentials. A template that was built can be named too. Memory,
// and the variables of the sandbox, are not in it.
func (s Snapshots) Push(ctx context.Context, ref string, o PushOptions) (PushedImage, error) {
	req, err := s.c.request(ctx, http.MethodPost, snapshotPath(ref)+"/push", nil, map[string]string{"image": o.Image})
	if err == nil {
		var last madeLine
		if last, err = follow(s.c, req, o.Progress); err == nil && last.Image != nil {
			return *last.Image, nil
		}
		if err == nil {
			err = errNothingMade
		}
	}
	return PushedImage{}, fmt.Errorf("push snapshot %s: %w", ref, err)
}

// Save writes the files of a snapshot to w as an OCI image layout in a tar, as Push
// would send them, and returns how many bytes that were. After an error what was
// written is not whole.
func (s Snapshots) Save(ctx context.Context, ref string, w io.Writer) (int64, error) {
	n, err := download(ctx, s.c, snapshotPath(ref)+"/image", w)
	if err != nil {
		return n, fmt.Errorf("save snapshot %s: %w", ref, err)
	}
	return n, nil
}
