package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
	"github.com/drowse-dev/drowse/internal/supervisor/names"
)

// Form is a way to write a value of an option.
type Form struct {
	Words  string // what it is, for the documentation
	Schema Schema
	// Read returns nil for a value that says nothing.
	Read func(path string, raw []byte) (any, error)
}

// maxDuration bounds every duration: time itself ends after 292 years.
const maxDuration = 100 * 365 * 24 * time.Hour

// defaultHookBudget is the time of a hook of which none is said.
const defaultHookBudget = 5 * time.Second

// The forms of values. Two values of one option are the same if they are
// reflect.DeepEqual.
var (
	InSeconds = Form{"seconds, fractions allowed, 0 for no limit", Schema{"type": "number", "minimum": 0}, func(path string, raw []byte) (any, error) {
		return readDuration(path, raw, time.Second)
	}}
	InMillis = Form{"milliseconds, fractions allowed, 0 for no limit", Schema{"type": "number", "minimum": 0}, func(path string, raw []byte) (any, error) {
		return readDuration(path, raw, time.Millisecond)
	}}
	InSecondsOrNever = Form{"seconds, fractions allowed, 0 for never", Schema{"type": "number", "minimum": 0}, func(path string, raw []byte) (any, error) {
		d, err := readDuration(path, raw, time.Second)
		if err == nil && d == 0 {
			d = -1
		}
		return d, err
	}}
	InSomeSeconds = Form{"seconds, fractions allowed, more than 0", Schema{"type": "number", "exclusiveMinimum": 0}, func(path string, raw []byte) (any, error) {
		d, err := readDuration(path, raw, time.Second)
		if err == nil && d == 0 {
			return nil, BadDuration(path, raw, "is 0").WithRemedy("give a positive number of seconds")
		}
		return d, err
	}}
	// UntilSeconds and UntilMillis are deadlines of what runs: zero would mean two
	// things there, so that these have words.
	UntilSeconds = Form{`seconds, fractions allowed, more than 0, or "none" for no end, or "now"`, deadlineSchema, readUntil(time.Second)}
	UntilMillis  = Form{`milliseconds, fractions allowed, more than 0, or "none" for no end, or "now"`, deadlineSchema, readUntil(time.Millisecond)}
	AsAction     = Form{`"kill" or "pause"`, OneOf(lifecycle.Kill, lifecycle.Pause), readAction}
	AsPausing    = Form{"a boolean: true for pause, false for kill", Schema{"type": "boolean"}, choice(lifecycle.Pause, lifecycle.Kill)}
	AsMode       = Form{`"memory" or "filesystem"`, OneOf(lifecycle.Memory, lifecycle.Filesystem), readMode}
	AsKeeping    = Form{"a boolean: true for memory, false for filesystem", Schema{"type": "boolean"}, choice(lifecycle.Memory, lifecycle.Filesystem)}
	AsFlag       = Form{"a boolean", Schema{"type": "boolean"}, choice(true, false)}
	AsRefresh    = Form{`a boolean, or "requests"`, RefreshSchema, readRefresh}
	AsText       = Form{"a string", Schema{"type": "string"}, readText}
	AsName       = Form{"a name for a sandbox", Schema{"type": "string", "maxLength": names.Most, "pattern": names.Form}, readText}
	AsTexts      = Form{"an object with string values", MapOf(Schema{"type": "string"}), readTexts}
	AsVars       = Form{"an object of environment variables", MapOf(Schema{"type": "string"}), readVariables}
	AsTemplate   = Form{httpapi.TemplateForms, Schema{"type": "string"}, readTemplate}
	AsPorts      = Form{`an object with "wake", "keep" or "ignore" by port or by port and path: {"8080": "wake", "8080/healthz": "ignore"}`, MapOf(OneOf(lifecycle.Wake, lifecycle.Keep, lifecycle.Ignore)), readPorts}
	AsPort       = Form{"an integer from 1 to 65535", Schema{"type": "integer", "minimum": 1, "maximum": 65535}, readPort}
	AsCount      = integerFrom(1)
	AsLimit      = integerFrom(0) // of which 0 is none
	AsCPUs       = Form{"a number above 0, to the hundredth", Schema{"type": "number", "exclusiveMinimum": 0}, readCPUs}
	AsRole       = Form{`"admin", "full", "own" or "read"`, OneOf(store.RoleAdmin, store.RoleFull, store.RoleOwn, store.RoleRead), readRole}
	AsPath       = Form{"a path that begins with a slash", Schema{"type": "string"}, readPath}
	AsRules      = Form{"an array of strings", Schema{"type": "array", "items": Schema{"type": "string"}}, readRules}
	AsVolumes    = Form{`an object with names of volumes by path: {"/mnt/data": "data"}`, MapOf(Schema{"type": "string"}), readVolumes}
	AsMounts     = Form{`an array of volumes and where they are to be: [{"name": "data", "path": "/mnt/data"}]`, Schema{"type": "array", "items": Schema{
		"type": "object", "properties": Schema{"name": Schema{"type": "string"}, "path": Schema{"type": "string"}}, "required": []string{"name", "path"},
	}}, readMounts}
	AsHostMask = Form{"a host, with or without a port, in which ${PORT} stands for the port asked for", Schema{"type": "string"}, readHostMask}
	AsPortList = Form{"an array of ports", Schema{"type": "array", "items": Schema{"type": "integer", "minimum": 1, "maximum": 65535}, "maxItems": maxPortList}, readPortList}
	AsHooks    = Form{"an object of commands", Schema{"$ref": Components + "Hooks"}, readHooks}
)

