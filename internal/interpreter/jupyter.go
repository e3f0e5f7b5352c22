package interpreter

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/interpreter/zmtp"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

const (
	// jupyterLimit is how long a Jupyter kernel may take until it is ready, if
	// there is one of ours to take its place.
	jupyterLimit = 45 * time.Second

	// maxJupyterMessage bounds a message. It is more than maxMessage because
	// Jupyter's kernels collect what is printed, and cannot be held meanwhile.
	maxJupyterMessage = 64 << 20

	// A kernel with more than maxBacklog bytes that its client has not taken is
	// stopped until there are no more than minBacklog: ZeroMQ would throw away
	// what it prints instead of making it wait.
	maxBacklog = 8 << 20
	minBacklog = 1 << 20

	// Where kernels listen.
	firstPort = 11_000
	lastPort  = 16_000

	askEvery  = 250 * time.Millisecond // whether a kernel is ready
	dialEvery = 25 * time.Millisecond

	// lostAfter is how long after its reply a kernel may be silent until its
	// last words are taken for lost.
	lostAfter = 15 * time.Second
)

// connectionInfo is the file by which a kernel learns where to listen.
type connectionInfo struct {
	Transport string `json:"transport"`
	IP        string `json:"ip"`
	Shell     int    `json:"shell_port"`
	IOPub     int    `json:"iopub_port"`
	Stdin     int    `json:"stdin_port"`
	Control   int    `json:"control_port"`
	Heartbeat int    `json:"hb_port"`
	Key       string `json:"key"`
	Scheme    string `json:"signature_scheme"`
	Name      string `json:"kernel_name"`
}

// newConnectionInfo picks ports that are free at the moment. They are none that
// kernels of operating systems (Linux, gVisor) give to clients: who dials such
// a port until somebody listens there connects, one day, to itself.
func newConnectionInfo(name string) (connectionInfo, error) {
	info := connectionInfo{Transport: "tcp", IP: "127.0.0.1", Key: newID() + rand.Text(), Scheme: "hmac-sha256", Name: name}
	for _, port := range []*int{&info.Shell, &info.IOPub, &info.Stdin, &info.Control, &info.Heartbeat} {
		listener, err := listenSomewhere()
		if err != nil {
			return info, err
		}
		defer listener.Close() // when all are known, so that none is taken twice
		*port = listener.Addr().(*net.TCPAddr).Port
	}
	return info, nil
}

func listenSomewhere() (listener net.Listener, err error) {
	for range 100 {
		listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+mathrand.IntN(lastPort-firstPort)))
		if err == nil {
			break
		}
	}
	return listener, err
}

// startJupyter returns a kernel of Jupyter's that is ready within a limit.
func startJupyter(ctx context.Context, host Host, logf func(string, ...any), l *language, spec *kernelSpec, dir string, limit time.Duration) (*kernel, error) {
	path, err := spec.program(host)
	if err != nil {
		return nil, err
	}
	env, err := host.Environment()
	if err != nil {
		return nil, err
	}
	info, err := newConnectionInfo(spec.name)
	if err != nil {
		return nil, err
	}
	file, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	command := spec.command(path, file, env, dir)
	pipes := &kernelPipes{}
	if err := pipes.open(); err != nil {
		return nil, err
	}
	command.Files = pipes.theirs
	process, err := host.Start(command)
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return nil, failf(http.StatusInternalServerError, "start the Jupyter kernel %s: %v", spec.name, err)
	}
	k := newKernel(process, host, l, command.Env, pipes)
	k.title = "Jupyter kernel " + spec.name
	k.speech = newJupyter(k, logf, spec, info)
	if err := k.begin(ctx, limit); err != nil {
		return nil, err
	}
	return k, nil
}

// jupyter is how a kernel of Jupyter's is spoken with: by signed messages over
// ZeroMQ, of which it listens to requests (shell), tells what happens (iopub),
// and can be asked to interrupt itself (control).
type jupyter struct {
	k       *kernel
	logf    func(string, ...any)
	spec    *kernelSpec
	info    connectionInfo
	session string

	gone  chan struct{} // closed when the kernel has ended
	turns sync.Mutex    // over one request

	mu      sync.Mutex
	conns   []net.Conn
	shell   *zmtp.Conn
	control *zmtp.Conn // nil: it is interrupted by a signal
	current *call
	backlog []event
	bytes   int           // of the backlog and of what is being delivered
	more    chan struct{} // holds one element when there may be a backlog
	closed  bool          // nothing is added to the backlog any more
	held    bool
}

