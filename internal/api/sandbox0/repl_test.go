package sandbox0

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

// TestCellMessages: a text is taken, anything else in its place is nothing, and takes
// no more memory than its line.
func TestCellMessages(t *testing.T) {
	for line, want := range map[string]string{
		`{"type":"stdout","text":"a\nb"}`: "a\nb", `{"type":"result","text":5}`: "", `{"type":"result","text":null}`: "",
		`{"type":"result","text":{"a":["b"]}}`: "", `{"type":"result"}`: "", `{"type":"result","text":"\ud800"}`: "\ufffd",
	} {
		var m cellMessage
		if err := json.Unmarshal([]byte(line), &m); err != nil || string(m.Text) != want {
			t.Errorf("%s: %q, %v; want %q", line, m.Text, err, want)
		}
	}
	const n = 1 << 20
	line := []byte(`{"type":"stdout","text":[` + strings.Repeat("[],", n) + `0]}`)
	var before, after runtime.MemStats
	var m cellMessage
	runtime.ReadMemStats(&before)
	err := json.Unmarshal(line, &m)
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; err != nil || spent > 8*n {
		t.Errorf("of %d bytes %d were made, %v", len(line), spent, err)
	}
}
