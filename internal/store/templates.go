package store

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Template is what an API key builds of steps under one name.
type Template struct {
	ID        string         `json:"id"` // never used again
	Name      string         `json:"name"`
	Key       string         `json:"key"` // the id of the API key that has made it, among whose templates no other has the name
	Rev       int64          `json:"-"`   // one higher with each change; 0 for one that is not stored
	CreatedAt time.Time      `json:"createdAt"`
	UpdatedAt time.Time      `json:"updatedAt"`
	Builds    []Build        `json:"builds"` // newest first
	Tags      map[string]Tag `json:"tags"`
	// Cache is what steps have led to, those that were used last first.
	Cache []StepResult `json:"cache,omitempty"`
	// Owner is the server that has it, as of [Owners].
	Owner string `json:"-"`
}

// Build is one making of a template.
type Build struct {
	ID         string       `json:"id"`
	Status     BuildStatus  `json:"status"`
	Tags       []string     `json:"tags"` // that it gets when it is ready
	Limits     BuildLimits  `json:"limits"`
	CreatedAt  time.Time    `json:"createdAt"`
	FinishedAt time.Time    `json:"finishedAt,omitzero"`
	Reason     *BuildReason `json:"reason,omitempty"`
}

// BuildStatus is how far a build is.
type BuildStatus string

// The states of a build. The last two are final.
const (
	BuildWaiting BuildStatus = "waiting"
	BuildRunning BuildStatus = "building"
	BuildReady   BuildStatus = "ready"
	BuildFailed  BuildStatus = "error"
)

// Over reports whether a build has come to its end.
func (s BuildStatus) Over() bool { return s == BuildReady || s == BuildFailed }

// BuildLimits are those of the sandboxes of a template; zero for the server's own.
type BuildLimits struct {
	CPUs      float64 `json:"cpus,omitempty"`
	MemoryMiB int     `json:"memoryMiB,omitempty"`
}

// BuildReason is why a build failed.
type BuildReason struct {
	Text string `json:"text"`
	Step string `json:"step,omitempty"` // as that of a line of its log
}

// Tag is a name of a result.
type Tag struct {
	Build    string    `json:"build"`
	Snapshot string    `json:"snapshot"`
	Memory   bool      `json:"memory,omitempty"` // it has memory too
	At       time.Time `json:"at"`
}

// StepResult is what is known of steps that were run.
type StepResult struct {
	Hash     string    `json:"hash"`     // of the origin and of all steps up to this one
	Snapshot string    `json:"snapshot"` // of the files after it; empty for those of the origin
	State    StepState `json:"state"`
}

// StepState is what steps change beside files.
type StepState struct {
	User    string            `json:"user,omitempty"`    // as whom commands run; empty for the template's own
	Workdir string            `json:"workdir,omitempty"` // where; empty for the user's home
	Env     map[string]string `json:"env,omitempty"`
}

// DefaultTag is the tag of a name that is given none.
const DefaultTag = "default"

// Tagged returns the template with a result under the tag that the result's name says.
func (t *Template) Tagged(result Snapshot) Template {
	c := t.Copy()
	_, tag, said := strings.Cut(result.Name, ":")
	if !said {
		tag = DefaultTag
	}
	c.Tags[tag] = Tag{Build: result.Config.Build, Snapshot: result.ID, Memory: result.Checkpoint.Mode == lifecycle.Memory, At: result.CreatedAt}
	c.UpdatedAt = result.CreatedAt
	return c
}

// Copy returns a template that shares nothing with t that changes.
func (t *Template) Copy() Template {
	c := *t
	c.Builds, c.Cache = slices.Clone(t.Builds), slices.Clone(t.Cache)
	c.Tags = map[string]Tag{}
	maps.Copy(c.Tags, t.Tags)
	return c
}

// Build returns a build of the template; nil if there is none.
func (t *Template) Build(id string) *Build {
	for i := range t.Builds {
		if t.Builds[i].ID == id {
			return &t.Builds[i]
		}
	}
	return nil
}

// Built reports whether a build is one of the template: it is remembered, or a tag has its
// result.
func (t *Template) Built(build string) bool {
	if t.Build(build) != nil {
		return true
	}
	for _, tag := range t.Tags {
		if tag.Build == build {
			return true
		}
	}
	return false
}

// Snapshots returns the ids of all that the template needs.
func (t *Template) Snapshots() map[string]bool {
	needed := map[string]bool{}
	for _, tag := range t.Tags {
		needed[tag.Snapshot] = true
	}
	for _, r := range t.Cache {
		needed[r.Snapshot] = true
	}
	return needed
}

