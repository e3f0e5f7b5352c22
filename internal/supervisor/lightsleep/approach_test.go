package lightsleep

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// dialled is a runtime that notes the ends of the connections into it.
type dialled struct {
	runtime.Instance
	refuse bool // the next one
	ends   []net.Conn
	ports  []int
}

var errRefused = errors.New("refused")

func (d *dialled) Dial(_ context.Context, port int) (net.Conn, error) {
	d.ports = append(d.ports, port)
	if d.refuse {
		d.refuse = false
		return nil, errRefused
	}
	conn, end := net.Pipe()
	d.ends = append(d.ends, end)
	return conn, nil
}

// isOpen reports whether the other end of a connection is open.
func isOpen(end net.Conn) bool {
	done := make(chan error, 1)
	go func() {
		_, err := end.Read(make([]byte, 1))
		done <- err
	}()
	synctest.Wait()
	select {
	case err := <-done:
		return !errors.Is(err, io.EOF)
	default:
		_ = end.Close()
		<-done
		return true
	}
}

func TestApproach(t *testing.T) {
	dial := func(t *testing.T, a *Approach, port int) net.Conn {
		t.Helper()
		conn, err := a.Dial(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	synctest.Test(t, func(t *testing.T) {
		d := &dialled{}
		a := approach(d)
		synctest.Wait()
		other := dial(t, a, agentapi.Port+1)
		first := dial(t, a, agentapi.Port)
		second := dial(t, a, agentapi.Port)
		if len(d.ports) != 3 || d.ports[0] != agentapi.Port || d.ports[1] != agentapi.Port+1 || d.ports[2] != agentapi.Port {
			t.Errorf("dialled %v, want the agent ahead, and then what was asked for", d.ports)
		}
		a.Close()
		if !isOpen(d.ends[0]) {
			t.Error("what was made ahead was closed in use")
		}
		for _, c := range []net.Conn{other, first, second} {
			_ = c.Close()
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := &dialled{}
		a := approach(d)
		synctest.Wait()
		a.Close()
		a.Close()
		if isOpen(d.ends[0]) {
			t.Error("what nobody used is open")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := &dialled{refuse: true}
		a := approach(d)
		_ = dial(t, a, agentapi.Port).Close() // by a second attempt
		a.Close()
		if len(d.ports) != 2 {
			t.Errorf("dialled %v", d.ports)
		}
	})
}
