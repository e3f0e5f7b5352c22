package httpapi

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Router finds the route of a request by the segments of its escaped path, so
// that an escaped slash is part of a segment. It never redirects and never
// cleans: clients follow no redirect, and "/a//b" is not "/a/b".
//
// A segment of a pattern in braces matches any one segment. Where several
// patterns match, a literal segment wins over a parameter, the leftmost first;
// the order of the table means nothing.
type Router[R any] map[int][]pattern[R] // by number of segments, most specific first

// pattern is a route with its pattern split.
type pattern[R any] struct {
	route    *R
	method   string
	segments []string
}

// NewRouter makes a router of a table; of returns a route's method and pattern.
func NewRouter[R any](table []R, of func(*R) (method, pattern string)) Router[R] {
	rt := Router[R]{}
	for i := range table {
		method, text := of(&table[i])
		segs := strings.Split(text, "/")[1:]
		rt[len(segs)] = append(rt[len(segs)], pattern[R]{&table[i], method, segs})
	}
	for _, patterns := range rt {
		slices.SortStableFunc(patterns, moreSpecific)
	}
	return rt
}

// moreSpecific orders literal segments before parameters, the leftmost
// difference deciding.
func moreSpecific[R any](a, b pattern[R]) int {
	for i := range a.segments {
		pa, pb := IsParam(a.segments[i]), IsParam(b.segments[i])
		switch {
		case pb && !pa:
			return -1
		case pa && !pb:
			return 1
		}
	}
	return 0
}

// IsParam reports whether a segment of a pattern is a parameter.
func IsParam(segment string) bool { return strings.HasPrefix(segment, "{") }

// Match returns the route for a request and the path's parameters, unescaped.
// Without one the route is nil, and allowed lists the methods that the path
// has, sorted; none if the path is unknown.
func (rt Router[R]) Match(method, escapedPath string) (route *R, params map[string]string, allowed []string) {
	segs, ok := split(escapedPath)
	if !ok {
		return nil, nil, nil
	}
	for _, p := range rt[len(segs)] {
		params, ok := p.match(segs)
		if !ok {
			continue
		}
		if p.method == method || method == http.MethodHead && p.method == http.MethodGet {
			return p.route, params, nil
		}
		allowed = append(allowed, p.method)
	}
	slices.Sort(allowed)
	return nil, nil, slices.Compact(allowed)
}

// split returns the unescaped segments of an escaped path.
func split(escapedPath string) ([]string, bool) {
	rest, ok := strings.CutPrefix(escapedPath, "/")
	if !ok {
		return nil, false
	}
	segs := strings.Split(rest, "/")
	for i, seg := range segs {
		s, err := url.PathUnescape(seg)
		if err != nil || s == "" {
			return nil, false
		}
		segs[i] = s
	}
	return segs, true
}

// match returns the parameters if the segments fit the pattern.
func (p pattern[R]) match(segs []string) (map[string]string, bool) {
	var params map[string]string
	for i, want := range p.segments {
		if !IsParam(want) {
			if segs[i] != want {
				return nil, false
			}
			continue
		}
		if params == nil {
			params = map[string]string{}
		}
		params[want[1:len(want)-1]] = segs[i]
	}
	return params, true
}
