package pagemap

import (
	"bytes"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/golden"
)

// sample is a map with all that there can be: two files of memory, zeros, pages of an
// older pack and of its own.
func sample() *Map {
	m := &Map{Key: Key([]byte("a key of a chain")), Packs: []string{"pack-0123456789abcdef", "pack-new"}}
	for _, r := range []Run{{0, 0, 3, 0, 0}, {0, 3, 1, 1, 0}, {0, 4, 2, Zeros, 0}, {0, 6, 10, 0, 4}, {1, 0, 2, 1, 1}} {
		m.Append(r)
	}
	return m
}

func sizes(of map[string]int64) func(string) int64 {
	return func(name string) int64 {
		if n, ok := of[name]; ok {
			return n
		}
		return -1
	}
}

// TestForm: what a map is written as is what builds of its version read.
func TestForm(t *testing.T) {
	m := sample()
	golden.Hold(t, "testdata/map-1", m.Encode())
	got, err := Decode(golden.Read(t, "testdata/map-1"))
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("read as %+v, %v; want %+v", got, err, m)
	}
	good := map[string]int64{"pack-0123456789abcdef": 14 * PageSize, "pack-new": 3 * PageSize, SumsName: 18 * SumSize}
	if err := m.Check(sizes(good)); err != nil {
		t.Error(err)
	}
	for name, says := range map[string]string{"pack-0123456789abcdef": "past the end", "pack-new": "past the end", SumsName: "instead of"} {
		short := map[string]int64{}
		for k, v := range good {
			short[k] = v
		}
		short[name]--
		if err := m.Check(sizes(short)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s too short: %v, want %q", name, err, says)
		}
		delete(short, name)
		if err := m.Check(sizes(short)); err == nil {
			t.Errorf("%s missing: no error", name)
		}
	}
}

// badMap is what no build writes, and what is said of it.
type badMap struct {
	data []byte
	says string
}

func badMaps() map[string]badMap {
	good := sample().Encode()
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	packs := headSize
	runs := packs + 2 + 21 + 2 + 8
	return map[string]badMap{
		"nothing":            {nil, "no page map"},
		"another file":       {bytes.Repeat([]byte("x"), 100), "no page map"},
		"a newer version":    {change(8, 2), "version 2"},
		"another page size":  {change(13, 0), "pages of"},
		"too many packs":     {change(32, MaxPacks+1), "packs"},
		"more packs":         {change(32, 3), "pack"},
		"a path":             {change(packs+2+5, '/'), "pack"},
		"another file's":     {change(packs+2, 'x'), "pack"},
		"a long name":        {change(packs+1, 0xff), "not whole"},
		"cut short":          {good[:len(good)-1], "not whole"},
		"longer":             {append(bytes.Clone(good), 0), "not whole"},
		"an endless run":     {change(runs+8+3, 0xff), "run 0"},
		"an empty run":       {change(runs+8, 0), "run 0"},
		"a run of no pack":   {change(runs+12, 7), "run 0"},
		"runs without end":   {change(36+7, 0x7f), "not whole"},
		"runs that overflow": {change(36+4, 1), "not whole"},
	}
}

