package agent

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// flat fails the test if the memory of the program, of which the agent is a
// part, has grown by more than so many bytes at its highest since.
func flat(t *testing.T, most uint64) (check func()) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	return func() {
		t.Helper()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapSys - before.HeapSys); grown > int64(most) {
			t.Errorf("the heap has grown by %d MiB, want %d at most", grown>>20, most>>20)
		}
	}
}

// TestGzipBombs unpacks some 10 MB to 10 GB, or to what there is room for.
func TestGzipBombs(t *testing.T) {
	s := newServer(t)
	full := filepath.Join(s.dir, "full")
	tmpfs(t, full, "16m")
	var member bytes.Buffer
	zw := gzip.NewWriter(&member)
	_, _ = zw.Write(make([]byte, 10<<20))
	_ = zw.Close()
	bomb := bytes.Repeat(member.Bytes(), 1024)
	fields, fieldsHeaders := form(`form-data; name="file"; filename="`+full+`/form"`, "")
	head, _ := io.ReadAll(fields)
	begin := bytes.LastIndex(head, []byte("\r\n--"))
	var packed bytes.Buffer
	zw = gzip.NewWriter(&packed)
	_, _ = zw.Write(head[:begin])
	_ = zw.Close()
	for name, c := range map[string]struct {
		target  string
		body    io.Reader
		headers map[string]string
	}{
		"raw":  {query("path", full+"/raw"), bytes.NewReader(bomb), octets},
		"form": {"", io.MultiReader(&packed, bytes.NewReader(bomb)), fieldsHeaders},
	} {
		t.Run(name, func(t *testing.T) {
			check := flat(t, 32<<20)
			res, body := s.upload(c.target, c.body, copyWith(c.headers, "Content-Encoding", "gzip"))
			wantMessage(t, res, body, http.StatusInsufficientStorage)
			check()
			if left := testmode.Names(t, full); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestHostileForms(t *testing.T) {
	s := newServer(t)
	const boundary = "--b\r\n"
	headers := map[string]string{"Content-Type": "multipart/form-data; boundary=b"}
	endless := func(head, more string) io.Reader {
		return io.MultiReader(strings.NewReader(head), strings.NewReader(strings.Repeat(more, 24<<20/len(more))))
	}
	part := `Content-Disposition: form-data; name="file"; filename="` + s.home + strings.Repeat("/.", 1900) + "/%05d\"\r\n\r\n\r\n"
	var parts bytes.Buffer
	for i := range maxNames/3800 + 1 {
		fmt.Fprintf(&parts, boundary+part, i)
	}
	for name, body := range map[string]io.Reader{
		"no boundary anywhere":  endless("", "no boundary "),
		"endless lines":         endless("", "no boundary\r\n"),
		"an endless header":     endless(boundary+"X: ", "more "),
		"endless headers":       endless(boundary, "X: more\r\n"),
		"names without end":     io.MultiReader(&parts, strings.NewReader("--b--\r\n")),
		"a name without bounds": strings.NewReader(boundary + `Content-Disposition: form-data; name="file"; filename="` + strings.Repeat("a/", 100_000) + "\"\r\n\r\n\r\n--b--\r\n"),
		"nothing":               strings.NewReader(""),
	} {
		t.Run(name, func(t *testing.T) {
			check := flat(t, 128<<20)
			res, answer := s.upload("", body, headers)
			wantMessage(t, res, answer, http.StatusBadRequest)
			if len(answer) > 16<<10 {
				t.Errorf("an answer of %d bytes", len(answer))
			}
			check()
		})
	}
	t.Run("thousands of parts", func(t *testing.T) {
		var many []string
		for i := range 1000 {
			many = append(many, fmt.Sprintf(`form-data; name="file"; filename="many/%d"`, i), "x")
		}
		body, headers := form(many...)
		if res, answer := s.upload("", body, headers); res.StatusCode != http.StatusOK {
			t.Errorf("got %d %.200s", res.StatusCode, answer)
		}
		if list, err := s.list("many", 1); err != nil || len(list) != 1000 {
			t.Errorf("%d files, %v", len(list), err)
		}
	})
}

// TestSparseGiant handles a file of 1 TiB without any content.
func TestSparseGiant(t *testing.T) {
	s := newServer(t)
	small := filepath.Join(s.dir, "small")
	tmpfs(t, small, "16m")
	giant := writeFile(t, filepath.Join(small, "giant"), "")
	const size = 1 << 40
	if err := os.Truncate(giant, size); err != nil {
		t.Fatal(err)
	}
	check := flat(t, 32<<20)
	defer check()
	if entry := s.stat(giant); entry.Size != size {
		t.Errorf("size %d", entry.Size)
	}
	res, body := s.download(giant, map[string]string{"Range": "bytes=-5"})
	if res.StatusCode != http.StatusPartialContent || body != "\x00\x00\x00\x00\x00" {
		t.Errorf("its end: %d %q", res.StatusCode, body)
	}
	for _, encoding := range []string{"gzip", "identity"} {
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "GET", s.url+"/files"+query("path", giant), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", encoding)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, res.Body, 64<<10); err != nil {
			t.Errorf("%s: its beginning: %v", encoding, err)
		}
		leave()
		res.Body.Close()
	}
	res, body = s.compose(composeRequest{SourcePaths: []string{giant}, Destination: small + "/copy"})
	wantMessage(t, res, body, http.StatusInsufficientStorage)
	_, err := s.move(giant, s.home+"/\x00")
	wantCode(t, err, connect.CodeInvalidArgument)
}

// A copy that nobody waits for ends, however much there is to copy.
func TestCopyEndsWithItsClient(t *testing.T) {
	dir := t.TempDir()
	giant := writeFile(t, filepath.Join(dir, "giant"), "")
	if err := os.Truncate(giant, 1<<40); err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	user := &account{uid: userUID, gid: userGID}
	if err := concatenate(gone, []string{giant}, filepath.Join(dir, "c"), user); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("compose: %v", err)
	}
	if err := moveAcross(gone, giant, filepath.Join(dir, "m")); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("move: %v", err)
	}
	if _, err := os.Stat(giant); err != nil {
		t.Error(err)
	}
}

func TestCopyFollowsNoLinks(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "secret"), "secret")
	symlink(t, "secret", filepath.Join(dir, "link"))
	if err := copyFile(t.Context(), filepath.Join(dir, "link"), filepath.Join(dir, "copy")); err == nil {
		t.Error("what a link leads to was copied in place of a file")
	}
}

