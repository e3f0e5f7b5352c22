package agentclient

import (
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// logAnswer is agentapi.Log as a hostile agent may send it: with no more in it
// than a true one has.
type logAnswer struct {
	Lines [agentapi.MaxLogLines]*agentapi.LogLine `json:"lines"`
}
