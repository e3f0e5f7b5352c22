// Package image fetches OCI images and unpacks their layers, without Docker.
//
// An image comes from a registry (Pull) or from an archive (Load): a tar of
// "docker save" or of an OCI image layout. Its layers are unpacked as overlayfs
// wants them, each into a directory that is named after the digest of its
// contents. Images share layers, and a layer is unpacked once.
//
// Everything in an image is hostile input. Each name is resolved beneath the
// layer's own directory, without following links. Device nodes are left out.
// The number of entries, the bytes, and how far data expands are bounded.
//
// A layer is unpacked in a staging directory, checked against its digests,
// synced, and renamed. So a layer that has its name is whole, also after a power
// cut. What a killed process leaves in the staging directory is found by
// Unfinished.
//
// The package knows nothing of templates and sandboxes: what a layer is needed
// for is the caller's to know.
package image

import (
	"errors"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Image is an image whose layers are unpacked.
type Image struct {
	// Ref is the reference it was asked for by, in full; empty for an archive
	// that names none.
	Ref string `json:"ref,omitempty"`
	// Digest pins the image: that of its manifest. An archive of the old form of
	// docker save has none, and is pinned by the digest of its configuration.
	Digest string `json:"digest"`
	// Source is Digest with the repository, by which it can be pulled again; empty
	// for an archive.
	Source   string        `json:"source,omitempty"`
	Platform string        `json:"platform"`
	Config   Configuration `json:"config"`
	Layers   []Layer       `json:"layers"` // bottom first
}

// Configuration is what an image says of how to run it.
type Configuration struct {
	Env          []string `json:"env,omitempty"`
	WorkingDir   string   `json:"workingDir,omitempty"`
	User         string   `json:"user,omitempty"`
	Entrypoint   []string `json:"entrypoint,omitempty"`
	Cmd          []string `json:"cmd,omitempty"`
	ExposedPorts []string `json:"exposedPorts,omitempty"`
}

// Layer is an unpacked layer.
type Layer struct {
	ID       string `json:"id"`     // of its directory: the SHA-256 of its contents, in hex
	Digest   string `json:"digest"` // as the image names it: of its contents, or of the compressed ones
	Bytes    int64  `json:"bytes"`  // in its regular files
	Entries  int    `json:"entries"`
	Devices  int    `json:"devices,omitempty"`  // device nodes that were left out
	Implicit int    `json:"implicit,omitempty"` // directories that the archive used and did not describe
}

// Limits bound what is unpacked.
type Limits struct {
	Bytes   int64 // of one layer's archive, uncompressed
	Entries int   // of one layer
	Ratio   int64 // of uncompressed to compressed bytes, after the first RatioFrom
}

// RatioFrom is how much may be unpacked before Limits.Ratio holds: a few zeros
// compress very well.
const RatioFrom = 64 << 20

// DefaultLimits are larger than the layers of any image in common use.
var DefaultLimits = Limits{Bytes: 64 << 30, Entries: 1_000_000, Ratio: 200}

// Progress tells of one layer that is being fetched, or sent.
type Progress struct {
	Layer string `json:"layer"` // its digest
	State State  `json:"state"`
	Done  int64  `json:"done"` // bytes read
	Size  int64  `json:"size"` // bytes in all; 0 where that is not known
}

// State is how far a layer is.
type State string

// The states of a layer.
const (
	Fetching State = "fetching"
	Present  State = "present" // it was unpacked before
	Unpacked State = "unpacked"
)

// Invalid returns the error of an image that cannot be used as it is.
func Invalid(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "image_invalid", format, args...)
}

func damaged(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "image_damaged", format, args...).
		WithRemedy("nothing of it was kept; fetch the image again, and if that does not help, ask whoever built it")
}

func tooLarge(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Exhausted, "image_too_large", format, args...)
}

// explain gives an error of reading or writing its class.
func explain(err error) error {
	if _, ok := errors.AsType[*errdef.Error](err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errdef.New(errdef.Unavailable, "disk_full", "the disk became full while a layer was unpacked: %w", err).
			WithRemedy("make room and try again; layers that were finished are not fetched again")
	case errors.Is(err, unix.ENAMETOOLONG):
		return Invalid("a layer has a name that is too long for the file system: %w", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return damaged("a layer ends too early: %w", err)
	}
	return err
}

func configurationOf(c *v1.ConfigFile) Configuration {
	conf := Configuration{
		Env: c.Config.Env, WorkingDir: c.Config.WorkingDir, User: c.Config.User,
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd,
	}
	for port := range c.Config.ExposedPorts {
		conf.ExposedPorts = append(conf.ExposedPorts, port)
	}
	return conf
}

// progressEvery is how often a layer that is being fetched is told of.
const progressEvery = 200 * time.Millisecond
