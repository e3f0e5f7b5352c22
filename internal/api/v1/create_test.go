package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/api/apitest"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

func request(change func(*supervisor.CreateRequest)) supervisor.CreateRequest {
	r := supervisor.CreateRequest{
		Template: "base", Actor: apitest.Actor,
		Config: store.Config{Key: apitest.KeyID, Secure: true},
	}
	if change != nil {
		change(&r)
	}
	return r
}

// create is what words ask for.
func create(t *testing.T, words map[string]body.Said) supervisor.CreateRequest {
	t.Helper()
	req, err := New(Options{}).(*server).createRequest(words)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestEverySpelling(t *testing.T) {
	for _, sp := range body.Options.Spellings() {
		if sp.Option.Refused {
			continue
		}
		t.Run(sp.Path, func(t *testing.T) {
			sample, ok := apitest.Samples[sp.Option.Name][sp.Form.Words]
			if !ok {
				t.Fatalf("no sample of %s as %s", sp.Option.Name, sp.Form.Words)
			}
			words, err := body.Options.Parse([]byte("{"+apitest.Nested(sp.Path, sample.Value)+"}"), body.NullIsAbsent)
			if err != nil {
				t.Fatal(err)
			}
			got := create(t, words)
			want := request(sample.Set)
			want.Actor, want.Config.Key, got.Said = "", "", nil
			if sp.Path == "ttl" {
				want.Settings.MaxLifetime = time.Hour
			}
			if strings.Contains(apitest.Nested(sp.Path, ""), "action") && strings.Contains(strings.ToLower(sp.Path), "keep") {
				want.Settings.OnTimeout = lifecycle.Kill
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			words, err = body.Options.Parse([]byte("{"+apitest.Nested(sp.Path, "null")+"}"), body.NullIsAbsent)
			if strings.Contains(sp.Path, ".") || sp.Path == "ttl" {
				return // the object may need it
			}
			if err != nil || len(words) != 0 {
				t.Errorf("null is %v, %v; want nothing said", words, err)
			}
		})
	}
}

// TestEverySpellingThere holds the table against the spellings that were
// promised.
func TestEverySpellingThere(t *testing.T) {
	for option, paths := range map[string]string{
		"timeoutSeconds": "timeoutMs timeout_ms timeout timeoutSeconds timeout_seconds ttl",
		"onTimeout": "lifecycle.onTimeout lifecycle.on_timeout onTimeout on_timeout lifecycle.onTimeout.action " +
			"autoPause auto_pause",
		"pauseMode": "lifecycle.onTimeout.keepMemory lifecycle.onTimeout.keep_memory onTimeout.keepMemory onTimeout.keep_memory " +
			"autoPauseMemory pauseMode",
		"autoResume":             "lifecycle.autoResume lifecycle.auto_resume autoResume auto_resume autoResume.enabled auto_resume.enabled autoResumeEnabled",
		"maxLifetimeSeconds":     "hard_ttl hardTtl maxLifetime maxLifetimeSeconds max_lifetime max_lifetime_seconds",
		"checkpointEverySeconds": "checkpointEvery checkpointEverySeconds checkpoint_every checkpoint_every_seconds",
		"idleTimeoutSeconds":     "idleTimeout idleTimeoutSeconds idle_timeout idle_timeout_seconds",
		"onIdle":                 "onIdle on_idle",
		"pausedRetentionSeconds": "pausedRetention pausedRetentionSeconds paused_retention paused_retention_seconds",
		"refreshOnActivity":      "refreshOnActivity refresh_on_activity",
		"stallAfterSeconds":      "stallAfter stallAfterSeconds",
		"metadata":               "metadata",
		"env":                    "env envs envVars",
		"template":               "template templateID",
		"secure":                 "secure",
		"allowInternetAccess":    "allowInternetAccess allow_internet_access",
		"cpus":                   "cpus cpuCount cpu_count",
		"memoryMiB":              "memoryMiB memory_mib memoryMB memory_mb",
		"diskMiB":                "diskMiB disk_mib diskSizeMB disk_size_mb",
		"pids":                   "pids",
		"allowOut":               "allowOut allow_out network.allowOut network.allow_out",
		"denyOut":                "denyOut deny_out network.denyOut network.deny_out",
		"egressProxy":            "egressProxy egress_proxy network.egressProxy network.egress_proxy",
		"ports":                  "ports",
		"hooks":                  "hooks",
	} {
		has := body.Options.Aliases(option)
		for path := range strings.FieldsSeq(paths) {
			if !strings.Contains(" "+strings.Join(has, " ")+" ", " "+path+" ") {
				t.Errorf("%s is no spelling of %s", path, option)
			}
		}
	}
}

func TestCreateTranslates(t *testing.T) {
	tests := map[string]struct {
		body string
		want func(*supervisor.CreateRequest)
	}{
		"no body":              {"", nil},
		"empty object":         {"{}", nil},
		"zeros are no limits":  {`{"timeout":0,"idleTimeout":0,"maxLifetime":0}`, nil},
		"no retention":         {`{"pausedRetention":0.0}`, func(r *supervisor.CreateRequest) { r.Settings.PausedRetention = supervisor.Unlimited }},
		"nulls":                {`{"timeout":null,"lifecycle":null,"metadata":null,"hooks":{"preKill":null}}`, nil},
		"the same value twice": {`{"timeout":2,"timeoutMs":2000,"timeout_seconds":2.0}`, timeout(2 * time.Second)},
		"the same field twice": {`{"timeout":2,"timeout":2}`, timeout(2 * time.Second)},
		"the same action":      {`{"autoPause":true,"lifecycle":{"onTimeout":{"action":"pause"}},"on_timeout":"pause"}`, pausing},
		"the same maps":        {`{"env":{"A":"1","B":"2"},"envVars":{"B":"2","A":"1"}}`, func(r *supervisor.CreateRequest) { r.Config.Env = map[string]string{"A": "1", "B": "2"} }},
		"as E2B's SDK":         {`{"lifecycle":{"onTimeout":{"action":"pause","keepMemory":false},"autoResume":false}}`, func(r *supervisor.CreateRequest) { pausing(r); filesystem(r) }},
		"fractions": {`{"timeout":0.5,"idle_timeout":1.25e1}`, func(r *supervisor.CreateRequest) {
			r.Settings.Timeout, r.Settings.IdleTimeout = 500*time.Millisecond, 12500*time.Millisecond
		}},
		"stall default": {`{"stallAfter":null}`, nil},
		"stall after":   {`{"stall_after":90}`, func(r *supervisor.CreateRequest) { r.Settings.StallAfter = 90 * time.Second }},
		"empty maps":    {`{"metadata":{},"env":{},"ports":{},"hooks":{}}`, nil},
		"hooks": {`{"hooks":{"prePause":{"command":"a","timeoutSeconds":30},"post_resume":{"command":"b","timeout_seconds":0.5},"preKill":{"command":"c"}}}`, func(r *supervisor.CreateRequest) {
			r.Config.Hooks = store.Hooks{PrePause: store.Hook{Command: "a", Budget: 30 * time.Second}, PostResume: store.Hook{Command: "b", Budget: 500 * time.Millisecond}, PreKill: store.Hook{Command: "c", Budget: 5 * time.Second}}
		}},
		"ports": {`{"ports":{"1":"wake","8000":"keep","65535":"ignore"}}`, func(r *supervisor.CreateRequest) {
			r.Config.Ports = store.Ports{"1": lifecycle.Wake, "8000": lifecycle.Keep, "65535": lifecycle.Ignore}
		}},
		"auto-resume on idle": {`{"autoResume":true,"onIdle":"pause","idleTimeout":60}`, func(r *supervisor.CreateRequest) {
			r.Settings.AutoResume, r.Settings.OnIdle, r.Settings.IdleTimeout = true, lifecycle.Pause, time.Minute
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.do("POST", base, tt.body).Is(http.StatusCreated)
			w.Fake.Created[0].Said = nil
			if got, want := w.Fake.Created[0], request(tt.want); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if want := base + "/" + a.Object()["id"].(string); a.Header.Get("Location") != want {
				t.Errorf("Location %q, want %s", a.Header.Get("Location"), want)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	tests := map[string]struct {
		body          string
		status        int
		code, message string
		remediation   string
	}{
		"no JSON":                  {`{"timeout" 1}`, 400, "invalid_request", "line 1, column 12", ""},
		"two lines":                {"{\n \"timeout\": oops}", 400, "invalid_request", "line 2, column 13", ""},
		"an array":                 {`[]`, 400, "invalid_request", "must be an object, not an array", ""},
		"null":                     {`null`, 400, "invalid_request", "must be an object, not null", ""},
		"two objects":              {`{}{}`, 400, "invalid_request", "column 3", ""},
		"not UTF-8":                {"{\"template\":\"\xff\"}", 400, "invalid_request", "UTF-8", ""},
		"deep":                     {strings.Repeat(`{"lifecycle":`, 20000), 400, "invalid_request", "JSON", ""},
		"unknown":                  {`{"nonsense":1}`, 400, "unknown_field", `"nonsense"`, "openapi.json"},
		"misspelled":               {`{"timeuot":1}`, 400, "unknown_field", `"timeuot"`, `"timeout"`},
		"other letters":            {`{"AUTORESUME":true}`, 400, "unknown_field", `"AUTORESUME"`, `"autoResume"`},
		"dashes":                   {`{"idle-timeout":1}`, 400, "unknown_field", `"idle-timeout"`, `"idleTimeout"`},
		"unknown in lifecycle":     {`{"lifecycle":{"ontimeout":"kill"}}`, 400, "unknown_field", `"lifecycle.ontimeout"`, `"lifecycle.onTimeout"`},
		"unknown in onTimeout":     {`{"onTimeout":{"action":"kill","keepmemory":true}}`, 400, "unknown_field", `"onTimeout.keepmemory"`, `"onTimeout.keepMemory"`},
		"a path as a name":         {`{"lifecycle.autoResume":true}`, 400, "unknown_field", "lifecycle.autoResume", ""},
		"a field of another API":   {`{"zone":"a"}`, 400, "unknown_field", "zone", ""},
		"an endless name":          {`{"` + strings.Repeat("é", 5000) + `":1}`, 400, "unknown_field", "…", ""},
		"a negative timeout":       {`{"timeout":-1}`, 400, "timeout_invalid", `"timeout" is negative`, "positive"},
		"ttl alone":                {`{"ttl":60}`, 400, "ambiguous_field", `"ttl" alone could mean timeoutSeconds or maxLifetimeSeconds`, "beside hard_ttl"},
		"too short":                {`{"timeoutMs":0.5}`, 400, "timeout_invalid", `"timeoutMs" is shorter`, ""},
		"next to nothing":          {`{"maxLifetime":1e-400}`, 400, "timeout_invalid", `"maxLifetime" is shorter`, ""},
		"nothing, below 0":         {`{"hard_ttl":-1e-400}`, 400, "timeout_invalid", `"hard_ttl" is`, ""},
		"endless":                  {`{"timeout":1e400}`, 400, "timeout_too_large", `"timeout" is longer`, "less"},
		"beyond the clock":         {`{"maxLifetime":9223372037}`, 400, "timeout_too_large", `"maxLifetime"`, ""},
		"timeout as text":          {`{"timeout":"60"}`, 400, "invalid_request", `"timeout" must be a number, not a string`, ""},
		"timeout as boolean":       {`{"timeout":true}`, 400, "invalid_request", `"timeout" must be a number, not a boolean`, ""},
		"not a number":             {`{"timeout":NaN}`, 400, "invalid_request", "JSON", ""},
		"another action":           {`{"onTimeout":"stop"}`, 400, "action_invalid", `"onTimeout" is "stop"`, "kill or pause"},
		"action as boolean":        {`{"onTimeout":true}`, 400, "invalid_request", `"onTimeout" must be a string`, ""},
		"no action":                {`{"onTimeout":{"keepMemory":true}}`, 400, "invalid_request", `"onTimeout.action" is required`, ""},
		"null action":              {`{"lifecycle":{"on_timeout":{"action":null}}}`, 400, "invalid_request", `"lifecycle.on_timeout.action" is required`, ""},
		"autoResume empty":         {`{"autoResume":{}}`, 400, "invalid_request", `"autoResume.enabled" is required`, ""},
		"autoResume as text":       {`{"autoResume":"yes"}`, 400, "invalid_request", `"autoResume" must be a boolean`, ""},
		"lifecycle as text":        {`{"lifecycle":"pause"}`, 400, "invalid_request", `"lifecycle" must be an object, not a string`, ""},
		"another mode":             {`{"pauseMode":"disk"}`, 400, "mode_invalid", `"pauseMode" is "disk"`, ""},
		"number in metadata":       {`{"metadata":{"a":1}}`, 400, "invalid_request", `"metadata.a" must be a string`, ""},
		"metadata twice":           {`{"metadata":{"a":"1","a":"1"}}`, 400, "invalid_request", `"a" twice`, ""},
		"variable with =":          {`{"env":{"a=b":""}}`, 400, "invalid_request", `"a=b"`, ""},
		"NUL in a variable":        {`{"env":{"a":"\u0000"}}`, 400, "invalid_request", "NUL", ""},
		"template with two tags":   {`{"template":"a:b:c"}`, 400, "invalid_request", "a:b:c", "alias"},
		"unknown template":         {`{"template":"nope"}`, 404, "template_not_found", "nope", ""},
		"port 0":                   {`{"ports":{"0":"wake"}}`, 400, "port_invalid", `"0"`, "65535"},
		"port with a zero":         {`{"ports":{"080":"wake"}}`, 400, "port_invalid", `"080"`, ""},
		"port without a number":    {`{"ports":{"/healthz":"wake"}}`, 400, "port_invalid", `"ports": "/healthz"`, "8080/healthz"},
		"path without a slash":     {`{"ports":{"80healthz":"wake"}}`, 400, "port_invalid", `"80healthz"`, "8080/healthz"},
		"path with a query":        {`{"ports":{"80/a?b":"wake"}}`, 400, "port_invalid", `"80/a?b"`, "without a query"},
		"path with dots":           {`{"ports":{"80/a/../b":"wake"}}`, 400, "port_invalid", `"80/a/../b"`, "80/b"},
		"two policies of a path":   {`{"ports":{"80/a":"wake","80/a/":"keep"}}`, 400, "invalid_request", "both wake and keep", "one of them"},
		"too many rules":           {`{"ports":{` + rules(101) + `}}`, 400, "field_too_large", "101 rules", "100"},
		"path policy":              {`{"ports":{"80/a":"Wake"}}`, 400, "invalid_request", `"ports.80/a"`, "ignore"},
		"port too high":            {`{"ports":{"65536":"wake"}}`, 400, "port_invalid", `"65536"`, ""},
		"port policy":              {`{"ports":{"80":"sleep"}}`, 400, "invalid_request", `"sleep"`, "ignore"},
		"hook without command":     {`{"hooks":{"prePause":{}}}`, 400, "invalid_request", `"hooks.prePause.command"`, ""},
		"hook too long":            {`{"hooks":{"prePause":{"command":"a","timeoutSeconds":31}}}`, 400, "timeout_too_large", "30s", ""},
		"hook of no time":          {`{"hooks":{"prePause":{"command":"a","timeoutSeconds":0}}}`, 400, "timeout_invalid", "is 0", ""},
		"unknown hook":             {`{"hooks":{"prepause":{"command":"a"}}}`, 400, "unknown_field", "hooks.prepause", `"hooks.prePause"`},
		"unknown field of a hook":  {`{"hooks":{"preKill":{"cmd":"a"}}}`, 400, "unknown_field", "hooks.preKill.cmd", ""},
		"hook in two spellings":    {`{"hooks":{"preKill":{"command":"a"},"pre_kill":{"command":"b"}}}`, 400, "invalid_request", "two spellings", ""},
		"resume without pause":     {`{"autoResume":true}`, 400, "auto_resume_needs_pause", "autoResume", "onTimeout"},
		"resume without memory":    {`{"autoResume":true,"autoPause":true,"autoPauseMemory":false}`, 400, "auto_resume_needs_memory", "autoResume", ""},
		"resume of a file system":  {`{"autoResume":true,"onTimeout":"pause","pauseMode":"filesystem"}`, 400, "auto_resume_needs_memory", "autoResume", ""},
		"resume, killed if idle":   {`{"autoResume":true,"idleTimeout":60,"onIdle":"kill"}`, 400, "auto_resume_needs_pause", "autoResume", ""},
		"a negative idle timeout":  {`{"idleTimeout":-0.5}`, 400, "timeout_invalid", `"idleTimeout" is negative`, "positive"},
		"a negative lifetime":      {`{"hard_ttl":-1}`, 400, "timeout_invalid", `"hard_ttl" is negative`, "positive"},
		"a negative retention":     {`{"pausedRetention":-1}`, 400, "timeout_invalid", `"pausedRetention" is negative`, "positive"},
		"a negative stall":         {`{"stallAfter":-1}`, 400, "timeout_invalid", `"stallAfter" is negative`, "positive"},
		"fraction of a port":       {`{"ports":{"80.5":"keep"}}`, 400, "port_invalid", `"80.5"`, ""},
		"next to no CPU":           {`{"cpus":0.004}`, 400, "invalid_request", `"cpus" must be a number of CPUs from 0.01`, ""},
		"no memory":                {`{"memoryMiB":0}`, 400, "invalid_request", `"memoryMiB" must be an integer from 1`, ""},
		"internet as text":         {`{"allowInternetAccess":"no"}`, 400, "invalid_request", `"allowInternetAccess" must be a boolean`, ""},
		"rules as text":            {`{"allowOut":"a.test"}`, 400, "invalid_request", `"allowOut" must be an array of strings`, ""},
		"rules of another kind":    {`{"denyOut":[1]}`, 400, "invalid_request", `"denyOut" must be an array of strings`, ""},
		"internet, and none":       {`{"allowInternetAccess":true,"allow_internet_access":false}`, 400, "contradicting_options", `"allow_internet_access" is false`, ""},
		"refresh without timeout":  {`{"refreshOnActivity":true}`, 400, "refresh_needs_timeout", "refreshOnActivity", ""},
		"requests without timeout": {`{"refreshOnActivity":"requests"}`, 400, "refresh_needs_timeout", "refreshOnActivity", ""},
		"another refresh":          {`{"timeout":60,"refreshOnActivity":"request"}`, 400, "invalid_request", `"request"`, "requests"},
		"seconds and millis":       {`{"timeout":5,"timeoutMs":5}`, 400, "contradicting_options", `"timeoutMs" is 5`, "one of them"},
		"the same field twice":     {`{"timeout":5,"timeout":6}`, 400, "contradicting_options", `"timeout" is 6`, ""},
		"zero and something":       {`{"hardTtl":0,"hard_ttl":6}`, 400, "contradicting_options", `"hardTtl" is 0, but "hard_ttl" is 6`, ""},
		"pause and kill":           {`{"autoPause":true,"onTimeout":"kill"}`, 400, "contradicting_options", `"autoPause" is true, but "onTimeout" is "kill"`, ""},
		"no pause and pause":       {`{"lifecycle":{"onTimeout":"pause"},"autoPause":false}`, 400, "contradicting_options", `"lifecycle.onTimeout" is "pause", but "autoPause" is false`, ""},
		"action within and above":  {`{"onTimeout":"kill","lifecycle":{"onTimeout":{"action":"pause"}}}`, 400, "contradicting_options", `"lifecycle.onTimeout.action"`, ""},
		"memory and no memory":     {`{"autoPauseMemory":true,"onTimeout":{"action":"pause","keepMemory":false}}`, 400, "contradicting_options", `"onTimeout.keepMemory"`, ""},
		"mode and memory":          {`{"pauseMode":"filesystem","autoPauseMemory":true}`, 400, "contradicting_options", `"autoPauseMemory"`, ""},
		"resume and no resume":     {`{"autoResume":true,"lifecycle":{"autoResume":{"enabled":false}}}`, 400, "contradicting_options", `"lifecycle.autoResume.enabled"`, ""},
		"two environments":         {`{"env":{"A":"1"},"envs":{"A":"2"}}`, 400, "contradicting_options", `"envs"`, ""},
		"two templates":            {`{"template":"base","templateID":"other"}`, 400, "contradicting_options", `"templateID"`, ""},
		"idle in two spellings":    {`{"idleTimeout":1,"idle_timeout_seconds":2}`, 400, "contradicting_options", `"idle_timeout_seconds"`, ""},
		"stall never and sometime": {`{"stallAfter":0,"stall_after":1}`, 400, "contradicting_options", `"stall_after"`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.do("POST", base, tt.body)
			e := a.fails(tt.status, tt.code, tt.message)
			if text, _ := e["remediation"].(string); !strings.Contains(text, tt.remediation) {
				t.Errorf("remediation %q, want %q in it", text, tt.remediation)
			}
			if len(w.Fake.Sandboxes) != 0 {
				t.Error("a sandbox was created")
			}
			if len(a.Body) > 2000 {
				t.Errorf("an answer of %d bytes", len(a.Body))
			}
		})
	}
}

// rules returns so many rules for ports.
func rules(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"%d":"keep"`, i+1))
	}
	return strings.Join(all, ",")
}

func TestRefusalsCarryFacts(t *testing.T) {
	w := newWorld(t)
	w.Fake.Limit = 24 * time.Hour
	e := w.do("POST", base, `{"timeout":86401}`).fails(400, "timeout_too_large", "")
	if c := contextOf(e); c["requestedSeconds"] != 86401.0 || c["allowedSeconds"] != 86400.0 {
		t.Errorf("context %v", c)
	}
	e = w.do("POST", base, `{"timeuot":1}`).fails(400, "unknown_field", "")
	if c := contextOf(e); c["field"] != "timeuot" || c["meant"] != "timeout" {
		t.Errorf("context %v", c)
	}
	e = w.do("POST", base, `{"timeout":-2.5}`).fails(400, "timeout_invalid", "")
	if c := contextOf(e); c["field"] != "timeout" || c["requested"] != -2.5 {
		t.Errorf("context %v", c)
	}
	e = w.do("POST", base, `{"hard_ttl":1,"hardTtl":2}`).fails(400, "contradicting_options", "")
	if got := fmt.Sprint(contextOf(e)["fields"]); got != "[hard_ttl hardTtl]" {
		t.Errorf("fields %s", got)
	}
}

func TestDefaultsAreTheServers(t *testing.T) {
	w := newWorld(t)
	w.Fake.Defaults = supervisor.Defaults{OnTimeout: lifecycle.Pause, IdleTimeout: time.Minute, RefreshOnActivity: lifecycle.RefreshOnWork}
	a := w.sandbox(w.create(`{"timeout":60}`))
	if got := fmt.Sprint(a["fromServer"]); got != "[onTimeout idleTimeoutSeconds refreshOnActivity]" {
		t.Errorf("the server gave %s", got)
	}
	b := w.sandbox(w.create(`{"timeout":60,"onTimeout":"kill","refreshOnActivity":false,"idleTimeout":0}`))
	set := b["settings"].(map[string]any)
	if got := fmt.Sprint(b["fromServer"]); got != "[]" || set["onTimeout"] != "kill" || set["refreshOnActivity"] != false || set["idleTimeoutSeconds"] != 0.0 {
		t.Errorf("over the defaults: %v, and %s of the server's", set, got)
	}
}

func TestBodyLimit(t *testing.T) {
	w := newWorld(t)
	w.do("POST", base, "{}"+strings.Repeat(" ", 1<<20)).fails(http.StatusRequestEntityTooLarge, "body_too_large", "1 MiB")
	w.do("POST", base, "{}"+strings.Repeat(" ", 1<<20-2)).Is(http.StatusCreated)
}

func TestPatch(t *testing.T) {
	tests := map[string]struct {
		body string
		want map[string]any // of settings
	}{
		"idle":      {`{"idle_timeout":60,"onIdle":"pause"}`, map[string]any{"idleTimeoutSeconds": 60.0, "onIdle": "pause"}},
		"lifetimes": {`{"maxLifetime":600,"paused_retention":30}`, map[string]any{"maxLifetimeSeconds": 600.0, "pausedRetentionSeconds": 30.0}},
		"flags":     {`{"auto_resume":{"enabled":true},"lifecycle":{"onTimeout":{"action":"pause"}},"refresh_on_activity":true}`, map[string]any{"autoResume": true, "onTimeout": "pause", "refreshOnActivity": true}},
		"autoPause": {`{"autoPause":true}`, map[string]any{"onTimeout": "pause", "onIdle": "pause"}},
		"retention": {`{"pausedRetention":0}`, map[string]any{"pausedRetentionSeconds": 0.0}},
		"stall":     {`{"stallAfter":0}`, map[string]any{"stallAfterSeconds": 0.0}},
		"saved":     {`{"checkpoint_every":60}`, map[string]any{"checkpointEverySeconds": 60.0}},
		"nothing":   {`{}`, map[string]any{"onTimeout": "kill"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.create(`{"timeout":600}`)
			o := w.do("PATCH", base+"/"+id, tt.body).Is(http.StatusOK).Object()
			for field, want := range tt.want {
				if got := o["settings"].(map[string]any)[field]; got != want {
					t.Errorf("%s is %v, want %v", field, got, want)
				}
			}
			if again := w.sandbox(id); !reflect.DeepEqual(again, o) {
				t.Errorf("get answers %v\nafter the patch did with %v", again, o)
			}
		})
	}
}

func TestInternetAccess(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"allow_internet_access":false}`)
	if got := w.sandbox(id)["allowInternetAccess"]; got != false {
		t.Errorf("asked for false, got %v", got)
	}
	if got := w.do("PATCH", base+"/"+id, `{"allowInternetAccess":true}`).Is(http.StatusOK).Object()["allowInternetAccess"]; got != true {
		t.Errorf("changed to true, got %v", got)
	}
	if got := w.do("PATCH", base+"/"+id, `{"metadata":{}}`).Is(http.StatusOK).Object()["allowInternetAccess"]; got != true {
		t.Errorf("another patch made it %v", got)
	}
}

func TestPatchReplacesMaps(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"metadata":{"a":"1"},"ports":{"80":"keep"}}`)
	o := w.do("PATCH", base+"/"+id, `{"metadata":{"b":"2"}}`).Is(http.StatusOK).Object()
	if fmt.Sprint(o["metadata"], o["ports"]) != "map[b:2] map[80:keep]" {
		t.Errorf("%v %v", o["metadata"], o["ports"])
	}
	o = w.do("PATCH", base+"/"+id, `{"metadata":{},"ports":{"81":"ignore"}}`).Is(http.StatusOK).Object()
	if fmt.Sprint(o["metadata"], o["ports"]) != "map[] map[81:ignore]" {
		t.Errorf("%v %v", o["metadata"], o["ports"])
	}
}

func TestPatchRefuses(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"timeout":600}`)
	before := w.sandbox(id)
	for body, want := range map[string]struct{ code, message, remediation string }{
		`{"timeout":60}`:                        {"not_changeable", `"timeout"`, "/timeout"},
		`{"autoPauseMemory":false}`:             {"not_changeable", `"autoPauseMemory"`, "/pause"},
		`{"env":{}}`:                            {"not_changeable", `"env"`, "create"},
		`{"template":"base"}`:                   {"not_changeable", `"template"`, ""},
		`{"idleTimeout":null}`:                  {"invalid_request", `"idleTimeout" is null`, "0 for no limit"},
		`{"nonsense":1}`:                        {"unknown_field", "nonsense", ""},
		`{"autoResume":true}`:                   {"auto_resume_needs_pause", "autoResume", ""},
		`{"autoPause":true,"onTimeout":"kill"}`: {"contradicting_options", "autoPause", ""},
		`{"ttl":-1}`:                            {"timeout_invalid", "ttl", ""},
	} {
		e := w.do("PATCH", base+"/"+id, body).fails(http.StatusBadRequest, want.code, want.message)
		if text, _ := e["remediation"].(string); !strings.Contains(text, want.remediation) {
			t.Errorf("%s: remediation %q", body, text)
		}
	}
	if after := w.sandbox(id); !reflect.DeepEqual(before, after) {
		t.Errorf("a refused patch changed the sandbox: %v", after)
	}
}

// canonical is the body that says a request in the first spellings.
func canonical(r supervisor.CreateRequest) []byte {
	set := r.Settings
	words := map[string]any{
		"template": r.Template, "timeoutSeconds": set.Timeout.Seconds(), "onTimeout": set.OnTimeout, "autoResume": set.AutoResume,
		"checkpointEverySeconds": set.CheckpointEvery.Seconds(), "idleTimeoutSeconds": set.IdleTimeout.Seconds(), "maxLifetimeSeconds": set.MaxLifetime.Seconds(),
		"refreshOnActivity": set.RefreshOnActivity, "filesystemFallback": set.FilesystemFallback,
		"stallAfterSeconds": viewSettings(set).StallAfterSeconds,
		"metadata":          r.Config.Metadata, "env": r.Config.Env, "secure": r.Config.Secure,
		"ports": r.Config.Ports, "hooks": viewHooks(r.Config.Hooks), "volumes": viewMounts(r.Config.Volumes),
	}
	if r.Config.Services != nil {
		services := []body.Service{}
		for _, s := range r.Config.Services {
			services = append(services, body.ViewService(s))
		}
		words["services"] = services
	}
	if r.Config.Name != "" {
		words["name"] = r.Config.Name
	}
	if set.PausedRetention != 0 {
		words["pausedRetentionSeconds"] = max(0, set.PausedRetention).Seconds()
	}
	for name, n := range map[string]float64{"cpus": r.Config.Limits.CPUs, "memoryMiB": float64(r.Config.Limits.MemoryMiB), "diskMiB": float64(r.Config.Limits.DiskMiB), "pids": float64(r.Config.Limits.PIDs)} {
		if n != 0 {
			words[name] = n
		}
	}
	if r.Config.AllowOut != nil {
		words["allowOut"] = r.Config.AllowOut
	}
	if p := r.Config.Proxy; p != nil {
		words["egressProxy"] = map[string]string{"address": p.Address, "username": p.Username, "password": p.Password}
	}
	if r.Config.DenyOut != nil {
		words["denyOut"] = r.Config.DenyOut
	}
	if r.Config.AllowInternet != nil {
		words["allowInternetAccess"] = *r.Config.AllowInternet
	}
	if set.OnIdle != "" {
		words["onIdle"] = set.OnIdle
	}
	if set.OnTimeout == "" {
		delete(words, "onTimeout")
	}
	words["allowPublicTraffic"] = !r.Config.PrivatePorts
	if r.Config.HostMask != "" {
		words["maskRequestHost"] = r.Config.HostMask
	}
	if len(r.Config.Secrets) > 0 {
		var secrets []map[string]string
		for _, u := range r.Config.Secrets {
			secrets = append(secrets, map[string]string{"name": u.Name, "env": u.Env})
		}
		words["secrets"] = secrets
	}
	if r.Config.HTTPSPorts != nil {
		words["httpsPorts"] = r.Config.HTTPSPorts
	}
	if set.PauseMode != "" {
		words["pauseMode"] = set.PauseMode
	}
	data, err := json.Marshal(words)
	if err != nil {
		panic(err)
	}
	return data
}

// FuzzCreate holds that no body is too strange to be judged, and that what is
// accepted says the same when it is written in the first spellings.
func FuzzCreate(f *testing.F) {
	for _, sp := range body.Options.Spellings() {
		for _, sample := range apitest.Samples[sp.Option.Name] {
			f.Add([]byte("{" + apitest.Nested(sp.Path, sample.Value) + "}"))
		}
	}
	f.Add([]byte(`{"timeout":1e400,"timeoutMs":-0.0,"lifecycle":{"onTimeout":{"action":"pause","keepMemory":false}}}`))
	f.Add([]byte(`{"ports":{"8000/a b/":"keep","1/..":"wake"}}`))
	f.Add([]byte(`{"ports":{"8000":"keep"},"ports":{},"hooks":{"preKill":{"command":"\u0000"}},"":null,"a.b":{}}`))
	f.Add([]byte(`{"timeout":3153599999.999999,"metadata":{"\ud800":"é"}}`))
	s := New(Options{}).(*server)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		words, err := body.Options.Parse(data, body.NullIsAbsent)
		if err != nil {
			if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code == "" || len(e.Message) > 4000 {
				t.Errorf("refused with %v", err)
			}
			return
		}
		first, err := s.createRequest(words)
		if err != nil {
			return // what was said cannot be together
		}
		again, err := body.Options.Parse(canonical(first), body.NullIsAbsent)
		if err != nil {
			t.Fatalf("%s is refused: %v", canonical(first), err)
		}
		second, err := s.createRequest(again)
		if err != nil {
			t.Fatal(err)
		}
		first.Said, second.Said = nil, nil
		if !reflect.DeepEqual(first, second) {
			t.Errorf("got  %+v\nwant %+v", second, first)
		}
	})
}

