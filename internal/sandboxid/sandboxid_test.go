package sandboxid

import (
	"strings"
	"testing"
)

func TestPossible(t *testing.T) {
	for text, want := range map[string]bool{
		"i0123456789abcdefghij": true, "a": true, strings.Repeat("z", 64): true,
		"": false, strings.Repeat("z", 65): false, "I1": false, "a-b": false, "a/b": false, "ä": false, "a\n": false,
	} {
		if got := Possible(text); got != want {
			t.Errorf("Possible(%q) = %v", text, got)
		}
	}
}
