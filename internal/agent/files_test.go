package agent

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/testmode"
)

func query(pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return "?" + q.Encode()
}

func (s *server) download(path string, headers map[string]string) (*http.Response, string) {
	s.t.Helper()
	if headers["Accept-Encoding"] == "" {
		headers = copyWith(headers, "Accept-Encoding", "identity")
	}
	return s.do("GET", "/files"+query("path", path), nil, headers)
}

func copyWith(m map[string]string, k, v string) map[string]string {
	c := map[string]string{k: v}
	for k, v := range m {
		c[k] = v
	}
	return c
}

func gunzip(t *testing.T, text string) string {
	t.Helper()
	zr, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func gzipped(text string) *bytes.Buffer {
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	_, _ = zw.Write([]byte(text))
	_ = zw.Close()
	return &b
}

// wantMessage checks the JSON body that every REST error has.
func wantMessage(t *testing.T, res *http.Response, body string, status int) {
	t.Helper()
	var e struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || res.StatusCode != status || e.Code != status || e.Message == "" {
		t.Errorf("got %d %s, want %d with the same code and a message", res.StatusCode, body, status)
	}
}

func TestDownload(t *testing.T) {
	s := newServer(t)
	small := "hello, world\n"
	large := strings.Repeat("0123456789", 100_000)
	writeFile(t, filepath.Join(s.home, "small.txt"), small)
	writeFile(t, filepath.Join(s.home, "large.bin"), large)
	for path, content := range map[string]string{"small.txt": small, "large.bin": large} {
		t.Run(path, func(t *testing.T) {
			res, body := s.download(path, nil)
			if res.StatusCode != 200 || body != content || res.ContentLength != int64(len(content)) {
				t.Errorf("identity: %d, %d bytes, length %d", res.StatusCode, len(body), res.ContentLength)
			}
			if got := res.Header.Get("Content-Disposition"); got != "inline; filename="+path {
				t.Errorf("disposition %q", got)
			}
			res, body = s.download(path, map[string]string{"Accept-Encoding": "gzip, deflate, br"})
			if res.Header.Get("Content-Encoding") != "gzip" || !strings.Contains(strings.Join(res.Header.Values("Vary"), ","), "Accept-Encoding") || gunzip(t, body) != content {
				t.Errorf("gzip: headers %v, %d bytes", res.Header, len(body))
			}
			res, body = s.download(path, map[string]string{"Range": "bytes=2-5", "Accept-Encoding": "gzip"})
			if res.StatusCode != 206 || body != content[2:6] || res.Header.Get("Content-Encoding") != "" {
				t.Errorf("range: %d %q %v", res.StatusCode, body, res.Header)
			}
			res, _ = s.download(path, map[string]string{"If-Modified-Since": time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), "Accept-Encoding": "gzip"})
			if res.StatusCode != 304 {
				t.Errorf("conditional: %d", res.StatusCode)
			}
			res, body = s.do("HEAD", "/files"+query("path", path), nil, map[string]string{"Accept-Encoding": "gzip"})
			if res.StatusCode != 200 || body != "" {
				t.Errorf("HEAD: %d %q", res.StatusCode, body)
			}
		})
	}
	res, _ := s.download("small.txt", nil)
	if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("type %q", got)
	}
}

// What stat says of the size is not believed.
func TestDownloadReadsUntilEOF(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/proc/sys/kernel/random/boot_id", "/proc/cpuinfo", "/proc/kallsyms", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		t.Run(path, func(t *testing.T) {
			want := readFile(t, path)
			for _, encoding := range []string{"identity", "gzip"} {
				res, body := s.download(path, map[string]string{"Accept-Encoding": encoding})
				if encoding == "gzip" {
					body = gunzip(t, body)
				}
				// Frequencies change between two readings.
				if res.StatusCode != 200 || len(body) == 0 || path != "/proc/cpuinfo" && body != want {
					t.Errorf("%s: %d, %d bytes, want %d", encoding, res.StatusCode, len(body), len(want))
				}
			}
		})
	}
}

