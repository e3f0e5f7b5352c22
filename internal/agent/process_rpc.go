package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// processService is the process.Process service.
type processService struct{ agent *Agent }

func (s processService) List(context.Context, *connect.Request[processpb.ListRequest]) (*connect.Response[processpb.ListResponse], error) {
	res := connect.NewResponse(&processpb.ListResponse{})
	var terminals []string
	for _, p := range s.agent.processes.running() {
		res.Msg.Processes = append(res.Msg.Processes, &processpb.ProcessInfo{Config: p.config, Pid: p.pid, Tag: p.tag})
		if p.tty != nil && len(terminals) < agentapi.MaxTerminals {
			terminals = append(terminals, strconv.Itoa(int(p.pid)))
		}
	}
	// The messages are E2B's, which do not say.
	res.Header().Set(agentapi.HeaderTerminals, strings.Join(terminals, " "))
	return res, nil
}

func (s processService) Start(ctx context.Context, req *connect.Request[processpb.StartRequest], stream *connect.ServerStream[processpb.StartResponse]) error {
	p, sub, err := s.agent.startProcess(ctx, req.Msg, req.Header().Get(agentapi.HeaderHangUp))
	if err != nil {
		s.agent.journal.failed(req.Msg.GetProcess(), err)
		return rpcError(err)
	}
	defer s.agent.leave(p, sub)
	return follow(ctx, p, sub, keepalive(req.Header()), true, func(event *processpb.ProcessEvent) error {
		return stream.Send(&processpb.StartResponse{Event: event})
	})
}

func (s processService) Connect(ctx context.Context, req *connect.Request[processpb.ConnectRequest], stream *connect.ServerStream[processpb.ConnectResponse]) error {
	p, err := s.agent.processes.find(req.Msg.GetProcess())
	if err != nil {
		return rpcError(err)
	}
	sub := p.out.subscribe()
	defer s.agent.leave(p, sub)
	stream.ResponseHeader().Set(agentapi.HeaderMissed, strconv.FormatInt(p.out.lost(), 10))
	return follow(ctx, p, sub, keepalive(req.Header()), false, func(event *processpb.ProcessEvent) error {
		return stream.Send(&processpb.ConnectResponse{Event: event})
	})
}

// leave ends a client's stream of a process.
func (a *Agent) leave(p *process, sub *processSubscriber) {
	p.out.unsubscribe(sub)
	if p.root.alone() {
		a.observer.unwatched()
	}
}

// startProcess starts a process and subscribes to it before its first output. A
// hang-up word is for a terminal.
func (a *Agent) startProcess(ctx context.Context, req *processpb.StartRequest, hangUpWord string) (*process, *processSubscriber, error) {
	user, err := a.rpcUser(ctx)
	if err != nil {
		return nil, nil, err
	}
	if hangUpWord != "" && (req.Pty == nil || !agentapi.IsHangUpWord(hangUpWord)) {
		return nil, nil, faultf(invalid, "%s is for a terminal, and has %d to %d letters and digits", agentapi.HeaderHangUp, agentapi.MinHangUpWord, agentapi.MaxHangUpWord)
	}
	cmd, err := a.prepare(req.GetProcess(), user)
	if err != nil {
		return nil, nil, err
	}
	var c *child
	var files *plumbing
	if req.Pty != nil {
		c, files, err = a.reaper.spawnPTY(cmd, req.Pty.GetSize())
	} else {
		c, files, err = a.reaper.spawn(cmd, req.Stdin == nil || *req.Stdin)
	}
	if err != nil {
		return nil, nil, err
	}
	p := newProcess(a.reaper, c, files, req.GetProcess(), req.Tag)
	if d, ok := processDeadline(ctx); ok {
		p.limit(d)
	}
	sub := p.out.subscribe()
	p.hangUpWord, p.starter = hangUpWord, sub
	a.processes.add(p)
	a.observer.started(p.root)
	a.journal.started(p, user)
	p.run(func() { a.journal.ended(p) }, func() { a.processes.ended(p) })
	return p, sub, nil
}

// follow sends start, then what sub receives, until the end. starter says
// that the stream is the one whose timeout is the process's deadline.
func follow(ctx context.Context, p *process, sub *processSubscriber, interval time.Duration, starter bool, send func(*processpb.ProcessEvent) error) error {
	sub.interruptWith(writeInterrupt(ctx))
	if err := send(startEvent(p.pid)); err != nil {
		return err
	}
	idle := time.NewTimer(interval)
	defer idle.Stop()
	for {
		event := sub.take()
		if event == nil {
			var err error
			if event, err = wait(ctx, sub, idle.C); err != nil {
				return err
			}
			if event == nil {
				continue
			}
		}
		if event.GetEnd() != nil && starter && p.expired.Load() {
			return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the process reached its timeout and was killed"))
		}
		end := event.GetEnd() != nil
		if end {
			gather(ctx)
		}
		if err := send(event); err != nil || end {
			return err
		}
		idle.Reset(interval)
	}
}

