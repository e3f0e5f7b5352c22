package v1

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

type schema = body.Schema

// enums are the string types with few values.
var enums = map[reflect.Type]schema{
	reflect.TypeFor[lifecycle.State]():      body.OneOf(lifecycle.Pending, lifecycle.Running, lifecycle.Paused, lifecycle.Terminated),
	reflect.TypeFor[lifecycle.Phase]():      body.OneOf(lifecycle.Creating, lifecycle.Snapshotting, lifecycle.Pausing, lifecycle.Resuming, lifecycle.Killing),
	reflect.TypeFor[lifecycle.Situation]():  body.OneOf(lifecycle.Situations()...),
	reflect.TypeFor[lifecycle.Action]():     body.OneOf(lifecycle.Kill, lifecycle.Pause),
	reflect.TypeFor[clockAction]():          body.OneOf(lifecycle.Kill, lifecycle.Pause, lifecycle.TakeCheckpoint),
	reflect.TypeFor[lifecycle.Refresh]():    body.RefreshSchema,
	reflect.TypeFor[lifecycle.Mode]():       body.OneOf(lifecycle.Memory, lifecycle.Filesystem),
	reflect.TypeFor[lifecycle.WakePolicy](): body.OneOf(lifecycle.Wake, lifecycle.Keep, lifecycle.Ignore),
	reflect.TypeFor[awake.HoldKind]():       body.OneOf(awake.HoldKinds()...),
	reflect.TypeFor[body.Command]():         body.Command{}.Schema(),
	reflect.TypeFor[service.Restart]():      body.OneOf(service.Always, service.OnFailure, service.Never),
	reflect.TypeFor[service.State]():        body.OneOf(service.Waiting, service.Starting, service.IsReady, service.BackingOff, service.Done, service.Failed, service.Stopping),
	reflect.TypeFor[store.Role]():           body.OneOf(store.RoleAdmin, store.RoleFull, store.RoleOwn, store.RoleRead),
	reflect.TypeFor[sleep]():                body.OneOf(lightSleep, deepSleep),
	reflect.TypeFor[clockState]():           body.OneOf(clockOff, clockRunning, clockHeld, clockStopped),
	reflect.TypeFor[errdef.Class](): body.OneOf(errdef.NotFound, errdef.Exists, errdef.Invalid, errdef.WrongState, errdef.Conflict,
		errdef.Exhausted, errdef.Unavailable, errdef.Unauthorized, errdef.Forbidden, errdef.Unsupported, errdef.Unfit, errdef.Fenced, errdef.Internal),
}

func refTo(t reflect.Type) schema { return schema{"$ref": body.Components + nameOf(t)} }

// nameOf returns the name of a struct in the document.
func nameOf(t reflect.Type) string {
	name := t.Name()
	for _, suffix := range []string{"View", "Body"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return string(unicode.ToUpper(rune(name[0]))) + name[1:]
}

// schemas makes schemas of Go types; structs become components.
type schemas struct {
	all   map[string]schema
	types map[string]reflect.Type // what they were made of, so that no two have one name
}

// of returns the schema of a type as encoding/json writes it.
func (s schemas) of(t reflect.Type) schema {
	switch {
	case t == reflect.TypeFor[httpapi.Timestamp]():
		return schema{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return schema{}
	case enums[t] != nil:
		return enums[t]
	}
	switch t.Kind() {
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Float64:
		return schema{"type": "number"}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Slice:
		return schema{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return schema{"type": "object"}
		}
		return body.MapOf(s.of(t.Elem()))
	case reflect.Pointer:
		return schema{"anyOf": []schema{s.of(t.Elem()), {"type": "null"}}}
	case reflect.Struct:
		s.add(t)
		return refTo(t)
	}
	panic("internal error: v1: no schema for " + t.String())
}

// add makes a component of a struct.
func (s schemas) add(t reflect.Type) {
	if of, done := s.types[nameOf(t)]; done {
		if of != t {
			panic("internal error: v1: " + of.String() + " and " + t.String() + " have one name in the document")
		}
		return
	}
	object := schema{"type": "object"}
	s.types[nameOf(t)], s.all[nameOf(t)] = t, object // before the fields: a type may refer to itself
	properties, required := schema{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		property := s.field(f, strings.Contains(rest, "omitempty"))
		if doc := f.Tag.Get("doc"); doc != "" {
			property = described(property, doc)
		}
		properties[name] = property
		if !strings.Contains(rest, "omitempty") {
			required = append(required, name)
		}
	}
	object["properties"] = properties
	if len(required) > 0 {
		object["required"] = required
	}
}

// field returns the schema of a field. A pointer that is left out when nil is
// never null.
func (s schemas) field(f reflect.StructField, leftOut bool) schema {
	if leftOut && f.Type.Kind() == reflect.Pointer {
		return s.of(f.Type.Elem())
	}
	return s.of(f.Type)
}

// described returns a copy of a schema with a description.
func described(of schema, doc string) schema {
	with := schema{"description": doc}
	for k, v := range of {
		with[k] = v
	}
	return with
}
