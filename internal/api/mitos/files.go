package mitos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"connectrpc.com/connect"

	filesystempb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// inside is a guest with what this dialect does there.
type inside struct{ guest.Guest }

// chunk is a piece of a file.
type chunk struct {
	Data []byte `json:"data,omitempty"`
	EOF  bool   `json:"eof,omitempty"`
}

// chunkSize is how much of a file one message has.
const chunkSize = 64 << 10

// fileRequest returns a request for the bytes of a file.
func fileRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, method, guest.URL("/files?"+url.Values{"path": {path}}.Encode()), body)
}

func readFile(s *server, c *call) error {
	words, err := c.message(pathBody)
	if err != nil {
		return err
	}
	req, err := fileRequest(c.ctx, http.MethodGet, words["path"].Value.(string), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept-Encoding", "identity")
	res, err := s.guest(c).Client(agentapi.Port).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusalOf(res)
	}
	piece := make([]byte, chunkSize)
	for {
		n, err := res.Body.Read(piece)
		if errors.Is(err, io.EOF) {
			return c.out.finish(chunk{Data: piece[:n], EOF: true})
		}
		if n > 0 {
			if err := c.out.send(chunk{Data: piece[:n]}); err != nil {
				return err
			}
		}
		switch _, ours := asError(err); {
		case ours:
			return err
		case err != nil:
			return guest.ErrBroken
		}
	}
}

// defaultMode is what a new file has.
const defaultMode = 0o644

// writeFile makes or replaces a file. What comes is passed on as it comes.
func writeFile(s *server, c *call) error {
	in := newUpload(c)
	data, err := in.first()
	if err != nil {
		return err
	}
	words, err := c.read(data, openBody)
	if err != nil {
		return err
	}
	path := words["open.path"].Value.(string)
	g := s.guest(c)
	res, err := g.store(c.ctx, path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusalOf(res)
	}
	if w, given := words["open.mode"]; given && w.Value.(int) != defaultMode {
		if err := g.chmod(c.ctx, path, w.Value.(int)); err != nil {
			return err
		}
	}
	return c.out.finish(map[string]int64{"bytesWritten": in.written})
}

// store writes a file. It alone reads from in, and does not after it has returned:
// what follows there may be the client's next request.
func (g inside) store(ctx context.Context, path string, in *upload) (*http.Response, error) {
	from, to := io.Pipe()
	req, err := fileRequest(ctx, http.MethodPost, path, from)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	type answer struct {
		res *http.Response
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		res, err := g.Client(agentapi.Port).Do(req)
		_ = from.Close() // it may have been answered before its end
		answered <- answer{res, err}
	}()
	_, copied := io.Copy(to, in)
	_ = to.CloseWithError(copied) // an end that is none breaks the request off
	a := <-answered
	if in.err == nil || errors.Is(in.err, io.EOF) {
		return a.res, a.err
	}
	if a.err == nil {
		a.res.Body.Close()
	}
	return nil, in.err
}

// chmod sets the permission bits of a file, by the sandbox's own command: the agent
// has no call for it.
func (g inside) chmod(ctx context.Context, path string, mode int) error {
	found, err := g.Files().Stat(ctx, connect.NewRequest(&filesystempb.StatRequest{Path: path}))
	if err != nil {
		return err
	}
	end, err := g.Run(ctx, "chmod", "0"+strconv.FormatInt(int64(mode), 8), found.Msg.GetEntry().GetPath())
	if code := codeOf(end); err == nil && code != 0 {
		err = errdef.New(errdef.Invalid, "agent_refused", "the file was written, but chmod in the sandbox ended with %d", code).
			WithRemedy("set its mode with exec()")
	}
	return err
}

// fileInfo is an entry of a directory.
type fileInfo struct {
	Name           string `json:"name"`
	Path           string `json:"path"`
	IsDir          bool   `json:"isDir"`
	Size           int64  `json:"size"`
	Mode           uint32 `json:"mode"`
	ModifiedAtUnix int64  `json:"modifiedAtUnix"`
}

func viewFile(e *filesystempb.EntryInfo) fileInfo {
	return fileInfo{
		Name: e.GetName(), Path: e.GetPath(), IsDir: isDir(e), Size: e.GetSize(), Mode: e.GetMode(),
		ModifiedAtUnix: e.GetModifiedTime().GetSeconds(),
	}
}

func isDir(e *filesystempb.EntryInfo) bool {
	return e.GetType() == filesystempb.FileType_FILE_TYPE_DIRECTORY
}

// entry looks at a path.
func (g inside) entry(ctx context.Context, path string) (*filesystempb.EntryInfo, error) {
	found, err := g.Files().Stat(ctx, connect.NewRequest(&filesystempb.StatRequest{Path: path}))
	if err != nil {
		return nil, err
	}
	return found.Msg.GetEntry(), nil
}

// list returns the entries of a directory.
func (g inside) list(ctx context.Context, path string) ([]*filesystempb.EntryInfo, error) {
	found, err := g.Files().ListDir(ctx, connect.NewRequest(&filesystempb.ListDirRequest{Path: path, Depth: 1}))
	if err != nil {
		return nil, err
	}
	return found.Msg.GetEntries(), nil
}

// listDir lists a directory; of a file it is the file, by which the SDK sees that
// it exists.
func listDir(s *server, c *call) (any, error) {
	g, path := s.guest(c), c.words["parent"].Value.(string)
	of, err := g.entry(c.ctx, path)
	if err != nil {
		return nil, err
	}
	entries := []*filesystempb.EntryInfo{of}
	if isDir(of) {
		if entries, err = g.list(c.ctx, path); err != nil {
			return nil, err
		}
	}
	views := make([]fileInfo, len(entries))
	for i, e := range entries {
		views[i] = viewFile(e)
	}
	return map[string][]fileInfo{"entries": views}, nil
}

func stat(s *server, c *call) (any, error) {
	e, err := s.guest(c).entry(c.ctx, c.words["path"].Value.(string))
	if err != nil {
		return nil, err
	}
	return viewFile(e), nil
}

// mkdir makes a directory and its parents; one that is there is as good.
func mkdir(s *server, c *call) (any, error) {
	g, path := s.guest(c), c.words["path"].Value.(string)
	_, err := g.Files().MakeDir(c.ctx, connect.NewRequest(&filesystempb.MakeDirRequest{Path: path}))
	if err != nil && connect.CodeOf(err) == connect.CodeAlreadyExists {
		if e, look := g.entry(c.ctx, path); look == nil && isDir(e) {
			err = nil
		}
	}
	return struct{}{}, err
}

// remove deletes a file or an empty directory, or with recursive any directory.
func remove(s *server, c *call) (any, error) {
	g, path := s.guest(c), c.words["path"].Value.(string)
	e, err := g.entry(c.ctx, path)
	if err != nil {
		return nil, err
	}
	w, given := c.words["recursive"]
	if isDir(e) && e.SymlinkTarget == nil && !(given && w.Value.(bool)) {
		entries, err := g.list(c.ctx, path)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			return nil, errdef.New(errdef.WrongState, "directory_not_empty", "%s is a directory with %d entries", fmt.Sprintf("%.200q", path), len(entries)).
				WithRemedy("remove these first, or run rm -r with exec()").With("path", path)
		}
	}
	_, err = g.Files().Remove(c.ctx, connect.NewRequest(&filesystempb.RemoveRequest{Path: path}))
	return struct{}{}, err
}
