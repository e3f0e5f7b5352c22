package e2b

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// newSandbox is the body of create. An optional field that is null is absent.
type newSandbox struct {
	TemplateID      string      `json:"templateID"`
	Timeout         *int32      `json:"timeout"`
	AutoPause       *bool       `json:"autoPause"`
	AutoPauseMemory *bool       `json:"autoPauseMemory"`
	AutoResume      *autoResume `json:"autoResume"`
	Secure          bool        `json:"secure"` // v1 only: v2 sandboxes always are

	AllowInternetAccess *bool           `json:"allow_internet_access"` // snake case here, camel case in answers
	Network             *network        `json:"network"`
	Metadata            json.RawMessage `json:"metadata"`
	EnvVars             json.RawMessage `json:"envVars"`
	MCP                 json.RawMessage `json:"mcp"`
	IAM                 json.RawMessage `json:"iam"`
	VolumeMounts        []volumeMount   `json:"volumeMounts"`
}

type autoResume struct {
	Enabled *bool `json:"enabled"`
}

// newSandbox reads the body of create.
func (c *call) newSandbox() (body newSandbox, err error) {
	data, err := c.requiredBody()
	if err != nil {
		return body, err
	}
	if err := decodeObject(data, &body); err != nil {
		return body, err
	}
	return body, refuseForeign(data)
}

func (s *server) createV1(c *call) (reply, error) {
	body, err := c.newSandbox()
	if err != nil {
		return reply{}, err
	}
	return s.create(c, body, defaultTimeoutV1)
}

func (s *server) createV2(c *call) (reply, error) {
	body, err := c.newSandbox()
	if err != nil {
		return reply{}, err
	}
	body.Secure = true
	return s.create(c, body, s.DefaultTimeout)
}

func (s *server) create(c *call, body newSandbox, defaultTimeout int32) (reply, error) {
	req, err := s.createRequest(body, defaultTimeout)
	if err != nil {
		return reply{}, err
	}
	if len(req.Config.Volumes) > 0 {
		if err := auth.Require(c.key, auth.Share); err != nil {
			return reply{}, err
		}
	}
	req.Actor, req.Config.Key = c.actor, c.key.ID
	sb, err := s.Sandboxes.Create(c.r.Context(), req)
	if e, ok := errors.AsType[*errdef.Error](err); ok && e.Code == codeTemplateNotFound {
		return reply{}, fail(http.StatusNotFound, e.Code, "template '%s' not found", body.TemplateID)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusCreated, body: s.sandboxView(sb)}, nil
}

// createRequest judges the body and translates it.
func (s *server) createRequest(body newSandbox, defaultTimeout int32) (supervisor.CreateRequest, error) {
	var req supervisor.CreateRequest
	var err error
	if req.Template, err = parseTemplate(body.TemplateID); err != nil {
		return req, err
	}
	timeout, err := s.positiveTimeout(orDefault(body.Timeout, defaultTimeout))
	if err != nil {
		return req, err
	}
	if err := body.refuseUnsupported(); err != nil {
		return req, err
	}
	if req.Settings, err = body.lifecycle(); err != nil {
		return req, err
	}
	req.Settings.Timeout = timeout
	req.Config, err = body.config()
	return req, err
}

// refuseUnsupported names the first field that would change what the sandbox
// is and that this server cannot honour.
func (b newSandbox) refuseUnsupported() error {
	switch {
	case given(b.IAM):
		return unsupportedField("iam")
	case given(b.MCP):
		return unsupportedField("mcp")
	}
	return b.Network.refuseUnsupported()
}

func unsupportedField(name string) error {
	return fail(http.StatusBadRequest, codeNotSupported, "%q is not supported by this server yet: leave it out", name)
}

// lifecycle returns what expiry does, what a pause then keeps and whether
// traffic wakes the sandbox.
func (b newSandbox) lifecycle() (lifecycle.Settings, error) {
	set := lifecycle.Settings{OnTimeout: b.onTimeout()}
	var err error
	if set.AutoResume, err = b.AutoResume.enabled(); err != nil {
		return set, err
	}
	if set.PauseMode, err = b.pauseMode(set.AutoResume); err != nil {
		return set, err
	}
	if set.AutoResume && set.OnTimeout != lifecycle.Pause {
		return set, badRequest(`"autoResume" needs "autoPause": true: a sandbox that is killed at its timeout cannot be woken`)
	}
	return set, nil
}

func (a *autoResume) enabled() (bool, error) {
	if a == nil {
		return false, nil
	}
	if a.Enabled == nil {
		return false, badRequest(`"autoResume.enabled" is required`)
	}
	return *a.Enabled, nil
}

// pauseMode returns what automatic pauses keep; empty is the server's default.
func (b newSandbox) pauseMode(resume bool) (lifecycle.Mode, error) {
	switch {
	case b.AutoPauseMemory == nil || *b.AutoPauseMemory:
		return "", nil
	case b.onTimeout() != lifecycle.Pause:
		return "", badRequest(`"autoPauseMemory": false needs "autoPause": true`)
	case resume:
		return "", badRequest(`"autoPauseMemory": false cannot be combined with "autoResume": traffic does not wake a sandbox without memory`)
	}
	return lifecycle.Filesystem, nil
}

// onTimeout is empty where the body does not say: the server's choice applies.
func (b newSandbox) onTimeout() lifecycle.Action {
	switch {
	case b.AutoPause == nil:
		return ""
	case *b.AutoPause:
		return lifecycle.Pause
	default:
		return lifecycle.Kill
	}
}

// config translates what does not concern the lifecycle.
func (b newSandbox) config() (store.Config, error) {
	metadata, err := stringMap("metadata", b.Metadata)
	if err != nil {
		return store.Config{}, err
	}
	env, err := environment(b.EnvVars)
	if err != nil {
		return store.Config{}, err
	}
	if err := b.Network.check(b.Secure); err != nil {
		return store.Config{}, err
	}
	cfg := store.Config{
		Metadata:      metadata,
		Env:           env,
		Secure:        b.Secure,
		PrivatePorts:  b.Network.private(),
		AllowInternet: b.AllowInternetAccess,
		Network:       b.Network.record(),
		Volumes:       b.volumes(),
	}
	cfg.AllowOut, cfg.DenyOut = b.Network.rules()
	if b.Network != nil {
		cfg.HostMask, cfg.HTTPSPorts = b.Network.MaskRequestHost, b.Network.HTTPSPorts
	}
	return cfg, nil
}

// environment decodes variables and refuses what no process can be given.
func environment(raw json.RawMessage) (map[string]string, error) {
	env, err := stringMap("envVars", raw)
	if err != nil {
		return nil, err
	}
	if bad := httpapi.BadVariable(env); bad != "" {
		return nil, badRequest(`"envVars" has %s`, bad)
	}
	return env, nil
}
