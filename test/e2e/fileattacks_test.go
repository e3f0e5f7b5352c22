package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// attacked is a sandbox whose file API is attacked.
type attacked struct {
	t  *testing.T
	sb *client.Sandbox
}

// TestFileAttacks attacks the file API of a sandbox: with paths, with what is
// no file, and with files that are too large. Nothing of the host is read or
// written, errors say what is wrong, and in the end the sandbox does what it
// did, sleep included, and the server is no larger.
func TestFileAttacks(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 10*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	first := g.ask(ctx)
	before := s.usage(ctx)
	a := &attacked{t, g.sb}

	a.traverse(ctx)
	a.special(ctx)
	a.sparse(ctx)
	a.bomb(ctx)
	a.many(ctx)
	a.flip(ctx)

	g.same(first, g.ask(ctx))
	s.pause(ctx, g.sb.ID)
	g.same(first, g.ask(ctx))
	eventually(t, time.Minute, "the server is as it was", func() error {
		time.Sleep(500 * time.Millisecond) // to ask is work for the server
		httpClient.CloseIdleConnections()
		after := s.usage(ctx)
		after.files = before.files // the sandbox's own, now that it has slept
		return before.grown(after, 1)
	})
}

// mostRead is how much of an answer is looked at before its client leaves.
const mostRead = 64 << 10

// files makes a request to the file API and returns the status and what is
// looked at of the answer.
func (a *attacked) files(ctx context.Context, method, path, query string, header http.Header, body io.Reader) (int, []byte) {
	a.t.Helper()
	req, err := a.sb.Request(ctx, method, agentPort, path+"?"+query, body)
	if err != nil {
		a.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		a.t.Fatalf("%s %s?%.200s: %v", method, path, query, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, mostRead))
	if err != nil {
		a.t.Errorf("%s %s?%.200s: %v", method, path, query, err)
	}
	return resp.StatusCode, data
}

func (a *attacked) download(ctx context.Context, path string) (int, []byte) {
	a.t.Helper()
	return a.files(ctx, http.MethodGet, "/files", url.Values{"path": {path}}.Encode(), nil, nil)
}

func (a *attacked) upload(ctx context.Context, path string, body io.Reader) (int, []byte) {
	a.t.Helper()
	return a.files(ctx, http.MethodPost, "/files", url.Values{"path": {path}}.Encode(), octets(), body)
}

func octets() http.Header { return http.Header{"Content-Type": {"application/octet-stream"}} }

// call makes an RPC of the filesystem service.
func (a *attacked) call(ctx context.Context, method string, request map[string]any) (int, []byte) {
	a.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.files(ctx, http.MethodPost, "/filesystem.Filesystem/"+method, "", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(body))
}

// shell runs a script in the sandbox, which must succeed.
func (a *attacked) shell(ctx context.Context, user, script string) string {
	a.t.Helper()
	exit, out := run(ctx, a.t, a.sb.As(user), "bash", "-c", script)
	if exit.Code != 0 {
		a.t.Fatalf("%s: %s: %s", script, exit.Status, out)
	}
	return strings.TrimSpace(out)
}

// wantError checks that an answer is an error of one of these kinds, in words
// that can be shown.
func (a *attacked) wantError(what string, status int, body []byte, want ...int) {
	a.t.Helper()
	var e struct{ Message string }
	if err := json.Unmarshal(body, &e); err != nil || e.Message == "" || len(body) > 16<<10 || !slices.Contains(want, status) {
		a.t.Errorf("%s: %d %.300s, want one of %d with a message", what, status, body, want)
	}
}

// traverse tries hundreds of paths to a file of the host, to read it and to write
// beside it; for a change, one in three.
func (a *attacked) traverse(ctx context.Context) {
	a.t.Helper()
	const secret = "a secret of the host"
	dir := a.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(secret), 0o644); err != nil {
		a.t.Fatal(err)
	}
	var wg sync.WaitGroup
	paths := make(chan string)
	for range 8 {
		wg.Go(func() {
			for path := range paths {
				if _, body := a.download(ctx, path+"/secret"); bytes.Contains(body, []byte(secret)) {
					a.t.Errorf("the host's file was read by %q", path)
				}
				if status, body := a.upload(ctx, path+"/written", strings.NewReader("x")); status != http.StatusOK {
					a.wantError(fmt.Sprintf("upload to %.100q", path), status, body, 400, 403, 404, 500)
				}
				status, body := a.call(ctx, "ListDir", map[string]any{"path": path, "depth": 1})
				if bytes.Contains(body, []byte(`"secret"`)) {
					a.t.Errorf("the host's directory was listed by %q", path)
				}
				if status != http.StatusOK {
					a.wantError(fmt.Sprintf("list %.100q", path), status, body, 400, 403, 404, 500)
				}
			}
		})
	}
	all := traversals(dir)
	for i, path := range all {
		if testmode.All() || i%3 == 0 {
			paths <- path
		}
	}
	close(paths)
	wg.Wait()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		a.t.Errorf("on the host there are %v, %v", entries, err)
	}
	if len(all) < 500 {
		a.t.Errorf("there are only %d paths", len(all))
	}
}

