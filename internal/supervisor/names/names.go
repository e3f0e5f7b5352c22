// Package names knows the sandboxes by the names that their creators chose.
//
// A name belongs to the API key that created the sandbox: two keys may use the
// same name for different sandboxes. While a sandbox has not ended, no other of
// its key gets its name. Afterwards the name still finds the tombstone, until it
// is used again.
//
// The durable form is in the records of the sandboxes. What is in memory here
// follows them, and is filled again from the records after a restart.
package names

import (
	"regexp"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Most is how many characters a name may have.
const Most = 64

// Form is the form of a name, as a regular expression.
const Form = `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`

var form = regexp.MustCompile(Form)

// idForm is that of the ids of sandboxes: a name of that form could mean
// another sandbox.
var idForm = regexp.MustCompile(`^i[0-9a-z]{20}$`)

// Check returns an errdef.Invalid with code "name_invalid" for what is no name.
func Check(name string) error {
	if form.MatchString(name) && !idForm.MatchString(name) {
		return nil
	}
	return errdef.New(errdef.Invalid, "name_invalid", "%.80q is not a name for a sandbox", name).
		WithRemedy("use letters, digits, - and _, %d at most, beginning with a letter or digit, and not the form of a sandbox id", Most)
}

// owned is a name in the space of an API key.
type owned struct{ key, name string }

// Book has the names of all sandboxes of a server.
type Book struct {
	ended func(id string) bool

	mu  sync.Mutex
	has map[owned]holder
}

// holder is the sandbox that has a name now, or that had it last.
type holder struct {
	id      string
	created time.Time
}

// New returns a book without names. ended reports whether the sandbox of an id has
// ended, or is not there.
func New(ended func(id string) bool) *Book { return &Book{ended: ended, has: map[owned]holder{}} }

// TakeName gives a new sandbox the name that its config has, if it has one. The error
// is an errdef.Exists with code "name_taken" while another sandbox has it.
func (b *Book) TakeName(c store.Config, id string) error {
	if c.Name == "" {
		return nil
	}
	if err := Check(c.Name); err != nil {
		return err
	}
	as := owned{c.Key, c.Name}
	for {
		b.mu.Lock()
		old := b.has[as]
		b.mu.Unlock()
		if old.id != "" && !b.ended(old.id) { // asked without the lock: a sandbox may be in the middle of a commit
			return errdef.New(errdef.Exists, "name_taken", "sandbox %s has the name %q already", old.id, c.Name).
				WithRemedy("choose another name, or kill that sandbox first").With("name", c.Name)
		}
		b.mu.Lock()
		if b.has[as] == old {
			b.has[as] = holder{id, time.Now()}
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
	}
}

// Named returns the sandbox that has a name now, or that had it last.
func (b *Book) Named(key, name string) (id string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.has[owned{key, name}]
	return h.id, ok
}

// Restore notes the name of a sandbox that the store has. Of several that had the
// same name, one after the other, the youngest counts.
func (b *Book) Restore(sb store.Sandbox) {
	if sb.Config.Name == "" {
		return
	}
	as := owned{sb.Config.Key, sb.Config.Name}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has[as].created.Before(sb.Record.CreatedAt) {
		b.has[as] = holder{sb.ID, sb.Record.CreatedAt}
	}
}

// Forget frees the name of a sandbox whose record is gone, or was never there.
func (b *Book) Forget(c store.Config, id string) {
	as := owned{c.Key, c.Name}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has[as].id == id {
		delete(b.has, as)
	}
}
