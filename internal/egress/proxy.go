package egress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Proxy is a server through which the connections of a sandbox go out. The zero
// Proxy is none.
type Proxy struct {
	Host     string // a name, or an IPv4 address
	Port     uint16
	HTTP     bool // it is asked by CONNECT; else by SOCKS 5
	Username string
	// Password returns the password, when a connection is made. It is nil for none.
	Password func() (string, error)
}

// maxCredential is the most bytes that SOCKS has room for in a name or password.
const maxCredential = 255

// ParseProxy reads the address of a proxy: host:port or socks5://host:port, and
// http://host:port for one that is asked by CONNECT. One of this host, or of a
// network that sandboxes cannot reach, is refused.
func ParseProxy(address, username string) (Proxy, error) {
	p := Proxy{Username: username}
	at := address
	if scheme, rest, ok := strings.Cut(address, "://"); ok {
		at = strings.TrimSuffix(rest, "/")
		switch strings.ToLower(scheme) {
		case "socks5", "socks5h":
		case "http":
			p.HTTP = true
		default:
			return Proxy{}, invalid("the egress proxy %q has a scheme that no proxy here has", brief(scheme)).WithRemedy("use host:port or socks5://host:port, or http://host:port for one that takes CONNECT")
		}
	}
	if strings.Contains(at, "@") {
		return Proxy{}, invalid("the address of the egress proxy has credentials in it").WithRemedy("give them as username and password")
	}
	host, port, err := net.SplitHostPort(at)
	n, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || n == 0 {
		return Proxy{}, invalid("%q is not the address of an egress proxy", brief(address)).WithRemedy("use host:port, such as proxy.example.com:1080")
	}
	p.Host, p.Port = canonical(host), uint16(n)
	if a, err := netip.ParseAddr(host); err == nil {
		if a = a.Unmap(); !a.Is4() || contains(closed, a) {
			return Proxy{}, invalid("the egress proxy %q is at an address that no sandbox can reach: a private or loopback one, or IPv6", brief(host)).WithRemedy("use a proxy with a public IPv4 address or name")
		}
		p.Host = a.String()
	} else if !IsHost(p.Host) || p.Host == "localhost" || strings.HasSuffix(p.Host, ".localhost") {
		return Proxy{}, invalid("%q is not the name of an egress proxy", brief(host)).WithRemedy("use a public IPv4 address or name")
	}
	if len(username) > maxCredential {
		return Proxy{}, invalid("the username for the egress proxy has %d bytes", len(username)).WithRemedy("use %d at most", maxCredential)
	}
	if p.HTTP && strings.Contains(username, ":") {
		return Proxy{}, invalid("the username for the egress proxy has a colon, which HTTP cannot send")
	}
	return p, nil
}

// CheckPassword refuses a password that no proxy can be told.
func CheckPassword(password string) error {
	if len(password) > maxCredential {
		return invalid("the password for the egress proxy has %d bytes", len(password)).WithRemedy("use %d at most", maxCredential)
	}
	return nil
}

// Through returns the policy with a proxy for what it allows.
func (p Policy) Through(proxy Proxy) Policy {
	p.proxy = proxy
	return p
}

// maxProxyAnswer bounds the head of a proxy's answer to CONNECT.
const maxProxyAnswer = 8 << 10

// through connects to an address by way of the proxy. The address has been judged
// before: the proxy gets no name, so that it cannot make another address of one.
func (g *Gate) through(ctx context.Context, p Proxy, to netip.AddrPort) (*net.TCPConn, error) {
	out, err := g.dialProxy(ctx, p)
	if err != nil {
		return nil, err
	}
	// An answer that does not come ends with the time for the whole connection.
	deadline, _ := ctx.Deadline()
	err = out.SetDeadline(deadline)
	if err == nil {
		err = p.ask(out, to)
	}
	if err == nil {
		err = out.SetDeadline(time.Time{})
	}
	if err != nil {
		reset(out)
		if why, is := errors.AsType[Reason](err); is {
			return nil, why
		}
		return nil, ReasonProxyBroken
	}
	return out, nil
}

// dialProxy connects to the proxy itself, which must not be where sandboxes cannot
// go: its name is chosen by them.
func (g *Gate) dialProxy(ctx context.Context, p Proxy) (*net.TCPConn, error) {
	addrs := []netip.Addr{}
	if a, err := netip.ParseAddr(p.Host); err == nil {
		addrs = append(addrs, a)
	} else if addrs, err = g.lookup(ctx, p.Host); err != nil {
		return nil, ReasonProxyGone
	}
	reachable, err := g.reachable(addrs)
	if err != nil {
		return nil, ReasonProxyGone
	}
	failed := ReasonProxyGone
	for _, a := range reachable {
		out, err := g.internet.Dial(ctx, netip.AddrPortFrom(a, p.Port))
		if err == nil {
			return out, nil
		}
		if errors.Is(err, syscall.ECONNRESET) { // it took the connection, and broke it off at once
			failed = ReasonProxyBroken
		}
	}
	return nil, failed
}

