// Package lazyregexp has regular expressions that are compiled when they are first used.
// The sentry and the file server of each sandbox are this program too, and use none of
// those that packages of the server and of the command line declare.
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// Regexp is a regular expression. It is safe for concurrent use.
type Regexp struct {
	compiled func() *regexp.Regexp
}

// New returns a regular expression that must be well-formed. In tests it is compiled at
// once, so that each test of a package finds one that is not.
func New(expr string) *Regexp {
	r := &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
	if strings.HasSuffix(os.Args[0], ".test") {
		r.compiled()
	}
	return r
}

// MatchString is that of package regexp, as the methods below are.
func (r *Regexp) MatchString(s string) bool { return r.compiled().MatchString(s) }

// FindStringSubmatch is that of package regexp.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }

// ReplaceAllString is that of package regexp.
func (r *Regexp) ReplaceAllString(s, by string) string { return r.compiled().ReplaceAllString(s, by) }

// ReplaceAllStringFunc is that of package regexp.
func (r *Regexp) ReplaceAllStringFunc(s string, by func(string) string) string {
	return r.compiled().ReplaceAllStringFunc(s, by)
}

// Match is that of package regexp.
func (r *Regexp) Match(b []byte) bool { return r.compiled().Match(b) }

// FindSubmatch is that of package regexp.
func (r *Regexp) FindSubmatch(b []byte) [][]byte { return r.compiled().FindSubmatch(b) }
