// Package rpc is the gRPC service of the end-to-end tests, as its server in a
// sandbox and its client outside both need it. Its messages are texts, so that
// nothing has to be generated.
package rpc

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Port is where the server listens.
const Port = 50051

// What the service is made of.
const (
	service = "drowse.test.Echo"
	Chat    = "/" + service + "/Chat" // sends each message back before it reads the next
	Refuse  = "/" + service + "/Refuse"
)

// ChatDesc describes Chat for a client.
var ChatDesc = &grpc.StreamDesc{StreamName: "Chat", ServerStreams: true, ClientStreams: true}

// Register adds the service to a server.
func Register(s *grpc.Server) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "Chat", Handler: chat, ServerStreams: true, ClientStreams: true},
		},
		Methods: []grpc.MethodDesc{{MethodName: "Refuse", Handler: refuse}},
	}, nil)
}

// chat echoes. Its headers and trailers say what the client's were and how long
// the client is ready to wait.
func chat(_ any, stream grpc.ServerStream) error {
	in, _ := metadata.FromIncomingContext(stream.Context())
	left := "for ever"
	if deadline, ok := stream.Context().Deadline(); ok {
		left = time.Until(deadline).Round(time.Minute).String()
	}
	header := metadata.Pairs("deadline", left)
	header.Append("said-bin", in.Get("say-bin")...)
	if err := stream.SendHeader(header); err != nil {
		return err
	}
	for n := 0; ; n++ {
		var m wrapperspb.StringValue
		err := stream.RecvMsg(&m)
		if err == io.EOF {
			stream.SetTrailer(metadata.Pairs("messages", fmt.Sprint(n)))
			return nil
		}
		if err == nil {
			err = stream.SendMsg(wrapperspb.String("echo " + m.Value))
		}
		if err != nil {
			return err
		}
	}
}

// refuse answers nothing but an error.
func refuse(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var m wrapperspb.StringValue
	if err := decode(&m); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.FailedPrecondition, m.Value)
}
