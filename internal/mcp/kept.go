package mcp

import (
	"cmp"
	"context"
	"slices"

	"github.com/drowse-dev/drowse/client"
)

type snapshotsIn struct {
	Sandbox string `json:"sandbox,omitempty" jsonschema:"only those of this sandbox, which may have ended; left out: all"`
	Limit   int    `json:"limit,omitempty" jsonschema:"how many at most, newest first; left out: 50"`
}

type snapshotsOut struct {
	Snapshots []snapshotView `json:"snapshots" jsonschema:"newest first"`
	Left      int            `json:"left_out" jsonschema:"how many more there are"`
}

type snapshotView struct {
	Snapshot  string `json:"snapshot" jsonschema:"id"`
	Name      string `json:"name,omitempty"`
	Sandbox   string `json:"sandbox" jsonschema:"id of the sandbox that it was taken of"`
	Template  string `json:"template" jsonschema:"of that sandbox"`
	Mode      string `json:"mode" jsonschema:"memory or filesystem"`
	CreatedAt string `json:"created_at"`
	ExpiresAt string `json:"expires_at,omitempty" jsonschema:"when it is deleted by itself"`
	Bytes     int64  `json:"bytes" jsonschema:"what it takes on disk beside what it shares"`
	Undo      bool   `json:"undo,omitempty" jsonschema:"it keeps what the sandbox was before its last restore"`
}

type deleteIn struct {
	Snapshot string `json:"snapshot" jsonschema:"id or name of the snapshot"`
}

type deleteOut struct {
	Deleted string `json:"deleted" jsonschema:"id or name of the snapshot"`
}

type restoreIn struct {
	named
	Snapshot string `json:"snapshot,omitempty" jsonschema:"id or name of a snapshot of this sandbox; left out: what it was before the last restore"`
	Mode     string `json:"mode,omitempty" jsonschema:"filesystem brings back the files alone, and processes start afresh; left out: all that the snapshot has"`
}

type restoreOut struct {
	Sandbox sandboxView `json:"sandbox"`
	Undo    string      `json:"undo,omitempty" jsonschema:"id of the snapshot that keeps what it was before; restore without a snapshot goes back there"`
}

type templatesIn struct {
	Limit int `json:"limit,omitempty" jsonschema:"how many at most; left out: 50"`
}

type templatesOut struct {
	Templates []templateView `json:"templates"`
	Left      int            `json:"left_out" jsonschema:"how many more there are"`
}

type templateView struct {
	Template string   `json:"template" jsonschema:"id; create_sandbox takes it, or a name"`
	Names    []string `json:"names"`
	Source   string   `json:"source" jsonschema:"host: the host's own system; image: an image; build: steps over another template"`
	User     string   `json:"user" jsonschema:"as whom commands run that do not say"`
	Status   string   `json:"status,omitempty" jsonschema:"of the newest build; only what was built once can be started from"`
}

// addKept adds the tools for what sandboxes start from and go back to.
func addKept(s *Server) {
	add(s, tool{
		name: "list_templates", title: "List templates", reads: true,
		about: "List the templates that create_sandbox can start sandboxes from, by their names.",
		least: map[string]float64{"limit": 0}, most: map[string]float64{"limit": 500},
	}, listTemplates)
	add(s, tool{
		name: "list_snapshots", title: "List snapshots", reads: true,
		about: "List the snapshots that were taken of sandboxes, also of those that have ended. create_sandbox starts from them, restore goes back to them, delete_snapshot frees their disk.",
		least: map[string]float64{"limit": 0}, most: map[string]float64{"limit": 500},
	}, listSnapshots)
	add(s, tool{
		name: "restore", title: "Go back to a snapshot", destroys: true,
		about: "Take a sandbox back to one of its own snapshots, with memory, processes and files. A sleeping one goes on sleeping; a running one runs on from there, and its open calls are cut off. " +
			"What it was before is kept in a snapshot, so that a second restore without a snapshot undoes it.",
		words: map[string][]string{"mode": {"memory", "filesystem"}},
	}, restore)
	add(s, tool{
		name: "delete_snapshot", title: "Delete a snapshot", destroys: true, repeats: true,
		about: "Delete a snapshot for good. Sandboxes that started from it stay.",
	}, deleteSnapshot)
}

func listTemplates(ctx context.Context, c call, in templatesIn) (templatesOut, error) {
	all, err := client.NewTemplates(c.Client).List(ctx)
	if err != nil {
		return templatesOut{}, err
	}
	shown := all[:min(len(all), cmp.Or(in.Limit, defaultListed))]
	out := templatesOut{Templates: []templateView{}, Left: len(all) - len(shown)}
	for _, t := range shown {
		v := templateView{Template: t.ID, Names: []string{}, Source: t.Source, User: short(t.User)}
		for _, name := range t.Names[:min(len(t.Names), mostShown)] {
			v.Names = append(v.Names, short(name))
		}
		if t.Build != nil {
			v.Status = t.Build.Status
		}
		out.Templates = append(out.Templates, v)
	}
	return out, nil
}

func listSnapshots(ctx context.Context, c call, in snapshotsIn) (snapshotsOut, error) {
	all, err := client.NewSnapshots(c.Client).List(ctx, in.Sandbox)
	if err != nil {
		return snapshotsOut{}, err
	}
	slices.SortStableFunc(all, func(a, b client.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	shown := all[:min(len(all), cmp.Or(in.Limit, defaultListed))]
	out := snapshotsOut{Snapshots: []snapshotView{}, Left: len(all) - len(shown)}
	for _, x := range shown {
		out.Snapshots = append(out.Snapshots, snapshotView{
			Snapshot: x.ID, Name: short(x.Name), Sandbox: x.Sandbox, Template: short(cmp.Or(x.Alias, x.Template)), Mode: string(x.Mode),
			CreatedAt: instant(x.CreatedAt), ExpiresAt: instant(x.ExpiresAt), Bytes: x.Bytes, Undo: x.Undo,
		})
	}
	return out, nil
}

func restore(ctx context.Context, c call, in restoreIn) (restoreOut, error) {
	r, err := client.NewSnapshots(c.Client).Restore(ctx, in.Sandbox, client.RestoreOptions{Snapshot: in.Snapshot, Mode: client.Mode(in.Mode)})
	return restoreOut{viewOf(r.Info), r.Undo}, err
}

func deleteSnapshot(ctx context.Context, c call, in deleteIn) (deleteOut, error) {
	return deleteOut{in.Snapshot}, client.NewSnapshots(c.Client).Delete(ctx, in.Snapshot)
}
