package snapshots

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
)

// Configure returns what a sandbox is that starts from a snapshot: what is asked,
// over what the memory and files in the snapshot need. A memory image has the
// processors and the memory of its sandbox, and files of its volumes open.
func Configure(snap store.Snapshot, asked store.Config) (store.Config, error) {
	c, of := asked, snap.Config
	c.Template, c.Alias, c.Image = of.Template, of.Alias, of.Image
	c.Built = cmp.Or(asked.Built, built(of, asked.Key))
	c.Limits = store.Limits{
		CPUs: cmp.Or(asked.Limits.CPUs, of.Limits.CPUs), MemoryMiB: cmp.Or(asked.Limits.MemoryMiB, of.Limits.MemoryMiB),
		DiskMiB: cmp.Or(asked.Limits.DiskMiB, of.Limits.DiskMiB), PIDs: cmp.Or(asked.Limits.PIDs, of.Limits.PIDs),
	}
	c.Lineage = lineage(snap)
	c.User, c.Workdir = cmp.Or(asked.User, of.User), cmp.Or(asked.Workdir, of.Workdir)
	if len(asked.Volumes) == 0 {
		c.Volumes = of.Volumes
	}
	c.Secrets, c.Authority = secrets(of, asked), of.Authority
	if asked.Services == nil {
		c.Services = of.Services
	}
	if asked.Entrances == nil {
		c.Entrances = service.Follow(of.Entrances, c.Services)
	}
	c.Env = maps.Clone(of.Env)
	if c.Env == nil {
		c.Env = asked.Env
	} else {
		maps.Copy(c.Env, asked.Env)
	}
	if snap.Checkpoint.Mode != lifecycle.Memory {
		return c, nil
	}
	switch {
	case c.Limits.CPUs != of.Limits.CPUs:
		return c, fixed(snap, "cpus", of.Limits.CPUs)
	case c.Limits.MemoryMiB != of.Limits.MemoryMiB:
		return c, fixed(snap, "memoryMiB", of.Limits.MemoryMiB)
	case !slices.EqualFunc(c.Volumes, of.Volumes, func(a, b store.VolumeMount) bool { return a.Name == b.Name && a.Path == b.Path }):
		return c, fixed(snap, "volumes", nil)
	}
	return c, nil
}

// secrets returns those of a snapshot, whose placeholders its memory and files may
// have, with those that are asked for. Another API key than the snapshot's has to
// ask for its own by name: programs that it does not know may be running.
func secrets(of, asked store.Config) []store.SecretUse {
	all := inherited(of, asked.Key)
	for _, u := range asked.Secrets {
		i := slices.IndexFunc(all, func(has store.SecretUse) bool { return has.Name == u.Name })
		if i < 0 {
			all = append(all, u)
			continue
		}
		all[i].Withheld = u.Withheld
		if u.Env != "" {
			all[i].Env = u.Env
		}
	}
	return all
}

// inherited returns the secrets of a sandbox as one of an API key has them that goes
// on from it unasked.
func inherited(of store.Config, key string) []store.SecretUse {
	if of.Key != key {
		return store.Withhold(of.Secrets)
	}
	return slices.Clone(of.Secrets)
}

// built returns the template that was built of a sandbox as an API key knows it that
// goes on from it.
func built(of store.Config, key string) store.Built {
	b := of.Built
	if of.Key != key {
		b.Name = ""
	}
	return b
}

// mostAncestors bounds how far back a sandbox knows where it comes from.
const mostAncestors = 20

// lineage returns what a sandbox comes from that starts from a snapshot.
func lineage(snap store.Snapshot) []store.Ancestor {
	from := store.Ancestor{Sandbox: snap.Sandbox, Generation: snap.Generation, At: snap.CreatedAt, Snapshot: snap.ID, Name: snap.Name}
	if snap.Passing {
		from.Snapshot = ""
	}
	all := append([]store.Ancestor{from}, snap.Config.Lineage...)
	return all[:min(len(all), mostAncestors)]
}

func fixed(snap store.Snapshot, option string, allowed any) error {
	return errdef.New(errdef.Invalid, "snapshot_fixes_option", "%s of a sandbox that starts with the memory of snapshot %s is that of the snapshot", option, Describe(snap)).
		WithRemedy("leave the option out").With("field", option).With("allowed", allowed)
}

// mostForks is how many children one call makes.
const mostForks = 100

// CheckForks judges how many children a call asks for.
func CheckForks(count int) error {
	if count >= 1 && count <= mostForks {
		return nil
	}
	return errdef.New(errdef.Invalid, "fork_count_invalid", "%d children were asked for", count).
		WithRemedy("ask for 1 to 100").With("allowed", mostForks)
}

// ForkRequest says how many children a sandbox is to have.
type ForkRequest struct {
	Count   int
	Timeout *time.Duration // the soft timeout of each; nil for that of the sandbox
	// MaxLifetime is that of each; nil for that of the sandbox.
	MaxLifetime *time.Duration
	All         bool            // all or none: where one does not start, the others are ended
	Only        lifecycle.State // that the sandbox must be in; empty for any
	Asleep      bool            // the children are paused, and nothing of them runs before they are resumed
	Key         string          // the id of the API key whose they will be
	Actor       string
	// Name and Once are the name and the idempotency key of the only child; both may
	// be missing.
	Name string
	Once *store.Idempotency
}

// Settings returns those of a child, of which the sandbox's are given.
func (r ForkRequest) Settings(of lifecycle.Settings) lifecycle.Settings {
	if r.Timeout != nil {
		of.Timeout = *r.Timeout
	}
	if r.MaxLifetime != nil {
		of.MaxLifetime = *r.MaxLifetime
	}
	return of
}

// Start makes the children, and returns when each has been made or has failed.
func (r ForkRequest) Start(start func() (store.Sandbox, error)) []Forked {
	children := make([]Forked, r.Count)
	var all errgroup.Group
	all.SetLimit(quota.MaxLaunches) // more would only wait, with the deadlines of their starts running
	for i := range children {
		all.Go(func() error {
			children[i].Sandbox, children[i].Err = start()
			return nil
		})
	}
	_ = all.Wait() // each child has its own error
	return children
}

// Settle ends the children where they are to be all or none, and one has not started:
// it returns why.
func (r ForkRequest) Settle(children []Forked, end func(id string)) error {
	i := slices.IndexFunc(children, func(c Forked) bool { return c.Err != nil })
	if !r.All || i < 0 {
		return nil
	}
	for _, c := range children {
		if c.Err == nil {
			end(c.Sandbox.ID)
		}
	}
	return children[i].Err
}

// Forked is one child, or why there is none.
type Forked struct {
	Sandbox store.Sandbox
	Err     error
}

// ForkEntry is what the event log of a source says of a fork.
func ForkEntry(at time.Time, actor string, children []Forked) lifecycle.Entry {
	var made []string
	for _, c := range children {
		if c.Err == nil {
			made = append(made, c.Sandbox.ID)
		}
	}
	return lifecycle.Entry{
		Type: lifecycle.EntryForked, At: at, Cause: lifecycle.CauseCall, Actor: actor,
		Detail: fmt.Sprintf("%d of %d: %s", len(made), len(children), strings.Join(made, " ")),
	}
}

// Inherit returns what a sandbox is that is a fork: what its source was. Only a fork
// of the same API key goes on with the use of its secrets.
func Inherit(snap store.Snapshot, key string) store.Config {
	c := snap.Config
	c.Secrets, c.Built = inherited(c, key), built(c, key)
	c.Key, c.Build = key, ""
	return c
}
