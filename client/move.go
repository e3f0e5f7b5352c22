package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// bundleType is the content type of an export.
const bundleType = "application/x-tar"

// Export writes a paused sandbox to w as one file, to keep or to import on
// another server, and returns how many bytes that were. The sandbox stays where
// it is. The file has secrets of the sandbox in it: all of its memory, its
// environment, and a token.
//
// After an error what was written is not whole, and no server imports it.
// ErrConflict: it runs.
func (c *Client) Export(ctx context.Context, id string, w io.Writer) (int64, error) {
	n, err := c.export(ctx, id, w)
	if err != nil {
		return n, fmt.Errorf("export sandbox %s: %w", id, err)
	}
	return n, nil
}

func (c *Client) export(ctx context.Context, id string, w io.Writer) (int64, error) {
	path, err := sandboxPath(id)
	if err != nil {
		return 0, err
	}
	return download(ctx, c, path+"/export", w)
}

// download writes an archive that the server makes.
func download(ctx context.Context, c *Client, path string, w io.Writer) (int64, error) {
	req, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", bundleType+", application/json")
	resp, err := c.send(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	from := &failing{r: resp.Body}
	n, err := io.Copy(w, from)
	if from.err != nil && ctx.Err() == nil {
		return n, interrupted(from.err) // the reader's failure, not the writer's
	}
	return n, err
}

// failing notes the error of a reader.
type failing struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

// ImportOptions says how a file becomes a sandbox.
type ImportOptions struct {
	// NewID gives the sandbox another id. Otherwise it keeps its own, which must
	// be unknown to the server.
	NewID bool
	// Mode is Filesystem to leave the memory out and boot afresh from the files;
	// empty means what is in the file.
	Mode Mode
	// Secrets lets the sandbox use the secrets of this API key that have the names
	// in the file. Otherwise they are withheld.
	Secrets bool
	// IdempotencyKey, where it is not empty, makes one sandbox of several imports
	// of the same file, as with CreateOptions.
	IdempotencyKey string
}

// Import makes a paused sandbox of what Export wrote. A memory image is the
// state of a kernel: import none that you would not run as root in the
// sandbox's place.
//
// ErrInvalid: it is not a whole and unchanged export. ErrConflict: its id is
// taken. Other refusals say what the server lacks.
func (c *Client) Import(ctx context.Context, r io.Reader, o ImportOptions) (Info, error) {
	query := url.Values{}
	if o.NewID {
		query.Set("newId", "true")
	}
	if o.Mode != "" {
		query.Set("mode", string(o.Mode))
	}
	if o.Secrets {
		query.Set("secrets", "true")
	}
	var info Info
	if err := c.upload(ctx, "/v1/imports", query, o.IdempotencyKey, r, &info); err != nil {
		return Info{}, fmt.Errorf("import a sandbox: %w", err)
	}
	return info, nil
}

// upload posts a bundle and decodes the answer. The idempotency key may be empty.
func (c *caller) upload(ctx context.Context, path string, query url.Values, key string, r io.Reader, out any) error {
	req, err := c.request(ctx, http.MethodPost, path, query, nil)
	if err != nil {
		return err
	}
	req.Body = io.NopCloser(r)
	req.ContentLength = -1
	req.Header.Set("Content-Type", bundleType)
	if key != "" {
		req.Header.Set(headerIdempotency, key)
	}
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode(resp.Body, out)
}
