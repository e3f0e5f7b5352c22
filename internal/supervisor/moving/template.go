package moving

import (
	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/template"
)

// TemplateFor returns the template for the files of a sandbox on a server that
// lacks the exact template it started from: that of the same image, made for this
// server's agent, or the host's system. The name of the template is not enough,
// because it can mean another image here. An old export has only the name.
func TemplateFor(templates *template.Store, m bundle.Manifest) (template.Template, error) {
	digest := m.Config.Image
	t, err := templates.Resolve(m.Config.Alias)
	if !m.KnowsImage() || err == nil && t.Digest() == digest {
		return t, err
	}
	if digest == "" {
		return templates.Resolve(template.Host)
	}
	t, err = templates.Resolve(digest)
	if errdef.Is(err, errdef.NotFound) || err == nil && t.Digest() != digest {
		return t, errdef.New(errdef.Unsupported, "cannot_run_here", "%s cannot run here: its files belong on the image %.100s, which this server does not have", called(m.ID), digest).
			WithRemedy("fetch that image by its digest with drowse template pull, or from a file with drowse template load; then import again")
	}
	return t, err
}
