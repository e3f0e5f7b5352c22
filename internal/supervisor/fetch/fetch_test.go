package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
)

const pieceSize = 4 << 20

// rig is an image "one" whose pages are in a store.
type rig struct {
	t      *testing.T
	pages  []byte
	store  *blobstest.Faulty
	layers *layer.Store
	disk   *space.Disk
	part   replica.Part

	mu    sync.Mutex
	order []string // keys, as they were asked for
	gate  func(key string) error
}

func newRig(t *testing.T, pages []byte) *rig {
	t.Helper()
	r := &rig{t: t, pages: pages, store: blobstest.NewFake(), disk: space.New(t.TempDir(), "")}
	var err error
	if r.layers, err = layer.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	_, index, _, err := replica.Write(t.Context(), r.store, "sandboxes/i1", nil, func(w io.Writer) error {
		_, err := w.Write(pages)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	from := replica.Open(t.Context(), r.store, index)
	r.part = from.Part(0, int64(len(pages)))
	from.Close()
	r.store.Fail = func(op, key string) error {
		if op != "get" {
			return nil
		}
		r.mu.Lock()
		r.order = append(r.order, key)
		gate := r.gate
		r.mu.Unlock()
		if gate == nil {
			return nil
		}
		return gate(key)
	}
	dir, err := r.layers.NewImage("one")
	if err == nil {
		err = os.WriteFile(layer.LatePath(dir), nil, 0o600)
	}
	if err == nil {
		err = os.Truncate(layer.LatePath(dir), int64(len(pages)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) open(context.Context) (replica.Part, error) { return r.part, nil }

// begin returns a Fetcher that completes the image, and ends it with the test.
func (r *rig) begin(open func(context.Context) (replica.Part, error)) *Fetcher {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	f := New(ctx, r.layers, r.disk, slog.New(slog.DiscardHandler))
	r.t.Cleanup(func() {
		cancel()
		f.Stopped()
	})
	if err := f.Begin("one", open); err != nil {
		r.t.Fatal(err)
	}
	return f
}

func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

func (r *rig) wantWhole() {
	r.t.Helper()
	got, err := os.ReadFile(filepath.Join(r.layers.ImageDir("one"), "pages.img"))
	if err != nil || !bytes.Equal(got, r.pages) {
		r.t.Errorf("there are %d bytes, %v; want the %d that were written", len(got), err, len(r.pages))
	}
}

// TestWhatIsWaitedForComesFirst: while four pieces are on their way, the one that somebody waits
// for is the next, and it is there when Await says so.
func TestWhatIsWaitedForComesFirst(t *testing.T) {
	pages := noise(30*pieceSize + 100)
	clear(pages[10*pieceSize : 12*pieceSize])
	r := newRig(t, pages)
	turns := make(chan struct{})
	r.gate = func(string) error {
		<-turns
		return nil
	}
	f := r.begin(r.open)
	x := f.Of("one")
	const last = 30
	asked := make(chan error, 1)
	go func() {
		start, end, err := x.Await(t.Context(), last*pieceSize+50)
		if err == nil && (start != last*pieceSize || end != int64(len(pages))) {
			err = errors.New("another part has come")
		}
		asked <- err
	}()
	served, at := 0, -1
	for done := false; !done; {
		select {
		case turns <- struct{}{}:
			served++
		case err := <-asked:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		}
	}
	// The four before it, those that they have begun instead, and what came at the same time.
	if at = served; at > 16 {
		t.Errorf("it came after %d pieces", at)
	}
	late, err := os.Open(layer.LatePath(r.layers.ImageDir("one")))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	got := make([]byte, 100)
	if _, err := late.ReadAt(got, last*pieceSize); err != nil || !bytes.Equal(got, pages[last*pieceSize:]) {
		t.Errorf("it is there, with other contents: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Wait(ended, "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("it is whole already: %v", err)
	}
	if err := f.Drain(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing is read any more: %v", err)
	}
	wholes := make(chan int64, 2)
	defer x.WhenWhole(func(size int64) { wholes <- size })()
	x.WhenWhole(func(int64) { t.Error("it was stopped, and is told") })()
	close(turns)
	if err := f.Wait(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	r.wantWhole()
	if f.Of("one") != nil {
		t.Error("it is being read still")
	}
	x.WhenWhole(func(size int64) { wholes <- size })
	if n := len(wholes); n != 2 || <-wholes != int64(len(pages)) || <-wholes != int64(len(pages)) {
		t.Errorf("it was told %d times that it is whole", n)
	}
	if start, end, err := x.Await(t.Context(), 5); start != 0 || end < pieceSize || err != nil {
		t.Errorf("whole, 5 is from %d to %d, %v", start, end, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.order); n != 29 || len(slices.Compact(slices.Sorted(slices.Values(r.order)))) != n {
		t.Errorf("%d pieces were read, of 29 that are not zeros, or some twice", n)
	}
	if err := errors.Join(f.Wait(t.Context(), "one"), f.Wait(t.Context(), "another"), f.Drain(t.Context()), f.Begin("one", r.open)); err != nil {
		t.Errorf("of what is whole: %v", err)
	}
	var none *Fetcher
	if err := none.Wait(t.Context(), "one"); err != nil || none.Of("one") != nil {
		t.Errorf("of no Fetcher: %v", err)
	}
}

// TestItIsReadWhenTheStoreAnswersAgain: an outage at the begin and in the middle only takes time.
func TestItIsReadWhenTheStoreAnswersAgain(t *testing.T) {
	r := newRig(t, noise(6*pieceSize))
	failures := map[string]int{}
	r.gate = func(key string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if failures[key]++; failures[key] < 3 {
			return blobstest.Unavailable("get", key)
		}
		return nil
	}
	opened := 0
	f := r.begin(func(context.Context) (replica.Part, error) {
		if opened++; opened < 3 {
			return replica.Part{}, blobstest.Unavailable("get", "the index")
		}
		return r.part, nil
	})
	if _, _, err := f.Of("one").Await(t.Context(), 3*pieceSize); err != nil {
		t.Errorf("a part: %v", err)
	}
	if err := f.Wait(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	r.wantWhole()
}

// TestWhatIsLostIsSaid: a piece that is damaged ends it, and whoever waits is told.
func TestWhatIsLostIsSaid(t *testing.T) {
	r := newRig(t, noise(6*pieceSize))
	r.store.Spoil = func(_ string, data []byte) []byte {
		data[len(data)/2] ^= 1
		return data
	}
	f := r.begin(r.open)
	x := f.Of("one")
	_, _, awaited := x.Await(t.Context(), 3*pieceSize)
	for what, err := range map[string]error{"a part": awaited, "all": f.Wait(t.Context(), "one")} {
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "checkpoint_damaged" || !strings.Contains(err.Error(), "is not what was written") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !x.Failed() {
		t.Error("it has not failed")
	}
	defer func() { // and it is read when it was put back
		r.store.Spoil = nil
		whole := make(chan int64, 2)
		if err := f.Wait(t.Context(), "one"); err != nil {
			t.Errorf("put back: %v", err)
		}
		r.wantWhole()
		x.WhenWhole(func(size int64) { whole <- size })()
		if len(whole) > 0 {
			t.Error("what has failed is said to be whole")
		}
	}()
	if late, err := layer.OpenLate(r.layers.ImageDir("one")); late == nil || err != nil {
		t.Errorf("the image counts as whole: %v", err)
	} else {
		late.Close()
	}
}

// TestItEndsWithItsImage: when nobody needs the image any more, nothing more is read.
func TestItEndsWithItsImage(t *testing.T) {
	r := newRig(t, noise(20*pieceSize))
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	r.gate = func(key string) error {
		begun <- struct{}{}
		<-goOn
		return nil
	}
	f := r.begin(r.open)
	x := f.Of("one")
	<-begun
	if err := r.layers.RemoveImage("one"); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	<-x.over
	if f.Of("one") != nil {
		t.Error("it is being read still")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.order) > 2*parallel {
		t.Errorf("%d pieces were read for nobody", len(r.order))
	}
}

// TestItEndsWithTheServer: it stops at once, and the next server begins anew.
func TestItEndsWithTheServer(t *testing.T) {
	r := newRig(t, noise(8*pieceSize))
	begun := make(chan struct{}, 100)
	r.gate = func(key string) error {
		begun <- struct{}{}
		select {}
	}
	ctx, cancel := context.WithCancel(t.Context())
	f := New(ctx, r.layers, r.disk, slog.New(slog.DiscardHandler))
	if err := f.Begin("one", r.open); err != nil {
		t.Fatal(err)
	}
	<-begun
	cancel()
	f.Stopped()
	r.mu.Lock()
	r.gate = nil
	r.mu.Unlock()
	if err := r.begin(r.open).Wait(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	r.wantWhole()
}
