package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func (s *server) stat(path string) *fspb.EntryInfo {
	s.t.Helper()
	res, err := s.files.Stat(testContext(s.t), connect.NewRequest(&fspb.StatRequest{Path: path}))
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Msg.GetEntry()
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestStat(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/dir", userUID)
	file := writeFile(t, s.home+"/dir/file", "12345")
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	symlink(t, "dir", s.home+"/to-dir")
	symlink(t, "to-dir/file", s.home+"/to-file")
	symlink(t, "none", s.home+"/dangling")
	mustFIFO(t, s.home+"/fifo")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path string
		want *fspb.EntryInfo
	}{
		{"dir/file", &fspb.EntryInfo{Name: "file", Path: file, Type: fspb.FileType_FILE_TYPE_FILE, Size: 5, Mode: 0o640, Permissions: "-rw-r-----", Owner: "root", Group: "root"}},
		{s.home + "/dir", &fspb.EntryInfo{Name: "dir", Path: s.home + "/dir", Type: fspb.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Permissions: "drwxr-xr-x", Owner: "user", Group: "users"}},
		{"to-dir", &fspb.EntryInfo{Name: "to-dir", Path: s.home + "/to-dir", Type: fspb.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Permissions: "Lrwxrwxrwx", Owner: "root", Group: "root", SymlinkTarget: proto.String(s.home + "/dir")}},
		{"to-file", &fspb.EntryInfo{Name: "to-file", Path: s.home + "/to-file", Type: fspb.FileType_FILE_TYPE_FILE, Mode: 0o640, Permissions: "Lrwxrwxrwx", Owner: "root", Group: "root", SymlinkTarget: &file}},
		{"dangling", &fspb.EntryInfo{Name: "dangling", Path: s.home + "/dangling", Type: fspb.FileType_FILE_TYPE_SYMLINK, Mode: 0o777, Permissions: "Lrwxrwxrwx", Owner: "root", Group: "root", SymlinkTarget: proto.String(s.home + "/none")}},
		{"fifo", &fspb.EntryInfo{Name: "fifo", Path: s.home + "/fifo", Type: fspb.FileType_FILE_TYPE_UNSPECIFIED, Mode: 0o666, Permissions: "prw-rw-rw-", Owner: "root", Group: "root"}},
		{"", &fspb.EntryInfo{Name: "home", Path: s.home, Type: fspb.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Permissions: "drwxr-xr-x", Owner: "user", Group: "users"}},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			got := s.stat(tt.path)
			if tt.path == "dir/file" && !got.ModifiedTime.AsTime().Equal(info.ModTime()) {
				t.Errorf("modified %v, want %v", got.ModifiedTime.AsTime(), info.ModTime())
			}
			if got.Size <= 0 && got.Type != fspb.FileType_FILE_TYPE_UNSPECIFIED {
				t.Errorf("size %d", got.Size)
			}
			got.ModifiedTime = nil
			if tt.want.Size == 0 {
				got.Size = 0
			}
			if !proto.Equal(got, tt.want) {
				t.Errorf("got  %v\nwant %v", got, tt.want)
			}
		})
	}
	for path, want := range map[string]connect.Code{"none": connect.CodeNotFound, "dir/file/x": connect.CodeNotFound, "~x": connect.CodeInvalidArgument} {
		_, err := s.files.Stat(testContext(t), connect.NewRequest(&fspb.StatRequest{Path: path}))
		wantCode(t, err, want)
	}
	_, err = s.files.Stat(testContext(t), basic("mallory", &fspb.StatRequest{Path: "/"}))
	wantCode(t, err, connect.CodeUnauthenticated)
}

