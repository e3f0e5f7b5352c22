package layer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/golden"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// writer writes images with maps, as a runtime does.
type writer struct {
	s       *Store
	memory  [][]byte // pages
	last    *pagemap.Map
	written int64 // for the last image, as Seal says
}

func newWriter(s *Store, pages int) *writer {
	w := &writer{s: s, memory: make([][]byte, pages)}
	for i := range w.memory {
		w.change(i, byte(i))
	}
	return w
}

func (w *writer) change(page int, seed byte) {
	w.memory[page] = make([]byte, pagemap.PageSize)
	_, _ = rand.NewChaCha8([32]byte{seed, byte(page), byte(page >> 8), 1}).Read(w.memory[page])
}

func (w *writer) bytes() []byte { return slices.Concat(w.memory...) }

// write makes the image id over another, with only those pages that are changed.
func (w *writer) write(id, base, digest string, changed ...int) (string, *Packs, error) {
	dir, p, err := w.s.NewImageOver(id, base, digest)
	if err != nil {
		return "", nil, err
	}
	m := &pagemap.Map{Packs: append(slices.Clone(p.Keep), p.Own)}
	own := uint32(len(p.Keep))
	var x *pagemap.Index
	if p.Base != "" {
		x = pagemap.NewIndex(w.last)
	}
	var pack []byte
	for i, page := range w.memory {
		run := pagemap.Run{Source: uint32(i), Pages: 1, Pack: own, At: uint32(len(pack) / pagemap.PageSize)}
		if x != nil && !slices.Contains(changed, i) {
			k := x.Find(0, uint32(i))
			if at := slices.Index(p.Keep, w.last.Packs[k.Pack]); at >= 0 {
				run.Pack, run.At = uint32(at), k.At
			}
		}
		if run.Pack == own {
			pack = append(pack, page...)
		}
		m.Append(run)
	}
	m.Prune(p.Own)
	w.last = m
	for name, data := range map[string][]byte{
		"state": []byte("state of " + id), p.Own: pack, pagemap.Name: m.Encode(), pagemap.SumsName: make([]byte, m.Pages()*pagemap.SumSize),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o640); err != nil {
			return "", nil, err
		}
	}
	sealed, written, err := w.s.Seal(Manifest{ID: id, Runtime: "test"}, p)
	w.written = written
	return sealed, p, err
}

