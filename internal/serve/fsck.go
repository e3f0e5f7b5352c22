package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/volume"
)

// Fault is something wrong in a state directory.
type Fault struct {
	Kind     string `json:"kind"` // "database", "record", "template", "image", "build", "layer", "volume" or "unowned"
	Sandbox  string `json:"sandbox,omitempty"`
	What     string `json:"what"`     // is wrong
	Means    string `json:"means"`    // for whom
	Repair   string `json:"repair"`   // what is done about it
	Repaired bool   `json:"repaired"` // it is right now
}

// fsckReport is what Fsck found.
type fsckReport struct {
	OK        bool    `json:"ok"` // no fault is left
	StateDir  string  `json:"stateDir"`
	Sandboxes int     `json:"sandboxes"` // with a record that can be read
	Snapshots int     `json:"snapshots"` // likewise
	Images    int     `json:"images"`    // verified
	Builds    int     `json:"builds"`    // of drowse that images need, verified
	Layers    int     `json:"layers"`    // verified
	Faults    []Fault `json:"faults"`
}

// Fsck compares the store with the disk in a state directory that no server
// uses, writes what is wrong, and with repair puts right what is safe to. It
// reports whether no fault is left.
func Fsck(ctx context.Context, w io.Writer, o UpkeepOptions) (ok bool, err error) {
	u, err := beginUpkeep(ctx, o.StateDir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, u.end()) }()
	c := checker{u: u, repair: o.Repair, report: fsckReport{StateDir: o.StateDir, Faults: []Fault{}}, verified: map[string]error{}, builds: map[string]error{}}
	if err := c.check(ctx); err != nil {
		return false, err
	}
	c.report.OK = true
	for _, f := range c.report.Faults {
		c.report.OK = c.report.OK && f.Repaired
	}
	if o.JSON {
		return c.report.OK, json.NewEncoder(w).Encode(c.report)
	}
	return c.report.OK, printFaults(w, c.report)
}

// checker makes one report.
type checker struct {
	u        *upkeep
	repair   bool
	report   fsckReport
	verified map[string]error // by layer; one can be in several stacks
	builds   map[string]error // likewise
}

func (c *checker) check(ctx context.Context) error {
	c.database()
	for _, sb := range c.u.records.Sandboxes {
		c.report.Sandboxes++
		if sb.Record.State == lifecycle.Terminated {
			continue // what may be left of it is nobody's
		}
		if err := c.sandbox(ctx, sb); err != nil {
			return err
		}
	}
	for _, snap := range c.u.records.Snapshots {
		c.snapshot(ctx, snap)
	}
	c.results()
	if err := errors.Join(ctx.Err(), c.volumes()); err != nil {
		return err
	}
	return c.unowned(ctx)
}

// image verifies a memory image. One of which the server is to read the rest from object storage
// is as it should be.
func (c *checker) image(cp lifecycle.Checkpoint) (layer.Manifest, error) {
	m, err := c.u.layers.Verify(cp.ID, cp.Digest)
	if errdef.CodeOf(err) == layer.CodePending {
		m, _, err = c.u.layers.LookLate(cp.ID, cp.Digest)
	}
	return m, err
}

// snapshot checks what sandboxes need that start from a snapshot.
func (c *checker) snapshot(ctx context.Context, snap store.Snapshot) {
	c.report.Snapshots++
	fault := func(kind string, err error) {
		if err != nil {
			c.add(Fault{
				Kind: kind, What: fmt.Sprintf("snapshot %s of sandbox %s: %s", snap.ID, snap.Sandbox, message(err)),
				Means: "no sandbox can start from the snapshot", Repair: "none: put the files back from a backup, or delete the snapshot",
			})
		}
	}
	if _, err := c.u.bases.Resolve(snap.Config.Template); err != nil {
		fault("template", err)
	}
	if cp := snap.Checkpoint; cp.Mode == lifecycle.Memory {
		c.report.Images++
		_, err := c.image(cp)
		fault("image", err)
	}
	for _, id := range snap.Checkpoint.Stack {
		fault("layer", c.layer(ctx, id, snap.Checkpoint.Layers[id]))
	}
}

