package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// counterProgram counts in memory, ten times a second, and tells its pid, a
// random word that it has in memory only, and the count.
type counterProgram struct {
	what   string
	args   []string
	port   int    // where it can be asked
	target string // and how
}

const counterPort = 8000

// pythonCounter answers by itself.
const pythonCounter = `
import http.server, os, secrets, threading, time

word, count = secrets.token_hex(8), 0

def tick():
    global count
    while True:
        count += 1
        time.sleep(0.1)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"%d %s %d\n" % (os.getpid(), word.encode(), count)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

threading.Thread(target=tick, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
`

func pythonProgram(port int) string {
	return strings.Replace(pythonCounter, "PORT", strconv.Itoa(port), 1)
}

const counterFile = "drowse-demo-count"

// bashCounter writes to a file, which the agent hands out.
const bashCounter = `
word=$RANDOM$RANDOM$RANDOM count=0
while :; do
  count=$((count + 1))
  echo "$$ $word $count" >> ` + counterFile + `
  sleep 0.1
done
`

// chooseCounter takes the one in Python if the sandbox has Python.
func chooseCounter(ctx context.Context, sb *client.Sandbox) (counterProgram, error) {
	exit, err := sb.Run(ctx, client.Command{Args: []string{"python3", "-c", "import http.server, secrets"}})
	if err != nil && !errors.Is(err, client.ErrInvalid) { // invalid: there is no such command
		return counterProgram{}, err
	}
	if err == nil && exit.Code == 0 {
		return counterProgram{
			what: fmt.Sprintf("counting in memory, answering on port %d", counterPort),
			args: []string{"python3", "-c", pythonProgram(counterPort)},
			port: counterPort, target: "/",
		}, nil
	}
	return counterProgram{
		what: "counting in memory, writing to " + counterFile,
		args: []string{"bash", "-c", bashCounter},
		port: agentapi.Port, target: "/files?path=" + url.QueryEscape(counterFile),
	}, nil
}

func (c counterProgram) request(ctx context.Context, sb *client.Sandbox) (*http.Request, error) {
	return sb.Request(ctx, http.MethodGet, c.port, c.target, nil)
}

// reading is what a counter says.
type reading struct {
	pid   int
	word  string
	count int
}

// parseReading reads the last whole line.
func parseReading(text string) (reading, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 2 {
		return reading{}, nil
	}
	var r reading
	last := lines[len(lines)-2]
	if _, err := fmt.Sscanf(last, "%d %s %d", &r.pid, &r.word, &r.count); err != nil {
		return reading{}, fmt.Errorf("the counter said %q: %w", last, err)
	}
	return r, nil
}

// continues returns why r cannot be a later reading of the same process.
func (r reading) continues(earlier reading, pid int) error {
	switch {
	case r.pid != pid || earlier.pid != pid:
		return fmt.Errorf("pid %d was started, %d answered first and %d later", pid, earlier.pid, r.pid)
	case r.word != earlier.word:
		return fmt.Errorf("it was started anew: its memory held %q, and now %q", earlier.word, r.word)
	case r.count < earlier.count:
		return fmt.Errorf("it went back from %d to %d", earlier.count, r.count)
	}
	return nil
}
