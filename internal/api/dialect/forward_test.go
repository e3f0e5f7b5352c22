package dialect

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/held"
	"github.com/drowse-dev/drowse/internal/store"
)

// elsewhere is a Forwarder to a server that answers with the body that it got.
type elsewhere struct {
	holder string
	later  string   // has it when it was looked for here in vain
	lost   error    // why a server cannot be found
	fails  error    // why the server does not answer
	here   bool     // this server has taken it over
	gone   error    // why it could not
	stops  []string // servers that have what is asked for before, and stop
	inBody bool     // it is the body that names that
	got    []string
}

func (e *elsewhere) HolderOf(*http.Request) (string, error) {
	if len(e.stops) > 0 && !e.inBody {
		return e.stops[0], nil
	}
	holder := e.holder
	e.holder = e.later
	return holder, e.lost
}

func (e *elsewhere) HolderNow(_ context.Context, err error) (string, error) {
	server, _ := store.Elsewhere(err)
	if len(e.stops) > 0 {
		return e.stops[0], nil
	}
	if e.here {
		server = ""
	}
	return server, e.gone
}

func (e *elsewhere) Forward(w http.ResponseWriter, r *http.Request, server string) error {
	if e.fails != nil {
		return e.fails
	}
	if len(e.stops) > 0 && server == e.stops[0] {
		e.stops = e.stops[1:]
		return errStops
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	e.got = append(e.got, server+" "+string(body))
	w.Header().Add("Access-Control-Allow-Origin", "of "+server)
	w.WriteHeader(http.StatusCreated)
	_, err = io.WriteString(w, server)
	return err
}

var errStops = errors.New("it stops")

// Again implements Forwarder.
func (e *elsewhere) Again(_ context.Context, _ string, failed error) bool { return failed == errStops }

// TestForwarding passes on what another server has, with all of the request, and answers
// what it cannot pass on.
func TestForwarding(t *testing.T) {
	gone := errors.New("it is down")
	missing := errdef.New(errdef.NotFound, "sandbox_not_found", "it is not here")
	elsewhereErr := store.ErrElsewhere("volume data", "srv_b")
	for name, tt := range map[string]struct {
		to       elsewhere
		reads    int   // how many bytes of the body the handler reads; -1 for all as ReadBody does
		err      error // of the handler
		body     string
		handled  bool
		want     string // what the other server got; empty where nothing
		answered error
	}{
		"its path names what is there":          {to: elsewhere{holder: "srv_c"}, body: "text", want: "srv_c text"},
		"nothing":                               {body: "text", handled: true},
		"no server can be found":                {to: elsewhere{lost: gone}, answered: gone},
		"that server is down":                   {to: elsewhere{holder: "srv_c", fails: gone}, answered: gone},
		"its body names what is there":          {reads: -1, err: elsewhereErr, body: "text", handled: true, want: "srv_b text"},
		"its body was read in part":             {reads: 2, err: elsewhereErr, body: "text", handled: true, answered: elsewhereErr},
		"its body was not read":                 {err: elsewhereErr, body: "text", handled: true, want: "srv_b text"},
		"its body is large and not read":        {err: elsewhereErr, body: strings.Repeat("x", 3*httpapi.MaxBody), handled: true, want: "srv_b " + strings.Repeat("x", 3*httpapi.MaxBody)},
		"its body is as large as it may be":     {reads: -1, err: elsewhereErr, body: strings.Repeat("x", httpapi.MaxBody), handled: true, want: "srv_b " + strings.Repeat("x", httpapi.MaxBody)},
		"the server of its body is down":        {to: elsewhere{fails: gone}, reads: -1, err: elsewhereErr, body: "text", handled: true, answered: gone},
		"it was taken over":                     {to: elsewhere{here: true}, reads: -1, err: elsewhereErr, body: "text", handled: true, want: " text"},
		"it could not be taken over":            {to: elsewhere{gone: gone}, reads: -1, err: elsewhereErr, body: "text", handled: true, answered: gone},
		"it has gone away meanwhile":            {to: elsewhere{later: "srv_c"}, reads: -1, err: missing, body: "text", handled: true, want: "srv_c text"},
		"there is none":                         {reads: -1, err: missing, body: "text", handled: true, answered: missing},
		"that server stops":                     {to: elsewhere{stops: []string{"srv_d", "srv_e"}, holder: "srv_c"}, body: "text", want: "srv_c text"},
		"the server of its body stops":          {to: elsewhere{stops: []string{"srv_d"}, inBody: true}, reads: -1, err: elsewhereErr, body: "text", handled: true, want: "srv_b text"},
		"it was taken over then":                {to: elsewhere{stops: []string{"srv_d"}, inBody: true, here: true}, reads: -1, err: elsewhereErr, body: "text", handled: true, want: " text"},
		"that server stops, and it is here":     {to: elsewhere{stops: []string{"srv_d"}}, body: "text", want: " text"},
		"its server stops, and no other has it": {to: elsewhere{stops: []string{"srv_d", "srv_d", "srv_e"}}, body: "text", answered: errStops},
		"all servers stop":                      {to: elsewhere{stops: slices.Repeat([]string{"srv_d", "srv_e"}, 9)}, body: "text", answered: errStops},
		"its handler fails for other causes":    {err: gone, handled: true, answered: gone},
	} {
		t.Run(name, func(t *testing.T) {
			to := &tt.to
			r := Forwarding(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tt.body)), to)
			w := httptest.NewRecorder()
			handled := false
			var answered error
			httpapi.NewBodies(held.New()).Bound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				Serve(w, r, func() (Reply, error) {
					handled = true
					var err error
					switch {
					case tt.reads < 0:
						_, err = httpapi.ReadBody(w, r, "key")
					case tt.reads > 0:
						_, err = io.CopyN(io.Discard, r.Body, int64(tt.reads))
					}
					if err != nil {
						t.Error(err)
					}
					return Reply{Status: http.StatusOK}, tt.err
				}, func(err error) httpapi.Response {
					answered = err
					return httpapi.Response{Status: http.StatusTeapot}
				})
			})).ServeHTTP(w, r)
			if handled != tt.handled || answered != tt.answered {
				t.Errorf("handled: %v, answered: %v; want %v, %v", handled, answered, tt.handled, tt.answered)
			}
			if got := strings.Join(to.got, "|"); got != tt.want {
				t.Errorf("the other server got %d bytes (%.40q), want %d", len(got), got, len(tt.want))
			}
			if origins := w.Header().Values("Access-Control-Allow-Origin"); len(origins) != 1 {
				t.Errorf("the answer allows origins %q", origins)
			}
		})
	}
}
