package build

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
)

// DefaultTag is the tag of a name that is given none.
const DefaultTag = store.DefaultTag

// Bounds of what API keys may ask for. The store has others.
const (
	sideBySide   = 2         // builds of one API key that run at once; others wait
	mostBuilds   = 10        // that are remembered of a template, of those that are over
	mostSteps    = 200       // of a recipe
	mostTags     = 50        // of a template
	mostLogs     = 10        // of builds of one API key that are over
	mostResults  = 512 << 10 // bytes of what is known of a template's steps
	mostEnv      = 64 << 10  // bytes of the variables that steps set
	finishWithin = time.Hour // from when it runs to its end
)

// Store is where templates are kept.
type Store interface {
	store.BuiltTemplates
	// TakeTemplate is that of store.Replicas.
	TakeTemplate(ctx context.Context, t Template, results []store.Remade) error
	// Self returns the server whose templates this one builds.
	Self() string
}

// Options are what a builder is made of.
type Options struct {
	Dir      string // for files that are uploaded
	Store    Store
	Origins  Origins
	Workshop Workshop
	Yard     Yard
	// FilesOf reads what was uploaded to another server for a step of a template. What is not
	// there has the code build_files_missing.
	FilesOf func(ctx context.Context, server, template, hash string) (io.ReadCloser, error)
	// Room returns an error where the disk has no room for more.
	Room func() error
	// Most is how long a sandbox may live at most; 0 for no bound.
	Most time.Duration
	Log  *slog.Logger
}

// Builder is all builds of a server. It knows the templates of the other servers of the
// same database too.
type Builder struct {
	o     Options
	files *files
	again follow.Again // see known

	ctx  context.Context // ends the builds
	stop context.CancelFunc
	work sync.WaitGroup

	left *leftovers

	naming sync.Mutex // held while a result gets a name

	mu        sync.Mutex
	templates map[string]*Template // by id, as they are known; the store decides
	journals  map[string]*journal  // by build
	cancels   map[string]context.CancelFunc

	orders  *ration.Turns // by the id of a template: taken by the build that runs
	turns   *ration.Turns // by API key: taken by each build that runs
	uploads *ration.Turns // by API key: taken by each upload
	brings  *ration.Turns // by the id of a template: taken by who brings it here, or removes its files
}

// Open returns the builds in a store. What builds of a server before have left
// is removed.
func Open(ctx context.Context, o Options) (*Builder, error) {
	b := &Builder{
		o: o, files: newFiles(o),
		templates: map[string]*Template{}, journals: map[string]*journal{}, cancels: map[string]context.CancelFunc{},
		orders: ration.NewTurns(1), turns: ration.NewTurns(sideBySide), uploads: ration.NewTurns(mostUploads), brings: ration.NewTurns(1),
	}
	b.again.Read = b.Refresh
	b.ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.left = &leftovers{yard: o.Yard, ctx: b.ctx, removals: insist.New(b.ctx, o.Log)}
	if err := b.load(ctx); err != nil {
		return nil, err
	}
	if err := b.files.clean(func(id string) bool { t := b.templates[id]; return t != nil && b.owns(t) }); err != nil {
		return nil, err
	}
	return b, b.sweep(ctx)
}

// Stop ends the builds that run, and returns when they have ended.
func (b *Builder) Stop() {
	b.stop()
	b.work.Wait()
	b.left.removals.Wait()
}

// sweep fails the builds that did not come to their end, and removes their sandboxes
// and what no template needs.
func (b *Builder) sweep(ctx context.Context) error {
	needed := map[string]bool{}
	for _, t := range b.all() {
		next := t.Copy()
		if b.owns(&next) && failUnfinished(&next) {
			if _, err := b.change(t.ID, func(t *Template) error { failUnfinished(t); return nil }); err != nil {
				return err
			}
		}
		maps.Copy(needed, next.Snapshots())
	}
	sandboxes, snapshots, err := b.o.Yard.Left(ctx)
	if err != nil {
		return fmt.Errorf("look for what builds have left: %w", err)
	}
	for _, id := range sandboxes {
		b.left.end(ctx, id)
	}
	for _, id := range snapshots {
		if !needed[id] {
			b.left.drop(ctx, id)
		}
	}
	return nil
}

// stopped is why a build has failed that its server did not finish.
const stopped = "the server was stopped during the build: build again, and the steps that were finished are not run again"