func (p Proxy) password() (string, error) {
	if p.Password == nil {
		return "", nil
	}
	text, err := p.Password()
	if err != nil {
		return "", ReasonProxyLogin
	}
	return text, nil
}

// ask asks the proxy at the other end for a connection.
func (p Proxy) ask(c net.Conn, to netip.AddrPort) error {
	if p.HTTP {
		return p.connectHTTP(c, to)
	}
	return p.connectSOCKS(c, to)
}

// connectHTTP asks for a connection by CONNECT. What comes after the answer's head
// is left to be read.
func (p Proxy) connectHTTP(c net.Conn, to netip.AddrPort) error {
	var ask strings.Builder
	fmt.Fprintf(&ask, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", to, to)
	if p.Username != "" || p.Password != nil {
		password, err := p.password()
		if err != nil {
			return err
		}
		fmt.Fprintf(&ask, "Proxy-Authorization: Basic %s\r\n", base64.StdEncoding.EncodeToString([]byte(p.Username+":"+password)))
	}
	ask.WriteString("\r\n")
	if _, err := io.WriteString(c, ask.String()); err != nil {
		return err
	}
	head := make([]byte, 0, 512)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) == maxProxyAnswer {
			return ReasonProxyBroken
		}
		var one [1]byte
		if _, err := io.ReadFull(c, one[:]); err != nil {
			return err
		}
		head = append(head, one[0])
	}
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return ReasonProxyBroken
	}
	_ = answer.Body.Close()
	switch {
	case answer.StatusCode >= 200 && answer.StatusCode < 300:
		return nil
	case answer.StatusCode == http.StatusProxyAuthRequired || answer.StatusCode == http.StatusUnauthorized:
		return ReasonProxyLogin
	case answer.StatusCode >= 300:
		return ReasonProxyRefused
	}
	return ReasonProxyBroken
}

// The words of SOCKS 5 (RFC 1928, RFC 1929).
const (
	socksVersion  = 5
	socksNone     = 0    // no credentials
	socksPassword = 2    // a name and a password
	socksNothing  = 0xff // no way in
	socksConnect  = 1
	socksIPv4     = 1
	socksName     = 3
	socksIPv6     = 4
	loginVersion  = 1
)

// connectSOCKS asks for a connection by SOCKS 5, and reads no byte more than the
// answer has.
func (p Proxy) connectSOCKS(c net.Conn, to netip.AddrPort) error {
	way := byte(socksNone)
	if p.Username != "" || p.Password != nil {
		way = socksPassword
	}
	if _, err := c.Write([]byte{socksVersion, 1, way}); err != nil {
		return err
	}
	var chosen [2]byte
	if _, err := io.ReadFull(c, chosen[:]); err != nil {
		return err
	}
	switch {
	case chosen[0] != socksVersion:
		return ReasonProxyBroken
	case chosen[1] == socksNothing:
		return ReasonProxyLogin
	case chosen[1] != way:
		return ReasonProxyBroken
	}
	if way == socksPassword {
		if err := p.logIn(c); err != nil {
			return err
		}
	}
	ask := append([]byte{socksVersion, socksConnect, 0, socksIPv4}, to.Addr().AsSlice()...)
	if _, err := c.Write(binary.BigEndian.AppendUint16(ask, to.Port())); err != nil {
		return err
	}
	var answer [4]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer[0] != socksVersion {
		return ReasonProxyBroken
	}
	if answer[1] != 0 { // the rest of the answer says nothing
		return ReasonProxyRefused
	}
	rest := 2 // the port from which it went on
	switch answer[3] {
	case socksIPv4:
		rest += 4
	case socksIPv6:
		rest += 16
	case socksName:
		var length [1]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return err
		}
		rest += int(length[0])
	default:
		return ReasonProxyBroken
	}
	_, err := io.ReadFull(c, make([]byte, rest))
	return err
}

func (p Proxy) logIn(c net.Conn) error {
	password, err := p.password()
	if err != nil {
		return err
	}
	login := append([]byte{loginVersion, byte(len(p.Username))}, p.Username...)
	login = append(append(login, byte(len(password))), password...)
	if _, err := c.Write(login); err != nil {
		return err
	}
	var said [2]byte
	if _, err := io.ReadFull(c, said[:]); err != nil {
		return err
	}
	if said[1] != 0 {
		return ReasonProxyLogin
	}
	return nil
}
