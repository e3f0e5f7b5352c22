package body

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/store"
)

// What bounds lists of ports and host masks, as with E2B's service.
const (
	maxPortList = 128
	maxHostMask = 255
)

// hostMaskForm is a host and perhaps a port, in which ${PORT} can stand.
var hostMaskForm = lazyregexp.New(`^(\$\{PORT\}|[A-Za-z0-9._\-])+(:(\$\{PORT\}|[0-9]{1,5}))?$`)

func readHostMask(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil || text == "" {
		return nil, err
	}
	if mask := text.(string); len(mask) > maxHostMask || !hostMaskForm.MatchString(mask) {
		return nil, Invalid("%q must be a host, with or without a port, in which ${PORT} stands for the port asked for", path).With("field", path)
	}
	return text, nil
}

func readPortList(path string, raw []byte) (any, error) {
	var list []json.RawMessage
	if kindOf(raw) != "an array" || json.Unmarshal(raw, &list) != nil {
		return nil, wrongKind(path, "an array of ports", raw)
	}
	if len(list) > maxPortList {
		return nil, Invalid("%q has %d entries; %d are allowed", path, len(list), maxPortList).With("field", path)
	}
	var ports []int
	for _, item := range list {
		port, err := readPort(path, item)
		if err != nil {
			return nil, err
		}
		if port == agentapi.Port {
			return nil, errdef.New(errdef.Invalid, "port_invalid", "%q: %d is the agent's port", path, port).
				WithRemedy("leave it out").With("field", path)
		}
		ports = append(ports, port.(int))
	}
	return ports, nil
}

func readVolumes(path string, raw []byte) (any, error) {
	names, err := readTexts(path, raw)
	if err != nil {
		return nil, err
	}
	var list []store.VolumeMount
	byPath := names.(map[string]string)
	for _, at := range slices.Sorted(maps.Keys(byPath)) {
		list = append(list, store.VolumeMount{Name: byPath[at], Path: at})
	}
	return list, nil
}

// mountBody is what an item of a list of volumes can say.
var mountBody = Vocabulary{
	{Name: "name", Required: true, Spelled: []Spelled{AsText.As("name")}},
	{Name: "path", Required: true, Spelled: []Spelled{AsText.As("path")}},
	{Name: "readOnly", Refused: true, Spelled: []Spelled{asNothing("volumes can be written to").As("readOnly read_only")}},
}

func readMounts(path string, raw []byte) (any, error) {
	var items []json.RawMessage
	if kindOf(raw) != "an array" || json.Unmarshal(raw, &items) != nil {
		return nil, wrongKind(path, "an array", raw)
	}
	var list []store.VolumeMount
	for _, item := range items {
		words, err := mountBody.Parse(item, NullIsAbsent)
		if err != nil {
			return nil, InField(path, err)
		}
		list = append(list, store.VolumeMount{Name: words["name"].Value.(string), Path: words["path"].Value.(string)})
	}
	return list, nil
}

// asNothing is the form of what cannot be honoured: null, and what is empty or
// false, ask for nothing.
func asNothing(why string) Form {
	f := asNull(why)
	refuse := f.Read
	f.Read = func(path string, raw []byte) (any, error) {
		switch string(bytes.TrimSpace(raw)) {
		case "false", "[]", "{}", `""`:
			return nil, nil
		}
		return refuse(path, raw)
	}
	return f
}

// asNull is the form of what cannot be honoured even if it is empty.
func asNull(why string) Form {
	return Form{"null: " + why, Schema{"type": "null"}, func(path string, raw []byte) (any, error) {
		return nil, errdef.New(errdef.Unsupported, "not_supported", "%q is not supported by this server yet: %s", path, why).
			WithRemedy("leave it out").With("field", path)
	}}
}
