package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// SSHKey is the public key of an SSH client, which the server's SSH listener lets
// into sandboxes as the API key that has added it.
type SSHKey struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	PublicKey   string    `json:"publicKey"`   // type and Base64
	Fingerprint string    `json:"fingerprint"` // as ssh-keygen -l prints it
	CreatedAt   time.Time `json:"createdAt"`
}

// SSHKeys are the SSH keys of one API key.
type SSHKeys struct{ c *Client }

// NewSSHKeys returns those of the client's key.
func NewSSHKeys(c *Client) SSHKeys { return SSHKeys{c} }

const sshKeysPath = "/v1/ssh-keys"

// Add adds the key in the line of a .pub file. Without a name, its comment is the
// name. ErrConflict: it is there already.
func (k SSHKeys) Add(ctx context.Context, name, publicKey string) (SSHKey, error) {
	in := struct {
		Name      string `json:"name,omitempty"`
		PublicKey string `json:"publicKey"`
	}{name, publicKey}
	var out SSHKey
	if err := k.c.call(ctx, http.MethodPost, sshKeysPath, nil, in, &out); err != nil {
		return SSHKey{}, fmt.Errorf("add an SSH key: %w", err)
	}
	return out, nil
}

// List returns all, oldest first.
func (k SSHKeys) List(ctx context.Context) ([]SSHKey, error) {
	var out struct {
		SSHKeys []SSHKey `json:"sshKeys"`
	}
	if err := k.c.call(ctx, http.MethodGet, sshKeysPath, nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list the SSH keys: %w", err)
	}
	return out.SSHKeys, nil
}

// Remove removes a key; its connections end. ErrNotFound: there is none of that id.
func (k SSHKeys) Remove(ctx context.Context, id string) error {
	if err := k.c.call(ctx, http.MethodDelete, sshKeysPath+"/"+url.PathEscape(id), nil, nil, nil); err != nil {
		return fmt.Errorf("remove SSH key %s: %w", id, err)
	}
	return nil
}
