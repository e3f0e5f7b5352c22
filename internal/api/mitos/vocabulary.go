package mitos

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// maxSeconds is the longest time that mitos lets a call name: its SDK refuses more.
const maxSeconds = 86400

// The forms of values that this dialect has beside those of all.
var (
	asSeconds = body.Form{Words: "whole seconds, more than 0", Schema: body.Schema{"type": "integer", "minimum": 1}, Read: readSeconds}
	// asBounded is for what is run, which mitos bounds whatever the server does.
	asBounded = body.Form{Words: "whole seconds, 1 to 86400", Schema: body.Schema{"type": "integer", "minimum": 1, "maximum": maxSeconds}, Read: readBounded}
	asWhole   = body.Form{Words: "an integer from 0", Schema: body.Schema{"type": "integer", "minimum": 0}, Read: readWhole}
	asMode    = body.Form{Words: "permission bits as a decimal number", Schema: body.Schema{"type": "integer", "minimum": 0, "maximum": 0o777}, Read: readMode}
	asEnv     = body.Form{Words: `an array of {"key", "value"}`, Schema: body.Schema{"type": "array"}, Read: readEnv}
	asBytes   = body.Form{Words: "base64", Schema: body.Schema{"type": "string"}, Read: readBytes}
	asVerdict = body.Form{Words: `"allow" or "deny"`, Schema: body.OneOf("allow", "deny"), Read: readVerdict}
)

func text(name string, required bool) body.Option {
	return body.Option{Name: name, Required: required, Spelled: []body.Spelled{body.AsText.As(name)}}
}

func field(name string, form body.Form) body.Option {
	return body.Option{Name: name, Spelled: []body.Spelled{form.As(name)}}
}

func required(name string, form body.Form) body.Option {
	o := field(name, form)
	o.Required = true
	return o
}

// refused is a field that drowse has nothing for. Null says nothing and passes.
func refused(name, why, remedy string) body.Option {
	return body.Option{Name: name, Refused: true, Spelled: []body.Spelled{body.Form{Words: "nothing", Schema: body.Schema{}, Read: func(path string, _ []byte) (any, error) {
		return nil, notSupported(path, why, remedy)
	}}.As(name)}}
}

func notSupported(path, why, remedy string) error {
	return errdef.New(errdef.Unsupported, "not_supported", "%q is not supported: %s", path, why).WithRemedy("%s", remedy).With("field", path)
}

// The bodies of REST routes.
var (
	templateBody = body.Vocabulary{
		required("id", body.AsTemplate),
		field("init_wait_seconds", asWhole), // a template here is ready at once
		field("network.block", body.AsFlag),
		field("network.egress", asVerdict),
		field("network.allow_domains", body.AsRules),
		field("network.allow_cidrs", body.AsRules),
		field("network.inbound", asVerdict),
		refused("network.inbound_cidrs", "a port is open to everybody or to those who have the sandbox's traffic token or a preview link", "leave it out, and use get_host()"),
		refused("workload", "a template here runs nothing of its own", "leave it out, and start the command with exec()"),
		field("resources.vcpu_count", body.AsCPUs),
		field("resources.mem_size_mib", body.AsCount),
	}
	createBody = body.Vocabulary{
		required("template", body.AsTemplate),
		text("id", true),
		text("region", false), // refused by create
	}
	forkBody = body.Vocabulary{
		text("id", true),
		text("template", false), // echoed
		field("pause_source", body.AsFlag),
	}
	sandboxBody = body.Vocabulary{text(sandboxWord, true)}
	timeoutBody = body.Vocabulary{text(sandboxWord, true), required("timeout_seconds", asSeconds)}
	previewBody = body.Vocabulary{text(sandboxWord, true), required("port", body.AsPort)}
)

// The messages of calls by RPC.
var (
	execBody = body.Vocabulary{
		text("command", true), field("args", body.AsRules), field("env", asEnv), text("cwd", false), field("timeoutSeconds", asBounded),
	}
	codeBody     = body.Vocabulary{text("code", true), text("language", false), field("timeoutSeconds", asBounded)}
	pathBody     = body.Vocabulary{text("path", true)}
	removeBody   = body.Vocabulary{text("path", true), field("recursive", body.AsFlag)}
	listBody     = body.Vocabulary{text("parent", true), refusedPage("pageSize"), refusedPage("pageToken"), refusedPage("filter")}
	openBody     = body.Vocabulary{required("open.path", body.AsText), field("open.mode", asMode)}
	terminalBody = body.Vocabulary{
		field("open.pty.size.cols", asWhole), field("open.pty.size.rows", asWhole),
		field("stdin", asBytes),
		field("resize.cols", asWhole), field("resize.rows", asWhole),
	}
)

