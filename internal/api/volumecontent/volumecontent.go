// Package volumecontent serves the files of volumes, as E2B's clients ask for
// them: every request names a volume, proves itself by the token of that volume,
// and names a path in it. Errors have a code that is text, unlike the rest of
// E2B's API.
package volumecontent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/dialect"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/volume"
)

// Volumes is what the handler needs of those who keep volumes.
type Volumes interface {
	// Volume is an errdef.NotFound if there is none of that id.
	Volume(ctx context.Context, id string) (store.Volume, error)
	// VolumeTokenKey returns the id of the API key that was given a token for a
	// volume, be there such a key and volume or not; false for what is no token.
	VolumeTokenKey(id, token string) (key string, ok bool)
	// VolumeFiles opens a volume that there is.
	VolumeFiles(id string) (*volume.Files, error)
	// VolumeUpload reads for as long as the volume and the disk have room for what
	// is read, and for so many files; errdef.Exhausted where the volume has none.
	// It is closed when what was read has its place.
	VolumeUpload(ctx context.Context, id string, r io.Reader, files int) (io.ReadCloser, error)
	// VolumeChanged is to be called after files of a volume were changed.
	VolumeChanged(id string)
}

// Keys knows the API keys that there are.
type Keys interface {
	// Current returns the key of an id as it is now, or an errdef.Unauthorized.
	Current(id string) (store.Key, error)
	// Take counts a call of the key of an id, or returns an errdef.Exhausted.
	Take(id string) error
}

// Options are what a handler is made of.
type Options struct {
	Volumes Volumes
	Keys    Keys
	// Log receives failures of the server, not of clients.
	Log *slog.Logger
}

// Owns reports whether a request is for a handler of this package, by its path
// alone.
func Owns(r *http.Request) bool { return strings.HasPrefix(r.URL.EscapedPath(), "/volumecontent/") }

const volumeParam = "volumeID"

// route is one endpoint.
type route struct {
	method  string
	pattern string
	handle  func(*server, *call) (reply, error)
	reads   dialect.Reads
}

var routes = []route{
	{http.MethodGet, "/volumecontent/{volumeID}/path", (*server).stat, dialect.Nothing},
	{http.MethodPatch, "/volumecontent/{volumeID}/path", (*server).change, dialect.Reads{Body: changeBody, Must: true, Query: []string{"path"}}},
	{http.MethodDelete, "/volumecontent/{volumeID}/path", (*server).remove, dialect.Takes(nil, "path")},
	{http.MethodGet, "/volumecontent/{volumeID}/dir", (*server).list, dialect.Nothing},
	{http.MethodPost, "/volumecontent/{volumeID}/dir", (*server).makeDir, dialect.Takes(nil, "path", "uid", "gid", "mode", "force")},
	{http.MethodGet, "/volumecontent/{volumeID}/file", (*server).read, dialect.Nothing},
	{http.MethodPut, "/volumecontent/{volumeID}/file", (*server).write, dialect.Raw("path", "uid", "gid", "mode", "force")},
}

// Endpoints returns all routes. The key of each is the one that the token was given to.
func Endpoints() (list []httpapi.Endpoint) {
	for _, r := range routes {
		list = append(list, httpapi.Endpoint{Method: r.method, Pattern: r.pattern, Needs: auth.Share})
	}
	return list
}

type server struct {
	Options
	router httpapi.Router[route]
}

// New returns the handler of everything under /volumecontent.
func New(o Options) http.Handler {
	return &server{o, httpapi.NewRouter(routes, func(r *route) (method, pattern string) { return r.method, r.pattern })}
}

// call is a request that may use a volume.
type call struct {
	r     *http.Request
	id    string
	words map[string]body.Said
	files *volume.Files
	query query
}

// reply is the answer to a call that succeeded.
type reply = dialect.Reply

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dialect.Serve(w, r, func() (reply, error) { return s.dispatch(w, r) }, func(err error) httpapi.Response { return s.failed(r, err) })
}

func (s *server) dispatch(w http.ResponseWriter, r *http.Request) (reply, error) {
	unknown := errdef.New(errdef.NotFound, "unknown_path", "this path is not part of the API")
	found, params, err := dialect.Route(s.router, r.Method, r.URL.EscapedPath(), unknown)
	if err != nil {
		return reply{}, err
	}
	id := params[volumeParam]
	holder, ok := s.Volumes.VolumeTokenKey(id, auth.Bearer(r.Header))
	if !ok {
		return reply{}, errdef.New(errdef.Unauthorized, "volume_token_invalid", "this is not the token of the volume")
	}
	key, err := s.Keys.Current(holder)
	if err == nil {
		err = auth.Require(key, auth.Share)
	}
	if err == nil {
		err = s.Keys.Take(key.ID)
	}
	if err != nil {
		return reply{}, err
	}
	if _, err := s.Volumes.Volume(r.Context(), id); err != nil {
		return reply{}, err
	}
	words, _, err := found.reads.Read(w, r, holder)
	if err != nil {
		return reply{}, err
	}
	files, err := s.Volumes.VolumeFiles(id)
	if err != nil {
		return reply{}, err
	}
	defer files.Close()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		defer s.Volumes.VolumeChanged(id)
	}
	c := &call{r: r, id: id, words: words, files: files, query: query{values: r.URL.Query()}}
	rep, err := found.handle(s, c)
	rep.Holder = holder
	return rep, errors.Join(c.query.err, err)
}

