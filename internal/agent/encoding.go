package agent

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// acceptsEncoding picks between gzip and identity by an Accept-Encoding
// header; ok is false if it excludes both. A wildcard alone does not ask for
// compression, it only allows it.
func acceptsEncoding(header []string) (compress, ok bool) {
	quality := map[string]float64{}
	for item := range strings.SplitSeq(strings.Join(header, ","), ",") {
		name, q := parseCoding(item)
		if name == "x-gzip" {
			name = "gzip"
		}
		if name != "" {
			quality[name] = q
		}
	}
	wildcard, hasWildcard := quality["*"]
	gzipQ, gzipNamed := quality["gzip"]
	identityQ, identityNamed := quality["identity"]
	if !identityNamed && hasWildcard {
		identityQ = wildcard
	}
	identityAllowed := identityQ > 0 || !identityNamed && !hasWildcard
	if gzipNamed && gzipQ > 0 && gzipQ >= identityQ {
		return true, true
	}
	if identityAllowed {
		return false, true
	}
	compress = gzipNamed && gzipQ > 0 || !gzipNamed && wildcard > 0
	return compress, compress
}

// parseCoding splits "gzip;q=0.5"; a malformed quality is none.
func parseCoding(item string) (string, float64) {
	name, params, _ := strings.Cut(item, ";")
	q := 1.0
	for param := range strings.SplitSeq(params, ";") {
		if key, value, ok := strings.Cut(strings.TrimSpace(param), "="); ok && strings.EqualFold(strings.TrimSpace(key), "q") {
			parsed, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(parsed >= 0 && parsed <= 1) {
				parsed = 0
			}
			q = parsed
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), q
}

// A gzip writer is more than half a megabyte, so idle ones are kept until the
// next garbage collections. Speed over ratio: the link is a local one.
var gzipWriters = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	return w
}}

// copyGzip compresses r into w.
func copyGzip(w io.Writer, r io.Reader) error {
	zw := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(zw)
	zw.Reset(w)
	_, err := copyAll(zw, r)
	if closeErr := zw.Close(); err == nil {
		err = closeErr
	}
	zw.Reset(io.Discard)
	return err
}

// decodedBody undoes the Content-Encoding of a request.
func decodedBody(h http.Header, body io.Reader) (io.Reader, error) {
	switch encoding := strings.ToLower(strings.TrimSpace(strings.Join(h.Values("Content-Encoding"), ","))); encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		zr, err := gzip.NewReader(body)
		if err != nil {
			return nil, faultf(invalid, "the body is not gzip: %w", err)
		}
		return zr, nil
	default:
		return nil, faultf(invalid, "content encoding '%s' is not supported", wireText(encoding))
	}
}

// copyChunk is what is read at once if it is there. In a sandbox each read and write has
// a price, whatever its size: with 512 KiB instead of 128 KiB, an upload took a quarter
// less of the CPU.
const copyChunk = 512 << 10

// leastWrite is how much copyFull waits for.
const leastWrite = 128 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copyChunk]byte) }}

// copyAll is io.Copy with large pooled buffers: each write into the sandbox's
// file system has a price, whatever its size.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copyChunk]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buf[:])
}

// copyFull is copyAll for a reader that may have little at a time: every write but the
// last is of at least leastWrite.
func copyFull(w io.Writer, r io.Reader) error {
	buf := copyBuffers.Get().(*[copyChunk]byte)
	defer copyBuffers.Put(buf)
	for {
		n := 0
		var err error
		for n < leastWrite && err == nil {
			var m int
			m, err = r.Read(buf[n:])
			n += m
		}
		if err != nil && err != io.EOF {
			return err
		}
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}
