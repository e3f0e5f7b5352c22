package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Service is a process that starts with a sandbox, and is started again when it
// ends.
type Service struct {
	Name    string // lower-case letters, digits and hyphens
	Command []string
	Shell   string // a line for a shell, in the place of Command

	Port    int    // on which it serves, and which it has in PORT; 0 for none
	Route   string // the path at or below which requests to Port are its; empty for all
	Env     map[string]string
	Cwd     string        // empty: as for commands
	User    string        // empty: as for commands
	Restart RestartPolicy // empty means RestartOnFailure
	// MaxBackoff is the longest wait before it is started again; zero means a minute.
	MaxBackoff time.Duration
	After      []string // services that must be ready before it starts
	// Resume lets requests to it boot a sandbox that was paused without its memory,
	// where auto-resume is on.
	Resume bool
	Ready  ReadyCheck
}

// RestartPolicy says when a service is started again.
type RestartPolicy string

// The policies.
const (
	RestartAlways    RestartPolicy = "always"
	RestartOnFailure RestartPolicy = "on-failure"
	RestartNever     RestartPolicy = "never"
)

// ReadyCheck is how a service shows that it is ready. The zero value is that its
// port takes connections, or, without a port, that its process has run for a second.
type ReadyCheck struct {
	HTTP     string        // a GET of this path on its port is answered with 2xx or 3xx
	Command  string        // this line for a shell succeeds
	Port     *bool         // true: its port takes connections; false: its process has run for a second
	Timeout  time.Duration // after this it is ended, as a failure; zero means 30 seconds
	Interval time.Duration // zero means 0.2 seconds
}

// serviceWire is a Service as the API has it.
type serviceWire struct {
	Name       string            `json:"name"`
	Command    commandWire       `json:"command"`
	Port       int               `json:"port,omitempty"`
	Route      string            `json:"route,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Cwd        string            `json:"cwd,omitempty"`
	User       string            `json:"user,omitempty"`
	Restart    RestartPolicy     `json:"restart,omitempty"`
	MaxBackoff seconds           `json:"maxBackoffSeconds,omitempty"`
	After      []string          `json:"after,omitempty"`
	Resume     bool              `json:"resume,omitempty"`
	Ready      struct {
		HTTP     string  `json:"http,omitempty"`
		Command  string  `json:"command,omitempty"`
		Port     *bool   `json:"port,omitempty"`
		Timeout  seconds `json:"timeoutSeconds,omitempty"`
		Interval seconds `json:"intervalSeconds,omitempty"`
	} `json:"ready,omitzero"`
}

// commandWire is an array, or a line for a shell.
type commandWire struct {
	args []string
	line string
}

// MarshalJSON implements json.Marshaler.
func (c commandWire) MarshalJSON() ([]byte, error) {
	if c.line != "" {
		return json.Marshal(c.line)
	}
	return json.Marshal(append([]string{}, c.args...))
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *commandWire) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte(`"`)) {
		return json.Unmarshal(b, &c.line)
	}
	return json.Unmarshal(b, &c.args)
}

// MarshalJSON implements json.Marshaler, in the form of the API.
func (s Service) MarshalJSON() ([]byte, error) {
	w := serviceWire{
		Name: s.Name, Command: commandWire{s.Command, s.Shell}, Port: s.Port, Route: s.Route, Env: s.Env, Cwd: s.Cwd, User: s.User,
		Restart: s.Restart, MaxBackoff: seconds(s.MaxBackoff), After: s.After, Resume: s.Resume,
	}
	w.Ready.HTTP, w.Ready.Command, w.Ready.Port = s.Ready.HTTP, s.Ready.Command, s.Ready.Port
	w.Ready.Timeout, w.Ready.Interval = seconds(s.Ready.Timeout), seconds(s.Ready.Interval)
	return json.Marshal(w)
}

// UnmarshalJSON implements json.Unmarshaler, of the form of the API.
func (s *Service) UnmarshalJSON(b []byte) error {
	var w serviceWire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*s = Service{
		Name: w.Name, Command: w.Command.args, Shell: w.Command.line, Port: w.Port, Route: w.Route, Env: w.Env, Cwd: w.Cwd, User: w.User,
		Restart: w.Restart, MaxBackoff: time.Duration(w.MaxBackoff), After: w.After, Resume: w.Resume,
		Ready: ReadyCheck{
			HTTP: w.Ready.HTTP, Command: w.Ready.Command, Port: w.Ready.Port,
			Timeout: time.Duration(w.Ready.Timeout), Interval: time.Duration(w.Ready.Interval),
		},
	}
	return nil
}

// ServiceState is how a service is.
type ServiceState string

// The states.
const (
	ServiceWaiting    ServiceState = "waiting"     // for the services that it starts after
	ServiceStarting   ServiceState = "starting"    // its process runs, and is not ready yet
	ServiceReady      ServiceState = "ready"       // it serves
	ServiceBackingOff ServiceState = "backing-off" // it has ended, and is started again in a while
	ServiceDone       ServiceState = "done"        // it has ended with success, and is not started again
	ServiceFailed     ServiceState = "failed"      // it has ended without, and is not started again
	ServiceStopping   ServiceState = "stopping"
)