// BadDuration returns the error of a duration that cannot be meant.
func BadDuration(path string, raw []byte, what string) *errdef.Error {
	return errdef.New(errdef.Invalid, "timeout_invalid", "%q %s", path, what).
		With("field", path).With("requested", requested(raw))
}

// requested returns a number as sent, for an error's facts: as text if clients
// could not read it.
func requested(raw []byte) any {
	n, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	if err != nil {
		return Brief(raw)
	}
	return n
}

// readDuration reads a number of units, to the microsecond: finer times are
// lost on the way back to clients.
func readDuration(path string, raw []byte, unit time.Duration) (time.Duration, error) {
	if kindOf(raw) != "a number" {
		return 0, wrongKind(path, "a number", raw)
	}
	text := string(bytes.TrimSpace(raw))
	n, _ := strconv.ParseFloat(text, 64) // an overflow is read as infinity, an underflow as 0
	micros := math.Round(n * float64(unit/time.Microsecond))
	switch {
	case n < 0:
		return 0, BadDuration(path, raw, "is negative").WithRemedy("give a positive duration")
	case micros > float64(maxDuration/time.Microsecond):
		return 0, errdef.New(errdef.Invalid, "timeout_too_large", "%q is longer than 100 years, which nothing here lasts", path).
			WithRemedy("ask for less, or leave it out").With("field", path).
			With("requested", requested(raw)).With("allowedSeconds", maxDuration.Seconds())
	case micros < 1000 && !isZero(text):
		return 0, BadDuration(path, raw, "is shorter than a millisecond").WithRemedy("give 0.001 seconds or more")
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// isZero reports whether a JSON number is 0, not merely next to it.
func isZero(text string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
	return !strings.ContainsAny(mantissa, "123456789")
}

// integerFrom is a form of integers that are not below least.
func integerFrom(least int) Form {
	words := fmt.Sprintf("an integer from %d", least)
	return Form{words, Schema{"type": "integer", "minimum": least}, func(path string, raw []byte) (any, error) {
		n, err := strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 32)
		if err != nil || int(n) < least {
			return nil, wrongKind(path, words, raw)
		}
		return int(n), nil
	}}
}

// readCPUs reads a number of CPUs, to the hundredth: finer ones the kernel does not
// keep apart.
func readCPUs(path string, raw []byte) (any, error) {
	n, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	if n = math.Round(n*100) / 100; err != nil || kindOf(raw) != "a number" || !(n > 0) || n > math.MaxInt32 {
		return nil, wrongKind(path, "a number of CPUs from 0.01", raw)
	}
	return n, nil
}

func readText(path string, raw []byte) (any, error) {
	var text string
	if kindOf(raw) != "a string" || json.Unmarshal(raw, &text) != nil {
		return nil, wrongKind(path, "a string", raw)
	}
	return text, nil
}

// choice reads a boolean as one of two values.
func choice[T any](ifTrue, ifFalse T) func(path string, raw []byte) (any, error) {
	return func(path string, raw []byte) (any, error) {
		switch string(bytes.TrimSpace(raw)) {
		case "true":
			return ifTrue, nil
		case "false":
			return ifFalse, nil
		}
		return nil, wrongKind(path, "a boolean", raw)
	}
}

// RefreshSchema is that of a lifecycle.Refresh.
var RefreshSchema = Schema{"anyOf": []Schema{{"type": "boolean"}, OneOf(lifecycle.RefreshOnRequests)}}

func readRefresh(path string, raw []byte) (any, error) {
	var r lifecycle.Refresh
	if isNull(raw) || json.Unmarshal(raw, &r) != nil {
		return nil, Invalid("%q is %s", path, Brief(raw)).WithRemedy(`use true, false or "requests"`).With("field", path)
	}
	return r, nil
}

func readAction(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil {
		return nil, err
	}
	a := lifecycle.Action(text.(string))
	if a != lifecycle.Kill && a != lifecycle.Pause {
		return nil, errdef.New(errdef.Invalid, "action_invalid", "%q is %s", path, Brief(raw)).WithRemedy("use kill or pause").With("field", path)
	}
	return a, nil
}

func readMode(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil {
		return nil, err
	}
	m := lifecycle.Mode(text.(string))
	if m != lifecycle.Memory && m != lifecycle.Filesystem {
		return nil, errdef.New(errdef.Invalid, "mode_invalid", "%q is %s", path, Brief(raw)).WithRemedy("use memory or filesystem").With("field", path)
	}
	return m, nil
}

// readRole reads a role. Whether it is one is for package auth to judge.
func readRole(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil {
		return nil, err
	}
	return store.Role(text.(string)), nil
}

func readTexts(path string, raw []byte) (any, error) {
	list, err := distinct(path, raw)
	if err != nil {
		return nil, err
	}
	texts := make(map[string]string, len(list))
	for _, m := range list {
		text, err := readText(path+"."+m.name, m.raw)
		if err != nil {
			return nil, err
		}
		texts[m.name] = text.(string)
	}
	return texts, nil
}

// readRules reads a list of texts. What each may be is judged with the others.
func readRules(path string, raw []byte) (any, error) {
	rules := []string{}
	if kindOf(raw) != "an array" || json.Unmarshal(raw, &rules) != nil {
		return nil, wrongKind(path, "an array of strings", raw)
	}
	return rules, nil
}

func readVariables(path string, raw []byte) (any, error) {
	vars, err := readTexts(path, raw)
	if err != nil {
		return nil, err
	}
	if bad := agentapi.BadVariable(vars.(map[string]string)); bad != "" {
		return nil, Invalid("%q has %s", path, bad).With("field", path)
	}
	return vars, nil
}

func readTemplate(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil {
		return nil, err
	}
	ref, ok := httpapi.Template(text.(string))
	if !ok {
		return nil, Invalid("%q is %s, which is not the name of a template", path, Brief(raw)).
			WithRemedy("use %s", httpapi.TemplateForms).With("field", path)
	}
	return ref, nil
}

func readPorts(path string, raw []byte) (any, error) {
	list, err := distinct(path, raw)
	if err != nil {
		return nil, err
	}
	ports := store.Ports{}
	for _, m := range list {
		rule, err := store.ParsePortRule(m.name)
		if err != nil {
			return nil, InField(path, err)
		}
		policy, err := readPolicy(path+"."+m.name, m.raw)
		if err != nil {
			return nil, err
		}
		if before, twice := ports[rule]; twice && before != policy {
			return nil, Invalid("%q says for %s both %s and %s", path, Short(rule), before, policy).WithRemedy("give one of them").With("field", path)
		}
		ports[rule] = policy
	}
	return ports, nil
}

func readPolicy(path string, raw []byte) (lifecycle.WakePolicy, error) {
	text, err := readText(path, raw)
	if err != nil {
		return "", err
	}
	policy := lifecycle.WakePolicy(text.(string))
	if policy != lifecycle.Wake && policy != lifecycle.Keep && policy != lifecycle.Ignore {
		return "", Invalid("%q is %s, which is no policy", Short(path), Brief(raw)).
			WithRemedy("use wake, keep or ignore").With("field", Short(path))
	}
	return policy, nil
}

// InField says in which field of the body an error is.
func InField(path string, err error) error {
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok {
		return err
	}
	in := *e
	in.Message = fmt.Sprintf("%q: %s", path, e.Message)
	return in.With("field", path)
}

func readPort(path string, raw []byte) (any, error) {
	if kindOf(raw) != "a number" {
		return nil, wrongKind(path, "a number", raw)
	}
	port, err := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 16)
	if err != nil || port == 0 {
		return nil, errdef.New(errdef.Invalid, "port_invalid", "%q is %s, which is not a port", path, Brief(raw)).
			WithRemedy("use an integer from 1 to 65535").With("field", path)
	}
	return int(port), nil
}