// traversals returns paths that could lead to a directory of the host, if
// somebody decoded, cleaned or resolved them who should not.
func traversals(dir string) []string {
	ups := []string{
		"../", "..//", ".././", "./../", "..\\", "..%2f", "%2e%2e/", "%2e%2e%2f", "%252e%252e%252f", "..%5c", "..%c0%af", "..%ef%bc%8f",
		"....//", "..;/", "..\x00/", "..\n/", " ../", ".. /", "../\u200b", "\u2025/", "\xff../", "..%00/",
	}
	froms := []string{"", "/", "./", "~/", "/home/user/", "/proc/self/root/", "/proc/1/root/", "/proc/1/cwd/", "/dev/fd/../", "//", "/tmp/"}
	var all []string
	for _, from := range froms {
		all = append(all, from+dir, from+strings.TrimPrefix(dir, "/"))
		for _, up := range ups {
			for _, n := range []int{1, 12} {
				all = append(all, from+strings.Repeat(up, n)+strings.TrimPrefix(dir, "/"))
			}
		}
	}
	return append(all,
		"~root/../.."+dir, "~user"+dir, "file://"+dir, "\\\\?\\"+dir, strings.Repeat("/.", 2000)+dir, strings.Repeat("../", 1300)+dir,
		strings.Repeat("a", 5000)+"/../"+dir, "/proc/self/fd/0/.."+dir, "/proc/1/task/1/root"+dir, "/proc/1/map_files/.."+dir)
}

// special does to devices and the like what is done to files.
func (a *attacked) special(ctx context.Context) {
	a.t.Helper()
	a.shell(ctx, "root", `cd /home/user && mkfifo fifo && ln -s fifo link && ln -s loop loop && ln -s /dev/zero zero`)
	for _, path := range []string{"fifo", "link", "zero", "/dev/zero", "/dev/full", "/dev/random", "/dev/tty", "/dev/ptmx", "/proc", "/proc/1/fd", "/"} {
		status, body := a.download(ctx, path)
		a.wantError("download of "+path, status, body, 400, 403, 404)
		status, body = a.upload(ctx, path, strings.NewReader("x"))
		a.wantError("upload to "+path, status, body, 400, 403, 404, 500)
		compose, err := json.Marshal(map[string]any{"source_paths": []string{path}, "destination": "composed"})
		if err != nil {
			a.t.Fatal(err)
		}
		status, body = a.files(ctx, http.MethodPost, "/files/compose", "", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(compose))
		a.wantError("compose of "+path, status, body, 400, 403, 404)
	}
	for _, path := range []string{"loop", "/proc/kmsg", "/proc/1/mem", "/proc/kcore"} {
		if status, body := a.download(ctx, path); status != http.StatusOK {
			a.wantError("download of "+path, status, body, 400, 403, 404, 500)
		}
	}
	// The name of a file is no reason to fail.
	a.shell(ctx, "user", `mkdir names && cd names && touch $'new\nline' $'\xff\xfe' '../../../etc' 2>/dev/null; ls | wc -l`)
	if status, body := a.call(ctx, "ListDir", map[string]any{"path": "names", "depth": 1}); status != http.StatusOK || !bytes.Contains(body, []byte(`new\nline`)) {
		a.t.Errorf("odd names: %d %s", status, body)
	}
	if status, body := a.call(ctx, "Move", map[string]any{"source": "fifo", "destination": "/tmp/fifo"}); status != http.StatusOK {
		a.t.Errorf("a fifo moved to another mount: %d %s", status, body)
	}
	// Who may not read a file may not give it another name either.
	if out := a.shell(ctx, "user", `sudo -n sh -c 'echo x >/home/user/of-root; chmod 600 /home/user/of-root' && ! ln of-root mine 2>&1 && ls -l mine 2>&1 || true`); !strings.Contains(out, "No such file") {
		a.t.Errorf("a hard link to a file of root: %s", out)
	}
}

// sparse uses a file of 1 TiB without content.
func (a *attacked) sparse(ctx context.Context) {
	a.t.Helper()
	a.shell(ctx, "user", `truncate -s 1T giant`)
	if status, body := a.call(ctx, "Stat", map[string]any{"path": "giant"}); status != http.StatusOK || !bytes.Contains(body, []byte(`"1099511627776"`)) {
		a.t.Errorf("stat of 1 TiB: %d %s", status, body)
	}
	status, body := a.files(ctx, http.MethodGet, "/files", "path=giant", http.Header{"Range": {"bytes=-3"}}, nil)
	if status != http.StatusPartialContent || string(body) != "\x00\x00\x00" {
		a.t.Errorf("the end of 1 TiB: %d %q", status, body)
	}
	for _, coding := range []string{"gzip", "identity"} {
		// files reads a part and leaves.
		status, body = a.files(ctx, http.MethodGet, "/files", "path=giant", http.Header{"Accept-Encoding": {coding}}, nil)
		if status != http.StatusOK || len(body) != mostRead {
			a.t.Errorf("the beginning of 1 TiB as %s: %d, %d bytes", coding, status, len(body))
		}
	}
	if status, body := a.call(ctx, "Remove", map[string]any{"path": "giant"}); status != http.StatusOK {
		a.t.Errorf("remove: %d %s", status, body)
	}
}

