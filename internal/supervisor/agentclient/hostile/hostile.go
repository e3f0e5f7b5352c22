// Package hostile has, for tests, agents that answer what no agent should.
package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/drowse-dev/drowse/client/agentpb/process"
)

// Agents are what may answer instead of an agent. Each has read the
// head of a request.
var Agents = map[string]func(c net.Conn){
	"says nothing":               Listen,
	"hangs up":                   func(net.Conn) {},
	"half a status line":         say("HTTP/1.1 2"),
	"half a head":                say("HTTP/1.1 200 OK\r\nContent-Le"),
	"an endless status line":     flood("HTTP/1.1 500 ", "because "),
	"an endless header":          flood("HTTP/1.1 200 OK\r\nX: ", "and so on "),
	"endless headers":            flood("HTTP/1.1 200 OK\r\n", "X-More: and more\r\n"),
	"endless interim answers":    flood("", "HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n"),
	"endless continues":          flood("", "HTTP/1.1 100 Continue\r\n\r\n"),
	"another protocol":           flood("", "SSH-2.0-OpenSSH_9.9\r\n"),
	"HTTP/2":                     say("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"),
	"HTTP/0.9":                   flood("<html>", "hello "),
	"TLS":                        say("\x15\x03\x03\x00\x02\x02\x28"),
	"zeros":                      flood("", strings.Repeat("\x00", 4096)),
	"a switch of protocols":      flood("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "x"),
	"a redirect to itself":       say("HTTP/1.1 307 Temporary Redirect\r\nLocation: /drowse/activity\r\nContent-Length: 0\r\n\r\n"),
	"a redirect elsewhere":       say("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"),
	"two lengths":                say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}"),
	"a negative length":          say("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"),
	"a length beyond all bounds": say("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}"),
	"less than announced":        say("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n{"),
	"a chunk of 8 EiB":           say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n{"),
	"an endless chunk size":      flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0"),
	"endless chunk extensions":   flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;"+strings.Repeat("x", 3000)+"\r\n \r\n"),
	"endless trailers":           flood("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", "X-More: and more\r\n"),
	"an endless body":            flood("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat(" ", 4096)),
	"an endless string":          flood("HTTP/1.1 200 OK\r\n\r\n{\"now\":\"", strings.Repeat("x", 4096)),
	"endless nesting":            flood("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("[", 4096)),
	"endless processes":          flood("HTTP/1.1 200 OK\r\n\r\n{\"processes\":[{}", strings.Repeat(",{}", 2000)),
	"a drip":                     drip("HTTP/1.1 200 OK\r\nX: ", "x"),
	"a drip of a body":           drip("HTTP/1.1 200 OK\r\n\r\n", " "),
	"a frame of 4 GiB":           say(streaming + "\x00\xff\xff\xff\xff"),
	"frames without end":         flood(streaming, string(outputFrame(1000))),
	"empty frames without end":   flood(streaming, "\x00\x00\x00\x00\x00"),
	"frames that unpack to more": flood(strings.TrimSuffix(streaming, "\r\n")+"Connect-Content-Encoding: gzip\r\n\r\n", string(packed(outputFrame(100<<10)))),
	"an error of a megabyte":     say(streaming + string(frame(2, []byte(`{"error":{"code":"internal","message":"`+strings.Repeat("m", 1<<20)+`"}}`)))),
}

const streaming = "HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\n\r\n"

func say(text string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.WriteString(c, text); err == nil {
			Listen(c)
		}
	}
}

// Listen waits until the other side hangs up.
func Listen(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// flood says more and more, a megabyte in each second or so.
func flood(head, more string) func(net.Conn) {
	chunk := strings.Repeat(more, max(1, 4096/len(more)))
	return again(head, chunk, 4*time.Millisecond)
}

func drip(head, more string) func(net.Conn) { return again(head, more, 100*time.Millisecond) }

func again(head, more string, pause time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, head)
		for err == nil {
			time.Sleep(pause)
			_, err = io.WriteString(c, more)
		}
	}
}

func frame(flags byte, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(payload))), payload...)
}

func outputFrame(size int) []byte {
	data := &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: make([]byte, size)}}
	message := &process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: data}}}
	payload, err := proto.Marshal(message)
	if err != nil {
		panic(err)
	}
	return frame(0, payload)
}

// packed compresses the message of a frame.
func packed(message []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(message[5:])
	if err = errors.Join(err, z.Close()); err != nil {
		panic(err)
	}
	return frame(1, b.Bytes())
}

// AfterHead reads the head of a request before it lets an agent answer.
func AfterHead(answer func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\r\n" {
				break
			}
		}
		// Nobody else reads what is left of the request.
		go Listen(c)
		answer(c)
	}
}
