package outside

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/egress/inject"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// window is how long the like of an entry is gathered after it. A program makes as
// many requests as it likes, and each entry is a commit.
const window = time.Minute

// maxGathered bounds how many kinds of entries there are in a window: a wildcard has
// hosts without end, and each would be a commit and take the place of another entry.
const maxGathered = 32

var errCrowded = errors.New("secrets are used for too many hosts at once")

// audit writes what becomes of the secrets of one sandbox to its event log: the
// first use before it happens, and how many followed it when the window is over.
// It is a [secret.Witness].
type audit struct {
	log    func(lifecycle.Entry) error
	server *slog.Logger

	mu       sync.Mutex
	gathered map[kind]*gathering
}

// gathering is an entry, and how many uses of its kind followed.
type gathering struct {
	more    int           // guarded by audit.mu
	written chan struct{} // closed when the entry is in the log, or could not be written
	err     error         // why not; set before written is closed
}

// kind is what entries say that are gathered.
type kind struct {
	entry lifecycle.EntryType
	what  string // a secret, or a reason
	host  string
}

func newAudit(log func(lifecycle.Entry) error, server *slog.Logger) *audit {
	return &audit{log: log, server: server, gathered: map[kind]*gathering{}}
}

// Used implements secret.Witness.
func (a *audit) Used(u inject.Use) error {
	for _, name := range u.Secrets {
		err := a.note(kind{lifecycle.EntrySecretUsed, name, u.Host}, fmt.Sprintf("%s for %s %s", name, u.Method, u.Host))
		if err != nil {
			return err
		}
	}
	return nil
}

// Refused implements secret.Witness.
func (a *audit) Refused(host string, why egress.Reason) {
	// It did not happen, logged or not.
	_ = a.note(kind{lifecycle.EntrySecretRefused, string(why), host}, fmt.Sprintf("%s for %s", why, host))
}

// Failed implements secret.Witness.
func (a *audit) Failed(name string, err error) {
	a.server.Error("secret could not be read", "secret", name, "err", err)
}

// note writes an entry, or counts it if there is one of its kind in this window, and
// returns when that is written. An entry has its place among those of the window
// before it is written: requests that come at once would all see room for it.
func (a *audit) note(k kind, detail string) error {
	g, first := a.gather(k)
	switch {
	case g == nil:
		return errCrowded
	case !first:
		<-g.written
		return g.err
	}
	if g.err = a.write(k.entry, detail); g.err == nil {
		time.AfterFunc(window, func() { a.end(k) })
	} else {
		a.take(k)
	}
	close(g.written)
	return g.err
}

// gather returns the entry that a use counts for, and whether it is the first one,
// which begins a window; nil if there is no room for one more.
func (a *audit) gather(k kind) (g *gathering, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g = a.gathered[k]; g != nil {
		g.more++
		return g, false
	}
	if len(a.gathered) >= maxGathered {
		return nil, false
	}
	g = &gathering{written: make(chan struct{})}
	a.gathered[k] = g
	return g, true
}

// take ends a window, and returns how many followed its entry.
func (a *audit) take(k kind) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.gathered[k].more
	delete(a.gathered, k)
	return n
}

// end ends a window, and logs what was gathered in it.
func (a *audit) end(k kind) {
	n := a.take(k)
	if n == 0 {
		return
	}
	// If it cannot be written the sandbox has ended, or the server.
	_ = a.write(k.entry, fmt.Sprintf("%s for %s, %d more times in %s", k.what, k.host, n, window))
}

func (a *audit) write(entry lifecycle.EntryType, detail string) error {
	return a.log(lifecycle.Entry{Type: entry, At: ids.Now(), Detail: detail})
}
