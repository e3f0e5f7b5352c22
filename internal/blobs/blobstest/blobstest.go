// Package blobstest has what tests of blobs use: the contract that every store keeps, a
// store in memory whose faults a test sets, and a gateway that speaks the API of S3.
package blobstest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// Faulty is a store that fails as a test wants. Its fields are set before it is used, or
// while no call runs.
type Faulty struct {
	blobs.Store
	// Fail, if it is set, is called at the begin of each call, with "put", "get",
	// "remove" or "list", and the key or the prefix: once for each key of a Remove. The
	// call ends with an error that it returns. While it does not return, the call hangs,
	// until its ctx ends.
	Fail func(op, key string) error
	// Spoil, if it is set, changes what a Get returns. It may change data itself.
	Spoil func(key string, data []byte) []byte
}

// NewFake returns a store in memory.
func NewFake() *Faulty { return &Faulty{Store: &memory{blobs: map[string]blob{}}} }

// Unavailable is what a store returns that does not answer.
func Unavailable(op, key string) error {
	return errdef.New(errdef.Unavailable, "blobs_unavailable", "%s of blob %s fails, as the test wants", op, key).
		WithRemedy("try again when the test wants it to work")
}

func (f *Faulty) fail(ctx context.Context, op string, keys ...string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s of blobs: %w", op, context.Cause(ctx))
	}
	if f.Fail == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		for _, key := range keys {
			if err := f.Fail(op, key); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s of blobs: %w", op, context.Cause(ctx))
	}
}

// Put is [blobs.Store.Put].
func (f *Faulty) Put(ctx context.Context, key string, data []byte) error {
	if err := f.fail(ctx, "put", key); err != nil {
		return err
	}
	return f.Store.Put(ctx, key, data)
}

// Get is [blobs.Store.Get].
func (f *Faulty) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	if err := f.fail(ctx, "get", key); err != nil {
		return nil, err
	}
	data, err := f.Store.Get(ctx, key, most)
	if err == nil && f.Spoil != nil {
		data = f.Spoil(key, data)
	}
	return data, err
}

// Remove is [blobs.Store.Remove].
func (f *Faulty) Remove(ctx context.Context, keys ...string) error {
	if err := f.fail(ctx, "remove", keys...); err != nil {
		return err
	}
	return f.Store.Remove(ctx, keys...)
}

// List is [blobs.Store.List].
func (f *Faulty) List(ctx context.Context, prefix string) iter.Seq2[blobs.Blob, error] {
	return func(yield func(blobs.Blob, error) bool) {
		if err := f.fail(ctx, "list", prefix); err != nil {
			yield(blobs.Blob{}, err)
			return
		}
		for b, err := range f.Store.List(ctx, prefix) {
			if !yield(b, err) {
				return
			}
		}
	}
}

type blob struct {
	data []byte
	at   time.Time
}

type memory struct {
	mu    sync.Mutex
	blobs map[string]blob
}

func (m *memory) String() string { return "memory of a test" }

func (m *memory) Put(_ context.Context, key string, data []byte) error {
	if err := blobs.CheckKey(key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[key] = blob{bytes.Clone(data), time.Now()}
	return nil
}

func (m *memory) Get(_ context.Context, key string, most int64) ([]byte, error) {
	if err := blobs.CheckKey(key); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blobs[key]
	switch {
	case !ok:
		return nil, errdef.New(errdef.NotFound, "blob_not_found", "there is no blob %s in %s", key, m)
	case int64(len(b.data)) > most:
		return nil, errdef.New(errdef.Invalid, "blob_too_large", "blob %s in %s has more than %d bytes", key, m, most)
	}
	return append([]byte{}, b.data...), nil
}

func (m *memory) Remove(_ context.Context, keys ...string) error {
	for _, key := range keys {
		if err := blobs.CheckKey(key); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.blobs, key)
	}
	return nil
}

func (m *memory) List(ctx context.Context, prefix string) iter.Seq2[blobs.Blob, error] {
	return func(yield func(blobs.Blob, error) bool) {
		if err := blobs.CheckKey(prefix); err != nil && prefix != "" {
			yield(blobs.Blob{}, err)
			return
		}
		m.mu.Lock()
		all := maps.Clone(m.blobs)
		m.mu.Unlock()
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if prefix != "" && !strings.HasPrefix(key, prefix+"/") {
				continue
			}
			if !yield(blobs.Blob{Key: key, Size: int64(len(all[key].data)), At: all[key].at}, nil) {
				return
			}
		}
	}
}
