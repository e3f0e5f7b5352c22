package e2b

import (
	"github.com/drowse-dev/drowse/internal/api/body"
)

// The bodies of this dialect. Those about a sandbox know all that the native one
// knows of it, in every spelling: a client of another server that speaks E2B's
// API gets what it asks for, or is told by name what it does not get.
var (
	createBody  = body.Options.With(startTimeout)
	wakeBody    = createBody.With(wakeMemory)
	timeoutBody = body.Vocabulary{anyTimeout}
	refreshBody = body.Vocabulary{{Name: "duration", Spelled: []body.Spelled{asWholeSeconds.As("duration")}}}
	networkBody = body.Options.Only("allowInternetAccess", "allowOut", "denyOut", "egressProxy", "allowPublicTraffic", "maskRequestHost", "httpsPorts")
	pauseBody   = body.Vocabulary{body.PauseMode, {Name: "requireHealthyGuest", Spelled: []body.Spelled{body.AsFlag.As("requireHealthyGuest require_healthy_guest")}}}
	keyBody     = body.Vocabulary{{Name: "name", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}}}
	volumeBody  = body.Vocabulary{
		{Name: "name", Required: true, Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "diskMiB", Spelled: []body.Spelled{body.AsCount.As("diskMiB disk_mib diskSizeMB disk_size_mb")}},
	}
	snapshotBody = body.Vocabulary{
		{Name: "name", Spelled: []body.Spelled{body.AsText.As("name")}},
		body.PauseMode,
	}
	rollbackBody = body.Vocabulary{{Name: "snapshotID", Required: true, Spelled: []body.Spelled{body.AsText.As("snapshotID snapshot_id")}}}

	forkBody    = body.Vocabulary{anyTimeout, {Name: "count", Spelled: []body.Spelled{body.AsCount.As("count")}}}
	cloneBody   = append(forkBody, body.Option{Name: "strict", Spelled: []body.Spelled{body.AsFlag.As("strict")}})
	webhookBody = body.Vocabulary{
		{Name: "name", Spelled: []body.Spelled{body.AsText.As("name")}},
		{Name: "url", Spelled: []body.Spelled{body.AsText.As("url")}},
		{Name: "events", Spelled: []body.Spelled{body.AsRules.As("events")}},
		{Name: "enabled", Spelled: []body.Spelled{body.AsFlag.As("enabled")}},
		{Name: "signatureSecret", Spelled: []body.Spelled{body.AsText.As("signatureSecret signature_secret")}},
		{Name: "replayFrom", Spelled: []body.Spelled{body.AsText.As("replayFrom replay_from")}},
	}
)

// wakeMemory says whether a resume restores memory.
var wakeMemory = body.Option{
	Name: "memory", Spelled: []body.Spelled{body.AsFlag.As("memory keepMemory keep_memory")},
}

// said returns what was said of an option, if anything was.
func said[T any](words map[string]body.Said, option string) (value T, given bool) {
	w, given := words[option]
	if given {
		value = w.Value.(T)
	}
	return value, given
}

// orNone makes the empty list the absent one.
func orNone(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}
