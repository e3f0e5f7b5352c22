package dialect

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// Authenticator knows the API keys.
type Authenticator interface {
	auth.Checker
	// Bind returns a context that ends with ctx, or when the key of that id is
	// revoked or expires.
	Bind(ctx context.Context, id string) (context.Context, context.CancelFunc)
}

// Volumes is what dialects need of those who keep volumes. One that is unknown is an
// errdef.NotFound.
type Volumes interface {
	// CreateVolume is an errdef.Exists where the name is taken. With a diskMiB of
	// 0 the server's limit holds.
	CreateVolume(ctx context.Context, name string, diskMiB int) (store.Volume, error)
	// Volumes returns all volumes, oldest first.
	Volumes(ctx context.Context) ([]store.Volume, error)
	Volume(ctx context.Context, id string) (store.Volume, error)
	// DeleteVolume is an errdef.Conflict while a sandbox has the volume.
	DeleteVolume(ctx context.Context, id string) error
	// VolumeUse returns what the files of a volume took of the disk at a time; the zero
	// time where that is not known.
	VolumeUse(id string) (bytes int64, at time.Time)
	// VolumeToken returns what opens the files of a volume to the holder of a key.
	VolumeToken(key, id string) string
}

// Templates is what sandboxes can start from.
type Templates interface {
	// Template returns what a reference stands for, or an errdef.NotFound with
	// code "template_not_found".
	Template(ref string) (templates.Template, error)
	// Templates returns all that have a name.
	Templates() ([]templates.Template, error)
}
