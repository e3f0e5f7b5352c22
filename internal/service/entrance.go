package service

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Runtime says who starts what is behind an entrance.
type Runtime string

// The runtimes.
const (
	Manual   Runtime = "manual"   // somebody inside, and nobody supervises it
	Command  Runtime = "command"  // a service of the same name
	Function Runtime = "function" // a service of the same name, which calls a function
)

// Entrance says which requests from outside reach a port of a sandbox. A port
// without one is open as far as the sandbox is.
type Entrance struct {
	Name    string  `json:"name"` // that of the service behind it, if there is one
	Title   string  `json:"title,omitempty"`
	Port    int     `json:"port"`
	Runtime Runtime `json:"runtime"`
	// Public lets requests in that have no credentials of the sandbox's, where a
	// route fits them.
	Public bool    `json:"public,omitempty"`
	Routes []Route `json:"routes,omitempty"`
	Health string  `json:"health,omitempty"` // the path that was named for asking whether it works
}

// Route is a path, with all below it, that requests may ask for. The longest that
// fits a request decides.
type Route struct {
	ID      string   `json:"id"`
	Path    string   `json:"path"`
	Methods []string `json:"methods,omitempty"` // empty for all
	Guard   Guard    `json:"guard,omitzero"`
	Resume  bool     `json:"resume,omitempty"` // requests boot a sandbox that sleeps without its memory
}

// Guard is what a request must know. Only its digest is kept.
type Guard struct {
	Header string `json:"header,omitempty"` // empty for no guard
	Bearer bool   `json:"bearer,omitempty"` // the value follows "Bearer "
	SHA256 string `json:"sha256,omitempty"` // of the value, in lower-case hex
}

// Limits of entrances.
const (
	MaxRoutes  = 32 // of an entrance
	MaxMethods = 16 // of a route
	MaxTitle   = 200
)

// CheckEntrances judges the entrances of a sandbox together.
func CheckEntrances(list []Entrance, taken ...int) error {
	if len(list) > Most {
		return tooLarge("services", len(list), Most, "services")
	}
	bytes := 0
	names, ports := map[string]bool{}, map[int]string{}
	for _, e := range list {
		if err := e.check(); err != nil {
			return err
		}
		if names[e.Name] {
			return invalid(e.Name, "there are two services of that name")
		}
		if slices.Contains(taken, e.Port) {
			return invalid(e.Name, "port %d is that of the sandbox's agent", e.Port)
		}
		if other := ports[e.Port]; other != "" {
			return invalid(e.Name, "port %d is that of service %q", e.Port, other)
		}
		names[e.Name], ports[e.Port] = true, e.Name
		bytes += e.bytes()
	}
	if bytes > MaxBytes {
		return tooLarge("services", bytes, MaxBytes, "bytes of routes")
	}
	return nil
}

func (e Entrance) check() error {
	switch {
	case !ValidName(e.Name):
		return badName(e.Name)
	case e.Port < 1 || e.Port > 65535:
		return invalid(e.Name, "%d is not a port", e.Port)
	case e.Runtime != Manual && e.Runtime != Command && e.Runtime != Function:
		return invalid(e.Name, "%q is no runtime", short(string(e.Runtime)))
	case len(e.Title) > MaxTitle:
		return tooLarge("name for people of service "+e.Name, len(e.Title), MaxTitle, "bytes")
	case len(e.Routes) > MaxRoutes:
		return tooLarge("routes of service "+e.Name, len(e.Routes), MaxRoutes, "routes")
	case e.Health != "" && !validPath(e.Health, true):
		return invalid(e.Name, "%q is no path to ask", short(e.Health))
	}
	ids, paths := map[string]bool{}, map[string]bool{}
	for _, r := range e.Routes {
		if err := r.check(e); err != nil {
			return err
		}
		if ids[r.ID] {
			return invalid(e.Name, "it has two routes %q", short(r.ID))
		}
		if paths[r.Path] {
			return invalid(e.Name, "it has two routes for %q", short(r.Path))
		}
		ids[r.ID], paths[r.Path] = true, true
	}
	return nil
}

func (r Route) check(e Entrance) error {
	switch {
	case r.ID == "" || len(r.ID) > MaxName+23 || strings.Trim(r.ID, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return invalid(e.Name, "%q is not the name of a route", short(r.ID)).WithRemedy("use lower-case letters, digits and hyphens, 63 at most")
	case !validPath(r.Path, false) || r.Path != "/" && strings.HasSuffix(r.Path, "/") || strings.Contains(r.Path, "%"):
		return invalid(e.Name, "%q is no route", short(r.Path)).WithRemedy("use a clean path that begins with a slash, such as /api, without percent signs")
	case len(r.Methods) > MaxMethods:
		return tooLarge("methods of route "+r.ID, len(r.Methods), MaxMethods, "methods")
	case r.Resume && e.Runtime == Manual:
		return invalid(e.Name, "requests are to boot the sandbox for it, and nothing would start it then").WithRemedy("give it a command or a function, or leave out resume")
	case r.Guard.Header == "" && r.Guard != Guard{}:
		return invalid(e.Name, "route %q has a guard without a header", short(r.ID))
	}
	for _, m := range r.Methods {
		if m == "" || len(m) > MaxName || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return invalid(e.Name, "%q is no method", short(m))
		}
	}
	if r.Guard.Header == "" {
		return nil
	}
	if digest, err := hex.DecodeString(r.Guard.SHA256); err != nil || len(digest) != sha256.Size {
		return invalid(e.Name, "the guard of route %q has no SHA-256 in hex", short(r.ID))
	}
	if !validHeader(r.Guard.Header) {
		return invalid(e.Name, "%q is no header", short(r.Guard.Header))
	}
	return nil
}

