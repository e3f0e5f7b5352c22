package body

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/service"
)

// ServiceBody is what can be said of one service, apart from its name.
var ServiceBody = Vocabulary{
	{Name: "command", Doc: "What to run: a program and its arguments, or a line for a shell. It must stay in the foreground.", Required: true, Spelled: []Spelled{AsCommand.As("command")}},
	{Name: "port", Doc: "On which it serves. The process has it in PORT. Requests to the port wait until the service is ready.", Spelled: []Spelled{AsPort.As("port")}},
	{Name: "route", Doc: "The path at or below which requests to the port are the service's (default: all).", Spelled: []Spelled{AsText.As("route")}},
	{Name: "env", Doc: "Environment variables, besides those of the sandbox.", Spelled: []Spelled{AsVars.As("env envs envVars env_vars")}},
	{Name: "cwd", Doc: "Working directory (default: the one that commands have).", Spelled: []Spelled{AsText.As("cwd")}},
	{Name: "user", Doc: "As whom it runs (default: as commands).", Spelled: []Spelled{AsText.As("user")}},
	{Name: "restart", Doc: "When it is started again after it has ended: always, on-failure (the default) or never.", Spelled: []Spelled{AsRestart.As("restart")}},
	{Name: "maxBackoffSeconds", Doc: "The longest wait before it is started again (default: 60). The first is 1 second, and each failure in a row doubles it.", Spelled: []Spelled{InSomeSeconds.As("maxBackoffSeconds max_backoff_seconds")}},
	{Name: "after", Doc: "Services that must be ready before this one starts.", Spelled: []Spelled{AsRules.As("after")}},
	{Name: "resume", Doc: "Whether requests to it boot a sandbox that was paused with mode filesystem, where its autoResume is on. It needs a port.", Spelled: []Spelled{AsFlag.As("resume")}},
	{Name: "ready.http", Doc: "It is ready when a GET of this path on its port is answered with 2xx or 3xx.", Spelled: []Spelled{AsText.As("ready.http")}},
	{Name: "ready.command", Doc: "It is ready when this line for a shell succeeds.", Spelled: []Spelled{AsText.As("ready.command")}},
	{Name: "ready.port", Doc: "It is ready when its port takes connections: the default where it has one. With false, and where it has none, it is ready when its process has run for a second.", Spelled: []Spelled{AsFlag.As("ready.port")}},
	{Name: "ready.timeoutSeconds", Doc: "How long it may take to be ready (default: 30). After that it is ended, as a failure.", Spelled: []Spelled{InSomeSeconds.As("ready.timeoutSeconds ready.timeout_seconds")}},
	{Name: "ready.intervalSeconds", Doc: "How often it is asked whether it is ready (default: 0.2).", Spelled: []Spelled{InSomeSeconds.As("ready.intervalSeconds ready.interval_seconds")}},
	Refuse("function", "services are commands: run a program that serves the function", "function runtime"),
	Refuse("ingress", "a service has one port and one route", "ingress routes"),
}

// serviceInList is a service in a list, which has its name.
var serviceInList = append(Vocabulary{{Name: "name", Required: true, Spelled: []Spelled{AsText.As("name")}}}, ServiceBody...)

// The forms of a service's values.
var (
	AsServices = Form{"an array of services", Schema{"type": "array", "items": Schema{"$ref": Components + "Service"}}, readServices}
	AsCommand  = Form{"an array of strings, or a line for a shell", Command{}.Schema(), readCommand}
	AsRestart  = Form{`"always", "on-failure" or "never"`, OneOf(service.Always, service.OnFailure, service.Never), readRestart}
)

// Service documents what readServices reads.
type Service struct {
	Name              string            `json:"name" doc:"Lower-case letters, digits and hyphens; 40 at most."`
	Command           Command           `json:"command" doc:"What to run: a program and its arguments, or a line for a shell. It must stay in the foreground."`
	Port              int               `json:"port,omitempty" doc:"On which it serves. The process has it in PORT. Requests to the port wait until the service is ready."`
	Route             string            `json:"route,omitempty" doc:"The path at or below which requests to the port are the service's (default: all)."`
	Env               map[string]string `json:"env,omitempty" doc:"Environment variables, besides those of the sandbox."`
	Cwd               string            `json:"cwd,omitempty" doc:"Working directory (default: the one that commands have)."`
	User              string            `json:"user,omitempty" doc:"As whom it runs (default: as commands)."`
	Restart           service.Restart   `json:"restart,omitempty" doc:"When it is started again after it has ended (default: on-failure)."`
	MaxBackoffSeconds float64           `json:"maxBackoffSeconds,omitempty" doc:"The longest wait before it is started again (default: 60)."`
	After             []string          `json:"after,omitempty" doc:"Services that must be ready before this one starts."`
	Resume            bool              `json:"resume,omitempty" doc:"Whether requests to it boot a sandbox that was paused with mode filesystem, where its autoResume is on."`
	Ready             ServiceReady      `json:"ready,omitempty" doc:"How it shows that it is ready (default: its port takes connections, or its process has run for a second)."`
}

type ServiceReady struct {
	HTTP            string  `json:"http,omitempty" doc:"A GET of this path on its port is answered with 2xx or 3xx."`
	Command         string  `json:"command,omitempty" doc:"This line for a shell succeeds."`
	Port            *bool   `json:"port,omitempty" doc:"Its port takes connections; with false, its process has run for a second."`
	TimeoutSeconds  float64 `json:"timeoutSeconds,omitempty" doc:"How long it may take (default: 30)."`
	IntervalSeconds float64 `json:"intervalSeconds,omitempty" doc:"How often it is asked (default: 0.2)."`
}

