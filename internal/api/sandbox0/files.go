package sandbox0

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/guest"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/ration"
)

// maxEncoded is the largest file that is sent as JSON, for which all of it is in
// memory. As bytes a file may have any size.
const maxEncoded = 8 << 20

// encodedCost is how often such a file is in memory.
const encodedCost = 2

// How many directories are listed at once: all of a listing is in memory, and what
// a sandbox answers may be large on purpose.
const (
	maxListings    = 32
	maxKeyListings = 8
)

// fileView is a file as clients see it.
type fileView struct {
	Name    string             `json:"name"`
	Path    string             `json:"path"`
	Type    string             `json:"type"`
	Size    int64              `json:"size"`
	Mode    string             `json:"mode"`
	ModTime *httpapi.Timestamp `json:"mod_time,omitempty"`
	IsLink  bool               `json:"is_link"`
	Target  string             `json:"link_target,omitempty"`
}

func viewFile(e *filesystem.EntryInfo) fileView {
	v := fileView{Name: e.GetName(), Path: e.GetPath(), Type: "file", Size: e.GetSize(), Mode: fmt.Sprintf("%04o", e.GetMode())}
	if e.GetType() == filesystem.FileType_FILE_TYPE_DIRECTORY {
		v.Type = "dir"
	}
	if e.SymlinkTarget != nil {
		v.Type, v.IsLink, v.Target = "symlink", true, e.GetSymlinkTarget()
	}
	if at := e.GetModifiedTime(); at != nil {
		t := httpapi.Timestamp(at.AsTime())
		v.ModTime = &t
	}
	return v
}

// pathOf returns the path that a query names. What it means is the agent's to say.
func pathOf(q url.Values) (string, error) {
	switch list := q["path"]; {
	case len(list) == 0 || list[0] == "":
		return "", body.Invalid(`"path" is required in the query`).With("field", "path")
	case len(list) > 1:
		return "", body.Invalid(`"path" is in the query more than once`).With("field", "path")
	case strings.Contains(list[0], "\x00"):
		return "", body.Invalid(`"path" has a NUL character`).With("field", "path")
	default:
		return list[0], nil
	}
}

// flag reads a boolean of the query.
func flag(q url.Values, name string) (bool, error) {
	on, err := strconv.ParseBool(cmp.Or(q.Get(name), "false"))
	if err != nil {
		return false, body.Invalid("%q is %q", name, body.Short(q.Get(name))).WithRemedy("use true or false").With("field", name)
	}
	return on, nil
}

// transfer asks the agent for the bytes of a file, or gives it some. The caller
// closes the answer.
func transfer(ctx context.Context, g guest.Guest, method, name string, from io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, guest.URL("/files?"+url.Values{"path": {name}}.Encode()), from)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	if from != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	res, err := g.Client(agentapi.Port).Do(req)
	if err != nil {
		return nil, agentError(err)
	}
	if res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}
	defer res.Body.Close()
	var said struct {
		Message string `json:"message"`
	}
	_ = json.NewDecoder(io.LimitReader(res.Body, 4<<10)).Decode(&said)
	return nil, httpFileError(res.StatusCode, said.Message)
}

func httpFileError(status int, message string) error {
	message = body.Short(cmp.Or(message, "the sandbox's agent refused it"))
	switch status {
	case http.StatusNotFound:
		return fail(http.StatusNotFound, codeFileNotFound, "%s", message)
	case http.StatusForbidden, http.StatusUnauthorized:
		return fail(http.StatusForbidden, codePermission, "%s", message)
	case http.StatusConflict:
		return fail(http.StatusConflict, codePathExists, "%s", message)
	case http.StatusInsufficientStorage:
		return fail(http.StatusInsufficientStorage, codeQuota, "%s", message)
	case http.StatusBadRequest:
		return fail(http.StatusConflict, codeNotFile, "%s", message)
	}
	return fail(http.StatusConflict, codeConflict, "the sandbox's agent failed: %s", message)
}

// fileError is agentError for files; missing and invalid are the codes of what is
// not there and of what cannot be meant.
func fileError(err error, missing, wrong string) error {
	e, ok := errors.AsType[*connect.Error](err)
	if _, ours := errors.AsType[*errdef.Error](err); ours || !ok {
		return agentError(err)
	}
	switch e.Code() {
	case connect.CodeNotFound:
		return fail(http.StatusNotFound, missing, "%s", e.Message())
	case connect.CodeAlreadyExists:
		return fail(http.StatusConflict, codePathExists, "%s", e.Message())
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition:
		return fail(http.StatusConflict, wrong, "%s", e.Message())
	}
	return agentError(err)
}

// contentView is a file as JSON.
type contentView struct {
	Content  []byte `json:"content"` // encoded as base64
	Encoding string `json:"encoding"`
}

// wantsJSON reports whether a client asks for JSON by one of two headers.
func wantsJSON(h http.Header) bool {
	for _, name := range []string{"Accept", "Content-Type"} {
		first, _, _ := strings.Cut(h.Get(name), ",")
		if kind, _, _ := mime.ParseMediaType(first); kind == "application/json" {
			return true
		}
	}
	return false
}