func TestDownloadEmpty(t *testing.T) {
	s := newServer(t)
	writeFile(t, filepath.Join(s.home, "empty"), "")
	res, body := s.download("empty", map[string]string{"Accept-Encoding": "gzip"})
	if res.StatusCode != 200 || body != "" || res.Header.Get("Content-Length") != "0" || res.Header.Get("Content-Encoding") != "" {
		t.Errorf("got %d %q %v", res.StatusCode, body, res.Header)
	}
}

func TestDownloadRefused(t *testing.T) {
	s := newServer(t)
	writeFile(t, filepath.Join(s.home, "file"), "x")
	mustFIFO(t, filepath.Join(s.home, "fifo"))
	if err := os.Symlink("loop", filepath.Join(s.home, "loop")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, target string
		accept       string
		want         int
	}{
		{"missing", query("path", "none"), "", 404},
		{"below a file", query("path", "file/x"), "", 404},
		{"directory", query("path", ""), "", 400},
		{"no path", "", "", 400},
		{"fifo", query("path", "fifo"), "", 400},
		{"device", query("path", "/dev/zero"), "", 400},
		{"loop", query("path", "loop"), "", 400},
		{"other's home", query("path", "~root/x"), "", 400},
		{"NUL", "?path=a%00b", "", 400},
		{"too long", query("path", strings.Repeat("x", 300)), "", 400},
		{"bad query", "?path=%zz", "", 400},
		{"unknown user", query("path", "file", "username", "mallory"), "", 401},
		{"no encoding", query("path", "file"), "br, identity;q=0", 406},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.do("GET", "/files"+tt.target, nil, map[string]string{"Accept-Encoding": tt.accept})
			wantMessage(t, res, body, tt.want)
		})
	}
}

func TestPathOfUser(t *testing.T) {
	s := newServer(t)
	writeFile(t, filepath.Join(s.rootHome, "f"), "root's")
	writeFile(t, filepath.Join(s.home, "f"), "user's")
	for user, want := range map[string]string{"": "user's", "user": "user's", "root": "root's"} {
		if _, body := s.do("GET", "/files"+query("path", "~/f", "username", user), nil, nil); body != want {
			t.Errorf("%q got %q", user, body)
		}
	}
}

// form is a multipart body of parts given as disposition and content.
func form(parts ...string) (io.Reader, map[string]string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		p, _ := w.CreatePart(map[string][]string{"Content-Disposition": {parts[i]}})
		_, _ = io.WriteString(p, parts[i+1])
	}
	_ = w.Close()
	return &b, map[string]string{"Content-Type": w.FormDataContentType()}
}

func (s *server) upload(target string, body io.Reader, headers map[string]string) (*http.Response, string) {
	s.t.Helper()
	return s.do("POST", "/files"+target, body, headers)
}

var octets = map[string]string{"Content-Type": "application/octet-stream"}

func TestUploadForm(t *testing.T) {
	s := newServer(t)
	body, h := form(
		`form-data; name="file"; filename="sub/dir/a.txt"`, "A",
		`form-data; name="other"; filename="ignored"`, "ignored",
		`form-data; name="file"; filename="`+s.dir+`/home/ünï ;cödé.txt"`, "B",
		`form-data; name="file"; filename="~/q\"uote"`, "C",
	)
	res, text := s.upload("", body, h)
	if res.StatusCode != 200 {
		t.Fatalf("got %d %s", res.StatusCode, text)
	}
	sameJSON(t, text, fmt.Sprintf(`[{"name":"a.txt","path":"%[1]s/sub/dir/a.txt","type":"file"},
		{"name":"ünï ;cödé.txt","path":"%[1]s/ünï ;cödé.txt","type":"file"},
		{"name":"q\"uote","path":"%[1]s/q\"uote","type":"file"}]`, s.home))
	for path, want := range map[string]string{"sub/dir/a.txt": "A", "ünï ;cödé.txt": "B", `q"uote`: "C"} {
		if got := readFile(t, filepath.Join(s.home, path)); got != want {
			t.Errorf("%s = %q", path, got)
		}
	}
	wantOwner(t, filepath.Join(s.home, "sub"), userUID, 0o755)
	wantOwner(t, filepath.Join(s.home, "sub/dir"), userUID, 0o755)
	wantOwner(t, filepath.Join(s.home, "sub/dir/a.txt"), userUID, 0o644)
}

