package blobs_test

import (
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
)

func open(t *testing.T, url string) blobs.Store {
	t.Helper()
	s, err := blobs.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBucketKeepsContract(t *testing.T) {
	g := blobstest.Gateway(t)
	// Each test has a prefix of its own.
	blobstest.Run(t, func(t *testing.T) blobs.Store {
		bucket, query, _ := strings.Cut(g, "?")
		return open(t, bucket+"/"+strings.ToLower(t.Name())+"?"+query)
	})
}

func TestDirectoryKeepsContract(t *testing.T) {
	blobstest.Run(t, func(t *testing.T) blobs.Store { return open(t, t.TempDir()) })
}
