package body

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/drowse-dev/drowse/internal/store"
)

// IdempotencyHeader has the key by which a create that is sent again makes no
// second sandbox.
const IdempotencyHeader = "Idempotency-Key"

// MaxIdempotencyKey is how many characters such a key may have.
const MaxIdempotencyKey = 255

// Idempotency returns the idempotency key of a request with what it asks for;
// nil if it has none. A key may be written as a quoted string, as the draft of
// the header has it, or bare, as most clients write it. Two bodies are the same
// if they are the same JSON, whatever the order of their fields.
func Idempotency(h http.Header, path string, body []byte) (*store.Idempotency, error) {
	values := h.Values(IdempotencyHeader)
	if len(values) == 0 {
		return nil, nil
	}
	if len(values) > 1 {
		return nil, badIdempotencyKey("the request has %d of them", len(values))
	}
	key := strings.TrimSpace(values[0])
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if len(key) < 1 || len(key) > MaxIdempotencyKey {
		return nil, badIdempotencyKey("it has %d characters", len(key))
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
		return nil, badIdempotencyKey("%q has others", Short(key))
	}
	return &store.Idempotency{Key: key, Request: digest(path, body)}, nil
}

func badIdempotencyKey(format string, args ...any) error {
	return Invalid("the "+IdempotencyHeader+" header must be one text of 1 to 255 visible ASCII characters without quotes and backslashes: "+format, args...).
		WithRemedy("use a random UUID, the same for each try of one create").With("field", IdempotencyHeader)
}

// digest returns what tells two requests apart.
func digest(path string, body []byte) string {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err == nil {
		body, _ = json.Marshal(value) // what was decoded can be encoded; maps are sorted
	}
	h := sha256.New()
	h.Write([]byte(path + "\x00"))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}
