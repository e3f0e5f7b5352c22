package body

import (
	"reflect"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Create puts what a body says of a new sandbox over what holds otherwise. All
// that was said counts, also where it says no limit.
func Create(words map[string]Said, req *supervisor.CreateRequest) {
	for _, o := range Options {
		if w, ok := words[o.Name]; ok {
			o.Create(req, w.Value)
			req.Said = append(req.Said, o.Name)
		}
	}
	if _, said := words["secure"]; req.Config.PrivatePorts && !said {
		req.Config.Secure = true // CubeSandbox's client asks for the one alone
	}
}

// Change returns what a body says of a sandbox that there is, apart from its
// timeout, which has calls of its own. What is fixed can be said again and not
// changed.
func Change(words map[string]Said, sb store.Sandbox) (p supervisor.Patch, changes bool, err error) {
	for _, o := range Options {
		w, ok := words[o.Name]
		switch {
		case !ok || o.Name == "timeoutSeconds":
		case o.Patch != nil:
			o.Patch(&p, w.Value)
			changes = true
		case !o.has(sb, w.Value):
			return p, false, NotChangeable(o, w.Path)
		}
	}
	return p, changes, nil
}

// has reports whether an option of a sandbox has a value.
func (o Option) has(sb store.Sandbox, value any) bool {
	as := supervisor.CreateRequest{Template: sb.Config.Template, Settings: sb.Record.Settings, Config: sb.Config}
	asked := as
	o.Create(&asked, value)
	if sb.Config.IsOf(asked.Template) {
		asked.Template = as.Template
	}
	return reflect.DeepEqual(asked, as)
}

// NotChangeable refuses to change an option that is fixed at create.
func NotChangeable(o Option, path string) error {
	e := errdef.New(errdef.Invalid, "not_changeable", "%q is fixed when a sandbox is created", path).With("field", path)
	if o.Fixed == "" {
		return e.WithRemedy("create another sandbox")
	}
	return e.WithRemedy("%s", o.Fixed)
}

// Only returns the options of the names, and those that are refused.
func (v Vocabulary) Only(names ...string) Vocabulary {
	var some Vocabulary
	for _, name := range names {
		some = append(some, v.Option(name))
	}
	return append(some, refused()...)
}

// With returns the vocabulary with other options in the place of those of their
// names, or after the rest.
func (v Vocabulary) With(others ...Option) Vocabulary {
	var with Vocabulary
	for _, o := range v {
		replaced := false
		for _, other := range others {
			replaced = replaced || other.Name == o.Name
		}
		if !replaced {
			with = append(with, o)
		}
	}
	return append(with, others...)
}
