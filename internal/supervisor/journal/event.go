package journal

import (
	"slices"
	"strconv"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Merge returns the lines and those of events, latest first, in the order of their times.
func Merge(lines []Line, events []store.Event) []Line {
	for _, e := range slices.Backward(events) {
		lines = append(lines, LineOf(e))
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return a.At.Compare(b.At) })
	return lines
}

// LineOf says in a line what an entry of the event log says.
func LineOf(e store.Event) Line {
	l := Line{Event: e.Seq, At: e.At, Level: Info, Message: "sandbox " + string(e.Type), Fields: map[string]string{
		"event": strconv.FormatInt(e.Seq, 10), "generation": strconv.FormatInt(e.Generation, 10),
	}}
	switch e.Type {
	case lifecycle.EntryPauseFailed, lifecycle.EntryResumeFailed, lifecycle.EntryRestoreFailed, lifecycle.EntryRuntimeLost:
		l.Level = Error
	case lifecycle.EntryStalled, lifecycle.EntryExpiring, lifecycle.EntryStarved, lifecycle.EntrySecretRefused, lifecycle.EntryServiceCrashed, lifecycle.EntryServiceBackingOff:
		l.Level = Warn
	}
	if e.Cause != "" {
		l.Fields["cause"] = string(e.Cause)
	}
	if e.Detail != "" {
		l.Message += ": " + e.Detail
	}
	return l
}
