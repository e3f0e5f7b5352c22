package v1

import (
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/store"
)

// volumeView is a volume as clients see it.
type volumeView struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	CreatedAt httpapi.Timestamp `json:"createdAt"`
	DiskMiB   int               `json:"diskMiB" doc:"Disk limit; 0 for no limit."`
	// Files change while they are counted, so that there is no number without its time.
	DiskBytes      *int64             `json:"diskBytes" doc:"What its files took when they were last measured; null if unknown, as for a while after a start of the server, and for a volume with too many files to count."`
	DiskMeasuredAt *httpapi.Timestamp `json:"diskMeasuredAt" doc:"When that measurement began. A volume whose files have not changed since is not measured again."`
	Token          string             `json:"token,omitempty" doc:"The token for its files; only in answers about a single volume."`
}

type volumesView struct {
	Volumes []volumeView `json:"volumes"`
}

func (s *server) viewVolume(v store.Volume) volumeView {
	view := volumeView{ID: v.ID, Name: v.Name, CreatedAt: httpapi.Timestamp(v.CreatedAt), DiskMiB: v.DiskMiB}
	if bytes, at := s.Volumes.VolumeUse(v.ID); !at.IsZero() {
		view.DiskBytes, view.DiskMeasuredAt = new(bytes), new(httpapi.Timestamp(at))
	}
	return view
}

func (s *server) volumeWithToken(c *call, v store.Volume) volumeView {
	view := s.viewVolume(v)
	view.Token = s.Volumes.VolumeToken(c.key.ID, v.ID)
	return view
}

func (s *server) createVolume(c *call) (reply, error) {
	diskMiB := 0
	if w, said := c.words["diskMiB"]; said {
		diskMiB = w.Value.(int)
	}
	v, err := s.Volumes.CreateVolume(c.r.Context(), c.words["name"].Value.(string), diskMiB)
	return reply{Status: http.StatusCreated, Body: s.volumeWithToken(c, v)}, err
}

func (s *server) volumes(c *call) (reply, error) {
	list, err := s.Volumes.Volumes(c.r.Context())
	if err != nil {
		return reply{}, err
	}
	v := volumesView{Volumes: make([]volumeView, 0, len(list))}
	for _, one := range list {
		v.Volumes = append(v.Volumes, s.viewVolume(one))
	}
	return ok(v)
}

func (s *server) volume(c *call) (reply, error) {
	v, err := s.Volumes.Volume(c.r.Context(), c.params[volumeParam])
	if err != nil {
		return reply{}, err
	}
	return ok(s.volumeWithToken(c, v))
}

func (s *server) deleteVolume(c *call) (reply, error) {
	return reply{Status: http.StatusNoContent}, s.Volumes.DeleteVolume(c.r.Context(), c.params[volumeParam])
}

func viewMounts(list []store.VolumeMount) map[string]string {
	byPath := make(map[string]string, len(list))
	for _, m := range list {
		byPath[m.Path] = m.Name
	}
	return byPath
}