// TestDecodeRefuses what no build writes.
func TestDecodeRefuses(t *testing.T) {
	for name, c := range badMaps() {
		if _, err := Decode(c.data); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	twice := sample()
	twice.Packs[1] = twice.Packs[0]
	if _, err := Decode(twice.Encode()); err == nil {
		t.Error("a pack that is there twice was taken")
	}
}

// FuzzDecode: whatever is decoded and passes Check can be read without a panic, and is
// written as it was read.
func FuzzDecode(f *testing.F) {
	f.Add(sample().Encode())
	f.Add((&Map{}).Encode())
	for _, c := range badMaps() {
		f.Add(c.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Encode(), data) {
			t.Fatalf("%x is written as %x", data, m.Encode())
		}
		const size = 64 * PageSize
		if m.Check(func(name string) int64 {
			if name == SumsName {
				return m.Pages() * SumSize
			}
			return size
		}) != nil || m.Pages() > 1<<12 {
			return
		}
		x := NewIndex(m)
		packs := make([]io.ReaderAt, len(m.Packs))
		for i := range packs {
			packs[i] = bytes.NewReader(make([]byte, size))
		}
		all, err := io.ReadAll(io.NewSectionReader(NewReader(x, packs), 0, x.Size()+1))
		if err != nil || int64(len(all)) != x.Size() {
			t.Fatalf("%d bytes read of %d: %v", len(all), x.Size(), err)
		}
		for file := range uint32(3) {
			for source := range uint32(100) {
				if k := x.Find(file, source); k.Pages > 0 && k.Stream+int64(k.Pages) > m.Pages() {
					t.Fatalf("page %d of file %d is %+v, of %d pages", source, file, k, m.Pages())
				}
			}
		}
	})
}

// TestIndex compares lookups with what is plainly there.
func TestIndex(t *testing.T) {
	m := sample()
	x := NewIndex(m)
	var stream []Run // of single pages
	for _, r := range m.Runs {
		for i := range r.Pages {
			one := Run{r.File, r.Source + i, 1, r.Pack, r.At + i}
			if r.Pack == Zeros {
				one.At = 0
			}
			stream = append(stream, one)
		}
	}
	if x.Size() != int64(len(stream))*PageSize {
		t.Fatalf("size %d of %d pages", x.Size(), len(stream))
	}
	for i, r := range stream {
		s := x.At(int64(i)*PageSize + 5)
		if s.Pack != r.Pack || s.Bytes <= 0 || r.Pack != Zeros && s.Off != int64(r.At)*PageSize+5 {
			t.Errorf("page %d is %+v, want %+v", i, s, r)
		}
		k := x.Find(r.File, r.Source)
		if k.Stream != int64(i) || k.Pack != r.Pack || k.Pages == 0 || r.Pack != Zeros && k.At != r.At {
			t.Errorf("page %d of file %d is %+v, want %+v at %d", r.Source, r.File, k, r, i)
		}
	}
	for _, c := range [][2]uint32{{0, 16}, {1, 2}, {2, 0}, {0, Zeros}} {
		if k := x.Find(c[0], c[1]); k.Pages > 0 {
			t.Errorf("page %d of file %d is %+v, and there is none", c[1], c[0], k)
		}
	}
}

// TestReader reads a stream in pieces of all kinds.
func TestReader(t *testing.T) {
	m := sample()
	random := rand.New(rand.NewPCG(1, 2))
	var packs []io.ReaderAt
	var data [][]byte
	for range m.Packs {
		p := make([]byte, 16*PageSize)
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		data, packs = append(data, p), append(packs, bytes.NewReader(p))
	}
	var want []byte
	for _, r := range m.Runs {
		part := make([]byte, r.Pages*PageSize)
		if r.Pack != Zeros {
			copy(part, data[r.Pack][r.At*PageSize:])
		}
		want = append(want, part...)
	}
	x := NewIndex(m)
	r := NewReader(x, packs)
	for range 500 {
		off := random.IntN(len(want))
		n := random.IntN(len(want)-off) + 1
		got := make([]byte, n)
		if m, err := r.ReadAt(got, int64(off)); err != nil || m != n || !bytes.Equal(got, want[off:off+n]) {
			t.Fatalf("%d bytes at %d: %d, %v", n, off, m, err)
		}
	}
	if n, err := r.ReadAt(make([]byte, 10), x.Size()-4); n != 4 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	short := NewReader(x, []io.ReaderAt{bytes.NewReader(nil), bytes.NewReader(nil)})
	if _, err := short.ReadAt(make([]byte, 10), 0); err == nil || err == io.EOF || !strings.Contains(err.Error(), m.Packs[0]) {
		t.Errorf("of packs that are empty: %v", err)
	}
}