// wait returns nil when there may be something to take, or a keepalive.
func wait(ctx context.Context, sub *processSubscriber, idle <-chan time.Time) (*processpb.ProcessEvent, error) {
	select {
	case <-sub.ready:
		return nil, nil
	case <-idle:
		return keepaliveEvent(), nil
	case <-sub.gone:
		return nil, connect.NewError(connect.CodeResourceExhausted,
			errors.New("the output was not read for "+stallLimit.String()+" and the stream was cut; the process goes on"))
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
}

func contextError(ctx context.Context) error {
	code := connect.CodeCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewError(code, ctx.Err())
}

// defaultKeepalive applies when the client names no interval.
const defaultKeepalive = 90 * time.Second

func keepalive(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get(agentapi.HeaderKeepalive))
	if err != nil || seconds <= 0 || seconds > 24*60*60 {
		return defaultKeepalive
	}
	return time.Duration(seconds) * time.Second
}

func (s processService) Update(_ context.Context, req *connect.Request[processpb.UpdateRequest]) (*connect.Response[processpb.UpdateResponse], error) {
	p, err := s.agent.processes.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, rpcError(err)
	}
	if err := p.resize(req.Msg.GetPty().GetSize()); err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&processpb.UpdateResponse{}), nil
}

func (s processService) SendInput(ctx context.Context, req *connect.Request[processpb.SendInputRequest]) (*connect.Response[processpb.SendInputResponse], error) {
	p, err := s.agent.processes.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, rpcError(err)
	}
	if err := feed(ctx, p, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&processpb.SendInputResponse{}), nil
}

func (s processService) StreamInput(ctx context.Context, stream *connect.ClientStream[processpb.StreamInputRequest]) (*connect.Response[processpb.StreamInputResponse], error) {
	var p *process
	for stream.Receive() {
		switch event := stream.Msg().GetEvent().(type) {
		case *processpb.StreamInputRequest_Start:
			found, err := s.agent.processes.findAlive(event.Start.GetProcess())
			if err != nil {
				return nil, rpcError(err)
			}
			p = found
		case *processpb.StreamInputRequest_Data:
			if p == nil {
				return nil, rpcError(faultf(invalid, "data before start"))
			}
			if err := feed(ctx, p, event.Data.GetInput()); err != nil {
				return nil, err
			}
		case *processpb.StreamInputRequest_Keepalive:
		default:
			return nil, rpcError(faultf(invalid, "an input message names no event"))
		}
	}
	if err := stream.Err(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return connect.NewResponse(&processpb.StreamInputResponse{}), nil
}

// feed writes input of the kind that fits the process.
func feed(ctx context.Context, p *process, in *processpb.ProcessInput) error {
	var data []byte
	switch in := in.GetInput().(type) {
	case *processpb.ProcessInput_Stdin:
		if p.tty != nil {
			return rpcError(faultf(precondition, "process %d has a terminal: its input is pty, not stdin", p.pid))
		}
		data = in.Stdin
	case *processpb.ProcessInput_Pty:
		if p.tty == nil {
			return rpcError(faultf(precondition, "process %d has no terminal: its input is stdin, not pty", p.pid))
		}
		data = in.Pty
	default:
		return rpcError(faultf(invalid, "the input is neither stdin nor pty"))
	}
	err := p.stdin.write(ctx, data)
	switch {
	case err == nil:
		p.root.touch(len(data))
		return nil
	case ctx.Err() != nil:
		return contextError(ctx)
	case errors.Is(err, errNoStdin):
		return rpcError(faultf(precondition, "process %d has no open stdin: it was started without, or that was closed", p.pid))
	case errors.Is(err, syscall.EPIPE):
		return rpcError(faultf(precondition, "process %d has closed its stdin", p.pid))
	}
	return rpcError(faultf(internal, "write to process %d: %w", p.pid, err))
}

func (s processService) SendSignal(ctx context.Context, req *connect.Request[processpb.SendSignalRequest]) (*connect.Response[processpb.SendSignalResponse], error) {
	p, err := s.agent.processes.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, rpcError(err)
	}
	var sig syscall.Signal
	switch req.Msg.GetSignal() {
	case processpb.Signal_SIGNAL_SIGKILL:
		sig = syscall.SIGKILL
	case processpb.Signal_SIGNAL_SIGTERM:
		sig = syscall.SIGTERM
	default:
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("signal "+req.Msg.GetSignal().String()+" is not supported"))
	}
	sent, err := p.signal(sig)
	if err != nil {
		return nil, rpcError(faultf(internal, "signal process %d: %w", p.pid, err))
	}
	if !sent {
		return nil, rpcError(faultf(notFound, "process %d has ended", p.pid))
	}
	if sig == syscall.SIGKILL {
		p.awaitDeath(ctx)
	}
	return connect.NewResponse(&processpb.SendSignalResponse{}), nil
}

func (s processService) CloseStdin(ctx context.Context, req *connect.Request[processpb.CloseStdinRequest]) (*connect.Response[processpb.CloseStdinResponse], error) {
	p, err := s.agent.processes.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, rpcError(err)
	}
	if p.tty != nil {
		return nil, rpcError(faultf(precondition, "process %d has a terminal: send it Ctrl-D instead", p.pid))
	}
	if err := p.stdin.close(ctx); errors.Is(err, errNoStdin) {
		return nil, rpcError(faultf(precondition, "process %d has no open stdin: it was started without, or that was closed", p.pid))
	} else if err != nil {
		return nil, rpcError(faultf(unknown, "close the stdin of process %d: %w", p.pid, err))
	}
	return connect.NewResponse(&processpb.CloseStdinResponse{}), nil
}