func validHeader(name string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(marks, r)
	})
}

func (e Entrance) bytes() int {
	n := len(e.Name) + len(e.Title) + len(e.Health)
	for _, r := range e.Routes {
		n += len(r.ID) + len(r.Path) + len(r.Guard.Header) + len(r.Guard.SHA256)
		for _, m := range r.Methods {
			n += len(m)
		}
	}
	return n
}

// EntranceTo returns the entrance of a port; nil where it has none.
func EntranceTo(list []Entrance, port int) *Entrance {
	for i := range list {
		if list[i].Port == port {
			return &list[i]
		}
	}
	return nil
}

// Fields are the header fields of a request.
type Fields interface {
	Get(name string) string // the value of the first field of that name, or ""
	Count(name string) int  // how many there are
}

// Admit judges a request for a public entrance, with the path as it was sent and
// without its query. It returns the status with which the request is refused and
// why, or 0.
func (e *Entrance) Admit(method, sent string, header Fields) (status int, why string) {
	clean, ok := plainPath(sent)
	r := e.route(clean)
	switch {
	case !ok || r != e.route(path.Clean("/"+withoutParameters(clean))):
		return http.StatusBadRequest, "its path could be read in two ways: write it without dot segments, backslashes, semicolons and encoded slashes"
	case r == nil:
		return http.StatusNotFound, "service " + e.Name + " has no route for this path"
	case len(r.Methods) > 0 && !slices.Contains(r.Methods, method):
		return http.StatusMethodNotAllowed, "route " + r.ID + " of service " + e.Name + " takes " + strings.Join(r.Methods, ", ")
	case !r.Guard.passes(header):
		return http.StatusUnauthorized, "route " + r.ID + " of service " + e.Name + " wants a valid " + r.Guard.describe()
	}
	return 0, ""
}

// Boots reports whether a request for a path boots the sandbox.
func (e *Entrance) Boots(sent string) bool {
	clean, ok := plainPath(sent)
	if !ok {
		return false
	}
	r := e.route(clean)
	return r != nil && r.Resume
}

// plainPath returns a path as it is compared. One that servers read differently
// is refused: a route would not hold for what such a server makes of it.
func plainPath(sent string) (clean string, ok bool) {
	decoded, err := url.PathUnescape(sent)
	if err != nil || strings.ContainsAny(decoded, "\\\x00") {
		return "", false
	}
	if strings.Count(decoded, "/") != strings.Count(sent, "/") {
		return "", false
	}
	for segment := range strings.SplitSeq(withoutParameters(decoded), "/") {
		if segment == "." || segment == ".." {
			return "", false
		}
	}
	return path.Clean("/" + decoded), true
}

// withoutParameters cuts the segments of a path at their semicolons, as some
// servers do.
func withoutParameters(p string) string {
	if !strings.Contains(p, ";") {
		return p
	}
	segments := strings.Split(p, "/")
	for i := range segments {
		segments[i], _, _ = strings.Cut(segments[i], ";")
	}
	return strings.Join(segments, "/")
}

// route returns the longest route that a clean path is at or below.
func (e *Entrance) route(clean string) *Route {
	var best *Route
	for i := range e.Routes {
		r := &e.Routes[i]
		if (r.Path == "/" || clean == r.Path || strings.HasPrefix(clean, r.Path+"/")) && (best == nil || len(r.Path) > len(best.Path)) {
			best = r
		}
	}
	return best
}

// passes reports whether a request knows what the guard asks for. With two fields
// of that name the server inside might read the other.
func (g Guard) passes(header Fields) bool {
	if g.Header == "" {
		return true
	}
	if header.Count(g.Header) != 1 {
		return false
	}
	value := strings.TrimSpace(header.Get(g.Header))
	if g.Bearer {
		scheme, token, ok := strings.Cut(value, " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			return false
		}
		value = strings.TrimSpace(token)
	}
	digest := sha256.Sum256([]byte(value))
	return subtle.ConstantTimeCompare([]byte(hex.EncodeToString(digest[:])), []byte(g.SHA256)) == 1
}

func (g Guard) describe() string {
	if g.Bearer {
		return "bearer token"
	}
	return "header " + g.Header
}

// Follow returns the entrances as they are after a change of the services: at the
// ports that these have now, and without those whose service is gone.
func Follow(list []Entrance, services []Service) []Entrance {
	kept := make([]Entrance, 0, len(list))
	for _, e := range list {
		i := slices.IndexFunc(services, func(s Service) bool { return s.Name == e.Name })
		switch {
		case i >= 0 && services[i].Port != 0:
			e.Port = services[i].Port
		case e.Runtime != Manual:
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

func badName(name string) error {
	return errdef.New(errdef.Invalid, "service_invalid", "%q is not the name of a service", short(name)).
		WithRemedy("use 1 to %d lower-case letters, digits and hyphens, and begin with a letter or digit", MaxName)
}
