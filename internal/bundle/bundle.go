// Package bundle is the form in which a sandbox leaves a server: one stream
// with everything that another server needs to let it go on.
//
// It is a tar archive in the PAX form, uncompressed, so that the usual tools
// show what is in it. In this order:
//
//   - manifest.json says what follows, to the byte, and what the other server
//     must have.
//   - layers/N/… is layer N of the disk, the lowest first: directories before
//     what is in them, with owners, nanoseconds, extended attributes
//     (SCHILY.xattr) and overlayfs' marks of what was removed (character
//     devices 0:0) as they lie on disk. They are not put in OCI's form: nothing
//     would read them there, and each would have to be checked twice. Of a file
//     with holes only the rest is there; DROWSE.extents says where it belongs
//     and DROWSE.size how long the file is.
//   - image/… are the files of the memory image, if there is one.
//   - sha256 is the SHA-256 of all bytes before its header, in hex.
//
// A reader takes nothing else, in no other order, and nothing after the end.
// The checksum tells damage, not intent: who can write a bundle can write the
// checksum too. A memory image is the state of a kernel, so that to import a
// bundle is to trust who made it as one trusts a program to be run as root in
// the sandbox's place. And it has a secret in it, the token of the agent.
package bundle

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// ContentType is that of a bundle.
const ContentType = "application/x-tar"

const (
	// formatVersion numbers the form. It rises with every change that a program
	// made for the old form would refuse or misread. In form 1, layers had the
	// digests of flat listings. Forms 1 and 2 do not say which image a sandbox
	// started from, forms before 4 not as whom and where its commands run, and forms
	// before 5 know no secrets, forms before 6 no services, forms before 7 no
	// entrances, forms before 8 no proxy, and forms before 9 neither the sandbox's name
	// nor the template that was built, no part of a CPU, and refreshOnActivity as a
	// boolean.
	formatVersion = 9
	imageSince    = 3
	// KindSandbox is a paused sandbox.
	KindSandbox = "sandbox"
)

// What a bundle is bounded by.
const (
	maxManifest = 4 << 20
	// maxEntries is how many things all layers may have together: checking them
	// takes memory.
	maxEntries    = 1 << 20
	maxLayers     = 4096
	maxImageFiles = 64
	maxBytes      = 1 << 50
)

// Manifest says what is in a bundle and what it needs. How it is written is said
// in form.go.
type Manifest struct {
	Format     int
	Kind       string
	ExportedAt time.Time

	ID         string // of the sandbox
	Generation int64
	CreatedAt  time.Time
	Settings   lifecycle.Settings
	Config     store.Config

	Mode  lifecycle.Mode
	Needs Needs
	// AgentToken is the secret by which the agent in the memory image knows its
	// host.
	AgentToken string
	Layers     []Layer // of the disk, bottom first
	Image      *Image
}

// Needs is what a server must have to wake the sandbox with its memory. All but
// the template is empty where there is none.
type Needs struct {
	Template     string // its id, which follows from its contents
	Architecture string
	Runtime      string   // what reads the memory image
	CPU          []string // features that programs in it may have found
	// System is a digest of the host's own directories that the template shows.
	System string
}

// Layer is one layer of the disk.
type Layer struct {
	Digest  string // SHA-256 of its listing
	Entries int64  // in the bundle
	Bytes   int64  // of their data
}

// Image is the memory image.
type Image struct {
	Files []layer.File
}

// Bytes is how much data follows the manifest, without what tells of it.
func (m *Manifest) Bytes() (n int64) {
	for _, l := range m.Layers {
		n += l.Bytes
	}
	if m.Image != nil {
		for _, f := range m.Image.Files {
			n += f.Size
		}
	}
	return n
}

// Entries is how many files and directories follow the manifest.
func (m *Manifest) Entries() (n int64) {
	for _, l := range m.Layers {
		n += l.Entries
	}
	if m.Image != nil {
		n += int64(len(m.Image.Files))
	}
	return n
}

