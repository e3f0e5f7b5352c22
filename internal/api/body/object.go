package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// member is one field of a JSON object as sent.
type member struct {
	name string
	raw  json.RawMessage
}

func Invalid(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "invalid_request", format, args...)
}

// checkJSON says where a body is no JSON.
func checkJSON(data []byte) error {
	if !utf8.Valid(data) {
		return Invalid("the request body is not valid UTF-8")
	}
	var raw json.RawMessage
	err := json.Unmarshal(data, &raw)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		line, column := httpapi.Position(data, e.Offset)
		return Invalid("the request body is not valid JSON: line %d, column %d: %v", line, column, e)
	}
	if err != nil {
		return Invalid("the request body is not valid JSON: %v", err)
	}
	return nil
}

// members returns the fields of a JSON object in order, repeated ones too, and
// false if the value is none. The value must be valid JSON.
func members(raw []byte) ([]member, bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, false
	}
	list := []member{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, false
		}
		text, ok := name.(string)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil || !ok {
			return nil, false
		}
		list = append(list, member{text, value})
	}
	return list, true
}

// distinct is members where no name may be repeated: which value would count?
func distinct(path string, raw []byte) ([]member, error) {
	list, ok := members(raw)
	if !ok {
		return nil, wrongKind(path, "an object", raw)
	}
	seen := map[string]bool{}
	for _, m := range list {
		if seen[m.name] {
			return nil, Invalid("%q has %q twice", path, Short(m.name)).With("field", path)
		}
		seen[m.name] = true
	}
	return list, nil
}

func wrongKind(path, wanted string, raw []byte) error {
	path = Short(path)
	return Invalid("%q must be %s, not %s", path, wanted, kindOf(raw)).With("field", path)
}

// kindOf names what a JSON value is.
func kindOf(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}

func isNull(raw []byte) bool { return kindOf(raw) == "null" }

// Short returns a text for an error message, cut if it is long.
func Short(text string) string {
	const most = 80
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
