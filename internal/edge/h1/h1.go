// Package h1 reads the heads and the framing of HTTP/1.1 messages (RFC 9112),
// strictly: a message that two readers could take for different things is an
// error, even where the RFC lets a server mend it. What passes here can be
// forwarded byte for byte, because everybody behind reads it the same way.
//
// A head is parsed from one string and its parts are substrings of it, so that
// a request costs one allocation.
package h1

import (
	"fmt"
	"strconv"
	"strings"
)

// Field is a header field, its value without surrounding white space.
type Field struct{ Name, Value string }

// Fields are the header fields of a message, in their order.
type Fields []Field

// Get returns the value of the first field of that name, or "".
func (f Fields) Get(name string) string {
	for i := range f {
		if len(f[i].Name) == len(name) && strings.EqualFold(f[i].Name, name) {
			return f[i].Value
		}
	}
	return ""
}

// Count returns how many fields of that name there are.
func (f Fields) Count(name string) (n int) {
	for i := range f {
		if len(f[i].Name) == len(name) && strings.EqualFold(f[i].Name, name) {
			n++
		}
	}
	return n
}

// Error is a message that is refused, with the status that says why (RFC 9110
// §15). For a response the status has no meaning.
type Error struct {
	Status int
	Reason string
}

// Error implements error.
func (e *Error) Error() string { return e.Reason }

func refuse(status int, format string, args ...any) *Error {
	return &Error{Status: status, Reason: fmt.Sprintf(format, args...)}
}

func bad(format string, args ...any) *Error { return refuse(400, format, args...) }

// Length values of a body that has no length of its own.
const (
	Chunked    = -1
	UntilClose = -2 // responses only
)

// Request is the head of a request.
type Request struct {
	Method string
	Target string // in origin form, or "*"
	Host   string // "" only in HTTP/1.0
	Minor  int    // 1, or 0 for HTTP/1.0
	Fields Fields // all of them
	Length int64  // of the body; or Chunked
	Close  bool   // the connection ends after it
	// Upgrade is the protocol that the client asks to switch to, or "".
	Upgrade string

	options []string // of the Connection fields
}

// Response is the head of a response.
type Response struct {
	Status int
	Reason string
	Minor  int
	Fields Fields
	Length int64 // of the body; or Chunked, or UntilClose
	Close  bool

	options []string
}

// ParseRequest parses a head that ends with an empty line. Fields are appended
// to fields, which may be reused when the request is done with. The error is
// an *Error.
func ParseRequest(head string, fields Fields) (Request, error) {
	line, rest, err := cutLine(head)
	if err != nil {
		return Request{}, err
	}
	r := Request{}
	if err := r.parseLine(line); err != nil {
		return r, err
	}
	var f framing
	if r.Fields, f, err = parseRest(rest, r.Minor, fields); err != nil {
		return r, err
	}
	r.options, r.Close = f.options, f.close
	switch {
	case f.chunked:
		r.Length = Chunked
	case f.length >= 0:
		r.Length = f.length
	}
	if err := r.checkHost(f); err != nil {
		return r, err
	}
	if hasToken(f.options, "upgrade") && r.Minor == 1 {
		r.Upgrade = r.Fields.Get("Upgrade")
	}
	return r, nil
}

// CheckTranslated holds a request by another version of HTTP, which has
// something else in place of a request line and Host, to the rules of this one:
// it goes on as HTTP/1.1. length is what its Content-Length says, or -1. The
// error is an *Error.
func CheckTranslated(method, target, host string, fields Fields) (length int64, err error) {
	switch {
	case !ValidMethod(method):
		return 0, bad("the method is malformed")
	case method == "CONNECT":
		return 0, refuse(405, "CONNECT is not possible here")
	case !validTarget(target, method):
		return 0, bad("the request target is malformed")
	case host == "":
		return 0, bad("Host is missing")
	case !validHost(host):
		return 0, bad("Host is malformed")
	case len(fields) > maxFields:
		return 0, errTooManyFields
	}
	f, err := readFraming(fields, 1)
	switch {
	case err != nil:
		return 0, err
	case f.chunked:
		return 0, bad("Transfer-Encoding has a place in HTTP/1.1 alone")
	case f.hosts > 1, f.hosts == 1 && !strings.EqualFold(f.host, host):
		return 0, bad("there is more than one Host")
	}
	return f.length, nil
}

// ParseResponse parses the head of an answer to a request with that method.
// The error is an *Error.
func ParseResponse(head, method string, fields Fields) (Response, error) {
	line, rest, err := cutLine(head)
	if err != nil {
		return Response{}, err
	}
	r := Response{}
	if err := r.parseLine(line); err != nil {
		return r, err
	}
	var f framing
	if r.Fields, f, err = parseRest(rest, r.Minor, fields); err != nil {
		return r, err
	}
	r.options, r.Close = f.options, f.close
	switch {
	case r.Status < 200, r.Status == 204, r.Status == 304, method == "HEAD":
		// These have no body, whatever their fields say (RFC 9112 §6.3).
	case f.chunked:
		r.Length = Chunked
	case f.length >= 0:
		r.Length = f.length
	default:
		r.Length, r.Close = UntilClose, true
	}
	return r, nil
}

