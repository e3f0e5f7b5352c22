package agentclient

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// FuzzAnswers reads what an agent may say. However much it is, what is kept has
// bounds, fits on a line, and lies in the past where it says that something was.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"now":"2026-01-01T00:00:00Z","processes":[{"pid":1,"command":"a\u001b[2J","lastProgress":"9999-01-01T00:00:00Z"},null],"leases":[{"id":"x","reason":"\u202e"}]}`))
	f.Add([]byte(`{"ended":[{"pid":-1,"command":"a\nb","bytes":-9223372036854775808},null,{}]}`))
	f.Add([]byte(`{"lines":[{"seq":9223372036854775807,"at":"0000-01-01T00:00:00Z","message":"x","fields":{"":""}}]}`))
	f.Fuzz(func(t *testing.T, said []byte) {
		line := func(text string, most int) {
			if len(text) > most || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q is kept", text)
			}
		}
		now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
		var activity activityAnswer
		if json.Unmarshal(said, &activity) == nil {
			seen := ToHostClock(activity.activity(), now)
			for _, p := range seen.Processes {
				line(p.Command, agentapi.MaxCommand)
				if p.LastProgress.After(now) || p.Since.After(now) {
					t.Errorf("it made progress in the future: %+v", p)
				}
			}
			for _, l := range seen.Leases {
				line(l.ID, agentapi.MaxReason)
				line(l.Reason, agentapi.MaxReason)
			}
		}
		var log logAnswer
		_ = json.Unmarshal(said, &log)
	})
}
