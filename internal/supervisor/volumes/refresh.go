package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/volume"
)

// RefreshVolumes reads again which volumes there are. Only this server changes its own, but it
// may not have learned whether it did: a commit whose answer was lost is found here.
func (r *Room) RefreshVolumes(ctx context.Context) error {
	gone, err := r.refresh(ctx)
	for _, id := range gone {
		r.removeFiles(id)
		r.removeFiles(id + volume.Discarded) // unless it was put back
	}
	return err
}

// refresh takes over what is stored, and returns the volumes whose files are to be removed. It
// holds mu, as creates and deletions do: none is under way when the store is read.
func (r *Room) refresh(ctx context.Context) (gone []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, err := r.o.Store.Volumes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read volumes again: %w", err)
	}
	stored := map[string]bool{}
	var errs []error
	for _, v := range list {
		stored[v.ID] = true
		_, known := r.byID[v.ID]
		if r.owns(v) && !known {
			if err := r.provide(v); err != nil {
				errs = append(errs, err)
				continue
			}
			r.o.Log.Warn("a volume was created whose commit had no answer", "volume", v.Name)
		}
		r.byID[v.ID] = v
	}
	for id, v := range r.byID {
		if stored[id] {
			continue
		}
		if r.owns(v) {
			// Files are worth more than an entry: they go only where a deletion was asked for,
			// and no sandbox has mounted the volume since.
			remove := r.struck[id] && len(r.o.Users(id)) == 0
			if remove {
				gone = append(gone, id)
			}
			r.o.Log.Warn("a volume of this server is not stored any more", "volume", v.Name, "id", id, "removed", remove)
		}
		r.dropLocked(id)
	}
	return gone, errors.Join(errs...)
}

// provide makes the directory of a volume, unless it is there.
func (r *Room) provide(v store.Volume) error {
	err := r.o.Files.Recall(v.ID)
	if err != nil {
		return err
	}
	if _, err = os.Lstat(r.o.Files.Dir(v.ID)); errors.Is(err, fs.ErrNotExist) {
		err = r.o.Files.Make(v.ID)
	}
	return err
}
