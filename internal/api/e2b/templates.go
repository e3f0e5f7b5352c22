package e2b

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/templates"
)

// templateView is an item of a list.
type templateView struct {
	TemplateID    string             `json:"templateID"`
	BuildID       string             `json:"buildID"`
	CPUCount      int                `json:"cpuCount"`
	MemoryMB      int                `json:"memoryMB"`
	DiskSizeMB    int                `json:"diskSizeMB"`
	Public        bool               `json:"public"`
	Aliases       []string           `json:"aliases"`
	Names         []string           `json:"names"`
	CreatedAt     httpapi.Timestamp  `json:"createdAt"`
	UpdatedAt     httpapi.Timestamp  `json:"updatedAt"`
	CreatedBy     *string            `json:"createdBy"`
	LastSpawnedAt *httpapi.Timestamp `json:"lastSpawnedAt"`
	SpawnCount    int                `json:"spawnCount"`
	BuildCount    int                `json:"buildCount"`
	EnvdVersion   string             `json:"envdVersion"`
	BuildStatus   string             `json:"buildStatus"`
}

// buildView is a build of a template; each has one.
type buildView struct {
	BuildID     string            `json:"buildID"`
	Status      string            `json:"status"`
	CreatedAt   httpapi.Timestamp `json:"createdAt"`
	UpdatedAt   httpapi.Timestamp `json:"updatedAt"`
	FinishedAt  httpapi.Timestamp `json:"finishedAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int               `json:"memoryMB"`
	DiskSizeMB  int               `json:"diskSizeMB"`
	EnvdVersion string            `json:"envdVersion"`
}

const templateReady = "ready"

// buildOf returns the id of the one build of a template: a UUID, as clients want.
func buildOf(t templates.Template) string {
	h := sha256.Sum256([]byte("build of " + t.ID))
	return fmt.Sprintf("%x-%x-4%03x-8%03x-%x", h[:4], h[4:6], int(h[6])<<4|int(h[7])>>4, int(h[8])<<4|int(h[9])>>4, h[10:16])
}

// templates lists what sandboxes can be made of.
func (s *server) templates(c *call) (reply, error) {
	views, err := allTemplates(s, c.key)
	return reply{Status: http.StatusOK, Body: views}, err
}

// pageOfTemplates lists them by their ids, in pages.
func pageOfTemplates(s *server, c *call) (reply, error) {
	limit, err := pageLimit(c.query)
	if err != nil {
		return reply{}, err
	}
	after, err := base64.RawURLEncoding.DecodeString(c.query.Get("nextToken"))
	if err != nil {
		return reply{}, badRequest("nextToken is none that this server gave")
	}
	views, err := allTemplates(s, c.key)
	views = slices.DeleteFunc(views, func(v templateView) bool { return v.TemplateID <= string(after) })
	slices.SortFunc(views, func(a, b templateView) int { return strings.Compare(a.TemplateID, b.TemplateID) })
	header := http.Header{}
	if len(views) > limit {
		views = views[:limit]
		header.Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(views[limit-1].TemplateID)))
	}
	return reply{Status: http.StatusOK, Header: header, Body: views}, err
}

// allTemplates returns the templates that a key sees.
func allTemplates(s *server, key store.Key) ([]templateView, error) {
	list, err := s.Templates.Templates()
	views := []templateView{}
	for _, t := range list {
		at := httpapi.Timestamp(t.MadeAt)
		views = append(views, templateView{
			TemplateID: t.ID, BuildID: buildOf(t), CPUCount: t.Limits.VCPUs(), MemoryMB: t.Limits.MemoryMiB, DiskSizeMB: t.Limits.DiskMiB,
			Public: true, Aliases: t.Names, Names: t.Names, CreatedAt: at, UpdatedAt: at,
			BuildCount: 1, EnvdVersion: s.EnvdVersion, BuildStatus: templateReady,
		})
	}
	for _, t := range s.Builds.Templates() {
		if auth.Sees(key, t.Key) && len(t.Builds) > 0 {
			views = append(views, viewOfBuilt(s, key, t))
		}
	}
	return views, err
}

func (s *server) template(c *call) (reply, error) {
	if t, err := built(s, c); err == nil {
		return reply{Status: http.StatusOK, Body: detailOfBuilt(s, c.key, t)}, nil
	}
	t, err := s.Templates.Template(c.params["templateID"])
	if err != nil {
		return reply{}, err
	}
	at := httpapi.Timestamp(t.MadeAt)
	return reply{Status: http.StatusOK, Body: map[string]any{
		"templateID": t.ID, "public": true, "aliases": t.Names, "names": t.Names,
		"createdAt": at, "updatedAt": at, "lastSpawnedAt": nil, "spawnCount": 0,
		"builds": []buildView{{
			BuildID: buildOf(t), Status: templateReady, CreatedAt: at, UpdatedAt: at, FinishedAt: at, CPUCount: t.Limits.VCPUs(),
			MemoryMB: t.Limits.MemoryMiB, DiskSizeMB: t.Limits.DiskMiB, EnvdVersion: s.EnvdVersion,
		}},
	}}, nil
}

// alias tells what an alias stands for; a 404 is that it is free.
func (s *server) alias(c *call) (reply, error) {
	if t, _, err := s.origins.Built(c.key, c.params["alias"]); err == nil {
		return reply{Status: http.StatusOK, Body: map[string]any{"templateID": t.ID, "public": false}}, nil
	}
	t, err := s.Templates.Template(c.params["alias"])
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusOK, Body: map[string]any{"templateID": t.ID, "public": true}}, nil
}
