package agent

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// sniffSize is read ahead of a download: enough to see that a file is empty
// whatever its stat size says, to guess its type, and to serve small files,
// those of /proc among them, from memory with their true length.
const sniffSize = 32 << 10

func (a *Agent) handleDownload(w http.ResponseWriter, r *http.Request) {
	query, user, err := a.fileRequest(r, agentapi.OperationRead)
	if err != nil {
		writeError(w, err)
		return
	}
	path, err := resolvePath(query.Get("path"), user.home, a.settings.workdir())
	if err != nil {
		writeError(w, err)
		return
	}
	compress, ok := acceptsEncoding(r.Header.Values("Accept-Encoding"))
	if !ok {
		writeError(w, faultf(notAcceptable, "no acceptable encoding: offered are gzip and identity"))
		return
	}
	file, info, err := openRegular(path)
	if err != nil {
		writeError(w, err)
		return
	}
	defer file.Close()
	d := &download{path: path, file: file, info: info}
	if err := d.readHead(); err != nil {
		writeError(w, pathFault(path, err))
		return
	}
	d.serve(w, r, compress)
}

// openRegular opens a regular file without waiting for anybody, as the open
// of a FIFO would.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = requireRegular(path, info)
	}
	if err != nil {
		return nil, nil, pathFault(path, err)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, pathFault(path, err)
	}
	if info, err = file.Stat(); err == nil {
		err = requireRegular(path, info)
	}
	if err != nil {
		file.Close()
		return nil, nil, pathFault(path, err)
	}
	return file, info, nil
}

func requireRegular(path string, info os.FileInfo) error {
	switch {
	case info.IsDir():
		return faultf(invalid, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		return faultf(invalid, "path '%s' is not a regular file", path)
	}
	return nil
}

// download is one open file on its way out.
type download struct {
	path string
	file *os.File
	info os.FileInfo
	head []byte
	all  bool // head is the whole file
}

func (d *download) readHead() error {
	head := make([]byte, min(max(d.info.Size(), 512)+1, sniffSize))
	n, err := io.ReadFull(d.file, head)
	if n == len(head) && d.info.Size() < sniffSize-1 {
		// More than stat promised: a file of /proc, or one that grows.
		rest := make([]byte, sniffSize-n)
		var m int
		m, err = io.ReadFull(d.file, rest)
		head = append(head, rest[:m]...)
		n += m
	}
	d.head = head[:n]
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		d.all = true
		return nil
	}
	return err
}

func (d *download) serve(w http.ResponseWriter, r *http.Request, compress bool) {
	h := w.Header()
	h.Set("Content-Disposition", disposition(filepath.Base(d.path)))
	h.Set("Content-Type", contentType(d.path, d.head))
	h.Add("Vary", "Accept-Encoding")
	switch {
	case d.all && len(d.head) == 0:
		// Clients look at this header to tell an empty file from no answer.
		h.Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
	case compress && !hasPreconditions(r.Header):
		d.serveGzip(w, r)
	case d.all:
		http.ServeContent(w, r, "", d.info.ModTime(), bytes.NewReader(d.head))
	case d.info.Size() == 0:
		d.stream(w, r)
	default:
		if _, err := d.file.Seek(0, io.SeekStart); err != nil {
			writeError(w, pathFault(d.path, err))
			return
		}
		http.ServeContent(w, r, "", d.info.ModTime(), d.file)
	}
}

func (d *download) serveGzip(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Set("Last-Modified", d.info.ModTime().UTC().Format(http.TimeFormat))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	abortOn(copyGzip(w, d.body()))
}

func (d *download) stream(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	_, err := copyAll(w, d.body())
	abortOn(err)
}

// body is the file from its beginning until its end, whatever its size.
func (d *download) body() io.Reader {
	if d.all {
		return bytes.NewReader(d.head)
	}
	return io.MultiReader(bytes.NewReader(d.head), d.file)
}

// abortOn breaks the connection: the status has been sent, and a body that
// just ends would pass for the whole file.
func abortOn(err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// hasPreconditions is about headers that only an uncompressed answer, with a
// length and ranges of its own, can honour.
func hasPreconditions(h http.Header) bool {
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		if h.Get(name) != "" {
			return true
		}
	}
	return false
}

func contentType(path string, head []byte) string {
	if t := mime.TypeByExtension(strings.ToLower(filepath.Ext(path))); t != "" {
		return t
	}
	return http.DetectContentType(head)
}

func disposition(name string) string {
	if d := mime.FormatMediaType("inline", map[string]string{"filename": wireText(name)}); d != "" {
		return d
	}
	return "inline"
}

// idleLimit is how long an upload may send nothing.
const idleLimit = 5 * time.Minute

// idleBody fails a request body that stalls, so that a dead client does not
// hold a file open for ever.
type idleBody struct {
	r          io.Reader
	controller *http.ResponseController
}

func newIdleBody(w http.ResponseWriter, r *http.Request) *idleBody {
	return &idleBody{r: r.Body, controller: http.NewResponseController(w)}
}

func (b *idleBody) Read(p []byte) (int, error) {
	_ = b.controller.SetReadDeadline(time.Now().Add(idleLimit))
	n, err := b.r.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = faultf(invalid, "the body sent nothing for %s", strconv.Itoa(int(idleLimit/time.Second))+" s")
	}
	return n, err
}

// close lifts the limit for what comes next on the connection.
func (b *idleBody) close() { _ = b.controller.SetReadDeadline(time.Time{}) }
