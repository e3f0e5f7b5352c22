package main

import (
	"fmt"
	"net"
	"time"
)

// knock opens connections to a server for ever. On one in two it asks for
// something and does not wait for the answer; on the others it says nothing.
func knock(addr string) {
	asks := false
	for range time.Tick(20 * time.Millisecond) {
		asks = !asks
		go visit(addr, asks)
	}
}

func visit(addr string, asks bool) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return // it is busy, or has just slept
	}
	defer conn.Close()
	if asks {
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: knock\r\n\r\n")
	}
	time.Sleep(20 * time.Millisecond)
}
