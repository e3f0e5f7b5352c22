package store

import (
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/service"
)

// Boots reports whether a request to a port boots the sandbox when it sleeps
// without its memory: one to a service that wants so, and, where there is such a
// service, one for files, commands or code.
func (c Config) Boots(port int, path string) bool {
	if !service.Resumes(c.Services) {
		return false
	}
	if port == agentapi.Port || port == agentapi.CodePort {
		return true
	}
	if s := service.Serving(c.Services, port, path); s == nil || !s.Resume {
		return false
	}
	e := service.EntranceTo(c.Entrances, port)
	return e == nil || len(e.Routes) == 0 || e.Boots(path)
}