// ServiceStatus is how a service is. What does not apply is zero.
type ServiceStatus struct {
	State     ServiceState `json:"state"`
	Since     time.Time    `json:"since"`
	PID       int          `json:"pid"`
	Starts    int          `json:"starts"`   // since the sandbox booted
	Failures  int          `json:"failures"` // in a row
	StartedAt time.Time    `json:"startedAt"`
	ReadyAt   time.Time    `json:"readyAt"`
	NextAt    time.Time    `json:"nextAt"`  // when it is started again
	LastEnd   string       `json:"lastEnd"` // what it ended of last
	WaitsFor  string       `json:"waitsFor"`
}

// ServiceInfo is a service of a sandbox and how it is.
type ServiceInfo struct {
	Service Service        `json:"service"`
	Status  *ServiceStatus `json:"status"` // nil while the sandbox sleeps
}

// ServiceLine is a line that a service has written.
type ServiceLine struct {
	Seq  int64     `json:"seq"` // from 1 since the sandbox booted
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// Services are the services of one sandbox.
type Services struct {
	c       *Client
	sandbox string
}

// NewServices returns those of a sandbox.
func NewServices(c *Client, sandbox string) Services { return Services{c, sandbox} }

func (s Services) on(ctx context.Context, method, rest string, in, out any) error {
	return s.c.on(ctx, method, s.sandbox, "/services"+rest, in, out)
}

// List returns all, in the order in which they were given. It wakes nothing.
func (s Services) List(ctx context.Context) ([]ServiceInfo, error) {
	var out struct {
		Services []ServiceInfo `json:"services"`
	}
	if err := s.on(ctx, http.MethodGet, "", nil, &out); err != nil {
		return nil, fmt.Errorf("list the services of sandbox %s: %w", s.sandbox, err)
	}
	return out.Services, nil
}

// Get returns one. ErrNotFound: there is none of that name.
func (s Services) Get(ctx context.Context, name string) (ServiceInfo, error) {
	var out ServiceInfo
	if err := s.on(ctx, http.MethodGet, "/"+url.PathEscape(name), nil, &out); err != nil {
		return ServiceInfo{}, fmt.Errorf("get service %s of sandbox %s: %w", name, s.sandbox, err)
	}
	return out, nil
}

// Set adds a service, or replaces the one of its name. In a sandbox that sleeps it
// starts at the wake.
func (s Services) Set(ctx context.Context, service Service) (ServiceInfo, error) {
	var out ServiceInfo
	if err := s.on(ctx, http.MethodPut, "/"+url.PathEscape(service.Name), service, &out); err != nil {
		return ServiceInfo{}, fmt.Errorf("set service %s of sandbox %s: %w", service.Name, s.sandbox, err)
	}
	return out, nil
}

// SetAll makes a list all services of the sandbox. Those that are as before run on.
func (s Services) SetAll(ctx context.Context, list []Service) ([]ServiceInfo, error) {
	in := struct {
		Services []Service `json:"services"`
	}{append([]Service{}, list...)}
	var out struct {
		Services []ServiceInfo `json:"services"`
	}
	if err := s.on(ctx, http.MethodPut, "", in, &out); err != nil {
		return nil, fmt.Errorf("set the services of sandbox %s: %w", s.sandbox, err)
	}
	return out.Services, nil
}

// Remove ends a service and removes it. ErrNotFound: there is none of that name.
func (s Services) Remove(ctx context.Context, name string) error {
	if err := s.on(ctx, http.MethodDelete, "/"+url.PathEscape(name), nil, nil); err != nil {
		return fmt.Errorf("remove service %s of sandbox %s: %w", name, s.sandbox, err)
	}
	return nil
}

// Restart ends what runs of a service and starts it at once. ErrNotRunning: the
// sandbox sleeps.
func (s Services) Restart(ctx context.Context, name string) (ServiceInfo, error) {
	var out ServiceInfo
	if err := s.on(ctx, http.MethodPost, "/"+url.PathEscape(name)+"/restart", nil, &out); err != nil {
		return ServiceInfo{}, fmt.Errorf("restart service %s of sandbox %s: %w", name, s.sandbox, err)
	}
	return out, nil
}

// Log returns lines that a service has written since the sandbox booted, after the
// one with a number, and of these the last, no more than most; 0 is as many as there
// are. ErrNotRunning: the sandbox sleeps.
func (s Services) Log(ctx context.Context, name string, after int64, most int) ([]ServiceLine, error) {
	query := url.Values{}
	if after > 0 {
		query.Set("after", strconv.FormatInt(after, 10))
	}
	if most > 0 {
		query.Set("lines", strconv.Itoa(most))
	}
	var out struct {
		Lines []ServiceLine `json:"lines"`
	}
	if err := s.c.call(ctx, http.MethodGet, sandboxesPath+"/"+url.PathEscape(s.sandbox)+"/services/"+url.PathEscape(name)+"/log", query, nil, &out); err != nil {
		return nil, fmt.Errorf("read the log of service %s of sandbox %s: %w", name, s.sandbox, err)
	}
	return out.Lines, nil
}
