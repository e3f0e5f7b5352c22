package e2b

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// foreign are fields that create does not have here, and that in the words of
// an SDK or of the native dialect say what a sandbox is to be, with what they
// are called here; empty where there is no such thing. Other unknown fields are
// ignored, as clients of any version must work; to ignore these would make
// another sandbox than was asked for. They are written as plain returns them.
var foreign = map[string]string{
	"timeoutms": "timeout", "timeoutseconds": "timeout",
	"lifecycle": "autoPause", "ontimeout": "autoPause", "pausemode": "autoPauseMemory",
	"env": "envVars", "envs": "envVars",
	"idletimeout": "", "idletimeoutseconds": "", "onidle": "",
	"maxlifetime": "", "maxlifetimeseconds": "", "ttl": "", "hardttl": "",
	"pausedretention": "", "pausedretentionseconds": "",
	"refreshonactivity": "", "stallafter": "", "stallafterseconds": "",
	"checkpointevery": "", "checkpointeveryseconds": "",
	"ports": "", "hooks": "",
	"cpus": "", "cpucount": "", "memorymib": "", "memorymb": "", "pids": "",
}

// plain removes what spellings of one word differ in.
func plain(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// refuseForeign names the first field of a body of create that means something
// and would be ignored. Null says nothing.
func refuseForeign(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return badRequest("the request body must be an object")
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !given(fields[name]) {
			continue
		}
		here, known := meant(name)
		switch {
		case known && here == "":
			return fail(http.StatusBadRequest, codeUnknownField, "%q is not a field of this API: POST /v1/sandboxes has it", name)
		case known:
			return fail(http.StatusBadRequest, codeUnknownField, "%q is not a field of this API, which has %q", name, here)
		}
	}
	return nil
}

// meant returns what a field that does not exist is called here, and whether it
// would mean anything. Fields of this dialect in other letters are read as they
// are.
func meant(name string) (here string, known bool) {
	t := reflect.TypeFor[newSandbox]()
	for i := range t.NumField() {
		field := t.Field(i).Tag.Get("json")
		switch {
		case strings.EqualFold(field, name):
			return "", false
		case plain(field) == plain(name):
			return field, true
		}
	}
	here, known = foreign[plain(name)]
	return here, known
}
