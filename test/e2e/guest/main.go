// Command guest is what runs inside the sandboxes of the end-to-end tests: a
// server with state in memory, in open files and in a listening socket, and a
// few things that a hostile guest would try.
//
//	guest serve            count, and answer over HTTP on ports 8000 and 8001
//	guest rest             answer as serve does, and do nothing between requests
//	guest counter          count requests, on port 8000
//	guest count            make a request to the counter
//	guest dial ADDR...     say for each address whether a connection opens
//	guest alloc MIB        touch so much memory, then wait
//	guest open             open a file again and again, say how that ended, then wait
//	guest udp ADDR         send a datagram, and say what comes of it
//	guest knock ADDR       open connections to a server for ever, and leave them
package main

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command")
	}
	switch args[0] {
	case "serve":
		return serve((*state).count)
	case "rest":
		return serve(func(*state) {})
	case "counter":
		return http.ListenAndServe(":8000", &counter{})
	case "count":
		return countOne()
	case "dial":
		dialAll(args[1:])
		return nil
	case "alloc":
		mib, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		held := touch(mib)
		fmt.Println("allocated", len(held))
		select {}
	case "open":
		files, err := openMany("guest")
		fmt.Println("opened", len(files), err)
		select {}
	case "udp":
		return sendDatagram(args[1])
	case "knock":
		knock(args[1])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func serve(work func(*state)) error {
	s, err := newState("work")
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", ":8000")
	if err != nil {
		return err
	}
	second, err := net.Listen("tcp", ":8001")
	if err != nil {
		return err
	}
	go work(s)
	h := s.handler()
	go func() { log.Print(http.Serve(second, h)) }()
	return http.Serve(ln, h)
}

// touch returns so many MiB of memory, each page written with a value of its
// own.
func touch(mib int) [][]byte {
	var held [][]byte
	for i := range mib {
		chunk := make([]byte, 1<<20)
		for j := 0; j < len(chunk); j += 8 {
			chunk[j] = byte(i + j>>12 + j)
		}
		held = append(held, chunk)
	}
	return held
}

// openMany opens a file until that fails.
func openMany(name string) ([]*os.File, error) {
	var files []*os.File
	for {
		f, err := os.Open(name)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
}

// sendDatagram sends to an address and says whether somebody answers, or nobody
// is there.
func sendDatagram(addr string) error {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	// A question for the name "x" by DNS.
	if _, err := conn.Write([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01x\x00\x00\x01\x00\x01")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 512))
	switch {
	case err == nil:
		fmt.Println("answered")
	case errors.Is(err, syscall.ECONNREFUSED):
		fmt.Println("refused")
	default:
		fmt.Println(err)
	}
	return nil
}

// dialAll prints one line for each "network!address".
func dialAll(targets []string) {
	type result struct{ target, outcome string }
	results := make(chan result)
	for _, t := range targets {
		go func() {
			network, addr, _ := strings.Cut(t, "!")
			conn, err := net.DialTimeout(network, addr, 3*time.Second)
			outcome := fmt.Sprint(err)
			if err == nil {
				outcome = "open"
				conn.Close()
			}
			results <- result{t, outcome}
		}()
	}
	for range targets {
		r := <-results
		fmt.Printf("%s\t%s\n", r.target, r.outcome)
	}
}