// call is a request that the kernel is at.
type call struct {
	id     string
	silent bool

	replied chan struct{} // closed at the reply
	idle    chan struct{} // closed when all was delivered
	reply   reply
	failed  bool // an error was told
	quiet   bool // closed idle
}

// event is something a kernel told, in its turn.
type event struct {
	message *message // nil: the end of a call
	of      *call
	bytes   int
}

// Parts of the messages of Jupyter's protocol.
type (
	header struct {
		ID       string `json:"msg_id"`
		Session  string `json:"session"`
		Username string `json:"username"`
		Date     string `json:"date"`
		Type     string `json:"msg_type"`
		Version  string `json:"version"`
	}

	executeContent struct {
		Code            string         `json:"code"`
		Silent          bool           `json:"silent"`
		StoreHistory    bool           `json:"store_history"`
		UserExpressions map[string]any `json:"user_expressions"`
		AllowStdin      bool           `json:"allow_stdin"`
		StopOnError     bool           `json:"stop_on_error"`
	}

	reply struct {
		Status    string   `json:"status"`
		Name      string   `json:"ename"`
		Value     string   `json:"evalue"`
		Traceback []string `json:"traceback"`
	}

	output struct {
		reply
		Stream string                     `json:"name"`
		Text   string                     `json:"text"`
		Data   map[string]json.RawMessage `json:"data"`
		State  string                     `json:"execution_state"`
	}
)

func newJupyter(k *kernel, logf func(string, ...any), spec *kernelSpec, info connectionInfo) *jupyter {
	return &jupyter{
		k: k, logf: logf, spec: spec, info: info, session: newID(),
		gone: make(chan struct{}), more: make(chan struct{}, 1),
	}
}

// listen connects to the kernel as soon as it listens itself.
func (j *jupyter) listen() {
	var readers sync.WaitGroup
	defer readers.Wait()
	if err := j.connect(&readers); err != nil {
		if !errors.Is(err, errKernelEnded) {
			j.k.tell(&message{Type: typeStderr, Text: err.Error()})
		}
		j.k.process.Kill()
		return
	}
	readers.Go(j.deliverAll)
	if j.awaken() {
		j.k.mute()
		j.k.tell(&message{Type: typeReady})
	}
}

func (j *jupyter) connect(readers *sync.WaitGroup) error {
	shell, err := j.dial(j.info.Shell, zmtp.Dealer)
	if err != nil {
		return err
	}
	iopub, err := j.dial(j.info.IOPub, zmtp.Subscriber)
	if err != nil {
		return err
	}
	var control *zmtp.Conn
	if j.spec.InterruptMode == "message" {
		if control, err = j.dial(j.info.Control, zmtp.Dealer); err != nil {
			return err
		}
		readers.Go(func() { j.receive(control, func(*incoming) {}) })
	}
	j.mu.Lock()
	j.shell, j.control = shell, control
	j.mu.Unlock()
	readers.Go(func() { j.receive(shell, j.hearReply) })
	readers.Go(func() {
		j.receive(iopub, j.hearOutput)
		j.endBacklog()
	})
	return nil
}

// dial goes on until there is a connection or no kernel.
func (j *jupyter) dial(port int, kind string) (*zmtp.Conn, error) {
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			if err := j.keep(conn); err != nil {
				return nil, err
			}
			return zmtp.Open(conn, kind, maxJupyterMessage)
		}
		select {
		case <-j.gone:
			return nil, errKernelEnded
		case <-time.After(dialEvery):
		}
	}
}

// keep sees to it that a connection ends soon after the kernel.
func (j *jupyter) keep(c net.Conn) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.conns = append(j.conns, c)
	select {
	case <-j.gone:
		return errKernelEnded
	default:
		return nil
	}
}

func (j *jupyter) hurry() {
	j.mu.Lock()
	defer j.mu.Unlock()
	close(j.gone)
	for _, c := range j.conns {
		_ = c.SetDeadline(time.Now().Add(pipeGrace))
	}
}

func (j *jupyter) close() {
	for _, c := range j.conns {
		c.Close()
	}
}

// awaken asks until the kernel answers and its output arrives too: what is
// published before the subscription has got there is lost. Then the kernel
// learns what it has to know to show charts.
func (j *jupyter) awaken() bool {
	c := j.begin(true)
	for asked := false; !asked; {
		if err := j.send(j.shell, c.id, "kernel_info_request", struct{}{}); err != nil {
			return false
		}
		select {
		case <-c.idle:
			asked = true
		case <-j.gone:
			return false
		case <-time.After(askEvery):
		}
	}
	if lesson := lesson(j.spec.Language); lesson != "" {
		if r, err := j.execute(lesson, true); err != nil {
			return false
		} else if r.Status != "ok" {
			j.logf("a Jupyter kernel shows neither charts nor data: %s: %s: %s", j.spec.dir, r.Name, r.Value)
		}
	}
	return true
}

