package agentclient

import (
	"context"
	"errors"
	"net"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/agentclient/hostile"
)

// guest is a runtime of which there is only an agent.
type guest struct {
	runtime.Instance
	answer func(net.Conn)
	exited chan struct{}
}

func (g *guest) ID() string              { return "guest" }
func (g *guest) Exited() <-chan struct{} { return g.exited }

func (g *guest) Dial(context.Context, int) (net.Conn, error) {
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		g.answer(there)
	}()
	return here, nil
}

// What every call may take of the memory, and how long its error may be.
const (
	maxSpent = 128 << 20
	maxWords = 1 << 10
)

// TestHostileAgents has every call meet agents that answer what no agent should.
// Each ends with its deadline, has spent little, and says little.
func TestHostileAgents(t *testing.T) {
	calls := map[string]func(context.Context, Agent) error{
		"init": func(ctx context.Context, a Agent) error { return a.Init(ctx, agentapi.InitRequest{}) },
		"sync": func(ctx context.Context, a Agent) error { return a.Sync(ctx) },
		"activity": func(ctx context.Context, a Agent) error {
			seen, err := a.Activity(ctx, 0)
			if len(seen.Processes) > agentapi.MaxProcesses || len(seen.Leases) > agentapi.MaxLeases {
				t.Errorf("activity: %d processes, %d leases", len(seen.Processes), len(seen.Leases))
			}
			return err
		},
		"log": func(ctx context.Context, a Agent) error {
			lines, err := a.Log(ctx, 0)
			if len(lines) > agentapi.MaxLogLines {
				t.Errorf("log: %d lines", len(lines))
			}
			return err
		},
		"command": func(ctx context.Context, a Agent) error { return a.RunAsRoot(ctx, "token", "true") },
	}
	const most = 2 * time.Second // as for a look
	for name, answer := range hostile.Agents {
		for what, call := range calls {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var before, after goruntime.MemStats
					goruntime.ReadMemStats(&before)
					ctx, cancel := context.WithTimeout(t.Context(), most)
					defer cancel()
					began := time.Now()
					err := call(ctx, Of(&guest{answer: hostile.AfterHead(answer), exited: make(chan struct{})}, "secret"))
					goruntime.ReadMemStats(&after)
					if took := time.Since(began); took > most+2*hookGrace {
						t.Errorf("it took %s", took)
					}
					if spent := after.TotalAlloc - before.TotalAlloc; spent > maxSpent {
						t.Errorf("%d MiB were allocated", spent>>20)
					}
					if err != nil && (len(err.Error()) > maxWords || strings.ContainsAny(err.Error(), "\n\x1b\x00")) {
						t.Errorf("the error has %d bytes: %.2000q", len(err.Error()), err.Error())
					}
					time.Sleep(time.Minute) // for the agent to see that nobody listens any more
				})
			})
		}
	}
}

// TestCallEndsWithTheRuntime has a runtime end, whose network just falls silent.
func TestCallEndsWithTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &guest{answer: hostile.AfterHead(hostile.Listen), exited: make(chan struct{})}
		time.AfterFunc(time.Second, func() { close(g.exited) })
		began := time.Now()
		_, err := Of(g, "secret").Activity(t.Context(), 0)
		if took := time.Since(began); took != time.Second || !errors.Is(err, runtime.ErrExited) {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
