package agent

import (
	"maps"
	"sync"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// settings is what the host told the agent through /init.
type settings struct {
	mu         sync.RWMutex
	envVars    map[string]string
	identity   map[string]string
	token      string
	user       string
	workingDir string
}

func newSettings() *settings {
	return &settings{identity: map[string]string{"E2B_SANDBOX": "true"}}
}

// env returns the global variables, the client's over the sandbox's own.
func (s *settings) env() map[string]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	env := maps.Clone(s.identity)
	maps.Copy(env, s.envVars)
	return env
}

// vars returns the client's variables alone.
func (s *settings) vars() map[string]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.envVars)
}

func (s *settings) accessToken() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.token
}

func (s *settings) defaultUser() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.user
}

func (s *settings) workdir() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.workingDir
}

// apply takes over what the request names, all of it at once.
func (s *settings) apply(req *agentapi.InitRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.EnvVars != nil {
		s.envVars = req.EnvVars
	}
	if req.AccessToken != nil {
		s.token = *req.AccessToken
	}
	if req.DefaultUser != "" {
		s.user = req.DefaultUser
	}
	if req.DefaultWorkdir != "" {
		s.workingDir = req.DefaultWorkdir
	}
	s.identify(req.SandboxID, req.TemplateID)
	if req.Authority != "" {
		maps.Copy(s.identity, agentapi.Trust())
	}
}

// identify is called with mu held.
func (s *settings) identify(sandbox, template string) {
	if sandbox != "" {
		s.identity["E2B_SANDBOX_ID"] = sandbox
	}
	if template != "" {
		s.identity["E2B_TEMPLATE_ID"] = template
	}
}
