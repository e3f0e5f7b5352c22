package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// uploaded describes a written file; clients compare it whole.
type uploaded struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (a *Agent) handleUpload(w http.ResponseWriter, r *http.Request) {
	query, user, err := a.fileRequest(r, agentapi.OperationWrite)
	if err != nil {
		writeError(w, err)
		return
	}
	body := newIdleBody(w, r)
	defer body.close()
	u := &upload{user: user, workdir: a.settings.workdir(), path: query.Get("path"), named: query.Get("path") != ""}
	files, err := u.receive(r.Context(), r.Header, body)
	if err != nil {
		// A client that is still sending does not read an answer: without
		// this it would see a broken connection instead of the reason.
		_, _ = io.CopyN(io.Discard, body, drainLimit)
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, files)
}

// drainLimit is what is read and discarded of a body that was refused.
const drainLimit = 256 << 20

// upload is one POST /files.
type upload struct {
	user     *account
	workdir  string
	path     string // of the query
	named    bool   // the query has a path that is not empty
	metadata map[string]string
}

func (u *upload) receive(ctx context.Context, h http.Header, body io.Reader) ([]uploaded, error) {
	var err error
	if u.metadata, err = requestMetadata(h); err != nil {
		return nil, err
	}
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return nil, faultf(invalid, "content type %q: %w", h.Get("Content-Type"), err)
	}
	switch media {
	case "multipart/form-data":
		return u.receiveForm(ctx, h, body, params["boundary"])
	case "application/octet-stream":
		return u.receiveRaw(ctx, h, body)
	}
	return nil, faultf(invalid, "content type '%s' is not supported: send multipart/form-data or application/octet-stream", wireText(media))
}

func (u *upload) receiveRaw(ctx context.Context, h http.Header, body io.Reader) ([]uploaded, error) {
	if !u.named {
		return nil, faultf(invalid, "the query parameter path is required with application/octet-stream")
	}
	path, err := resolvePath(u.path, u.user.home, u.workdir)
	if err != nil {
		return nil, err
	}
	if body, err = decodedBody(h, body); err != nil {
		return nil, err
	}
	file, err := u.write(ctx, path, body)
	return []uploaded{file}, err
}

// maxNames bounds what is kept of a form: the paths of its files, in bytes.
const maxNames = 4 << 20

func (u *upload) receiveForm(ctx context.Context, h http.Header, body io.Reader, boundary string) ([]uploaded, error) {
	if boundary == "" {
		return nil, faultf(invalid, "multipart/form-data without a boundary")
	}
	body, err := decodedBody(h, body)
	if err != nil {
		return nil, err
	}
	// The form reader asks for 4 KiB at a time.
	form := multipart.NewReader(bufio.NewReaderSize(body, 64<<10), boundary)
	files := []uploaded{}
	seen := map[string]bool{}
	names := 0
	for {
		part, err := form.NextRawPart()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, bodyFault(err)
		}
		path, wanted, err := u.target(part.Header.Get("Content-Disposition"))
		if err != nil {
			return nil, err
		}
		if !wanted {
			continue
		}
		if names += len(path); names > maxNames {
			return nil, faultf(invalid, "the names of the files take more than %d MiB: send them in several requests", maxNames>>20)
		}
		if clean := filepath.Clean(path); seen[clean] {
			return nil, faultf(invalid, "path '%s' is in the request twice", path)
		} else {
			seen[clean] = true
		}
		file, err := u.write(ctx, path, part)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
}

// target returns where a part of a form goes. Only parts named "file" go
// anywhere: to the path of the query or else to their own file name.
func (u *upload) target(disposition string) (path string, wanted bool, err error) {
	name, filename, hasFilename := parseDisposition(disposition)
	if name != "file" {
		return "", false, nil
	}
	if u.named {
		filename = u.path
	} else if !hasFilename || filename == "" {
		return "", false, faultf(invalid, "a file part has no filename, and the query has no path")
	}
	path, err = resolvePath(filename, u.user.home, u.workdir)
	return path, true, err
}

// parseDisposition reads the Content-Disposition of a form part. The standard
// library's Part.FileName would cut the directories off, which are the point
// here.
func parseDisposition(header string) (name, filename string, hasFilename bool) {
	disposition, params, err := mime.ParseMediaType(header)
	if err != nil || disposition != "form-data" {
		return "", "", false
	}
	filename, hasFilename = params["filename"]
	return params["name"], filename, hasFilename
}

// write makes content the file at path, once all of it is there.
func (u *upload) write(ctx context.Context, path string, content io.Reader) (uploaded, error) {
	file, err := openTarget(path, u.user)
	if err != nil {
		return uploaded{}, err
	}
	defer file.drop()
	if err := replaceMetadata(int(file.Fd()), u.metadata); err != nil {
		return uploaded{}, err
	}
	if err = copyFull(file, tagged{content}); err == nil {
		err = file.commit(ctx)
	}
	if err != nil {
		return uploaded{}, writeFault(path, err)
	}
	return uploaded{Name: wireText(filepath.Base(path)), Path: wireText(path), Type: "file", Metadata: u.metadata}, nil
}

// tagged marks the errors of the body, so that they are not taken for those
// of the file.
type tagged struct{ r io.Reader }

func (t tagged) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		err = bodyFault(err)
	}
	return n, err
}

func bodyFault(err error) error {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	return faultf(invalid, "read the body: %w", err)
}

func writeFault(path string, err error) error {
	if isNoSpace(err) {
		return faultf(noSpace, "not enough disk space to write '%s'", path)
	}
	return pathFault(path, err)
}

// claim gives an open regular file to the user. An owner that is right is
// left alone, since setting it would clear a set-uid bit.
func claim(path string, file *os.File, user *account) error {
	info, err := file.Stat()
	if err != nil {
		return pathFault(path, err)
	}
	if err := requireRegular(path, info); err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == user.uid && st.Gid == user.gid {
		return nil
	}
	if err := file.Chown(int(user.uid), int(user.gid)); err != nil {
		return pathFault(path, err)
	}
	return nil
}

func makeParents(path string, user *account) error {
	return makeDirs(filepath.Dir(filepath.Clean(path)), user)
}

// makeDirs creates the directories that are missing, and gives them, and only
// them, to the user.
func makeDirs(dir string, user *account) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
	}
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := makeDirs(parent, user); err != nil {
			return err
		}
	}
	err = makeOwnDir(dir, user)
	if errors.Is(err, fs.ErrExist) {
		// Another request was faster, or a dangling link is in the way.
		if info, err = os.Stat(dir); err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
		}
	}
	return err
}

// makeOwnDir makes a directory for the user. It holds on to the parent: whoever
// owns that could put a link in its place meanwhile, and what it leads to would
// be the user's.
func makeOwnDir(dir string, user *account) error {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Dir(dir), Err: err}
	}
	defer unix.Close(parent)
	name := filepath.Base(dir)
	if err = unix.Mkdirat(parent, name, 0o755); err == nil {
		err = unix.Fchownat(parent, name, int(user.uid), int(user.gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return nil
}