// --- requests

func (j *jupyter) run(r request) error {
	if statement := reseeds[j.spec.Language]; r.Reseed && statement != nil {
		j.quietly(statement())
	}
	own := map[string]*string{}
	for name, value := range r.Env {
		own[name] = &value
	}
	if err := j.set(own); err != nil {
		return err
	}
	if _, err := j.execute(r.Code, r.Count == 0); err != nil {
		return nil // the kernel's end is seen by everybody
	}
	if err := j.set(r.Restore); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.add(event{message: &message{Type: typeDone}})
	return nil
}

// set changes environment variables.
func (j *jupyter) set(variables map[string]*string) error {
	if len(variables) == 0 {
		return nil
	}
	code, err := setVariables(j.spec.Language, variables)
	if err != nil {
		return err
	}
	j.quietly(code)
	return nil
}

// quietly runs code of ours. It tries again, because an interrupt that comes late may
// meet it.
func (j *jupyter) quietly(code string) {
	for range 3 {
		if r, err := j.execute(code, true); err != nil || r.Status == "ok" {
			return
		}
	}
}

var errKernelEnded = errors.New("the kernel has ended")

// execute runs code and returns when all it did has been delivered.
func (j *jupyter) execute(code string, silent bool) (reply, error) {
	j.turns.Lock()
	defer j.turns.Unlock()
	c := j.begin(silent)
	content := executeContent{Code: code, Silent: silent, StoreHistory: !silent, UserExpressions: map[string]any{}}
	if err := j.send(j.shell, c.id, "execute_request", content); err != nil {
		return reply{}, errKernelEnded
	}
	select {
	case <-c.replied:
	case <-j.gone:
		return reply{}, errKernelEnded
	}
	if err := j.awaitIdle(c); err != nil {
		return reply{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if m := c.reply.failure(); m != nil && !silent && !c.failed {
		j.add(event{message: m, of: c})
	}
	return c.reply, nil
}

// awaitIdle gives up on a kernel that has replied, of which everything has been
// delivered, and which does not say that it is idle: ZeroMQ throws away what
// is too much at once.
func (j *jupyter) awaitIdle(c *call) error {
	var silent time.Duration
	for {
		select {
		case <-c.idle:
			return nil
		case <-j.gone:
			return errKernelEnded
		case <-time.After(time.Second):
		}
		j.mu.Lock()
		if silent += time.Second; j.bytes > 0 {
			silent = 0
		}
		j.mu.Unlock()
		if silent >= lostAfter {
			return nil
		}
	}
}

func (j *jupyter) begin(silent bool) *call {
	c := &call{id: newID(), silent: silent, replied: make(chan struct{}), idle: make(chan struct{})}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.current = c
	return c
}

func (j *jupyter) interrupt() {
	j.mu.Lock()
	shell, control := j.shell, j.control
	j.mu.Unlock()
	if control == nil {
		j.k.process.Interrupt()
	}
	// A kernel that does not read does not heed it either, and is ended.
	go func() {
		if control != nil {
			_ = j.send(control, newID(), "interrupt_request", struct{}{})
		}
		// A cell of ipykernel that awaits something is cancelled only when its
		// event loop turns, which an interrupt alone does not make it do.
		_ = j.send(shell, newID(), "kernel_info_request", struct{}{})
	}()
}

const delimiter = "<IDS|MSG>"

func (j *jupyter) send(to *zmtp.Conn, id, kind string, content any) error {
	h := header{id, j.session, "drowse", time.Now().UTC().Format(time.RFC3339Nano), kind, "5.3"}
	parts := [][]byte{nil, []byte("{}"), []byte("{}"), nil}
	var err error
	if parts[0], err = json.Marshal(h); err != nil {
		return err
	}
	if parts[3], err = json.Marshal(content); err != nil {
		return err
	}
	return to.Send(append([][]byte{[]byte(delimiter), []byte(j.sign(parts))}, parts...)...)
}

func (j *jupyter) sign(parts [][]byte) string {
	h := hmac.New(sha256.New, []byte(j.info.Key))
	for _, part := range parts {
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// --- what the kernel says

// incoming is a message of the kernel.
type incoming struct {
	kind    string
	parent  string // the request that it belongs to
	content json.RawMessage
	tooMuch error // instead of the message
}

// receive hands on what comes over a connection until its end.
func (j *jupyter) receive(from *zmtp.Conn, hear func(*incoming)) {
	for {
		frames, err := from.Receive()
		if _, ok := errors.AsType[*zmtp.TooLargeError](err); ok {
			hear(&incoming{tooMuch: err})
			continue
		}
		if err != nil {
			// As with pipes.
			j.k.process.Kill()
			return
		}
		if m := j.parse(frames); m != nil {
			hear(m)
		}
	}
}

// parse returns nil for what is not signed with the kernel's key.
func (j *jupyter) parse(frames [][]byte) *incoming {
	for len(frames) > 0 && string(frames[0]) != delimiter {
		frames = frames[1:]
	}
	if len(frames) < 6 || !hmac.Equal(frames[1], []byte(j.sign(frames[2:6]))) {
		return nil
	}
	var own, parent header
	if json.Unmarshal(frames[2], &own) != nil || json.Unmarshal(frames[3], &parent) != nil {
		return nil
	}
	return &incoming{kind: own.Type, parent: parent.ID, content: frames[5]}
}

func (j *jupyter) hearReply(in *incoming) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := j.current
	if c == nil || in.tooMuch == nil && in.parent != c.id {
		return
	}
	select {
	case <-c.replied:
	default:
		_ = json.Unmarshal(in.content, &c.reply)
		close(c.replied)
	}
}

func (j *jupyter) hearOutput(in *incoming) {
	var out output
	if in.tooMuch == nil && json.Unmarshal(in.content, &out) != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	c := j.current
	if c == nil {
		return
	}
	if in.tooMuch != nil {
		c.failed = true
		j.add(event{message: &message{Type: typeError, Name: "ValueError", Value: in.tooMuch.Error()}, of: c})
		return
	}
	if in.parent != c.id {
		return // of a thread that an earlier cell has left behind
	}
	e := event{of: c, bytes: len(in.content)}
	switch in.kind {
	case "stream":
		e.message = &message{Type: typeStdout, Text: out.Text}
		if out.Stream == "stderr" {
			e.message.Type = typeStderr
		}
	case "display_data", "execute_result":
		e.message = &message{Type: typeResult, Main: in.kind == "execute_result", Data: out.Data}
	case "error":
		c.failed = true
		out.Status = "error"
		e.message = out.failure()
	case "status":
		if out.State != "idle" || c.quiet {
			return
		}
		c.quiet = true
	default:
		return
	}
	j.add(e)
}

// colors are how terminals are told to print in color.
var colors = lazyregexp.New("\x1b\\[[0-9;]*m")

// failure is what clients are told of a request that failed, nil of others.
func (r *reply) failure() *message {
	switch r.Status {
	case "error":
		text := colors.ReplaceAllString(strings.Join(r.Traceback, "\n"), "")
		return &message{Type: typeError, Name: r.Name, Value: r.Value, Traceback: text}
	case "aborted":
		return &message{Type: typeError, Name: endRemoved.name, Value: "The kernel has given up the cell"}
	}
	return nil
}

// --- delivery

// add is called with mu held.
func (j *jupyter) add(e event) {
	if j.closed {
		return
	}
	if e.of != nil && e.of.silent && e.message != nil {
		return
	}
	j.backlog = append(j.backlog, e)
	if j.bytes += e.bytes; j.bytes > maxBacklog && !j.held {
		j.held = true
		j.k.process.Stop()
	}
	j.wake()
}

func (j *jupyter) wake() {
	select {
	case j.more <- struct{}{}:
	default:
	}
}

func (j *jupyter) endBacklog() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.wake()
}

// deliverAll hands on what the kernel told, until nothing more can come.
func (j *jupyter) deliverAll() {
	for {
		e, ok := j.next()
		if !ok {
			return
		}
		if e.message != nil {
			j.k.tell(e.message)
		} else {
			close(e.of.idle)
		}
		j.delivered(e)
	}
}

func (j *jupyter) next() (event, bool) {
	for {
		j.mu.Lock()
		if len(j.backlog) > 0 {
			e := j.backlog[0]
			j.backlog = j.backlog[1:]
			j.mu.Unlock()
			return e, true
		}
		closed := j.closed
		j.mu.Unlock()
		if closed {
			return event{}, false
		}
		<-j.more
	}
}

func (j *jupyter) delivered(e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.bytes -= e.bytes; j.bytes <= minBacklog && j.held {
		j.held = false
		j.k.process.Continue()
	}
}