// TestWideDirectories lists and removes 100,000 files.
func TestWideDirectories(t *testing.T) {
	s := newServer(t)
	big := filepath.Join(s.dir, "big")
	tmpfs(t, big, "1g")
	const files = 100_000
	wide := mkdirAt(t, big, "wide")
	fillDir(t, wide, files)
	l := &listing{ctx: t.Context(), accounts: s.agent.accounts()}
	if err := l.list(big, 5); err != nil || len(l.entries) != files+1 {
		t.Fatalf("%d entries, %v", len(l.entries), err)
	}
	for i, e := range l.entries[1:] {
		if want := fmt.Sprintf("%06d\n\uFFFD", i); e.Name != want {
			t.Fatalf("entry %d is %q, want %q", i, e.Name, want)
		}
	}
	s.remove(wide)
	if left, err := s.list(big, 1); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestListingsAreBounded lists what takes the last room there is, and what
// takes more.
func TestListingsAreBounded(t *testing.T) {
	s := newServer(t)
	wide := mkdirAt(t, s.home, "wide")
	fillDir(t, wide, 9)
	size := 10*len(wide) + 9*len("/000000\n\xff")
	for _, c := range []struct {
		name           string
		entries, bytes int // that are there already
		want           connect.Code
	}{
		{"as many as there may be", maxEntries - 10, 0, 0},
		{"one entry more", maxEntries - 9, 0, connect.CodeResourceExhausted},
		{"the longest paths", 0, maxListing - size, 0},
		{"one byte more", 0, maxListing - size + 1, connect.CodeResourceExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &listing{ctx: t.Context(), accounts: s.agent.accounts(), entries: make([]*fspb.EntryInfo, c.entries), bytes: c.bytes}
			err := l.list(s.home, 2)
			if err != nil {
				err = rpcError(err)
			}
			wantCode(t, err, c.want)
		})
	}
}

