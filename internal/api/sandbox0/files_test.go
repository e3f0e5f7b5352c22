package sandbox0

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/ration"
)

// files is an agent's service for the files of this machine, below a directory of
// the test.
type files struct {
	filesystemconnect.UnimplementedFilesystemHandler
}

func rpc(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, fs.ErrExist):
		code = connect.CodeAlreadyExists
	case errors.Is(err, fs.ErrPermission):
		code = connect.CodePermissionDenied
	}
	return connect.NewError(code, err)
}

func describe(path string) (*filesystem.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, rpc(err)
	}
	e := &filesystem.EntryInfo{Name: filepath.Base(path), Path: path, Size: info.Size(), Mode: uint32(info.Mode().Perm()), ModifiedTime: timestamppb.New(info.ModTime()), Type: filesystem.FileType_FILE_TYPE_FILE}
	if info.IsDir() {
		e.Type = filesystem.FileType_FILE_TYPE_DIRECTORY
	}
	if to, err := os.Readlink(path); err == nil {
		e.SymlinkTarget = &to
	}
	return e, nil
}

func (files) Stat(_ context.Context, r *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	e, err := describe(r.Msg.GetPath())
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), err
}

func (files) MakeDir(_ context.Context, r *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	if _, err := os.Stat(r.Msg.GetPath()); err == nil {
		return nil, connect.NewError(connect.CodeAlreadyExists, errors.New("it exists"))
	}
	if err := os.MkdirAll(r.Msg.GetPath(), 0o755); err != nil {
		return nil, rpc(err)
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{}), nil
}

func (files) Move(_ context.Context, r *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	if err := os.Rename(r.Msg.GetSource(), r.Msg.GetDestination()); err != nil {
		return nil, rpc(err)
	}
	return connect.NewResponse(&filesystem.MoveResponse{}), nil
}

func (files) Remove(_ context.Context, r *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	if err := os.RemoveAll(r.Msg.GetPath()); err != nil {
		return nil, rpc(err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}

func (files) ListDir(_ context.Context, r *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	if info, err := os.Stat(r.Msg.GetPath()); err == nil && !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("it is not a directory"))
	}
	list, err := os.ReadDir(r.Msg.GetPath())
	if err != nil {
		return nil, rpc(err)
	}
	res := &filesystem.ListDirResponse{}
	for _, one := range list {
		e, err := describe(filepath.Join(r.Msg.GetPath(), one.Name()))
		if err != nil {
			return nil, err
		}
		res.Entries = append(res.Entries, e)
	}
	return connect.NewResponse(res), nil
}

// WatchDir tells of one change at once.
func (files) WatchDir(ctx context.Context, r *connect.Request[filesystem.WatchDirRequest], out *connect.ServerStream[filesystem.WatchDirResponse]) error {
	if _, err := os.Stat(r.Msg.GetPath()); err != nil {
		return rpc(err)
	}
	_ = out.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}})
	_ = out.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}})
	_ = out.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: &filesystem.FilesystemEvent{Name: "sub/x", Type: filesystem.EventType_EVENT_TYPE_REMOVE}}})
	<-ctx.Done()
	return ctx.Err()
}

func (files) transfer(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	info, err := os.Stat(path)
	refuse := func(status int) {
		w.WriteHeader(status)
		io.WriteString(w, `{"code":0,"message":"of the agent"}`)
	}
	if r.Method == http.MethodPost {
		data, _ := io.ReadAll(r.Body)
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		if os.WriteFile(path, data, 0o640) != nil {
			refuse(http.StatusBadRequest)
		}
		return
	}
	switch {
	case err != nil:
		refuse(http.StatusNotFound)
	case info.IsDir():
		refuse(http.StatusBadRequest)
	default:
		http.ServeFile(w, r, path)
	}
}

// at returns the URL of a sandbox's file.
func at(id, verb, path string, more ...string) string {
	return all + "/" + id + "/files" + verb + "?" + url.Values{"path": {path}}.Encode() + strings.Join(more, "")
}

