package v1

import (
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/preview"
)

// defaultPreview is how long a preview link is good if nobody says.
const defaultPreview = time.Hour

// previewView is a preview link. Token and URL are in the answer that makes it
// and nowhere else.
type previewView struct {
	ID        string            `json:"id"`
	Port      int               `json:"port"`
	CreatedAt httpapi.Timestamp `json:"createdAt"`
	ExpiresAt httpapi.Timestamp `json:"expiresAt"`
	Actor     *string           `json:"actor" doc:"Who created it."`
	Token     string            `json:"token,omitempty" doc:"The link's token; only in the answer that creates it."`
	URL       string            `json:"url,omitempty" doc:"The URL; only in the answer that creates it."`
}

type previewsView struct {
	Previews []previewView `json:"previews"`
}

func viewPreview(p store.Preview) previewView {
	return previewView{
		ID: p.ID, Port: p.Port, CreatedAt: httpapi.Timestamp(p.CreatedAt), ExpiresAt: httpapi.Timestamp(p.ExpiresAt), Actor: orNull(p.Actor),
	}
}

func (s *server) createPreview(c *call) (reply, error) {
	req := preview.Request{Port: c.words["port"].Value.(int), For: defaultPreview, Actor: c.actor}
	if w, given := c.words["expiresInSeconds"]; given {
		req.For = w.Value.(time.Duration)
	}
	path := "/"
	if w, given := c.words["path"]; given {
		path = w.Value.(string)
	}
	p, token, err := s.Sandboxes.CreatePreview(c.r.Context(), c.sandbox, req)
	if err != nil {
		return reply{}, err
	}
	v := viewPreview(p)
	v.Token, v.URL = token, s.previewURL(c, p.Port, path, token)
	return reply{Status: http.StatusCreated, Body: v}, nil
}

// previewURL returns the address of a port as the client that asks can reach
// it: by host name if there is a domain, and else by path on the host that it
// has asked.
func (s *server) previewURL(c *call, port int, path, token string) string {
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	return httpapi.PortURL(c.r, s.Domain, c.sandbox, port) + path + separator + preview.Param + "=" + token
}

func (s *server) previews(c *call) (reply, error) {
	list, err := s.Sandboxes.Previews(c.r.Context(), c.sandbox)
	if err != nil {
		return reply{}, err
	}
	v := previewsView{Previews: make([]previewView, 0, len(list))}
	for _, p := range list {
		v.Previews = append(v.Previews, viewPreview(p))
	}
	return ok(v)
}

func (s *server) revokePreview(c *call) (reply, error) {
	return reply{Status: http.StatusNoContent}, s.Sandboxes.RevokePreview(c.r.Context(), c.sandbox, c.params[previewParam], c.actor)
}
