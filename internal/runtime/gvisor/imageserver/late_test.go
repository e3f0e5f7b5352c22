package imageserver

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// arriving is a file that comes in parts of odd sizes, as a test lets it.
type arriving struct {
	parts []int64 // where each begins, and the end
	mu    sync.Mutex
	asked map[int64]int   // by where the part begins
	come  chan struct{}   // closed when parts come
	lost  map[int64]error // by where the part begins
	whole func(size int64)
}

func (a *arriving) Await(ctx context.Context, off int64) (start, end int64, err error) {
	n := 0
	for n < len(a.parts)-2 && a.parts[n+1] <= off {
		n++
	}
	a.mu.Lock()
	a.asked[a.parts[n]]++
	a.mu.Unlock()
	select {
	case <-a.come:
		return a.parts[n], a.parts[n+1], a.lost[a.parts[n]]
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// WhenWhole implements runtime.Late: it is whole when a test says so.
func (a *arriving) WhenWhole(f func(size int64)) (stop func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.whole = f
	return func() {}
}

// awaiting returns what reads data that comes by a.
func awaiting(t *testing.T, data []byte, a *arriving, exit func(int)) *late {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(pair[0]), "late")
	conn, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Bring(t.Context(), conn, a)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return Awaiting(bytes.NewReader(data), int64(len(data)), pair[1], exit).(*late)
}

func TestLate(t *testing.T) {
	data := make([]byte, 5<<20+123)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	a := &arriving{parts: []int64{0, 1, 1<<20 + 5, 3 << 20, 5 << 20, 5<<20 + 123}, asked: map[int64]int{}, come: make(chan struct{})}
	l := awaiting(t, data, a, func(code int) { t.Errorf("exit %d", code) })
	var all sync.WaitGroup
	for _, at := range []struct{ off, n int64 }{{0, 10}, {0, 1 << 20}, {1 << 20, 1 << 20}, {3<<20 - 5, 10}, {5<<20 - 1, 124}, {5<<20 + 122, 1}, {4096, 64 << 10}} {
		all.Go(func() {
			got := make([]byte, at.n)
			if n, err := l.ReadAt(got, at.off); int64(n) != at.n || err != nil || !bytes.Equal(got, data[at.off:][:at.n]) {
				t.Errorf("at %d there are %d bytes instead of %d, %v", at.off, n, at.n, err)
			}
		})
	}
	close(a.come)
	all.Wait()
	if got, err := l.ReadAt(make([]byte, 10), int64(len(data))-5); got != 5 || err == nil {
		t.Errorf("over its end: %d, %v", got, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.asked)
	if _, err := l.ReadAt(make([]byte, 1<<20), 1<<20); err != nil || len(a.asked) > 0 {
		t.Errorf("what is known to be there was asked for: %v, %v", a.asked, err)
	}
}

// TestLateNeverComes: a read of what will not come fails with the cause, and where nobody answers
// any more the process ends, unless all that it needs is there.
func TestLateNeverComes(t *testing.T) {
	data := make([]byte, 1<<20)
	a := &arriving{parts: []int64{0, 1 << 19, 1 << 20}, asked: map[int64]int{}, come: make(chan struct{}), lost: map[int64]error{0: errors.New("it is lost" + strings.Repeat(", and more", 1000))}}
	l := awaiting(t, data, a, func(code int) { t.Errorf("exit %d", code) })
	close(a.come)
	if _, err := l.ReadAt(make([]byte, 10), 0); err == nil || !strings.Contains(err.Error(), "it is lost, and") {
		t.Errorf("the read says %v", err)
	}

	a = &arriving{parts: []int64{0, 1 << 19, 1 << 20}, asked: map[int64]int{}, come: make(chan struct{}), lost: map[int64]error{1 << 19: context.Canceled}} // as when the server stops
	exits := make(chan int, 1)
	l = awaiting(t, data, a, func(code int) {
		exits <- code
		select {}
	})
	close(a.come)
	if _, err := l.ReadAt(make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.ReadAt(make([]byte, 10), 100); err != nil {
		t.Errorf("what is there: %v", err)
	}
	go func() { _, _ = l.ReadAt(make([]byte, 10), 1<<19) }()
	if code := <-exits; code == 0 {
		t.Error("it ends as if all were well")
	}
}

// TestLateIsWhole: once all is there, nothing more is asked for, and nobody need be there to answer.
func TestLateIsWhole(t *testing.T) {
	data := make([]byte, 3<<20+5)
	_, _ = rand.NewChaCha8([32]byte{8}).Read(data)
	a := &arriving{parts: []int64{0, 1 << 20, 3<<20 + 5}, asked: map[int64]int{}, come: make(chan struct{}), lost: map[int64]error{1 << 20: context.Canceled}}
	l := awaiting(t, data, a, func(code int) { t.Errorf("exit %d", code) })
	got, done := make([]byte, 100), make(chan error)
	go func() { // waits for what has not come
		_, err := l.ReadAt(got, 5)
		done <- err
	}()
	var whole func(size int64)
	for whole == nil {
		a.mu.Lock()
		whole = a.whole
		a.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	whole(int64(len(data)))
	if err := <-done; err != nil || !bytes.Equal(got, data[5:105]) {
		t.Errorf("what was waited for: %v", err)
	}
	close(a.come)
	if _, err := l.ReadAt(got, 2<<20); err != nil || !bytes.Equal(got, data[2<<20:][:100]) {
		t.Errorf("what nobody asked for: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.asked); n > 1 {
		t.Errorf("%d parts were asked for", n)
	}
}
