package edge

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// signers finds the sandboxes of signed file URLs that do not name them. A
// signature says nothing of who made it: the first time, it is tried with the
// token of each sandbox, of which at most one matches. What was found is kept,
// and how often an address may make the server search in vain is bounded, so
// that nobody does work here for each request and each sandbox.
type signers struct {
	turn chan struct{} // holds one element while somebody searches

	mu    sync.Mutex
	known map[signedKey]string     // sandboxes by signature
	vain  map[netip.Addr]time.Time // until when an address has searched in vain
}

// signedKey is what identifies a signed URL, whose signature was verified.
type signedKey struct {
	path, operation, user, signature string
	expiration                       int64
}

// Bounds of searches.
const (
	maxKnown      = 4096
	maxSignedSize = 4096 // bytes of path and user
	// Every search in vain puts its address vainCost further into the future; an
	// address that is vainMost ahead is refused.
	vainCost = 200 * time.Millisecond
	vainMost = 4 * time.Second
)

func newSigners() *signers {
	return &signers{turn: make(chan struct{}, 1), known: map[signedKey]string{}, vain: map[netip.Addr]time.Time{}}
}

const (
	errNoSigner        = routeError("this signed URL belongs to no sandbox of this server")
	errTooManySearches = routeError("too many signed URLs from this address belong to no sandbox of this server: wait some seconds, or name the sandbox by its host name or in headers")
)

// find returns the id of the sandbox whose token made the signature.
func (s *signers) find(ctx context.Context, sandboxes Sandboxes, signed signed, client netip.Addr) (string, error) {
	if len(signed.path)+len(signed.user) > maxSignedSize {
		return "", errNoSigner // no file has such a name
	}
	if id, ok := s.lookUp(ctx, sandboxes, signed); ok {
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
		if sb.Config.Secure && signed.by(sandboxes.EnvdToken(sb.ID)) {
			s.keep(signed, sb.ID, client)
			return sb.ID, nil
		}
	}
	return "", errNoSigner
}

func (s signed) key() signedKey {
	k := signedKey{s.path, s.operation, s.user, s.signature, -1}
	if s.expiration != nil {
		k.expiration = *s.expiration
	}
	return k
}

// lookUp returns the sandbox of a signature that was found before, if there
// still is one.
func (s *signers) lookUp(ctx context.Context, sandboxes Sandboxes, signed signed) (string, bool) {
	key := signed.key()
	s.mu.Lock()
	id, ok := s.known[key]
	s.mu.Unlock()
	if !ok {
		return "", false
	}
	if _, err := sandboxes.Get(ctx, id); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.known, key)
		return "", false
	}
	return id, true
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

// keep notes a signature that was found.
func (s *signers) keep(signed signed, id string, client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vain[client] = s.vain[client].Add(-vainCost)
	for k := range s.known {
		if len(s.known) < maxKnown {
			break
		}
		delete(s.known, k) // any
	}
	s.known[signed.key()] = id
}