func wantOwner(t *testing.T, path string, uid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if st.Uid != uid || st.Gid != uid || info.Mode().Perm() != mode {
		t.Errorf("%s: owner %d:%d, mode %o; want %d, %o", path, st.Uid, st.Gid, info.Mode().Perm(), uid, mode)
	}
}

func TestUploadFormWithPath(t *testing.T) {
	s := newServer(t)
	for name, disposition := range map[string]string{"field": `form-data; name="file"`, "filename": `form-data; name="file"; filename="/other"`} {
		t.Run(name, func(t *testing.T) {
			body, h := form(disposition, name)
			res, text := s.upload(query("path", "target", "username", "root"), body, h)
			if res.StatusCode != 200 || readFile(t, filepath.Join(s.rootHome, "target")) != name {
				t.Errorf("got %d %s", res.StatusCode, text)
			}
		})
	}
}

func TestUploadRaw(t *testing.T) {
	s := newServer(t)
	content := strings.Repeat("raw bytes ", 200_000)
	tests := []struct {
		name    string
		body    io.Reader
		headers map[string]string
		want    string
	}{
		{"plain", strings.NewReader(content), octets, content},
		{"chunked", io.MultiReader(strings.NewReader(content), strings.NewReader("tail")), octets, content + "tail"},
		{"gzip", gzipped(content), copyWith(octets, "Content-Encoding", "gzip"), content},
		{"identity", strings.NewReader("x"), copyWith(octets, "Content-Encoding", "identity"), "x"},
		{"empty", strings.NewReader(""), octets, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, text := s.upload(query("path", "f"), tt.body, tt.headers)
			if res.StatusCode != 200 {
				t.Fatalf("got %d %s", res.StatusCode, text)
			}
			sameJSON(t, text, `[{"name":"f","path":"`+s.home+`/f","type":"file"}]`)
			if got := readFile(t, filepath.Join(s.home, "f")); got != tt.want {
				t.Errorf("%d bytes, want %d", len(got), len(tt.want))
			}
		})
	}
}

func TestUploadFormGzip(t *testing.T) {
	s := newServer(t)
	body, h := form(`form-data; name="file"; filename="z"`, "zipped")
	plain, _ := io.ReadAll(body)
	res, text := s.upload("", gzipped(string(plain)), copyWith(h, "Content-Encoding", "gzip"))
	if res.StatusCode != 200 || readFile(t, filepath.Join(s.home, "z")) != "zipped" {
		t.Errorf("got %d %s", res.StatusCode, text)
	}
}

// An existing file is replaced where a link leads to: same mode and attributes, new
// owner.
func TestUploadOverExisting(t *testing.T) {
	s := newServer(t)
	path := writeFile(t, filepath.Join(s.home, "script"), "a long old content")
	if err := errors.Join(os.Chmod(path, 0o751), unix.Setxattr(path, "user.note", []byte("kept"), 0)); err != nil {
		t.Fatal(err)
	}
	mkdir(t, filepath.Join(s.home, "links"), userUID)
	symlink(t, "links/2", filepath.Join(s.home, "link"))
	symlink(t, "../script", filepath.Join(s.home, "links/2"))
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if res, text := s.upload(query("path", "link"), strings.NewReader("new"), octets); res.StatusCode != 200 {
		t.Fatalf("got %d %s", res.StatusCode, text)
	}
	if got := readFile(t, path); got != "new" {
		t.Errorf("content %q", got)
	}
	if text, err := io.ReadAll(old); err != nil || string(text) != "a long old content" {
		t.Errorf("who has it open reads %q, %v", text, err)
	}
	wantOwner(t, path, userUID, 0o751)
	if value, err := readAttribute(9, func(buf []byte) (int, error) { return unix.Getxattr(path, "user.note", buf) }); string(value) != "kept" {
		t.Errorf("attribute %q, %v", value, err)
	}
	symlink(t, "to/come", filepath.Join(s.home, "dangling"))
	mkdir(t, filepath.Join(s.home, "to"), userUID)
	if res, text := s.upload(query("path", "dangling"), strings.NewReader("come"), octets); res.StatusCode != 200 || readFile(t, s.home+"/to/come") != "come" {
		t.Errorf("a link that leads nowhere: got %d %s", res.StatusCode, text)
	}
}