// HasResult reports whether a tag of the template names a snapshot.
func (t *Template) HasResult(snapshot string) bool {
	for _, tag := range t.Tags {
		if tag.Snapshot == snapshot {
			return true
		}
	}
	return false
}

// awaited is for how long a build that was asked for is taken to be about to begin.
const awaited = 10 * time.Minute

// IsBuilding reports whether a build is under way, or about to begin.
func (t *Template) IsBuilding() bool {
	return slices.ContainsFunc(t.Builds, func(b Build) bool {
		return !b.Status.Over() && (b.Status != BuildWaiting || time.Since(b.CreatedAt) < awaited)
	})
}

// FailUnfinished fails the builds that have not come to their end, and reports whether there
// were any.
func (t *Template) FailUnfinished(why string, at time.Time) (changed bool) {
	for i := range t.Builds {
		if x := &t.Builds[i]; !x.Status.Over() {
			x.Fail("", why, at)
			changed = true
		}
	}
	return changed
}

// Fail notes that a build has failed.
func (b *Build) Fail(step, why string, at time.Time) {
	b.Status, b.Reason, b.FinishedAt = BuildFailed, &BuildReason{Text: why, Step: step}, at
}

// CalledBy returns by what an API key names the template: its id, unless it is its own.
func (t *Template) CalledBy(key string) string {
	if t.Key == key {
		return t.Name
	}
	return t.ID
}

// Bounds of what an API key may have.
const (
	MostTemplates  = 100
	MostOpenBuilds = 20 // that have not come to their end
	// BuildStartWithin is from asking for a build to starting it. One that was not
	// started until then does not count.
	BuildStartWithin = 24 * time.Hour
)

// BuiltTemplates is the templates that were built of steps.
type BuiltTemplates interface {
	// PutTemplate stores a template whose Rev is the one that it was read with, and 0
	// for a new one. Stored, it has the next. It is errdef.Conflict if it was changed
	// meanwhile, and errdef.NotFound if it was removed. A new one is errdef.Exists if its
	// id is known, its name is one of its key's, or the key has a snapshot that is no
	// result of a build under one of the names that the template can be built to; a
	// build is, if its id is that of another template. It is errdef.Exhausted if the key
	// has too many templates, or builds that are open.
	PutTemplate(ctx context.Context, t Template) error
	// Templates returns all of them, by id.
	Templates(ctx context.Context) ([]Template, error)
	// RemoveTemplate removes one; errdef.NotFound if there is none of that id.
	RemoveTemplate(ctx context.Context, id string) error
	// FreeForSnapshot returns the error with which CommitSnapshot refuses a snapshot
	// because its name belongs to a template.
	FreeForSnapshot(ctx context.Context, snap Snapshot) error
}

// BaseName returns the name of the template to which the name of a snapshot would
// belong, were it that of a result.
func BaseName(name string) string {
	base, _, _ := strings.Cut(name, ":")
	return base
}

// ErrTemplateExists is what PutTemplate returns for an id or a name that is taken.
func ErrTemplateExists(t Template) error {
	return errdef.New(errdef.Exists, "template_exists", "the API key has another template named %q", t.Name).
		WithRemedy("choose another name, or build that template")
}

// ErrTemplateNotFound is what is returned where there is no such template.
func ErrTemplateNotFound(ref string) error {
	return errdef.New(errdef.NotFound, "template_not_found", "template '%.200s' not found", ref).
		WithRemedy("GET /templates lists what there is")
}

// ErrTemplateChanged is what PutTemplate returns where somebody else was faster.
func ErrTemplateChanged(t Template) error {
	return errdef.New(errdef.Conflict, "template_changed", "template %s was changed meanwhile, and is as that change has left it", t.Name).
		WithRemedy("try again")
}

// ErrBuildExists is what PutTemplate returns for a build of another template.
func ErrBuildExists(id string) error {
	return errdef.New(errdef.Exists, "build_exists", "another template has a build %s", id).
		WithRemedy("ask for another build")
}

// ErrTooManyTemplates is what PutTemplate returns for one more than a key may have.
func ErrTooManyTemplates() error {
	return errdef.New(errdef.Exhausted, "too_many_templates", "this API key has built %d templates, which is as many as it may have", MostTemplates).
		WithRemedy("delete some").With("allowed", MostTemplates)
}

// ErrTooManyBuilds is what PutTemplate returns for one more than a key may have.
func ErrTooManyBuilds() error {
	return errdef.New(errdef.Exhausted, "too_many_builds", "%d builds of this API key have not come to their end, which is as many as it may have", MostOpenBuilds).
		WithRemedy("wait until some are over, or delete their templates").With("allowed", MostOpenBuilds)
}