// Command is a program with its arguments, or a line for a shell.
type Command struct {
	Args []string
	Line string
}

// MarshalJSON implements json.Marshaler.
func (c Command) MarshalJSON() ([]byte, error) {
	if c.Line != "" {
		return json.Marshal(c.Line)
	}
	return json.Marshal(c.Args)
}

// Schema returns the schema of a command.
func (Command) Schema() Schema {
	return Schema{"anyOf": []Schema{{"type": "array", "items": Schema{"type": "string"}}, {"type": "string"}}}
}

func readCommand(path string, raw []byte) (any, error) {
	var c Command
	switch kindOf(raw) {
	case "a string":
		if err := json.Unmarshal(raw, &c.Line); err != nil {
			return nil, wrongKind(path, "a string", raw)
		}
		return c, nil
	case "an array":
		if json.Unmarshal(raw, &c.Args) == nil {
			return c, nil
		}
	}
	return nil, wrongKind(path, "an array of strings, or a line for a shell", raw)
}

func readRestart(path string, raw []byte) (any, error) {
	text, err := readText(path, raw)
	if err != nil {
		return nil, err
	}
	r := service.Restart(text.(string))
	if r != service.Always && r != service.OnFailure && r != service.Never {
		return nil, Invalid("%q is %s", path, Brief(raw)).WithRemedy("use always, on-failure or never").With("field", path)
	}
	return r, nil
}

func readServices(path string, raw []byte) (any, error) {
	var items []json.RawMessage
	if kindOf(raw) != "an array" || json.Unmarshal(raw, &items) != nil {
		return nil, wrongKind(path, "an array", raw)
	}
	list := []service.Service{}
	for i, item := range items {
		words, err := serviceInList.Parse(item, NullIsAbsent)
		if err != nil {
			return nil, InField(fmt.Sprintf("%s[%d]", path, i), err)
		}
		s, err := ReadService(words["name"].Value.(string), words)
		if err != nil {
			return nil, InField(fmt.Sprintf("%s[%d]", path, i), err)
		}
		list = append(list, s)
	}
	return list, nil
}

// ReadService makes a service of what a body says of it.
func ReadService(name string, words map[string]Said) (service.Service, error) {
	s := service.Service{Name: name}
	c := words["command"].Value.(Command)
	s.Command, s.Shell = c.Args, c.Line
	s.Port, _ = words["port"].Value.(int)
	s.Route, _ = words["route"].Value.(string)
	s.Env, _ = words["env"].Value.(map[string]string)
	s.Cwd, _ = words["cwd"].Value.(string)
	s.User, _ = words["user"].Value.(string)
	s.Restart, _ = words["restart"].Value.(service.Restart)
	s.MaxBackoff, _ = words["maxBackoffSeconds"].Value.(time.Duration)
	s.After, _ = words["after"].Value.([]string)
	s.Resume, _ = words["resume"].Value.(bool)
	s.Ready.Timeout, _ = words["ready.timeoutSeconds"].Value.(time.Duration)
	s.Ready.Interval, _ = words["ready.intervalSeconds"].Value.(time.Duration)
	if len(s.Env) == 0 {
		s.Env = nil
	}
	if len(s.After) == 0 {
		s.After = nil
	}
	var checks []string
	for _, check := range []string{"ready.http", "ready.command", "ready.port"} {
		if _, ok := words[check]; ok {
			checks = append(checks, check)
		}
	}
	if len(checks) > 1 {
		return s, Invalid("service %q has two ready checks, %s", Short(name), strings.Join(checks, " and ")).WithRemedy("give one of them")
	}
	switch {
	case slices.Contains(checks, "ready.http"):
		s.Ready.Check, s.Ready.Path = service.CheckHTTP, words["ready.http"].Value.(string)
	case slices.Contains(checks, "ready.command"):
		s.Ready.Check, s.Ready.Command = service.CheckCommand, words["ready.command"].Value.(string)
	case slices.Contains(checks, "ready.port"):
		s.Ready.Check = service.CheckStarted
		if words["ready.port"].Value.(bool) {
			s.Ready.Check = service.CheckPort
		}
	}
	return s.WithDefaults(), nil
}

// ViewService returns a service as ReadService reads it.
func ViewService(s service.Service) Service {
	v := Service{
		Name: s.Name, Command: Command{s.Command, s.Shell}, Port: s.Port, Route: s.Route, Env: s.Env, Cwd: s.Cwd, User: s.User,
		Restart: s.Restart, MaxBackoffSeconds: s.MaxBackoff.Seconds(), After: s.After, Resume: s.Resume,
		Ready: ServiceReady{TimeoutSeconds: s.Ready.Timeout.Seconds(), IntervalSeconds: s.Ready.Interval.Seconds()},
	}
	yes, no := true, false
	switch s.Ready.Check {
	case service.CheckHTTP:
		v.Ready.HTTP = s.Ready.Path
	case service.CheckCommand:
		v.Ready.Command = s.Ready.Command
	case service.CheckPort:
		v.Ready.Port = &yes
	case service.CheckStarted:
		v.Ready.Port = &no
	}
	return v
}