// readPath reads where a link leads on its host. What could lead elsewhere, or
// would end the URL before the token, is refused.
func readPath(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil {
		return nil, err
	}
	target := text.(string)
	_, err = url.ParseRequestURI(target)
	if err != nil || len(target) > maxPath || target[0] != '/' || strings.HasPrefix(target, "//") || strings.ContainsAny(target, "#\\ ") {
		return nil, Invalid("%q is %s, which is no path of a URL", path, Brief(raw)).
			WithRemedy("begin it with one slash, and percent-encode what is no plain letter").With("field", path)
	}
	return target, nil
}

// maxPath bounds the path of a link.
const maxPath = 2048

// Hooks documents what readHooks reads.
type Hooks struct {
	PrePause   *Hook `json:"prePause,omitempty" doc:"Before each pause. Also spelled pre_pause."`
	PostResume *Hook `json:"postResume,omitempty" doc:"After each resume. Also spelled post_resume."`
	PreKill    *Hook `json:"preKill,omitempty" doc:"Before the end. Also spelled pre_kill."`
}

type Hook struct {
	Command        string  `json:"command" doc:"Run by a shell, as root."`
	TimeoutSeconds float64 `json:"timeoutSeconds,omitempty" doc:"It is killed after this: 5 if not said, 30 at most."`
}

