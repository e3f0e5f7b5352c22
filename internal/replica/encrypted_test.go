package replica

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/replica/seal"
)

// writeOld makes a copy as copies were made before they were encrypted.
func writeOld(t *testing.T, m *memory, all ...[]byte) (Copy, Index) {
	t.Helper()
	x := Index{Uploads: []string{prefix + "/" + strings.Repeat("o", 26)}}
	for _, data := range all {
		p := Piece{Size: int64(len(data)), Digest: x.Key.Digest(data)}
		x.Pieces = append(x.Pieces, p)
		if err := m.Put(t.Context(), x.at(p), data); err != nil {
			t.Fatal(err)
		}
	}
	data, err := x.encode()
	if err != nil {
		t.Fatal(err)
	}
	c := Copy{Index: indexKey(x.Uploads[0], "", data)}
	if err := m.Put(t.Context(), c.Index, data); err != nil {
		t.Fatal(err)
	}
	return c, x
}

// TestACopyFromBefore is read, and not referred to: the next one is whole and encrypted, and
// nothing needs the old one then.
func TestACopyFromBefore(t *testing.T) {
	m := newMemory()
	a, b := noise(1, 1000), noise(2, 100)
	old, was := writeOld(t, m, a, b)
	wantRead(t, m, old, a, b)
	base, err := ReadIndex(t.Context(), m, old)
	if err != nil {
		t.Fatal(err)
	}
	next, x, sent := mustWrite(t, m, &base, a, b)
	if sent != 1100 || next.Key == "" || len(x.Uploads) != 1 {
		t.Errorf("%d bytes of 1100 sent, of %d uploads", sent, len(x.Uploads))
	}
	gone := Unshared(base, x, old.Index)
	if want := append(was.Keys(), old.Index); !slices.Equal(gone, want) {
		t.Errorf("not needed are %q, want %q", gone, want)
	}
	if _, err := Remove(t.Context(), m, gone...); err != nil {
		t.Fatal(err)
	}
	wantRead(t, m, next, a, b)
	// Nor is an encrypted copy taken for an old one, or an old one for an encrypted one.
	_, err = ReadIndex(t.Context(), m, Copy{Index: next.Index})
	wantCode(t, err, errdef.Unavailable, "replica_damaged")
	old, _ = writeOld(t, m, a)
	_, err = ReadIndex(t.Context(), m, Copy{old.Index, next.Key})
	wantCode(t, err, errdef.Unavailable, "replica_damaged")
}

// TestTheStoreLearnsNothing: neither names nor blobs have anything of what was copied, nor
// anything that the copy of the same data by another key has.
func TestTheStoreLearnsNothing(t *testing.T) {
	m := newMemory()
	marker := []byte("a marker that is in the memory of a sandbox")
	data := slices.Concat(noise(1, 1000), marker, noise(2, 1000))
	one, _, _ := mustWrite(t, m, nil, data, data[:1500])
	first := maps.Clone(m.blobs)
	two, _, _ := mustWrite(t, m, nil, data, data[:1500])
	if one.Key == two.Key || len(m.blobs) != 6 {
		t.Fatalf("%d blobs", len(m.blobs))
	}
	known := map[string]bool{}
	for key, b := range m.blobs {
		for _, secret := range []string{string(marker), string(data[:16]), string(one.Key), string(two.Key), "version", "sha256", "uploads"} {
			if bytes.Contains(b.data, []byte(secret)) || strings.Contains(key, secret) {
				t.Errorf("%s has %q", key, secret)
			}
		}
		for _, guess := range [][]byte{data, data[:1500], b.data} {
			if strings.Contains(key, seal.Key("").Digest(guess)) {
				t.Errorf("%s tells what is in it", key)
			}
		}
		if _, of := first[key]; of {
			known[path.Base(key)] = true
			for at := 0; at+16 <= len(b.data); at += 16 {
				known[string(b.data[at:at+16])] = true
			}
		}
	}
	for key, b := range m.blobs {
		if _, of := first[key]; of {
			continue
		}
		if known[path.Base(key)] {
			t.Errorf("%s is the name of a blob of the other copy", key)
		}
		for at := 0; at+16 <= len(b.data); at += 16 {
			if known[string(b.data[at:at+16])] {
				t.Errorf("%s has at %d what the other copy has", key, at)
			}
		}
	}
}

