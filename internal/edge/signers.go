package edge

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// signers finds the sandboxes of requests that do not name them, but prove that
// they know a sandbox's token. Neither a signature nor a token says whose it is:
// the first time, it is tried with the token of each sandbox, of which at most one
// matches. What was found is kept, and how often an address may make the server
// search in vain is bounded, so that nobody does work here for each request and
// each sandbox.
type signers struct {
	turn chan struct{} // holds one element while somebody searches

	mu    sync.Mutex
	known map[proofKey]string      // sandboxes by what proves their token
	vain  map[netip.Addr]time.Time // until when an address has searched in vain
}

// proof is what only somebody who knows a sandbox's token can have: a signed file
// URL, or the token itself.
type proof interface {
	by(token string) bool // whether it is a proof of this token
	key() proofKey
	size() int      // in bytes, of what the client may choose
	unknown() error // the answer where no sandbox has such a token
}

// proofKey is what identifies a proof that was verified.
type proofKey struct {
	path, operation, user, signature string
	expiration                       int64
}

// Bounds of searches.
const (
	maxKnown     = 4096
	maxProofSize = 4096 // bytes, of path and user in a signed URL
	// Every search in vain puts its address vainCost further into the future; an
	// address that is vainMost ahead is refused.
	vainCost = 200 * time.Millisecond
	vainMost = 4 * time.Second
)

func newSigners() *signers {
	return &signers{turn: make(chan struct{}, 1), known: map[proofKey]string{}, vain: map[netip.Addr]time.Time{}}
}

const (
	errNoSigner        = routeError("this signed URL belongs to no sandbox of this server")
	errNoBearer        = routeError("this access token belongs to no sandbox of this server")
	errTooManySearches = routeError("too many signed URLs or access tokens from this address belong to no sandbox of this server: wait some seconds, or name the sandbox by its host name or in headers")
)

// find returns the id of the sandbox whose token a request proves to know.
func (s *signers) find(ctx context.Context, sandboxes Sandboxes, p proof, client netip.Addr) (string, error) {
	if p.size() > maxProofSize {
		return "", p.unknown() // no file has such a name, and no sandbox such a token
	}
	if id, ok := s.lookUp(p); ok {
		return id, nil
	}
	if !s.maySearch(client, time.Now()) {
		return "", errTooManySearches
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	list, err := sandboxes.List(ctx)
	if err != nil {
		return "", err
	}
	for _, sb := range list {
		if sb.Config.Secure && p.by(sandboxes.EnvdToken(sb.ID)) {
			s.keep(p, sb.ID, client)
			return sb.ID, nil
		}
	}
	return "", p.unknown()
}

func (s signed) key() proofKey {
	k := proofKey{s.path, s.operation, s.user, s.signature, -1}
	if s.expiration != nil {
		k.expiration = *s.expiration
	}
	return k
}

func (s signed) size() int { return len(s.path) + len(s.user) }

func (s signed) unknown() error { return errNoSigner }

// lookUp returns the sandbox of a proof that was found before. It may have ended
// since; then its record says why.
func (s *signers) lookUp(p proof) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.known[p.key()]
	return id, ok
}

// maySearch reports whether an address may search, and counts the search as one
// in vain until it is not.
func (s *signers) maySearch(client netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vain[client].Before(now) {
		if len(s.vain) >= maxKnown {
			s.forget(now)
		}
		s.vain[client] = now
	}
	if s.vain[client].Sub(now) > vainMost {
		return false
	}
	s.vain[client] = s.vain[client].Add(vainCost)
	return true
}

// forget drops the addresses of which nothing counts any more.
func (s *signers) forget(now time.Time) {
	for a, until := range s.vain {
		if until.Before(now) {
			delete(s.vain, a)
		}
	}
}

// keep notes a proof that was found.
func (s *signers) keep(p proof, id string, client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vain[client] = s.vain[client].Add(-vainCost)
	for k := range s.known {
		if len(s.known) < maxKnown {
			break
		}
		delete(s.known, k) // any
	}
	s.known[p.key()] = id
}
