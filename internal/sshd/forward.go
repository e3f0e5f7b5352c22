package sshd

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// forward connects a client to an address that a program in the sandbox reaches:
// one of the sandbox's own ports, or what it may reach outside.
func forward(ctx context.Context, guest *client.Sandbox, from *intake, offer ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(offer.ExtraData(), &to); err != nil || to.Port == 0 || to.Port > 65535 {
		_ = offer.Reject(ssh.ConnectionFailed, "this is no address")
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errGone)
	accepted := make(chan *input, 1)
	output, toClient := io.Pipe()
	defer output.Close()
	said := &beginning{}
	p, err := guest.Start(ctx, client.Command{
		Args:  []string{agentapi.Program, agentapi.ConnectProgram, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port)))},
		Stdin: &later{ctx: ctx, accepted: accepted}, Stdout: toClient, Stderr: said,
	})
	if err != nil {
		_ = offer.Reject(ssh.ConnectionFailed, printable(err.Error()))
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := p.Wait()
		if err != nil {
			hangUp(ctx, p, false)
		}
		toClient.Close()
	}()
	answers := bufio.NewReader(output)
	if !connected(answers) {
		close(accepted)
		output.Close() // it may say more
		<-ended
		_ = offer.Reject(ssh.ConnectionFailed, cmp.Or(printable(said.String()), "the program that connects to it ended"))
		return
	}
	ch, requests, err := offer.Accept()
	if err != nil {
		close(accepted)
		output.Close()
		<-ended
		return
	}
	go func() {
		refuseRequests(requests)
		cancel(errGone) // the client has closed its end
	}()
	in := from.open(ch)
	defer in.close()
	accepted <- in
	_, _ = io.Copy(ch, answers)
	finish(ch)
	output.Close() // the client may have gone first
	<-ended
}

// later is the input of a channel that is not accepted yet.
type later struct {
	ctx      context.Context
	accepted <-chan *input
	in       *input
}

// Read implements io.Reader.
func (l *later) Read(p []byte) (int, error) {
	if l.in == nil {
		select {
		case l.in = <-l.accepted:
		case <-l.ctx.Done():
		}
	}
	if l.in == nil { // it never will be
		return 0, io.EOF
	}
	return l.in.Read(p)
}

// Taken is for the client.
func (l *later) Taken(n int) { l.in.Taken(n) }

// connected reports whether a program's first line says that it is connected. The
// program is the guest's: its line may have no end.
func connected(answers *bufio.Reader) bool {
	line, err := answers.ReadSlice('\n')
	return err == nil && string(line) == agentapi.Connected+"\n"
}

// beginning keeps the first bytes of what is written to it. It is read once
// nothing writes any more.
type beginning struct{ strings.Builder }

const beginningBytes = 500

func (b *beginning) Write(p []byte) (int, error) {
	b.Builder.Write(p[:min(len(p), beginningBytes-b.Len())])
	return len(p), nil
}
