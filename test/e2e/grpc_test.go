package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/test/e2e/rpc"
)

// TestGRPC talks gRPC to a server in a sandbox, without TLS.
func TestGRPC(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	s.checkGRPC(ctx, insecure.NewCredentials())
}

// TestGRPCOverTLS is TestGRPC with TLS up to the server.
func TestGRPCOverTLS(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s, _ := startTLSServer(t)
	s.checkGRPC(ctx, credentials.NewTLS(&tls.Config{RootCAs: authority().pool}))
}

func (s *server) checkGRPC(ctx context.Context, transport credentials.TransportCredentials) {
	t := s.t
	g := &guest{s: s, sb: s.create(ctx, sleeper)}
	uploadProgram(ctx, t, g.sb, "grpcguest", grpcBinary)
	p, err := g.sb.Start(ctx, client.Command{Args: []string{"./grpcguest"}})
	if err != nil {
		t.Fatal(err)
	}
	p.Detach()
	conn, err := grpc.NewClient("passthrough:///"+g.host(rpc.Port), grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, 20*time.Second, "the gRPC server answers", func() error { return refused(ctx, conn, "first") })

	s.pause(ctx, g.sb.ID)
	if err := refused(ctx, conn, "this call wakes it"); err != nil {
		t.Error(err)
	}
	chat(ctx, t, conn)

	// A call under way ends with its sandbox, as an error.
	stream, err := conn.NewStream(ctx, rpc.ChatDesc, rpc.Chat)
	if err != nil {
		t.Fatal(err)
	}
	if err := say(stream, "before the pause"); err != nil {
		t.Fatal(err)
	}
	s.pause(ctx, g.sb.ID)
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a stream over a pause ended with %v, want an error", err)
	} else {
		t.Logf("a stream over a pause: %v", err)
	}
	if err := refused(ctx, conn, "and again"); err != nil {
		t.Error(err)
	}
}

// refused makes a call that the server refuses, and checks the refusal.
func refused(ctx context.Context, conn *grpc.ClientConn, why string) error {
	err := conn.Invoke(ctx, rpc.Refuse, wrapperspb.String(why), new(wrapperspb.StringValue))
	if got := status.Convert(err); got.Code() != codes.FailedPrecondition || got.Message() != why {
		return err
	}
	return nil
}

// chat sends messages, each when the one before has come back.
func chat(ctx context.Context, t testing.TB, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "say-bin", "\x00\xff"), time.Minute)
	defer cancel()
	stream, err := conn.NewStream(ctx, rpc.ChatDesc, rpc.Chat)
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header() // comes before any message
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"said-bin": "\x00\xff", "deadline": "1m0s"} {
		if got := strings.Join(header.Get(name), ","); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	for _, text := range []string{"one", "two", "", strings.Repeat("x", 3<<20), "five"} {
		if err := say(stream, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the stream: %v", err)
	}
	if got := strings.Join(stream.Trailer().Get("messages"), ","); got != "5" {
		t.Errorf("trailer messages is %q, want 5", got)
	}
}

// say sends a message and waits for its echo.
func say(stream grpc.ClientStream, text string) error {
	if err := stream.SendMsg(wrapperspb.String(text)); err != nil {
		return err
	}
	var back wrapperspb.StringValue
	if err := stream.RecvMsg(&back); err != nil {
		return err
	}
	if back.Value != "echo "+text {
		return errors.New("what came back is something else")
	}
	return nil
}