// failUnfinished fails the builds of a template that a server before did not finish,
// and reports whether there were any.
func failUnfinished(t *Template) (changed bool) { return t.FailUnfinished(stopped, now()) }

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// nameForm and tagForm are what a template and its tags can be called.
var (
	nameForm = lazyregexp.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	tagForm  = lazyregexp.New(`^[a-z0-9_][a-z0-9_.-]{0,62}$`)
	uuidForm = lazyregexp.New(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	idForm   = lazyregexp.New(`^[st][0-9a-z]{20}$`) // of templates and snapshots
)

// CheckTag judges a tag.
func CheckTag(tag string) error {
	if !tagForm.MatchString(tag) || uuidForm.MatchString(tag) {
		return errdef.New(errdef.Invalid, "template_name_invalid", "%.100q cannot be a tag", tag).
			WithRemedy("use letters, digits, and _ . - between them, 63 at most")
	}
	return nil
}

// CheckName judges the name of a template.
func CheckName(name string) error {
	if !nameForm.MatchString(name) || idForm.MatchString(name) {
		return errdef.New(errdef.Invalid, "template_name_invalid", "a template cannot be called %.100q", name).
			WithRemedy("use letters, digits, - and _, 64 at most, not in the form of an id, with a tag after a colon if you like")
	}
	return nil
}

// Full returns the name of a result, as that of its snapshot.
func Full(name, tag string) string {
	if tag == DefaultTag {
		return name
	}
	return name + ":" + tag
}

// Request asks for a build.
type Request struct {
	Name   string
	Tags   []string // none for DefaultTag
	Limits Limits
	Key    string
}

// Request makes a template, or takes the one that the API key has under that name, and
// a build of it that waits to be started.
func (b *Builder) Request(req Request) (Template, Build, error) {
	if err := CheckName(req.Name); err != nil {
		return Template{}, Build{}, err
	}
	tags := slices.Compact(slices.Sorted(slices.Values(req.Tags)))
	if len(tags) == 0 {
		tags = []string{DefaultTag}
	}
	for _, tag := range tags {
		if err := CheckTag(tag); err != nil {
			return Template{}, Build{}, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	made := Build{ID: newID(), Status: Waiting, Tags: tags, Limits: req.Limits, CreatedAt: now()}
	t, err := b.save(func() (Template, error) {
		next := Template{ID: newTemplateID(), Name: req.Name, Key: req.Key, CreatedAt: made.CreatedAt, Tags: map[string]Tag{}, Owner: b.o.Store.Self()}
		if t := b.called(req.Key, req.Name); t != nil {
			next = t.Copy()
		}
		if err := b.here(&next); err != nil {
			return next, err
		}
		if len(next.Tags)+len(tags) > mostTags {
			return next, tooManyTags(&next)
		}
		next.UpdatedAt = made.CreatedAt
		next.Builds = remembered(append([]Build{made}, next.Builds...))
		return next, nil
	})
	if err != nil {
		return Template{}, Build{}, err
	}
	b.journals[made.ID] = &journal{}
	b.forgetJournals()
	return t, made, nil
}

func tooManyTags(t *Template) error {
	return errdef.New(errdef.Exhausted, "too_many_tags", "template %s has %d tags, and may have %d", t.Name, len(t.Tags), mostTags).
		WithRemedy("remove some").With("allowed", mostTags)
}

// remembered returns the builds that are kept: those that are not over, and the
// newest of the others.
func remembered(all []Build) []Build {
	over := 0
	return slices.DeleteFunc(all, func(x Build) bool {
		if !x.Status.Over() {
			return x.Status == Waiting && time.Since(x.CreatedAt) > store.BuildStartWithin
		}
		over++
		return over > mostBuilds
	})
}

// forgetJournals drops logs: all but those of builds that are not over, and of the
// newest others of each API key. The caller holds mu.
func (b *Builder) forgetJournals() {
	over, keep := map[string][]Build{}, map[string]bool{}
	for _, t := range b.templates {
		for _, x := range t.Builds {
			if keep[x.ID] = !x.Status.Over(); x.Status.Over() {
				over[t.Key] = append(over[t.Key], x)
			}
		}
	}
	for _, list := range over {
		slices.SortFunc(list, func(x, y Build) int { return y.FinishedAt.Compare(x.FinishedAt) })
		for _, x := range list[:min(len(list), mostLogs)] {
			keep[x.ID] = true
		}
	}
	for id := range b.journals {
		if !keep[id] {
			delete(b.journals, id)
		}
	}
}

// all returns the templates by name. The caller holds mu.
func (b *Builder) all() []*Template {
	var list []*Template
	for _, t := range b.templates {
		list = append(list, t)
	}
	slices.SortFunc(list, func(x, y *Template) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID)) })
	return list
}

