package layer

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/pagemap"
)

// TestLatePages: an image whose pages come late is what it will be, and not taken for whole
// before it is.
func TestLatePages(t *testing.T) {
	r := newRig(t)
	pages := bytes.Repeat([]byte("memory "), 2*ChunkSize/7)
	sums, size, err := checksum(bytes.NewReader(pages))
	r.must(err)
	state, _, err := checksum(strings.NewReader("state"))
	r.must(err)
	m := Manifest{ID: "late", Runtime: "test", Stack: []string{}, Files: []File{{pagemap.Stream, size, sums}, {"state", 5, state}}}

	st, err := r.Stage("arrival")
	r.must(err)
	r.must(st.AddImageFile("state", 5, strings.NewReader("state")))
	r.must(st.LatePages(size))
	digest, err := st.SealImage(m)
	r.must(err)
	r.must(st.Place(nil, "late"))
	r.must(st.Remove())

	pending := func(what string, err error) {
		t.Helper()
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != CodePending || e.Class != errdef.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 { // also when it was opened anew
		_, err = r.Verify("late", digest)
		pending("verify", err)
		_, err = r.Look("late", digest)
		pending("look", err)
		_, err = r.LookMapped("late", digest)
		pending("look for a map", err)
		got, late, err := r.LookLate("late", digest)
		if err != nil || !late || len(got.Files) != 2 || got.Files[0].Name != pagemap.Stream {
			t.Errorf("it is %+v, %v, %v", got, late, err)
		}
		if _, _, err := r.LookLate("late", strings.Repeat("0", len(digest))); errdef.CodeOf(err) != "checkpoint_damaged" {
			t.Errorf("of another digest: %v", err)
		}
		if _, p, err := r.NewImageOver("over", "late", digest); err != nil || len(p.Keep) > 0 {
			t.Errorf("over it: %+v, %v", p, err)
		}
		r.must(r.RemoveImage("over"))
	}

	f, err := OpenLate(r.ImageDir("late"))
	r.must(err)
	if f.Size != size {
		t.Errorf("it has %d bytes instead of %d", f.Size, size)
	}
	_, err = f.WriteAt(pages, 0)
	r.must(err)
	r.must(f.Complete())
	r.must(f.Close())
	if got, err := r.Verify("late", digest); err != nil || len(got.Files) != 2 {
		t.Errorf("whole it is %+v, %v", got, err)
	}
	if _, late, err := r.LookLate("late", digest); err != nil || late {
		t.Errorf("whole it is late: %v, %v", late, err)
	}
	if f, err := OpenLate(r.ImageDir("late")); f != nil || err != nil {
		t.Errorf("whole it has %v, %v", f, err)
	}

	// Other pages than were said are seen.
	path := LatePath(r.ImageDir("late"))
	r.must(os.Rename(strings.TrimSuffix(path, lateSuffix), path))
	f, err = OpenLate(r.ImageDir("late"))
	r.must(err)
	_, err = f.WriteAt([]byte("other"), 100)
	r.must(err)
	r.must(f.Complete())
	r.must(f.Close())
	if _, err := r.Verify("late", digest); errdef.CodeOf(err) != "checkpoint_damaged" {
		t.Errorf("with other pages: %v", err)
	}
}
