package agent

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestGreedyReads reads a stream in pieces of all sizes, and the rest with
// io.Copy, which would like to pass by what is read ahead.
func TestGreedyReads(t *testing.T) {
	rng := testmode.Rand(0)
	for range 10 {
		sent := make([]byte, 2<<20+rng.IntN(1000))
		for i := range sent {
			sent[i] = byte(i * 7 >> 3)
		}
		conn := greedyPeer(t, sent)
		var got []byte
		for len(got) < len(sent)/2 {
			p := make([]byte, []int{1, 100, greedyRead, 4 << 10, 64 << 10, 2 * copyChunk}[rng.IntN(6)])
			n, err := conn.Read(p)
			if err != nil || n == 0 {
				t.Fatalf("read %d bytes, then %d: %v", len(got), n, err)
			}
			got = append(got, p[:n]...)
		}
		var rest bytes.Buffer
		if _, err := io.Copy(&rest, conn); err != nil {
			t.Fatal(err)
		}
		if got = append(got, rest.Bytes()...); !bytes.Equal(got, sent) {
			t.Fatalf("read %d bytes, which are not the %d that were sent", len(got), len(sent))
		}
		if n, err := conn.Read(make([]byte, greedyRead)); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d bytes, %v", n, err)
		}
	}
}

// greedyPeer returns the accepted end of a connection on which all that is sent.
func greedyPeer(t *testing.T, sent []byte) net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer client.Close()
		_, _ = client.Write(sent)
	}()
	conn, err := greedyListener{listener}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