// results looks for the snapshots that tags of templates name.
func (c *checker) results() {
	there := map[string]bool{}
	for _, snap := range c.u.records.Snapshots {
		there[snap.ID] = true
	}
	for _, t := range c.u.records.Templates {
		for _, tag := range slices.Sorted(maps.Keys(t.Tags)) {
			if id := t.Tags[tag].Snapshot; !there[id] {
				c.add(Fault{
					Kind: "template", What: fmt.Sprintf("template %s (%s) of API key %s: snapshot %s, which is its tag %s, has no record", t.Name, t.ID, t.Key, id, tag),
					Means: "no sandbox can start from that tag", Repair: "none: build the template with that tag again, or remove the tag",
				})
			}
		}
	}
}

// volumes looks for the directories of the volumes. One whose deletion was not
// committed has another name until a server starts.
func (c *checker) volumes() error {
	names, err := volumesAt(c.u.dir).Names()
	if err != nil {
		return err
	}
	for _, v := range c.u.records.Volumes {
		if slices.Contains(names, v.ID) || slices.Contains(names, v.ID+volume.Discarded) {
			continue
		}
		c.add(Fault{
			Kind: "volume", What: fmt.Sprintf("volume %s has no directory %s", v.Name, volumesAt(c.u.dir).Dir(v.ID)),
			Means: "sandboxes that have it cannot start or resume", Repair: "none: put the directory back from a backup, or end these sandboxes and delete the volume",
		})
	}
	return nil
}

func (c *checker) add(f Fault) { c.report.Faults = append(c.report.Faults, f) }

func (c *checker) database() {
	for _, p := range c.u.records.Problems {
		f := Fault{
			Kind: "database", Sandbox: p.Sandbox, What: p.Text,
			Means:  "records may be missing: no server can be trusted with it, and nothing is removed as nobody's",
			Repair: "none: put a backup of the database in its place",
		}
		if p.Sandbox != "" {
			f.Kind = "record"
		}
		c.add(f)
	}
}

