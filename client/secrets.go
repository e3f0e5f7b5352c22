package client

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Secret is a value that sandboxes use without having it: the server puts it into
// their requests to some hosts. It comes back without the value.
type Secret struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Version   int64             `json:"version"` // of the value
	Env       string            `json:"env"`     // the variable with the placeholder
	Hosts     []string          `json:"hosts"`
	Headers   map[string]string `json:"headers"` // {} stands for the value
	Query     map[string]string `json:"query"`   // likewise
	Plain     bool              `json:"plain"`   // also without TLS
	CreatedAt time.Time         `json:"createdAt"`
	UpdatedAt time.Time         `json:"updatedAt"`
}

// SecretOptions says where the value of a secret goes.
type SecretOptions struct {
	// Value is the value, in one line. A secret that exists keeps its value if this
	// is empty.
	Value string `json:"value,omitempty"`
	// Hosts are those that the value is for: api.example.com, or *.example.com for
	// all below it, either with a port.
	Hosts []string `json:"hosts"`
	// Headers and Query are set in every request to them, with {} for the value.
	Headers map[string]string `json:"headers,omitempty"`
	Query   map[string]string `json:"query,omitempty"`
	// Env is the variable that has the placeholder in sandboxes; empty for the name
	// of the secret in capitals.
	Env string `json:"env,omitempty"`
	// Plain lets the value go out over HTTP without TLS.
	Plain bool `json:"plain,omitempty"`
}

// UsedSecret is a secret that a sandbox was given the use of.
type UsedSecret struct {
	Name    string `json:"name"`
	Env     string `json:"env"`
	Missing bool   `json:"missing"` // there is no such secret now
	// Withheld: the sandbox came from another API key's or from an import, and may
	// not use the secret of that name.
	Withheld bool `json:"withheld"`
}

// wireSecret is a secret that a sandbox is to have the use of.
type wireSecret struct {
	Name string `json:"name"`
	Env  string `json:"env,omitempty"`
}

func wireSecrets(m map[string]string) []wireSecret {
	var list []wireSecret
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, wireSecret{name, m[name]})
	}
	return list
}

// Secrets are the secrets of one API key.
type Secrets struct{ c *Client }

// NewSecrets returns those of the client's key.
func NewSecrets(c *Client) Secrets { return Secrets{c} }

const secretsPath = "/v1/secrets"

func secretPath(name string) string { return secretsPath + "/" + url.PathEscape(name) }

// Set makes a secret, or replaces the one of its name.
func (s Secrets) Set(ctx context.Context, name string, o SecretOptions) (Secret, error) {
	var out Secret
	if err := s.c.call(ctx, http.MethodPut, secretPath(name), nil, o, &out); err != nil {
		return Secret{}, fmt.Errorf("set secret %s: %w", name, err)
	}
	return out, nil
}

// Rotate replaces the value of a secret, also for sandboxes that run or sleep.
func (s Secrets) Rotate(ctx context.Context, name, value string) (Secret, error) {
	in := struct {
		Value string `json:"value"`
	}{value}
	var out Secret
	if err := s.c.call(ctx, http.MethodPost, secretPath(name)+"/rotate", nil, in, &out); err != nil {
		return Secret{}, fmt.Errorf("rotate secret %s: %w", name, err)
	}
	return out, nil
}

// List returns all, oldest first.
func (s Secrets) List(ctx context.Context) ([]Secret, error) {
	var out struct {
		Secrets []Secret `json:"secrets"`
	}
	if err := s.c.call(ctx, http.MethodGet, secretsPath, nil, nil, &out); err != nil {
		return nil, fmt.Errorf("list secrets: %w", err)
	}
	return out.Secrets, nil
}

// Get returns one. ErrNotFound: there is none of that name.
func (s Secrets) Get(ctx context.Context, name string) (Secret, error) {
	var out Secret
	if err := s.c.call(ctx, http.MethodGet, secretPath(name), nil, nil, &out); err != nil {
		return Secret{}, fmt.Errorf("get secret %s: %w", name, err)
	}
	return out, nil
}

// Remove makes a secret worthless at once, also for sandboxes that run.
// ErrNotFound: there is none of that name.
func (s Secrets) Remove(ctx context.Context, name string) error {
	if err := s.c.call(ctx, http.MethodDelete, secretPath(name), nil, nil, nil); err != nil {
		return fmt.Errorf("remove secret %s: %w", name, err)
	}
	return nil
}
