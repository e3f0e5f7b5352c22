package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// thing is an entry or a file of the image, with its data.
type thing struct {
	layer int // -1 for the image
	entry layer.Entry
	data  string
}

// contents is a source and a sink in memory.
type contents []thing

func (c contents) Layer(n int, f func(layer.Entry, io.Reader) error) error {
	for _, t := range c {
		if t.layer == n {
			if err := f(t.entry, strings.NewReader(t.data)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c contents) ImageFile(name string) (io.ReadCloser, error) {
	for _, t := range c {
		if t.layer < 0 && t.entry.Path == name {
			return io.NopCloser(strings.NewReader(t.data)), nil
		}
	}
	return nil, errors.New("no such file")
}

// taker is a sink that keeps what it is given.
type taker struct{ got contents }

func (c *taker) Layer(n int, e layer.Entry, data io.Reader) error {
	text, err := io.ReadAll(data)
	c.got = append(c.got, thing{n, e, string(text)})
	return err
}

func (c *taker) ImageFile(name string, _ int64, data io.Reader) error {
	text, err := io.ReadAll(data)
	c.got = append(c.got, thing{-1, layer.Entry{Path: name}, string(text)})
	return err
}

var at = time.Date(2026, 9, 1, 12, 0, 0, 123456789, time.UTC)

// sample is a bundle with one of everything.
func sample(t testing.TB) (Manifest, contents) {
	t.Helper()
	when := time.Unix(1_000_000_000, 5).UTC()
	dir := func(path string) layer.Entry {
		return layer.Entry{Path: path, Mode: unix.S_IFDIR | 0o755, ModTime: when}
	}
	c := contents{
		{0, dir("."), ""},
		{0, dir("root"), ""},
		{0, layer.Entry{Path: "root/file", Mode: unix.S_IFREG | 0o4755, UID: 1000, GID: 4_000_000_000, ModTime: when, Size: 4, Data: []layer.Extent{{Offset: 0, Length: 4}}, Attributes: map[string]string{"user.x": "a\x00\n=b"}}, "data"},
		{0, layer.Entry{Path: "root/holes", Mode: unix.S_IFREG | 0o600, ModTime: when, Size: 1 << 40, Data: []layer.Extent{{Offset: 9, Length: 2}, {Offset: 1 << 30, Length: 1}}}, "xyz"},
		{0, layer.Entry{Path: "root/hole", Mode: unix.S_IFREG | 0o600, ModTime: when, Size: 7}, ""},
		{0, layer.Entry{Path: "root/link", Mode: unix.S_IFLNK | 0o777, ModTime: when, Target: "/outside"}, ""},
		{0, layer.Entry{Path: "root/name", Mode: unix.S_IFREG | 0o4755, ModTime: when, Link: "root/file"}, ""},
		{1, dir("."), ""},
		{1, dir("usr"), ""},
		{1, layer.Entry{Path: "usr/gone", Mode: unix.S_IFCHR, ModTime: when}, ""},
		{1, layer.Entry{Path: "usr/o\ndd \xff" + strings.Repeat("long", 40), Mode: unix.S_IFREG, ModTime: when}, ""},
		{-1, layer.Entry{Path: "pages.img"}, strings.Repeat("p", 1000)},
		{-1, layer.Entry{Path: "kernel.img"}, "k"},
	}
	m := Manifest{
		Kind: KindSandbox, ExportedAt: at, ID: "i" + strings.Repeat("0", 20), Generation: 3, CreatedAt: at,
		Settings: lifecycle.Settings{OnTimeout: lifecycle.Kill}, Config: store.Config{Template: "base1", Secure: true},
		Mode: lifecycle.Memory, AgentToken: "secret",
		Needs:  Needs{Template: "base1", Architecture: "amd64", Runtime: "gvisor 1", CPU: []string{"avx", "sse"}, System: "s"},
		Layers: []Layer{{Digest: "a"}, {Digest: "b"}}, Image: &Image{},
	}
	for _, th := range c {
		if th.layer < 0 {
			m.Image.Files = append(m.Image.Files, layer.File{Name: th.entry.Path, Size: int64(len(th.data)), CRC32C: []uint32{1}})
			continue
		}
		if err := m.Layers[th.layer].Measure(th.entry, nil); err != nil {
			t.Fatal(err)
		}
	}
	return m, c
}

func written(t testing.TB, m Manifest, c contents) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, m, c); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(r io.Reader) (Manifest, contents, error) {
	b, err := NewReader(r)
	if err != nil {
		return Manifest{}, nil, err
	}
	var to taker
	err = b.Extract(&to)
	return b.Manifest, to.got, err
}

func wantDamaged(t *testing.T, what string, err error) {
	t.Helper()
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "import_damaged" || e.Class != errdef.Invalid {
		t.Errorf("%s: %v, want it refused as damaged", what, err)
	}
}

func TestRoundTrip(t *testing.T) {
	m, c := sample(t)
	data := written(t, m, c)
	m.Format = formatVersion
	for name, r := range map[string]io.Reader{"at once": bytes.NewReader(data), "by bytes": iotest.OneByteReader(bytes.NewReader(data)), "with its end": iotest.DataErrReader(bytes.NewReader(data))} {
		gotM, gotC, err := read(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range gotC {
			gotC[i].entry.ModTime = gotC[i].entry.ModTime.UTC()
			if gotC[i].entry.Link != "" {
				gotC[i].entry.Size = 0
			}
		}
		for i := range gotC {
			if gotC[i].layer < 0 {
				gotC[i].entry.ModTime = time.Time{}
			}
		}
		if !reflect.DeepEqual(gotM, m) {
			t.Errorf("%s: manifest %+v, want %+v", name, gotM, m)
		}
		if !reflect.DeepEqual(gotC, c) {
			t.Errorf("%s: contents\n%+v, want\n%+v", name, gotC, c)
		}
	}
	// Whoever reads sums up what the manifest says.
	if m.Bytes() != 4+3+1000+1 || m.Entries() != 13 {
		t.Errorf("%d bytes, %d entries", m.Bytes(), m.Entries())
	}
}

func TestOrdinaryToolsCanLookInside(t *testing.T) {
	m, c := sample(t)
	tr := tar.NewReader(bytes.NewReader(written(t, m, c)))
	var names []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if names[0] != "manifest.json" || names[1] != "layers/0/" || names[2] != "layers/0/root/" || names[len(names)-1] != "sha256" {
		t.Errorf("names %q", names)
	}
}

// TestEveryCutAndEveryFlipIsSeen cuts a bundle off and changes one of its bytes,
// at each byte of the first and the last blocks and at many in between.
func TestEveryCutAndEveryFlipIsSeen(t *testing.T) {
	m, c := sample(t)
	data := written(t, m, c)
	for n := range data {
		if n%31 > 0 && n > blockSize && n < len(data)-5*blockSize {
			continue
		}
		_, _, err := read(bytes.NewReader(data[:n]))
		wantDamaged(t, fmt.Sprintf("cut off at byte %d", n), err)
		data[n] ^= 1 << (n % 8)
		_, _, err = read(bytes.NewReader(data))
		data[n] ^= 1 << (n % 8)
		// Of its kind and format, what another version wrote may be said.
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "import_damaged" && e.Code != "import_too_new" {
			t.Errorf("byte %d changed: %v", n, err)
		}
		if t.Failed() {
			return
		}
	}
	_, _, err := read(io.MultiReader(bytes.NewReader(data), strings.NewReader("x")))
	wantDamaged(t, "a byte after the end", err)
	_, _, err = read(io.MultiReader(bytes.NewReader(data), bytes.NewReader(make([]byte, 512))))
	wantDamaged(t, "zeros after the end", err)
	_, _, err = read(io.MultiReader(bytes.NewReader(data), bytes.NewReader(data)))
	wantDamaged(t, "another one after the end", err)
}

func TestAFailureOfTheReaderIsNoDamage(t *testing.T) {
	m, c := sample(t)
	data := written(t, m, c)
	lost := errors.New("lost")
	for _, n := range []int{0, 100, 2000, len(data) - 600, len(data) - 1} {
		_, _, err := read(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(lost)))
		if !errors.Is(err, lost) || errdef.Is(err, errdef.Invalid) {
			t.Errorf("lost at byte %d: %v", n, err)
		}
	}
}

// crafted writes an archive by hand, with a checksum that is right.
func crafted(t testing.TB, m Manifest, headers ...tar.Header) []byte {
	t.Helper()
	m.Format = max(m.Format, formatVersion)
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return archive(t, string(manifest), headers...)
}

func archive(t testing.TB, manifest string, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	sum := sha256.New()
	tw := tar.NewWriter(io.MultiWriter(&b, sum))
	put := func(h tar.Header, data string) {
		t.Helper()
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
		if _, err := io.WriteString(tw, data); err != nil {
			t.Fatal(err)
		}
	}
	put(tar.Header{Name: manifestName, Size: int64(len(manifest)), Typeflag: tar.TypeReg}, manifest)
	for _, h := range headers {
		put(h, strings.Repeat("x", int(h.Size)))
	}
	if err := tw.Flush(); err != nil {
		t.Fatal(err)
	}
	put(*plain(sumName, 64, at), hex.EncodeToString(sum.Sum(nil)))
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// filesOnly is the manifest of a bundle with one layer of n entries and so many
// bytes.
func filesOnly(n, size int64) Manifest {
	return Manifest{Kind: KindSandbox, Mode: lifecycle.Filesystem, Layers: []Layer{{Entries: n, Bytes: size}}}
}

// hostileEntries are entries that no export has, after the directory of a layer.
func hostileEntries() map[string]tar.Header {
	pax := func(records ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(records); i += 2 {
			m[records[i]] = records[i+1]
		}
		return m
	}
	return map[string]tar.Header{
		"outside of the layers":    {Name: "etc/passwd", Typeflag: tar.TypeReg},
		"absolute":                 {Name: "/etc/passwd", Typeflag: tar.TypeReg},
		"up":                       {Name: "../x", Typeflag: tar.TypeReg},
		"of another layer":         {Name: "layers/1/root/x", Typeflag: tar.TypeReg},
		"a layer by another name":  {Name: "layers/00/root/x", Typeflag: tar.TypeReg},
		"a second manifest":        {Name: manifestName, Typeflag: tar.TypeReg},
		"of the image":             {Name: "image/pages.img", Typeflag: tar.TypeReg},
		"block device":             {Name: "layers/0/root/x", Typeflag: tar.TypeBlock},
		"character device":         {Name: "layers/0/root/x", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		"fifo":                     {Name: "layers/0/root/x", Typeflag: tar.TypeFifo},
		"contiguous file":          {Name: "layers/0/root/x", Typeflag: tar.TypeCont},
		"name outside":             {Name: "layers/0/root/x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		"name in the next layer":   {Name: "layers/0/root/x", Typeflag: tar.TypeLink, Linkname: "layers/1/root/x"},
		"user by name":             {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Uname: "root"},
		"mode with a type":         {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Mode: 0o100644},
		"unknown record":           {Name: "layers/0/root/x", Typeflag: tar.TypeReg, PAXRecords: pax("VENDOR.x", "1")},
		"comment":                  {Name: "layers/0/root/x", Typeflag: tar.TypeReg, PAXRecords: pax("comment", "1")},
		"size that is none":        {Name: "layers/0/root/x", Typeflag: tar.TypeReg, PAXRecords: pax(recordSize, "x")},
		"pieces that are none":     {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Size: 1, PAXRecords: pax(recordSize, "9", recordExtents, "0-1")},
		"negative piece":           {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Size: 1, PAXRecords: pax(recordSize, "9", recordExtents, "-1+1")},
		"pieces longer than data":  {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Size: 1, PAXRecords: pax(recordSize, "9", recordExtents, "0+2")},
		"data without a piece":     {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Size: 1, PAXRecords: pax(recordSize, "9")},
		"more than was said":       {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Size: 2},
		"less than was said":       {Name: "layers/0/root/x", Typeflag: tar.TypeReg},
		"the checksum's name":      {Name: sumName, Typeflag: tar.TypeReg, Size: 64},
		"global header":            {Typeflag: tar.TypeXGlobalHeader, PAXRecords: pax("x", "y")},
		"contents of a directory":  {Name: "layers/0/root/", Typeflag: tar.TypeDir, PAXRecords: pax(recordSize, "9")},
		"long name":                {Name: "layers/0/" + strings.Repeat("a", 100_000) + "x", Typeflag: tar.TypeReg},
		"directory of nowhere":     {Name: "layers/", Typeflag: tar.TypeDir},
		"up from the layer":        {Name: "layers/0/../../x", Typeflag: tar.TypeReg, Size: 2},
		"sparse in another's form": {Name: "layers/0/root/x", Typeflag: tar.TypeReg, Size: 1, PAXRecords: pax("SUN.holesdata", "0 1")},
	}
}

// aLayer is the directory of a layer.
var aLayer = tar.Header{Name: "layers/0/", Typeflag: tar.TypeDir, Mode: 0o755}

func TestCraftedEntriesAreRefused(t *testing.T) {
	dir := aLayer
	for name, h := range hostileEntries() {
		t.Run(name, func(t *testing.T) {
			_, _, err := read(bytes.NewReader(crafted(t, filesOnly(2, 1), dir, h)))
			wantDamaged(t, name, err)
		})
	}
	t.Run("fewer entries", func(t *testing.T) {
		_, _, err := read(bytes.NewReader(crafted(t, filesOnly(2, 0), dir)))
		wantDamaged(t, "fewer", err)
	})
	t.Run("more entries", func(t *testing.T) {
		_, _, err := read(bytes.NewReader(crafted(t, filesOnly(1, 0), dir, tar.Header{Name: "layers/0/root/", Typeflag: tar.TypeDir})))
		wantDamaged(t, "more", err)
	})
	t.Run("none of this", func(t *testing.T) {
		if _, _, err := read(bytes.NewReader(crafted(t, filesOnly(2, 1), dir, tar.Header{Name: "layers/0/root", Typeflag: tar.TypeReg, Size: 1}))); err != nil {
			t.Error(err)
		}
	})
}

func TestManifestsAreJudged(t *testing.T) {
	good, _ := sample(t)
	with := func(f func(*Manifest)) Manifest { m := good; f(&m); return m }
	image := func(files ...layer.File) func(*Manifest) {
		return func(m *Manifest) { m.Image = &Image{Files: files} }
	}
	for name, m := range map[string]Manifest{
		"no such mode":         with(func(m *Manifest) { m.Mode = "disk" }),
		"memory without image": with(func(m *Manifest) { m.Image = nil }),
		"image without token":  with(func(m *Manifest) { m.AgentToken = "" }),
		"token without image":  with(func(m *Manifest) { m.Mode, m.Image = lifecycle.Filesystem, nil }),
		"empty layer":          with(func(m *Manifest) { m.Layers = []Layer{{}} }),
		"negative layer":       with(func(m *Manifest) { m.Layers = []Layer{{Entries: 1, Bytes: -1}} }),
		"too many entries":     with(func(m *Manifest) { m.Layers = []Layer{{Entries: maxEntries}, {Entries: 1}} }),
		"entries overflow":     with(func(m *Manifest) { m.Layers = []Layer{{Entries: math.MaxInt64}, {Entries: math.MaxInt64}} }),
		"bytes overflow":       with(func(m *Manifest) { m.Layers = []Layer{{Entries: 1, Bytes: math.MaxInt64}} }),
		"too many layers":      with(func(m *Manifest) { m.Layers = make([]Layer, maxLayers+1) }),
		"image without files":  with(image()),
		"image of many files":  with(image(make([]layer.File, maxImageFiles+1)...)),
		"negative file":        with(image(layer.File{Name: "x", Size: -1})),
		"huge file":            with(image(layer.File{Name: "x", Size: math.MaxInt64})),
	} {
		_, err := NewReader(bytes.NewReader(crafted(t, m)))
		wantDamaged(t, name, err)
	}
	for name, text := range map[string]string{
		"nothing": "", "no JSON": "x", "no object": "[]", "no form": "{}", "form 0": `{"format":0,"kind":"sandbox"}`,
		"unknown field": `{"format":1,"kind":"sandbox","mode":"filesystem","layers":[],"more":1}`,
		"two of them":   `{"format":1,"kind":"sandbox","mode":"filesystem","layers":[]}{}`,
	} {
		_, err := NewReader(bytes.NewReader(archive(t, text)))
		wantDamaged(t, name, err)
	}
	for name, text := range map[string]string{
		"newer form": `{"format":99,"kind":"sandbox","something":"else"}`, "other kind": `{"format":1,"kind":"snapshot"}`,
	} {
		_, err := NewReader(bytes.NewReader(archive(t, text)))
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "import_too_new" || e.Remedy == "" {
			t.Errorf("%s: %v, want it refused as too new", name, err)
		}
	}
}

// TestNothingLargeIsHeld reads archives that say that they are large: they are
// refused before anything of them is held.
func TestNothingLargeIsHeld(t *testing.T) {
	header := func(h tar.Header) []byte {
		t.Helper()
		var b bytes.Buffer
		if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	zeros := func(n int64) io.Reader { return io.LimitReader(endless{}, n) }
	for name, r := range map[string]io.Reader{
		"manifest of 10 GiB": io.MultiReader(bytes.NewReader(header(tar.Header{Name: manifestName, Size: 10 << 30, Format: tar.FormatGNU, Typeflag: tar.TypeReg})), zeros(10<<30)),
		"manifest of 1 GiB":  io.MultiReader(bytes.NewReader(header(tar.Header{Name: manifestName, Size: 1 << 30, Typeflag: tar.TypeReg})), zeros(1<<30)),
		"endless name":       io.MultiReader(bytes.NewReader(rawHeader(t, 'L', 1<<30)), zeros(1<<30)),
		"endless record":     io.MultiReader(bytes.NewReader(rawHeader(t, 'x', 1<<30)), zeros(1<<30)),
		"endless zeros":      zeros(10 << 30),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := read(r)
		runtime.ReadMemStats(&after)
		wantDamaged(t, name, err)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: %d MiB were allocated", name, took>>20)
		}
	}
}

// rawHeader is a header of a type that no writer lets one choose.
func rawHeader(t testing.TB, kind byte, size int64) []byte {
	t.Helper()
	h := make([]byte, blockSize)
	copy(h, "x")
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x00%011o\x00        ", size, 0))
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestMissing(t *testing.T) {
	needs := Needs{Template: "t", Architecture: "amd64", Runtime: "r", CPU: []string{"avx", "sse"}, System: "s"}
	for want, change := range map[string]func(*Needs){
		"":             func(n *Needs) { n.CPU = append(n.CPU, "more") },
		"architecture": func(n *Needs) { n.Architecture = "arm64" },
		"written by":   func(n *Needs) { n.Runtime = "r2" },
		"template t":   func(n *Needs) { n.Template = "t2" },
		"directories":  func(n *Needs) { n.System = "s2" },
		"[sse]":        func(n *Needs) { n.CPU = []string{"avx"} },
	} {
		has := needs
		has.CPU = append([]string(nil), needs.CPU...)
		change(&has)
		if got := needs.Missing(has); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("missing %q, want %q in it", got, want)
		}
	}
}

// FuzzReader: whatever it is given, a reader refuses it as damaged or takes it.
func FuzzReader(f *testing.F) {
	m, c := sample(f)
	f.Add(written(f, m, c))
	f.Add(crafted(f, filesOnly(1, 0), tar.Header{Name: "layers/0/", Typeflag: tar.TypeDir}))
	f.Add(crafted(f, filesOnly(2, 1), aLayer, tar.Header{Name: "layers/0/root", Typeflag: tar.TypeReg, Size: 1}))
	for name, h := range hostileEntries() {
		if name != "long name" { // 100 KB, of which nothing is learnt
			f.Add(crafted(f, filesOnly(2, 1), aLayer, h))
		}
	}
	for _, kind := range []byte("LxgKS") {
		f.Add(rawHeader(f, kind, 1<<30))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, err := read(bytes.NewReader(data))
		if e, ok := errors.AsType[*errdef.Error](err); err != nil && (!ok || e.Code != "import_damaged" && e.Code != "import_too_new") {
			t.Errorf("%v", err)
		}
	})
}

// cutting notes where the parts of a bundle begin.
type cutting struct {
	bytes.Buffer
	cuts []int
	err  error
}

func (c *cutting) Cut() error {
	c.cuts = append(c.cuts, c.Len())
	return c.err
}

func (c *cutting) parts() []string {
	var all []string
	from := 0
	for _, at := range append(slices.Clone(c.cuts), c.Len()) {
		all = append(all, c.String()[from:at])
		from = at
	}
	return all
}

// TestCutsPartWhatStaysTheSame writes the same sandbox twice, at other times: layers and
// data of the image are parts that do not differ.
func TestCutsPartWhatStaysTheSame(t *testing.T) {
	m, c := sample(t)
	var one, two cutting
	if err := Write(&one, m, c); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), written(t, m, c)) {
		t.Error("a bundle that is cut is not the one that is not")
	}
	m.ExportedAt = m.ExportedAt.Add(time.Hour)
	m.Generation++
	if err := Write(&two, m, c); err != nil {
		t.Fatal(err)
	}
	// The manifest, two layers, header and data of two files, and the checksum.
	a, b := one.parts(), two.parts()
	if len(a) != 8 || len(b) != 8 {
		t.Fatalf("%d and %d parts, want 8", len(a), len(b))
	}
	for i, same := range []bool{false, true, true, false, true, false, true, false} {
		if len(a[i])%blockSize != 0 || len(a[i]) == 0 || (a[i] == b[i]) != same {
			t.Errorf("part %d has %d bytes; is it the same: %t, want %t", i, len(a[i]), a[i] == b[i], same)
		}
	}
	if want := strings.Repeat("p", 1000) + strings.Repeat("\x00", 24); a[4] != want {
		t.Errorf("data of the image: %q", a[4])
	}
}

func TestACutThatFailsEndsTheBundle(t *testing.T) {
	m, c := sample(t)
	broken := errors.New("broken")
	if err := Write(&cutting{err: broken}, m, c); !errors.Is(err, broken) {
		t.Errorf("%v, want the error of the cut", err)
	}
}
