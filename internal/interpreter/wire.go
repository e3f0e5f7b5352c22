package interpreter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// message is what a kernel says.
type message struct {
	Type string `json:"type"`

	Text string `json:"text"` // of stdout and stderr

	Main bool                       `json:"main"` // of a result
	Data map[string]json.RawMessage `json:"data"`

	Name      string `json:"name"` // of an error
	Value     string `json:"value"`
	Traceback string `json:"traceback"`

	Version    string `json:"version"` // of ready
	TypeScript bool   `json:"typescript"`
}

// The types of messages, ours and the client's.
const (
	typeStdout    = "stdout"
	typeStderr    = "stderr"
	typeResult    = "result"
	typeError     = "error"
	typeReady     = "ready"
	typeDone      = "done"
	typeCount     = "number_of_executions"
	typeKeepalive = "keepalive"
	typeEnd       = "end_of_execution"
)

// resultFields are the fields of a result by MIME type.
var resultFields = map[string]string{
	"text/plain":             "text",
	"text/html":              "html",
	"text/markdown":          "markdown",
	"image/svg+xml":          "svg",
	"image/png":              "png",
	"image/jpeg":             "jpeg",
	"application/pdf":        "pdf",
	"text/latex":             "latex",
	"application/json":       "json",
	"application/javascript": "javascript",
	"e2b/data":               "data",
	"e2b/chart":              "chart",
}

// fields returns a message of a kernel as clients get it.
func (m *message) fields() map[string]any {
	switch m.Type {
	case typeStdout, typeStderr:
		return map[string]any{"type": m.Type, "text": m.Text, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
	case typeError:
		return errorFields(m.Name, m.Value, m.Traceback)
	}
	f := map[string]any{"type": typeResult, "is_main_result": m.Main}
	extra := map[string]json.RawMessage{}
	for mime, data := range m.Data {
		switch name, known := resultFields[mime]; {
		case !known:
			extra[mime] = data
		case name == "text":
			f[name] = unquoted(data)
		default:
			f[name] = data
		}
	}
	if len(extra) > 0 {
		f["extra"] = extra
	}
	return f
}

func errorFields(name, value, traceback string) map[string]any {
	return map[string]any{"type": typeError, "name": name, "value": value, "traceback": traceback}
}

// unquoted shows a string by its contents: 'a' as a.
func unquoted(data json.RawMessage) any {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return data
	}
	if n := len(text); n >= 2 && text[0] == text[n-1] && (text[0] == '\'' || text[0] == '"') {
		text = text[1 : n-1]
	}
	return text
}

// stream is the answer to an execution: JSON objects, one a line, each sent at
// once.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	started bool
	failed  bool // an error was told: there is at most one
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, control: http.NewResponseController(w)}
}

// send blocks while the client does not read.
func (s *stream) send(fields map[string]any) error {
	if fields["type"] == typeError {
		if s.failed {
			return nil
		}
		s.failed = true
	}
	line, err := encodeLine(fields)
	if err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	if _, err := s.w.Write(line); err != nil {
		return err
	}
	return s.control.Flush()
}

func (s *stream) start() error {
	if s.started {
		return nil
	}
	s.started = true
	s.w.Header().Set("Content-Type", "application/x-ndjson")
	s.w.WriteHeader(http.StatusOK)
	return s.control.Flush()
}

// encodeLine writes ASCII alone: a client that decodes each piece it reads for
// itself never meets half a character.
func encodeLine(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return escaped(b.Bytes()), nil
}

func escaped(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out
}

// MediaType returns the media type of a field of a result, such as png.
func MediaType(field string) (media string, known bool) {
	for media, name := range resultFields {
		if name == field {
			return media, true
		}
	}
	return "", false
}
