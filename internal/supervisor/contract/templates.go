package contract

import (
	"context"
	"slices"

	"github.com/drowse-dev/drowse/internal/errdef"
	supervised "github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// Templates is what sandboxes start from.
type Templates interface {
	Template(ref string) (supervised.Template, error)
	Templates() ([]supervised.Template, error)
	AddTemplate(ctx context.Context, req supervised.AddRequest) (supervised.Template, error)
	SetTemplate(name, as, actor string) (supervised.Template, error)
	RemoveTemplate(ref, actor string) error
}

// templates: of images, which a supervisor without a registry has none of, the tests
// of package template tell.
func templates(w world) {
	s := w.s.Templates
	base, err := s.Template(" Base ")
	if w.ok("base", err); base.ID == "" || !slices.Contains(base.Names, "base") || base.Image != nil || base.User != "user" || base.Limits.CPUs == 0 {
		w.t.Errorf("it is %+v", base)
	}
	if got := w.create().Config.Template; got != base.ID {
		w.t.Errorf("a sandbox starts from %q, want %q", got, base.ID)
	}
	if all, err := s.Templates(); err != nil || len(all) != 1 || all[0].ID != base.ID {
		w.t.Errorf("the templates are %+v, %v", all, err)
	}
	_, err = s.Template("unknown")
	w.refused("unknown", err, errdef.NotFound, "template_not_found")
	_, err = s.SetTemplate("web", "unknown", "test")
	w.refused("a name for it", err, errdef.NotFound, "template_not_found")
	w.refused("remove it", s.RemoveTemplate("unknown", "test"), errdef.NotFound, "template_not_found")
	w.refused("remove base", s.RemoveTemplate("base", "test"), errdef.Conflict, "template_is_built_in")
	for _, name := range []string{"web", "no name!", "host"} {
		_, err = s.SetTemplate(name, "base", "test")
		w.refused(name, err, errdef.Invalid, "template_name_invalid")
	}
	_, err = s.AddTemplate(w.t.Context(), supervised.AddRequest{Name: "web"})
	w.refused("no image", err, errdef.Invalid, "image_reference_invalid")
}
