package sandbox0

import (
	"crypto/rand"
	"net/http"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/store"
)

// What every volume of this server is, in sandbox0's words.
const (
	volumeBackend = "s0fs"
	volumeAccess  = "RWX"
)

type volumeView struct {
	ID         string            `json:"id"`
	TeamID     string            `json:"team_id"`
	UserID     string            `json:"user_id"`
	Backend    string            `json:"backend"`
	AccessMode string            `json:"access_mode"`
	CreatedAt  httpapi.Timestamp `json:"created_at"`
	UpdatedAt  httpapi.Timestamp `json:"updated_at"`
}

func viewVolume(v store.Volume) volumeView {
	at := httpapi.Timestamp(v.CreatedAt)
	return volumeView{ID: v.ID, TeamID: team, UserID: team, Backend: volumeBackend, AccessMode: volumeAccess, CreatedAt: at, UpdatedAt: at}
}

// mountView tells what became of a mount of a claim.
type mountView struct {
	Volume string `json:"sandboxvolume_id"`
	Path   string `json:"mount_point"`
	State  string `json:"state"`
}

// viewMounts shows the volumes of a sandbox, which are there before it runs.
func viewMounts(list []store.VolumeMount) []mountView {
	views := []mountView{}
	for _, m := range list {
		views = append(views, mountView{m.Volume, m.Path, "mounted"})
	}
	return views
}

// createVolume makes a volume, whose name is its own affair: here it must have one.
func createVolume(s *server, c *call) (reply, error) {
	v, err := s.Volumes.CreateVolume(c.r.Context(), "sandbox0-"+strings.ToLower(rand.Text()), 0)
	if err != nil {
		return reply{}, err
	}
	return reply{Status: http.StatusCreated, Body: viewVolume(v)}, nil
}

func listVolumes(s *server, c *call) (reply, error) {
	list, err := s.Volumes.Volumes(c.r.Context())
	if err != nil {
		return reply{}, err
	}
	views := []volumeView{}
	for _, v := range list {
		views = append(views, viewVolume(v))
	}
	return ok(views)
}

func getVolume(s *server, c *call) (reply, error) {
	v, err := s.Volumes.Volume(c.r.Context(), c.params[volumeParam])
	if err != nil {
		return reply{}, err
	}
	return ok(viewVolume(v))
}

// deleteVolume never takes a volume from a sandbox that has it, by force or not.
func deleteVolume(s *server, c *call) (reply, error) {
	if _, err := flag(c.r.URL.Query(), "force"); err != nil {
		return reply{}, err
	}
	if err := s.Volumes.DeleteVolume(c.r.Context(), c.params[volumeParam]); err != nil {
		return reply{}, err
	}
	return done("deleted")
}