// TestSums: a page has the same digest each time, and no other page has it, nor the
// same page under another key.
func TestSums(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewKey()
	if err != nil || other == key {
		t.Fatalf("two keys are the same, or %v", err)
	}
	a, errA := NewSummer(key)
	b, errB := NewSummer(other)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	page := make([]byte, PageSize)
	if !a.IsZero(a.Sum(page)) {
		t.Error("a page of zeros is not known")
	}
	seen := map[[SumSize]byte]int{}
	for bit := range PageSize * 8 {
		page[bit/8] ^= 1 << (bit % 8)
		sum := a.Sum(page)
		if before, ok := seen[sum]; ok {
			t.Fatalf("bits %d and %d give the same digest", before, bit)
		}
		if a.IsZero(sum) || sum != a.Sum(page) {
			t.Fatalf("bit %d: the digest is that of zeros, or another each time", bit)
		}
		if bit == 0 && b.Sum(page) == sum {
			t.Error("another key gives the same digest")
		}
		seen[sum] = bit
		page[bit/8] ^= 1 << (bit % 8)
	}
}

// TestWorth: packs that are mostly needed are kept, and not too many.
func TestWorth(t *testing.T) {
	m := &Map{}
	size := map[string]int64{}
	for i := range MaxPacks {
		name := PackOf(string(rune('a' + i)))
		m.Packs = append(m.Packs, name)
		m.Append(Run{0, uint32(i) * 1000, uint32(i + 1), uint32(i), 0})
		size[name] = int64(i+1) * PageSize
	}
	if got := m.Worth(sizes(size)); !reflect.DeepEqual(got, []string{"pack-h", "pack-g", "pack-f", "pack-e"}) {
		t.Errorf("of %d packs the kept ones are %v, want those with the most in them", MaxPacks, got)
	}
	size["pack-h"] = 17 * PageSize // less than half is needed
	want := []string{"pack-a", "pack-b", "pack-c", "pack-d", "pack-e", "pack-f", "pack-g"}
	if got := m.Worth(sizes(size)); !reflect.DeepEqual(got, want) {
		t.Errorf("kept are %v, want %v", got, want)
	}
	m.Runs = m.Runs[1:] // a is not needed at all
	if got := m.Worth(sizes(size)); !reflect.DeepEqual(got, want[1:]) {
		t.Errorf("kept are %v, want %v", got, want[1:])
	}
	m.Prune("pack-a")
	if len(m.Packs) != MaxPacks || m.Packs[0] != "pack-a" {
		t.Errorf("its own empty pack went: %v", m.Packs)
	}
	m.Prune("pack-x")
	if len(m.Packs) != MaxPacks-1 || m.Packs[0] != "pack-b" || m.Runs[0].Pack != 0 {
		t.Errorf("packs %v, runs %+v", m.Packs, m.Runs)
	}
}

// TestAppend joins what goes on, and nothing else.
func TestAppend(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Run
		want int
	}{
		"goes on":           {Run{0, 1, 2, 0, 5}, Run{0, 3, 1, 0, 7}, 1},
		"zeros":             {Run{0, 1, 2, Zeros, 0}, Run{0, 3, 1, Zeros, 0}, 1},
		"another pack":      {Run{0, 1, 2, 0, 5}, Run{0, 3, 1, 1, 7}, 2},
		"another file":      {Run{0, 1, 2, 0, 5}, Run{1, 3, 1, 0, 7}, 2},
		"a gap in memory":   {Run{0, 1, 2, 0, 5}, Run{0, 4, 1, 0, 7}, 2},
		"a gap in the pack": {Run{0, 1, 2, 0, 5}, Run{0, 3, 1, 0, 8}, 2},
	} {
		m := &Map{}
		m.Append(c.a)
		m.Append(c.b)
		if len(m.Runs) != c.want || m.Pages() != 3 {
			t.Errorf("%s: %+v", name, m.Runs)
		}
	}
}
