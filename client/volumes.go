package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Volume is a directory that outlives sandboxes, and that several can have at
// once.
type Volume struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	DiskMiB   int       `json:"diskMiB"` // what it may hold; 0 for no limit
	// DiskBytes is what its files took at DiskMeasuredAt, when they were last measured;
	// both are nil if that is unknown.
	DiskBytes      *int64     `json:"diskBytes"`
	DiskMeasuredAt *time.Time `json:"diskMeasuredAt"`
	Token          string     `json:"token,omitempty"` // what opens its files; not in a list
}

const volumesPath = "/v1/volumes"

// CreateVolume makes an empty volume. ErrConflict: the name is taken.
func (c *Client) CreateVolume(ctx context.Context, name string) (Volume, error) {
	return c.CreateVolumeWith(ctx, VolumeOptions{Name: name})
}

// VolumeOptions is what a new volume is to be.
type VolumeOptions struct {
	Name    string `json:"name"`
	DiskMiB int    `json:"diskMiB,omitempty"` // what it may hold; 0 for what the server allows
}

// CreateVolumeWith makes an empty volume. ErrConflict: the name is taken.
func (c *Client) CreateVolumeWith(ctx context.Context, o VolumeOptions) (Volume, error) {
	var v Volume
	if err := c.call(ctx, http.MethodPost, volumesPath, nil, o, &v); err != nil {
		return Volume{}, fmt.Errorf("create volume %s: %w", o.Name, err)
	}
	return v, nil
}

// Volumes returns all volumes, oldest first.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	var out struct {
		Volumes []Volume `json:"volumes"`
	}
	if err := c.call(ctx, http.MethodGet, volumesPath, nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	return out.Volumes, nil
}

// Volume returns a volume by its id.
func (c *Client) Volume(ctx context.Context, id string) (Volume, error) {
	var v Volume
	if err := c.call(ctx, http.MethodGet, volumesPath+"/"+url.PathEscape(id), nil, nil, &v); err != nil {
		return Volume{}, fmt.Errorf("get volume %s: %w", id, err)
	}
	return v, nil
}

// DeleteVolume deletes a volume and all its files. ErrConflict: a sandbox has it,
// asleep or not.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	if err := c.call(ctx, http.MethodDelete, volumesPath+"/"+url.PathEscape(id), nil, nil, nil); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	return nil
}
