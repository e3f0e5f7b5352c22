package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// Bounds of the waits.
const (
	lookEvery   = time.Hour        // at most: the clock may be set, and a machine may sleep
	askEvery    = 6 * time.Hour    // what the authority says of the certificate in use
	attempt     = 15 * time.Minute // one attempt, with what the DNS takes
	request     = 30 * time.Second // one request to the authority
	worstRetry  = time.Hour
	longestRest = 24 * time.Hour // after a certificate was obtained
)

// Run gets the certificate if there is none, and renews it, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.removeLeftovers(ctx)
	for failures := 0; ctx.Err() == nil; {
		wait := time.Until(k.due(ctx))
		if wait <= 0 {
			err := k.renew(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				failures = 0
				continue
			}
			wait = k.pause(err, failures)
			failures++
			k.o.Log.Error("no certificate was obtained", "names", k.names, "err", err, "next_attempt", time.Now().Add(wait), "in_use_until", until(k.Ends()))
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(wait, lookEvery)):
		}
	}
}

// until is a time for the log.
func until(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return t.UTC().Format(time.RFC3339)
}

// pause is how long to wait after an attempt that failed, and failures before it.
func (k *Keeper) pause(err error, failures int) time.Duration {
	first := k.retry
	if _, refused := errors.AsType[acme.Problem](err); refused {
		first = k.refusal
	}
	return min(first<<min(failures, 16), worstRetry)
}

// due returns when to ask for another certificate: after two thirds of its time, or
// earlier if the authority says so, which is how it replaces what it has to revoke. It
// is never soon after a certificate was obtained: where the machine's clock is ahead, or
// the authority is wrong, each new one would be due at once.
func (k *Keeper) due(ctx context.Context) time.Time {
	c := k.in()
	if c == nil || !c.isFor(k.names) {
		return time.Time{}
	}
	leaf := c.pair.Leaf
	lives := c.lives()
	at := leaf.NotBefore.Add(lives * 2 / 3)
	if time.Since(k.asked) > askEvery && lives > askEvery {
		k.asked = time.Now()
		// An authority that says nothing of it, or cannot be reached, is no failure.
		info, err := k.client().GetRenewalInfo(ctx, leaf)
		if err != nil {
			k.o.Log.Debug("the authority does not say when to renew the certificate", "err", err)
		} else {
			k.renewal = info
		}
	}
	// A window that ended before the certificate began is not about this one.
	if k.renewal.HasWindow() && k.renewal.SuggestedWindow.End.After(leaf.NotBefore) && k.renewal.SelectedTime.Before(at) {
		at = k.renewal.SelectedTime
	}
	if !at.Before(k.rest) {
		return at
	}
	if at.Before(time.Now()) {
		k.o.Log.Warn("the new certificate is to be renewed already; compare this machine's clock with the authority's", "from", leaf.NotBefore, "until", until(leaf.NotAfter), "due", at, "next_attempt", k.rest)
	}
	return k.rest
}

// client speaks to the authority.
func (k *Keeper) client() *acmez.Client {
	solvers := map[string]acmez.Solver{acme.ChallengeTypeDNS01: dnsSolver{k}}
	if k.o.Hook == "" {
		solvers = map[string]acmez.Solver{acme.ChallengeTypeTLSALPN01: tlsSolver{k}}
	}
	return &acmez.Client{ChallengeSolvers: solvers, Client: &acme.Client{
		Directory: k.o.Directory, UserAgent: "drowse", PollTimeout: 2 * time.Minute,
		HTTPClient: &http.Client{Timeout: request, Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: k.roots}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		}},
	}}
}

// renew asks for a certificate, and uses it.
func (k *Keeper) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	k.removeLeftovers(ctx)
	k.o.Log.Info("asking for a certificate", "names", k.names, "directory", k.o.Directory, "in_use_until", until(k.Ends()))
	c, err := k.obtain(ctx)
	if k.lost(ctx, err) {
		k.o.Log.Warn("the authority does not take this server's account any more; another one is made", "account", k.account.Location, "err", err)
		k.account = nil
		c, err = k.obtain(ctx)
	}
	_, k.refused = errors.AsType[acme.Problem](err)
	if err != nil {
		return err
	}
	saved := k.write(certificateFile, c)
	k.mu.Lock()
	k.current = c
	k.mu.Unlock()
	k.renewal, k.asked = acme.RenewalInfo{}, time.Time{}
	k.rest = time.Now().Add(min(c.lives()/3, longestRest))
	if saved != nil {
		k.o.Log.Error("the certificate is used and could not be saved: the next start asks for another one", "err", saved)
	}
	k.o.Log.Info("certificate obtained", "names", k.names, "until", until(c.pair.Leaf.NotAfter))
	return nil
}

// lost says whether an attempt failed because the authority does not take the server's
// account any more. A domain that is not proved is unauthorized too: then the account
// is still valid.
func (k *Keeper) lost(ctx context.Context, err error) bool {
	problem, ok := errors.AsType[acme.Problem](err)
	switch {
	case !ok || k.account == nil:
		return false
	case problem.Type != acme.ProblemTypeUnauthorized:
		return problem.Type == acme.ProblemTypeAccountDoesNotExist
	}
	who, err := k.account.acme()
	if err != nil {
		return true
	}
	who, err = k.client().GetAccount(ctx, acme.Account{PrivateKey: who.PrivateKey})
	if problem, ok := errors.AsType[acme.Problem](err); ok {
		return problem.Type == acme.ProblemTypeUnauthorized || problem.Type == acme.ProblemTypeAccountDoesNotExist
	}
	return err == nil && who.Status != acme.StatusValid
}

func (k *Keeper) obtain(ctx context.Context) (*certificate, error) {
	client := k.client()
	who, err := k.signUp(ctx, client)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := acmez.NewCSR(key, k.names)
	if err != nil {
		return nil, err
	}
	order, err := acmez.OrderParametersFromCSR(who, csr)
	if err != nil {
		return nil, err
	}
	if k.renewal.HasWindow() && !k.refused { // it may be what was refused
		order.Replaces = k.in().pair.Leaf
	}
	chains, err := client.ObtainCertificate(ctx, order)
	if err != nil {
		return nil, err
	}
	if len(chains) == 0 {
		return nil, errors.New("the authority sent no certificate")
	}
	c := &certificate{Directory: k.o.Directory, Chain: string(chains[0].ChainPEM)}
	if c.Key, err = formatKey(key); err != nil {
		return nil, err
	}
	if err := c.parse(); err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	if !c.isFor(k.names) {
		return nil, fmt.Errorf("the authority's certificate is for %s only", strings.Join(c.pair.Leaf.DNSNames, ", "))
	}
	return c, nil
}

// signUp returns the server's account, which is made if there is none.
func (k *Keeper) signUp(ctx context.Context, client *acmez.Client) (acme.Account, error) {
	if k.account != nil {
		return k.account.acme()
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return acme.Account{}, err
	}
	who, err := client.NewAccount(ctx, acme.Account{Contact: []string{"mailto:" + k.o.Email}, TermsOfServiceAgreed: true, PrivateKey: key})
	if err != nil {
		return acme.Account{}, fmt.Errorf("make an account: %w", err)
	}
	a := &account{Directory: k.o.Directory, Email: k.o.Email, Location: who.Location}
	if a.Key, err = formatKey(key); err != nil {
		return acme.Account{}, err
	}
	k.account = a
	if err := k.write(accountFile, a); err != nil {
		k.o.Log.Error("the account at the certificate authority is used and could not be saved: the next start makes another one", "err", err)
	}
	return a.acme()
}