// What has other names, or is mounted where it is, stays that file.
func TestUploadIntoTheSameFile(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, path string) (other string){
		"linked": func(t *testing.T, path string) string {
			must(os.Link(path, path+"-other"))
			return path + "-other"
		},
		"mounted": func(t *testing.T, path string) string {
			other := writeFile(t, path+"-other", "old content")
			must(unix.Mount(other, path, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(unix.Unmount(path, unix.MNT_DETACH)) })
			return other
		},
		"mounted in a read-only directory": func(t *testing.T, path string) string {
			dir, other := filepath.Dir(path), writeFile(t, path+"-other", "old content")
			must(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(unix.Unmount(dir, unix.MNT_DETACH)) })
			must(unix.Mount(other, path, "", unix.MS_BIND, ""))
			must(unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			return other
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			path := writeFile(t, filepath.Join(s.home, "f"), "old content")
			other := prepare(t, path)
			must(os.Chmod(path, 0o640))
			res, text := s.upload(query("path", "f"), strings.NewReader("new"), copyWith(octets, "X-Metadata-a", "b"))
			if res.StatusCode != 200 || readFile(t, path) != "new" || readFile(t, other) != "new" {
				t.Fatalf("got %d %s: %q and %q", res.StatusCode, text, readFile(t, path), readFile(t, other))
			}
			wantOwner(t, other, userUID, 0o640)
			if got := fileMetadata(other); !reflect.DeepEqual(got, map[string]string{"a": "b"}) {
				t.Errorf("metadata %v", got)
			}
			if names := testmode.Names(t, s.home); len(names) != 2 {
				t.Errorf("left: %q", names)
			}
		})
	}
}

// Where a new file could be beside the old one, but cannot be made, the old one stays.
func TestUploadRefusedBeside(t *testing.T) {
	dir := publicDir(t)
	path := writeFile(t, filepath.Join(dir, "f"), "a good old content")
	for _, files := range []uint64{1, 2} { // the directory, the new file; not the old one
		var limit unix.Rlimit
		must(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		lowest, err := unix.Dup(2)
		must(err)
		must(unix.Close(lowest))
		must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest) + files, Max: limit.Max}))
		out, err := openTarget(path, &account{})
		must(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		if err == nil {
			out.drop()
		}
		if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "is as it was") {
			t.Errorf("with %d more descriptors: %v", files, err)
		}
		if got := readFile(t, path); got != "a good old content" {
			t.Errorf("with %d more descriptors, content %q", files, got)
		}
		if left := testmode.Names(t, dir); len(left) != 1 {
			t.Errorf("left: %q", left)
		}
	}
}