// The JSON an SDK reads: 64-bit numbers as strings, times as text, no empty
// metadata.
func TestStatJSON(t *testing.T) {
	s := newServer(t)
	path := writeFile(t, s.home+"/f", "123")
	if err := os.Chtimes(path, time.Time{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	res, body := s.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(`{"path":"f","future":true}`), map[string]string{"Content-Type": "application/json"})
	if res.StatusCode != 200 {
		t.Fatalf("got %d %s", res.StatusCode, body)
	}
	sameJSON(t, body, `{"entry":{"name":"f","type":"FILE_TYPE_FILE","path":"`+path+`","size":"3","mode":420,"permissions":"-rw-r--r--","owner":"root","group":"root","modifiedTime":"2026-01-02T03:04:05Z"}}`)
	res, body = s.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(`{"path":"none"}`), map[string]string{"Content-Type": "application/json"})
	if res.StatusCode != 404 || !strings.Contains(body, `"code":"not_found"`) {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
}

func (s *server) list(path string, depth uint32) ([]string, error) {
	res, err := s.files.ListDir(testContext(s.t), connect.NewRequest(&fspb.ListDirRequest{Path: path, Depth: depth}))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range res.Msg.Entries {
		paths = append(paths, e.Path)
	}
	return paths, nil
}

func TestListDir(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/d/b/deep", userUID)
	mkdir(t, s.home+"/empty", userUID)
	writeFile(t, s.home+"/d/a", "")
	writeFile(t, s.home+"/d/b/x", "")
	writeFile(t, s.home+"/d/c", "")
	symlink(t, "d", s.home+"/link")
	symlink(t, "../d", s.home+"/d/z-loop-back")
	symlink(t, "loop", s.home+"/loop")
	tests := []struct {
		name, path string
		depth      uint32
		want       []string
		code       connect.Code
	}{
		{"one level", "d", 1, []string{"d/a", "d/b", "d/c", "d/z-loop-back"}, 0},
		{"zero is one", "d", 0, []string{"d/a", "d/b", "d/c", "d/z-loop-back"}, 0},
		{"two levels", "d", 2, []string{"d/a", "d/b", "d/b/deep", "d/b/x", "d/c", "d/z-loop-back"}, 0},
		{"all levels", "d", 100, []string{"d/a", "d/b", "d/b/deep", "d/b/x", "d/c", "d/z-loop-back"}, 0},
		{"through a link", "link", 1, []string{"link/a", "link/b", "link/c", "link/z-loop-back"}, 0},
		{"empty", "empty", 1, nil, 0},
		{"missing", "none", 1, nil, connect.CodeNotFound},
		{"file", "d/a", 1, nil, connect.CodeInvalidArgument},
		{"loop", "loop", 1, nil, connect.CodeFailedPrecondition},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := s.list(tt.path, tt.depth)
			wantCode(t, err, tt.code)
			var want []string
			for _, p := range tt.want {
				want = append(want, filepath.Join(s.home, p))
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// Files that come and go meanwhile do not fail a listing.
func TestListDirRaces(t *testing.T) {
	s := newServer(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			dir := fmt.Sprintf("%s/dir%d", s.home, i%8)
			_ = os.Mkdir(dir, 0o755)
			_ = os.WriteFile(dir+"/f", nil, 0o644)
			_ = os.RemoveAll(dir)
		}
	})
	for range 200 {
		if _, err := s.list("", 3); err != nil {
			t.Errorf("ListDir: %v", err)
			break
		}
	}
	close(stop)
	wg.Wait()
}

func TestMakeDir(t *testing.T) {
	s := newServer(t)
	writeFile(t, s.home+"/file", "")
	symlink(t, ".", s.home+"/link")
	tests := []struct {
		name, path string
		want       connect.Code
	}{
		{"with parents", "a/b/c", 0},
		{"again", "a/b/c", connect.CodeAlreadyExists},
		{"home", "", connect.CodeAlreadyExists},
		{"trailing slash", "a/d/", 0},
		{"link to a directory", "link", connect.CodeAlreadyExists},
		{"file", "file", connect.CodeInvalidArgument},
		{"below a file", "file/x/y", connect.CodeInvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := s.files.MakeDir(testContext(t), connect.NewRequest(&fspb.MakeDirRequest{Path: tt.path}))
			wantCode(t, err, tt.want)
			if err == nil && (res.Msg.Entry.Type != fspb.FileType_FILE_TYPE_DIRECTORY || res.Msg.Entry.Owner != "user") {
				t.Errorf("entry %v", res.Msg.Entry)
			}
		})
	}
	wantOwner(t, s.home+"/a", userUID, 0o755)
	wantOwner(t, s.home+"/a/b/c", userUID, 0o755)
}

func (s *server) move(from, to string) (*fspb.EntryInfo, error) {
	res, err := s.files.Move(testContext(s.t), connect.NewRequest(&fspb.MoveRequest{Source: from, Destination: to}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Entry, nil
}

func TestMove(t *testing.T) {
	s := newServer(t)
	path := writeFile(t, s.home+"/f", "content")
	if err := unix.Setxattr(path, "user.e2b.k", []byte("v"), 0); err != nil {
		t.Fatal(err)
	}
	mkdir(t, s.home+"/dir/sub", userUID)
	mkdir(t, s.home+"/other", userUID)
	writeFile(t, s.home+"/g", "")
	entry, err := s.move("f", "new/parent/f2")
	wantCode(t, err, 0)
	if entry.Name != "f2" || entry.Path != s.home+"/new/parent/f2" || entry.Metadata["k"] != "v" || readFile(t, entry.Path) != "content" {
		t.Errorf("entry %v", entry)
	}
	wantOwner(t, s.home+"/new", userUID, 0o755)
	if _, err := s.move("new/parent/f2", "g"); err != nil || readFile(t, s.home+"/g") != "content" {
		t.Errorf("over a file: %v", err)
	}
	tests := []struct {
		name, from, to string
		want           connect.Code
	}{
		{"missing", "none", "x", connect.CodeNotFound},
		{"directory over directory", "dir", "other", connect.CodeAlreadyExists},
		{"directory over file", "dir", "g", connect.CodeInvalidArgument},
		{"into itself", "dir", "dir/sub/x", connect.CodeInvalidArgument},
		{"below a file", "dir", "g/x", connect.CodeInvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.move(tt.from, tt.to)
			wantCode(t, err, tt.want)
		})
	}
}

func TestMoveAcrossMounts(t *testing.T) {
	s := newServer(t)
	other := filepath.Join(s.dir, "other")
	tmpfs(t, other, "4m")
	mkdir(t, s.home+"/d/sub", userUID)
	file := writeFile(t, s.home+"/d/sub/f", "content")
	if err := os.Chmod(file, 0o4751); err != nil {
		t.Fatal(err)
	}
	stamp := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := os.Chtimes(file, stamp, stamp); err != nil {
		t.Fatal(err)
	}
	symlink(t, "sub/f", s.home+"/d/link")
	mustFIFO(t, s.home+"/d/fifo")
	if _, err := s.move("d", other+"/moved"); err != nil {
		t.Fatal(err)
	}
	got := s.stat(other + "/moved/sub/f")
	if readFile(t, got.Path) != "content" || got.Mode != 0o751 || got.Owner != "root" || !got.ModifiedTime.AsTime().Equal(stamp) {
		t.Errorf("entry %v", got)
	}
	wantOwner(t, other+"/moved/sub", userUID, 0o755)
	if target, err := os.Readlink(other + "/moved/link"); err != nil || target != "sub/f" {
		t.Errorf("link %q, %v", target, err)
	}
	if _, err := os.Lstat(s.home + "/d"); !os.IsNotExist(err) {
		t.Errorf("the source: %v", err)
	}
	left, err := s.list(other, 1)
	if err != nil || len(left) != 1 {
		t.Errorf("left beside it: %v, %v", left, err)
	}

	big := writeFile(t, s.home+"/big", strings.Repeat("x", 8<<20))
	if _, err := s.move("big", other+"/big"); err == nil {
		t.Error("8 MiB went into a file system of 4")
	}
	if len(readFile(t, big)) != 8<<20 {
		t.Error("the source of a failed move is damaged")
	}
	if left, err = s.list(other, 1); err != nil || len(left) != 1 {
		t.Errorf("left beside it: %v, %v", left, err)
	}
}

func TestRemove(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/d/sub", userUID)
	writeFile(t, s.home+"/d/sub/f", "")
	writeFile(t, s.home+"/kept", "")
	symlink(t, "kept", s.home+"/link")
	for path, want := range map[string]connect.Code{"d": 0, "none": 0, "none/below": 0, "link": 0, "/": connect.CodeInvalidArgument, "/..": connect.CodeInvalidArgument} {
		t.Run(path, func(t *testing.T) {
			_, err := s.files.Remove(testContext(t), connect.NewRequest(&fspb.RemoveRequest{Path: path}))
			wantCode(t, err, want)
		})
	}
	if left, err := s.list("", 1); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A name that is not UTF-8 is meant by what a listing says in its place.
func TestNamesThatAreNotUTF8(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/d\xff", userUID)
	writeFile(t, s.home+"/d\xff/a\xfe\xfdb", "content")
	writeFile(t, s.home+"/d\xff/twin\xff", "")
	writeFile(t, s.home+"/d\xff/twin\xfe", "")
	writeFile(t, s.home+"/d\xff/plain\uFFFD", "plain")
	writeFile(t, s.home+"/d\xff/plain\xff", "")
	entries, err := s.list("", 2)
	if err != nil || len(entries) != 6 {
		t.Fatalf("listed %v, %v", entries, err)
	}
	told := entries[1]
	if told != s.home+"/d\uFFFD/a\uFFFDb" {
		t.Fatalf("told %q", told)
	}
	if _, text := s.download(told, nil); text != "content" {
		t.Errorf("downloaded %q", text)
	}
	if res, text := s.upload(query("path", told), strings.NewReader("new"), octets); res.StatusCode != 200 || readFile(t, s.home+"/d\xff/a\xfe\xfdb") != "new" {
		t.Errorf("uploaded: %d %s", res.StatusCode, text)
	}
	if e := s.stat(told); e.GetSize() != 3 {
		t.Errorf("stat: %v", e)
	}
	remove := func(path string) error {
		_, err := s.files.Remove(testContext(t), connect.NewRequest(&fspb.RemoveRequest{Path: path}))
		return err
	}
	wantCode(t, remove(s.home+"/d\uFFFD/twin\uFFFD"), connect.CodeInvalidArgument)
	wantCode(t, remove(s.home+"/d\uFFFD/plain\uFFFD"), 0)
	wantCode(t, remove(told), 0)
	if left := testmode.Names(t, s.home+"/d\xff"); !slices.Equal(left, []string{"plain\xff", "twin\xfe", "twin\xff"}) {
		t.Errorf("left: %q", left)
	}
	wantCode(t, remove("d\uFFFD"), 0)
	if left, err := s.list("", 1); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
