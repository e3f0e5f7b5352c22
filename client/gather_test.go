package client

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

// TestGatherLosesNothing hands out all that a reader has, in order, in pieces of a
// bounded size, and its error last.
func TestGatherLosesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 3<<20)
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	broken := errors.New("broken")
	for name, r := range map[string]io.Reader{
		"whole":          bytes.NewReader(want),
		"in bytes":       iotest.OneByteReader(bytes.NewReader(want[:100_000])),
		"with error":     io.MultiReader(bytes.NewReader(want), iotest.ErrReader(broken)),
		"data and error": iotest.DataErrReader(bytes.NewReader(want)),
		"nothing":        bytes.NewReader(nil),
	} {
		g := startGather(r)
		var got []byte
		var err error
		for err == nil {
			var b []byte
			b, err = g.next()
			if len(b) > maxGathered || err == nil && len(b) == 0 {
				t.Fatalf("%s: a piece of %d bytes", name, len(b))
			}
			got = append(got, b...)
		}
		wantErr, wanted := io.EOF, want
		switch name {
		case "in bytes":
			wanted = want[:100_000]
		case "nothing":
			wanted = nil
		case "with error":
			wantErr = broken
		}
		if err != wantErr || !bytes.Equal(got, wanted) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(wanted), err)
		}
	}
}

// TestGatherStops reads no further once nobody takes anything.
func TestGatherStops(t *testing.T) {
	r, w := io.Pipe()
	g := startGather(r)
	g.stop()
	if _, err := w.Write([]byte("x")); err != nil { // the Read that was under way
		t.Fatal(err)
	}
	r.Close()
	if _, err := w.Write([]byte("x")); err != io.ErrClosedPipe {
		t.Fatal(err)
	}
}
