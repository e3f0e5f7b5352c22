package e2b

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// volumeParam is the path parameter that names a volume.
const volumeParam = "volumeID"

// volumeView is an item of a list; with its token it answers create and get.
type volumeView struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
	Token    string `json:"token,omitempty"`
}

// volumeMount is a volume in a sandbox, in requests and answers.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

func (s *server) withToken(c *call, v store.Volume) volumeView {
	return volumeView{VolumeID: v.ID, Name: v.Name, Token: s.Volumes.VolumeToken(c.key.ID, v.ID)}
}

func (s *server) createVolume(c *call) (reply, error) {
	name, _ := said[string](c.words, "name")
	diskMiB, _ := said[int](c.words, "diskMiB")
	v, err := s.Volumes.CreateVolume(c.r.Context(), name, diskMiB)
	if errdef.Is(err, errdef.Exists) {
		return reply{}, fail(http.StatusBadRequest, codeVolumeExists, "%v", err)
	}
	return reply{Status: http.StatusCreated, Body: s.withToken(c, v)}, err
}

func (s *server) listVolumes(c *call) (reply, error) {
	list, err := s.Volumes.Volumes(c.r.Context())
	views := make([]volumeView, len(list))
	for i, v := range list {
		views[i] = volumeView{VolumeID: v.ID, Name: v.Name}
	}
	return reply{Status: http.StatusOK, Body: views}, err
}

func (s *server) getVolume(c *call) (reply, error) {
	v, err := s.Volumes.Volume(c.r.Context(), c.params[volumeParam])
	return reply{Status: http.StatusOK, Body: s.withToken(c, v)}, err
}

func (s *server) deleteVolume(c *call) (reply, error) {
	return noContent, s.Volumes.DeleteVolume(c.r.Context(), c.params[volumeParam])
}

func mountViews(c store.Config) []volumeMount {
	var views []volumeMount
	for _, m := range c.Volumes {
		views = append(views, volumeMount{Name: m.Name, Path: m.Path})
	}
	return views
}
