package v1

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/drowse-dev/drowse/internal/api/origin"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/publish"
)

// Publisher sends snapshots out as OCI images.
type Publisher interface {
	PushSnapshot(ctx context.Context, req publish.Request) (image.Published, error)
	// OpenArchive returns the snapshot of an id as an archive, to a key of an id. The
	// caller closes it.
	OpenArchive(ctx context.Context, key, id string) (publish.Archive, error)
}

// archiveType is the content type of an image layout in a tar.
const archiveType = "application/x-tar"

// publishedView is an image that a registry has got.
type publishedView struct {
	Ref    string               `json:"ref" doc:"The image with its digest."`
	Digest string               `json:"digest"`
	Layers []publishedLayerView `json:"layers" doc:"Bottom first: what the sandbox started from, and what it changed."`
}

type publishedLayerView struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size" doc:"As it is transferred."`
	Bytes  int64  `json:"bytes" doc:"Uncompressed."`
}

func viewPublished(p image.Published) publishedView {
	v := publishedView{Ref: p.Ref, Digest: p.Digest, Layers: []publishedLayerView{}}
	for _, l := range p.Layers {
		v.Layers = append(v.Layers, publishedLayerView(l))
	}
	return v
}

// publishable returns the snapshot that a reference names, or that a template was
// built to.
func publishable(s *server, c *call) (store.Snapshot, error) {
	ref := c.params[snapshotParam]
	snap, err := s.origins.Snapshot(c.key, ref)
	if errdef.Is(err, errdef.NotFound) && origin.Ref(ref) != ref {
		return s.origins.Snapshot(c.key, origin.Ref(ref))
	}
	return snap, err
}

// pushSnapshot answers with the image, or with lines of which the last has it or the
// error.
func pushSnapshot(s *server, c *call) (reply, error) {
	snap, err := publishable(s, c)
	if err != nil {
		return reply{}, err
	}
	req := publish.Request{Key: c.key.ID, Snapshot: snap.ID, Ref: c.words["image"].Value.(string), Actor: c.actor}
	return withProgress(s, c, http.StatusCreated, func(ctx context.Context, progress func(image.Progress)) (pulled, any, error) {
		req.Progress = progress
		p, err := s.Publisher.PushSnapshot(ctx, req)
		v := viewPublished(p)
		return pulled{Image: &v}, v, err
	})
}

// snapshotImage answers with a snapshot as one archive. What goes wrong before it
// begins is answered as ever; then the archive is broken off.
func snapshotImage(s *server, c *call) (reply, error) {
	snap, err := publishable(s, c)
	if err != nil {
		return reply{}, err
	}
	bound, cancel := s.Auth.Bind(c.r.Context(), c.key.ID)
	archive, err := s.Publisher.OpenArchive(bound, c.key.ID, snap.ID)
	if err != nil {
		cancel()
		return reply{}, err
	}
	return reply{Stream: func(w http.ResponseWriter) {
		defer cancel()
		defer archive.Close()
		h := w.Header()
		h.Set("Content-Type", archiveType)
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s.oci.tar"`, snap.ID))
		w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return
		}
		if err := writeArchive(bound, w, archive); err != nil {
			c.log.Warn("archive of a snapshot broken off", "err", err)
			panic(http.ErrAbortHandler) // an end in good order would look like that of the whole
		}
	}}, nil
}

// writeArchive writes until ctx ends, or the client does not read on.
func writeArchive(ctx context.Context, w http.ResponseWriter, a publish.Archive) error {
	out := &patientWriter{w: w, out: http.NewResponseController(w)}
	var watch sync.WaitGroup
	written := make(chan struct{})
	watch.Go(func() {
		select {
		case <-ctx.Done():
			out.cut()
		case <-written:
		}
	})
	err := a.Write(ctx, out)
	close(written)
	watch.Wait()
	return errors.Join(err, ctx.Err())
}
