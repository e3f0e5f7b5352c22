package ui

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/client"
)

// mount is a sandbox that has a volume.
type mount struct {
	ID, Name, Path string
	State          client.State
}

type volumeRow struct {
	client.Volume
	Mounts []mount // the first few
	More   int
}

// Part is how much of its limit it takes, in percent.
func (r volumeRow) Part() int64 {
	if r.DiskBytes == nil {
		return 0
	}
	return ratio(*r.DiskBytes, int64(r.DiskMiB)<<20)
}

type volumesData struct {
	Volumes []volumeRow
	Some    bool // not all sandboxes were looked at for who mounts them
	Back    string
}

const (
	// mostMounting is how many sandboxes are looked at for the volumes that they have.
	mostMounting = 1000
	// mostMounts is how many are named beside a volume.
	mostMounts = 5
)

// volumes lists the directories that outlive sandboxes, with who has them.
func volumes(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	ctx := v.r.Context()
	list, err := a.Volumes(ctx)
	if err != nil {
		return err
	}
	d := volumesData{Back: v.r.URL.RequestURI()}
	mounts := map[string][]mount{}
	if len(list) > 0 {
		var page sandboxPage
		if err := a.call(ctx, http.MethodGet, "/v1/sandboxes", url.Values{"limit": {strconv.Itoa(mostMounting)}}, nil, &page); err != nil {
			return err
		}
		d.Some = page.Next != ""
		for _, i := range page.Sandboxes {
			for path, name := range i.Volumes {
				mounts[name] = append(mounts[name], mount{i.ID, nameOf(i), path, i.State})
			}
		}
	}
	for _, one := range list {
		all := mounts[one.Name]
		slices.SortFunc(all, func(a, b mount) int { return strings.Compare(a.ID+a.Path, b.ID+b.Path) })
		shown := min(len(all), mostMounts)
		d.Volumes = append(d.Volumes, volumeRow{one, all[:shown], len(all) - shown})
	}
	v.render(http.StatusOK, "volumes", screen{Title: "Volumes", Section: "volumes", Data: d})
	return nil
}

// changeVolumes makes a volume, or deletes one that no sandbox has.
func changeVolumes(v *visit) error {
	return v.do(actTime, Path+"/volumes", func(ctx context.Context, a api) (notice, error) {
		f := v.r.PostForm
		switch f.Get("do") {
		case "create":
			o := client.VolumeOptions{Name: strings.TrimSpace(f.Get("name"))}
			var err error
			if o.DiskMiB, err = v.count("disk", 0); err != nil {
				return notice{}, err
			}
			one, err := a.CreateVolumeWith(ctx, o)
			return notice{Text: "The volume " + one.Name + " is made."}, err
		case "delete":
			return notice{Text: "The volume is deleted, with all its files."}, a.DeleteVolume(ctx, f.Get("volume"))
		}
		return notice{}, missing(v)
	})
}