func TestFiles(t *testing.T) {
	w := newWorld(t)
	id, dir := w.claim(""), t.TempDir()
	name := filepath.Join(dir, "a b", "ü&=?.txt")
	content := "\x00\xffcontent\n"
	data(w.Do("POST", at(id, "", name), content), 200)
	a := w.Do("GET", at(id, "", name), "")
	if a.Status != 200 || a.Body != content || a.Header.Get("Content-Type") != "application/octet-stream" || a.Header.Get("Content-Length") != "10" {
		t.Errorf("read %d %q %v", a.Status, a.Body, a.Header)
	}
	for _, header := range []string{"Accept", "Content-Type"} {
		r := httptest.NewRequest("GET", at(id, "", name), nil)
		r.Header.Set("X-API-Key", goodKey)
		r.Header.Set(header, "application/json; charset=utf-8")
		if v := data(w.Send(r), 200); v["content"] != base64.StdEncoding.EncodeToString([]byte(content)) || v["encoding"] != "base64" {
			t.Errorf("as JSON: %v", v)
		}
	}
	if err := os.Symlink(name, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if v := data(w.Do("GET", at(id, "/stat", name), ""), 200); v["type"] != "file" || v["size"] != 10. || v["mode"] != "0640" || v["path"] != name || v["is_link"] != false {
		t.Errorf("stat: %v", v)
	}
	if v := data(w.Do("GET", at(id, "/stat", filepath.Join(dir, "link")), ""), 200); v["type"] != "symlink" || v["link_target"] != name {
		t.Errorf("stat of a link: %v", v)
	}
	if v := data(w.Do("GET", at(id, "/list", dir), ""), 200)["entries"].([]any); len(v) != 2 || v[0].(map[string]any)["type"] != "dir" {
		t.Errorf("list: %v", v)
	}
	data(w.Do("POST", at(id, "", dir+"/new", "&mkdir=true"), ""), 201)
	fails(w.Do("POST", at(id, "", dir+"/new", "&mkdir=true"), ""), http.StatusConflict, "path_exists")
	data(w.Do("POST", at(id, "", dir+"/new", "&mkdir=true&recursive=true"), ""), 201)
	fails(w.Do("POST", at(id, "", dir+"/x/y", "&mkdir=true"), ""), http.StatusNotFound, "directory_not_found")
	data(w.Do("POST", at(id, "", dir+"/x/y", "&mkdir=true&recursive=true"), ""), 201)
	data(w.Do("POST", all+"/"+id+"/files/move", `{"source":"`+dir+`/x","destination":"`+dir+`/z"}`), 200)
	fails(w.Do("POST", all+"/"+id+"/files/move", `{"source":"`+dir+`/x","destination":"`+dir+`/z"}`), http.StatusNotFound, "file_not_found")
	data(w.Do("DELETE", at(id, "", dir+"/z"), ""), 200)
	fails(w.Do("DELETE", at(id, "", dir+"/z"), ""), http.StatusNotFound, "file_not_found")
	fails(w.Do("GET", at(id, "", dir), ""), http.StatusConflict, "path_not_file")
	fails(w.Do("GET", at(id, "", dir+"/z"), ""), http.StatusNotFound, "file_not_found", "of the agent")
	fails(w.Do("GET", at(id, "/stat", dir+"/z"), ""), http.StatusNotFound, "file_not_found")
	fails(w.Do("GET", at(id, "/list", dir+"/z"), ""), http.StatusNotFound, "directory_not_found")
	fails(w.Do("GET", at(id, "/list", name), ""), http.StatusConflict, "path_not_directory")
	if !w.drained() {
		t.Error("a lease is open")
	}
}

// TestLargeFiles go through as they are; as JSON they are refused past a size.
func TestLargeFiles(t *testing.T) {
	w := newWorld(t)
	id, name := w.claim(""), filepath.Join(t.TempDir(), "large")
	large := bytes.Repeat([]byte("0123456789abcdef"), maxEncoded/16+1)
	r := httptest.NewRequest("POST", at(id, "", name), bytes.NewReader(large))
	r.Header.Set("X-API-Key", goodKey)
	data(w.Send(r), 200)
	if a := w.Do("GET", at(id, "", name), ""); a.Body != string(large) {
		t.Errorf("read %d of %d bytes", len(a.Body), len(large))
	}
	r = httptest.NewRequest("GET", at(id, "", name), nil)
	r.Header.Set("X-API-Key", goodKey)
	r.Header.Set("Accept", "application/json")
	fails(w.Send(r), http.StatusRequestEntityTooLarge, "file_too_large")
	if !w.drained() {
		t.Error("a lease is open")
	}
}

// TestListingsAreBounded: what a sandbox answers may be large on purpose.
func TestListingsAreBounded(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	s := w.HTTP.(*server)
	holder := ration.Holder{Name: "key:" + apitest.KeyID, Most: maxKeyListings}
	if !s.listings.Take(maxKeyListings, holder) {
		t.Fatal("a listing is counted before there is one")
	}
	fails(w.Do("GET", at(id, "/list", t.TempDir()), ""), http.StatusTooManyRequests, "quota_exceeded")
	s.listings.Give(maxKeyListings, holder)
	data(w.Do("GET", at(id, "/list", t.TempDir()), ""), 200)
	if left := s.listings.Taken(); left != 0 {
		t.Errorf("%d listings are counted though none is under way", left)
	}
}

func TestFilesRefuse(t *testing.T) {
	w := newWorld(t)
	id := w.claim("")
	for _, query := range []string{"", "?path=", "?path=/a&path=/b", "?path=/a%00b"} {
		for _, verb := range []string{"GET ", "POST ", "DELETE ", "GET /stat", "GET /list"} {
			method, rest, _ := strings.Cut(verb, " ")
			fails(w.Do(method, all+"/"+id+"/files"+rest+query, ""), http.StatusBadRequest, "bad_request", "path")
		}
	}
	fails(w.Do("POST", at(id, "", "/a", "&mkdir=perhaps"), ""), http.StatusBadRequest, "bad_request", "mkdir")
	fails(w.Do("POST", all+"/"+id+"/files/move", `{"source":"","destination":"/b"}`), http.StatusBadRequest, "bad_request", "source")
	fails(w.Do("POST", all+"/"+id+"/files/move", `{"source":"/b"}`), http.StatusBadRequest, "bad_request", "destination")
	r := httptest.NewRequest("POST", at(id, "", "/nowhere/x"), strings.NewReader("--x\r\n"))
	r.Header.Set("X-API-Key", goodKey)
	r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	fails(w.Send(r), http.StatusUnsupportedMediaType, "invalid_request", "multipart/form-data")
	fails(w.Do("GET", all+"/"+id+"/files/watch", ""), http.StatusUpgradeRequired, "invalid_request")
	var a apitest.Answer = w.Do("GET", all+"/"+id+"/files/../../x/files?path=/a", "")
	if a.Status == 200 {
		t.Errorf("dots: %s", a.Body)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	id, dir := w.claim(""), t.TempDir()
	c := w.dial(all + "/" + id + "/files/watch")
	for _, bad := range []string{`{`, `{"action":"dance"}`, `{"action":"subscribe"}`, `{"action":"subscribe","path":"` + dir + `/none"}`, `{"action":"unsubscribe","watch_id":"x"}`} {
		say(t, c, bad)
		if m, _ := hear(t, c, "error"); m["error"] == "" {
			t.Errorf("%s: %v", bad, m)
		}
	}
	say(t, c, `{"action":"subscribe","path":"`+dir+`","recursive":true}`)
	m, _ := hear(t, c, "subscribed")
	watch := m["watch_id"].(string)
	if m["path"] != dir || watch == "" {
		t.Errorf("subscribed: %v", m)
	}
	if m, _ := hear(t, c, "event"); m["event"] != "remove" || m["path"] != dir+"/sub/x" || m["watch_id"] != watch {
		t.Errorf("event: %v", m)
	}
	say(t, c, `{"action":"unsubscribe","watch_id":"`+watch+`"}`)
	hear(t, c, "unsubscribed")
	for range maxWatches {
		say(t, c, `{"action":"subscribe","path":"`+dir+`"}`)
		hear(t, c, "subscribed")
	}
	say(t, c, `{"action":"subscribe","path":"`+dir+`"}`)
	hear(t, c, "error")
	c.CloseNow()
	if !w.drained() {
		t.Error("a lease is open though the client has gone")
	}
}