// A file that stays the same one keeps its content if the client goes before any changes.
func TestOverwriteEndsWithClient(t *testing.T) {
	dir := publicDir(t)
	path := writeFile(t, filepath.Join(dir, "f"), "a good old content")
	must(os.Link(path, path+"-other"))
	out, err := openTarget(path, &account{})
	must(err)
	_, err = out.WriteString("new")
	must(err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	err = out.commit(gone)
	out.drop()
	if got := readFile(t, path); !errors.Is(err, context.Canceled) || got != "a good old content" {
		t.Errorf("error %v, content %q", err, got)
	}
	if left := testmode.Names(t, dir); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
}

// An upload that does not come to its end changes nothing, and leaves nothing.
func TestUploadCut(t *testing.T) {
	s := newServer(t)
	full := filepath.Join(s.dir, "full")
	gone := func() io.Reader {
		return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("the client is gone")))
	}
	large := bytes.Repeat([]byte("x"), 1<<20)
	for _, c := range []struct {
		name, dir string
		prepare   func(path string)
		change    func(path string)
	}{
		{"client gone", s.home, nil, func(path string) {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/files"+query("path", path, "username", "user"), gone())
			must(err)
			req.Header.Set("Content-Type", "application/octet-stream")
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		}},
		{"no space", full, nil, func(path string) {
			res, text := s.upload(query("path", path), bytes.NewReader(large), octets)
			wantMessage(t, res, text, http.StatusInsufficientStorage)
		}},
		{"no space for a linked file", full, func(path string) {
			must(os.Link(path, path+"-other"))
			must(os.WriteFile(full+"/ballast", large[:64<<10], 0o600))
		}, func(path string) {
			res, text := s.upload(query("path", path), bytes.NewReader(large[:40<<10]), octets)
			wantMessage(t, res, text, http.StatusInsufficientStorage)
		}},
		{"composed without space", full, nil, func(path string) {
			source := writeFile(t, filepath.Join(s.home, "source"), string(large))
			res, text := s.compose(composeRequest{SourcePaths: []string{source}, Destination: path})
			wantMessage(t, res, text, http.StatusInsufficientStorage)
			must(os.Remove(source))
		}},
		{"damaged in transit", s.home, nil, func(path string) {
			packed := gzipped("a long new content").Bytes()
			res, text := s.upload(query("path", path), bytes.NewReader(packed[:len(packed)-6]), copyWith(octets, "Content-Encoding", "gzip"))
			wantMessage(t, res, text, http.StatusBadRequest)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tmpfs(t, full, "128k")
			path := writeFile(t, filepath.Join(c.dir, "f"), "a good old content")
			if c.prepare != nil {
				c.prepare(path)
			}
			before := testmode.Names(t, c.dir)
			c.change(path)
			testmode.Eventually(t, "nothing is left", func() bool { return slices.Equal(before, testmode.Names(t, c.dir)) })
			if got := readFile(t, path); got != "a good old content" {
				t.Errorf("content %q", got)
			}
			if c.prepare != nil {
				return
			}
			c.change(path + "-new")
			testmode.Eventually(t, "no half of a new file is left", func() bool { return slices.Equal(before, testmode.Names(t, c.dir)) })
		})
	}
}

func TestUploadRefused(t *testing.T) {
	s := newServer(t)
	writeFile(t, filepath.Join(s.home, "file"), "x")
	mustFIFO(t, filepath.Join(s.home, "fifo"))
	twice, twiceHeaders := form(`form-data; name="file"; filename="dup"`, "1", `form-data; name="file"; filename="./x/../dup"`, "2")
	nameless, namelessHeaders := form(`form-data; name="file"`, "1")
	cut, cutHeaders := form(`form-data; name="file"; filename="cut"`, "1")
	half, _ := io.ReadAll(cut)
	tests := []struct {
		name, target string
		body         io.Reader
		headers      map[string]string
		want         int
	}{
		{"no content type", query("path", "f"), strings.NewReader("x"), nil, 400},
		{"other content type", query("path", "f"), strings.NewReader("x"), map[string]string{"Content-Type": "text/plain"}, 400},
		{"no boundary", query("path", "f"), strings.NewReader("x"), map[string]string{"Content-Type": "multipart/form-data"}, 400},
		{"raw without path", "", strings.NewReader("x"), octets, 400},
		{"raw with empty path", query("path", ""), strings.NewReader("x"), octets, 400},
		{"same path twice", "", twice, twiceHeaders, 400},
		{"no name", "", nameless, namelessHeaders, 400},
		{"form cut short", "", bytes.NewReader(half[:len(half)-10]), cutHeaders, 400},
		{"unknown encoding", query("path", "f"), strings.NewReader("x"), copyWith(octets, "Content-Encoding", "br"), 400},
		{"not gzip", query("path", "f"), strings.NewReader("x"), copyWith(octets, "Content-Encoding", "gzip"), 400},
		{"directory", query("path", "/tmp"), strings.NewReader("x"), octets, 400},
		{"fifo", query("path", "fifo"), strings.NewReader("x"), octets, 400},
		{"device", query("path", "/dev/null"), strings.NewReader("x"), octets, 400},
		{"parent is a file", query("path", "file/x"), strings.NewReader("x"), octets, 500},
		{"unknown user", query("path", "f", "username", "mallory"), strings.NewReader("x"), octets, 401},
		{"other's home", query("path", "~root"), strings.NewReader("x"), octets, 400},
		{"metadata value", query("path", "f"), strings.NewReader("x"), copyWith(octets, "X-Metadata-A", "ä"), 400},
		{"metadata key", query("path", "f"), strings.NewReader("x"), copyWith(octets, "X-Metadata-"+strings.Repeat("k", 247), "v"), 400},
		{"empty metadata key", query("path", "f"), strings.NewReader("x"), copyWith(octets, "X-Metadata-", "v"), 400},
		{"too much metadata", query("path", "f"), strings.NewReader("x"), copyWith(octets, "X-Metadata-k", strings.Repeat("v", 4096)), 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.upload(tt.target, tt.body, tt.headers)
			wantMessage(t, res, body, tt.want)
		})
	}
}