func readFile(s *server, c *call) (reply, error) {
	name, err := pathOf(c.r.URL.Query())
	if err != nil {
		return reply{}, err
	}
	res, err := transfer(c.r.Context(), s.guest(c), http.MethodGet, name, nil)
	if err != nil {
		return reply{}, err
	}
	if wantsJSON(c.r.Header) {
		defer res.Body.Close()
		data, err := held.ReadMessage(c.r.Context(), res.Body, c.waiting, maxEncoded, encodedCost, held.BodyPatience)
		switch {
		case errors.Is(err, held.ErrNoRoom):
			return reply{}, fail(http.StatusTooManyRequests, codeQuota, "%s: try again, or ask for application/octet-stream", err)
		case err != nil && !errors.Is(err, held.ErrTooLarge):
			return reply{}, agentError(err)
		case err != nil:
			return reply{}, fail(http.StatusRequestEntityTooLarge, codeTooLarge, "the file is larger than %d MiB, which is the most as JSON: ask for application/octet-stream", maxEncoded>>20)
		}
		return ok(contentView{data, "base64"})
	}
	return reply{Stream: func(w http.ResponseWriter) {
		defer res.Body.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		if res.ContentLength >= 0 {
			w.Header().Set("Content-Length", strconv.FormatInt(res.ContentLength, 10))
		}
		w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return
		}
		if _, err := io.Copy(w, res.Body); err != nil {
			panic(http.ErrAbortHandler) // what was sent must not pass for the whole file
		}
	}}, nil
}

func writeFile(s *server, c *call) (reply, error) {
	q := c.r.URL.Query()
	name, err := pathOf(q)
	if err != nil {
		return reply{}, err
	}
	isDir, err := flag(q, "mkdir")
	if err != nil {
		return reply{}, err
	}
	recursive, err := flag(q, "recursive")
	if err != nil {
		return reply{}, err
	}
	if isDir {
		return makeDir(s, c, name, recursive)
	}
	if kind, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); kind == "multipart/form-data" {
		return reply{}, fail(http.StatusUnsupportedMediaType, codeInvalid, "the body is the file itself, as application/octet-stream, not %s", kind)
	}
	res, err := transfer(c.r.Context(), s.guest(c), http.MethodPost, name, c.r.Body)
	if err != nil {
		return reply{}, err
	}
	res.Body.Close()
	return done("written")
}

func makeDir(s *server, c *call, name string, recursive bool) (reply, error) {
	files := s.guest(c).Files()
	if !recursive {
		parent := path.Dir(strings.TrimRight(name, "/"))
		if _, err := files.Stat(c.r.Context(), connect.NewRequest(&filesystem.StatRequest{Path: parent})); err != nil {
			return reply{}, fileError(err, codeDirNotFound, codeNotDirectory)
		}
	}
	_, err := files.MakeDir(c.r.Context(), connect.NewRequest(&filesystem.MakeDirRequest{Path: name}))
	if recursive && connect.CodeOf(err) == connect.CodeAlreadyExists {
		err = nil
	}
	if err != nil {
		return reply{}, fileError(err, codeDirNotFound, codeNotDirectory)
	}
	return reply{Status: http.StatusCreated, Body: map[string]bool{"created": true}}, nil
}

func deleteFile(s *server, c *call) (reply, error) {
	name, err := pathOf(c.r.URL.Query())
	if err != nil {
		return reply{}, err
	}
	files := s.guest(c).Files()
	// The agent removes what is not there, too.
	if _, err := files.Stat(c.r.Context(), connect.NewRequest(&filesystem.StatRequest{Path: name})); err != nil {
		return reply{}, fileError(err, codeFileNotFound, codeNotFile)
	}
	if _, err := files.Remove(c.r.Context(), connect.NewRequest(&filesystem.RemoveRequest{Path: name})); err != nil {
		return reply{}, fileError(err, codeFileNotFound, codeNotFile)
	}
	return done("deleted")
}

func moveFile(s *server, c *call) (reply, error) {
	source, _ := said[string](c.words, "source")
	destination, _ := said[string](c.words, "destination")
	for name, text := range map[string]string{"source": source, "destination": destination} {
		if text == "" || strings.Contains(text, "\x00") {
			return reply{}, body.Invalid("%q is no path", name).With("field", name)
		}
	}
	if _, err := s.guest(c).Files().Move(c.r.Context(), connect.NewRequest(&filesystem.MoveRequest{Source: source, Destination: destination})); err != nil {
		return reply{}, fileError(err, codeFileNotFound, codeNotFile)
	}
	return done("moved")
}

func statFile(s *server, c *call) (reply, error) {
	name, err := pathOf(c.r.URL.Query())
	if err != nil {
		return reply{}, err
	}
	res, err := s.guest(c).Files().Stat(c.r.Context(), connect.NewRequest(&filesystem.StatRequest{Path: name}))
	if err != nil {
		return reply{}, fileError(err, codeFileNotFound, codeNotFile)
	}
	return ok(viewFile(res.Msg.GetEntry()))
}

func listFiles(s *server, c *call) (reply, error) {
	name, err := pathOf(c.r.URL.Query())
	if err != nil {
		return reply{}, err
	}
	holder := ration.Holder{Name: "key:" + c.key.ID, Most: maxKeyListings}
	if !s.listings.Take(1, holder) {
		return reply{}, fail(http.StatusTooManyRequests, codeQuota, "this API key lists %d directories at once, which is as many as it may: try again", maxKeyListings)
	}
	defer s.listings.Give(1, holder)
	res, err := s.guest(c).Files().ListDir(c.r.Context(), connect.NewRequest(&filesystem.ListDirRequest{Path: name, Depth: 1}))
	if err != nil {
		return reply{}, fileError(err, codeDirNotFound, codeNotDirectory)
	}
	list := make([]fileView, 0, len(res.Msg.GetEntries()))
	for _, e := range res.Msg.GetEntries() {
		list = append(list, viewFile(e))
	}
	return ok(map[string]any{"entries": list})
}
