package e2b

import (
	"encoding/json"
	"net/http"

	"github.com/drowse-dev/drowse/internal/api/body"
	"github.com/drowse-dev/drowse/internal/store"
)

// network is the network object of a sandbox, as clients read it.
type network struct {
	AllowPublicTraffic *bool    `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	MaskRequestHost    string   `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []int    `json:"httpsPorts,omitempty"`

	EgressProxy *body.Proxy `json:"egressProxy,omitempty"` // without its password
}

// setNetwork replaces what a running sandbox reaches outside. What the body does
// not say is as if it had never been said.
func (s *server) setNetwork(c *call) (reply, error) {
	sb, err := s.find(c)
	if err != nil {
		return reply{}, err
	}
	if state, _ := shown(sb.Record); state != stateRunning {
		return reply{}, fail(http.StatusNotFound, codeNotRunning, "the sandbox is %s; this needs a running one", state)
	}
	p, _, err := body.Change(c.words, sb)
	if err != nil {
		return reply{}, err
	}
	if p.AllowInternet == nil {
		p.AllowInternet = new(true)
	}
	if p.Proxy == nil {
		p.Proxy = &store.Proxy{}
	}
	p.AllowOut, p.DenyOut = append([]string{}, p.AllowOut...), append([]string{}, p.DenyOut...)
	_, err = s.Sandboxes.Patch(c.r.Context(), c.sandbox, p, c.actor)
	return noContent, err
}

// networkView returns the network object of a sandbox as clients know it.
func networkView(cfg store.Config) json.RawMessage {
	if len(cfg.AllowOut) == 0 && len(cfg.DenyOut) == 0 && cfg.Proxy == nil {
		return cfg.Network
	}
	var n network
	if cfg.Network != nil {
		if err := json.Unmarshal(cfg.Network, &n); err != nil {
			panic("internal error: e2b: decode network: " + err.Error())
		}
	}
	n.AllowOut, n.DenyOut, n.EgressProxy = cfg.AllowOut, cfg.DenyOut, body.ViewProxy(cfg.Proxy)
	return encodeNetwork(n)
}

// networkOf returns the object to store and to give back: what was asked,
// without the rules, which can change.
func networkOf(words map[string]body.Said) json.RawMessage {
	var n network
	if public, given := said[bool](words, "allowPublicTraffic"); given {
		n.AllowPublicTraffic = &public
	}
	n.MaskRequestHost, _ = said[string](words, "maskRequestHost")
	n.HTTPSPorts, _ = said[[]int](words, "httpsPorts")
	if n.AllowPublicTraffic == nil && n.MaskRequestHost == "" && len(n.HTTPSPorts) == 0 {
		return nil
	}
	return encodeNetwork(n)
}

func encodeNetwork(n network) json.RawMessage {
	raw, err := json.Marshal(n)
	if err != nil {
		panic("internal error: e2b: encode network: " + err.Error())
	}
	return raw
}
