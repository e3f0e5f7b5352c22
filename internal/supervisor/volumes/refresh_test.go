package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// forgetful is a store that gives no answer to commits while lost is set. Those happen only if
// happens is set.
type forgetful struct {
	*memstore.Store
	lost, happens bool
}

func (f *forgetful) commit(do func() error) error {
	if f.lost && !f.happens {
		return store.ErrUnlearned(errors.New("no answer"))
	}
	if err := do(); err != nil || !f.lost {
		return err
	}
	return store.ErrUnlearned(errors.New("no answer"))
}

func (f *forgetful) AddVolume(ctx context.Context, v store.Volume) error {
	return f.commit(func() error { return f.Store.AddVolume(ctx, v) })
}

func (f *forgetful) RemoveVolume(ctx context.Context, id string) error {
	return f.commit(func() error { return f.Store.RemoveVolume(ctx, id) })
}

func newForgetful(t *testing.T) (*surveyed, *forgetful) {
	t.Helper()
	s := newSurveyed(t)
	f := &forgetful{Store: memstore.Open(memstore.NewData(), memstore.Hooks{})}
	if _, err := f.Claim(t.Context(), store.Server{ID: "one", Place: "one"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	s.o.Store = f
	s.restart()
	return s, f
}

// wantVolumes holds that there are volumes of these names: for this server, in the store and on
// disk.
func (s *surveyed) wantVolumes(about string, names ...string) {
	s.t.Helper()
	if err := s.RefreshVolumes(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	known, err := s.Volumes(s.t.Context())
	stored, failed := s.o.Store.Volumes(s.t.Context())
	dirs, unread := s.o.Files.Names()
	if err := errors.Join(err, failed, unread); err != nil {
		s.t.Fatal(err)
	}
	var has, ids []string
	for _, v := range stored {
		has, ids = append(has, v.Name), append(ids, v.ID)
	}
	slices.Sort(has)
	slices.Sort(ids)
	if !slices.Equal(has, names) || !slices.EqualFunc(known, stored, func(a, b store.Volume) bool { return a.ID == b.ID }) || !slices.Equal(dirs, ids) {
		s.t.Errorf("%s: known are %+v, stored %+v, on disk %q; want %q", about, known, stored, dirs, names)
	}
}

// TestCreateUnlearned: a volume whose commit had no answer is there once the store was read
// again, and can be used and deleted as any other.
func TestCreateUnlearned(t *testing.T) {
	for _, lostDir := range []bool{false, true} {
		s, f := newForgetful(t)
		f.lost, f.happens = true, true
		if _, err := s.CreateVolume(t.Context(), "data", 0); !store.IsUnlearned(err) {
			t.Fatalf("a create without an answer: %v", err)
		}
		f.lost = false
		if _, err := s.CreateVolume(t.Context(), "data", 0); !errdef.Is(err, errdef.Exists) {
			t.Errorf("once more: %v", err)
		}
		if lostDir {
			dirs, _ := s.o.Files.Names()
			for _, id := range dirs {
				if err := s.o.Files.Remove(id); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.wantVolumes("after the create", "data")
		v := s.Known()[0]
		s.write(v, "file", 0)
		if _, err := s.VolumeFiles(v.ID); err != nil {
			t.Error(err)
		}
		s.wantVolumes("read once more", "data")
		if _, err := os.Stat(filepath.Join(s.o.Files.Dir(v.ID), "file")); err != nil {
			t.Error(err)
		}
		if err := s.DeleteVolume(t.Context(), v.ID); err != nil {
			t.Fatal(err)
		}
		s.wantVolumes("deleted")
		s.volume("data", 0)
		s.wantVolumes("created again", "data")
	}
}

// TestDeleteUnlearned: a volume whose deletion had no answer is gone, with its files, once the
// store was read again or the deletion is repeated; if it was not committed, it is whole.
func TestDeleteUnlearned(t *testing.T) {
	for about, then := range map[string]func(s *surveyed, v store.Volume){
		"read again": func(*surveyed, store.Volume) {},
		"deleted again": func(s *surveyed, v store.Volume) {
			if err := s.DeleteVolume(t.Context(), v.ID); err != nil {
				t.Errorf("the second deletion: %v", err)
			}
		},
	} {
		t.Run(about, func(t *testing.T) {
			s, f := newForgetful(t)
			other, v := s.volume("other", 0), s.volume("data", 0)
			s.write(other, "file", 0)
			s.write(v, "file", 0)
			for _, happens := range []bool{false, true} {
				f.lost, f.happens = true, happens
				if err := s.DeleteVolume(t.Context(), v.ID); !store.IsUnlearned(err) {
					t.Fatalf("a deletion without an answer: %v", err)
				}
				f.lost = false
				if _, err := os.Stat(filepath.Join(s.o.Files.Dir(v.ID), "file")); err != nil {
					t.Errorf("while it is not known: %v", err)
				}
				if !happens {
					s.wantVolumes("not deleted", "data", "other")
				}
			}
			then(s, v)
			s.wantVolumes("deleted", "other")
			if err := s.DeleteVolume(t.Context(), v.ID); errdef.CodeOf(err) != "volume_not_found" {
				t.Errorf("deleted once more: %v", err)
			}
			s.volume("data", 0)
			s.wantVolumes("created again", "data", "other")
			if _, err := os.Stat(filepath.Join(s.o.Files.Dir(other.ID), "file")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRefreshKeepsFiles: the files of a volume that is not stored any more stay, if this server
// was not asked to delete it, or if a sandbox has mounted it since.
func TestRefreshKeepsFiles(t *testing.T) {
	for about, deletes := range map[string]bool{"mounted since": true, "not deleted here": false} {
		s, f := newForgetful(t)
		v := s.volume("data", 0)
		if deletes {
			f.lost, f.happens = true, true
			if err := s.DeleteVolume(t.Context(), v.ID); !store.IsUnlearned(err) {
				t.Fatal(err)
			}
			s.Room.o.Users = func(string) []string { return []string{"i0"} }
		} else if err := f.RemoveVolume(t.Context(), v.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.RefreshVolumes(t.Context()); err != nil {
			t.Fatal(err)
		}
		if dirs, err := s.o.Files.Names(); err != nil || !slices.Equal(dirs, []string{v.ID}) || len(s.Known()) > 0 {
			t.Errorf("%s: the directories are %q, %v, known are %+v", about, dirs, err, s.Known())
		}
	}
}
