package guest

import (
	"cmp"
	"context"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/errdef"
)

// Process is one inside, which its caller follows.
type Process struct {
	PID   uint32
	Next  func() (*process.ProcessEvent, error) // what it has printed, or its end
	Close func() error                          // of the following, not of the process
}

// ErrBroken is that of an answer which ends before what it tells of.
var ErrBroken = errdef.New(errdef.Unavailable, "runtime_gone", "the connection into the sandbox broke").WithRemedy("try again")

// Start returns when the process runs. It is followed until ctx ends.
func (g Guest) Start(ctx context.Context, req *connect.Request[process.StartRequest]) (*Process, error) {
	stream, err := g.Processes().Start(ctx, req)
	return follow(stream, err)
}

// Rejoin follows a process that was started before, until ctx ends.
func (g Guest) Rejoin(ctx context.Context, of *process.ProcessSelector) (*Process, error) {
	stream, err := g.Processes().Connect(ctx, connect.NewRequest(&process.ConnectRequest{Process: of}))
	return follow(stream, err)
}

// Run runs a program, and returns how it ended.
func (g Guest) Run(ctx context.Context, program string, args ...string) (*process.ProcessEvent_EndEvent, error) {
	p, err := g.Start(ctx, connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: program, Args: args}, Stdin: new(false)}))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	for {
		event, err := p.Next()
		if err != nil || event.GetEnd() != nil {
			return event.GetEnd(), err
		}
	}
}

func follow[R any, M interface {
	*R
	GetEvent() *process.ProcessEvent
}](stream *connect.ServerStreamForClient[R], err error) (*Process, error) {
	if err != nil {
		return nil, err
	}
	p := &Process{Close: stream.Close, Next: func() (*process.ProcessEvent, error) {
		if stream.Receive() {
			return M(stream.Msg()).GetEvent(), nil
		}
		return nil, cmp.Or[error](stream.Err(), ErrBroken)
	}}
	first, err := p.Next()
	if err != nil {
		stream.Close()
		return nil, err
	}
	p.PID = first.GetStart().GetPid()
	return p, nil
}
