package ui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/client"
)

const (
	// maxEdit is the largest file that can be edited in a page.
	maxEdit = 1 << 20
	// maxListed is how many entries of a directory a page has.
	maxListed = 2000
)

// insidePath returns the address of a page about a path in a sandbox.
func insidePath(id, pageName, file string) string {
	return Path + "/sandboxes/" + url.PathEscape(id) + "/" + pageName + "?" + url.Values{"path": {file}}.Encode()
}

// crumb is a directory on the way to where one is.
type crumb struct{ Name, Path string }

func crumbsOf(dir string) []crumb {
	all := []crumb{{"/", "/"}}
	at := ""
	for name := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if name != "" {
			at += "/" + name
			all = append(all, crumb{name, at})
		}
	}
	return all
}

// asleep reports whether a look inside would wake the sandbox. The page then has a
// button for that: an address alone, to which any page can lead, wakes nothing.
func asleep(h head) bool { return h.State == client.Paused }

// errLookOnly is for who gets no token of a sandbox's agent.
var errLookOnly = refusal{http.StatusForbidden, "a key of the role read sees sandboxes from outside only", "sign in with a key of another role"}

// opened returns a sandbox to look into.
func (v *visit) opened(tab string) (*client.Sandbox, head, error) {
	a, h, err := v.open1(tab)
	if err != nil {
		return nil, head{}, err
	}
	if v.session.holder.Role == client.RoleRead {
		return nil, h, errLookOnly
	}
	if !h.Alive() {
		return nil, h, refusal{http.StatusNotFound, h.ID + " has ended, and its files are deleted", "its overview says why it ended"}
	}
	sb, _, err := a.Open(v.r.Context(), h.ID)
	return sb, h, err
}

type filesData struct {
	Head   head
	Asleep bool
	Dir    string
	Crumbs []crumb
	Files  []client.File
	More   int // entries that are not listed
}

// files lists a directory of a sandbox that is awake.
func files(v *visit) error {
	sb, h, err := v.opened("files")
	if err != nil {
		return err
	}
	dir := v.r.URL.Query().Get("path")
	d := filesData{Head: h, Dir: dir}
	s := screen{Title: "Files of " + cmp.Or(h.Name(), h.ID), Section: "fleet", Scripts: []string{"files.js"}}
	if d.Asleep = asleep(h); d.Asleep {
		s.Data = d
		v.render(http.StatusOK, "files", s)
		return nil
	}
	if d.Files, err = sb.ListFiles(v.r.Context(), cmp.Or(dir, "."), 1); err != nil {
		return err
	}
	switch {
	case path.IsAbs(dir):
		d.Dir = path.Clean(dir)
	case len(d.Files) > 0:
		d.Dir = path.Dir(d.Files[0].Path)
	default:
		d.Dir = "/home/user"
	}
	slices.SortFunc(d.Files, func(a, b client.File) int {
		if (a.Type == client.Directory) != (b.Type == client.Directory) {
			if a.Type == client.Directory {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	if len(d.Files) > maxListed {
		d.More = len(d.Files) - maxListed
		d.Files = d.Files[:maxListed]
	}
	d.Crumbs = crumbsOf(d.Dir)
	s.Data = d
	v.render(http.StatusOK, "files", s)
	return nil
}

type fileData struct {
	Head   head
	Asleep bool
	Path   string
	Crumbs []crumb
	Text   string
	Hash   string // of what was read
	CRLF   bool   // lines end as on Windows
	Closed string // why it cannot be edited; empty if it can
}

// file shows a file, to be edited.
func file(v *visit) error {
	sb, h, err := v.opened("files")
	if err != nil {
		return err
	}
	d := fileData{Head: h, Path: v.r.URL.Query().Get("path")}
	d.Crumbs = crumbsOf(path.Dir(d.Path))
	s := screen{Title: path.Base(d.Path), Section: "fleet", Scripts: []string{"files.js"}}
	if d.Asleep = asleep(h); d.Asleep {
		s.Data = d
		v.render(http.StatusOK, "file", s)
		return nil
	}
	text, err := readText(v.r.Context(), sb, d.Path)
	if err != nil {
		return err
	}
	d.Text, d.Hash = string(text), hashOf(text)
	d.CRLF, d.Closed = judge(text)
	if d.Closed != "" {
		d.Text = ""
	}
	s.Data = d
	v.render(http.StatusOK, "file", s)
	return nil
}

// readText returns a file's contents, or more than maxEdit bytes of them.
func readText(ctx context.Context, sb *client.Sandbox, name string) ([]byte, error) {
	r, err := sb.ReadFile(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxEdit+1))
}

// judge says how the lines of a file end, or why a page cannot edit it and give all
// of it back as it was.
func judge(text []byte) (crlf bool, closed string) {
	crs, pairs, lines := bytes.Count(text, []byte("\r")), bytes.Count(text, []byte("\r\n")), bytes.Count(text, []byte("\n"))
	switch {
	case len(text) > maxEdit:
		return false, "it is larger than 1 MiB"
	case !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0:
		return false, "it is not text"
	case crs == 0:
		return false, ""
	case crs == pairs && pairs == lines:
		return true, ""
	}
	return false, "its lines end in different ways"
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// download sends a file to be kept: never to be shown, because it would be shown as
// a page of the dashboard.
func download(v *visit) error {
	sb, h, err := v.opened("files")
	if err != nil {
		return err
	}
	name := v.r.URL.Query().Get("path")
	if asleep(h) {
		d := fileData{Head: h, Path: name, Asleep: true}
		v.render(http.StatusOK, "file", screen{Title: path.Base(name), Section: "fleet", Data: d})
		return nil
	}
	r, err := sb.ReadFile(v.r.Context(), name)
	if err != nil {
		return err
	}
	defer r.Close()
	hd := v.w.Header()
	hd.Set("Content-Type", "application/octet-stream")
	hd.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	disposition := mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)})
	hd.Set("Content-Disposition", cmp.Or(disposition, "attachment"))
	v.w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(v.w, r); err != nil {
		panic(http.ErrAbortHandler) // what was sent must not pass for the whole file
	}
	return nil
}

// writeFile makes or replaces a file with the body. With the hash of what was read
// it refuses to replace anything else.
func writeFile(v *visit) error {
	sb, h, err := v.opened("files")
	if err != nil {
		return err
	}
	if asleep(h) {
		return refusal{http.StatusConflict, h.ID + " is asleep, and nothing was written", "wake it with Resume, then try again"}
	}
	name := v.r.URL.Query().Get("path")
	if !path.IsAbs(name) {
		return refusal{http.StatusBadRequest, fmt.Sprintf("%.200q is not an absolute path", name), "begin it with /"}
	}
	if read := v.r.URL.Query().Get("hash"); read != "" {
		now, err := readText(v.r.Context(), sb, name)
		if err != nil {
			return err
		}
		if hashOf(now) != read {
			return refusal{http.StatusConflict, "the file has changed since it was opened, and was not saved", "copy your text, open the file again, and merge the two"}
		}
	}
	sum := sha256.New()
	if err := sb.WriteFile(v.r.Context(), name, io.TeeReader(v.r.Body, sum)); err != nil {
		return err
	}
	v.answer(http.StatusOK, map[string]string{"hash": hex.EncodeToString(sum.Sum(nil))})
	return nil
}
