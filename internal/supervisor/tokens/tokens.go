// Package tokens derives the secrets of sandboxes and volumes from the one secret
// of the server. A secret is the same for the whole life of what it belongs to, and
// none is stored.
package tokens

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Tokens derives secrets.
type Tokens struct{ secret []byte }

// New returns the secrets that come from that of the server.
func New(secret []byte) Tokens { return Tokens{secret} }

// Derive returns the secret of something, for a purpose.
func (t Tokens) Derive(purpose, id string) string {
	h := hmac.New(sha256.New, t.secret)
	fmt.Fprintf(h, "%s:%s", purpose, id)
	return hex.EncodeToString(h.Sum(nil))
}

// EnvdToken returns the token that the agent of a secure sandbox wants.
func (t Tokens) EnvdToken(id string) string { return t.Derive("envd", id) }

// TrafficToken returns the token that private ports want.
func (t Tokens) TrafficToken(id string) string { return t.Derive("traffic", id) }

// AgentToken returns the secret by which the agent of a sandbox knows this server.
func (t Tokens) AgentToken(id string) string { return t.Derive("init", id) }
