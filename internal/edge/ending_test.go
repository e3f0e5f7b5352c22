package edge

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/edge/h1"
	"github.com/drowse-dev/drowse/internal/interpreter"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// envelope is a message of a Connect stream.
func envelope(flags byte, content []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(content))), content...)
}

// connectServer sends messages: a few, then silence, or without end.
func connectServer(flood bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/connect+proto")
		rng := testmode.Rand(0)
		for n := 0; flood || n < 3; n++ {
			if _, err := w.Write(envelope(0, bytes.Repeat([]byte{byte(n)}, rng.IntN(20_000)))); err != nil {
				return
			}
			if !flood || rng.IntN(3) == 0 {
				_ = http.NewResponseController(w).Flush()
			}
		}
		<-r.Context().Done()
	}
}

// lastMessage reads a Connect stream to its end and returns what the last
// message says.
func lastMessage(t *testing.T, stream []byte) (code, message string) {
	t.Helper()
	for len(stream) >= 5 {
		length := int(binary.BigEndian.Uint32(stream[1:]))
		if len(stream) < 5+length {
			t.Fatalf("a message of %d bytes has %d", length, len(stream)-5)
		}
		flags, content := stream[0], stream[5:5+length]
		stream = stream[5+length:]
		if flags != endOfStream {
			continue
		}
		if len(stream) > 0 {
			t.Errorf("%d bytes after the last message", len(stream))
		}
		var end struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(content, &end); err != nil {
			t.Fatalf("%s: %v", content, err)
		}
		return end.Error.Code, end.Error.Message
	}
	t.Fatalf("no last message; %d bytes are left", len(stream))
	return "", ""
}

func TestConnectStreamsEndWithAReason(t *testing.T) {
	for name, tt := range map[string]struct {
		flood bool
		why   error
		want  string
	}{
		"paused, silent":  {false, putToSleep, "the sandbox was put to sleep"},
		"paused, talking": {true, putToSleep, "the sandbox was put to sleep"},
		"ended":           {false, endOf(lifecycle.TimeoutExpired), "the sandbox was killed or reached its end of life: the sandbox ended at 1970-01-01T00:00:00Z: TimeoutExpired (too much)"},
	} {
		for protocol, client := range map[string]func() *http.Client{"HTTP/1.1": func() *http.Client { return http.DefaultClient }, "HTTP/2": func() *http.Client { return http2Client(t) }} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				f := newFleet(t, connectServer(tt.flood))
				f.why = tt.why
				req := request2(t, f.serve(t), strings.NewReader("ask"))
				req.Header.Set("Content-Type", "application/connect+proto")
				resp, err := client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				var all bytes.Buffer
				if _, err := io.CopyN(&all, resp.Body, 5); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(50*time.Millisecond, func() { close(f.cut) })
				if _, err := all.ReadFrom(resp.Body); err != nil {
					t.Fatalf("the stream broke: %v", err)
				}
				if code, message := lastMessage(t, all.Bytes()); code != "unavailable" || message != tt.want {
					t.Errorf("ended with %q, %q", code, message)
				}
				f.wantReleased(t)
			})
		}
	}
}

// TestWordsOfAnEnd: E2B's clients compare with these words, which differ for running
// code. A failure is no such end.
func TestWordsOfAnEnd(t *testing.T) {
	for _, tt := range []struct {
		port int
		why  error
		want string
	}{
		{agentapi.Port, endOf(lifecycle.Killed), "The sandbox was not found: the sandbox was killed or reached its end of life: the sandbox ended at "},
		{interpreter.Port, endOf(lifecycle.Killed), "The sandbox was not found: the sandbox was killed while the request was in progress: the sandbox ended at "},
		{interpreter.Port, endOf(lifecycle.OutOfMemory), "The sandbox was not found: the sandbox ended at "},
		{interpreter.Port, putToSleep, "The sandbox was not found running any more: "},
	} {
		if got := interrupted(&passage{target: target{id: "i", port: tt.port}}, tt.why); !strings.HasPrefix(got.Message, tt.want) || !got.Interrupted {
			t.Errorf("port %d, %v: %q", tt.port, tt.why, got.Message)
		}
	}
}

// endOf is why a stream is cut whose sandbox ends for a reason.
func endOf(reason lifecycle.Reason) error {
	rec := lifecycle.Record{State: lifecycle.Terminated, Tombstone: &lifecycle.Tombstone{Reason: reason, Detail: "too much", At: time.Unix(0, 0).UTC()}}
	_, err := lifecycle.Step(rec, lifecycle.AccessRequested{}, time.Unix(0, 0))
	return err
}

