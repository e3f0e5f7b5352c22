package service

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

type sent http.Header

func (s sent) Get(name string) string { return http.Header(s).Get(name) }
func (s sent) Count(name string) int  { return len(http.Header(s).Values(name)) }

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func shop() Entrance {
	return Entrance{Name: "shop", Port: 8000, Runtime: Command, Public: true, Routes: []Route{
		{ID: "root", Path: "/", Methods: []string{"GET"}, Resume: true},
		{ID: "admin", Path: "/admin", Guard: Guard{Header: "Authorization", Bearer: true, SHA256: digestOf("secret")}},
		{ID: "hook", Path: "/admin/hook", Guard: Guard{Header: "X-Key", SHA256: digestOf("key")}},
	}}
}

// TestAdmit: what a request gets from an entrance, and which ways to write a path
// do not lead round a guard.
func TestAdmit(t *testing.T) {
	none, secret, key := sent{}, sent{"Authorization": {"Bearer secret"}}, sent{"X-Key": {"key"}}
	for _, c := range []struct {
		method, path string
		header       sent
		want         int
	}{
		{"GET", "/", none, 0}, {"GET", "/x/y", none, 0}, {"GET", "", none, 0}, {"POST", "/", none, 405}, {"get", "/", none, 405},
		{"GET", "/admin", none, 401}, {"GET", "/admin", secret, 0}, {"DELETE", "/admin/x", secret, 0}, {"GET", "/administer", none, 0},
		{"GET", "/admin", sent{"Authorization": {"bearer  secret "}}, 0}, {"GET", "/admin", sent{"Authorization": {"secret"}}, 401},
		{"GET", "/admin", sent{"Authorization": {"Basic secret"}}, 401}, {"GET", "/admin", sent{"Authorization": {"Bearer secret", "Bearer other"}}, 401},
		{"GET", "/admin", sent{"Authorization": {"Bearer " + digestOf("secret")}}, 401}, {"GET", "/admin", key, 401},
		{"GET", "/admin/hook", key, 0}, {"GET", "/admin/hook", secret, 401}, {"GET", "/admin/hook/", key, 0},
		// Ways round.
		{"GET", "//admin", none, 401}, {"GET", "/%61dmin", none, 401}, {"GET", "/admin/", none, 401}, {"GET", "/x//../admin", none, 400},
		{"GET", "/x/../admin", none, 400}, {"GET", "/x/%2e%2e/admin", none, 400}, {"GET", "/./admin", none, 400}, {"GET", "/admin/..", none, 400},
		{"GET", "/x%2f..%2fadmin", none, 400}, {"GET", "/%2fadmin", none, 400}, {"GET", "/admin%2fx", none, 400}, {"GET", `/x\..\admin`, none, 400}, {"GET", "/%5cadmin", none, 400},
		{"GET", "/admin;a=b", none, 400}, {"GET", "/admin;/x", none, 400}, {"GET", "/x/..;/admin", none, 400}, {"GET", "/x;a=b/y", none, 0}, {"GET", "/admin;a", secret, 400},
		{"GET", "/admin%00", none, 400}, {"GET", "/%zz", none, 400}, {"GET", "/..admin", none, 0}, {"GET", "/%252e%252e/admin", none, 0}, {"OPTIONS", "*", none, 405},
	} {
		e := shop()
		if got, why := e.Admit(c.method, c.path, c.header); got != c.want || (got == 0) != (why == "") || strings.Contains(why, "secret") {
			t.Errorf("%s %s with %v: %d %q, want %d", c.method, c.path, c.header, got, why, c.want)
		}
	}
	closed := shop()
	closed.Routes = closed.Routes[1:]
	if got, why := closed.Admit("GET", "/other", none); got != http.StatusNotFound || !strings.Contains(why, "shop") {
		t.Errorf("%d %s", got, why)
	}
	for path, want := range map[string]bool{"/": true, "/x": true, "/admin": false, "/x/../admin": false, "/admin/..": false} {
		e := shop()
		if got := e.Boots(path); got != want {
			t.Errorf("%s boots: %t", path, got)
		}
	}
}

func TestCheckEntrances(t *testing.T) {
	many := make([]Entrance, Most+1)
	for i := range many {
		many[i] = Entrance{Name: fmt.Sprintf("s%d", i), Port: 8000 + i, Runtime: Manual}
	}
	with := func(change func(*Entrance)) []Entrance {
		e := shop()
		change(&e)
		return []Entrance{e}
	}
	long := func(e *Entrance) {
		e.Routes = nil
		for i := range MaxRoutes {
			e.Routes = append(e.Routes, Route{ID: fmt.Sprint(i), Path: fmt.Sprintf("/%d/%s", i, strings.Repeat("x", MaxPath-10))})
		}
	}
	for what, c := range map[string]struct {
		list []Entrance
		want string
	}{
		"fine":               {with(func(*Entrance) {}), ""},
		"most":               {many[1:], ""},
		"too many":           {many, "17 services"},
		"no name":            {with(func(e *Entrance) { e.Name = "" }), "not the name"},
		"no port":            {with(func(e *Entrance) { e.Port = 0 }), "not a port"},
		"the agent's port":   {with(func(e *Entrance) { e.Port = 49983 }), "agent"},
		"no runtime":         {with(func(e *Entrance) { e.Runtime = "" }), "no runtime"},
		"two at a port":      {append(with(func(*Entrance) {}), Entrance{Name: "b", Port: 8000, Runtime: Manual}), `that of service "shop"`},
		"two of a name":      {append(with(func(*Entrance) {}), Entrance{Name: "shop", Port: 8001, Runtime: Manual}), "two services"},
		"resume, by hand":    {with(func(e *Entrance) { e.Runtime = Manual }), "nothing would start it"},
		"two routes":         {with(func(e *Entrance) { e.Routes[1].Path = "/" }), "two routes"},
		"two ids":            {with(func(e *Entrance) { e.Routes[1].ID = "root" }), "two routes"},
		"path":               {with(func(e *Entrance) { e.Routes[0].Path = "/a/../b" }), "no route"},
		"encoded path":       {with(func(e *Entrance) { e.Routes[0].Path = "/%61" }), "no route"},
		"path with an end":   {with(func(e *Entrance) { e.Routes[0].Path = "/a/" }), "no route"},
		"method":             {with(func(e *Entrance) { e.Routes[0].Methods = []string{"get"} }), "no method"},
		"digest":             {with(func(e *Entrance) { e.Routes[1].Guard.SHA256 = "abc" }), "SHA-256"},
		"guard of no header": {with(func(e *Entrance) { e.Routes[1].Guard.Header = "" }), "without a header"},
		"header":             {with(func(e *Entrance) { e.Routes[1].Guard.Header = "a:b" }), "no header"},
		"health":             {with(func(e *Entrance) { e.Health = "x" }), "no path"},
		"too long":           {append(with(long), with(func(e *Entrance) { long(e); e.Name, e.Port = "b", 9000 })...), "bytes of routes"},
	} {
		err := CheckEntrances(c.list, 49983)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

func TestEntrancesFollow(t *testing.T) {
	list := []Entrance{shop(), {Name: "hand", Port: 1, Runtime: Manual}, {Name: "gone", Port: 2, Runtime: Function}}
	got := Follow(list, []Service{{Name: "shop", Port: 9000}})
	if len(got) != 2 || got[0].Port != 9000 || got[1].Name != "hand" || list[0].Port != 8000 {
		t.Errorf("%+v", got)
	}
}