func readHooks(path string, raw []byte) (any, error) {
	list, err := distinct(path, raw)
	if err != nil {
		return nil, err
	}
	var hooks store.Hooks
	for _, m := range list {
		at := path + "." + m.name
		var hook *store.Hook
		switch m.name {
		case "prePause", "pre_pause":
			hook = &hooks.PrePause
		case "postResume", "post_resume":
			hook = &hooks.PostResume
		case "preKill", "pre_kill":
			hook = &hooks.PreKill
		default:
			return nil, UnknownField(at, m.name, []string{"prePause", "postResume", "preKill"})
		}
		if isNull(m.raw) {
			continue
		}
		if *hook != (store.Hook{}) {
			return nil, Invalid("%q has one hook in two spellings, %q the second", path, m.name).With("field", at)
		}
		if *hook, err = readHook(at, m.raw); err != nil {
			return nil, err
		}
	}
	return hooks, nil
}

func readHook(path string, raw []byte) (store.Hook, error) {
	list, err := distinct(path, raw)
	if err != nil {
		return store.Hook{}, err
	}
	hook := store.Hook{Budget: defaultHookBudget}
	limited := false
	for _, m := range list {
		at := path + "." + m.name
		switch m.name {
		case "command":
			text, err := readText(at, m.raw)
			if err != nil {
				return hook, err
			}
			hook.Command = text.(string)
		case "timeoutSeconds", "timeout_seconds":
			if limited {
				return hook, Invalid("%q has its time limit in two spellings", path).With("field", at)
			}
			limited = true
			d, err := InSomeSeconds.Read(at, m.raw)
			if err != nil {
				return hook, err
			}
			hook.Budget = d.(time.Duration)
		default:
			return hook, UnknownField(at, m.name, []string{"command", "timeoutSeconds"})
		}
	}
	return hook, nil
}

var deadlineSchema = Schema{"anyOf": []Schema{{"type": "number", "exclusiveMinimum": 0}, OneOf("none", "now")}}

// readUntil reads how long something goes on from now: 0 for "now",
// supervisor.Unlimited for "none".
func readUntil(unit time.Duration) func(path string, raw []byte) (any, error) {
	return func(path string, raw []byte) (any, error) {
		switch string(bytes.TrimSpace(raw)) {
		case `"none"`:
			return supervisor.Unlimited, nil
		case `"now"`:
			return time.Duration(0), nil
		}
		d, err := readDuration(path, raw, unit)
		if err == nil && d == 0 {
			return nil, BadDuration(path, raw, `is 0, which could mean two things`).WithRemedy(`say "none" for no end, or "now"`)
		}
		return d, err
	}
}
