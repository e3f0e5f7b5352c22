package serve

import (
	"net"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// TestPredecessor: the address and the lock of a server that has just ended may be
// taken for a moment. What stays taken is somebody else's.
func TestPredecessor(t *testing.T) {
	for name, goes := range map[string]bool{"goes": true, "stays": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, dir := t.Context(), t.TempDir()
			before, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			unlock, err := lockDir(ctx, dir)
			if err != nil {
				t.Fatal(err)
			}
			end := func() {
				before.Close()
				_ = unlock()
			}
			if goes {
				time.AfterFunc(predecessorPatience/10, end)
			} else {
				defer end()
			}
			ln, err := listen(ctx, "--listen", before.Addr().String())
			if goes && err != nil || !goes && codeOf(err) != "port_in_use" {
				t.Errorf("listen: %v", err)
			}
			if err == nil {
				ln.Close()
			}
			mine, err := lockDir(ctx, dir)
			if goes && err != nil || !goes && codeOf(err) != "state_dir_in_use" {
				t.Errorf("lock: %v", err)
			}
			if err == nil {
				_ = mine()
			}
		})
	}
}

func codeOf(err error) string {
	return errdef.CodeOf(err)
}
