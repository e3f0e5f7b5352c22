package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/replica/seal"
)

const prefix = "sandboxes/i0"

// memory is object storage in memory.
type memory struct {
	mu    sync.Mutex
	blobs map[string]blob
	puts  int
	gets  int
	// fails and before are called, unlocked, before something is done with a key.
	fails  func(op, key string) error
	before func(ctx context.Context, op, key string)
}

type blob struct {
	data []byte
	at   time.Time
}

func newMemory() *memory { return &memory{blobs: map[string]blob{}} }

func (m *memory) begin(ctx context.Context, op, key string) error {
	if m.before != nil {
		m.before(ctx, op, key)
	}
	if m.fails != nil {
		if err := m.fails(op, key); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (m *memory) Put(ctx context.Context, key string, data []byte) error {
	if err := m.begin(ctx, "put", key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.blobs[key]; there {
		return fmt.Errorf("%s is put a second time", key)
	}
	m.puts++
	m.blobs[key] = blob{bytes.Clone(data), time.Now()}
	return nil
}

func (m *memory) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	if err := m.begin(ctx, "get", key); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	b, ok := m.blobs[key]
	switch {
	case !ok:
		return nil, errdef.New(errdef.NotFound, "blob_not_found", "there is no %s", key)
	case int64(len(b.data)) > most:
		return nil, errdef.New(errdef.Invalid, "blob_too_large", "%s has more than %d bytes", key, most)
	}
	return bytes.Clone(b.data), nil
}

func (m *memory) Remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := m.begin(ctx, "remove", key); err != nil {
			return err
		}
		m.mu.Lock()
		delete(m.blobs, key)
		m.mu.Unlock()
	}
	return nil
}

func (m *memory) List(ctx context.Context, prefix string) iter.Seq2[blobs.Blob, error] {
	return func(yield func(blobs.Blob, error) bool) {
		if err := m.begin(ctx, "list", prefix); err != nil {
			yield(blobs.Blob{}, err)
			return
		}
		m.mu.Lock()
		all := maps.Clone(m.blobs)
		m.mu.Unlock()
		for key, b := range all {
			if strings.HasPrefix(key, prefix+"/") && !yield(blobs.Blob{Key: key, Size: int64(len(b.data)), At: b.at}, nil) {
				return
			}
		}
	}
}

func (m *memory) String() string { return "memory" }

func (m *memory) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.blobs))
}

// noise is data that nothing else has.
func noise(seed uint64, n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return data
}

// parts writes parts with a cut after each.
func parts(all ...[]byte) func(io.Writer) error {
	return func(w io.Writer) error {
		for _, p := range all {
			if _, err := io.Copy(w, iotest.HalfReader(bytes.NewReader(p))); err != nil {
				return err
			}
			if err := w.(bundle.Cutter).Cut(); err != nil {
				return err
			}
		}
		return nil
	}
}

func mustWrite(t testing.TB, to blobs.Store, base *Index, all ...[]byte) (Copy, Index, int64) {
	t.Helper()
	key, x, sent, err := Write(t.Context(), to, prefix, base, parts(all...))
	if err != nil {
		t.Fatal(err)
	}
	return key, x, sent
}

// readBack reads a copy by its key.
func readBack(ctx context.Context, from blobs.Store, c Copy) ([]byte, error) {
	x, err := ReadIndex(ctx, from, c)
	if err != nil {
		return nil, err
	}
	r := Open(ctx, from, x)
	defer r.Close()
	return io.ReadAll(r)
}

func wantRead(t testing.TB, from blobs.Store, c Copy, all ...[]byte) {
	t.Helper()
	got, err := readBack(t.Context(), from, c)
	if err != nil || !bytes.Equal(got, bytes.Join(all, nil)) {
		t.Errorf("%s: %d bytes, %v; want the %d that were written", c.Index, len(got), err, len(bytes.Join(all, nil)))
	}
}

