package v1

import (
	"reflect"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// option is one thing that a body can say, in whatever spelling.
type option struct {
	name     string // the spelling that answers and documents use
	doc      string
	spelled  []spelled
	required bool

	// What the option does. In a vocabulary of its own a handler picks the
	// values out, and both are nil.
	create func(*supervisor.CreateRequest, any)
	patch  func(*supervisor.Patch, any) // nil: fixed at create
	fixed  string                       // what to do instead of a patch
}

// spelled gives a form to spellings, separated by spaces. A dot descends into
// an object.
type spelled struct {
	form form
	as   string
}

// vocabulary is what a body can say.
type vocabulary []option

// spelling is one way to say an option.
type spelling struct {
	path   string
	form   form
	option *option
}

// spellings returns every spelling in the order of the table.
func (v vocabulary) spellings() []spelling {
	var all []spelling
	for i := range v {
		for _, s := range v[i].spelled {
			for path := range strings.FieldsSeq(s.as) {
				all = append(all, spelling{path, s.form, &v[i]})
			}
		}
	}
	return all
}

// said is what a body says of one option.
type said struct {
	path  string
	raw   []byte
	value any
}

// nulls says what null means.
type nulls string

const (
	nullIsAbsent  nulls = "absent"
	nullIsRefused nulls = "refused"
)

// parse reads a body, nil for an empty one. Two spellings of one option must
// agree.
func (v vocabulary) parse(data []byte, n nulls) (map[string]said, error) {
	found := map[string]said{}
	if data != nil {
		if err := checkJSON(data); err != nil {
			return nil, err
		}
		fields, ok := members(data)
		if !ok {
			return nil, invalid("the request body must be an object, not %s", kindOf(data))
		}
		p := parser{spellings: v.spellings(), nulls: n, found: found}
		if err := p.object("", fields); err != nil {
			return nil, err
		}
	}
	for _, o := range v {
		if _, ok := found[o.name]; o.required && !ok {
			return nil, invalid("%q is required", o.name).With("field", o.name)
		}
	}
	return found, nil
}

type parser struct {
	spellings []spelling
	nulls     nulls
	found     map[string]said
}

// object reads the fields of an object at a path, "" for the body.
func (p parser) object(at string, fields []member) error {
	for _, f := range fields {
		if err := p.field(at, f); err != nil {
			return err
		}
	}
	return nil
}

func (p parser) field(at string, f member) error {
	path := f.name
	if at != "" {
		path = at + "." + f.name
	}
	i := slices.IndexFunc(p.spellings, func(s spelling) bool { return s.path == path })
	inner := slices.ContainsFunc(p.spellings, func(s spelling) bool { return strings.HasPrefix(s.path, path+".") })
	switch {
	case strings.Contains(f.name, ".") || i < 0 && !inner:
		return unknownField(path, f.name, p.siblings(at))
	case isNull(f.raw) && p.nulls == nullIsRefused:
		return invalid("%q is null", path).WithRemedy("leave it out to keep it, or give 0 for no limit").With("field", path)
	case isNull(f.raw):
		return nil
	case inner && (i < 0 || kindOf(f.raw) == "an object"):
		return p.inner(path, i, f.raw)
	}
	value, err := p.spellings[i].form.read(path, f.raw)
	if err != nil {
		return err
	}
	return p.say(p.spellings[i].option.name, said{path, f.raw, value})
}

// inner reads an object that holds spellings. If the object is itself a
// spelling, number i, one of its fields must be another of that option.
func (p parser) inner(path string, i int, raw []byte) error {
	fields, ok := members(raw)
	if !ok {
		return wrongKind(path, "an object", raw)
	}
	if err := p.object(path, fields); err != nil || i < 0 {
		return err
	}
	for _, s := range p.spellings {
		name, below := strings.CutPrefix(s.path, path+".")
		if !below || s.option != p.spellings[i].option {
			continue
		}
		if !slices.ContainsFunc(fields, func(f member) bool { return f.name == name && !isNull(f.raw) }) {
			return invalid("%q is required", s.path).With("field", s.path)
		}
	}
	return nil
}

func (p parser) say(option string, s said) error {
	before, ok := p.found[option]
	if !ok {
		p.found[option] = s
		return nil
	}
	if reflect.DeepEqual(before.value, s.value) {
		return nil
	}
	return errdef.New(errdef.Invalid, "contradicting_options", "%q is %s, but %q is %s: both say what %s is",
		before.path, brief(before.raw), s.path, brief(s.raw), option).
		WithRemedy("give one of them").With("fields", []string{before.path, s.path})
}

// brief returns a value as sent, cut if it is long.
func brief(raw []byte) string { return short(strings.TrimSpace(string(raw))) }

// siblings returns the names that an object at a path can have.
func (p parser) siblings(at string) []string {
	var names []string
	for _, s := range p.spellings {
		path := s.path
		if at != "" {
			var below bool
			if path, below = strings.CutPrefix(path, at+"."); !below {
				continue
			}
		}
		name, _, _ := strings.Cut(path, ".")
		names = append(names, name)
	}
	return names
}

// unknownField refuses a field and names the one that was probably meant.
func unknownField(path, name string, known []string) error {
	e := errdef.New(errdef.Invalid, "unknown_field", "%q is not a field here", short(path)).With("field", short(path))
	if meant := nearest(name, known); meant != "" {
		meant = strings.TrimSuffix(path, name) + meant
		return e.WithRemedy("did you mean %q?", meant).With("meant", meant)
	}
	return e.WithRemedy("leave it out; /v1/openapi.json has the fields")
}

// nearest returns the known name that is most like name, "" if none is.
func nearest(name string, known []string) string {
	if len(name) > 64 {
		return ""
	}
	best, least := "", len(name)/3+1
	for _, k := range known {
		if d := distance(plain(name), plain(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// plain removes what spellings of one word differ in.
func plain(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// distance is the edit distance of two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
