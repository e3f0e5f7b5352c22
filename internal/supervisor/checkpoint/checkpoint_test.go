package checkpoint

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// plain is a driver that has one build for ever.
type plain struct{ runtime.Driver }

func (plain) Capabilities() runtime.Capabilities { return runtime.Capabilities{Version: "v2"} }

// building is a driver that knows of other builds, and fails in a certain way.
type building struct {
	plain
	err  error
	kept *[]string
}

func (b building) Reader(digest, version string) (runtime.Build, error) {
	return runtime.Build{Digest: "of " + version, Version: version}, b.err
}

func (b building) Keep(digest string) error {
	*b.kept = append(*b.kept, digest)
	return nil
}

// TestReader: an image that no build reads is the checkpoint's fault, which no
// other try mends; a build that could not be looked at is not.
func TestReader(t *testing.T) {
	missing := errdef.New(errdef.Unavailable, CodeUnreadable, "it is not kept")
	for _, c := range []struct {
		name   string
		driver runtime.Driver
		build  string
		says   string
		fault  bool
	}{
		{"a driver of one build, which reads it", plain{}, "", "", false},
		{"a build that reads it", building{}, "of v2", "", false},
		{"no build", building{err: missing}, "", "not kept", true},
		{"no luck", building{err: errors.New("too many open files")}, "", "open files", false},
	} {
		b, err := Reader{Driver: c.driver}.reader(layer.Manifest{Runtime: "v2"})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || IsFault(err) != c.fault {
			t.Errorf("%s: %v, a fault %t; want %q", c.name, err, IsFault(err), c.says)
		}
		if err == nil && b.Digest != c.build {
			t.Errorf("%s: build %q, want %q", c.name, b.Digest, c.build)
		}
	}
	if _, err := (Reader{Driver: plain{}}).reader(layer.Manifest{Runtime: "v1"}); !IsFault(err) || !strings.Contains(err.Error(), "v1") {
		t.Errorf("a driver of one build, which does not read it: %v", err)
	}
}

// TestBuildFor: what comes from elsewhere is read by a build that is here and
// stays, or by none.
func TestBuildFor(t *testing.T) {
	var kept []string
	x := Reader{Driver: building{kept: &kept}, Log: slog.New(slog.DiscardHandler)}
	if digest, ok := x.BuildFor("v2"); !ok || digest != "of v2" || len(kept) != 1 || kept[0] != digest {
		t.Errorf("build %q, %t; kept are %q", digest, ok, kept)
	}
	x.Driver = building{err: errors.New("none"), kept: &kept}
	if digest, ok := x.BuildFor("v1"); ok || len(kept) != 1 {
		t.Errorf("build %q, %t; kept are %q", digest, ok, kept)
	}
}
