package volumecontent

import (
	"bytes"
	"net/url"
	"strconv"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/volume"
)

// query reads the parameters of a request. err is the first thing that is wrong
// with those that were read; then the request is not to be carried out.
type query struct {
	values url.Values
	err    error
}

func (q *query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = errdef.New(errdef.Invalid, "invalid_request", format, args...)
	}
}

// path returns the path; what cannot be one is refused by whoever uses it.
func (q *query) path() string {
	if !q.values.Has("path") {
		q.fail(`the parameter "path" is required`)
	}
	return q.values.Get("path")
}

// maxDepth is more levels than a path can have.
const maxDepth = 4096

func (q *query) depth() int {
	text := q.values.Get("depth")
	if text == "" {
		return 1
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		q.fail(`"depth" must be a number from 1 on`)
	}
	return int(min(n, maxDepth))
}

func (q *query) number(name string) *uint32 {
	text := q.values.Get(name)
	if text == "" {
		return nil
	}
	n, err := number(name, text)
	if err != nil && q.err == nil {
		q.err = err
	}
	return n
}

func number(name, text string) (*uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, body.Invalid("%q must be a number of 32 bits", name).With("field", name)
	}
	return new(uint32(n)), nil
}

// changeBody is what a change says of a path.
var changeBody = body.Vocabulary{
	{Name: "uid", Spelled: []body.Spelled{asNumber.As("uid")}},
	{Name: "gid", Spelled: []body.Spelled{asNumber.As("gid")}},
	{Name: "mode", Spelled: []body.Spelled{asNumber.As("mode")}},
}

var asNumber = body.Form{Words: "a number of 32 bits", Schema: body.Schema{"type": "integer"}, Read: func(path string, raw []byte) (any, error) {
	return number(path, string(bytes.TrimSpace(raw)))
}}

func (q *query) attributes() volume.Attributes {
	a, err := attributes(q.number("uid"), q.number("gid"), q.number("mode"))
	if err != nil && q.err == nil {
		q.err = err
	}
	return a
}

func (q *query) parents() volume.Parents {
	text := q.values.Get("force")
	if text == "" {
		return volume.NeedParents
	}
	force, err := strconv.ParseBool(text)
	if err != nil {
		q.fail(`"force" must be true or false`)
	}
	if force {
		return volume.MakeParents
	}
	return volume.NeedParents
}

// attributes are as clients give them. The number that stands for nobody, and
// that would change nothing, is refused, as are bits that no mode has.
func attributes(uid, gid, mode *uint32) (a volume.Attributes, err error) {
	for to, id := range map[**int]*uint32{&a.UID: uid, &a.GID: gid} {
		if id == nil {
			continue
		}
		if int32(*id) == -1 {
			return a, errdef.New(errdef.Invalid, "invalid_request", "%d is no owner", *id)
		}
		n := int(*id)
		*to = &n
	}
	if mode != nil && *mode > 0o7777 {
		return a, errdef.New(errdef.Invalid, "invalid_request", "%d is no mode: it is to be a number up to 4095, which is 7777 in octal", *mode)
	}
	a.Mode = mode
	return a, nil
}
