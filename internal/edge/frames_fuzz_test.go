package edge

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/ration"
)

// sink is a connection into which everything vanishes.
type sink struct{ net.Conn }

func (sink) Write(p []byte) (int, error) { return len(p), nil }
func (sink) Close() error                { return nil }

// FuzzFrames passes what clients send by HTTP/2, and what goes out to them.
// However it arrives in pieces it is taken for the same, no account is ever below
// nothing, and all is given back in the end.
func FuzzFrames(f *testing.F) {
	frame := func(kind, flags byte, stream uint32, n int) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(n)<<8|uint32(kind))
		return append(binary.BigEndian.AppendUint32(append(b, flags), stream), make([]byte, min(n, 64))...)
	}
	f.Add(frame(frameHeaders, 0, 1, 20), frame(8, 0, 0, 4), uint8(1))
	f.Add(append(frame(frameHeaders, flagEndHeaders, 1, 2), frame(frameData, 1, 1, 60)...), append(frame(8, 0, 0, 4), frame(4, 0, 0, 6)...), uint8(3))
	f.Add(append(frame(frameHeaders, 0, 1, 9), frame(frameContinuation, flagEndHeaders, 3, 1)...), frame(8, 0, 1, 9), uint8(8))
	f.Add(frame(frameData, 0, 1, 1<<24-1), []byte("\x00\x00\x04\x08\x00\x00\x00\x00\x00\xff\xff\xff\xff"), uint8(0))
	f.Fuzz(func(t *testing.T, in, out []byte, size uint8) {
		all := ration.New(maxBuffers)
		pass := func(piece int) *frames {
			fr := newFrames(sink{}, nil, time.Hour, &room{all: all, holder: ration.Holder{Name: "a", Most: maxClientBuffers}})
			fr.preface = 0
			fr.patience = 0 // for room
			for _, way := range []struct {
				data []byte
				do   func([]byte) bool
			}{{out, func(p []byte) bool { _, _ = fr.Write(p); return true }}, {in, fr.pass}} {
				for rest := way.data; len(rest) > 0; {
					n := min(piece, len(rest))
					ok := way.do(rest[:n])
					if fr.heads.has < 0 || fr.bodies.has < 0 || fr.left < 0 || fr.bodies.left < 0 {
						t.Fatalf("below nothing: %+v", fr)
					}
					if !ok {
						break
					}
					rest = rest[n:]
				}
			}
			return fr
		}
		whole := pass(1 << 30)
		heads, bodies := whole.heads.has, whole.bodies.has
		_ = whole.Close()
		pieces := pass(int(size) + 1)
		if pieces.heads.has != heads || pieces.bodies.has != bodies || pieces.head != whole.head || pieces.bodies.window != whole.bodies.window {
			t.Errorf("heads %d and bodies %d as a whole, %d and %d in pieces of %d", heads, bodies, pieces.heads.has, pieces.bodies.has, int(size)+1)
		}
		_ = pieces.Close()
		if n := all.Taken(); n != 0 {
			t.Errorf("%d bytes are still taken", n)
		}
	})
}