// Forwarded reports whether a field goes on to the next hop: those that concern
// this connection alone do not (RFC 9110 §7.6.1). Framing fields do, because
// the framing is passed on as it is.
func (r *Request) Forwarded(name string) bool { return forwarded(name, r.options) }

// Forwarded is like that of a Request.
func (r *Response) Forwarded(name string) bool { return forwarded(name, r.options) }

func (r *Request) parseLine(line string) error {
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 {
		return bad("the request line is malformed")
	}
	if !ValidMethod(method) {
		return bad("the method is malformed")
	}
	switch version {
	case "HTTP/1.1":
		r.Minor = 1
	case "HTTP/1.0":
	default:
		if strings.HasPrefix(version, "HTTP/") && len(version) == len("HTTP/1.1") {
			return refuse(505, "only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here")
		}
		return bad("the request line is malformed")
	}
	if method == "CONNECT" {
		return refuse(405, "CONNECT is not possible here")
	}
	r.Method, r.Target = method, target
	if !validTarget(target, method) {
		return bad("the request target is malformed")
	}
	return nil
}

// ValidMethod reports whether a text can be a method, or the beginning of one.
func ValidMethod(method string) bool { return isToken(method) && len(method) <= 32 }

// IsRequestLine reports whether a line, without its end, begins a request that
// [ParseRequest] takes.
func IsRequestLine(line string) bool { return new(Request).parseLine(line) == nil }

func validTarget(target, method string) bool {
	if target == "*" {
		return method == "OPTIONS"
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return target != ""
}

// checkHost puts an absolute target into origin form. One that names another
// host than the Host field is refused: those behind disagree on which counts.
func (r *Request) checkHost(f framing) error {
	switch {
	case f.hosts > 1:
		return bad("there is more than one Host")
	case f.hosts == 0 && r.Minor == 1:
		return bad("Host is missing")
	}
	r.Host = f.host
	if !validHost(r.Host) {
		return bad("Host is malformed")
	}
	if r.Target[0] == '/' || r.Target == "*" {
		return nil
	}
	scheme, rest, ok := strings.Cut(r.Target, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return bad("the request target is malformed")
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if f.hosts == 0 || !strings.EqualFold(authority, r.Host) {
		return bad("the request target names another host than Host does")
	}
	if path == "" || path[0] == '?' {
		path = "/" + path
	}
	r.Target = path
	return nil
}

// validHost accepts what a host and port can consist of (RFC 3986 §3.2.2),
// without looking at its structure.
func validHost(host string) bool {
	for i := range len(host) {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-._~:[]!$&'()*+;=%", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func (r *Response) parseLine(line string) error {
	if len(line) < len("HTTP/1.1 200") || line[:len("HTTP/1.")] != "HTTP/1." || line[8] != ' ' {
		return bad("the status line is malformed")
	}
	switch line[7] {
	case '1':
		r.Minor = 1
	case '0':
	default:
		return bad("the status line is malformed")
	}
	status, err := strconv.ParseUint(line[9:12], 10, 16)
	if err != nil || status < 100 || status > 999 {
		return bad("the status is malformed")
	}
	r.Status = int(status)
	switch reason := line[12:]; {
	case reason == "":
	case reason[0] != ' ' || !validValue(reason):
		return bad("the status line is malformed")
	default:
		r.Reason = reason[1:]
	}
	return nil
}

// cutLine splits off a line, which must end with CR LF.
func cutLine(s string) (line, rest string, err error) {
	i := strings.IndexByte(s, '\n')
	if i < 1 || s[i-1] != '\r' {
		return "", "", bad("a line does not end with CR LF")
	}
	return s[:i-1], s[i+1:], nil
}

// parseRest parses what follows the first line of a head.
func parseRest(rest string, minor int, fields Fields) (Fields, framing, error) {
	fields, err := parseFields(rest, fields)
	if err != nil {
		return fields, framing{}, err
	}
	f, err := readFraming(fields, minor)
	return fields, f, err
}

// maxFields bounds the number of fields.
const maxFields = 256

var errTooManyFields = refuse(431, "there are more than %d header fields", maxFields)

// parseFields parses field lines up to the empty line, which must be the last.
func parseFields(s string, fields Fields) (Fields, error) {
	for n := 0; ; n++ {
		line, rest, err := cutLine(s)
		if err != nil {
			return fields, err
		}
		if line == "" {
			if rest != "" {
				return fields, bad("the head has more than one end")
			}
			return fields, nil
		}
		if n == maxFields {
			return fields, errTooManyFields
		}
		f, err := parseField(line)
		if err != nil {
			return fields, err
		}
		fields = append(fields, f)
		s = rest
	}
}

func parseField(line string) (Field, error) {
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isToken(name) {
		return Field{}, bad("a header field is malformed")
	}
	value = trim(value)
	if !validValue(value) {
		return Field{}, bad("the value of header field %s has a control character", name)
	}
	return Field{Name: name, Value: value}, nil
}

// trim removes optional white space (RFC 9110 §5.6.3) from both ends.
func trim(s string) string {
	for s != "" && isBlank(s[0]) {
		s = s[1:]
	}
	for s != "" && isBlank(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// tokenChars are those of a token (RFC 9110 §5.6.2).
var tokenChars = func() (t [256]bool) {
	for c := range t {
		t[c] = '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' ||
			c < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0
	}
	return t
}()

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenChars[s[i]] {
			return false
		}
	}
	return s != ""
}