// TestOnlyItsKeyReadsACopy: no other, and none at another place.
func TestOnlyItsKeyReadsACopy(t *testing.T) {
	m := newMemory()
	c, x, _ := mustWrite(t, m, nil, noise(1, 100), noise(2, 100))
	for _, key := range []seal.Key{"", seal.New(), c.Key[:31], c.Key + "x"} {
		_, err := ReadIndex(t.Context(), m, Copy{c.Index, key})
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
		other := x
		other.Key = key
		r := Open(t.Context(), m, other)
		n, err := r.Read(make([]byte, 1))
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
		if n != 0 {
			t.Error("something was read")
		}
		_ = r.Close()
	}
	good := maps.Clone(m.blobs)
	one, two := x.at(x.Pieces[0]), x.at(x.Pieces[1])
	for what, swap := range map[string]map[string]string{
		"two pieces":            {one: two, two: one},
		"the index for a piece": {one: c.Index},
		"a piece for the index": {c.Index: one},
	} {
		for to, from := range swap {
			m.blobs[to] = good[from]
		}
		_, err := readBack(t.Context(), m, c)
		wantCode(t, err, errdef.Unavailable, "replica_damaged")
		if err == nil {
			t.Error(what)
		}
		maps.Copy(m.blobs, good)
	}
	// A piece of an earlier copy is the same by another name, and is not read by that.
	_, y, _ := mustWrite(t, m, nil, noise(1, 100))
	m.blobs[one] = m.blobs[y.at(y.Pieces[0])]
	_, err := readBack(t.Context(), m, c)
	wantCode(t, err, errdef.Unavailable, "replica_damaged")
	maps.Copy(m.blobs, good)
	wantRead(t, m, c, noise(1, 100), noise(2, 100))
}

// TestACopyHasTheKeyOfTheOneBefore, to whose pieces it refers: also on another server, and
// after an upload that broke off.
func TestACopyHasTheKeyOfTheOneBefore(t *testing.T) {
	m := newMemory()
	a, b, c := noise(1, 100), noise(2, 100), noise(3, 100)
	first, _, _ := mustWrite(t, m, nil, a)
	for n, all := range [][][]byte{{a, b}, {a, c}} { // of which the first is never committed
		base, err := ReadIndex(t.Context(), m, first)
		if err != nil {
			t.Fatal(err)
		}
		next, x, sent := mustWrite(t, m, &base, all...)
		if next.Key != first.Key || sent != 100 {
			t.Errorf("copy %d: %d bytes sent, with the same key %t", n, sent, next.Key == first.Key)
		}
		for _, p := range x.Pieces {
			other, _, _ := mustWrite(t, m, &base, all...) // the same blob at another place
			if got := m.blobs[path.Dir(other.Index)+"/"+p.Digest].data; p.Upload == 0 && bytes.Equal(got, m.blobs[x.at(p)].data) {
				t.Error("two blobs are encrypted by one key")
			}
		}
		wantRead(t, m, next, all...)
	}
	wantRead(t, m, first, a)
}

func BenchmarkWrite(b *testing.B) {
	data := noise(1, 16*maxPiece)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		mustWrite(b, newMemory(), nil, data)
	}
}

func BenchmarkOpen(b *testing.B) {
	m := newMemory()
	data := noise(1, 16*maxPiece)
	c, _, _ := mustWrite(b, m, nil, data)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if got, err := readBack(b.Context(), m, c); err != nil || len(got) != len(data) {
			b.Fatal(err)
		}
	}
}