func refusedPage(name string) body.Option {
	return refused(name, "a directory is listed whole", "leave it out")
}

// number reads an integer, which may be written as a string: so the JSON of
// protocol buffers has long ones.
func number(path string, raw []byte) (int64, error) {
	digits := strings.TrimSpace(string(raw))
	if strings.HasPrefix(digits, `"`) {
		if err := json.Unmarshal(raw, &digits); err != nil {
			digits = ""
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, body.Invalid("%q is %s, which is not an integer", path, body.Brief(raw)).With("field", path)
	}
	return n, nil
}

func readSeconds(path string, raw []byte) (any, error) {
	n, err := number(path, raw)
	if err != nil {
		return nil, err
	}
	const most = int64(100 * 365 * 24 * time.Hour / time.Second)
	switch {
	case n <= 0:
		return nil, body.BadDuration(path, raw, "is not more than 0").WithRemedy("give a positive number of seconds")
	case n > most:
		return nil, tooLong(path, n, most)
	}
	return time.Duration(n) * time.Second, nil
}

func readBounded(path string, raw []byte) (any, error) {
	v, err := readSeconds(path, raw)
	if d, ok := v.(time.Duration); ok && d > maxSeconds*time.Second {
		return nil, tooLong(path, int64(d/time.Second), maxSeconds)
	}
	return v, err
}

func tooLong(path string, n, most int64) error {
	return errdef.New(errdef.Invalid, "timeout_too_large", "%q is %d seconds, and at most %d are granted", path, n, most).
		WithRemedy("ask for less").With("field", path).With("requestedSeconds", n).With("allowedSeconds", most)
}

func readWhole(path string, raw []byte) (any, error) {
	n, err := number(path, raw)
	if err != nil {
		return nil, err
	}
	if n < 0 || n > 1<<31-1 {
		return nil, body.Invalid("%q is %d, which is out of range", path, n).With("field", path)
	}
	return int(n), nil
}

func readMode(path string, raw []byte) (any, error) {
	n, err := number(path, raw)
	if err != nil {
		return nil, err
	}
	if n < 0 || n > 0o777 {
		return nil, body.Invalid("%q is %d, which is no permission bits", path, n).WithRemedy("use a decimal number up to 511, such as 420 for rw-r--r--").With("field", path)
	}
	return int(n), nil
}

func readEnv(path string, raw []byte) (any, error) {
	var list []struct {
		Key   *string `json:"key"`
		Value string  `json:"value"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		return nil, body.Invalid("%q must be an array of objects with a key and a value: %v", path, err).With("field", path)
	}
	env := map[string]string{}
	for _, v := range list {
		if v.Key == nil {
			return nil, body.Invalid("%q has a variable without a key", path).With("field", path)
		}
		if before, twice := env[*v.Key]; twice && before != v.Value {
			return nil, body.Invalid("%q has %q twice", path, body.Short(*v.Key)).With("field", path)
		}
		env[*v.Key] = v.Value
	}
	if bad := agentapi.BadVariable(env); bad != "" {
		return nil, body.Invalid("%q has %s", path, bad).With("field", path)
	}
	return env, nil
}

func readBytes(path string, raw []byte) (any, error) {
	var encoded string
	if err := json.Unmarshal(raw, &encoded); err == nil {
		if data, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			return data, nil
		}
	}
	return nil, body.Invalid("%q must be a string of base64", path).With("field", path)
}

func readVerdict(path string, raw []byte) (any, error) {
	var verdict string
	if err := json.Unmarshal(raw, &verdict); err != nil || verdict != "allow" && verdict != "deny" {
		return nil, body.Invalid("%q is %s", path, body.Brief(raw)).WithRemedy("use allow or deny").With("field", path)
	}
	return verdict == "allow", nil
}
