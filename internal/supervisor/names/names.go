// Package names knows the sandboxes by the names that their creators chose.
//
// A name belongs to the API key that created the sandbox: two keys may use the
// same name for different sandboxes. While a sandbox has not ended, no other of
// its key gets its name. Afterwards the name still finds the tombstone, until it
// is used again.
//
// The store holds records to that when they are committed. What is in memory here
// follows them, and is filled again from the records after a restart.
package names

import (
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// Most is how many characters a name may have.
const Most = 64

// Form is the form of a name, as a regular expression.
const Form = `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`

var form = lazyregexp.New(Form)

// Check returns an errdef.Invalid with code "name_invalid" for what is no name.
func Check(name string) error {
	if form.MatchString(name) && !ids.Valid(name) {
		return nil
	}
	return errdef.New(errdef.Invalid, "name_invalid", "%.80q is not a name for a sandbox", name).
		WithRemedy("use letters, digits, - and _, %d at most, beginning with a letter or digit, and not the form of a sandbox id", Most)
}

// owned is a name in the space of an API key.
type owned struct{ key, name string }

// Book finds sandboxes by their names. Which of several may have one is for the store.
type Book struct {
	mu  sync.Mutex
	has map[owned]holder
}

// holder is the sandbox that has a name now, or that had it last.
type holder struct {
	id      string
	created time.Time
}

// New returns a book without names.
func New() *Book { return &Book{has: map[owned]holder{}} }

// Named returns the sandbox that has a name now, or that had it last.
func (b *Book) Named(key, name string) (id string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.has[owned{key, name}]
	return h.id, ok
}

// Note notes the name of a sandbox that is committed. Of several that had the same
// name, one after the other, the youngest counts.
func (b *Book) Note(sb store.Sandbox) {
	if sb.Config.Name == "" {
		return
	}
	as := owned{sb.Config.Key, sb.Config.Name}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !sb.Record.CreatedAt.Before(b.has[as].created) {
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
