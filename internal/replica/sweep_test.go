package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/replica/seal"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const grace = 6 * time.Hour

// records are what the database says of copies.
type records struct {
	mu   sync.Mutex
	keys map[string]Copy // by prefix
	err  error
}

func (r *records) needed(context.Context) ([]Copy, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.keys)), r.err
}

func (r *records) commit(prefix string, c Copy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys[prefix] = c
}

func sweepNow(t testing.TB, m *memory, r *records) (int, int64, error) {
	t.Helper()
	return Sweep(t.Context(), m, "sandboxes", r.needed, grace, time.Now())
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := newMemory(), &records{keys: map[string]Copy{}}
		a, b, c := noise(1, 100), noise(2, 200), noise(3, 300)
		oldKey, old, _ := mustWrite(t, m, nil, a, b)
		key, x, _ := mustWrite(t, m, &old, a, c)
		r.commit(prefix, key)
		for _, foreign := range []string{prefix + "/notes", "sandboxes/x", "sandboxes/servers/srv_abcdefgh23456777", prefix + "/" + strings.Repeat("a", 26) + "/other", prefix + "/" + strings.Repeat("a", 26) + "/index-0", "other/i0/" + strings.Repeat("a", 26) + "/index-" + seal.Key("").Digest(nil)} {
			if err := m.Put(t.Context(), foreign, nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(grace)
		if n, _, err := sweepNow(t, m, r); n != 0 || err != nil {
			t.Errorf("%d removed within grace, %v", n, err)
		}
		young, _, _ := mustWrite(t, m, nil, a)
		time.Sleep(time.Second)
		index := int64(len(m.blobs[oldKey.Index].data))
		n, bytes, err := sweepNow(t, m, r)
		if n != 2 || bytes != index+200+seal.Overhead || err != nil {
			t.Errorf("%d removed of %d bytes, %v; want an index of %d bytes and a piece of 200", n, bytes, err, index)
		}
		wantRead(t, m, key, a, c)
		wantRead(t, m, young, a)
		if got := len(m.keys()); got != 6+len(x.Keys())+1+2 {
			t.Errorf("%d blobs are left: %q", got, m.keys())
		}
	})
}

func TestSweepRemovesNothingWhenItCannotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := newMemory(), &records{keys: map[string]Copy{}}
		mustWrite(t, m, nil, noise(1, 100))
		key, _, _ := mustWrite(t, m, nil, noise(2, 100))
		r.commit(prefix, key)
		good, all := m.blobs[key.Index], len(m.keys())
		time.Sleep(grace + time.Second)
		broken := errors.New("broken")
		m.blobs[key.Index] = blob{good.data[:10], good.at}
		_, _, err := sweepNow(t, m, r)
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
		m.blobs[key.Index] = good
		r.err = broken
		if _, _, err := sweepNow(t, m, r); !errors.Is(err, broken) {
			t.Error(err)
		}
		r.err = nil
		for _, what := range []string{"get", "list", "remove"} {
			m.fails = func(op, _ string) error {
				if op == what {
					return broken
				}
				return nil
			}
			if n, _, err := sweepNow(t, m, r); !errors.Is(err, broken) || n != 0 {
				t.Errorf("%s: %d removed, %v", what, n, err)
			}
		}
		if len(m.keys()) != all {
			t.Errorf("left are %q", m.keys())
		}
	})
}

// TestSweepLooksAtManyBlobsInParts has more blobs than are looked at together.
func TestSweepLooksAtManyBlobsInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := newMemory(), &records{keys: map[string]Copy{}}
		key, _, _ := mustWrite(t, m, nil, noise(1, 100))
		r.commit(prefix, key)
		dead := fmt.Sprintf("%s/%s/", prefix, strings.Repeat("b", 26))
		const atOnce = 100
		for i := range 3*atOnce + 10 {
			m.blobs[fmt.Sprintf("%s%064x", dead, i)] = blob{data: []byte("1"), at: time.Now()}
		}
		time.Sleep(grace + time.Second)
		most := 0
		s := sweep{in: m, atOnce: atOnce, found: map[string]int64{}}
		s.needed = func(ctx context.Context) ([]Copy, error) {
			most = max(most, len(s.found))
			return r.needed(ctx)
		}
		if err := s.all(t.Context(), "sandboxes", time.Now().Add(-grace)); s.removed != 3*atOnce+10 || s.bytes != int64(s.removed) || err != nil {
			t.Errorf("%d of %d bytes removed, %v", s.removed, s.bytes, err)
		}
		if most != atOnce {
			t.Errorf("%d were looked at together, want %d", most, atOnce)
		}
		wantRead(t, m, key, noise(1, 100))
	})
}

