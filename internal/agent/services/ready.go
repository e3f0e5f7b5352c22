package services

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/drowse-dev/drowse/internal/service"
)

// settling is how long a process must run to be ready that shows it in no other
// way: one that ends at once is not.
const settling = time.Second

// tryTimeout bounds one try of a ready check.
const tryTimeout = 5 * time.Second

// untilReady asks until the service is ready. The time in which the sandbox slept
// does not count: a service that was starting when it fell asleep has the rest of
// its time after the wake.
func (u *unit) untilReady(ctx context.Context) error {
	r := u.spec.Ready
	if r.Check == service.CheckStarted {
		select {
		case <-time.After(settling):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var waited time.Duration
	var last error
	for {
		began := now()
		if last = u.try(ctx); last == nil {
			return nil
		}
		select {
		case <-time.After(r.Interval):
		case <-ctx.Done():
			return ctx.Err()
		}
		waited += min(now().Sub(began), tryTimeout+2*r.Interval)
		if waited >= r.Timeout {
			return fmt.Errorf("%w: after %v its ready check still failed: %w", errUnready, r.Timeout, last)
		}
	}
}

func (u *unit) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(tryTimeout, max(u.spec.Ready.Timeout, time.Second)))
	defer cancel()
	switch u.spec.Ready.Check {
	case service.CheckHTTP:
		return u.tryHTTP(ctx)
	case service.CheckCommand:
		return u.tryCommand(ctx)
	default:
		conn, err := u.dial(ctx)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// dial connects to the service's port, by either loopback address.
func (u *unit) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	port := strconv.Itoa(u.spec.Port)
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err == nil {
		return conn, nil
	}
	if conn, sixth := dialer.DialContext(ctx, "tcp", net.JoinHostPort("::1", port)); sixth == nil {
		return conn, nil
	}
	return nil, err
}

func (u *unit) tryHTTP(ctx context.Context) error {
	web := &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 64 << 10,
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return u.dial(ctx) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(u.spec.Port)+u.spec.Ready.Path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "drowse-ready")
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("GET %s was answered with %d", u.spec.Ready.Path, resp.StatusCode)
	}
	return nil
}

// tryCommand runs the command of the check to its end.
func (u *unit) tryCommand(ctx context.Context) error {
	s := u.spec
	s.Command, s.Shell = nil, s.Ready.Command
	p, err := u.m.starter.Start(s, io.Discard)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		p.Stop(true)
		<-p.Done()
		return fmt.Errorf("the command of the check did not end: %w", ctx.Err())
	}
}
