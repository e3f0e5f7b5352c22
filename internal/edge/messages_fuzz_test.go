package edge

import "testing"

// FuzzMessages lets a guest stream what it likes. However it arrives in pieces,
// what follows it comes to the same end, and each step takes something.
func FuzzMessages(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x03abc\x02\x00\x00\x00\x02{}"), uint8(2))
	f.Add([]byte("\x81\x03abc\x88\x02\x03\xe8"), uint8(3))
	f.Add([]byte("\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"), uint8(1))
	f.Add([]byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"), uint8(9))
	f.Add([]byte("\x00\xff\xff\xff\xff"), uint8(4))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		type follower interface {
			next(p []byte) int
			between() bool
		}
		for name, pair := range map[string][2]follower{
			"envelopes": {&envelopes{}, &envelopes{}},
			"frames":    {&socketFrames{}, &socketFrames{}},
		} {
			follow := func(to follower, p []byte) {
				for len(p) > 0 {
					n := to.next(p)
					if n <= 0 || n > len(p) {
						t.Fatalf("%s: took %d of %d bytes", name, n, len(p))
					}
					p = p[n:]
				}
			}
			follow(pair[0], stream)
			for rest, piece := stream, int(size)+1; len(rest) > 0; {
				piece = min(piece, len(rest))
				follow(pair[1], rest[:piece])
				rest = rest[piece:]
			}
			if whole, pieces := pair[0].between(), pair[1].between(); whole != pieces {
				t.Errorf("%s: between two messages: %v as a whole, %v in pieces of %d", name, whole, pieces, int(size)+1)
			}
		}
	})
}
