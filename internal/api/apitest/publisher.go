package apitest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/supervisor/publish"
)

// Publisher sends snapshots nowhere. The registry of "denied" refuses all.
type Publisher struct{}

// PushSnapshot tells of one layer, and returns an image whose digest follows from
// the snapshot.
func (Publisher) PushSnapshot(_ context.Context, req publish.Request) (image.Published, error) {
	if err := image.CheckTag(req.Ref); err != nil {
		return image.Published{}, err
	}
	full, err := image.Reference(req.Ref)
	if err != nil {
		return image.Published{}, err
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(req.Snapshot)))
	if req.Ref == "denied" {
		return image.Published{}, errdef.New(errdef.Forbidden, "image_denied", "the registry refuses %s to this server", full)
	}
	if req.Progress != nil {
		req.Progress(image.Progress{Layer: digest, State: image.Sent, Done: 3, Size: 3})
	}
	return image.Published{Ref: full + "@" + digest, Digest: digest, Layers: []image.PublishedLayer{{Digest: digest, Size: 3, Bytes: 2048}}}, nil
}

// OpenArchive returns what says whose archive it is. That of the snapshot "kept"
// breaks off.
func (Publisher) OpenArchive(_ context.Context, _, id string) (publish.Archive, error) {
	return archive(id), nil
}

type archive string

// Write implements publish.Archive.
func (a archive) Write(_ context.Context, out io.Writer) error {
	_, err := fmt.Fprintf(out, "files of %s", string(a))
	if err == nil && a == archive("skept") {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Close implements publish.Archive.
func (archive) Close() {}
