package gvisor

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
)

// peers knows the builds that wrote the memory images here, and speaks with the
// programs of others than this one. It implements runtime.Builder.
type peers struct {
	dir  string        // of the driver's state
	env  []string      // of every tool that is started
	kept *builds.Store // the programs that memory images need

	mu    sync.Mutex
	known map[string]peer // by digest; each program is asked once what it is
}

// peer is another build.
type peer struct {
	program *builds.Program
	version string // of the memory images that it writes and reads
	edited  bool   // its gVisor was, as this one's is
	mute    bool   // it is older than the protocol
}

// of returns what a program is.
func (x *peers) of(p *builds.Program) (peer, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k, ok := x.known[p.Digest]; ok {
		k.program = p
		return k, nil
	}
	k := peer{program: p}
	a, err := x.consult(p, question{Ask: askBuild})
	k.version, k.edited = a.Version, a.Edits != ""
	if err != nil || a.Version == "" {
		info, err2 := buildinfo.ReadFile(p.Path())
		if err2 != nil {
			return k, errors.Join(err, fmt.Errorf("version of build %s: %w", brand(p.Digest), err2))
		}
		k.version, k.mute = "gvisor "+moduleVersion(info), true
	}
	x.known[p.Digest] = k
	return k, nil
}

// Reader implements runtime.Builder. The build that wrote an image is sure to
// read it; what wrote the image of an older server, or of another machine, may not
// be known or not be here, and then a build of the same gVisor does.
func (x *peers) Reader(digest, version string) (runtime.Build, error) {
	self, err := builds.Self()
	if err != nil {
		return runtime.Build{}, err
	}
	own := runtime.Build{Digest: self.Digest, Version: imageVersion()}
	if digest == own.Digest && version == own.Version {
		return own, nil
	}
	lacks := builds.ErrMissing
	if digest != "" && digest != own.Digest {
		var b runtime.Build
		if b, lacks = x.keptBuild(digest, version); lacks == nil {
			return b, nil
		}
	}
	if version == own.Version {
		return own, nil
	}
	names, err := x.kept.Names()
	if err != nil {
		return runtime.Build{}, err
	}
	for _, name := range names {
		if b, err := x.keptBuild(name, version); err == nil {
			return b, nil
		}
	}
	return runtime.Build{}, x.unread(digest, version, lacks)
}

// keptBuild returns a build that is kept, if it reads images of a version.
func (x *peers) keptBuild(digest, version string) (runtime.Build, error) {
	p, err := x.kept.Open(digest)
	if err != nil {
		return runtime.Build{}, err
	}
	k, err := x.of(p)
	switch {
	case err != nil:
		return runtime.Build{}, err
	case k.mute:
		return runtime.Build{}, errors.New("it is too old to be asked")
	case k.version != version:
		return runtime.Build{}, fmt.Errorf("it reads images of %s", k.version)
	}
	return runtime.Build{Digest: p.Digest, Version: k.version}, nil
}

// Keep implements runtime.Builder.
func (x *peers) Keep(digest string) error {
	self, err := builds.Self()
	if err == nil && digest == self.Digest {
		return x.kept.Keep(self)
	}
	if err == nil {
		_, err = x.kept.Open(digest)
	}
	if err != nil {
		return fmt.Errorf("keep build %s: %w", brand(digest), err)
	}
	return nil
}

// unread is the error of an image that nothing here reads.
func (x *peers) unread(digest, version string, lacks error) error {
	text := fmt.Sprintf("its memory image is of %s, which this server's %s cannot read", version, imageVersion())
	if digest == "" {
		return errdef.New(errdef.Unavailable, "checkpoint_unreadable", "%s, and no build that can is kept here", text)
	}
	return errdef.New(errdef.Unavailable, "checkpoint_unreadable", "%s; the drowse that wrote it, with the SHA-256 %s, cannot be used: %v", text, digest, lacks).
		WithRemedy("put that program, with mode 0700, at %s", x.kept.Path(digest))
}

// named returns the build that a spec names: nil for this one.
func (x *peers) named(digest string) (*peer, error) {
	if digest == "" {
		return nil, nil
	}
	self, err := builds.Self()
	if err != nil || digest == self.Digest {
		return nil, err
	}
	p, err := x.kept.Open(digest)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", brand(digest), err)
	}
	k, err := x.of(p)
	return &k, err
}

// running returns the build that a runtime runs: nil for this one, and where it
// cannot be told, as of a runtime that has ended. A runtime carries its program,
// wherever that has gone to.
func (x *peers) running(g group) (*peer, error) {
	exe := executableOf(g)
	ours, err := os.Stat("/proc/self/exe")
	theirs, err2 := os.Stat(exe)
	if errors.Join(err, err2) != nil || os.SameFile(ours, theirs) {
		return nil, nil
	}
	self, err := builds.Self()
	if err != nil {
		return nil, err
	}
	p, err := builds.Of(exe)
	if err != nil || p.Digest == self.Digest {
		return nil, err
	}
	k, err := x.of(p)
	return &k, err
}

// executableOf returns where the program is that a runtime runs; "" for none.
// All its processes run the same.
func executableOf(g group) string {
	pids, err := processesOf(g)
	if err != nil {
		return "" // it has no cgroup any more
	}
	for _, pid := range pids {
		exe := fmt.Sprintf("/proc/%d/exe", pid)
		if _, err := os.Stat(exe); err == nil {
			return exe
		}
	}
	return ""
}

// Build implements runtime.Built.
func (i *instance) Build() (runtime.Build, error) {
	program, version := (*builds.Program)(nil), imageVersion()
	if i.peer != nil {
		program, version = i.peer.program, i.peer.version
		if i.peer.mute {
			return runtime.Build{Version: version}, nil // nothing could wake it with that
		}
	} else {
		var err error
		if program, err = builds.Self(); err != nil {
			return runtime.Build{Version: version}, err
		}
	}
	return runtime.Build{Digest: program.Digest, Version: version}, i.d.kept.Keep(program)
}
