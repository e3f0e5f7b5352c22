package e2b

import (
	"encoding/json"
	"regexp"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// network is the network object of create. All of ingress is built; what would
// shape egress is refused, because a sandbox that believes itself filtered, or
// let out, and is not would be worse than none.
type network struct {
	AllowPublicTraffic *bool                      `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string                   `json:"allowOut,omitempty"`
	DenyOut            []string                   `json:"denyOut,omitempty"`
	EgressProxy        json.RawMessage            `json:"egressProxy,omitempty"`
	MaskRequestHost    string                     `json:"maskRequestHost,omitempty"`
	Rules              map[string]json.RawMessage `json:"rules,omitempty"`
	HTTPSPorts         []int                      `json:"httpsPorts,omitempty"`
}

// refuseUnsupported names the first field that says something and cannot be
// honoured. Empty lists and null say nothing.
func (n *network) refuseUnsupported() error {
	switch {
	case n == nil:
		return nil
	case len(n.AllowOut) > 0:
		return unsupportedField("network.allowOut")
	case len(n.DenyOut) > 0:
		return unsupportedField("network.denyOut")
	case given(n.EgressProxy):
		return unsupportedField("network.egressProxy")
	case len(n.Rules) > 0:
		return unsupportedField("network.rules")
	}
	return nil
}

// maxHTTPSPorts and maxHostMask bound what E2B's service accepts, too.
const (
	maxHTTPSPorts = 128
	maxHostMask   = 255
)

// hostMaskForm is a host and perhaps a port, in which ${PORT} can stand.
var hostMaskForm = regexp.MustCompile(`^(\$\{PORT\}|[A-Za-z0-9._\-])+(:(\$\{PORT\}|[0-9]{1,5}))?$`)

// check refuses what makes no sense.
func (n *network) check(secure bool) error {
	switch {
	case n == nil:
		return nil
	case n.private() && !secure:
		return badRequest(`"network.allowPublicTraffic": false needs "secure": true`)
	case n.MaskRequestHost != "" && (len(n.MaskRequestHost) > maxHostMask || !hostMaskForm.MatchString(n.MaskRequestHost)):
		return badRequest(`"network.maskRequestHost" must be a host, with or without a port, in which ${PORT} stands for the port asked for`)
	case len(n.HTTPSPorts) > maxHTTPSPorts:
		return badRequest(`"network.httpsPorts" has %d entries; %d are allowed`, len(n.HTTPSPorts), maxHTTPSPorts)
	}
	for _, port := range n.HTTPSPorts {
		if port < 1 || port > 65535 || port == agentapi.Port {
			return badRequest(`"network.httpsPorts": %d is not a port of yours`, port)
		}
	}
	return nil
}

// private reports whether user ports need the traffic token.
func (n *network) private() bool {
	return n != nil && n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic
}

// record returns the object to store and to give back: what was asked, without
// nulls, which clients do not parse.
func (n *network) record() json.RawMessage {
	if n == nil {
		return nil
	}
	said := network{AllowPublicTraffic: n.AllowPublicTraffic, MaskRequestHost: n.MaskRequestHost, HTTPSPorts: n.HTTPSPorts}
	if said.AllowPublicTraffic == nil && said.MaskRequestHost == "" && len(said.HTTPSPorts) == 0 {
		return nil
	}
	raw, err := json.Marshal(said)
	if err != nil {
		panic("internal error: e2b: encode network: " + err.Error())
	}
	return raw
}