// KnowsImage reports whether Config.Image says which image the sandbox started
// from. Old exports do not say it.
func (m *Manifest) KnowsImage() bool { return m.Format >= imageSince }

// checkForm refuses what another version wrote. It is asked before all else,
// because what else a manifest says depends on it.
func (m *Manifest) checkForm() error {
	switch {
	case m.Format < 1:
		return layer.Damaged("it says that it has format %d", m.Format)
	case m.Format > formatVersion:
		return errdef.New(errdef.Unsupported, "import_too_new", "this export has format %d and this server reads format %d", m.Format, formatVersion).
			WithRemedy("import it with the version that wrote it, or a newer one")
	case m.Kind != KindSandbox:
		return errdef.New(errdef.Unsupported, "import_too_new", "this is an export of a %q, which this server does not know", m.Kind).
			WithRemedy("import it with the version that wrote it, or a newer one")
	}
	return nil
}

// check refuses a manifest that contradicts itself or is out of all bounds.
func (m *Manifest) check() error {
	memory := m.Mode == lifecycle.Memory
	switch {
	case !memory && m.Mode != lifecycle.Filesystem:
		return layer.Damaged("its mode is %q", m.Mode)
	case memory != (m.Image != nil) || memory != (m.AgentToken != ""):
		return layer.Damaged("its mode is %s, and there is something else in it", m.Mode)
	case len(m.Layers) > maxLayers:
		return layer.Damaged("it has %d layers", len(m.Layers))
	}
	left := int64(maxEntries)
	for n, l := range m.Layers {
		if l.Entries < 1 || l.Entries > left || l.Bytes < 0 || l.Bytes > maxBytes {
			return layer.Damaged("layer %d has %d entries of %d bytes", n, l.Entries, l.Bytes)
		}
		left -= l.Entries
	}
	if m.Image == nil {
		return nil
	}
	if n := len(m.Image.Files); n < 1 || n > maxImageFiles {
		return layer.Damaged("its memory image has %d files", n)
	}
	for _, f := range m.Image.Files {
		if f.Size < 0 || f.Size > maxBytes {
			return layer.Damaged("%q of the memory image has %d bytes", f.Name, f.Size)
		}
	}
	return nil
}

// Measure counts what a layer has for the manifest.
func (l *Layer) Measure(e layer.Entry, _ io.Reader) error {
	l.Entries++
	l.Bytes += e.Bytes()
	return nil
}

// CheckSize refuses to export what no server would import.
func (m *Manifest) CheckSize() error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if m.Entries() <= maxEntries && len(m.Layers) <= maxLayers && len(data) <= maxManifest {
		return nil
	}
	return errdef.New(errdef.Unsupported, "not_portable",
		"the sandbox has %d files and directories in %d layers, and %d bytes of settings; an export can have %d in %d, and %d",
		m.Entries(), len(m.Layers), len(data), maxEntries, maxLayers, maxManifest).
		WithRemedy("remove what is not needed inside the sandbox, or pack it, and pause it again")
}

// Missing says what keeps a server that has these from waking the sandbox with
// its memory; "" for nothing.
func (n Needs) Missing(has Needs) string {
	switch {
	case n.Architecture != has.Architecture:
		return fmt.Sprintf("its memory is that of a machine of architecture %s, and this one is %s", n.Architecture, has.Architecture)
	case n.Runtime != has.Runtime:
		return fmt.Sprintf("its memory was written by %s, and this server has %s", n.Runtime, has.Runtime)
	case n.Template != has.Template:
		return fmt.Sprintf("it was made from template %s, which this server does not have", n.Template)
	case n.System != has.System:
		return "the system directories of this machine differ from those that its programs run from"
	}
	if lacks := slices.DeleteFunc(slices.Clone(n.CPU), func(f string) bool { return slices.Contains(has.CPU, f) }); len(lacks) > 0 {
		return fmt.Sprintf("this machine's processor lacks %v, which its programs may use", lacks)
	}
	return ""
}
