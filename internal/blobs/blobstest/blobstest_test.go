package blobstest

import (
	"testing"

	"github.com/drowse-dev/drowse/internal/blobs"
)

func TestFakeKeepsContract(t *testing.T) {
	Run(t, func(t *testing.T) blobs.Store { return NewFake() })
}
