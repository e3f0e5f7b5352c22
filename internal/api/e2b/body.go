package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
)

// decode reads the body, a JSON object, into a struct. Unknown fields are
// ignored, as clients of any version must work.
func (c *call) decode(into any) error {
	data, err := c.requiredBody()
	if err != nil {
		return err
	}
	return decodeObject(data, into)
}

// decodeOptional is decode where the body may be missing: into then stays as
// it is.
func (c *call) decodeOptional(into any) error {
	data, err := c.body()
	if err != nil || len(data) == 0 {
		return err
	}
	return decodeObject(data, into)
}

func (c *call) requiredBody() ([]byte, error) {
	data, err := c.body()
	if err == nil && len(data) == 0 {
		err = badRequest("the request body is empty: a JSON object is needed")
	}
	return data, err
}

// body reads all of the body, nil if there is none.
func (c *call) body() ([]byte, error) {
	return httpapi.ReadBody(c.w, c.r, c.key.ID)
}

func decodeObject(data []byte, into any) error {
	if !utf8.Valid(data) {
		return badRequest("the request body is not valid UTF-8")
	}
	err := json.Unmarshal(data, into)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		line, column := httpapi.Position(data, e.Offset)
		return badRequest("the request body is not valid JSON: line %d, column %d: %v", line, column, e)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrongType(e)
	}
	if err != nil {
		return fmt.Errorf("decode a %T: %w", into, err)
	}
	if isNull(bytes.TrimSpace(data)) {
		return badRequest("the request body must be an object, not null")
	}
	return nil
}

func wrongType(e *json.UnmarshalTypeError) *failure {
	field := fmt.Sprintf("%q", e.Field)
	if e.Field == "" {
		field = "the request body"
	}
	return badRequest("%s must be %s, not %s", field, wanted(e.Type), e.Value)
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Int32:
		return "an integer of 32 bits"
	case reflect.Slice:
		return "an array"
	default:
		return "an object"
	}
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// given reports whether an optional field says anything.
func given(raw json.RawMessage) bool { return len(raw) > 0 && !isNull(raw) }

// stringMap decodes an object whose values must all be strings; absent and
// empty are both nil.
func stringMap(field string, raw json.RawMessage) (map[string]string, error) {
	if !given(raw) {
		return nil, nil
	}
	var values map[string]any
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, badRequest("%q must be an object with string values", field)
	}
	if len(values) == 0 {
		return nil, nil
	}
	texts := make(map[string]string, len(values))
	for name, v := range values {
		text, ok := v.(string)
		if !ok {
			return nil, badRequest("%q must be an object with string values: that of %q is %s", field, name, jsonKind(v))
		}
		texts[name] = text
	}
	return texts, nil
}

func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case float64:
		return "a number"
	case []any:
		return "an array"
	default:
		return "an object"
	}
}
