package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/pkg/sftp"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// connectTime bounds how long Tool waits for a connection.
const connectTime = 30 * time.Second

// Tool is what the agent's program does for SSH clients, over its input and
// output, as whom it runs and in its working directory. It returns an exit
// status.
func Tool(args []string) int {
	var err error
	switch {
	case args[0] == agentapi.SFTPProgram && len(args) == 1:
		err = serveFiles(stdio{})
	case args[0] == agentapi.ConnectProgram && len(args) == 2:
		err = connectTo(args[1], stdio{})
	default:
		err = fmt.Errorf("usage: agent %s, agent %s ADDRESS", agentapi.SFTPProgram, agentapi.ConnectProgram)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// stdio is the program's input and output.
type stdio struct{}

func (stdio) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (stdio) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdio) Close() error                { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }

// serveFiles speaks SFTP until the client ends it. Relative paths are below the
// working directory.
func serveFiles(c io.ReadWriteCloser) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	s, err := sftp.NewServer(c, sftp.WithServerWorkingDirectory(dir))
	if err != nil {
		return err
	}
	if err := s.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// connectTo carries bytes between c and a TCP address until both directions
// have ended.
func connectTo(addr string, c io.ReadWriter) error {
	conn, err := net.DialTimeout("tcp", addr, connectTime)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(c, agentapi.Connected); err != nil {
		return err
	}
	go func() {
		if _, err := io.Copy(conn, c); err != nil {
			conn.Close() // nobody is left to hear the answers
			return
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(c, conn)
	return err
}
