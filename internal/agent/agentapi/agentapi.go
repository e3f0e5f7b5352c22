// Package agentapi is what the agent inside a sandbox and the host outside
// agree on: the port, the names of headers and variables, the body of /init,
// and the signature of file URLs. It imports nothing heavy and does no I/O, so
// either side can link it for the price of its constants.
package agentapi

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client/agentpb"
	"github.com/drowse-dev/drowse/internal/service"
)

const (
	// What every client knows too.
	Port              = agentpb.Port
	CodePort          = agentpb.CodePort
	PathCode          = agentpb.PathCode
	HeaderAccessToken = agentpb.HeaderAccessToken // on every request other than POST /init
	HeaderKeepalive   = agentpb.HeaderKeepalive
	HeaderHangUp      = agentpb.HeaderHangUp
	HeaderTerminals   = agentpb.HeaderTerminals
	HeaderMissed      = agentpb.HeaderMissed

	HeaderStart        = agentpb.HeaderStart
	StartNotFound      = agentpb.StartNotFound
	StartNotExecutable = agentpb.StartNotExecutable

	// Version is the envd version whose behaviour the agent has; SDKs switch
	// features on by comparing it. Semver without suffix.
	Version = "0.6.13"

	// HeaderInit carries the secret by which the agent knows the host: that of
	// the first POST /init, before which nobody else can reach the agent.
	HeaderInit = "X-Drowse-Init"

	// HeaderTimeout is the Connect protocol's timeout in milliseconds.
	HeaderTimeout = "Connect-Timeout-Ms"

	// HeaderMetadataPrefix begins the headers that set a file's metadata.
	HeaderMetadataPrefix = "X-Metadata-"

	// HostnameFile and MachineIDFile are beside it: what /etc/hostname and
	// /etc/machine-id lead to.
	HostnameFile, MachineIDFile = "/run/drowse/hostname", "/run/drowse/machine-id"

	// NameProgram is the name under which the agent's program sets the host name.
	NameProgram = "drowse-name"

	// Program is the agent's program in every sandbox. With SFTPProgram as its
	// argument it serves files over its input and output; with ConnectProgram and
	// an address it carries them to and from that, and says Connected in a line of
	// its own first.
	Program                     = "/usr/lib/drowse/agent"
	SFTPProgram, ConnectProgram = "sftp", "connect"
	Connected                   = "connected"

	// GenerationFile holds, inside the sandbox, the generation last announced
	// through /init in decimal.
	GenerationFile = "/run/drowse/generation"

	// InstanceFile is beside it and holds a text that differs after every start:
	// each create, each wake, each child of a fork. A generation cannot tell a
	// child from its source, because both may be in their first.
	InstanceFile = "/run/drowse/instance"

	// KernelDir is where the agent writes the programs of the code
	// interpreter's kernels before it starts the first.
	KernelDir = "/run/drowse/kernels"
)

// The operations a file signature can be for.
const (
	OperationRead  = "read"
	OperationWrite = "write"
)

// InitRequest is the body of POST /init, sent by the host after every start
// and every restore. An absent field leaves the agent's value as it is.
type InitRequest struct {
	// EnvVars replaces the whole set of global variables; an empty map that is
	// present clears it.
	EnvVars map[string]string `json:"envVars,omitzero"`

	// AccessToken replaces the token; the empty string opens the agent to
	// requests without one.
	AccessToken *string `json:"accessToken,omitempty"`

	// Timestamp is the host's time, for a clock that did not move while the
	// sandbox slept.
	Timestamp time.Time `json:"timestamp,omitzero"`

	DefaultUser    string `json:"defaultUser,omitempty"`
	DefaultWorkdir string `json:"defaultWorkdir,omitempty"`

	// SandboxID and TemplateID become E2B_SANDBOX_ID and E2B_TEMPLATE_ID. The
	// first request's SandboxID becomes the host name, too.
	SandboxID  string `json:"sandboxID,omitempty"`
	TemplateID string `json:"templateID,omitempty"`

	// Generation counts the incarnations of the sandbox. It is what a program
	// inside compares to learn that the sandbox slept.
	Generation *int64 `json:"generation,omitempty"`

	// Instance is a new random text for every start. It is what a program inside
	// compares to learn that it is a restored copy, of whatever sandbox.
	Instance string `json:"instance,omitempty"`

	// Copied says that the memory is a copy: another sandbox, or this one, may have
	// gone on from it as well. The kernels of the code interpreter draw other random
	// numbers then. After a plain wake they go on.
	Copied bool `json:"copied,omitempty"`

	// Authority is the certificate, in PEM, of the authority that programs inside
	// are to trust; empty for none.
	Authority string `json:"authority,omitempty"`

	// HostSecret replaces the secret by which the agent knows the host: after
	// a restore in another place, which has one of its own.
	HostSecret string `json:"hostSecret,omitempty"`

	// Services are all that are to run, an empty list included. What runs already
	// as it is in the list goes on.
	Services []service.Service `json:"services,omitzero"`
}

// Sign returns the signature of a file URL. Path and user are the values of
// the query, unresolved, and empty when absent; expiration is in Unix seconds,
// nil for none.
//
// It is E2B's scheme: a plain hash over fields joined by colons. The agent
// refuses user names with a colon, which would make the join ambiguous.
func Sign(path, operation, user, token string, expiration *int64) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != nil {
		text += ":" + strconv.FormatInt(*expiration, 10)
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// BadVariable says what keeps an environment from being given to a process,
// or returns "".
func BadVariable(env map[string]string) string {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return "a name that no variable can have: " + strconv.Quote(name)
		}
		if strings.Contains(value, "\x00") {
			return "a NUL character in the value of " + strconv.Quote(name)
		}
	}
	return ""
}