// ErrNameOfTemplate is what CommitSnapshot returns for a name that a template can be
// built to.
func ErrNameOfTemplate(base string) error {
	return errdef.New(errdef.Exists, "snapshot_exists", "a template that was built is called %q", base).
		WithRemedy("choose another name")
}

// tagTemplate gives the result of a build to the template that it is named after, in
// the commit that takes the name from the result before: whatever happens, the template
// has one of the two. A template of that name which does not know the build is another one,
// made after that of the build was removed.
func (b builtTemplates) tagTemplate(ctx context.Context, tx *sql.Tx, result Snapshot) error {
	if result.Config.Build == "" || result.Name == "" {
		return nil
	}
	var (
		id      string
		version int
		data    []byte
		t       Template
	)
	err := tx.QueryRowContext(ctx, `SELECT id, version, data FROM templates WHERE key = ? AND name = ?`, result.Key, BaseName(result.Name)).Scan(&id, &version, &data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // it was removed meanwhile
	}
	if err == nil {
		err = decode("template "+id, version, data, &t)
	}
	if err != nil || !t.Built(result.Config.Build) {
		return err
	}
	if err := b.s.own(ctx, tx, ownedTemplates, id); err != nil {
		return err
	}
	tagged := t.Tagged(result)
	text, err := encode(tagged.inUTC())
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE templates SET rev = rev + 1, version = ?, data = ? WHERE id = ?`, formVersion, text, id)
	}
	if err != nil {
		return err
	}
	return changed(ctx, tx, KindTemplates)
}

// builtTemplates is the part of a database with the templates that were built.
type builtTemplates struct{ s *SQL }

// PutTemplate implements [Store].
func (b builtTemplates) PutTemplate(ctx context.Context, t Template) error {
	t = t.inUTC()
	data, err := encode(t)
	if err == nil {
		err = b.s.write(ctx, t.Key, func(ctx context.Context, tx *sql.Tx) error {
			return b.storeTemplate(ctx, tx, t, data)
		})
	}
	return b.s.explain(err, "store template %s", t.Name)
}

// storeTemplate is PutTemplate in a transaction.
func (b builtTemplates) storeTemplate(ctx context.Context, tx *sql.Tx, t Template, data string) error {
	if err := b.putTemplate(ctx, tx, t, data); err != nil {
		return err
	}
	if err := putBuilds(ctx, tx, t); err != nil {
		return err
	}
	return changed(ctx, tx, KindTemplates)
}

// inUTC returns t with its times in UTC, sharing nothing that it changed.
func (t Template) inUTC() Template {
	t = t.Copy()
	toUTC(&t.CreatedAt, &t.UpdatedAt)
	for i := range t.Builds {
		toUTC(&t.Builds[i].CreatedAt, &t.Builds[i].FinishedAt)
	}
	for name, tag := range t.Tags {
		toUTC(&tag.At)
		t.Tags[name] = tag
	}
	return t
}

func (b builtTemplates) putTemplate(ctx context.Context, tx *sql.Tx, t Template, data string) error {
	if t.Rev > 0 {
		if err := b.s.own(ctx, tx, ownedTemplates, t.ID); err != nil {
			return err
		}
		result, err := tx.ExecContext(ctx, `UPDATE templates SET rev = rev + 1, version = ?, data = ? WHERE id = ? AND rev = ? AND key = ? AND name = ?`,
			formVersion, data, t.ID, t.Rev, t.Key, t.Name)
		return oneRow(result, err, func() error {
			known, err := holds(ctx, tx, `SELECT 1 FROM templates WHERE id = ?`, t.ID)
			if err == nil && known {
				err = ErrTemplateChanged(t)
			} else if err == nil {
				err = ErrTemplateNotFound(t.ID)
			}
			return err
		})
	}
	if err := freeForTemplate(ctx, tx, t); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, `INSERT INTO templates (id, key, name, rev, version, data, owner) VALUES (?, ?, ?, 1, ?, ?, ?) ON CONFLICT DO NOTHING`,
		t.ID, t.Key, t.Name, formVersion, data, b.s.Self())
	if err := oneRow(result, err, func() error { return ErrTemplateExists(t) }); err != nil {
		return err
	}
	return atMost(ctx, tx, MostTemplates, ErrTooManyTemplates, `SELECT count(*) FROM templates WHERE key = ?`, t.Key)
}

// freeForTemplate refuses a new template if its key has a snapshot that is no result of a
// build under one of the names that the template can be built to.
func freeForTemplate(ctx context.Context, tx *sql.Tx, t Template) error {
	// What is between ":" and ";" begins with the former.
	named, err := collect(ctx, tx, scanSnapshot, selectSnapshots+` WHERE key = ?1 AND (name = ?2 OR name >= ?2 || ':' AND name < ?2 || ';')`, t.Key, t.Name)
	for _, snap := range named {
		if err == nil && snap.Config.Build == "" {
			err = ErrSnapshotExists(Snapshot{Name: snap.Name})
		}
	}
	return err
}

// putBuilds stores which builds a template has, and counts those of its key that are
// open, if there is a new one.
func putBuilds(ctx context.Context, tx *sql.Tx, t Template) error {
	known, err := collect(ctx, tx, scanText, `SELECT id FROM builds WHERE template = ?`, t.ID)
	if err != nil {
		return err
	}
	for _, id := range known {
		if t.Build(id) != nil {
			continue
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM builds WHERE id = ?`, id); err != nil {
			return err
		}
	}
	for _, x := range t.Builds {
		result, err := tx.ExecContext(ctx, `UPDATE builds SET open = ? WHERE id = ? AND template = ?`, !x.Status.Over(), x.ID, t.ID)
		if err := oneRow(result, err, func() error { return addBuild(ctx, tx, t, x) }); err != nil {
			return err
		}
	}
	return nil
}