func TestMetadata(t *testing.T) {
	s := newServer(t)
	path := filepath.Join(s.home, "f")
	put := func(headers map[string]string, want map[string]string) {
		t.Helper()
		res, text := s.upload(query("path", "f"), strings.NewReader("x"), headers)
		var got []uploaded
		if err := json.Unmarshal([]byte(text), &got); err != nil || res.StatusCode != 200 {
			t.Fatalf("got %d %s", res.StatusCode, text)
		}
		if !reflect.DeepEqual(got[0].Metadata, want) || want == nil && strings.Contains(text, "metadata") {
			t.Errorf("answer %s, want metadata %v", text, want)
		}
		if got := fileMetadata(path); !reflect.DeepEqual(got, want) {
			t.Errorf("on the file: %v, want %v", got, want)
		}
	}
	long := strings.Repeat("v", 3000)
	put(copyWith(copyWith(octets, "X-Metadata-Author", "me"), "x-metadata-two-words", "a b"), map[string]string{"author": "me", "two-words": "a b"})
	put(copyWith(octets, "X-Metadata-Other", long), map[string]string{"other": long})
	put(octets, nil)
	if err := unix.Setxattr(path, "user.e2b.byhand", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if got := s.stat("f"); !reflect.DeepEqual(got.GetMetadata(), map[string]string{"byhand": "1"}) {
		t.Errorf("Stat: %v", got)
	}
}

// A file system without user attributes is an error only if it matters.
func TestMetadataUnsupported(t *testing.T) {
	f, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := replaceMetadata(int(f.Fd()), nil); err != nil {
		t.Errorf("no metadata: %v", err)
	}
	if err := replaceMetadata(int(f.Fd()), map[string]string{"k": "v"}); err == nil || !strings.Contains(err.Error(), "does not support metadata") {
		t.Errorf("metadata: %v", err)
	}
}

// tmpfs mounts a small file system of its own.
func tmpfs(t *testing.T, path, size string) {
	t.Helper()
	mkdir(t, path, userUID)
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestNoSpace(t *testing.T) {
	s := newServer(t)
	full := filepath.Join(s.dir, "full")
	tmpfs(t, full, "64k")
	res, body := s.upload(query("path", full+"/f"), bytes.NewReader(make([]byte, 8<<20)), octets)
	wantMessage(t, res, body, http.StatusInsufficientStorage)
	fields, h := form(`form-data; name="file"; filename="`+full+`/g"`, strings.Repeat("x", 1<<20))
	res, body = s.upload("", fields, h)
	wantMessage(t, res, body, http.StatusInsufficientStorage)
	source := writeFile(t, filepath.Join(s.home, "source"), strings.Repeat("x", 1<<20))
	res, body = s.compose(composeRequest{SourcePaths: []string{source}, Destination: full + "/h"})
	wantMessage(t, res, body, http.StatusInsufficientStorage)
	if len(readFile(t, source)) != 1<<20 {
		t.Error("the source of a failed compose is gone")
	}
	if left := testmode.Names(t, full); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func (s *server) compose(req composeRequest) (*http.Response, string) {
	s.t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do("POST", "/files/compose", bytes.NewReader(body), nil)
}

func TestCompose(t *testing.T) {
	s := newServer(t)
	a, b := writeFile(t, filepath.Join(s.home, "a"), "one "), writeFile(t, filepath.Join(s.home, "b"), "two")
	res, body := s.compose(composeRequest{SourcePaths: []string{"a", "b"}, Destination: "new/dir/c", Username: "user"})
	if res.StatusCode != 200 {
		t.Fatalf("got %d %s", res.StatusCode, body)
	}
	sameJSON(t, body, `{"name":"c","path":"`+s.home+`/new/dir/c","type":"file"}`)
	if got := readFile(t, filepath.Join(s.home, "new/dir/c")); got != "one two" {
		t.Errorf("content %q", got)
	}
	wantOwner(t, filepath.Join(s.home, "new/dir/c"), userUID, 0o644)
	for _, path := range []string{a, b} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestComposeRefused(t *testing.T) {
	s := newServer(t)
	writeFile(t, filepath.Join(s.home, "a"), "one")
	mkdir(t, filepath.Join(s.home, "dir"), userUID)
	if err := os.Symlink("a", filepath.Join(s.home, "link")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		req  composeRequest
		want int
	}{
		{"no sources", composeRequest{Destination: "c"}, 400},
		{"no destination", composeRequest{SourcePaths: []string{"a"}}, 400},
		{"same path", composeRequest{SourcePaths: []string{"a"}, Destination: s.home + "/a"}, 400},
		{"same file by another name", composeRequest{SourcePaths: []string{"a"}, Destination: "link"}, 400},
		{"directory", composeRequest{SourcePaths: []string{"a", "dir"}, Destination: "c"}, 400},
		{"missing", composeRequest{SourcePaths: []string{"a", "none"}, Destination: "c"}, 404},
		{"unknown user", composeRequest{SourcePaths: []string{"a"}, Destination: "c", Username: "mallory"}, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.compose(tt.req)
			wantMessage(t, res, body, tt.want)
			if got := readFile(t, filepath.Join(s.home, "a")); got != "one" {
				t.Errorf("the source is now %q", got)
			}
		})
	}
}

func TestSignedURLs(t *testing.T) {
	s := newServer(t)
	token := "tok:en"
	s.init(agentapi.InitRequest{AccessToken: &token})
	writeFile(t, filepath.Join(s.home, "f"), "content")
	past, future := time.Now().Add(-time.Minute).Unix(), time.Now().Add(time.Hour).Unix()
	sign := func(path, operation, user string, expiration *int64) string {
		return agentapi.Sign(path, operation, user, token, expiration)
	}
	header := func(v string) map[string]string { return map[string]string{agentapi.HeaderAccessToken: v} }
	tests := []struct {
		name, method, query string
		headers             map[string]string
		want                int
		body                string
	}{
		{"no credentials", "GET", query("path", "f"), nil, 401, ""},
		{"token", "GET", query("path", "f"), header(token), 200, "content"},
		{"wrong token", "GET", query("path", "f"), header("x"), 401, ""},
		{"wrong token, good signature", "GET", query("path", "f", "signature", sign("f", "read", "", nil)), header("x"), 401, ""},
		{"empty token, good signature", "GET", query("path", "f", "signature", sign("f", "read", "", nil)), header(""), 401, ""},
		{"signature", "GET", query("path", "f", "signature", sign("f", "read", "", nil)), nil, 200, "content"},
		{"signature with user", "GET", query("path", "f", "username", "user", "signature", sign("f", "read", "user", nil)), nil, 200, "content"},
		{"signature for another user", "GET", query("path", "f", "username", "root", "signature", sign("f", "read", "user", nil)), nil, 401, ""},
		{"signature for writing", "GET", query("path", "f", "signature", sign("f", "write", "", nil)), nil, 401, ""},
		{"signature for the resolved path", "GET", query("path", "f", "signature", sign(s.home+"/f", "read", "", nil)), nil, 401, ""},
		{"not yet expired", "GET", query("path", "f", "signature", sign("f", "read", "", &future), "signature_expiration", fmt.Sprint(future)), nil, 200, "content"},
		{"expired", "GET", query("path", "f", "signature", sign("f", "read", "", &past), "signature_expiration", fmt.Sprint(past)), nil, 401, `{"code":401,"message":"signature is already expired"}`},
		{"expiration removed", "GET", query("path", "f", "signature", sign("f", "read", "", &past)), nil, 401, ""},
		{"expiration added", "GET", query("path", "f", "signature", sign("f", "read", "", nil), "signature_expiration", fmt.Sprint(future)), nil, 401, ""},
		{"malformed expiration", "GET", query("path", "f", "signature", sign("f", "read", "", nil), "signature_expiration", "soon"), nil, 401, ""},
		{"ambiguous user", "GET", query("path", "f", "username", "x:read:y", "signature", sign("f:read:x", "read", "y", nil)), nil, 401, ""},
		{"upload", "POST", query("path", "up", "signature", sign("up", "write", "", nil)), nil, 200, ""},
		{"upload anywhere", "POST", query("signature", sign("", "write", "", nil)), nil, 200, ""},
		{"upload signed for reading", "POST", query("path", "up", "signature", sign("up", "read", "", nil)), nil, 401, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var body io.Reader
			headers := tt.headers
			if tt.method == "POST" {
				body, headers = form(`form-data; name="file"; filename="up"`, "x")
			}
			res, text := s.do(tt.method, "/files"+tt.query, body, headers)
			if tt.want == 401 {
				wantMessage(t, res, text, 401)
			}
			if res.StatusCode != tt.want || tt.body != "" && text != tt.body {
				t.Errorf("got %d %s, want %d %s", res.StatusCode, text, tt.want, tt.body)
			}
		})
	}
}

func TestAcceptsEncoding(t *testing.T) {
	tests := []struct {
		header       string
		compress, ok bool
	}{
		{"", false, true},
		{"gzip", true, true},
		{"gzip, deflate, br, zstd", true, true},
		{"GZIP;q=0.5", true, true},
		{"br", false, true},
		{"gzip;q=0", false, true},
		{"gzip;q=0.5, identity", false, true},
		{"gzip, identity;q=0.5", true, true},
		{"identity;q=0", false, false},
		{"identity;q=0, gzip", true, true},
		{"identity;q=0, *", true, true},
		{"br, identity;q=0", false, false},
		{"*", false, true},
		{"*;q=0", false, false},
		{"*;q=0, gzip", true, true},
		{"*;q=0, identity", false, true},
		{"gzip;q=zero", false, true},
	}
	for _, tt := range tests {
		t.Run(tt.header, func(t *testing.T) {
			compress, ok := acceptsEncoding([]string{tt.header})
			if compress != tt.compress || ok != tt.ok {
				t.Errorf("= %v, %v; want %v, %v", compress, ok, tt.compress, tt.ok)
			}
		})
	}
}

func TestParseDisposition(t *testing.T) {
	tests := []struct{ header, name, filename string }{
		{`form-data; name="file"; filename="/a/b/c.txt"`, "file", "/a/b/c.txt"},
		{`form-data; name=file; filename=plain`, "file", "plain"},
		{`form-data; name="file"; filename="a\"b"`, "file", `a"b`},
		{`form-data; name="file"; filename="dir\file"`, "file", `dir\file`},
		{`form-data; name="file"; filename*=UTF-8''%e2%82%ac%20x`, "file", "€ x"},
		{`form-data; name="file"; filename="héllo/wörld"`, "file", "héllo/wörld"},
		{`form-data; name="other"`, "other", ""},
		{`attachment; name="file"; filename="x"`, "", ""},
		{`form-data; name="file"; name="other"`, "", ""},
		{``, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.header, func(t *testing.T) {
			name, filename, has := parseDisposition(tt.header)
			if name != tt.name || filename != tt.filename || has != (tt.filename != "") {
				t.Errorf("= %q, %q, %v; want %q, %q", name, filename, has, tt.name, tt.filename)
			}
		})
	}
}

// What a client quotes by the rules comes out as it went in.
func FuzzParseDisposition(f *testing.F) {
	f.Add("form-data; name=\"file\"; filename=\"x\"", "a/b")
	f.Add("form-data; filename*=utf-8''%", "\\\"")
	f.Fuzz(func(t *testing.T, header, filename string) {
		parseDisposition(header)
		if strings.ContainsAny(filename, "\r\n") {
			return
		}
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(filename)
		name, got, has := parseDisposition(`form-data; name="file"; filename="` + quoted + `"`)
		if name != "file" || got != filename || !has {
			t.Errorf("%q came out as %q, %q, %v", filename, name, got, has)
		}
	})
}
