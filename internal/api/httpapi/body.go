package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// MaxBody bounds a request's body, as E2B's own service does.
const MaxBody = 16 << 20

// What can be wrong with a body before it is looked at.
var (
	ErrBodyTooLarge = errors.New("the request body is larger than 16 MiB")
	ErrBodyBroken   = errors.New("the request body could not be read to its end")
)

// ReadBody reads all of the body; its length need not be known. White space
// alone is nothing. Otherwise white space stays, for the positions that errors
// name.
func ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > MaxBody {
		return nil, ErrBodyTooLarge
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, ErrBodyTooLarge
	}
	if err != nil {
		return nil, ErrBodyBroken
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	return data, nil
}

// Position returns the line and the column, in bytes, of the byte before
// offset: where a JSON decoder stopped.
func Position(data []byte, offset int64) (line, column int) {
	before := data[:max(0, min(offset-1, int64(len(data))))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
