package gvisor

import (
	"strings"

	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// unsavable are words of gVisor about what it cannot save, however often it tries. All
// else that fails a capture is taken for the host's.
var unsavable = []string{
	"does not support save",          // a tun device that is attached
	"does not implement SaverLoader", // such as a tun device that is kept without a process
	"can be saved", "can't be saved", // files that are open and have no name
	"cannot be saved", "is not savable", //
	"dead dentry is not saved",       //
	"Cannot save",                    // a socket that is bound on the host
	"is not restorable", "too large", // a file without a name that takes more memory than there is
	"failed to open read handle for del", // a file without a name that cannot be read
}

// holder begins the part of an error in which gVisor's process, with the edits, names
// who holds it.
const holder = "held: "

// explainCapture returns why a memory image was not written.
func explainCapture(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	for _, words := range unsavable {
		if strings.Contains(text, words) {
			return runtime.NotCapturable(human.Line(whatIsHeld(text), maxError))
		}
	}
	return brief(err)
}

// ofGVisor is what gVisor says of itself in what it cannot save.
var ofGVisor = lazyregexp.New(`encoding error: |gofer\.dentry\("[^"]*"\)(\.\w+)?: `)

// whatIsHeld returns the part of gVisor's text that is about what is inside.
func whatIsHeld(text string) string {
	if _, said, ok := strings.Cut(text, holder); ok {
		text = said
	} else if strings.HasPrefix(text, "checkpointing container ") {
		_, text, _ = strings.Cut(text, ": ")
	}
	return strings.TrimRight(ofGVisor.ReplaceAllString(text, ""), ": ")
}
