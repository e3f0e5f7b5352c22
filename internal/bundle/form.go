package bundle

import (
	"encoding/json"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/service"
	"github.com/drowse-dev/drowse/internal/store"
)

// These types are the manifest as it is written, in format 9. Format 8 has neither the
// name nor the built template in it, whole CPUs, and a boolean as refreshOnActivity; format 7
// has no proxy in it, format 6 no entrances in it, format 5 no services in it, format 4 no
// secrets in it, format 3 not the user and the working directory in it, format 2 not the image either,
// and in format 1 the digests of layers are of something else. They are apart from
// those that the server works with, so that a field that is added there is in no
// export by accident. Another field here is another format: older programs refuse a
// manifest with a field that they do not know. The files in testdata hold what
// was ever written.
type manifestForm struct {
	Format     int          `json:"format"`
	Kind       string       `json:"kind"`
	ExportedAt time.Time    `json:"exportedAt"`
	ID         string       `json:"id"`
	Generation int64        `json:"generation"`
	CreatedAt  time.Time    `json:"createdAt"`
	Settings   settingsForm `json:"settings"`
	Config     configForm   `json:"config"`
	Mode       string       `json:"mode"`
	Needs      needsForm    `json:"needs"`
	AgentToken string       `json:"agentToken,omitempty"`
	Layers     []layerForm  `json:"layers"`
	Image      *imageForm   `json:"image,omitempty"`
}

type settingsForm struct {
	Timeout            time.Duration     `json:"timeout"`
	OnTimeout          string            `json:"onTimeout"`
	IdleTimeout        time.Duration     `json:"idleTimeout,omitempty"`
	OnIdle             string            `json:"onIdle,omitempty"`
	MaxLifetime        time.Duration     `json:"maxLifetime,omitempty"`
	PausedRetention    time.Duration     `json:"pausedRetention,omitempty"`
	RefreshOnActivity  lifecycle.Refresh `json:"refreshOnActivity,omitempty"`
	AutoResume         bool              `json:"autoResume"`
	PauseMode          string            `json:"pauseMode,omitempty"`
	FilesystemFallback bool              `json:"filesystemFallback,omitempty"`
	StallAfter         time.Duration     `json:"stallAfter,omitempty"`
	CheckpointEvery    time.Duration     `json:"checkpointEvery,omitempty"`
}

type configForm struct {
	Template      string            `json:"template"`
	Alias         string            `json:"alias,omitempty"`
	Built         builtForm         `json:"built,omitzero"`  // since format 9
	Name          string            `json:"name,omitempty"`  // since format 9
	Image         string            `json:"image,omitempty"` // the digest that pins it; since format 3
	Key           string            `json:"key,omitempty"`   // of early exports; it means nothing elsewhere
	Metadata      map[string]string `json:"metadata,omitempty"`
	Env           map[string]string `json:"env,omitempty"`
	Secure        bool              `json:"secure"`
	PrivatePorts  bool              `json:"privatePorts,omitempty"`
	HostMask      string            `json:"hostMask,omitempty"`
	HTTPSPorts    []int             `json:"httpsPorts,omitempty"`
	AllowInternet *bool             `json:"allowInternet,omitempty"`
	AllowOut      []string          `json:"allowOut,omitempty"`
	DenyOut       []string          `json:"denyOut,omitempty"`
	Network       json.RawMessage   `json:"network,omitempty"`
	Limits        limitsForm        `json:"limits"`
	Ports         map[string]string `json:"ports,omitempty"`
	Hooks         hooksForm         `json:"hooks"`
	User          string            `json:"user,omitempty"`     // since format 4
	Workdir       string            `json:"workdir,omitempty"`  // since format 4
	Previews      json.RawMessage   `json:"previews,omitempty"` // of early exports; they mean nothing elsewhere
	Volumes       []mountForm       `json:"volumes,omitempty"`
	Secrets       []secretForm      `json:"secrets,omitempty"`   // since format 5
	Authority     string            `json:"authority,omitempty"` // since format 5
	Services      []serviceForm     `json:"services,omitempty"`  // since format 6
	Entrances     []entranceForm    `json:"entrances,omitempty"` // since format 7
	Proxy         *proxyForm        `json:"proxy,omitempty"`     // since format 8
	FromServer    []string          `json:"fromServer,omitempty"`
}