func (w *writer) must(t *testing.T, id, base, digest string, changed ...int) string {
	t.Helper()
	sealed, _, err := w.write(id, base, digest, changed...)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// check reads the pages of an image, as an export does.
func (w *writer) check(t *testing.T, id, digest string) {
	t.Helper()
	m, err := w.s.Verify(id, digest)
	if err != nil {
		t.Fatal(err)
	}
	files, err := w.s.Whole(m)
	if err != nil || len(files) != 2 || files[0].Name != pagemap.Stream || files[1].Name != "state" {
		t.Fatalf("as a whole it is %+v, %v", files, err)
	}
	for _, f := range files {
		r, err := w.s.OpenWhole(id, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		sums, size, _ := checksum(bytes.NewReader(data))
		if size != f.Size || !slices.Equal(sums, f.CRC32C) {
			t.Errorf("%s is not what it is said to be: %+v", f.Name, f)
		}
		if f.Name == pagemap.Stream && !bytes.Equal(data, w.bytes()) {
			t.Errorf("image %s has other pages than memory had", id)
		}
	}
}

// TestSharedPacks makes a chain of images, and removes them in any order. The packs that
// one needs stay with it, and go with the last.
func TestSharedPacks(t *testing.T) {
	r := newRig(t)
	w := newWriter(r.Store, 1000)
	first := w.must(t, "one", "", "")
	w.check(t, "one", first)
	w.change(3, 99)
	w.change(500, 99)
	second := w.must(t, "two", "one", first, 3, 500)
	w.check(t, "two", second)
	if got, want := testmode.Names(t, r.ImageDir("two")), []string{manifestName, "pack-one", "pack-two", pagemap.Name, pagemap.SumsName, "state"}; !slices.Equal(got, want) {
		t.Errorf("it has %v, want %v", got, want)
	}
	if info, err := os.Stat(filepath.Join(r.ImageDir("two"), "pack-two")); err != nil || info.Size() != 2*pagemap.PageSize || info.Mode().Perm() != 0o600 {
		t.Errorf("its own pack: %+v, %v", info, err)
	}
	before := w.bytes()
	// One that is given up takes nothing with it.
	if _, _, err := r.NewImageOver("given-up", "two", second); err != nil {
		t.Fatal(err)
	}
	r.must(os.WriteFile(filepath.Join(r.ImageDir("given-up"), "pack-given-up"), []byte("x"), 0o600))
	r.AbandonImage("given-up")
	w.check(t, "two", second)
	r.must(r.RemoveImage("given-up"))
	r.must(r.RemoveImage("one"))
	w.check(t, "two", second)
	for i := range 600 { // more than half of the first pack is dead then
		w.change(i, 98)
	}
	all := make([]int, 600)
	for i := range all {
		all[i] = i
	}
	third := w.must(t, "three", "two", second, all...)
	w.check(t, "three", third)
	if got := testmode.Names(t, r.ImageDir("three")); slices.Contains(got, "pack-two") {
		t.Errorf("it has %v, and needs none of pack-two", got)
	}
	fourth := w.must(t, "four", "three", third)
	if got := testmode.Names(t, r.ImageDir("four")); slices.Contains(got, "pack-one") {
		t.Errorf("it has %v: pack-one is mostly dead", got)
	}
	w.check(t, "four", fourth)
	r.must(r.RemoveImage("three"))
	w.check(t, "four", fourth)
	after := w.memory
	w.memory = [][]byte{before}
	w.check(t, "two", second)
	w.memory = after
	r.must(r.RemoveImage("two"))
	w.check(t, "four", fourth)
}

// TestSealCountsWhatWasWritten: packs that an image has from others were not written for
// it.
func TestSealCountsWhatWasWritten(t *testing.T) {
	r := newRig(t)
	w := newWriter(r.Store, 1000)
	first := w.must(t, "one", "", "")
	whole := w.written
	if whole < 1000*pagemap.PageSize {
		t.Errorf("a first image is said to have written %d bytes", whole)
	}
	w.change(3, 99)
	w.must(t, "two", "one", first, 3)
	var own int64
	for _, name := range testmode.Names(t, r.ImageDir("two")) {
		info, err := os.Stat(filepath.Join(r.ImageDir("two"), name))
		if err != nil {
			t.Fatal(err)
		}
		if name != "pack-one" && name != manifestName {
			own += info.Size()
		}
	}
	if w.written != own || own > whole/10 {
		t.Errorf("an image with one new page is said to have written %d bytes, want %d; the first one wrote %d", w.written, own, whole)
	}
}

// TestBaseThatIsNoBase: an image over another that has no map, or is damaged, or is not
// there, is a whole one.
func TestBaseThatIsNoBase(t *testing.T) {
	r := newRig(t)
	plain := r.seal("plain", map[string][]byte{"pages.img": []byte("pages")})
	w := newWriter(r.Store, 20)
	good := w.must(t, "good", "", "")
	for name, c := range map[string]struct {
		base, digest string
		damage       string
	}{
		"one without a map":   {"plain", plain, ""},
		"one that is missing": {"none", good, ""},
		"another's digest":    {"good", plain, ""},
		"a damaged map":       {"good", good, pagemap.Name},
		"damaged digests":     {"good", good, pagemap.SumsName},
		"a shorter pack":      {"good", good, "pack-good"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.damage != "" {
				path := filepath.Join(r.ImageDir("good"), c.damage)
				data, err := os.ReadFile(path)
				r.must(err)
				defer func() { r.must(os.WriteFile(path, data, 0o600)) }()
				other := bytes.Clone(data[:len(data)-1])
				if c.damage != "pack-good" {
					other = append(other, data[len(data)-1]^1)
				}
				r.must(os.WriteFile(path, other, 0o600))
			}
			_, p, err := r.NewImageOver("new", c.base, c.digest)
			if err != nil || p.Base != "" || len(p.Keep) > 0 || p.Own != "pack-new" {
				t.Errorf("%+v, %v", p, err)
			}
			r.must(r.RemoveImage("new"))
		})
	}
	if _, p, err := r.NewImageOver("new", "good", good); err != nil || p.Base != r.ImageDir("good") || !slices.Equal(p.Keep, []string{"pack-good"}) {
		t.Errorf("over a good one: %+v, %v", p, err)
	}
}

// TestSealRefusesMap: what a runtime wrote that has been taken over is refused while its
// sandbox still runs.
func TestSealRefusesMap(t *testing.T) {
	for name, m := range map[string]*pagemap.Map{
		"a pack of nobody":    {Packs: []string{"pack-other"}, Runs: []pagemap.Run{{Pages: 1}}},
		"past the end":        {Packs: []string{"pack-new"}, Runs: []pagemap.Run{{Pages: 2}}},
		"digests of no pages": {Packs: []string{"pack-new"}},
	} {
		r := newRig(t)
		dir, p, err := r.NewImageOver("new", "", "")
		r.must(err)
		for file, data := range map[string][]byte{p.Own: make([]byte, pagemap.PageSize), pagemap.Name: m.Encode(), pagemap.SumsName: make([]byte, pagemap.SumSize)} {
			r.must(os.WriteFile(filepath.Join(dir, file), data, 0o600))
		}
		if _, _, err := r.Seal(Manifest{ID: "new"}, p); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
}

// TestDamagedPacks flips a byte of each file of a chain.
func TestDamagedPacks(t *testing.T) {
	r := newRig(t)
	w := newWriter(r.Store, 300)
	one := w.must(t, "one", "", "")
	w.change(7, 99)
	two := w.must(t, "two", "one", one, 7)
	for _, name := range testmode.Names(t, r.ImageDir("two")) {
		path := filepath.Join(r.ImageDir("two"), name)
		data, err := os.ReadFile(path)
		r.must(err)
		other := bytes.Clone(data)
		other[len(other)/2] ^= 1
		r.must(os.WriteFile(path, other, 0o600))
		_, err = r.Verify("two", two)
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "checkpoint_damaged" || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		m, err := lookIn(r.ImageDir("two"), "two", two)
		if err == nil {
			_, err = r.Whole(m)
		}
		if pagemap.IsPack(name) && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: as a whole: %v", name, err)
		}
		if _, err := r.LookMapped("two", two); (err != nil) != (name == manifestName || name == pagemap.SumsName) {
			t.Errorf("%s: at a look %v", name, err)
		}
		r.must(os.WriteFile(path, data, 0o600))
	}
	w.check(t, "two", two)
}

// TestImportOfMap: no import has the files of a map: they would refer to packs of others.
func TestImportOfMap(t *testing.T) {
	r := newRig(t)
	st, err := r.Stage("import")
	r.must(err)
	for _, name := range []string{pagemap.Name, pagemap.SumsName, "pack-x"} {
		if err := st.AddImageFile(name, 1, strings.NewReader("x")); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	r.must(st.AddImageFile(pagemap.Stream, 1, strings.NewReader("x")))
}

// TestMappedForm: the manifest of an image with a map is of a version that builds from
// before maps refuse by its number.
func TestMappedForm(t *testing.T) {
	r := newRig(t)
	w := newWriter(r.Store, 2)
	w.must(t, "image", "", "")
	data, err := os.ReadFile(filepath.Join(r.ImageDir("image"), manifestName))
	r.must(err)
	golden.Hold(t, imageForm(manifestVersion), data)
	kept := golden.Read(t, imageForm(manifestVersion))
	r.must(os.WriteFile(filepath.Join(r.ImageDir("image"), manifestName), kept, 0o600))
	w.check(t, "image", digestOf(kept))
	var m Manifest
	r.must(json.Unmarshal(kept, &m))
	if m.Version != 3 || !m.Mapped() {
		t.Errorf("it is of version %d", m.Version)
	}
}

// sharedEnv is recordedEnv for TestPowerCutOfPacks.
const sharedEnv = "DROWSE_LAYER_TEST_SHARED"

// makeShared makes a chain of images as a server does: each after the one before is
// sealed, which is removed then.
func makeShared(dir string) error {
	s, err := Open(dir)
	if err != nil {
		return err
	}
	w := newWriter(s, 40)
	before, digest := "", ""
	for n := range 5 {
		id := fmt.Sprintf("image%d", n)
		changed := []int{n, 20 + n}
		if n == 3 { // most of it
			for i := range 30 {
				changed = append(changed, i)
			}
		}
		if n > 0 {
			for _, i := range changed {
				w.change(i, byte(100+n))
			}
		}
		sealed, _, err := w.write(id, before, digest, changed...)
		if err != nil {
			return err
		}
		sums, _, _ := checksum(bytes.NewReader(w.bytes()))
		fmt.Printf("sealed %s %s %d\n", id, sealed, sums[0])
		if before != "" {
			fmt.Printf(saidRemoving+"\n", before)
			if err := s.RemoveImage(before); err != nil {
				return err
			}
		}
		before, digest = id, sealed
	}
	return s.FinishRemovals()
}

// TestPowerCutOfPacks cuts the power wherever a process may be that makes images which
// share packs, and removes the older ones. What was sealed is good until its removal
// begins, also where its pages are in packs of images that are gone.
func TestPowerCutOfPacks(t *testing.T) {
	cutPower(t, sharedEnv, func(t *testing.T, s *Store, line string, said []string) {
		var id, digest string
		var sum uint32
		if n, _ := fmt.Sscanf(line, "sealed %s %s %d", &id, &digest, &sum); n != 3 {
			return
		}
		m, err := s.Verify(id, digest)
		if err != nil {
			if slices.Contains(said, line) && !slices.Contains(said, fmt.Sprintf(saidRemoving, id)) {
				t.Errorf("%s was sealed: %v", id, err)
			}
			return
		}
		if whole, err := s.Whole(m); err != nil || whole[0].CRC32C[0] != sum {
			t.Errorf("%s is taken for good and is %+v, %v; the checksum was %d", id, whole, err, sum)
		}
	})
}

// TestNoLinks: on a file system that links no files an image is a whole one.
func TestNoLinks(t *testing.T) {
	for _, err := range []error{unix.EMLINK, unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS} {
		if !cannotLink(&os.LinkError{Op: "link", Err: err}) {
			t.Errorf("%v fails a pause", err)
		}
	}
	if cannotLink(&os.LinkError{Op: "link", Err: unix.ENOSPC}) || cannotLink(nil) {
		t.Error("a full disk is taken for one that links no files")
	}
}
