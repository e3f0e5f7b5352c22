package body

import (
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// Option is one thing that a body can say, in whatever spelling.
type Option struct {
	Name     string // the spelling that answers and documents use
	Doc      string
	Spelled  []Spelled
	Required bool
	// Refused says that no server of ours can do it: its forms accept only what
	// says nothing.
	Refused bool
	// Hidden says that no error repeats the value.
	Hidden bool

	// What the option does. In a vocabulary of its own a handler picks the
	// values out, and both are nil.
	Create func(*supervisor.CreateRequest, any)
	Patch  func(*supervisor.Patch, any) // nil: fixed at create
	Fixed  string                       // what to do instead of a patch
}

// Spelled gives a form to spellings, separated by spaces. A dot descends into
// an object.
type Spelled struct {
	Form Form
	As   string
	// Beside has other spellings, one of which the body must have too: without
	// them these could mean another option, which is Ambiguous.
	Beside, Ambiguous string
}

// As gives a form to spellings, separated by spaces.
func (f Form) As(spellings string) Spelled { return Spelled{Form: f, As: spellings} }

// Vocabulary is what a body can say.
type Vocabulary []Option

// Spelling is one way to say an option.
type Spelling struct {
	Path   string
	Form   Form
	Option *Option

	beside    []string // see Spelled
	ambiguous string
}

// Spellings returns every spelling in the order of the table.
func (v Vocabulary) Spellings() []Spelling {
	var all []Spelling
	for i := range v {
		for _, s := range v[i].Spelled {
			for path := range strings.FieldsSeq(s.As) {
				all = append(all, Spelling{path, s.Form, &v[i], strings.Fields(s.Beside), s.Ambiguous})
			}
		}
	}
	return all
}

// Aliases returns all spellings of an option.
func (v Vocabulary) Aliases(name string) []string {
	var paths []string
	for _, sp := range v.Spellings() {
		if sp.Option.Name == name {
			paths = append(paths, sp.Path)
		}
	}
	return paths
}

// Said is what a body says of one option.
type Said struct {
	Path  string
	Raw   []byte
	Value any
}

// Nulls says what null means.
type Nulls string

const (
	NullIsAbsent  Nulls = "absent"
	NullIsRefused Nulls = "refused"
)

// Parse reads a body, nil for an empty one. Two spellings of one option must
// agree.
func (v Vocabulary) Parse(data []byte, n Nulls) (map[string]Said, error) {
	found := map[string]Said{}
	if data != nil {
		if err := checkJSON(data); err != nil {
			return nil, err
		}
		fields, ok := members(data)
		if !ok {
			return nil, Invalid("the request body must be an object, not %s", kindOf(data))
		}
		p := parser{spellings: v.Spellings(), nulls: n, found: found, paths: map[string]bool{}}
		if err := p.object("", fields); err != nil {
			return nil, err
		}
		if err := p.clear(); err != nil {
			return nil, err
		}
	}
	for _, o := range v {
		if _, ok := found[o.Name]; o.Required && !ok {
			return nil, Invalid("%q is required", o.Name).With("field", o.Name)
		}
	}
	return found, nil
}

type parser struct {
	spellings []Spelling
	nulls     Nulls
	found     map[string]Said
	paths     map[string]bool // of everything that was said
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
	i := slices.IndexFunc(p.spellings, func(s Spelling) bool { return s.Path == path })
	inner := slices.ContainsFunc(p.spellings, func(s Spelling) bool { return strings.HasPrefix(s.Path, path+".") })
	switch {
	case strings.Contains(f.name, ".") || i < 0 && !inner:
		return UnknownField(path, f.name, p.siblings(at))
	case isNull(f.raw) && p.nulls == NullIsRefused:
		return Invalid("%q is null", path).WithRemedy("leave it out to keep it, or give 0 for no limit").With("field", path)
	case isNull(f.raw):
		return nil
	case inner && (i < 0 || kindOf(f.raw) == "an object"):
		return p.inner(path, i, f.raw)
	}
	value, err := p.spellings[i].Form.Read(path, f.raw)
	if err != nil || value == nil {
		return err
	}
	p.paths[path] = true
	if p.spellings[i].Option.Hidden {
		return p.say(p.spellings[i].Option.Name, Said{path, []byte("one text"), value})
	}
	return p.say(p.spellings[i].Option.Name, Said{path, f.raw, value})
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
		name, below := strings.CutPrefix(s.Path, path+".")
		if !below || s.Option != p.spellings[i].Option {
			continue
		}
		if !slices.ContainsFunc(fields, func(f member) bool { return f.name == name && !isNull(f.raw) }) {
			return Invalid("%q is required", s.Path).With("field", s.Path)
		}
	}
	return nil
}

// clear refuses a spelling that could mean two options and stands alone.
func (p parser) clear() error {
	for _, s := range p.spellings {
		if !p.paths[s.Path] || len(s.beside) == 0 || slices.ContainsFunc(s.beside, func(path string) bool { return p.paths[path] }) {
			continue
		}
		return errdef.New(errdef.Invalid, "ambiguous_field", "%q alone could mean %s or %s", s.Path, s.Option.Name, s.ambiguous).
			WithRemedy("say %s or %s; beside %s, %q is %s", s.Option.Name, s.ambiguous, s.beside[0], s.Path, s.Option.Name).
			With("field", s.Path).With("meant", []string{s.Option.Name, s.ambiguous})
	}
	return nil
}

func (p parser) say(option string, s Said) error {
	before, ok := p.found[option]
	if !ok {
		p.found[option] = s
		return nil
	}
	if reflect.DeepEqual(before.Value, s.Value) {
		return nil
	}
	return errdef.New(errdef.Invalid, "contradicting_options", "%q is %s, but %q is %s: both say what %s is",
		before.Path, Brief(before.Raw), s.Path, Brief(s.Raw), option).
		WithRemedy("give one of them").With("fields", []string{before.Path, s.Path})
}

// Brief returns a value as sent, cut if it is long.
func Brief(raw []byte) string { return Short(strings.TrimSpace(string(raw))) }

// siblings returns the names that an object at a path can have.
func (p parser) siblings(at string) []string {
	var names []string
	for _, s := range p.spellings {
		path := s.Path
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

// UnknownField refuses a field and names the one that was probably meant.
func UnknownField(path, name string, known []string) error {
	e := errdef.New(errdef.Invalid, "unknown_field", "%q is not a field here", Short(path)).With("field", Short(path))
	if meant := nearest(name, known); meant != "" {
		meant = strings.TrimSuffix(path, name) + meant
		return e.WithRemedy("did you mean %q?", meant).With("meant", meant)
	}
	return e.WithRemedy("leave it out; /v1/openapi.json has the fields")
}

// NoQuery refuses parameters of the query, but for those that are known.
func NoQuery(r *http.Request, known ...string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Invalid("the query string is malformed: escape each %% as %%25, and use & between parameters")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(known, name) {
			e := errdef.New(errdef.Invalid, "unknown_field", "%q is not a parameter of the query here", Short(name)).With("field", Short(name))
			if meant := nearest(name, known); meant != "" {
				return e.WithRemedy("did you mean %q?", meant).With("meant", meant)
			}
			return e.WithRemedy("leave it out, or put it into the body if it is a field of that")
		}
	}
	return nil
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
