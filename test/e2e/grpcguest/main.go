// Command grpcguest serves package rpc inside a sandbox. It is a program of its
// own because gRPC makes it large.
package main

import (
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"

	"github.com/drowse-dev/drowse/test/e2e/rpc"
)

func main() {
	ln, err := net.Listen("tcp", fmt.Sprintf(":%d", rpc.Port))
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer()
	rpc.Register(s)
	log.Fatal(s.Serve(ln))
}
