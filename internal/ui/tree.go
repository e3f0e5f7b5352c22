package ui

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// treeRow is a snapshot in the tree of a sandbox's snapshots.
type treeRow struct {
	client.Snapshot
	Depth int    // of branches: a snapshot that is the only one after another is as deep as that
	After string // the name or id of the snapshot that it goes on from; empty for none that is there
	Now   bool   // the sandbox goes on from it
}

// mostDepth bounds how far rows are indented.
const mostDepth = 6

// treeOf orders the snapshots of a sandbox by which goes on from which: the one that
// was taken before it, or the one that the sandbox had gone back to by then, which the
// sandbox's events tell, oldest first. Where these do not go back so far (cut), nothing
// is said of what was before them.
func treeOf(snapshots []client.Snapshot, events []client.Event, cut bool) []treeRow {
	if len(snapshots) == 0 {
		return nil
	}
	byID := map[string]client.Snapshot{}
	for _, s := range snapshots {
		byID[s.ID] = s
	}
	type step struct {
		at    time.Time
		taken string // a snapshot
		to    string // or where a restore went; empty if that is gone
	}
	var steps []step
	for _, s := range snapshots {
		steps = append(steps, step{at: s.CreatedAt, taken: s.ID})
	}
	known := time.Time{}
	if cut && len(events) > 0 {
		known = events[0].Time
	}
	for _, e := range events {
		if e.Type == "restored" {
			steps = append(steps, step{at: e.Time, to: restoredTo(e, byID)})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	children := map[string][]string{}
	now := ""
	for n, s := range steps {
		if s.at.Before(known) || n > 0 && steps[n-1].at.Before(known) {
			now = ""
		}
		if s.taken == "" {
			now = s.to
			continue
		}
		children[now] = append(children[now], s.taken)
		now = s.taken
	}
	rows := make([]treeRow, 0, len(snapshots))
	var add func(after string, depth int)
	add = func(after string, depth int) {
		all := children[after]
		if after != "" && len(all) > 1 {
			depth++
		}
		for _, id := range all {
			row := treeRow{Snapshot: byID[id], Depth: min(depth, mostDepth), Now: id == now}
			if after != "" {
				row.After = cmp.Or(byID[after].Name, after)
			}
			rows = append(rows, row)
			add(id, depth)
		}
	}
	add("", 0)
	return rows
}

// restoredTo returns the id of the snapshot that a sandbox went back to by an event, if
// it is one of these.
func restoredTo(e client.Event, snapshots map[string]client.Snapshot) string {
	text, _ := strings.CutPrefix(e.Detail, "to snapshot ")
	id, _, _ := strings.Cut(text, ";")
	return snapshots[id].ID
}