func wantCode(t testing.TB, err error, class errdef.Class, code string) {
	t.Helper()
	if errdef.ClassOf(err) != class || errdef.CodeOf(err) != code {
		t.Errorf("%v, want %s with code %s", err, class, code)
	}
}

func TestRoundTrip(t *testing.T) {
	m := newMemory()
	all := [][]byte{noise(1, 100), noise(2, 3*maxPiece+5), make([]byte, 2*maxPiece+7), noise(1, 100), {}, noise(4, maxPiece)}
	key, x, sent := mustWrite(t, m, nil, all...)
	wantRead(t, m, key, all...)
	// What comes twice is put once, and zeros never; with the index.
	if want := int64(100 + 3*maxPiece + 5 + maxPiece); sent != want || m.puts != 7 || x.Size() != want+2*maxPiece+7+100 {
		t.Errorf("%d bytes sent in %d puts, size %d", sent, m.puts, x.Size())
	}
	if got, want := append(x.Keys(), key.Index), m.keys(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	read, err := ReadIndex(t.Context(), m, key)
	if err != nil || read.Key != x.Key || !slices.Equal(read.Pieces, x.Pieces) || !slices.Equal(read.Uploads, x.Uploads) {
		t.Errorf("index %+v, %v; want %+v", read, err, x)
	}
	r := Open(t.Context(), m, x)
	defer r.Close()
	var whole bytes.Buffer
	if n, err := io.Copy(&whole, r); err != nil || n != x.Size() || !bytes.Equal(whole.Bytes(), bytes.Join(all, nil)) {
		t.Errorf("copied %d bytes, %v", n, err)
	}
}

func TestPiecesOfTheCopyBeforeAreReferredTo(t *testing.T) {
	m := newMemory()
	a, b, c := noise(1, 2*maxPiece), noise(2, 1000), noise(3, 1000)
	oldKey, old, _ := mustWrite(t, m, nil, a, b)
	key, x, sent := mustWrite(t, m, &old, a, c)
	if sent != 1000 {
		t.Errorf("%d bytes sent, want the 1000 that are new", sent)
	}
	third, y, _ := mustWrite(t, m, &x, c, a, b)
	// The third has b anew: the second did not refer to it.
	wantRead(t, m, third, c, a, b)
	gone := Unshared(old, x, oldKey.Index)
	if len(gone) != 2 || !slices.Contains(gone, oldKey.Index) {
		t.Errorf("only the old copy needs %q, want its index and one piece", gone)
	}
	for _, keys := range [][]string{gone, Unshared(x, y, key.Index)} {
		if _, err := Remove(t.Context(), m, keys...); err != nil {
			t.Fatal(err)
		}
	}
	wantRead(t, m, third, c, a, b)
	if want := len(y.Keys()) + 1; len(m.keys()) != want {
		t.Errorf("%d blobs are left, want %d", len(m.keys()), want)
	}
}

func TestPiecesOfAnotherPrefixAreNotReferredTo(t *testing.T) {
	m := newMemory()
	_, other, _, err := Write(t.Context(), m, "sandboxes/i00", nil, parts(noise(1, 100)))
	if err != nil {
		t.Fatal(err)
	}
	key, _, sent := mustWrite(t, m, &other, noise(1, 100))
	wantRead(t, m, key, noise(1, 100))
	if sent != 100 {
		t.Errorf("%d bytes sent", sent)
	}
}

func TestACopyRefersToNoMoreUploadsThanItMay(t *testing.T) {
	base := Index{Key: seal.New()}
	for i := range maxUploads + 3 {
		base.Uploads = append(base.Uploads, fmt.Sprintf("%s/%026d", prefix, i))
	}
	w := &writer{index: Index{Uploads: []string{prefix + "/new"}}, known: map[string]Piece{}, used: map[int]int{}}
	for i := range base.Uploads {
		base.Pieces = append(base.Pieces, Piece{Size: 1, Digest: fmt.Sprintf("%064d", i), Upload: i})
	}
	w.refer(&base, prefix)
	found := 0
	for _, p := range base.Pieces {
		is, ok := w.find(p)
		if ok {
			found++
			if w.index.Uploads[is.Upload] != base.Uploads[p.Upload] {
				t.Fatalf("piece %v is found as %v", p, is)
			}
		}
	}
	if found != maxUploads-1 || len(w.index.Uploads) != maxUploads {
		t.Errorf("%d found, %d uploads", found, len(w.index.Uploads))
	}
}

// TestACopyHasNoMorePiecesThanItMay: there is an index that can be read, or an error.
func TestACopyHasNoMorePiecesThanItMay(t *testing.T) {
	m := newMemory()
	many := func(n int) func(w io.Writer) error {
		return func(w io.Writer) error {
			if err := parts(noise(1, 100))(w); err != nil {
				return err
			}
			for range n - 1 {
				if _, err := w.Write([]byte{0}); err != nil {
					return err
				}
				if err := w.(bundle.Cutter).Cut(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	key, _, _, err := Write(t.Context(), m, prefix, nil, many(maxPieces))
	if err != nil {
		t.Fatal(err)
	}
	wantRead(t, m, key, noise(1, 100), make([]byte, maxPieces-1))
	there := len(m.keys())
	_, _, _, err = Write(t.Context(), m, prefix, nil, many(maxPieces+1))
	wantCode(t, err, errdef.Unsupported, "not_portable")
	if left := len(m.keys()); left != there {
		t.Errorf("it has left %d blobs", left-there)
	}
	// The largest index that there can be is one that can be read.
	x := Index{Pieces: make([]Piece, maxPieces)}
	for i := range maxUploads {
		x.Uploads = append(x.Uploads, fmt.Sprintf("%s/%026d", prefix, i))
	}
	for i := range x.Pieces {
		x.Pieces[i] = Piece{Size: maxPiece, Digest: fmt.Sprintf("%064x", i), Upload: maxUploads - 1}
	}
	if data, err := x.encode(); err != nil || len(data) > maxIndex {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestAnUploadThatFailsLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	stop, stopNow := context.WithCancel(t.Context())
	for name, c := range map[string]struct {
		ctx   context.Context
		fails func(op, key string) error
		write func(io.Writer) error
		want  error
	}{
		"a piece": {t.Context(), func(op, key string) error {
			if op == "put" && strings.HasSuffix(key, "0") {
				return broken
			}
			return nil
		}, nil, broken},
		"the index": {t.Context(), func(op, key string) error {
			if op == "put" && indexName.MatchString(path.Base(key)) {
				return broken
			}
			return nil
		}, nil, broken},
		"what is written": {t.Context(), nil, func(w io.Writer) error {
			return errors.Join(parts(noise(1, 100), noise(2, 100))(w), broken)
		}, broken},
		"its context": {stop, nil, func(w io.Writer) error {
			if err := parts(noise(1, 100))(w); err != nil {
				return err
			}
			stopNow()
			return parts(noise(2, 100))(w)
		}, context.Canceled},
	} {
		m := newMemory()
		m.fails = c.fails
		if c.write == nil {
			c.write = func(w io.Writer) error {
				for i := range uint64(100) {
					if err := parts(noise(i, 100))(w); err != nil {
						return err
					}
				}
				return nil
			}
		}
		if key, _, _, err := Write(c.ctx, m, prefix, nil, c.write); !errors.Is(err, c.want) || key != (Copy{}) {
			t.Errorf("%s: %+v, %v", name, key, err)
		}
		if keys := m.keys(); len(keys) > 0 {
			t.Errorf("%s: left %q", name, keys)
		}
	}
}

// TestMemoryIsBounded: neither an upload nor a reader has more pieces at once than it
// says, and both work at several at once.
func TestMemoryIsBounded(t *testing.T) {
	m := newMemory()
	var mu sync.Mutex
	var now, most int
	together := make(chan struct{})
	reached := sync.OnceFunc(func() { close(together) })
	m.before = func(_ context.Context, op, key string) {
		if op == "remove" || indexName.MatchString(path.Base(key)) {
			return
		}
		mu.Lock()
		now++
		most = max(most, now)
		if now == uploads {
			reached()
		}
		mu.Unlock()
		<-together
		mu.Lock()
		now--
		mu.Unlock()
	}
	all := noise(1, 12*maxPiece)
	key, x, _ := mustWrite(t, m, nil, all)
	if most != uploads {
		t.Errorf("%d pieces were put at once, want %d", most, uploads)
	}
	most = 0
	r := Open(t.Context(), m, x)
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	gets := m.gets
	m.mu.Unlock()
	if gets > ahead+2 {
		t.Errorf("%d pieces were read before the second was asked for", gets)
	}
	wantRead(t, m, key, all)
	if most > 2*(ahead+1) {
		t.Errorf("%d pieces were read at once", most)
	}
}

func TestDamageIsSeenBeforeItIsRead(t *testing.T) {
	data := noise(1, 2*maxPiece+100)
	for name, change := range map[string]func([]byte) []byte{
		"flipped":   func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"cut":       func(b []byte) []byte { return b[:len(b)-1] },
		"longer":    func(b []byte) []byte { return append(b, 0) },
		"too long":  func([]byte) []byte { return make([]byte, maxPiece+seal.Overhead+1) },
		"nothing":   func([]byte) []byte { return nil },
		"not there": nil,
	} {
		m := newMemory()
		key, x, _ := mustWrite(t, m, nil, data)
		last := x.at(x.Pieces[2])
		if change == nil {
			delete(m.blobs, last)
		} else {
			m.blobs[last] = blob{data: change(m.blobs[last].data)}
		}
		got, err := readBack(t.Context(), m, key)
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
		if !bytes.Equal(got, data[:2*maxPiece]) {
			t.Errorf("%s: %d bytes were read before it was seen, want the pieces before it", name, len(got))
		}
	}
}

func TestIndexesThatAreNotOfTheForm(t *testing.T) {
	m := newMemory()
	key, x, _ := mustWrite(t, m, nil, noise(1, 100))
	data, err := x.encode()
	if err != nil {
		t.Fatal(err)
	}
	good, up := string(data), x.Uploads[0]
	for name, c := range map[string]struct{ text, code string }{
		"newer":         {strings.Replace(good, `"version":1`, `"version":2,"more":1`, 1), "replica_too_new"},
		"no version":    {strings.Replace(good, `"version":1`, `"version":0`, 1), "replica_damaged"},
		"more fields":   {strings.Replace(good, `"version":1`, `"version":1,"more":1`, 1), "replica_damaged"},
		"after its end": {good + "{}", "replica_damaged"},
		"no pieces":     {`{"version":1,"uploads":[],"pieces":[]}`, "replica_damaged"},
		"elsewhere":     {strings.Replace(good, prefix, "sandboxes/i1", 1), "replica_damaged"},
		"above":         {strings.Replace(good, up, prefix+"/..", 1), "replica_damaged"},
		"deeper":        {strings.Replace(good, up, up+"/"+up[len(prefix)+1:], 1), "replica_damaged"},
		"size":          {strings.Replace(good, `"size":100`, `"size":-100`, 1), "replica_damaged"},
		"large piece":   {strings.Replace(good, `"size":100`, `"size":4194305`, 1), "replica_damaged"},
		"sum":           {strings.Replace(good, `"sha256":"`, `"sha256":"../`, 1), "replica_damaged"},
		"upload":        {strings.Replace(good, `"size":100`, `"size":100,"upload":1`, 1), "replica_damaged"},
		"upload below":  {strings.Replace(good, `"size":100`, `"size":100,"upload":-1`, 1), "replica_damaged"},
		"many pieces":   {`{"version":1,"uploads":[],"pieces":[` + strings.Repeat(`{"size":1},`, maxPieces) + `{"size":1}]}`, "replica_damaged"},
		"no JSON":       {"index", "replica_damaged"},
	} {
		if c.text == good {
			t.Errorf("%s: nothing was changed", name)
		}
		_, err := ReadIndex(t.Context(), m, plant(m, x, c.text))
		if errdef.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want code %s", name, err, c.code)
		}
	}
	for n := range good {
		_, err := ReadIndex(t.Context(), m, plant(m, x, good[:n]))
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
	}
	m.blobs[key.Index] = blob{data: make([]byte, maxIndex+seal.Overhead+1)}
	_, err = ReadIndex(t.Context(), m, key)
	wantCode(t, err, errdef.Unavailable, "replica_damaged")
	delete(m.blobs, key.Index)
	_, err = ReadIndex(t.Context(), m, key)
	wantCode(t, err, errdef.Unavailable, "replica_damaged")
	m.fails = func(string, string) error { return errdef.New(errdef.Unavailable, "blobs_unavailable", "down") }
	_, err = ReadIndex(t.Context(), m, key)
	wantCode(t, err, errdef.Unavailable, "blobs_unavailable")
}

// plant puts an index of the upload of another as if it had been written.
func plant(m *memory, x Index, text string) Copy {
	c := Copy{Index: indexKey(x.Uploads[0], x.Key, []byte(text)), Key: x.Key}
	m.blobs[c.Index] = blob{data: x.Key.Seal(c.Index, []byte(text))}
	return c
}

// plain returns what is in the index of a copy.
func plain(t *testing.T, m *memory, c Copy) string {
	t.Helper()
	data, err := c.Key.Open(c.Index, bytes.Clone(m.blobs[c.Index].data))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestAnIndexIsTheOneThatWasWritten puts something else under the key of an index, as
// somebody can who can write to the object storage, and has even read the key in the
// database: all of it is of the form.
func TestAnIndexIsTheOneThatWasWritten(t *testing.T) {
	m := newMemory()
	oldKey, old, _ := mustWrite(t, m, nil, noise(1, 100))
	key, x, _ := mustWrite(t, m, &old, noise(2, 100))
	otherKey, other, _, err := Write(t.Context(), m, "sandboxes/i1", nil, parts(noise(3, 100)))
	if err != nil {
		t.Fatal(err)
	}
	good := plain(t, m, key)
	evil := x.at(Piece{Digest: x.Key.Digest(noise(4, 100))})
	m.blobs[evil] = blob{data: x.Key.Seal(evil, noise(4, 100))}
	for name, text := range map[string]string{
		"an older one":       plain(t, m, oldKey),
		"another sandbox's":  plain(t, m, otherKey),
		"another piece":      strings.Replace(good, x.Pieces[0].Digest, path.Base(evil), 1),
		"fewer bytes":        strings.Replace(good, `"size":100`, `"size":99`, 1),
		"zeros":              `{"version":1,"uploads":[],"pieces":[{"size":100}]}`,
		"the same, in other": good + "\n",
		"a newer form":       strings.Replace(good, `"version":1`, `"version":2`, 1),
	} {
		if text == good {
			t.Errorf("%s: nothing was changed", name)
		}
		m.blobs[key.Index] = blob{data: key.Key.Seal(key.Index, []byte(text))}
		_, err := readBack(t.Context(), m, key)
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
	}
	m.blobs[key.Index] = blob{data: key.Key.Seal(key.Index, []byte(good))}
	wantRead(t, m, key, noise(2, 100))
	// Nor is anything read under a key that does not say what is in it.
	for _, k := range []string{path.Dir(key.Index) + "/index", path.Dir(key.Index) + "/index-", other.Keys()[0]} {
		m.blobs[k] = blob{data: key.Key.Seal(k, []byte(good))}
		_, err := ReadIndex(t.Context(), m, Copy{k, key.Key})
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
	}
}

// TestReadersEnd closes a stream that waits for the store, and ends its context. Package
// synctest fails for what goes on running.
func TestReadersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		_, x, _ := mustWrite(t, m, nil, noise(1, 9*maxPiece))
		m.before = func(ctx context.Context, op, _ string) {
			if op == "get" {
				<-ctx.Done()
			}
		}
		closed := Open(t.Context(), m, x)
		synctest.Wait()
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
		if _, err := closed.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("a closed stream is read: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := Open(ctx, m, x)
		if _, err := io.ReadAll(r); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the end of the context", err)
		}
		_ = r.Close()
	})
}

// disk is a bundle.Source of layers that are one file each, and an image of one file.
type disk struct {
	layers [][]byte
	image  []byte
}

func (d disk) Layer(n int, f func(layer.Entry, io.Reader) error) error {
	if err := f(layer.Entry{Path: ".", Mode: unix.S_IFDIR | 0o755}, nil); err != nil {
		return err
	}
	size := int64(len(d.layers[n]))
	return f(layer.Entry{Path: "file", Mode: unix.S_IFREG | 0o644, Size: size, Data: []layer.Extent{{Length: size}}}, bytes.NewReader(d.layers[n]))
}

func (d disk) ImageFile(string) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(d.image)), nil
}

func (d disk) bundle(at time.Time) func(io.Writer) error {
	m := bundle.Manifest{
		Kind: bundle.KindSandbox, ExportedAt: at, ID: "i0", Generation: at.Unix(), Mode: lifecycle.Memory, AgentToken: "t",
		Image: &bundle.Image{Files: []layer.File{{Name: "pages", Size: int64(len(d.image))}}},
	}
	for _, l := range d.layers {
		m.Layers = append(m.Layers, bundle.Layer{Digest: "d", Entries: 2, Bytes: int64(len(l))})
	}
	return func(w io.Writer) error { return bundle.Write(w, m, d) }
}

// TestOnlyWhatHasChangedIsSent copies a sandbox that has slept, woken, written one layer
// and one page, and sleeps again.
func TestOnlyWhatHasChangedIsSent(t *testing.T) {
	m := newMemory()
	d := disk{layers: [][]byte{noise(1, maxPiece+77), noise(2, 100)}, image: append(noise(3, 2*maxPiece), make([]byte, maxPiece)...)}
	at := time.Unix(1_800_000_000, 0)
	_, first, sent, err := Write(t.Context(), m, prefix, nil, d.bundle(at))
	if err != nil || sent < 3*maxPiece || sent > 4*maxPiece {
		t.Fatalf("%d bytes sent at first, %v", sent, err)
	}
	d.layers = append(d.layers, noise(4, 1000))
	d.image[maxPiece+5]++
	key, x, sent, err := Write(t.Context(), m, prefix, &first, d.bundle(at.Add(time.Hour)))
	if err != nil || sent < maxPiece || sent > maxPiece+20_000 {
		t.Fatalf("%d bytes sent of what has changed in one piece, a small layer and the manifest; %v", sent, err)
	}
	r := Open(t.Context(), m, x)
	defer r.Close()
	b, err := bundle.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	var to sink
	if err := b.Extract(&to); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(to.image, d.image) || len(to.layers) != 3 || !bytes.Equal(to.layers[0], d.layers[0]) || !bytes.Equal(to.layers[2], d.layers[2]) {
		t.Error("what is in the copy is not what was in the sandbox")
	}
	var plain bytes.Buffer
	if err := d.bundle(at.Add(time.Hour))(&plain); err != nil {
		t.Fatal(err)
	}
	wantRead(t, m, key, plain.Bytes())
}

// sink takes what is in a bundle.
type sink struct {
	layers [][]byte
	image  []byte
}

func (s *sink) Layer(_ int, e layer.Entry, data io.Reader) error {
	if e.Path == "." {
		return nil
	}
	b, err := io.ReadAll(data)
	s.layers = append(s.layers, b)
	return err
}

func (s *sink) ImageFile(_ string, _ int64, data io.Reader) (err error) {
	s.image, err = io.ReadAll(data)
	return err
}
