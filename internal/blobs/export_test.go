package blobs

import (
	"context"
	"time"

	"github.com/minio/minio-go/v7"
)

// The library waits after each attempt that fails, also after the only one.
func init() { minio.DefaultRetryUnit = 0 }

// OpenBucket is Open of a bucket without a probe, with other times to wait for a call and
// an answer, and next to no pauses between attempts.
func OpenBucket(ctx context.Context, url string, call, answer time.Duration) (Store, error) {
	b, err := openBucket(ctx, url, waits{call, answer, time.Millisecond})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// OpenDirectory is Open of a directory without a probe.
func OpenDirectory(ctx context.Context, path string) (Store, error) { return openDirectory(ctx, path) }

// Occupy takes all turns of a directory, as calls do that hang. It gives them back.
func Occupy(s Store) (release func()) {
	turns := s.(*directory).turns
	for range cap(turns) {
		turns <- struct{}{}
	}
	return func() {
		for range cap(turns) {
			<-turns
		}
	}
}
