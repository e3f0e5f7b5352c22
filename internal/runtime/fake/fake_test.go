package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/drivertest"
)

// counter is the contract suite's guest as a Program.
type counter struct {
	mu    sync.Mutex // a request whose client has gone may still be at work beside the next
	state drivertest.State

	hindered atomic.Bool
}

func (c *counter) Serves(port int) http.Handler {
	if port != drivertest.GuestPort {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.state.Count++
		_ = json.NewEncoder(w).Encode(c.state)
	})
}

func (c *counter) Image() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hindered.Load() {
		return nil, runtime.NotCapturable("it holds something")
	}
	return json.Marshal(c.state)
}

func TestContract(t *testing.T) {
	var last *counter
	m := NewMachine(func(_ runtime.Spec, image []byte) (Program, error) {
		last = &counter{state: drivertest.State{PID: 1}}
		if image == nil {
			return last, nil
		}
		return last, json.Unmarshal(image, &last.state)
	})
	var next atomic.Int64
	spec := func(*testing.T) runtime.Spec { return runtime.Spec{ID: fmt.Sprintf("i%08d", next.Add(1))} }
	drivertest.Run(t, drivertest.Env{
		Reopen:  func(*testing.T) runtime.Driver { return m.Driver() },
		NewSpec: spec,
		Again:   func(t *testing.T, _ runtime.Spec) runtime.Spec { return spec(t) },
		Hinder:  func(*testing.T, runtime.Instance) { last.hindered.Store(true) },
	})
}