func timeout(d time.Duration) func(*supervisor.CreateRequest) {
	return func(r *supervisor.CreateRequest) { r.Settings.Timeout = d }
}

func pausing(r *supervisor.CreateRequest) { r.Settings.OnTimeout = lifecycle.Pause }

func filesystem(r *supervisor.CreateRequest) { r.Settings.PauseMode = lifecycle.Filesystem }

// TestCreateOnce holds what a create with an idempotency key is answered.
func TestCreateOnce(t *testing.T) {
	w := newWorld(t)
	send := func(key, text string) answer {
		r := httptest.NewRequest("POST", base, strings.NewReader(text))
		r.Header.Set("X-API-Key", goodKey)
		r.Header.Set("Idempotency-Key", key)
		return w.send(r)
	}
	first := send("a", `{"metadata":{"a":"b"},"timeout":60}`).Is(http.StatusCreated)
	again := send("a", `{"timeout":60,"metadata":{"a":"b"}}`).Is(http.StatusCreated)
	if first.Body != again.Body || first.Header.Get("Location") != again.Header.Get("Location") {
		t.Errorf("got %s, then %s", first.Body, again.Body)
	}
	send("a", `{"timeout":61,"metadata":{"a":"b"}}`).fails(http.StatusUnprocessableEntity, "idempotency_key_reused", "something else")
	send("b", `{"timeout":60,"metadata":{"a":"b"}}`).Is(http.StatusCreated)
	send("b c", `{}`).fails(http.StatusBadRequest, "invalid_request", "Idempotency-Key")
	if n := len(w.Fake.Created); n != 2 {
		t.Errorf("%d sandboxes were made, want 2", n)
	}
}
