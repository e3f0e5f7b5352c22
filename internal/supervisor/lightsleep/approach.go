package lightsleep

import (
	"context"
	"net"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Approach is a frozen runtime that is about to go on, with a connection to its agent: its
// network is not frozen, so that one can be made meanwhile. The agent finds it when it
// goes on. Nothing has been sent on it.
type Approach struct {
	runtime.Instance
	conn chan net.Conn // closed after the one that was made, if one was
	stop context.CancelFunc
}

func approach(inst runtime.Instance) *Approach {
	ctx, cancel := context.WithCancel(context.Background())
	a := &Approach{inst, make(chan net.Conn, 1), cancel}
	go func() {
		defer close(a.conn)
		if conn, err := inst.Dial(ctx, agentapi.Port); err == nil {
			a.conn <- conn
		}
	}()
	return a
}

// Dial returns the connection that was made, once. What else is asked for is dialled.
func (a *Approach) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port == agentapi.Port {
		select {
		case conn, ok := <-a.conn:
			if ok {
				return conn, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return a.Instance.Dial(ctx, port)
}

// Close closes the connection, unless it was used.
func (a *Approach) Close() {
	a.stop()
	go func() {
		if conn, ok := <-a.conn; ok {
			_ = conn.Close()
		}
	}()
}