// TestConnectCodes: E2B's SDKs add to "unavailable" that the sandbox's timeout is
// too short. Nobody may be told so whose sandbox ran out of memory.
func TestConnectCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		why  error
		want string
	}{
		"put to sleep":     {putToSleep, "unavailable"},
		"killed":           {endOf(lifecycle.Killed), "unavailable"},
		"timeout":          {endOf(lifecycle.TimeoutExpired), "unavailable"},
		"idle":             {endOf(lifecycle.IdleTimeout), "unavailable"},
		"lifetime":         {endOf(lifecycle.MaxLifetimeExceeded), "unavailable"},
		"not of ours":      {io.ErrUnexpectedEOF, "unavailable"},
		"out of memory":    {endOf(lifecycle.OutOfMemory), "aborted"},
		"out of disk":      {endOf(lifecycle.OutOfDisk), "aborted"},
		"out of processes": {endOf(lifecycle.OutOfProcesses), "aborted"},
		"runtime exited":   {endOf(lifecycle.RuntimeExited), "aborted"},
		"runtime lost":     {endOf(lifecycle.RuntimeLost), "aborted"},
		"back to its last pause": {outcome.Cut(store.Sandbox{Record: lifecycle.Record{
			State: lifecycle.Paused, LastError: "it took more memory than it may"}}), "aborted"},
		"checkpointed": {outcome.PausedBy(&lifecycle.Operation{Cause: lifecycle.CauseCheckpoint}), "aborted"},
		"restored":     {outcome.PausedBy(&lifecycle.Operation{Cause: lifecycle.CauseRestore}), "aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			code, message := lastMessage(t, (&envelopes{}).farewell(tt.why))
			if code != tt.want || message == "" {
				t.Errorf("got %q, %q, want %q", code, message, tt.want)
			}
		})
	}
}

// TestAStreamThatBreaksLearnsWhy: the end of a runtime is noticed a little after
// its connections have broken.
func TestAStreamThatBreaksLearnsWhy(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/connect+json")
		_, _ = w.Write(envelope(0, []byte("{}")))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	time.AfterFunc(200*time.Millisecond, func() { close(f.cut) })
	resp := ask(t, f.serve(t), "/", openPort, nil)
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if code, message := lastMessage(t, all); code != "unavailable" || message != "the sandbox was put to sleep" {
		t.Errorf("ended with %q, %q", code, message)
	}
}

// TestARequestWithoutAnAnswerGetsOne when it is cut, and the connection goes on.
func TestARequestWithoutAnAnswerGetsOne(t *testing.T) {
	for protocol, client := range map[string]func() *http.Client{"HTTP/1.1": func() *http.Client { return http.DefaultClient }, "HTTP/2": func() *http.Client { return http2Client(t) }} {
		t.Run(protocol, func(t *testing.T) {
			f := newFleet(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			})
			time.AfterFunc(100*time.Millisecond, func() { close(f.cut) })
			resp, err := client().Do(request2(t, f.serve(t), strings.NewReader("ask")))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var got struct {
				Message   string
				ErrorCode string `json:"error_code"`

				Interrupted bool `json:"interrupted"`
				Remedy      string
			}
			if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != http.StatusBadGateway || got.ErrorCode != "put_to_sleep" || !got.Interrupted || got.Remedy != "wake it" || !strings.Contains(got.Message, "put to sleep") {
				t.Errorf("%s %+v", resp.Status, got)
			}
			f.wantReleased(t)
		})
	}
}

func TestWebSocketsEndWithAReason(t *testing.T) {
	f := newFleet(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		for _, size := range []int{0, 5, 300, 70_000} {
			_, _ = rw.Write(frame(size))
		}
		rw.Flush()
		_, _ = io.Copy(io.Discard, conn)
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.serve(t), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: localhost\r\n%s: ione\r\n%s: %d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", headerSandbox, headerPort, openPort)
	time.AfterFunc(100*time.Millisecond, func() { close(f.cut) })
	_ = conn.SetReadDeadline(time.Now().Add(testmode.Patience()))
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte{0x88, 30, 0x03, 0xf4}, "the sandbox was put to sleep"...)
	if !bytes.HasSuffix(all, want) {
		t.Errorf("ends with %q, want %q", all[max(0, len(all)-len(want)):], want)
	}
	f.wantReleased(t)
}

// frame is a WebSocket frame of a server.
func frame(size int) []byte {
	head := []byte{0x82}
	switch {
	case size < 126:
		head = append(head, byte(size))
	case size < 1<<16:
		head = binary.BigEndian.AppendUint16(append(head, 126), uint16(size))
	default:
		head = binary.BigEndian.AppendUint64(append(head, 127), uint64(size))
	}
	return append(head, make([]byte, size)...)
}

// TestMessagesAreFollowed in pieces of any size, within the chunked coding too,
// and found complete exactly where they are.
func TestMessagesAreFollowed(t *testing.T) {
	make1 := map[string]struct {
		messages func() messages
		message  func(size int) []byte
	}{
		"envelopes": {func() messages { return &envelopes{} }, func(size int) []byte { return envelope(0, make([]byte, size)) }},
		"frames":    {func() messages { return &socketFrames{} }, frame},
	}
	for name, kind := range make1 {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", chunked), func(t *testing.T) {
				rng := testmode.Rand(0)
				for range 200 {
					var stream []byte
					ends := map[int]bool{}
					for range 1 + rng.IntN(8) {
						m := kind.message(rng.IntN(70_000) >> rng.IntN(17))
						if chunked {
							m = fmt.Appendf(nil, "%x\r\n%s\r\n", len(m), m)
						}
						stream = append(stream, m...)
						ends[len(stream)] = true
					}
					m := kind.messages()
					var c *h1.Chunks
					if chunked {
						c = new(h1.Chunks)
					}
					for at := 0; at < len(stream); {
						one := rng.IntN(2) == 0
						n, err := follow(m, c, stream[at:at+1+rng.IntN(min(len(stream)-at, 1000))], one)
						if err != nil || n == 0 {
							t.Fatalf("%d of %d bytes: %v", n, len(stream), err)
						}
						at += n
						if got := whole(m, c); got != ends[at] {
							t.Fatalf("after %d of %d bytes: complete %v, want %v", at, len(stream), got, ends[at])
						}
					}
				}
			})
		}
	}
}
