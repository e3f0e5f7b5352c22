package dialect

import (
	"cmp"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/api/httpapi"
)

// Reads is what a route reads of a request. What else is sent is refused: the client
// would take it for heeded. The zero value reads nothing.
type Reads struct {
	Body  body.Vocabulary // what the body can say; nil for none
	Query []string        // the parameters that go with it
	Nulls body.Nulls      // NullIsAbsent where nothing is said
	// Must says that the body has to be there.
	Must bool
	// Raw says that the handler reads the body, because it is no JSON.
	Raw bool
	// Unjudged says that the handler judges all that is sent, or refuses whatever is.
	Unjudged bool
	strict   bool
}

// What routes read.
var (
	Nothing  = Reads{}
	Unjudged = Reads{Unjudged: true}
)

// Takes is a body that may be missing, and parameters of the query.
func Takes(v body.Vocabulary, query ...string) Reads { return Reads{Body: v, Query: query} }

// Needs is a body that has to be there.
func Needs(v body.Vocabulary) Reads { return Reads{Body: v, Must: true} }

// Raw is a body that the handler reads, and parameters of the query.
func Raw(query ...string) Reads { return Reads{Raw: true, Query: query} }

// Strict has the query of a GET judged, too. Otherwise it is the handler's: clients of
// others are newer than this server, and send parameters of their own.
func (rd Reads) Strict() Reads {
	rd.strict = true
	return rd
}

// Read returns what the body says, and the body as sent, whose bytes count for holder.
// What comes with a GET is no body.
func (rd Reads) Read(w http.ResponseWriter, r *http.Request, holder string) (words map[string]body.Said, sent []byte, err error) {
	looks := r.Method == http.MethodGet || r.Method == http.MethodHead
	if rd.Unjudged || looks && !rd.strict {
		return nil, nil, nil
	}
	if err := body.NoQuery(r, rd.Query...); err != nil || rd.Raw || looks {
		return nil, nil, err
	}
	if sent, err = httpapi.ReadBody(w, r, holder); err != nil {
		return nil, nil, err
	}
	if rd.Must && len(sent) == 0 {
		return nil, nil, body.Invalid("the request body is empty: a JSON object is needed")
	}
	words, err = rd.Body.Parse(sent, cmp.Or(rd.Nulls, body.NullIsAbsent))
	return words, sent, err
}
