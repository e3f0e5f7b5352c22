// Package build makes templates of steps: commands that are run, and files that
// are copied, over another template.
//
// Each step that may change files runs in a sandbox of the API key that builds.
// Then that sandbox is paused, and a snapshot of its files is kept: a layer of what
// the step has changed, over those of the steps before. The next build that has the
// same steps begins after the last one whose snapshot is there. The result is a
// snapshot with a name, so that sandboxes start from it as from every other; one
// with a start command has memory too, and its sandboxes wake instead of booting.
//
// A build that a server did not bring to its end has failed when that starts
// again. Its sandbox is ended, and snapshots that no template has are removed. One
// that ends while the store cannot write has ended when the store can again.
// Templates and their builds are in the store; what builds said is known until the server stops.
//
// The package knows nothing of HTTP, and of sandboxes only what [Workshop] says.
package build

import (
	"context"
	"io"
	"time"

	"github.com/drowse-dev/drowse/internal/image"
	"github.com/drowse-dev/drowse/internal/store"
)

// Kind is what a step does.
type Kind string

// The kinds of steps.
const (
	Copy    Kind = "COPY"
	Run     Kind = "RUN"
	Env     Kind = "ENV"
	Workdir Kind = "WORKDIR"
	User    Kind = "USER"
)

// Step is one step of a recipe.
type Step struct {
	Kind  Kind
	Args  []string
	Files string // of a copy: the hash by which its archive was uploaded
	Force bool   // run it, and those after it, although its result is known
}

// Base is what a recipe begins with: a template, or an image.
type Base struct {
	Template string       // name of a template, or what Snapshot knows
	Image    string       // reference to an image
	Login    *image.Login // to fetch the image; nil for the server's own credentials
	MayFetch bool         // whoever builds may have the server fetch an image
	// Snapshot returns the id of the snapshot that a reference is for whoever builds. One
	// that is unknown is an errdef.NotFound.
	Snapshot func(ref string) (id string, err error)
}

// Recipe is how a template is made.
type Recipe struct {
	Base  Base
	Force bool // run all steps, whatever is known
	Steps []Step
	Start string // a command that runs in every sandbox of the template
	Ready string // ends with 0 when the template is ready to be kept
}

// Origin is where sandboxes of a build start.
type Origin struct {
	Template string // the id of a template; empty for a snapshot
	Snapshot string // the id of a snapshot
	State    State
	Alias    string // what the log calls it
}

// id names what an origin is: the same id is the same files.
func (o Origin) id() string { return o.Template + "/" + o.Snapshot }

// Spec says for whom a sandbox of a build is, and what its snapshots pass on.
type Spec struct {
	Build  string
	Name   string // of the template
	Key    string
	Limits Limits
	State  State
	Most   time.Duration // how long it lives at most
}

// Kept is what a snapshot of a build is.
type Kept struct {
	Build   string
	Key     string
	Name    string // empty for none
	Replace string // the id of the snapshot from which it takes the name
}

// Command is run in a sandbox.
type Command struct {
	Path  string
	Args  []string
	State // as whom, where, and with which variables

	Started func() // called when it runs; nil for nobody
}

// Origins finds what recipes begin with.
type Origins interface {
	// Resolve finds what a recipe begins with.
	Resolve(ctx context.Context, base Base) (Origin, error)
	// SnapshotOf returns the snapshot that a recipe begins with, of any server; false for none.
	SnapshotOf(base Base) (store.Snapshot, bool)
}

// Workshop is what a build needs of sandboxes. An error of a command that ran and
// failed is an [*ExitError], and of one that has no such user a [*UserError].
type Workshop interface {
	// Begin starts a sandbox, and returns its id when it serves.
	Begin(ctx context.Context, from Origin, spec Spec) (sandbox string, err error)
	// Run runs a command to its end, and passes on what it says as it comes.
	Run(ctx context.Context, sandbox string, c Command, say func(text string)) error
	// Put writes a file, as root.
	Put(ctx context.Context, sandbox, path string, data io.Reader) error
	// Rest pauses a sandbox, and Wake starts it again from its files.
	Rest(ctx context.Context, sandbox string, memory bool) error
	Wake(ctx context.Context, sandbox string, most time.Duration) error
	// Keep makes a snapshot of a sandbox that rests.
	Keep(ctx context.Context, sandbox string, as Kept) (snapshot string, err error)
}

// Yard is where sandboxes and snapshots of builds are put away.
type Yard interface {
	// End ends a sandbox, and Drop removes a snapshot. Neither is an error where
	// there is none, or another server has it.
	End(ctx context.Context, sandbox string) error
	Drop(ctx context.Context, snapshot string) error
	// Left returns the sandboxes and snapshots of all builds, those of other servers not
	// among them.
	Left(ctx context.Context) (sandboxes, snapshots []string, err error)
}

// UserError is that a command cannot run as a user whom the sandbox does not have.
type UserError struct{ User string }

// Error has the words of E2B's builds, with which its clients' tests compare.
func (e *UserError) Error() string { return "unauthenticated: invalid username: '" + e.User + "'" }

// ExitError is that a command failed.
type ExitError struct {
	Status string // such as "exit status 2"
}

func (e *ExitError) Error() string { return e.Status }
