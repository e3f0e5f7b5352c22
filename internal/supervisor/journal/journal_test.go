package journal

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestAppendBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	line := func(n int) []byte {
		data, err := json.Marshal(Line{Message: strconv.Itoa(n)})
		if err != nil {
			t.Fatal(err)
		}
		return append(data, '\n')
	}
	const most = 1000
	for n := range 500 {
		if err := appendBounded(path, line(n), most); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) > most {
			t.Fatalf("%d bytes after line %d, %v", len(data), n, err)
		}
		if !strings.HasSuffix(string(data), string(line(n))) || !strings.HasPrefix(string(data), `{"at"`) {
			t.Fatalf("after line %d: %s", n, data)
		}
	}
}
