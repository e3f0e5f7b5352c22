// Package service says what a service of a sandbox is: a named process that the
// agent inside starts, watches and starts again. The host, the agent and the
// database have the same types of it.
//
// Whatever the agent reports is a [Report]. A guest is hostile: the host reads one
// within bounds and cleans its texts.
package service

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Restart says when a service that has ended is started again.
type Restart string

// The policies.
const (
	Always    Restart = "always"
	OnFailure Restart = "on-failure" // unless it ended with exit status 0
	Never     Restart = "never"
)

// Check is how a service shows that it is ready.
type Check string

// The checks.
const (
	CheckStarted Check = "started" // its process has run for a second
	CheckPort    Check = "port"    // its port accepts connections
	CheckHTTP    Check = "http"    // a GET of a path on its port is answered with 2xx or 3xx
	CheckCommand Check = "command" // a shell command succeeds
)

// Service is what its owner asked for, with the defaults filled in.
type Service struct {
	Name string `json:"name"`
	// Command is a program and its arguments, and Shell a line for a shell. One of
	// them is empty.
	Command []string          `json:"command,omitempty"`
	Shell   string            `json:"shell,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`  // empty: as for commands
	User    string            `json:"user,omitempty"` // empty: as for commands
	Port    int               `json:"port,omitempty"` // on which it serves; 0 for none
	// Route is the path of its port at or below which requests are the service's;
	// empty for all of them.
	Route string `json:"route,omitempty"`
	// Resume lets requests to the service boot a sandbox that sleeps without its
	// memory.
	Resume     bool          `json:"resume,omitempty"`
	Restart    Restart       `json:"restart"`
	MaxBackoff time.Duration `json:"maxBackoff"` // the longest wait before it is started again
	After      []string      `json:"after,omitempty"`
	Ready      Ready         `json:"ready"`
}

// Ready says how and for how long the service is asked whether it is ready.
type Ready struct {
	Check    Check         `json:"check"`
	Path     string        `json:"path,omitempty"`    // of CheckHTTP
	Command  string        `json:"command,omitempty"` // of CheckCommand
	Timeout  time.Duration `json:"timeout"`           // after this it is ended, as a failure
	Interval time.Duration `json:"interval"`
}

// The defaults.
const (
	DefaultMaxBackoff = time.Minute
	DefaultTimeout    = 30 * time.Second
	DefaultInterval   = 200 * time.Millisecond
)

// WithDefaults returns the service with what was not said.
func (s Service) WithDefaults() Service {
	set(&s.Restart, OnFailure)
	set(&s.MaxBackoff, DefaultMaxBackoff)
	check := CheckStarted
	if s.Port != 0 {
		check = CheckPort
	}
	set(&s.Ready.Check, check)
	set(&s.Ready.Timeout, DefaultTimeout)
	set(&s.Ready.Interval, DefaultInterval)
	return s
}

