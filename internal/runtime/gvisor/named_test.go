package gvisor

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// linkedFile is a file that the guest has opened by a name which it has lost since.
type linkedFile struct {
	name  string
	f     *os.File
	names []string // that it has still
}

// openLinked opens files in /links, and takes away the names by which they were opened.
func openLinked() (files []*linkedFile, err error) {
	for _, dir := range []string{"/links", "/links/gone", "/links/other/below"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	for _, l := range []struct {
		name  string
		links []string
		then  func(name string) error
	}{
		{"linked", []string{"linked to"}, os.Remove},
		{"replaced", []string{"kept"}, func(name string) error {
			return errors.Join(os.WriteFile(name+" by", []byte("another"), 0o600), os.Rename(name+" by", name))
		}},
		{"taken", []string{"still"}, func(name string) error {
			return errors.Join(os.Remove(name), os.WriteFile(name, []byte("another"), 0o600))
		}},
		{"gone/a", []string{"other/below/b"}, func(string) error { return os.RemoveAll("/links/gone") }},
		{"one", []string{"two", "other/three"}, os.Remove},
		{"nowhere", nil, os.Remove},
		{"both", []string{"both too"}, func(name string) error { return errors.Join(os.Remove(name), os.Remove(name+" too")) }},
		{"forgotten", []string{"forgotten too"}, func(name string) error { // gVisor keeps 1,000
			err := os.Mkdir("/links/crowd", 0o755)
			for i := range 1200 {
				err = errors.Join(err, os.WriteFile(fmt.Sprintf("/links/crowd/%d", i), nil, 0o600))
			}
			return errors.Join(err, os.Remove(name+" too"), os.Remove(name))
		}},
		{"unused", []string{"unused too"}, os.Remove},
		{"renamed", []string{"renamed to"}, func(name string) error {
			return errors.Join(os.Remove(name), os.Rename("/links/renamed to", "/links/other/renamed"))
		}},
	} {
		file := &linkedFile{name: l.name}
		if file.f, err = os.OpenFile("/links/"+l.name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return nil, err
		}
		for _, to := range l.links {
			file.names = append(file.names, to)
			if err := os.Link("/links/"+l.name, "/links/"+to); err != nil {
				return nil, err
			}
		}
		switch l.name {
		case "both", "forgotten":
			file.names = nil
		case "unused":
			file.names = nil // it has one, which nobody uses
		case "renamed":
			file.names = []string{"other/renamed"}
		}
		if err := l.then("/links/" + l.name); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// tell says what is in it by each name, and how many names it says it has.
func (l *linkedFile) tell(w io.Writer) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(l.f.Fd()), &st); err != nil {
		return err
	}
	said, err := io.ReadAll(io.NewSectionReader(l.f, 0, 1<<20))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d links, %s", l.name, st.Nlink, said)
	for _, name := range l.names {
		if said, err = os.ReadFile("/links/" + name); err != nil {
			return err
		}
		fmt.Fprintf(w, ", %s: %s", name, said)
	}
	_, err = fmt.Fprintln(w)
	return err
}

// serveLinked adds what it is asked for to each file, takes a name away if asked, and one
// that nobody has used, and tells what is in them.
func serveLinked() http.HandlerFunc {
	var files []*linkedFile
	return func(w http.ResponseWriter, r *http.Request) {
		var err error
		if files == nil {
			files, err = openLinked()
		}
		for _, l := range files {
			if err == nil {
				_, err = io.WriteString(l.f, r.URL.Query().Get("add"))
			}
		}
		if name := r.URL.Query().Get("remove"); name != "" && err == nil {
			err = errors.Join(os.Remove("/links/"+name), os.Remove("/links/unused too"))
			for _, l := range files {
				if len(l.names) > 0 && l.names[0] == name {
					l.names = l.names[1:]
				}
			}
		}
		for _, l := range files {
			if err == nil {
				err = l.tell(w)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func askLinked(t *testing.T, inst runtime.Instance, query string) []string {
	t.Helper()
	client := guestClient(inst)
	client.Timeout = testmode.Patience()
	resp, err := client.Get("http://guest/linked?" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", query, said, err)
	}
	return strings.Split(strings.TrimSpace(string(said)), "\n")
}

// TestOpenFilesByOtherNames restores a guest that has files open which have lost the names
// by which they were opened, and have others. What it writes is there by those.
func TestOpenFilesByOtherNames(t *testing.T) {
	if edits == "" {
		if testing.Short() {
			t.Skip("this gVisor is not edited: make test-plain tests the one that is")
		}
		t.Fatal("this gVisor is not edited, and parts each file from its names: run make test-plain")
	}
	check := func(when, content string, got []string, removed string) {
		t.Helper()
		links := map[string][]string{
			"linked": {"linked to"}, "replaced": {"kept"}, "taken": {"still"}, "gone/a": {"other/below/b"},
			"one": {"two", "other/three"}, "nowhere": nil, "both": nil, "forgotten": nil, "unused": nil, "renamed": {"other/renamed"},
		}
		for i, name := range []string{"linked", "replaced", "taken", "gone/a", "one", "nowhere", "both", "forgotten", "unused", "renamed"} {
			names, beside := links[name], 0
			if name == "unused" && removed == "" {
				beside = 1
			}
			if len(names) > 0 && names[0] == removed {
				names = names[1:]
			}
			want := fmt.Sprintf("%s: %d links, %s", name, len(names)+beside, content)
			for _, other := range names {
				want += fmt.Sprintf(", %s: %s", other, content)
			}
			if got[i] != want {
				t.Errorf("%s: %q, want %q", when, got[i], want)
			}
		}
	}
	r, d, spec, inst := startOne(t, 0)
	check("before", "a", askLinked(t, inst, "add=a"), "")
	var woken runtime.Instance = inst
	content, removed := "a", ""
	for round := range 3 {
		image := r.capture(t, woken)
		if err := d.Remove(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := r.store.Freeze(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
		if err := layer.Unmount(spec.Rootfs); err != nil { // no index has two tops
			t.Fatal(err)
		}
		spec = r.again(t, spec)
		var err error
		if woken, err = d.Restore(t.Context(), spec, image); err != nil {
			t.Fatal(err)
		}
		id := spec.ID
		t.Cleanup(func() { _ = d.Remove(t.Context(), id) })
		if err := os.RemoveAll(image); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("restore %d", round), content, askLinked(t, woken, ""), removed)
		content += "b"
		check(fmt.Sprintf("written after restore %d", round), content, askLinked(t, woken, "add=b"), removed)
		if round == 1 {
			removed = "two"
			check("one name less", content, askLinked(t, woken, "remove=two"), removed)
		}
	}
}
