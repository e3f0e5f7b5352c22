package edge

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// signers finds the sandboxes of requests that do not name them, but prove that
// they know a sandbox's token. Neither a signature nor a token says whose it is:
// the first time, it is tried with the tokens of the sandboxes that its address was
// last at, and then with the token of each sandbox, of which at most one matches. What
// was found is kept, and how often an address may make the server search, in vain or
// not, is bounded, so that nobody does work here for each request and each sandbox.
type signers struct {
	turn chan struct{} // holds one element while somebody searches

	mu       sync.Mutex
	known    map[proofKey]string      // sandboxes by what proves their token
	recent   map[netip.Addr][]string  // the sandboxes that were found for an address, the last one first
	searched map[netip.Addr]time.Time // until when an address has searched
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
	maxRecent    = 32   // sandboxes of an address
	maxProofSize = 4096 // bytes, of path and user in a signed URL
	// Every search puts its address further into the future, by vainCost or by
	// foundCost; an address that is searchMost ahead is refused.
	vainCost   = 200 * time.Millisecond
	foundCost  = vainCost / 2
	searchMost = 4 * time.Second
)

func newSigners() *signers {
	return &signers{turn: make(chan struct{}, 1), known: map[proofKey]string{}, recent: map[netip.Addr][]string{}, searched: map[netip.Addr]time.Time{}}
}

const (
	errNoSigner        = routeError("this signed URL belongs to no sandbox of this server")
	errNoBearer        = routeError("this access token belongs to no sandbox of this server")
	errTooManySearches = routeError("too many signed URLs or access tokens from this address had to be searched for: wait some seconds, or name the sandbox by its host name or in headers")
)

// find returns the id of the sandbox whose token a request proves to know.
func (s *signers) find(ctx context.Context, sandboxes Sandboxes, p proof, client netip.Addr) (string, error) {
	if p.size() > maxProofSize {
		return "", p.unknown() // no file has such a name, and no sandbox such a token
	}
	if id, ok := s.lookUp(p); ok {
		return id, nil
	}
	for _, id := range s.recentOf(client) {
		if p.by(sandboxes.EnvdToken(id)) {
			s.keep(p, id, client)
			return id, nil
		}
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
			s.found(client)
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

// recentOf returns the sandboxes that an address was last at. They may have ended
// since.
func (s *signers) recentOf(client netip.Addr) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.recent[client])
}

// maySearch reports whether an address may search, and counts the search as one
// in vain until it is not.
func (s *signers) maySearch(client netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.searched[client].Before(now) {
		if len(s.searched) >= maxKnown {
			s.forget(now)
		}
		s.searched[client] = now
	}
	if s.searched[client].Sub(now) > searchMost {
		return false
	}
	s.searched[client] = s.searched[client].Add(vainCost)
	return true
}

// forget drops the addresses of which nothing counts any more.
func (s *signers) forget(now time.Time) {
	for a, until := range s.searched {
		if until.Before(now) {
			delete(s.searched, a)
		}
	}
}

// found counts a search as one that was not in vain. It took as much work.
func (s *signers) found(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.searched[client] = s.searched[client].Add(foundCost - vainCost)
}

// keep notes a proof that was found.
func (s *signers) keep(p proof, id string, client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append([]string{id}, slices.DeleteFunc(s.recent[client], func(x string) bool { return x == id })...)
	for a := range s.recent {
		if len(s.recent) < maxKnown {
			break
		}
		delete(s.recent, a) // any
	}
	s.recent[client] = all[:min(len(all), maxRecent)]
	for k := range s.known {
		if len(s.known) < maxKnown {
			break
		}
		delete(s.known, k) // any
	}
	s.known[p.key()] = id
}
