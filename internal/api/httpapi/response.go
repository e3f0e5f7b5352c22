package httpapi

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/held"
)

// Response is an answer ready to be written.
type Response struct {
	Status int
	Header http.Header
	Body   []byte // JSON; empty for none
}

// Encode makes a response of a body, nil for none.
func Encode(status int, header http.Header, body any) (Response, error) {
	if body == nil {
		return Response{Status: status, Header: header}, nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return Response{}, fmt.Errorf("encode a %T: %w", body, err)
	}
	return Response{Status: status, Header: header, Body: bytes.TrimRight(buf.Bytes(), "\n")}, nil
}

// WriteTo sends the response. A client that has gone away is no error of ours.
func (r Response) WriteTo(w http.ResponseWriter) {
	h := w.Header()
	maps.Copy(h, r.Header)
	if len(r.Body) > 0 {
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", strconv.Itoa(len(r.Body)))
	}
	w.WriteHeader(r.Status)
	_ = held.WriteAnswer(w, r.Body)
}

// RequestID returns a name under which a client and the log find a failure.
func RequestID() string { return strings.ToLower(rand.Text()[:12]) }

// Timestamp is a time in RFC 3339, UTC, always with microseconds: more digits
// are lost on clients, and a time that comes back must equal what was sent.
type Timestamp time.Time

// MarshalText implements encoding.TextMarshaler.
func (t Timestamp) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000000Z"), nil
}