// TestSweepDuringUploads commits while a sweep is between any two of its steps, and goes
// on with an upload that refers to the copy it replaces.
func TestSweepDuringUploads(t *testing.T) {
	for step := range 12 {
		synctest.Test(t, func(t *testing.T) {
			m, r := newMemory(), &records{keys: map[string]Copy{}}
			a, b, c := noise(1, 100), noise(2, 200), noise(3, 300)
			oldKey, old, _ := mustWrite(t, m, nil, a, b)
			r.commit(prefix, oldKey)
			mustWrite(t, m, nil, a, c) // broken off before its commit
			time.Sleep(grace + time.Minute)

			// The upload is halfway; what it refers to is old.
			half, goOn, done := make(chan struct{}), make(chan struct{}), make(chan Copy)
			go func() {
				key, x, _, err := Write(t.Context(), m, prefix, &old, func(w io.Writer) error {
					if err := parts(a, c)(w); err != nil {
						return err
					}
					close(half)
					<-goOn
					return parts(b)(w)
				})
				if err != nil {
					t.Error(err)
				}
				r.commit(prefix, key)
				gone := Unshared(old, x, oldKey.Index)
				if _, err := Remove(t.Context(), m, gone...); err != nil {
					t.Error(err)
				}
				done <- key
			}()
			<-half
			var key Copy
			n := 0
			at := func() {
				if n++; n == step {
					close(goOn)
					key = <-done
				}
			}
			sweeping := &hooked{memory: m, at: at}
			_, _, err := Sweep(t.Context(), sweeping, "sandboxes", func(ctx context.Context) ([]Copy, error) {
				at()
				keys, err := r.needed(ctx)
				at()
				return keys, err
			}, grace, time.Now())
			if key == (Copy{}) {
				close(goOn)
				key = <-done
			}
			if err != nil {
				t.Errorf("step %d of %d: %v", step, n, err)
			}
			wantRead(t, m, key, a, c, b)
		})
	}
}

// hooked calls at before and after all that a sweep does.
type hooked struct {
	*memory
	at func()
}

func (h *hooked) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	h.at()
	defer h.at()
	return h.memory.Get(ctx, key, most)
}

func (h *hooked) Remove(ctx context.Context, keys ...string) error {
	h.at()
	defer h.at()
	return h.memory.Remove(ctx, keys...)
}

// TestAtRandom writes, commits, ends and sweeps in any order, of several sandboxes, with
// uploads that fail or are never committed. Each copy that is committed stays readable, and
// in the end nothing else is left.
func TestAtRandom(t *testing.T) {
	for seed := range testmode.Choose(uint64(15), 60) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			m, r := newMemory(), &records{keys: map[string]Copy{}}
			want := map[string][][]byte{}
			indexes := map[string]Index{}
			for range 60 {
				sandbox := fmt.Sprintf("sandboxes/i%d", rnd.IntN(3))
				switch rnd.IntN(8) {
				case 0, 1, 2, 3:
					var all [][]byte
					for range 1 + rnd.IntN(6) {
						all = append(all, noise(uint64(rnd.IntN(12)), 50))
					}
					failAt := -1
					if rnd.IntN(4) == 0 {
						failAt = rnd.IntN(5)
					}
					m.fails = func(op, _ string) error {
						if failAt--; op == "put" && failAt == -1 {
							return errors.New("broken")
						}
						return nil
					}
					var base *Index
					if x, ok := indexes[sandbox]; ok && rnd.IntN(5) > 0 {
						base = &x
					}
					key, x, _, err := Write(t.Context(), &oneByOne{memory: m}, sandbox, base, parts(all...))
					m.fails = nil
					if time.Sleep(time.Duration(rnd.Int64N(int64(grace / 2)))); err != nil || rnd.IntN(5) == 0 {
						break // the server is gone before it commits
					}
					old, had := indexes[sandbox]
					oldKey := r.keys[sandbox]
					r.commit(sandbox, key)
					want[sandbox], indexes[sandbox] = all, x
					if had && rnd.IntN(2) == 0 {
						if _, err := Remove(t.Context(), m, Unshared(old, x, oldKey.Index)...); err != nil {
							t.Fatal(err)
						}
					}
				case 4:
					delete(r.keys, sandbox)
					delete(want, sandbox)
					delete(indexes, sandbox)
				case 5, 6:
					if _, _, err := sweepNow(t, m, r); err != nil {
						t.Fatal(err)
					}
				default:
					time.Sleep(time.Duration(rnd.Int64N(int64(2 * grace))))
				}
				for sandbox, all := range want {
					wantRead(t, m, r.keys[sandbox], all...)
				}
			}
			time.Sleep(grace + time.Second)
			if _, _, err := sweepNow(t, m, r); err != nil {
				t.Fatal(err)
			}
			left := len(r.keys)
			for sandbox, all := range want {
				wantRead(t, m, r.keys[sandbox], all...)
				left += len(indexes[sandbox].Keys())
			}
			if got := len(m.keys()); got != left {
				t.Errorf("seed %d: %d blobs are left, and %d needed", seed, got, left)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// oneByOne puts one blob at a time, so that which one fails is not up to the scheduler.
type oneByOne struct {
	*memory
	mu sync.Mutex
}

func (o *oneByOne) Put(ctx context.Context, key string, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.memory.Put(ctx, key, data)
}