func addBuild(ctx context.Context, tx *sql.Tx, t Template, x Build) error {
	result, err := tx.ExecContext(ctx, `INSERT INTO builds (id, template, key, open, created_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		x.ID, t.ID, t.Key, !x.Status.Over(), stamp(x.CreatedAt))
	if err := oneRow(result, err, func() error { return ErrBuildExists(x.ID) }); err != nil || x.Status.Over() {
		return err
	}
	return atMost(ctx, tx, MostOpenBuilds, ErrTooManyBuilds, `SELECT count(*) FROM builds WHERE open = 1 AND key = ? AND created_at > ?`,
		t.Key, stamp(x.CreatedAt.Add(-BuildStartWithin)))
}

// Templates implements [Store].
func (b builtTemplates) Templates(ctx context.Context) ([]Template, error) {
	all, err := collect(ctx, b.s.reader, scanTemplate, selectTemplates+` ORDER BY id`)
	return all, b.s.explain(err, "read templates")
}

const selectTemplates = `SELECT id, rev, version, data, owner FROM templates`

func scanTemplate(rows *sql.Rows) (t Template, err error) {
	var (
		id      string
		rev     int64
		version int
		data    sql.RawBytes
	)
	if err := rows.Scan(&id, &rev, &version, &data, &t.Owner); err != nil {
		return t, err
	}
	err = decode("template "+id, version, data, &t)
	t.Rev = rev
	return t, err
}

// RemoveTemplate implements [Store].
func (b builtTemplates) RemoveTemplate(ctx context.Context, id string) error {
	err := b.s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
		return b.s.remove(ctx, tx, ownedTemplates, id, ErrTemplateNotFound(id)) // its builds go with it
	})
	return b.s.explain(err, "remove template %s", id)
}

// FreeForSnapshot implements [Store].
func (b builtTemplates) FreeForSnapshot(ctx context.Context, snap Snapshot) error {
	return b.s.explain(freeForSnapshot(ctx, b.s.reader, snap), "look for templates named as snapshot %s", snap.Name)
}

// freeForSnapshot is FreeForSnapshot, also in a transaction. The id of a template names
// nothing else either.
func freeForSnapshot(ctx context.Context, q querier, snap Snapshot) error {
	if snap.Name == "" || snap.Config.Build != "" {
		return nil
	}
	base := BaseName(snap.Name)
	taken, err := holds(ctx, q, `SELECT 1 FROM templates WHERE key = ? AND name = ? OR id = ?`, snap.Key, base, base)
	if err == nil && taken {
		err = ErrNameOfTemplate(base)
	}
	return err
}

// holds reports whether a query has a row.
func holds(ctx context.Context, q querier, query string, args ...any) (bool, error) {
	var one int
	err := q.QueryRowContext(ctx, query, args...).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// inspectTemplates reads the templates, of which an older database knows nothing.
func inspectTemplates(ctx context.Context, db *sql.DB, found *Inspection) error {
	known, err := holds(ctx, db, `SELECT 1 FROM pragma_table_info('templates')`)
	if err != nil || !known {
		return err
	}
	_, err = collect(ctx, db, func(rows *sql.Rows) (struct{}, error) {
		t, err := scanTemplate(rows)
		if err != nil {
			found.problem("", "%v", err)
		} else {
			found.Templates = append(found.Templates, t)
		}
		return struct{}{}, nil
	}, `SELECT id, rev, version, data, '' FROM templates ORDER BY id`)
	return err
}
