package outcome

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// maxWords bounds what an entry of the event log says of an error.
const maxWords = 300

// Words returns what those may read who see a sandbox of an error that ended an
// operation on it: one line, without a dump of what went wrong, without the
// directories of the host, and without what only operators know of the database.
func Words(err error) string {
	text := err.Error()
	switch e, _ := errors.AsType[*errdef.Error](err); {
	case e == nil:
	case e.Code == runtime.CodeNotCapturable:
		text = e.Message
	case e.Code == "store_unavailable":
		text = "the server could not read or write its database"
	}
	text, _, _ = strings.Cut(text, "\n")
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		text = nameOnly(text, pe.Path)
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		text = nameOnly(nameOnly(text, le.Old), le.New)
	}
	return human.Line(strings.TrimRight(text, ": "), maxWords)
}

func nameOnly(text, path string) string {
	if !filepath.IsAbs(path) {
		return text
	}
	return strings.ReplaceAll(text, path, filepath.Base(path))
}
