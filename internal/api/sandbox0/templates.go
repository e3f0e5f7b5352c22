package sandbox0

import (
	"cmp"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

type templateView struct {
	ID        string            `json:"template_id"`
	Scope     string            `json:"scope"`
	Spec      map[string]any    `json:"spec"`
	CreatedAt httpapi.Timestamp `json:"created_at"`
	UpdatedAt httpapi.Timestamp `json:"updated_at"`
}

func viewTemplate(t templates.Template) templateView {
	made := t.MadeAt
	if made.IsZero() {
		made = time.Unix(0, 0)
	}
	name := cmp.Or(t.Alias, t.ID)
	memory := map[string]string{"memory": fmt.Sprintf("%dMi", t.Limits.MemoryMiB)}
	return templateView{
		ID: name, Scope: "team", CreatedAt: httpapi.Timestamp(made), UpdatedAt: httpapi.Timestamp(made),
		Spec: map[string]any{"displayName": name, "mainContainer": map[string]any{"image": t.ID, "resources": memory}},
	}
}

func listTemplates(s *server, _ *call) (reply, error) {
	list, err := s.Templates.Templates()
	if err != nil {
		return reply{}, err
	}
	views := []templateView{}
	for _, t := range list {
		views = append(views, viewTemplate(t))
	}
	return ok(map[string]any{"templates": views, "count": len(views)})
}

func getTemplate(s *server, c *call) (reply, error) {
	t, err := s.Templates.Template(c.params[templateParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewTemplate(t))
}
