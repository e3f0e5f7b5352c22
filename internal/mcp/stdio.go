package mcp

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// callsWithin bounds how long calls of tools go on after the end of the input: whoever
// closed it may be gone, or have piped a request in.
const callsWithin = 2 * time.Second

// ServeStdio serves one client by lines of JSON, until it goes away or ctx ends. What
// it has asked before is answered.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	defer s.stop()
	defer context.AfterFunc(ctx, s.end)()
	err := s.sdk.Run(ctx, answering{&mcp.IOTransport{Reader: io.NopCloser(in), Writer: nopCloser{out}}, s.end})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// answering is a transport on which the end of the input waits for the answers.
type answering struct {
	mcp.Transport
	end func() // ends all calls of tools
}

// Connect implements mcp.Transport.
func (a answering) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := a.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &answered{Connection: conn, end: a.end, open: map[jsonrpc.ID]bool{}, fewer: make(chan struct{}, 1)}, nil
}

// answered is a connection that knows which requests are open.
type answered struct {
	mcp.Connection
	end   func()
	fewer chan struct{} // has a value after one was answered

	mu   sync.Mutex
	open map[jsonrpc.ID]bool
}

// Read implements mcp.Connection.
func (a *answered) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := a.Connection.Read(ctx)
	if request, ok := message.(*jsonrpc.Request); ok && err == nil && request.IsCall() {
		a.mu.Lock()
		a.open[request.ID] = true
		a.mu.Unlock()
	}
	if errors.Is(err, io.EOF) {
		a.finish(ctx)
	}
	return message, err
}

// finish waits for the answers. Calls of tools, which may take as long as they like,
// are ended where they take long.
func (a *answered) finish(ctx context.Context) {
	defer a.end()
	calls, most := time.After(callsWithin), time.After(stopWithin)
	for a.waits() {
		select {
		case <-a.fewer:
		case <-calls:
			a.end()
		case <-most:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (a *answered) waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open) > 0
}

// Write implements mcp.Connection.
func (a *answered) Write(ctx context.Context, message jsonrpc.Message) error {
	err := a.Connection.Write(ctx, message)
	if response, ok := message.(*jsonrpc.Response); ok {
		a.mu.Lock()
		delete(a.open, response.ID)
		a.mu.Unlock()
		select {
		case a.fewer <- struct{}{}:
		default:
		}
	}
	return err
}