// newID returns the id of a build: a UUID, as clients want.
func newID() string {
	var x [16]byte
	_, _ = rand.Read(x[:]) // it never fails
	x[6], x[8] = x[6]&0x0f|0x40, x[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", x[:4], x[4:6], x[6:8], x[8:10], x[10:])
}

// newTemplateID returns the id of a template, which no name looks like.
func newTemplateID() string { return "t" + strings.ToLower(rand.Text())[:20] }

// called returns the template that an API key has under a name; nil if it has none. The
// caller holds mu.
func (b *Builder) called(key, name string) *Template {
	for _, t := range b.templates {
		if t.Key == key && t.Name == name {
			return t
		}
	}
	return nil
}

// Template returns a template by its id, or by its name among those of an API key.
func (b *Builder) Template(key, ref string) (Template, error) {
	return b.known(ref, func() *Template { return cmp.Or(b.templates[ref], b.called(key, ref)) })
}

// byID returns a template, to do something with it. For one of another server it is a
// store.ErrElsewhere.
func (b *Builder) byID(id string) (Template, error) {
	t, err := b.known(id, func() *Template { return b.templates[id] })
	if err == nil {
		err = b.here(&t)
	}
	return t, err
}

// known returns the template that is found, also one that another server has just made.
// It calls find with mu.
func (b *Builder) known(ref string, find func() *Template) (Template, error) {
	look := func() (Template, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if t := find(); t != nil {
			return t.Copy(), nil
		}
		return Template{}, store.ErrTemplateNotFound(ref)
	}
	t, err := look()
	if err == nil || b.o.Store.Self() == "" {
		return t, err
	}
	if err := b.again.Now(b.ctx); err != nil {
		return t, err
	}
	return look()
}

// With returns a template by its id or by that of one of its results, as it is stored now. One
// that is unknown is an errdef.NotFound.
func (b *Builder) With(ctx context.Context, id string) (Template, error) {
	if err := b.again.Now(ctx); err != nil {
		return Template{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.templates {
		if t.ID == id || t.HasResult(id) {
			return t.Copy(), nil
		}
	}
	return Template{}, store.ErrTemplateNotFound(id)
}

// owns reports whether a template is this server's to build.
func (b *Builder) owns(t *Template) bool { return t.Owner == b.o.Store.Self() }

// here returns the error for a template that another server builds.
func (b *Builder) here(t *Template) error {
	if b.owns(t) {
		return nil
	}
	return store.ErrElsewhere("template "+t.ID, t.Owner)
}

// Templates returns all templates, by name.
func (b *Builder) Templates() []Template {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Template
	for _, t := range b.all() {
		list = append(list, t.Copy())
	}
	return list
}

// Progress is what is known of a build.
type Progress struct {
	Build Build
	Lines []Line
}

// Progress returns a build of a template, and up to most lines of its log after the
// first so many. It is a store.ErrElsewhere for one of another server, which alone has the log.
func (b *Builder) Progress(template, id string, offset, most int) (Progress, error) {
	t, err := b.byID(template)
	if err != nil && !errdef.Is(err, errdef.NotFound) {
		return Progress{}, err
	}
	if err != nil || t.Build(id) == nil {
		return Progress{}, buildNotFound(template, id)
	}
	p := Progress{Build: *t.Build(id)}
	b.mu.Lock()
	j := b.journals[id]
	b.mu.Unlock()
	if j != nil {
		p.Lines = j.from(offset, most)
	}
	return p, nil
}

func buildNotFound(template, id string) error {
	return errdef.New(errdef.NotFound, "build_not_found", "template %.200q has no build %.100q", template, id)
}

// change changes a template, durably. It is an errdef.NotFound where it was deleted
// meanwhile. What f does is done again where another server was faster.
func (b *Builder) change(id string, f func(*Template) error) (Template, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.save(func() (Template, error) {
		t := b.templates[id]
		if t == nil {
			return Template{}, store.ErrTemplateNotFound(id)
		}
		next := t.Copy()
		err := b.here(&next)
		if err == nil {
			err = f(&next)
		}
		return next, err
	})
}

// again is how long to wait before the store is asked again that has decided nothing.
const again = time.Second

// changeAtLast is change for what must not be lost: it tries again until the store has made the
// change or refused it. It gives up when the server stops, with the last error.
func (b *Builder) changeAtLast(id string, f func(*Template) error) (Template, error) {
	for n := 1; ; n++ {
		t, err := b.change(id, f)
		_, elsewhere := store.Elsewhere(err)
		if err == nil || elsewhere || errdef.Is(err, errdef.NotFound) || errdef.Is(err, errdef.Fenced) {
			return t, err
		}
		if n == 1 { // the others say the same
			b.o.Log.Warn("a template could not be stored, which is tried again", "template", id, "err", err)
		}
		if !insist.Sleep(b.ctx, again) {
			return t, err
		}
	}
}

// Delete removes a template with all that was made for it. Sandboxes that started
// from it go on.
func (b *Builder) Delete(ctx context.Context, id string) error {
	if _, err := b.byID(id); err != nil {
		return err
	}
	b.mu.Lock()
	t := b.templates[id]
	if t == nil {
		b.mu.Unlock()
		return store.ErrTemplateNotFound(id)
	}
	if err := b.o.Store.RemoveTemplate(context.WithoutCancel(ctx), id); err != nil && !errdef.Is(err, errdef.NotFound) {
		b.mu.Unlock()
		return err
	}
	delete(b.templates, id)
	b.giveUp(t)
	b.forgetJournals()
	b.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	for id := range t.Snapshots() {
		b.left.drop(ctx, id)
	}
	return b.files.forget(id)
}

// giveUp ends the builds of a template that run here. The caller holds mu.
func (b *Builder) giveUp(t *Template) {
	for _, x := range t.Builds {
		if cancel := b.cancels[x.ID]; cancel != nil {
			cancel()
		}
	}
}

// Untag takes tags from a template.
func (b *Builder) Untag(ctx context.Context, id string, tags []string) error {
	var gone []string
	_, err := b.change(id, func(t *Template) error {
		gone = nil
		for _, tag := range tags {
			if tag == DefaultTag {
				return errdef.New(errdef.Invalid, "template_tag_fixed", "the tag %s of a template cannot be removed", DefaultTag).
					WithRemedy("delete the template, or build it again")
			}
			has, ok := t.Tags[tag]
			if !ok {
				return errdef.New(errdef.NotFound, "template_tag_not_found", "template %s has no tag %.100q", t.Name, tag)
			}
			delete(t.Tags, tag)
			gone = append(gone, has.Snapshot)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range gone {
		b.left.drop(context.WithoutCancel(ctx), id)
	}
	return nil
}

// Tag gives the result of a template that has one tag more of them, and returns its
// build.
func (b *Builder) Tag(ctx context.Context, id, from string, tags []string) (build string, err error) {
	for _, tag := range tags {
		if err := CheckTag(tag); err != nil {
			return "", err
		}
	}
	t, err := b.byID(id)
	if err != nil {
		return "", err
	}
	has, ok := t.Tags[from]
	if !ok {
		return "", errdef.New(errdef.NotFound, "template_tag_not_found", "template %s has no tag %.100q", t.Name, from)
	}
	if len(t.Tags)+len(tags) > mostTags {
		return "", tooManyTags(&t)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tagWithin)
	defer cancel()
	return has.Build, b.retag(ctx, t, has, tags)
}

// tagWithin bounds how long it takes to give tags.
const tagWithin = 5 * time.Minute

// retag makes snapshots of what a snapshot is, one for each tag.
func (b *Builder) retag(ctx context.Context, t Template, from Tag, tags []string) error {
	m := &making{b: b, t: t, build: Build{ID: from.Build, Tags: tags}, log: &journal{}, memory: from.Memory}
	defer func() {
		m.leave(context.WithoutCancel(ctx))
		for _, id := range m.spare {
			b.left.drop(context.WithoutCancel(ctx), id)
		}
	}()
	if err := m.begin(ctx, Origin{Snapshot: from.Snapshot}, State{}); err != nil {
		return err
	}
	if err := b.o.Workshop.Rest(ctx, m.sandbox, from.Memory); err != nil {
		return err
	}
	return m.name(ctx)
}
