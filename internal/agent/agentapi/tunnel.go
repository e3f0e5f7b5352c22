package agentapi

// Ports on which a server listens only on the loopback address are reached
// through a tunnel: the host connects to TunnelPort, writes the port as two
// bytes, the high one first, and reads one byte. After TunnelConnected the
// connection is the one to the port, ends of either side included; after
// anything else the agent closes it. Connections that do not come from
// HostAddr, and those over MaxTunnels, are closed without an answer.
const (
	// TunnelPort is where the agent listens for tunnels.
	TunnelPort = 49982

	// HostAddr is the host as the sandbox sees it.
	HostAddr = "169.254.77.1"

	// MaxTunnels is how many there may be at a time.
	MaxTunnels = 1024
)

// The answers to a port.
const (
	TunnelConnected byte = 0
	TunnelRefused   byte = 1 // nobody listens, or it is the agent's own port
	TunnelFailed    byte = 2
)