// fillDir makes n empty files, whose names are as bad as they can be.
func fillDir(t *testing.T, dir string, n int) {
	t.Helper()
	fd := openDir(t, dir)
	for i := range n {
		if err := unix.Mknodat(fd, fmt.Sprintf("%06d\n\xff", i), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func openDir(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func mkdirAt(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	mkdir(t, path, userUID)
	return path
}

func (s *server) remove(path string) {
	s.t.Helper()
	if _, err := s.files.Remove(s.t.Context(), basic("user", &fspb.RemoveRequest{Path: path})); err != nil {
		s.t.Errorf("remove %.100s: %v", path, err)
	}
}

// TestDeepTrees handles 4,000 levels, of which a path can name half.
func TestDeepTrees(t *testing.T) {
	s := newServer(t)
	top := filepath.Join(s.home, "top")
	mkdir(t, top, userUID)
	at := openDir(t, top)
	for range 4000 {
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Dup3(next, at, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(next)
	}
	for _, depth := range []uint32{1, 100, 1 << 31} {
		got, err := s.list("top", depth)
		if want := min(int(depth), (maxPath-len(top))/2); err != nil || len(got) != want {
			t.Errorf("depth %d: %d entries, %v; want %d", depth, len(got), err, want)
		}
	}
	s.remove("top")
	if _, err := os.Lstat(top); !os.IsNotExist(err) {
		t.Errorf("after the removal: %v", err)
	}
}

func TestHugePaths(t *testing.T) {
	s := newServer(t)
	for name, path := range map[string]string{
		"levels": strings.Repeat("a/", 1<<19), "dots": strings.Repeat("./", 1<<19), "a name": strings.Repeat("a", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			for what, err := range map[string]error{
				"list":   second(s.list(path, 1)),
				"move":   second(s.move(path, path)),
				"make":   second(s.files.MakeDir(testContext(t), basic("user", &fspb.MakeDirRequest{Path: path}))),
				"remove": second(s.files.Remove(testContext(t), basic("user", &fspb.RemoveRequest{Path: path}))),
				"stat":   second(s.files.Stat(testContext(t), basic("user", &fspb.StatRequest{Path: path}))),
			} {
				if connect.CodeOf(err) != connect.CodeInvalidArgument || len(err.Error()) > 1000 {
					t.Errorf("%s: %.1000v", what, err)
				}
			}
		})
	}
	res, body := s.compose(composeRequest{SourcePaths: make([]string, maxSources+1), Destination: "c"})
	wantMessage(t, res, body, http.StatusBadRequest)
}

func second[T any](_ T, err error) error { return err }

// TestNewDirectoriesBehindALink makes directories in one that its owner
// exchanges for a link all the while. What the link leads to stays what it was.
func TestNewDirectoriesBehindALink(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/real", userUID)
	mkdir(t, s.rootHome+"/victim", 0)
	symlink(t, s.rootHome, s.home+"/link")
	stop := make(chan struct{})
	var flipper sync.WaitGroup
	flipper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, s.home+"/real", unix.AT_FDCWD, s.home+"/link", unix.RENAME_EXCHANGE)
			}
		}
	})
	user := &account{uid: userUID, gid: userGID}
	for range 3000 {
		_ = makeDirs(s.home+"/real/victim", user)
		for _, dir := range []string{"/real", "/link"} {
			// The one of the two that is no link just now.
			if fd, err := unix.Open(s.home+dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err == nil {
				_ = unix.Unlinkat(fd, "victim", unix.AT_REMOVEDIR)
				_ = unix.Close(fd)
			}
		}
	}
	close(stop)
	flipper.Wait()
	info, err := os.Stat(s.rootHome + "/victim")
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
		t.Errorf("the directory of root is now that of %d", uid)
	}
}
