package agentclient

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/service"
)

// FuzzAnswers reads what an agent may say. However much it is, what is kept has
// bounds, fits on a line, and lies in the past where it says that something was.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"now":"2026-01-01T00:00:00Z","processes":[{"pid":1,"command":"a\u001b[2J","lastProgress":"9999-01-01T00:00:00Z"},null],"leases":[{"id":"x","reason":"\u202e"}]}`))
	f.Add([]byte(`{"ended":[{"pid":-1,"command":"a\nb","bytes":-9223372036854775808},null,{}]}`))
	f.Add([]byte(`{"lines":[{"seq":9223372036854775807,"at":"0000-01-01T00:00:00Z","message":"x","fields":{"":""}}]}`))
	f.Add([]byte(`{"life":"\u001b[2J","services":[{"name":"a\nb","state":"\u202e","pid":-1,"failures":-1,"lastEnd":"x\u0000"},null],"events":[{"seq":-1,"service":"\u001b","type":"x\n","detail":"\u2028"}]}`))
	f.Add([]byte(`{"lines":[{"text":"a\u001b[2J"},null,{"text":"\u202e"},{"text":"b"},{"text":"c"}]}`))
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
		var services servicesAnswer
		if json.Unmarshal(said, &services) == nil {
			r := services.report()
			line(r.Life, service.MaxName)
			for _, s := range r.Services {
				line(s.Name, service.MaxName)
				line(string(s.State), service.MaxName)
				line(s.LastEnd, service.MaxDetail)
				line(s.WaitsFor, service.MaxDetail)
				if s.PID < 0 || s.Starts < 0 || s.Failures < 0 {
					t.Errorf("less than nothing: %+v", s)
				}
			}
			for _, e := range r.Events {
				line(e.Service, service.MaxName)
				line(string(e.Type), service.MaxName)
				line(e.Detail, service.MaxDetail)
			}
		}
		var lines linesAnswer
		if json.Unmarshal(said, &lines) == nil {
			list := lines.list(3)
			if len(list) > 3 {
				t.Errorf("%d lines, of 3 that were asked for", len(list))
			}
			for _, l := range list {
				line(l.Text, service.MaxLine)
			}
		}
		var log logAnswer
		_ = json.Unmarshal(said, &log)
	})
}
