package e2b

import "encoding/json"

// network is the network object of create. Only ingress is built: what would
// shape egress is refused, because a sandbox that believes itself filtered, or
// let out, and is not would be worse than none.
type network struct {
	AllowPublicTraffic *bool                      `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string                   `json:"allowOut,omitempty"`
	DenyOut            []string                   `json:"denyOut,omitempty"`
	EgressProxy        json.RawMessage            `json:"egressProxy,omitempty"`
	MaskRequestHost    string                     `json:"maskRequestHost,omitempty"`
	Rules              map[string]json.RawMessage `json:"rules,omitempty"`
	HTTPSPorts         []int32                    `json:"httpsPorts,omitempty"`
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
	case n.MaskRequestHost != "":
		return unsupportedField("network.maskRequestHost")
	case len(n.HTTPSPorts) > 0:
		return unsupportedField("network.httpsPorts")
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
	if n == nil || n.AllowPublicTraffic == nil {
		return nil
	}
	raw, err := json.Marshal(network{AllowPublicTraffic: n.AllowPublicTraffic})
	if err != nil {
		panic("internal error: e2b: encode network: " + err.Error())
	}
	return raw
}
