package e2b

import (
	"encoding/json"
	"net/http"
	"regexp"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// network is the network object of create. What is not built is refused, because
// a sandbox that believes itself filtered, or let out, and is not would be worse
// than none.
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

// rules returns what it may and may not reach outside.
func (n *network) rules() (allowOut, denyOut []string) {
	if n == nil {
		return nil, nil
	}
	return orNone(n.AllowOut), orNone(n.DenyOut)
}

// orNone makes the empty list the absent one.
func orNone(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}

// networkBody is the body of a change of what a running sandbox reaches outside.
// What it does not say is as if it had never been said.
type networkBody struct {
	AllowInternetAccess *bool                      `json:"allow_internet_access"`
	AllowOut            []string                   `json:"allowOut"`
	DenyOut             []string                   `json:"denyOut"`
	EgressProxy         json.RawMessage            `json:"egressProxy"`
	Rules               map[string]json.RawMessage `json:"rules"`
}

// setNetwork replaces what a running sandbox reaches outside.
func (s *server) setNetwork(c *call) (reply, error) {
	var body networkBody
	if err := c.decode(&body); err != nil {
		return reply{}, err
	}
	asked := network{EgressProxy: body.EgressProxy, Rules: body.Rules}
	if err := asked.refuseUnsupported(); err != nil {
		return reply{}, s.ifKnown(c, err)
	}
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	if state, _ := shown(sb.Record); state != stateRunning {
		return reply{}, fail(http.StatusNotFound, codeNotRunning, "the sandbox is %s; this needs a running one", state)
	}
	internet := body.AllowInternetAccess == nil || *body.AllowInternetAccess
	_, err = s.Sandboxes.Patch(c.r.Context(), c.sandbox, supervisor.Patch{
		AllowInternet: &internet,
		AllowOut:      append([]string{}, body.AllowOut...),
		DenyOut:       append([]string{}, body.DenyOut...),
	}, c.actor)
	return noContent, err
}

// networkView returns the network object of a sandbox as clients know it.
func networkView(cfg store.Config) json.RawMessage {
	if len(cfg.AllowOut) == 0 && len(cfg.DenyOut) == 0 {
		return cfg.Network
	}
	var n network
	if cfg.Network != nil {
		if err := json.Unmarshal(cfg.Network, &n); err != nil {
			panic("internal error: e2b: decode network: " + err.Error())
		}
	}
	n.AllowOut, n.DenyOut = cfg.AllowOut, cfg.DenyOut
	return encodeNetwork(n)
}

// record returns the object to store and to give back: what was asked, without
// nulls, which clients do not parse, and without the rules, which can change.
func (n *network) record() json.RawMessage {
	if n == nil {
		return nil
	}
	said := network{AllowPublicTraffic: n.AllowPublicTraffic, MaskRequestHost: n.MaskRequestHost, HTTPSPorts: n.HTTPSPorts}
	if said.AllowPublicTraffic == nil && said.MaskRequestHost == "" && len(said.HTTPSPorts) == 0 {
		return nil
	}
	return encodeNetwork(said)
}

func encodeNetwork(n network) json.RawMessage {
	raw, err := json.Marshal(n)
	if err != nil {
		panic("internal error: e2b: encode network: " + err.Error())
	}
	return raw
}
