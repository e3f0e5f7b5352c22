package build

import (
	"context"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Start begins a build of a template that waits. The first build is made where the snapshot is
// that it begins with, wherever it was asked for: for a server that does not have that it is a
// store.ErrElsewhere. After a store.ErrUnlearned the build runs if its start was stored.
func (b *Builder) Start(ctx context.Context, template, id string, r Recipe) error {
	if err := r.check(); err != nil {
		return err
	}
	if err := (bringing{b, template, r}).bring(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(b.ctx) // it goes on when the caller has gone
	s := &starting{Builder: b, template: template, id: id, recipe: r, cancel: cancel}
	t, err := b.change(template, s.begin)
	if err != nil && !store.IsUnlearned(err) {
		s.over()
		return err
	}
	learned := err == nil
	b.work.Go(func() {
		defer s.over()
		if !learned {
			if t, learned = s.learn(); !learned {
				return
			}
		}
		b.run(ctx, t, id, r)
	})
	return err
}

// starting is a build that is started.
type starting struct {
	*Builder
	template, id string
	recipe       Recipe
	cancel       context.CancelFunc
	mine         bool // cancel is among the builder's
}

// begin has the build run in the template. The caller holds mu, and calls it again where another
// server was faster.
func (s *starting) begin(t *Template) error {
	x := t.Build(s.id)
	switch {
	case x == nil:
		return buildNotFound(s.template, s.id)
	case x.Status != Waiting:
		return errdef.New(errdef.Invalid, "build_started", "build %s of template %s is %q already", s.id, t.Name, x.Status).
			WithRemedy("ask for another build")
	case s.cancels[s.id] != nil && !s.mine:
		return errdef.New(errdef.Unavailable, "store_unavailable", "build %s of template %s may have been started already, which the database has not said yet", s.id, t.Name).
			WithRemedy("try again in a moment")
	}
	for _, step := range s.recipe.Steps {
		if step.Kind == Copy && !s.files.has(s.template, step.Files) {
			return errdef.New(errdef.Invalid, "build_files_missing", "the files of step COPY %.100q were not uploaded", step.Args[0]).
				WithRemedy("upload them, then start the build")
		}
	}
	x.Status = Building
	s.cancels[s.id], s.mine = s.cancel, true
	if s.journals[s.id] == nil { // another server was asked for the build
		s.journals[s.id] = &journal{}
	}
	return nil
}

// learn finds out whether the start was stored whose answer was lost, and returns the template
// then. It stores the template as it was before: either that is refused because the start was
// stored, or it keeps the start from being stored later. Nobody else can have started the build:
// begin refuses that meanwhile.
func (s *starting) learn() (t Template, started bool) {
	t, err := s.changeAtLast(s.template, func(*Template) error { return nil })
	if err != nil { // the template is gone, or another server has it; or this one stops
		return Template{}, false
	}
	x := t.Build(s.id)
	started = x != nil && x.Status == Building
	s.o.Log.Info("learned whether a build was started", "template", t.Name, "build", s.id, "started", started)
	return t, started
}

// over forgets the build, which has ended or does not run.
func (s *starting) over() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mine {
		delete(s.cancels, s.id)
	}
}