// sandbox checks what one sandbox needs to go on.
func (c *checker) sandbox(ctx context.Context, sb store.Sandbox) error {
	t, err := c.u.bases.Resolve(sb.Config.Template)
	if err == nil {
		err = c.u.bases.CheckImage(t)
	}
	if err != nil {
		c.add(Fault{
			Kind: "template", Sandbox: sb.ID, What: "its template cannot be read: " + message(err),
			Means: "it cannot start or resume", Repair: "none: put the template back from a backup, or kill the sandbox",
		})
	}
	cp := sb.Record.Checkpoint
	if cp == nil {
		return nil
	}
	var damage []Fault
	if cp.Mode == lifecycle.Memory {
		c.report.Images++
		m, err := c.image(*cp)
		if err != nil {
			damage = append(damage, damaged(sb, "image", err))
		}
		c.build(sb, m)
	}
	for _, id := range cp.Stack {
		if err := c.layer(ctx, id, cp.Layers[id]); err != nil {
			damage = append(damage, damaged(sb, "layer", err))
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.evidence(ctx, sb, damage)
}

// build checks the program that wrote a memory image. This one need not be kept
// to be there.
func (c *checker) build(sb store.Sandbox, m layer.Manifest) {
	if m.Build == "" {
		return // of a server that did not note it, or unknown
	}
	err, known := c.builds[m.Build]
	if !known {
		c.report.Builds++
		if _, err = buildsAt(c.u.dir).Open(m.Build); errors.Is(err, builds.ErrMissing) && isSelf(m.Build) {
			err = nil
		}
		c.builds[m.Build] = err
	}
	if err == nil {
		return
	}
	c.add(Fault{
		Kind: "build", Sandbox: sb.ID, What: fmt.Sprintf("the drowse that wrote its memory image, with the SHA-256 %s, cannot be used: %v", m.Build, err),
		Means:  fmt.Sprintf("a server with another gVisor than its own (%s) cannot resume it, and leaves it as it is", m.Runtime),
		Repair: fmt.Sprintf("none: put that program, with mode 0700, at %s, or let the sandbox boot afresh from its files (filesystemFallback)", buildsAt(c.u.dir).Path(m.Build)),
	})
}

// isSelf reports whether a build is the program that this process runs.
func isSelf(digest string) bool {
	self, err := builds.Self()
	return err == nil && self.Digest == digest
}

func (c *checker) layer(ctx context.Context, id, digest string) error {
	err, known := c.verified[id+digest]
	if !known {
		c.report.Layers++
		err = c.u.layers.VerifyLayer(ctx, id, digest)
		c.verified[id+digest] = err
	}
	return err
}

func damaged(sb store.Sandbox, kind string, err error) Fault {
	f := Fault{
		Kind: kind, Sandbox: sb.ID, What: message(err), Means: "it stays paused: a resume is refused, and no code of it runs",
		Repair: "kept as it is, as evidence; put the files back from a backup, or kill the sandbox",
	}
	if sb.Record.State == lifecycle.Running {
		f.Means = "it could not fall back to this checkpoint if its runtime were lost; its next pause makes another"
		if kind == "layer" {
			f.Means = "it runs over these files, and cannot be resumed after its next pause"
		}
	}
	return f
}

// evidence reports the damage to a checkpoint, and with repair notes it in the
// sandbox's record, where its owner sees it. Nothing of it is removed.
func (c *checker) evidence(ctx context.Context, sb store.Sandbox, damage []Fault) error {
	for i := range damage {
		if c.repair && len(c.u.records.Problems) == 0 {
			damage[i].Repair += "; noted in its record"
		}
		c.add(damage[i])
	}
	if len(damage) == 0 || !c.repair || len(c.u.records.Problems) > 0 {
		return nil
	}
	sb.Record.LastError = "fsck: " + damage[0].What
	return writeRecords(ctx, c.u.dir, func(st store.Store) error { return st.Commit(ctx, sb, nil) })
}

// unowned reports what nobody owns, and with repair removes what is due.
func (c *checker) unowned(ctx context.Context) error {
	if len(c.u.records.Problems) > 0 {
		return nil // it cannot be known
	}
	list, err := c.u.garbage(ctx)
	if err != nil {
		return err
	}
	if c.repair {
		c.u.collect(ctx, list)
	}
	for _, g := range list {
		if g.Spare {
			continue // no fault: the next server removes it, or gc
		}
		f := Fault{
			Kind: "unowned", What: fmt.Sprintf("%s %s is nobody's: %s", g.Kind, g.Path, g.Why),
			Means: "it takes " + g.takes() + ", and is in nobody's way", Repair: "with --repair, or drowse gc: removed", Repaired: g.Removed,
		}
		switch {
		case g.Removed:
			f.Repair = "removed"
		case g.Kept != "":
			f.Repair = "kept: put back a database that knows it, or remove it by hand"
		case g.Left != "":
			f.Repair = "left: " + g.Left
		}
		c.add(f)
	}
	return nil
}

// message is what err says, without the next step.
func message(err error) string {
	if e, ok := errors.AsType[*errdef.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// inLine returns a text that may name what a guest has named, so that it does not
// look like another line of a report.
func inLine(text string) string { return strings.ReplaceAll(text, "\n", `\n`) }

func printFaults(w io.Writer, r fsckReport) error {
	left := 0
	for _, f := range r.Faults {
		mark := "FAULT"
		if f.Repaired {
			mark = "fixed"
		} else {
			left++
		}
		what := f.What
		if f.Sandbox != "" {
			what = "sandbox " + f.Sandbox + ": " + what
		}
		if _, err := fmt.Fprintf(w, "%s  %-9s %s\n                 means: %s\n                 repair: %s\n", mark, f.Kind, inLine(what), inLine(f.Means), inLine(f.Repair)); err != nil {
			return err
		}
	}
	found := "no faults"
	switch all := len(r.Faults); {
	case left < all:
		found = fmt.Sprintf("%d faults, %d repaired, %d left", all, all-left, left)
	case all > 0:
		found = fmt.Sprintf("%d faults", all)
	}
	_, err := fmt.Fprintf(w, "checked %d sandboxes, %d memory images, %d builds, %d layers; %s\n", r.Sandboxes, r.Images, r.Builds, r.Layers, found)
	return err
}
