package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Host is the internet as this machine reaches it.
type Host struct{ resolver *net.Resolver }

// NewHost returns it with names as this machine resolves them or, if dns is
// valid, as that server does.
func NewHost(dns netip.AddrPort) Host {
	r := &net.Resolver{PreferGo: true}
	if dns.IsValid() {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, dns.String())
		}
	}
	return Host{resolver: r}
}

// keepAlive is how long a connection that carries nothing is left in peace.
const keepAlive = time.Minute

// Dial implements Internet.
func (Host) Dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{KeepAlive: keepAlive}
	c, err := d.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// Lookup implements Internet.
func (h Host) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	// With the final dot, this machine's own domains are not tried.
	addrs, err := h.resolver.LookupNetIP(ctx, "ip4", host+".")
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return nil, nil
	}
	return addrs, err
}

// Own implements Internet.
func (Host) Own() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var own []netip.Addr
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ip.IP); ok {
				own = append(own, addr.Unmap())
			}
		}
	}
	return own, nil
}
