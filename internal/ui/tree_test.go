package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestTree: which snapshot goes on from which, as far as the events tell.
func TestTree(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(1000+int64(n), 0) }
	taken := func(n int, id string) client.Snapshot { return client.Snapshot{ID: id, CreatedAt: at(n)} }
	back := func(n int, detail string) client.Event {
		return client.Event{Type: "restored", Time: at(n), Detail: detail}
	}
	for _, c := range []struct {
		name      string
		snapshots []client.Snapshot // newest first
		events    []client.Event
		cut       bool
		want      string
	}{
		{"none", nil, nil, false, ""},
		{"one after another", []client.Snapshot{taken(3, "c"), taken(2, "b"), taken(1, "a")}, nil, false, "0 a, 0 b<a, 0 c<b*"},
		{"back and on", []client.Snapshot{taken(5, "c"), taken(3, "u"), taken(2, "b"), taken(1, "a")}, []client.Event{back(4, "to snapshot a; u keeps the state before")}, false, "0 a, 1 b<a, 1 u<b, 1 c<a*"},
		{"back, and nothing since", []client.Snapshot{taken(2, "b"), taken(1, "a")}, []client.Event{back(4, "to snapshot a")}, false, "0 a*, 0 b<a"},
		{"back to one that is gone", []client.Snapshot{taken(5, "c"), taken(3, "u"), taken(1, "a")}, []client.Event{back(4, "to snapshot b; u keeps the state before")}, false, "0 a, 0 u<a, 0 c*"},
		{"a name that reads like another's", []client.Snapshot{taken(5, "c"), taken(1, "a")}, []client.Event{back(4, "to snapshot ")}, false, "0 a, 0 c*"},
		{"events that begin late", []client.Snapshot{taken(6, "d"), taken(5, "c"), taken(2, "b"), taken(1, "a")}, []client.Event{{Type: "paused", Time: at(4)}}, true, "0 a, 0 b, 0 c, 0 d<c*"},
	} {
		var rows []string
		for _, r := range treeOf(c.snapshots, c.events, c.cut) {
			row := fmt.Sprintf("%d %s", r.Depth, r.ID)
			if r.After != "" {
				row += "<" + r.After
			}
			if r.Now {
				row += "*"
			}
			rows = append(rows, row)
		}
		if got := strings.Join(rows, ", "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
