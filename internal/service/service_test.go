package service

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func web(change func(*Service)) Service {
	s := Service{Name: "web", Shell: "serve", Port: 8000}.WithDefaults()
	if change != nil {
		change(&s)
	}
	return s
}

func TestCheckAll(t *testing.T) {
	many := make([]Service, Most+1)
	for i := range many {
		many[i] = Service{Name: fmt.Sprintf("s%d", i), Shell: "serve"}.WithDefaults()
	}
	large := strings.Repeat("x", MaxBytes)
	for name, c := range map[string]struct {
		list []Service
		want string // in the error; empty for none
	}{
		"none":               {nil, ""},
		"one":                {[]Service{web(nil)}, ""},
		"as many as may be":  {many[:Most], ""},
		"too many":           {many, "services has 17 services, and may have 16"},
		"too large":          {[]Service{web(func(s *Service) { s.Shell = large })}, "bytes of text, and may have 32768"},
		"two of a name":      {[]Service{web(nil), web(func(s *Service) { s.Port = 1 })}, "two services of that name"},
		"two of a port":      {[]Service{web(nil), web(func(s *Service) { s.Name = "b" })}, `port 8000 is that of service "web"`},
		"the agent's port":   {[]Service{web(func(s *Service) { s.Port = 49983 })}, "port 49983 is that of the sandbox's agent"},
		"no name":            {[]Service{web(func(s *Service) { s.Name = "" })}, "is not the name of a service"},
		"a bad name":         {[]Service{web(func(s *Service) { s.Name = "a/b" })}, "is not the name of a service"},
		"a long name":        {[]Service{web(func(s *Service) { s.Name = strings.Repeat("a", MaxName+1) })}, "is not the name of a service"},
		"no command":         {[]Service{web(func(s *Service) { s.Shell = " " })}, "it has no command"},
		"an empty program":   {[]Service{web(func(s *Service) { s.Shell, s.Command = "", []string{""} })}, "begins with an empty text"},
		"two commands":       {[]Service{web(func(s *Service) { s.Command = []string{"a"} })}, "it has two commands"},
		"a zero byte":        {[]Service{web(func(s *Service) { s.Cwd = "/a\x00b" })}, "a zero byte"},
		"a bad variable":     {[]Service{web(func(s *Service) { s.Env = map[string]string{"A=B": ""} })}, "is no environment variable"},
		"a bad policy":       {[]Service{web(func(s *Service) { s.Restart = "often" })}, "use always, on-failure or never"},
		"a long backoff":     {[]Service{web(func(s *Service) { s.MaxBackoff = 2 * time.Hour })}, "from 1s to 1h0m0s"},
		"a negative backoff": {[]Service{web(func(s *Service) { s.MaxBackoff = -1 })}, "from 1s to 1h0m0s"},
		"a fast check":       {[]Service{web(func(s *Service) { s.Ready.Interval = 1 })}, "from 50ms to 1m0s"},
		"a slow check":       {[]Service{web(func(s *Service) { s.Ready.Timeout = time.Hour })}, "at most 10m0s"},
		"a check of no port": {[]Service{web(func(s *Service) { s.Port = 0 })}, "needs a port"},
		"no path":            {[]Service{web(func(s *Service) { s.Ready.Check = CheckHTTP })}, "no path for its ready check"},
		"a path elsewhere":   {[]Service{web(func(s *Service) { s.Ready.Check, s.Ready.Path = CheckHTTP, "//a/b" })}, "no path for its ready check"},
		"a path and a query": {[]Service{web(func(s *Service) { s.Ready.Check, s.Ready.Path = CheckHTTP, "/a?b=c" })}, ""},
		"a route":            {[]Service{web(func(s *Service) { s.Route = "/api" })}, ""},
		"an unclean route":   {[]Service{web(func(s *Service) { s.Route = "/a/../b" })}, "is no route"},
		"resume, no port":    {[]Service{web(func(s *Service) { s.Port, s.Ready.Check, s.Resume = 0, CheckStarted, true })}, "it has no port"},
		"resume, never":      {[]Service{web(func(s *Service) { s.Resume, s.Restart = true, Never })}, "never started again"},
		"after none":         {[]Service{web(func(s *Service) { s.After = []string{"db"} })}, "there is no such service"},
		"after itself":       {[]Service{web(func(s *Service) { s.After = []string{"web"} })}, "wait for ever"},
		"in a circle": {[]Service{
			web(func(s *Service) { s.After = []string{"b"} }), web(func(s *Service) { s.Name, s.Port, s.Ready.Check, s.After = "b", 0, CheckStarted, []string{"web"} }),
		}, "wait for ever"},
	} {
		err := CheckAll(c.list, 49983)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestServing(t *testing.T) {
	list := []Service{web(func(s *Service) { s.Route = "/api/" }), web(func(s *Service) { s.Name, s.Port = "all", 8001 }), web(func(s *Service) { s.Name, s.Port = "worker", 0 })}
	for _, c := range []struct {
		port int
		path string
		want string
	}{
		{8000, "/api", "web"}, {8000, "/api/", "web"}, {8000, "/api/x", "web"}, {8000, "/%61pi/x", "web"}, {8000, "//api", "web"}, {8000, "", "web"},
		{8000, "/", ""}, {8000, "/apix", ""}, {8000, "/api/../x", ""}, {8000, "/api/%2e%2e/x", ""},
		{8001, "/anything", "all"}, {8002, "/", ""}, {0, "/", ""},
	} {
		got := ""
		if s := Serving(list, c.port, c.path); s != nil {
			got = s.Name
		}
		if got != c.want {
			t.Errorf("port %d, %q: %q, want %q", c.port, c.path, got, c.want)
		}
	}
}
