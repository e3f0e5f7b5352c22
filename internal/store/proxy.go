package store

// Proxy is a server through which the connections of a sandbox go out.
type Proxy struct {
	Address  string `json:"address"` // as asked: host:port, with or without a scheme
	Username string `json:"username,omitempty"`
	// Sealed is the password, encrypted and in base64; see package secret.
	Sealed string `json:"sealed,omitempty"`
	// Lost says that the password has stayed on another server.
	Lost bool `json:"lost,omitempty"`
	// Password is there from the request that says it until it is sealed, and never
	// stored.
	Password string `json:"-"`
}
