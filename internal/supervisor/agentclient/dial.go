package agentclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// tunnelTimeout bounds the agent's answer to a request for a tunnel.
const tunnelTimeout = 5 * time.Second

// Dial connects to a port inside: directly, or through the agent if the
// server there listens on the loopback address only.
func Dial(ctx context.Context, inst runtime.Instance, port int) (net.Conn, error) {
	conn, refused := inst.Dial(ctx, port)
	if port == agentapi.Port || !errors.Is(refused, syscall.ECONNREFUSED) {
		return conn, refused
	}
	tunnel, err := inst.Dial(ctx, agentapi.TunnelPort)
	if err != nil {
		return nil, refused // an agent without tunnels
	}
	if err := openTunnel(ctx, tunnel, port); err != nil {
		tunnel.Close()
		return nil, fmt.Errorf("dial port %d of %s: %w", port, inst.ID(), err)
	}
	return tunnel, nil
}

// openTunnel asks the agent to continue the connection to a port.
func openTunnel(ctx context.Context, conn net.Conn, port int) error {
	deadline := time.Now().Add(tunnelTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(binary.BigEndian.AppendUint16(nil, uint16(port))); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	switch answer[0] {
	case agentapi.TunnelConnected:
		return conn.SetDeadline(time.Time{})
	case agentapi.TunnelRefused:
		return syscall.ECONNREFUSED
	default:
		return errors.New("the agent could not connect to the port")
	}
}