func set[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// Limits of the services of a sandbox.
const (
	Most        = 16
	MaxBytes    = 32 << 10 // of all texts of all services
	MaxName     = 40
	MaxArgs     = 256
	MaxEnv      = 64
	MaxPath     = 1024 // of routes, checks and directories
	MaxUser     = 64
	MaxTimeout  = 10 * time.Minute
	MinInterval = 50 * time.Millisecond
	MaxInterval = time.Minute
	MinBackoff  = time.Second
	MaxBackoff  = time.Hour
)

// CheckAll judges the services of a sandbox together. No service can have one of
// the ports that are taken.
func CheckAll(list []Service, taken ...int) error {
	if len(list) > Most {
		return tooLarge("services", len(list), Most, "services")
	}
	bytes := 0
	names, ports := map[string]bool{}, map[int]string{}
	for _, s := range list {
		if err := s.check(); err != nil {
			return err
		}
		bytes += s.bytes()
		if names[s.Name] {
			return invalid(s.Name, "there are two services of that name")
		}
		names[s.Name] = true
		if s.Port == 0 {
			continue
		}
		if slices.Contains(taken, s.Port) {
			return invalid(s.Name, "port %d is that of the sandbox's agent", s.Port)
		}
		if other := ports[s.Port]; other != "" {
			return invalid(s.Name, "port %d is that of service %q", s.Port, other)
		}
		ports[s.Port] = s.Name
	}
	if bytes > MaxBytes {
		return tooLarge("services", bytes, MaxBytes, "bytes of text")
	}
	return checkOrder(list, names)
}

// checkOrder refuses services that would wait for each other, or for none.
func checkOrder(list []Service, names map[string]bool) error {
	started := map[string]bool{}
	for len(started) < len(list) {
		before := len(started)
		for _, s := range list {
			for _, other := range s.After {
				if !names[other] {
					return invalid(s.Name, "it is to start after %q, and there is no such service", short(other))
				}
			}
			if !slices.ContainsFunc(s.After, func(other string) bool { return !started[other] }) {
				started[s.Name] = true
			}
		}
		if len(started) == before {
			i := slices.IndexFunc(list, func(s Service) bool { return !started[s.Name] })
			return invalid(list[i].Name, "it would wait for ever: the services that it is to start after wait for it")
		}
	}
	return nil
}

func (s Service) check() error {
	if !ValidName(s.Name) {
		return badName(s.Name)
	}
	switch {
	case len(s.Command) == 0 && strings.TrimSpace(s.Shell) == "":
		return invalid(s.Name, "it has no command")
	case len(s.Command) > 0 && s.Shell != "":
		return invalid(s.Name, "it has two commands")
	case len(s.Command) > 0 && s.Command[0] == "":
		return invalid(s.Name, "its command begins with an empty text")
	case len(s.Command) > MaxArgs:
		return tooLarge("command of service "+s.Name, len(s.Command), MaxArgs, "arguments")
	case len(s.Env) > MaxEnv:
		return tooLarge("env of service "+s.Name, len(s.Env), MaxEnv, "variables")
	case len(s.Cwd) > MaxPath:
		return tooLarge("cwd of service "+s.Name, len(s.Cwd), MaxPath, "bytes")
	case len(s.User) > MaxUser:
		return tooLarge("user of service "+s.Name, len(s.User), MaxUser, "bytes")
	case s.Port < 0 || s.Port > 65535:
		return invalid(s.Name, "%d is not a port", s.Port)
	case s.Restart != Always && s.Restart != OnFailure && s.Restart != Never:
		return invalid(s.Name, "its restart policy is %q", short(string(s.Restart))).WithRemedy("use always, on-failure or never")
	case s.MaxBackoff < MinBackoff || s.MaxBackoff > MaxBackoff:
		return invalid(s.Name, "its longest backoff is %s; it may be from %s to %s", s.MaxBackoff, MinBackoff, MaxBackoff)
	case len(s.After) > Most:
		return tooLarge("after of service "+s.Name, len(s.After), Most, "names")
	case s.Resume && s.Port == 0:
		return invalid(s.Name, "requests are to boot the sandbox for it, and it has no port").WithRemedy("give it a port, or leave out resume")
	case s.Resume && s.Restart == Never:
		return invalid(s.Name, "requests are to boot the sandbox for it, and it is never started again").WithRemedy("use always or on-failure, or leave out resume")
	case s.Route != "" && s.Port == 0:
		return invalid(s.Name, "it has a route and no port")
	case s.Route != "" && !validPath(s.Route, false):
		return invalid(s.Name, "%q is no route", short(s.Route)).WithRemedy("use a clean path that begins with a slash, of %d bytes at most, such as /api", MaxPath)
	}
	for _, text := range s.texts() {
		if strings.Contains(text, "\x00") {
			return invalid(s.Name, "a text of it has a zero byte, which nothing can be called with")
		}
	}
	for name := range s.Env {
		if name == "" || strings.Contains(name, "=") {
			return invalid(s.Name, "%q is no environment variable", short(name))
		}
	}
	return s.checkReady()
}

func (s Service) checkReady() error {
	r := s.Ready
	switch {
	case r.Check != CheckStarted && r.Check != CheckPort && r.Check != CheckHTTP && r.Check != CheckCommand:
		return invalid(s.Name, "%q is no ready check", short(string(r.Check)))
	case (r.Check == CheckPort || r.Check == CheckHTTP) && s.Port == 0:
		return invalid(s.Name, "its ready check needs a port, and it has none")
	case r.Check == CheckHTTP && !validPath(r.Path, true):
		return invalid(s.Name, "%q is no path for its ready check", short(r.Path)).WithRemedy("begin it with one slash; %d bytes at most", MaxPath)
	case r.Check == CheckCommand && strings.TrimSpace(r.Command) == "":
		return invalid(s.Name, "its ready check has no command")
	case r.Timeout <= 0 || r.Timeout > MaxTimeout:
		return invalid(s.Name, "its ready check may take %s; it may be more than 0 and at most %s", r.Timeout, MaxTimeout)
	case r.Interval < MinInterval || r.Interval > MaxInterval:
		return invalid(s.Name, "its ready check runs every %s; it may be from %s to %s", r.Interval, MinInterval, MaxInterval)
	}
	return nil
}

// ValidName reports whether a service can be called so.
func ValidName(name string) bool {
	if name == "" || len(name) > MaxName || name[0] == '-' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func validPath(p string, query bool) bool {
	u, err := url.ParseRequestURI(p)
	if err != nil || len(p) > MaxPath || p[0] != '/' || strings.HasPrefix(p, "//") || strings.ContainsAny(p, "#\\ ") {
		return false
	}
	return query || u.RawQuery == "" && !strings.Contains(p, "?") && (path.Clean(p) == p || path.Clean(p)+"/" == p)
}

// texts returns everything that was said of the service.
func (s Service) texts() []string {
	texts := append([]string{s.Name, s.Shell, s.Cwd, s.User, s.Route, s.Ready.Path, s.Ready.Command}, s.Command...)
	for name, value := range s.Env {
		texts = append(texts, name, value)
	}
	return append(texts, s.After...)
}

func (s Service) bytes() (n int) {
	for _, text := range s.texts() {
		n += len(text)
	}
	return n
}

func invalid(name, format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "service_invalid", "service %q: %s", name, fmt.Sprintf(format, args...)).With("service", name)
}

func tooLarge(name string, has, most int, of string) error {
	return errdef.New(errdef.Invalid, "field_too_large", "%s has %d %s, and may have %d", name, has, of, most).
		WithRemedy("keep what is larger in a file of the sandbox").
		With("field", name).With("requested", has).With("allowed", most)
}

func short(text string) string {
	const most = 80
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// Serving returns the service whose port and route a request is for; nil for none.
// An empty path is below every route.
func Serving(list []Service, port int, requested string) *Service {
	for i := range list {
		if s := &list[i]; port != 0 && s.Port == port && s.below(requested) {
			return s
		}
	}
	return nil
}

// below reports whether a path is at or below the route.
func (s Service) below(requested string) bool {
	route := strings.TrimSuffix(s.Route, "/")
	if route == "" || requested == "" {
		return true
	}
	decoded, err := url.PathUnescape(requested)
	if err != nil {
		decoded = requested
	}
	clean := path.Clean("/" + decoded)
	return clean == route || strings.HasPrefix(clean, route+"/")
}

// Resumes reports whether one of the services lets requests boot the sandbox.
func Resumes(list []Service) bool {
	return slices.ContainsFunc(list, func(s Service) bool { return s.Resume })
}
