package body

import (
	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/store"
)

// Proxy is an egress proxy as answers have it: without its password.
type Proxy struct {
	Address  string `json:"address" doc:"host:port or socks5://host:port for SOCKS 5, http://host:port for CONNECT."`
	Username string `json:"username,omitempty" doc:"Whom to log in as."`
}

// ProxyWithPassword documents what readProxy reads.
type ProxyWithPassword struct {
	Proxy
	Password string `json:"password,omitempty" doc:"It is stored encrypted, and in no answer."`
}

// ViewProxy shows a proxy; nil for none.
func ViewProxy(p *store.Proxy) *Proxy {
	if p == nil {
		return nil
	}
	return &Proxy{p.Address, p.Username}
}

var proxyBody = Vocabulary{
	{Name: "address", Required: true, Spelled: []Spelled{AsText.As("address")}},
	{Name: "username", Spelled: []Spelled{AsText.As("username")}},
	{Name: "password", Hidden: true, Spelled: []Spelled{AsText.As("password")}},
}

// AsProxy is an egress proxy. One without an address, {}, is none.
var AsProxy = Form{"an object with address, username and password", Schema{"type": "object", "required": []string{"address"}, "properties": map[string]Schema{
	"address": {"type": "string", "description": "host:port or socks5://host:port for SOCKS 5, http://host:port for CONNECT."}, "username": {"type": "string"}, "password": {"type": "string"},
}}, readProxy}

func readProxy(path string, raw []byte) (any, error) {
	if kindOf(raw) != "an object" {
		return nil, wrongKind(path, "an object", raw)
	}
	if fields, ok := members(raw); ok && len(fields) == 0 {
		return &store.Proxy{}, nil
	}
	words, err := proxyBody.Parse(raw, NullIsAbsent)
	if err != nil {
		return nil, InField(path, err)
	}
	p := &store.Proxy{Address: words["address"].Value.(string)}
	p.Username, _ = words["username"].Value.(string)
	p.Password, _ = words["password"].Value.(string)
	if _, err := egress.ParseProxy(p.Address, p.Username); err != nil {
		return nil, InField(path, err)
	}
	if err := egress.CheckPassword(p.Password); err != nil {
		return nil, InField(path, err)
	}
	return p, nil
}
