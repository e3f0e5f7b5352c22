package sshd

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// endless is a program that says x and never ends its line.
type endless struct{ said int }

func (e *endless) Read(p []byte) (int, error) {
	if e.said > 1<<30 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'x'
	}
	e.said += len(p)
	return len(p), nil
}

// TestConnected reads the first line of a program in the sandbox, however long it is.
func TestConnected(t *testing.T) {
	for said, want := range map[string]bool{
		agentapi.Connected + "\n": true, agentapi.Connected + "\nand data": true,
		"": false, "\n": false, agentapi.Connected: false, agentapi.Connected + " \n": false, "connection refused\n": false,
	} {
		answers := bufio.NewReader(strings.NewReader(said))
		if got := connected(answers); got != want {
			t.Errorf("%q: connected %v", said, got)
		}
		if rest, err := io.ReadAll(answers); want && (err != nil || string(rest) != strings.TrimPrefix(said, agentapi.Connected+"\n")) {
			t.Errorf("%q: %q comes after it, %v", said, rest, err)
		}
	}
	e := &endless{}
	if connected(bufio.NewReader(e)) {
		t.Error("a line without end says that it is connected")
	}
	if e.said > 1<<16 {
		t.Errorf("%d bytes were read", e.said)
	}
}