// builtForm is the template that was built of which the sandbox was made. Its files are
// among the layers.
type builtForm struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// proxyForm is a proxy without its password, which is in no export.
type proxyForm struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
	Password bool   `json:"password,omitempty"` // there was one
}

func formOfProxy(p *store.Proxy) *proxyForm {
	if p == nil {
		return nil
	}
	return &proxyForm{p.Address, p.Username, p.Lost || p.Sealed != ""}
}

func (f *proxyForm) proxy() *store.Proxy {
	if f == nil {
		return nil
	}
	return &store.Proxy{Address: f.Address, Username: f.Username, Lost: f.Password}
}

type limitsForm struct {
	CPUs      float64 `json:"cpus"`
	MemoryMiB int     `json:"memoryMiB"`
	DiskMiB   int     `json:"diskMiB"`
	PIDs      int     `json:"pids"`
}

type hooksForm struct {
	PrePause   hookForm `json:"prePause,omitzero"`
	PostResume hookForm `json:"postResume,omitzero"`
	PreKill    hookForm `json:"preKill,omitzero"`
}

type hookForm struct {
	Command string        `json:"command"`
	Budget  time.Duration `json:"budget"`
}

// secretForm is the name of a secret, and what programs inside have in its place.
// The value is in no export.
type secretForm struct {
	Name        string `json:"name"`
	Env         string `json:"env"`
	Placeholder string `json:"placeholder"`
}

type mountForm struct {
	Volume string `json:"volume"`
	Name   string `json:"name"`
	Path   string `json:"path"`
}

