package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/putoff"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/volume"
)

// surveyed is a room, and a time that moves when a test moves it.
type surveyed struct {
	*Room
	t       *testing.T
	o       Options
	now     time.Time
	written map[string]bool
}

func newSurveyed(t *testing.T) *surveyed {
	t.Helper()
	dir := t.TempDir()
	files, err := volume.Open(filepath.Join(dir, "volumes"), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	s := &surveyed{t: t, now: time.Now(), written: map[string]bool{}}
	s.o = Options{
		Store: memstore.Open(memstore.NewData(), memstore.Hooks{}), Files: files, Space: space.New(dir, filepath.Join(dir, "ballast")), Log: slog.New(slog.DiscardHandler),
		Users:   func(string) []string { return nil },
		Written: func() map[string]bool { return s.written },
		Insist:  func(remove func() error, _ string, _ ...any) { _ = remove() },
		PutOff:  putoff.New(putoff.Options{}),
	}
	s.restart()
	return s
}

// restart opens the volumes as a server does that has just started.
func (s *surveyed) restart() {
	s.t.Helper()
	var err error
	if s.Room, err = Open(s.t.Context(), s.o); err != nil {
		s.t.Fatal(err)
	}
}

func (s *surveyed) volume(name string, diskMiB int) store.Volume {
	s.t.Helper()
	v, err := s.CreateVolume(s.t.Context(), name, diskMiB)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// write makes a file of so many MiB, as a sandbox does it.
func (s *surveyed) write(v store.Volume, name string, mib int64) {
	s.t.Helper()
	f, err := os.Create(filepath.Join(s.o.Files.Dir(v.ID), name))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, max(1, mib<<20)); err != nil {
		s.t.Fatal(err)
	}
}

// count lets time pass and the survey count; it says whether there was anything to count.
func (s *surveyed) count(after time.Duration) bool {
	s.now = s.now.Add(after)
	return s.surveyNext(s.t.Context(), s.now)
}

// uses fails the test unless the volume is known to take so many MiB; -1 for unknown.
func (s *surveyed) uses(v store.Volume, mib int64) {
	s.t.Helper()
	bytes, at := s.VolumeUse(v.ID)
	if mib < 0 {
		if bytes != 0 || !at.IsZero() {
			s.t.Errorf("volume %s takes %d bytes at %s, want it unknown", v.Name, bytes, at)
		}
		return
	}
	if bytes>>20 != mib || at.IsZero() || time.Since(at) < 0 {
		s.t.Errorf("volume %s takes %d bytes at %s, want %d MiB", v.Name, bytes, at, mib)
	}
}

// TestSurvey: what a volume takes is counted where its files may have changed, and never
// more often than it must.
func TestSurvey(t *testing.T) {
	s := newSurveyed(t)
	v := s.volume("data", 0)
	s.uses(v, 0)
	if s.count(time.Hour) {
		t.Error("a volume was counted that nothing has changed since it was made")
	}

	s.write(v, "file", 3)
	s.VolumeChanged(v.ID)
	s.uses(v, 0) // as it was then
	if !s.count(time.Hour) || s.count(time.Hour) {
		t.Error("a change over the API was not counted, or twice")
	}
	s.uses(v, 3)

	// While a sandbox may write, it is counted every so often, and once more afterwards.
	s.written[v.ID] = true
	for n := range int64(3) {
		s.write(v, fmt.Sprint("more", n), 1)
		if !s.count(surveyAgain) || s.count(surveyAgain/2) {
			t.Error("it is to be counted once while a sandbox has it")
		}
		s.uses(v, 4+n)
	}
	s.count(time.Hour)
	clear(s.written) // before anything looks again
	s.write(v, "last", 1)
	if !s.count(time.Hour) || s.count(time.Hour) {
		t.Error("what the sandbox wrote last was not counted, or twice")
	}
	s.uses(v, 7)

	s.restart()
	s.uses(v, -1)
	if !s.count(0) || s.count(time.Hour) {
		t.Error("a server that has just started has not counted once")
	}
	s.uses(v, 7)
	if err := s.DeleteVolume(t.Context(), v.ID); err != nil {
		t.Fatal(err)
	}
	s.uses(v, -1)
	if s.count(time.Hour) {
		t.Error("a deleted volume was counted")
	}
}

// TestSurveyGoesOn: a clock that is put back does not end it.
func TestSurveyGoesOn(t *testing.T) {
	s := newSurveyed(t)
	v := s.volume("data", 0)
	s.write(v, "file", 3)
	s.VolumeChanged(v.ID)
	if !s.count(-3 * time.Hour) {
		t.Error("it was not counted")
	}
	s.uses(v, 3)
}

// TestSurveyTakesTurns: the volume that has waited longest is counted, one at a time.
func TestSurveyTakesTurns(t *testing.T) {
	s := newSurveyed(t)
	var all []store.Volume
	for n := range 5 {
		all = append(all, s.volume(fmt.Sprint("v", n), 0))
		s.write(all[n], "file", int64(n))
		s.written[all[n].ID] = true
	}
	s.restart()
	for round := range 2 {
		for n := range all {
			if !s.count(time.Hour) {
				t.Fatal("none was counted")
			}
			known := 0
			for _, v := range all {
				if _, at := s.VolumeUse(v.ID); !at.IsZero() {
					known++
				}
			}
			if want := max(n+1, round*len(all)); known != want {
				t.Errorf("%d volumes are known in round %d, want %d", known, round, want)
			}
		}
	}
	for n, v := range all {
		s.uses(v, int64(n))
	}
}

// TestSurveyIsHonest: a count that did not come to its end is no number.
func TestSurveyIsHonest(t *testing.T) {
	s := newSurveyed(t)
	v, limited := s.volume("large", 0), s.volume("limited", 64)
	s.restart()
	for _, v := range []store.Volume{v, limited} {
		for n := range 8 {
			s.write(v, fmt.Sprint(n), 10)
		}
	}
	s.mostCounted = 5
	for s.count(time.Hour) {
		if time.Until(s.now) > 10*time.Hour {
			t.Fatal("there is always something to count")
		}
	}
	s.uses(v, -1)
	s.uses(limited, 80) // its limit allows for more files

	// The limit is looked after all the same, and what that counts to the end is known.
	s.write(limited, "more", 10)
	if _, err := s.VolumeUpload(t.Context(), limited.ID, strings.NewReader(""), 1); err == nil {
		t.Error("there was room for a file")
	}
	s.uses(limited, 80)
	s.Limit(t.Context(), limited.ID)
	s.uses(limited, 90)

	// So is what it takes once it has few enough files.
	for n := range 6 {
		if err := os.Remove(filepath.Join(s.o.Files.Dir(v.ID), fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	s.VolumeChanged(v.ID)
	s.count(time.Hour)
	s.uses(v, 20)
	for n := range 6 {
		s.write(v, fmt.Sprint(n), 1)
	}
	s.VolumeChanged(v.ID)
	s.count(time.Hour)
	s.uses(v, -1) // it is not as small as it was
}

// TestSurveyOfHostileTree counts 300 levels and a directory whose files come and go
// meanwhile: what stays is counted.
func TestSurveyOfHostileTree(t *testing.T) {
	s := newSurveyed(t)
	v := s.volume("data", 0)
	s.restart()
	dir := s.o.Files.Dir(v.ID)
	deep := filepath.Join(dir, strings.Repeat("d/", 300))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	s.write(v, strings.Repeat("d/", 300)+"file", 5)
	if err := os.Mkdir(filepath.Join(dir, "busy"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			at := filepath.Join(dir, "busy", fmt.Sprint(rand.IntN(1000)))
			err = errors.Join(os.MkdirAll(filepath.Join(at, "in"), 0o700), os.RemoveAll(at))
		}
		ended <- err
	}()
	for range 20 {
		s.VolumeChanged(v.ID)
		if !s.count(time.Hour) {
			t.Fatal("it was not counted")
		}
		// Directories take a block each, or none: it depends on the file system.
		if bytes, at := s.VolumeUse(v.ID); bytes>>20 != 5 && bytes>>20 != 6 || at.IsZero() {
			t.Errorf("it takes %d bytes at %s", bytes, at)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestSurveyEnds: a count ends with its volume, and the survey with its server.
func TestSurveyEnds(t *testing.T) {
	s := newSurveyed(t)
	v := s.volume("data", 0)
	s.restart()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if id, d, enough := s.due(s.now, stop); id != v.ID || d == nil || enough.Exceeds(layer.Unbounded) {
		t.Fatalf("to be counted is %q until %v", id, enough)
	}
	if ctx.Err() != nil {
		t.Error("the count has ended before")
	}
	if err := s.DeleteVolume(t.Context(), v.ID); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil {
		t.Error("a volume is deleted, and its files are being counted")
	}

	ctx, stop = context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Survey(ctx, time.Millisecond)
	}()
	stop()
	<-ended
}
