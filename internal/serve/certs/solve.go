package certs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// tlsSolver shows the authority a certificate on the server's own listener.
type tlsSolver struct{ k *Keeper }

// Present implements acmez.Solver.
func (s tlsSolver) Present(_ context.Context, c acme.Challenge) error {
	shown, err := acmez.TLSALPN01ChallengeCert(c)
	if err != nil {
		return err
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	s.k.challenges[c.Identifier.Value] = shown
	return nil
}

// CleanUp implements acmez.Solver.
func (s tlsSolver) CleanUp(_ context.Context, c acme.Challenge) error {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	delete(s.k.challenges, c.Identifier.Value)
	return nil
}

// dnsSolver has the operator's program set TXT records. A record is noted before it is
// set, and until it is removed, so that none is left by a crash. Where the disk refuses
// the note, the server remembers the record until it stops.
type dnsSolver struct{ k *Keeper }

// Bounds of what the DNS takes.
const (
	hookTime  = 5 * time.Minute // the operator's program to set a record; it may wait until all see it
	tidyTime  = time.Minute     // to remove one
	leftTime  = 5 * time.Minute // to remove all that were left, so that there is time for the attempt
	seenTime  = 2 * time.Minute // until all name servers have a record
	seenEvery = 2 * time.Second
	lookTime  = 5 * time.Second // one question to one name server
	mostSaid  = 2000            // bytes of the program's output in an error
	mostNoted = 100             // records that are to be removed; older ones are given up
)

// Present implements acmez.Solver.
func (s dnsSolver) Present(ctx context.Context, c acme.Challenge) error {
	r := record{c.DNS01TXTRecordName(), c.DNS01KeyAuthorization()}
	s.k.note(append(slices.Clone(s.k.records), r))
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	defer cancel()
	return s.k.run(ctx, "set", r)
}

// Wait implements acmez.Waiter.
func (s dnsSolver) Wait(ctx context.Context, c acme.Challenge) error {
	name, value := c.DNS01TXTRecordName(), c.DNS01KeyAuthorization()
	servers, err := s.k.nameServers(ctx, s.k.o.Domain)
	if err != nil {
		s.k.o.Log.Warn("the domain's name servers are not known here: the authority is asked before the DNS record was seen", "name", name, "err", err)
		return nil
	}
	for end := time.Now().Add(seenTime); !s.k.seen(ctx, servers, name, value); {
		if time.Now().After(end) {
			s.k.o.Log.Warn("the DNS record is not at all name servers of the domain; the authority is asked all the same", "name", name, "servers", servers)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(seenEvery):
		}
	}
	return nil
}

// CleanUp implements acmez.Solver. A server that stops does not wait for the operator's
// program: the next one removes the record.
func (s dnsSolver) CleanUp(ctx context.Context, c acme.Challenge) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.k.remove(ctx, record{c.DNS01TXTRecordName(), c.DNS01KeyAuthorization()})
}

// remove removes a record. One that could not be removed stays noted.
func (k *Keeper) remove(ctx context.Context, r record) error {
	ctx, cancel := context.WithTimeout(ctx, tidyTime)
	defer cancel()
	err := k.run(ctx, "remove", r)
	if err == nil {
		k.note(slices.DeleteFunc(slices.Clone(k.records), func(o record) bool { return o == r }))
	}
	if err != nil && context.Cause(ctx) != context.Canceled {
		k.o.Log.Warn("a DNS record could not be removed; this is tried again before the next attempt, and at the next start", "name", r.Name, "value", r.Value, "err", err)
	}
	return err
}

// note replaces the list of records that are to be removed.
func (k *Keeper) note(all []record) {
	k.records = all[max(0, len(all)-mostNoted):]
	if err := k.write(recordsFile, k.records); err != nil {
		k.o.Log.Error("the list of DNS records that are to be removed could not be saved: after a crash, some may be left", "err", err)
	}
}

// removeLeftovers removes the records that could not be removed before, or that a
// server which was killed has left.
func (k *Keeper) removeLeftovers(ctx context.Context) {
	if k.o.Hook == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leftTime)
	defer cancel()
	for _, r := range slices.Clone(k.records) {
		if ctx.Err() != nil {
			return
		}
		_ = k.remove(ctx, r) // it is logged, and keeps no other from being removed
	}
}

// run runs the operator's program. It gets the server's environment without the
// server's settings, one of which may be an API key.
func (k *Keeper) run(ctx context.Context, verb string, r record) error {
	cmd := exec.CommandContext(ctx, k.o.Hook, verb, r.Name, r.Value)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DROWSE_") })
	said := &said{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = errors.Join(ctx.Err(), err)
	}
	return fmt.Errorf("%s %s %s: %w: %s", k.o.Hook, verb, r.Name, err, strings.TrimSpace(string(said.end)))
}

// said keeps the end of what a program wrote.
type said struct{ end []byte }

// Write implements io.Writer.
func (s *said) Write(p []byte) (int, error) {
	s.end = append(s.end, p[max(0, len(p)-mostSaid):]...)
	s.end = s.end[max(0, len(s.end)-mostSaid):]
	return len(p), nil
}

// nameServers returns the hosts of the zone that a domain is in.
func (k *Keeper) nameServers(ctx context.Context, domain string) (hosts []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*lookTime)
	defer cancel()
	for zone := domain; strings.Contains(zone, "."); _, zone, _ = strings.Cut(zone, ".") {
		var found []*net.NS
		if found, err = k.resolver.LookupNS(ctx, zone+"."); err == nil && len(found) > 0 {
			for _, ns := range found {
				hosts = append(hosts, ns.Host)
			}
			return hosts, nil
		}
	}
	return nil, errors.Join(errors.New("no name servers were found"), err)
}

// seen says whether all these name servers have a record, or the machine's resolver,
// which follows a name that leads elsewhere.
func (k *Keeper) seen(ctx context.Context, servers []string, name, value string) bool {
	has := func(r *net.Resolver) bool {
		ctx, cancel := context.WithTimeout(ctx, lookTime)
		defer cancel()
		values, err := r.LookupTXT(ctx, name+".")
		return err == nil && slices.Contains(values, value)
	}
	everywhere := !slices.ContainsFunc(servers, func(host string) bool {
		return !has(&net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Resolver: k.resolver}).DialContext(ctx, network, net.JoinHostPort(host, k.dnsPort))
		}})
	})
	return everywhere || has(k.resolver)
}