type serviceForm struct {
	Name       string            `json:"name"`
	Command    []string          `json:"command,omitempty"`
	Shell      string            `json:"shell,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Cwd        string            `json:"cwd,omitempty"`
	User       string            `json:"user,omitempty"`
	Port       int               `json:"port,omitempty"`
	Route      string            `json:"route,omitempty"`
	Resume     bool              `json:"resume,omitempty"`
	Restart    string            `json:"restart"`
	MaxBackoff time.Duration     `json:"maxBackoff"`
	After      []string          `json:"after,omitempty"`
	Ready      readyForm         `json:"ready"`
}

type readyForm struct {
	Check    string        `json:"check"`
	Path     string        `json:"path,omitempty"`
	Command  string        `json:"command,omitempty"`
	Timeout  time.Duration `json:"timeout"`
	Interval time.Duration `json:"interval"`
}

type entranceForm struct {
	Name    string      `json:"name"`
	Title   string      `json:"title,omitempty"`
	Port    int         `json:"port"`
	Runtime string      `json:"runtime"`
	Public  bool        `json:"public,omitempty"`
	Routes  []routeForm `json:"routes,omitempty"`
	Health  string      `json:"health,omitempty"`
}

type routeForm struct {
	ID      string    `json:"id"`
	Path    string    `json:"path"`
	Methods []string  `json:"methods,omitempty"`
	Guard   guardForm `json:"guard,omitzero"`
	Resume  bool      `json:"resume,omitempty"`
}

type guardForm struct {
	Header string `json:"header,omitempty"`
	Bearer bool   `json:"bearer,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

func formOfEntrance(e service.Entrance) entranceForm {
	return entranceForm{e.Name, e.Title, e.Port, string(e.Runtime), e.Public, each(e.Routes, func(r service.Route) routeForm {
		return routeForm{r.ID, r.Path, r.Methods, guardForm(r.Guard), r.Resume}
	}), e.Health}
}

func (f entranceForm) entrance() service.Entrance {
	return service.Entrance{Name: f.Name, Title: f.Title, Port: f.Port, Runtime: service.Runtime(f.Runtime), Public: f.Public, Health: f.Health,
		Routes: each(f.Routes, func(r routeForm) service.Route {
			return service.Route{ID: r.ID, Path: r.Path, Methods: r.Methods, Guard: service.Guard(r.Guard), Resume: r.Resume}
		})}
}

func formOfService(s service.Service) serviceForm {
	return serviceForm{
		Name: s.Name, Command: s.Command, Shell: s.Shell, Env: s.Env, Cwd: s.Cwd, User: s.User, Port: s.Port, Route: s.Route, Resume: s.Resume,
		Restart: string(s.Restart), MaxBackoff: s.MaxBackoff, After: s.After,
		Ready: readyForm{string(s.Ready.Check), s.Ready.Path, s.Ready.Command, s.Ready.Timeout, s.Ready.Interval},
	}
}

func (f serviceForm) service() service.Service {
	return service.Service{
		Name: f.Name, Command: f.Command, Shell: f.Shell, Env: f.Env, Cwd: f.Cwd, User: f.User, Port: f.Port, Route: f.Route, Resume: f.Resume,
		Restart: service.Restart(f.Restart), MaxBackoff: f.MaxBackoff, After: f.After,
		Ready: service.Ready{Check: service.Check(f.Ready.Check), Path: f.Ready.Path, Command: f.Ready.Command, Timeout: f.Ready.Timeout, Interval: f.Ready.Interval},
	}
}

type needsForm struct {
	Template     string   `json:"template"`
	Architecture string   `json:"architecture,omitempty"`
	Runtime      string   `json:"runtime,omitempty"`
	CPU          []string `json:"cpu,omitempty"`
	System       string   `json:"system,omitempty"`
}

type layerForm struct {
	Digest  string `json:"digest"`
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

type imageForm struct {
	Files []fileForm `json:"files"`
}

type fileForm struct {
	Name   string   `json:"name"`
	Size   int64    `json:"size"`
	CRC32C []uint32 `json:"crc32c"`
}

// MarshalJSON implements json.Marshaler.
func (m Manifest) MarshalJSON() ([]byte, error) {
	form := manifestForm{
		Format: m.Format, Kind: m.Kind, ExportedAt: m.ExportedAt, ID: m.ID, Generation: m.Generation, CreatedAt: m.CreatedAt,
		Settings: formOfSettings(m.Settings), Config: formOfConfig(m.Config),
		Mode: string(m.Mode), Needs: needsForm(m.Needs), AgentToken: m.AgentToken, Layers: each(m.Layers, func(l Layer) layerForm { return layerForm(l) }),
	}
	if m.Image != nil {
		form.Image = &imageForm{each(m.Image.Files, func(f layer.File) fileForm { return fileForm(f) })}
	}
	return json.Marshal(form)
}

// manifest returns what the form says.
func (f manifestForm) manifest() Manifest {
	m := Manifest{
		Format: f.Format, Kind: f.Kind, ExportedAt: f.ExportedAt, ID: f.ID, Generation: f.Generation, CreatedAt: f.CreatedAt,
		Settings: f.Settings.settings(), Config: f.Config.config(),
		Mode: lifecycle.Mode(f.Mode), Needs: Needs(f.Needs), AgentToken: f.AgentToken, Layers: each(f.Layers, func(l layerForm) Layer { return Layer(l) }),
	}
	m.Settings.Serves = service.Resumes(m.Config.Services)
	if f.Image != nil {
		m.Image = &Image{each(f.Image.Files, func(x fileForm) layer.File { return layer.File(x) })}
	}
	return m
}

func formOfSettings(s lifecycle.Settings) settingsForm {
	return settingsForm{
		Timeout: s.Timeout, OnTimeout: string(s.OnTimeout), IdleTimeout: s.IdleTimeout, OnIdle: string(s.OnIdle),
		MaxLifetime: s.MaxLifetime, PausedRetention: s.PausedRetention, RefreshOnActivity: s.RefreshOnActivity, AutoResume: s.AutoResume,
		PauseMode: string(s.PauseMode), FilesystemFallback: s.FilesystemFallback, StallAfter: s.StallAfter, CheckpointEvery: s.CheckpointEvery,
	}
}

func (f settingsForm) settings() lifecycle.Settings {
	return lifecycle.Settings{
		Timeout: f.Timeout, OnTimeout: lifecycle.Action(f.OnTimeout), IdleTimeout: f.IdleTimeout, OnIdle: lifecycle.Action(f.OnIdle),
		MaxLifetime: f.MaxLifetime, PausedRetention: f.PausedRetention, RefreshOnActivity: f.RefreshOnActivity, AutoResume: f.AutoResume,
		PauseMode: lifecycle.Mode(f.PauseMode), FilesystemFallback: f.FilesystemFallback, StallAfter: f.StallAfter, CheckpointEvery: f.CheckpointEvery,
	}
}

// formOfConfig leaves out what means nothing to another server: the API key, the
// preview links, the idempotency key of the create, the build that it is for, and
// whether it may use the secrets.
func formOfConfig(c store.Config) configForm {
	f := configForm{
		Template: c.Template, Alias: c.Alias, Built: builtForm(c.Built), Name: c.Name, Image: c.Image, Metadata: c.Metadata, Env: c.Env, Secure: c.Secure, PrivatePorts: c.PrivatePorts,
		HostMask: c.HostMask, HTTPSPorts: c.HTTPSPorts, AllowInternet: c.AllowInternet, AllowOut: c.AllowOut, DenyOut: c.DenyOut, Network: c.Network,
		Limits: limitsForm(c.Limits), Hooks: hooksForm{hookForm(c.Hooks.PrePause), hookForm(c.Hooks.PostResume), hookForm(c.Hooks.PreKill)},
		User: c.User, Workdir: c.Workdir, Volumes: each(c.Volumes, func(m store.VolumeMount) mountForm { return mountForm(m) }),
		Secrets: each(c.Secrets, func(u store.SecretUse) secretForm { return secretForm{u.Name, u.Env, u.Placeholder} }), Authority: c.Authority, FromServer: c.FromServer,
		Services: each(c.Services, formOfService), Entrances: each(c.Entrances, formOfEntrance), Proxy: formOfProxy(c.Proxy),
	}
	for port, policy := range c.Ports {
		if f.Ports == nil {
			f.Ports = map[string]string{}
		}
		f.Ports[port] = string(policy)
	}
	return f
}

func (f configForm) config() store.Config {
	c := store.Config{
		Template: f.Template, Alias: f.Alias, Built: store.Built(f.Built), Name: f.Name, Image: f.Image, Metadata: f.Metadata, Env: f.Env, Secure: f.Secure, PrivatePorts: f.PrivatePorts,
		HostMask: f.HostMask, HTTPSPorts: f.HTTPSPorts, AllowInternet: f.AllowInternet, AllowOut: f.AllowOut, DenyOut: f.DenyOut, Network: f.Network,
		Limits: store.Limits(f.Limits), Hooks: store.Hooks{PrePause: store.Hook(f.Hooks.PrePause), PostResume: store.Hook(f.Hooks.PostResume), PreKill: store.Hook(f.Hooks.PreKill)},
		User: f.User, Workdir: f.Workdir, Volumes: each(f.Volumes, func(m mountForm) store.VolumeMount { return store.VolumeMount(m) }),
		Secrets: each(f.Secrets, func(u secretForm) store.SecretUse {
			return store.SecretUse{Name: u.Name, Env: u.Env, Placeholder: u.Placeholder}
		}), Authority: f.Authority, FromServer: f.FromServer,
		Services: each(f.Services, serviceForm.service), Entrances: each(f.Entrances, entranceForm.entrance), Proxy: f.Proxy.proxy(),
	}
	for port, policy := range f.Ports {
		if c.Ports == nil {
			c.Ports = store.Ports{}
		}
		c.Ports[port] = lifecycle.WakePolicy(policy)
	}
	return c
}

// each converts a list; nil stays nil.
func each[A, B any](list []A, convert func(A) B) []B {
	if list == nil {
		return nil
	}
	out := make([]B, 0, len(list))
	for _, x := range list {
		out = append(out, convert(x))
	}
	return out
}