// bomb uploads what unpacks to 10 GB, to where there is less room.
func (a *attacked) bomb(ctx context.Context) {
	a.t.Helper()
	var member bytes.Buffer
	zw := gzip.NewWriter(&member)
	if _, err := zw.Write(make([]byte, 10<<20)); err != nil {
		a.t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		a.t.Fatal(err)
	}
	header := octets()
	header.Set("Content-Encoding", "gzip")
	status, body := a.files(ctx, http.MethodPost, "/files", "path=/tmp/bomb", header, bytes.NewReader(bytes.Repeat(member.Bytes(), 1024)))
	a.wantError("a bomb", status, body, http.StatusInsufficientStorage)
	if status, body := a.call(ctx, "Remove", map[string]any{"path": "/tmp/bomb"}); status != http.StatusOK {
		a.t.Errorf("remove: %d %s", status, body)
	}
}

// many lists and removes many files, and many levels of directories.
func (a *attacked) many(ctx context.Context) {
	a.t.Helper()
	files, levels := testmode.Choose(5_000, 100_000), testmode.Choose(1000, 4000)
	a.shell(ctx, "user", fmt.Sprintf(`mkdir /tmp/many && cd /tmp/many && seq %d | xargs touch`, files))
	req, err := a.sb.Request(ctx, http.MethodPost, agentPort, "/filesystem.Filesystem/ListDir", strings.NewReader(`{"path":"/tmp/many","depth":3}`))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := httpClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct{ Entries []struct{ Name string } }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Entries) != files {
		a.t.Errorf("%d entries, %v", len(list.Entries), err)
	}
	// A shell cannot go that deep.
	a.shell(ctx, "user", fmt.Sprintf(`cd /tmp/many && python3 -c '
import os
for _ in range(%d):
    os.mkdir("d"); os.chdir("d")
'`, levels))
	if status, body := a.call(ctx, "Remove", map[string]any{"path": "/tmp/many"}); status != http.StatusOK {
		a.t.Errorf("remove: %d %s", status, body)
	}
	if status, body := a.call(ctx, "Stat", map[string]any{"path": "/tmp/many"}); status != http.StatusNotFound {
		a.t.Errorf("after the removal: %d %s", status, body)
	}
}

// flip has a link lead to one directory and another, in turns, all the while
// that clients read and write behind it. Each of them gets one or the other.
func (a *attacked) flip(ctx context.Context) {
	a.t.Helper()
	a.shell(ctx, "user", `mkdir -p flip/real flip/other && echo -n real >flip/real/f && echo -n other >flip/other/f && ln -s real flip/now`)
	p, err := a.sb.Start(ctx, client.Command{Args: []string{"python3", "-c", `
import os
while not os.path.exists("flip/stop"):
    for to in "other", "real":
        os.symlink(to, "flip/next"); os.rename("flip/next", "flip/now")
`}})
	if err != nil {
		a.t.Fatal(err)
	}
	each(testmode.Choose(100, 400), 8, func(i int) {
		switch i % 4 {
		case 0:
			if status, body := a.upload(ctx, fmt.Sprintf("flip/now/new%d/w", i), strings.NewReader("w")); status != http.StatusOK {
				a.wantError("upload", status, body, 400, 404, 409, 500)
			}
		case 1:
			if status, body := a.call(ctx, "Remove", map[string]any{"path": fmt.Sprintf("flip/now/new%d", i-1)}); status != http.StatusOK {
				a.wantError("remove", status, body, 400, 404, 409, 500)
			}
		default:
			if status, body := a.download(ctx, "flip/now/f"); status == http.StatusOK {
				if text := string(body); text != "real" && text != "other" {
					a.t.Errorf("read %q", text)
				}
			} else {
				a.wantError("download", status, body, 400, 404)
			}
		}
	})
	if status, body := a.upload(ctx, "flip/stop", strings.NewReader("")); status != http.StatusOK {
		a.t.Errorf("stop: %d %s", status, body)
	}
	if exit, err := p.Wait(); err != nil || exit.Code != 0 {
		a.t.Errorf("the flipping ended with %+v, %v", exit, err)
	}
	if out := a.shell(ctx, "user", `find / -xdev -path /usr -prune -o -name w -path '*/new*' -print 2>/dev/null | grep -v ^/home/user/flip/ || true`); out != "" {
		a.t.Errorf("written elsewhere: %s", out)
	}
}
