package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Bounds of an answer. One that fits the least size of all needs no second way
// to ask.
const (
	maxQuestion = 512
	maxAnswers  = 12 // with the longest name, they take less than maxQuestion
	answerTTL   = 30 // seconds
)

// answerAll answers the questions that arrive, until the socket is closed.
func (g *Gate) answerAll(names net.PacketConn) {
	var work sync.WaitGroup
	defer work.Wait()
	turns := make(chan struct{}, maxQuestions)
	for {
		buf := make([]byte, maxQuestion)
		n, from, err := names.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-time.After(acceptRetry)
			continue
		}
		select {
		case turns <- struct{}{}:
		default:
			continue
		}
		work.Go(func() {
			defer func() { <-turns }()
			if answer := g.answer(buf[:n]); answer != nil {
				_, _ = names.WriteTo(answer, from) // it is asked again
			}
		})
	}
}

// answer answers a question for a name, in the form of DNS; nil for what is no
// question. Only addresses are given, and only of IPv4: of everything else there
// is none.
func (g *Gate) answer(question []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil || h.Response {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	header := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	if h.OpCode != 0 || q.Class != dnsmessage.ClassINET {
		header.RCode = dnsmessage.RCodeNotImplemented
		return pack(header, q, nil)
	}
	addrs, rcode := g.resolve(q.Name.String(), q.Type)
	header.RCode = rcode
	return pack(header, q, addrs)
}

// resolve returns what a sandbox is told of a name. What it may not ask for does
// not exist, as far as it is concerned: every client takes that for an answer,
// and none asks again.
func (g *Gate) resolve(name string, kind dnsmessage.Type) ([]netip.Addr, dnsmessage.RCode) {
	name = canonical(name)
	if !g.current().Resolves(name) {
		g.refuse(name, ReasonDenied)
		return nil, dnsmessage.RCodeNameError
	}
	if kind != dnsmessage.TypeA {
		return nil, dnsmessage.RCodeSuccess
	}
	found, err := g.lookup(context.Background(), name)
	if err != nil {
		g.refuse(name, ReasonUnresolved)
		return nil, dnsmessage.RCodeServerFailure
	}
	if len(found) == 0 {
		return nil, dnsmessage.RCodeNameError
	}
	addrs, err := g.reachable(found)
	if err != nil {
		g.refuse(name, ReasonUnreachable)
		return nil, dnsmessage.RCodeServerFailure
	}
	if len(addrs) == 0 { // it would be refused where it is dialed
		g.refuse(name, ReasonClosed)
		return nil, dnsmessage.RCodeNameError
	}
	return addrs[:min(len(addrs), maxAnswers)], dnsmessage.RCodeSuccess
}

// pack builds an answer.
func pack(h dnsmessage.Header, q dnsmessage.Question, addrs []netip.Addr) []byte {
	m := dnsmessage.Message{Header: h, Questions: []dnsmessage.Question{q}}
	for _, a := range addrs {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: q.Class, TTL: answerTTL},
			Body:   &dnsmessage.AResource{A: a.As4()},
		})
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}
