package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// book is an Internet of names alone.
type book map[string][]string

var errBroken = errors.New("the resolver does not answer")

func (b book) Lookup(_ context.Context, host string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, a := range b[host] {
		if a == "broken" {
			return nil, errBroken
		}
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs, nil
}

func (book) Dial(context.Context, netip.AddrPort) (*net.TCPConn, error) { return nil, errBroken }

func (book) Own() ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("11.51.100.1")}, nil
}

func question(t testing.TB, name string, kind dnsmessage.Type, class dnsmessage.Class) []byte {
	t.Helper()
	q := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: class}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{q}}
	data, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAnswer(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 49)+".", 5)
	world := book{
		"good.test": {"203.0.113.10"}, "mixed.test": {"10.0.0.1", "203.0.113.10", "11.51.100.1"},
		"private.test": {"10.0.0.1", "169.254.169.254"}, "host.test": {"11.51.100.1"}, "broken.test": {"broken"},
	}
	for i := range 40 {
		world["many.test"] = append(world["many.test"], fmt.Sprintf("203.0.113.%d", i))
		world[canonical(long)] = world["many.test"]
	}
	all := mustPolicy(t, true, nil, nil)
	one := mustPolicy(t, true, []string{"good.test"}, []string{Everything})
	for name, tt := range map[string]struct {
		policy Policy
		name   string
		kind   dnsmessage.Type
		class  dnsmessage.Class
		rcode  dnsmessage.RCode
		addrs  int
		why    Reason
	}{
		"an address":             {all, "Good.Test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, 1, ""},
		"IPv6":                   {all, "good.test.", dnsmessage.TypeAAAA, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, 0, ""},
		"text":                   {all, "good.test.", dnsmessage.TypeTXT, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, 0, ""},
		"another class":          {all, "good.test.", dnsmessage.TypeA, dnsmessage.ClassCHAOS, dnsmessage.RCodeNotImplemented, 0, ""},
		"no such name":           {all, "nowhere.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ""},
		"closed addresses":       {all, "private.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ReasonClosed},
		"this machine":           {all, "host.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ReasonClosed},
		"one of three is open":   {all, "mixed.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, 1, ""},
		"many addresses":         {all, "many.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, maxAnswers, ""},
		"many of a long name":    {all, long, dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, maxAnswers, ""},
		"no answer":              {all, "broken.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeServerFailure, 0, ReasonUnresolved},
		"the root":               {all, ".", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ReasonDenied},
		"allowed":                {one, "good.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeSuccess, 1, ""},
		"not allowed":            {one, "mixed.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ReasonDenied},
		"not allowed, of a kind": {one, "mixed.test.", dnsmessage.TypeTXT, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ReasonDenied},
		"nothing allowed":        {Policy{}, "good.test.", dnsmessage.TypeA, dnsmessage.ClassINET, dnsmessage.RCodeNameError, 0, ReasonDenied},
	} {
		t.Run(name, func(t *testing.T) {
			var why Reason
			g := NewGate(world, NewRoom(), "key", func(r Reason) { why = r })
			g.Set(tt.policy)
			answer := g.answer(question(t, tt.name, tt.kind, tt.class))
			var m dnsmessage.Message
			if err := m.Unpack(answer); err != nil {
				t.Fatal(err)
			}
			if !m.Response || m.ID != 7 || m.RCode != tt.rcode || len(m.Answers) != tt.addrs || why != tt.why {
				t.Errorf("got %s with %d addresses (refused: %q), want %s with %d (%q)", m.RCode, len(m.Answers), why, tt.rcode, tt.addrs, tt.why)
			}
			if len(answer) > maxQuestion {
				t.Errorf("the answer has %d bytes", len(answer))
			}
		})
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(question(f, "good.test.", dnsmessage.TypeA, dnsmessage.ClassINET))
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	g := NewGate(book{"good.test": {"203.0.113.10"}}, NewRoom(), "key", func(Reason) {})
	g.Set(Policy{some: true})
	f.Fuzz(func(t *testing.T, data []byte) {
		answer := g.answer(data)
		if answer == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response {
			t.Errorf("%q is answered by %q: %v", data, answer, err)
		}
	})
}
