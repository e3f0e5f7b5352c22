// Package blobs keeps pieces of data under keys, where all servers of a database reach
// them: in a bucket of object storage, or in a directory of a file system that they share.
//
// What is under a key is written once and whole: whoever reads it has all of it, or none.
package blobs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// Store is where blobs are. It is safe for concurrent use.
//
// A call ends when its ctx does, with the error of that. What does not answer, has no
// room, or refuses a call is an errdef.Unavailable with code "blobs_unavailable", after
// some retries and within two minutes: a network must pass a blob in that time.
//
// A key is one or more names, joined by "/": of a-z, 0-9, "_", "-" and ".", which none
// begins with. A name has 200 bytes at most, a key 800. No key is below another: where
// there is a/b, there is neither a nor a/b/c. What breaks this is an errdef.Invalid with
// code "blob_key_invalid", if it shows.
type Store interface {
	// Put stores data under a key, durably, in the place of what was there. After an
	// error there is the old blob, or the new one, and never a part of it; the new one may
	// also come a moment later. Data may be changed once Put has returned.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns what is under a key, which has most bytes at most; errdef.NotFound with
	// code "blob_not_found" for nothing, and errdef.Invalid with code "blob_too_large" if
	// it has more.
	Get(ctx context.Context, key string, most int64) ([]byte, error)
	// Remove removes what is under keys. It is idempotent. After an error any of them may
	// be removed.
	Remove(ctx context.Context, keys ...string) error
	// List returns what is below a prefix of whole names, in no order: "a/b" is for
	// a/b/c, and not for a/bc; "" is for all. What is put or removed meanwhile may be
	// there or not. After an error nothing comes.
	List(ctx context.Context, prefix string) iter.Seq2[Blob, error]
	// String names the store for people, without secrets.
	String() string
}

// Blob is what is known of a blob without reading it.
type Blob struct {
	Key  string
	Size int64
	At   time.Time // when it was put, by the clock of the store
}

// Object storage has keys of 1,024 bytes, with the prefix of the store's URL; file systems
// have names of 255.
const longestKey = 800

var keyForm = lazyregexp.New(`^[a-z0-9_-][a-z0-9_.-]{0,199}(/[a-z0-9_-][a-z0-9_.-]{0,199})*$`)

// Open returns the store at a URL, after it has put a blob there, listed it, read it and
// removed it:
//
//	s3://BUCKET[/PREFIX][?endpoint=URL&region=REGION]
//	/absolute/path, or file:///absolute/path
//
// A bucket is of any storage with the API of S3. Its endpoint is the URL's, or that of
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or AWS; its region the URL's or that of
// AWS_REGION. Credentials are those of the AWS_* variables of the environment, of the
// shared credentials file, or of the role that the machine or the container has. They
// are never in the URL.
//
// A directory must exist, so that nothing is written below a mount point without its
// file system.
//
// What only a person can change, such as a bucket that does not exist, is an
// errdef.Invalid with code "blobs_unusable"; what may pass is "blobs_unavailable", as
// where a role does not give its credentials, or the end of ctx: then the store is returned
// too, if there is one, and may answer later.
func Open(ctx context.Context, from string) (Store, error) {
	s, err := open(ctx, from)
	if c, ok := errors.AsType[*cause](err); ok && c.lasting {
		return nil, unusable("%s: %s", c.store, c.why).WithRemedy("%s", c.remedy)
	}
	if errdef.Is(err, errdef.Invalid) {
		return nil, err
	}
	return s, err
}

func open(ctx context.Context, from string) (Store, error) {
	if strings.HasPrefix(from, "s3:") {
		b, err := openBucket(ctx, from, usual)
		switch {
		case b == nil:
			return nil, err
		case err == nil:
			err = probe(ctx, b)
		}
		return b, err
	}
	d, err := openDirectory(ctx, from)
	if err != nil {
		return nil, err
	}
	if err = probe(ctx, d); err == nil {
		err = d.sweep(ctx)
	}
	return d, err
}

func unusable(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "blobs_unusable", "blobs cannot be kept in %s", fmt.Sprintf(format, args...))
}

// probe finds out whether a store can do what it must.
func probe(ctx context.Context, s Store) error {
	key := "probe/" + strings.ToLower(rand.Text())
	if err := s.Put(ctx, key, []byte(key)); err != nil {
		return err
	}
	got, err := s.Get(ctx, key, int64(len(key)))
	if err == nil && string(got) != key {
		err = unusable("%s: what is read is not what was written", s).
			WithRemedy("check that nothing between this server and the store changes what passes")
	}
	for _, listErr := range s.List(ctx, "probe") {
		err = cmp.Or(err, listErr)
	}
	return cmp.Or(err, s.Remove(ctx, key)) // also after another error
}

// pathOf returns the path of a directory's URL.
func pathOf(from string) (string, error) {
	path := from
	if strings.HasPrefix(from, "file:") {
		u, err := url.Parse(from)
		if err != nil || u.Host != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return "", unusable("what a malformed URL names").WithRemedy("give a directory as file:///absolute/path")
		}
		path = u.Path
	}
	if !filepath.IsAbs(path) {
		// Its text stays out: it may be a URL with a password.
		return "", unusable("what is no URL of a store").WithRemedy("give s3://BUCKET[/PREFIX], or the absolute path of a directory")
	}
	return filepath.Clean(path), nil
}

// CheckKey returns an error for what is no key.
func CheckKey(key string) error {
	if len(key) > longestKey || !keyForm.MatchString(key) {
		return errdef.New(errdef.Invalid, "blob_key_invalid", "%.100q cannot be the key of a blob", key)
	}
	return nil
}

func notFound(s Store, key string) error {
	return errdef.New(errdef.NotFound, "blob_not_found", "there is no blob %s in %s", key, s)
}

func tooLarge(s Store, key string, most int64) error {
	return errdef.New(errdef.Invalid, "blob_too_large", "blob %s in %s has more than %d bytes", key, s, most)
}

// cause is why a call was not done.
type cause struct {
	store   Store
	why     string
	remedy  string
	lasting bool // until a person changes something
	err     error
}

func (c *cause) Error() string { return c.why }
func (c *cause) Unwrap() error { return c.err }

// unavailable is the error of a call that was not done. State says what is of the blobs.
func unavailable(s Store, state string, c *cause) error {
	c.store = s
	return &errdef.Error{
		Class:   errdef.Unavailable,
		Code:    "blobs_unavailable",
		Message: fmt.Sprintf("%s: %s: %s", state, s, c.why),
		Remedy:  c.remedy,
		Err:     c,
	}
}

// ended is the error of a call whose ctx was over before it.
func ended(ctx context.Context, state string) error {
	return fmt.Errorf("%s: %w", state, context.Cause(ctx))
}

// source reads the data of a call until that has returned. What still runs of the call
// gets no more of it, since the caller may change it from then on.
type source struct {
	mu   sync.Mutex
	from *bytes.Reader // nil once the call has returned
}

func newSource(data []byte) *source { return &source{from: bytes.NewReader(data)} }

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		return 0, io.ErrClosedPipe
	}
	return s.from.Read(p)
}

func (s *source) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = nil
}