// failure is an error as clients see it.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// failed makes the response to an error, and logs it if it is ours.
func (s *server) failed(r *http.Request, err error) httpapi.Response {
	_, ok := errors.AsType[*errdef.Error](err)
	if read, source := errors.AsType[*volume.ReadError](err); source && !ok {
		err = errdef.New(errdef.Invalid, "invalid_request", "the request body could not be read to its end: %v", read.Err)
	}
	e := dialect.Tell(r, s.Log, err)
	status := errdef.Status(e)
	if e.Class == errdef.Exhausted && e.Code != "too_many_answers" && e.Code != auth.CodeRate {
		status = http.StatusInsufficientStorage
	}
	res, err := httpapi.Encode(status, dialect.HeaderOf(e), failure{e.Code, e.Error()})
	if err != nil {
		panic("internal error: volumecontent: an error that cannot be encoded: " + err.Error())
	}
	return res
}

// statView is what is at a path.
type statView struct {
	Name   string            `json:"name"`
	Type   volume.Kind       `json:"type"`
	Path   string            `json:"path"`
	Size   int64             `json:"size"`
	Mode   uint32            `json:"mode"`
	UID    int               `json:"uid"`
	GID    int               `json:"gid"`
	Atime  httpapi.Timestamp `json:"atime"`
	Mtime  httpapi.Timestamp `json:"mtime"`
	Ctime  httpapi.Timestamp `json:"ctime"`
	Target string            `json:"target,omitempty"`
}

func view(e volume.Entry) statView {
	return statView{
		Name: e.Path[strings.LastIndexByte(e.Path, '/')+1:], Type: e.Kind, Path: e.Path, Size: e.Size, Mode: e.Mode, UID: e.UID, GID: e.GID,
		Atime: httpapi.Timestamp(e.Atime), Mtime: httpapi.Timestamp(e.Mtime), Ctime: httpapi.Timestamp(e.Ctime), Target: e.Target,
	}
}

func entry(status int, e volume.Entry, err error) (reply, error) {
	return reply{Status: status, Body: view(e)}, err
}

func (s *server) stat(c *call) (reply, error) {
	e, err := c.files.Stat(c.query.path())
	return entry(http.StatusOK, e, err)
}

func (s *server) change(c *call) (reply, error) {
	said := func(name string) *uint32 {
		n, _ := c.words[name].Value.(*uint32)
		return n
	}
	a, err := attributes(said("uid"), said("gid"), said("mode"))
	if err != nil {
		return reply{}, err
	}
	p := c.query.path()
	if c.query.err != nil {
		return reply{}, nil
	}
	e, err := c.files.Change(p, a)
	return entry(http.StatusOK, e, err)
}

func (s *server) remove(c *call) (reply, error) {
	return reply{Status: http.StatusNoContent}, c.files.Remove(c.query.path())
}

func (s *server) list(c *call) (reply, error) {
	p, depth := c.query.path(), c.query.depth()
	if c.query.err != nil {
		return reply{}, nil
	}
	entries, err := c.files.List(p, depth)
	views := make([]statView, len(entries))
	for i, e := range entries {
		views[i] = view(e)
	}
	return reply{Status: http.StatusOK, Body: views}, err
}

func (s *server) makeDir(c *call) (reply, error) {
	p, a, parents := c.query.path(), c.query.attributes(), c.query.parents()
	if c.query.err != nil {
		return reply{}, nil
	}
	room, err := s.upload(c, p, parents, http.NoBody)
	if err != nil {
		return reply{}, err
	}
	defer room.Close()
	e, err := c.files.Mkdir(p, a, parents)
	return entry(http.StatusCreated, e, err)
}

func (s *server) read(c *call) (reply, error) {
	file, e, err := c.files.Open(c.query.path())
	if err != nil {
		return reply{}, err
	}
	return reply{Stream: func(w http.ResponseWriter) {
		defer file.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(e.Size, 10))
		w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return
		}
		if _, err := io.CopyN(w, file, e.Size); err != nil {
			panic(http.ErrAbortHandler) // it has become shorter, or the client has gone
		}
	}}, nil
}

func (s *server) write(c *call) (reply, error) {
	p, a, parents := c.query.path(), c.query.attributes(), c.query.parents()
	if c.query.err != nil {
		return reply{}, nil
	}
	body, err := s.upload(c, p, parents, c.r.Body)
	if err != nil {
		return reply{}, err
	}
	defer body.Close()
	e, err := c.files.Write(p, body, a, parents)
	return entry(http.StatusCreated, e, err)
}

// upload returns what reads a body for something at a path.
func (s *server) upload(c *call, p string, parents volume.Parents, body io.Reader) (io.ReadCloser, error) {
	files := 1
	if parents == volume.MakeParents {
		files += strings.Count(strings.Trim(p, "/"), "/")
	}
	return s.Volumes.VolumeUpload(c.r.Context(), c.id, body, files)
}
