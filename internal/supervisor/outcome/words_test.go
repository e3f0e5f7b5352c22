package outcome

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

func TestWords(t *testing.T) {
	for want, err := range map[string]error{
		"it failed":                  errors.New("it failed"),
		"it failed on one line":      errors.New("it failed on one line:\n\tand another"),
		"read it: open x: no such":   fmt.Errorf("read it: %w", &fs.PathError{Op: "open", Path: "/srv/secret/x", Err: errors.New("no such")}),
		"its memory cannot be saved": errdef.New(errdef.WrongState, runtime.CodeNotCapturable, "its memory cannot be saved").WithRemedy("close it"),
		"the server could not read or write its database": fmt.Errorf("start it: %w", errdef.New(errdef.Unavailable, "store_unavailable",
			"commit sandbox a: failed to connect to `user=drowse database=t1`:\n\t10.0.0.9: refused")),
	} {
		if got := Words(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
