package interpreter

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// startLimit is how long a kernel may take until it is ready.
	startLimit = 60 * time.Second

	// maxMessage bounds one message of a kernel. The kernels know a smaller one.
	maxMessage = 16 << 20

	rawChunk = 32 << 10

	// pipeGrace is how long, after a kernel's end, its last words are waited
	// for while a descendant has its pipes open.
	pipeGrace = 150 * time.Millisecond
)

// Command is a kernel to start.
type Command struct {
	Path string
	Args []string // without the name
	Env  map[string]string
	Dir  string
	// Files are its descriptors from 0 on; they stay the caller's.
	Files []*os.File
	// File is written to one of the name FileName, whose path takes the place
	// of FilePath in Args.
	File     []byte
	FileName string
	// Secret is a File that is the kernel's user's alone, and goes with it.
	Secret bool
}

// FilePath stands for the path of a kernel's file, as in a kernel.json.
const FilePath = "{connection_file}"

// Process is a kernel that was started.
type Process interface {
	// Interrupt sends SIGINT to the whole group, Kill ends it. Stop holds it
	// until Continue.
	Interrupt()
	Kill()
	Stop()
	Continue()
	// Done is closed when the kernel has ended, and Status says how.
	Done() <-chan struct{}
	Status() string
}

// speech is how cells reach a kernel, and what it says comes back.
type speech interface {
	// run hands a cell over, and may wait for its end. It returns at the
	// kernel's end at the latest.
	run(request) error
	// interrupt asks the kernel to give up its cell.
	interrupt()
	// listen passes on all that the kernel says until its end, beginning with
	// a message that it is ready.
	listen()
	// hurry makes listen return soon, because the kernel has ended.
	hurry()
	close()
}

// kernel is one process that runs cells.
type kernel struct {
	process  Process
	host     Host
	copies   int64 // of the sandbox when this was last seeded; of whoever has the turn
	language *language
	title    string // what it is called where something fails
	env      map[string]string
	speech   speech
	ended    chan struct{} // closed when all it said has been delivered

	// order is held while something the kernel said is delivered, so that
	// output is in its place among the messages.
	order sync.Mutex
	raw   [2]*rawOutput
	muted bool // what it prints is read, and not told

	mu      sync.Mutex
	current *execution // nil: nobody listens
	end     ending     // why it was taken away, if it was
}

// startOwn returns a kernel of ours that is ready.
func startOwn(ctx context.Context, host Host, l *language, dir string) (*kernel, error) {
	path, ok := host.Look(l.program)
	if !ok {
		return nil, failf(http.StatusInternalServerError, "language '%s' needs %s, which is not installed here", l.name, l.program)
	}
	env, err := host.Environment()
	if err != nil {
		return nil, err
	}
	pipes := &kernelPipes{}
	if err := pipes.openAll(); err != nil {
		return nil, err
	}
	process, err := host.Start(Command{
		Path: path, Args: append(slices.Clone(l.options), FilePath), Env: env, Dir: dir,
		Files: pipes.theirs, File: l.script, FileName: l.file,
	})
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return nil, failf(http.StatusInternalServerError, "start the %s kernel: %v", l.name, err)
	}
	k := newKernel(process, host, l, env, pipes)
	k.speech = &pipeSpeech{k, pipes.requests, pipes.messages, pipes.taken}
	if err := k.begin(ctx, startLimit); err != nil {
		return nil, err
	}
	return k, nil
}

func newKernel(process Process, host Host, l *language, env map[string]string, pipes *kernelPipes) *kernel {
	return &kernel{
		process: process, host: host, copies: host.Copies(), language: l, title: l.name + " kernel", env: env, ended: make(chan struct{}),
		raw: [2]*rawOutput{{file: pipes.stdout, kind: typeStdout}, {file: pipes.stderr, kind: typeStderr}},
	}
}

// begin waits until the kernel is ready. One that does not get there fails with
// what it printed.
func (k *kernel) begin(ctx context.Context, limit time.Duration) error {
	first := newExecution()
	k.listen(first)
	k.read()
	err := k.awaitReady(ctx, first, limit)
	if err != nil {
		k.process.Kill()
	}
	return err
}

// awaitReady listens to the kernel's first words.
func (k *kernel) awaitReady(ctx context.Context, first *execution, within time.Duration) error {
	limit := time.NewTimer(within)
	defer limit.Stop()
	defer first.leave()
	var words strings.Builder
	for {
		select {
		case m := <-first.messages:
			if m.Type == typeReady {
				k.unlisten()
				return k.check(m)
			}
			if words.Len() < rawChunk {
				words.WriteString(m.Text)
			}
		case <-k.ended:
			return failf(http.StatusInternalServerError, "the %s ended at its start (%s): %s",
				k.title, k.process.Status(), strings.TrimSpace(words.String()))
		case <-limit.C:
			return failf(http.StatusInternalServerError, "the %s was not ready after %s", k.title, within)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *kernel) check(ready *message) error {
	if k.language.typed && !ready.TypeScript {
		return failf(http.StatusBadRequest,
			"language '%s' needs Node.js 22.13 or later, and here is %s; plain JavaScript runs", k.language.name, ready.Version)
	}
	return nil
}

// alive reports whether the kernel can still run cells.
func (k *kernel) alive() bool {
	select {
	case <-k.process.Done():
		return false
	default:
		return true
	}
}

// listen has e told what the kernel says from now on. What was printed before, by a
// job in the background, may still be in the pipes.
func (k *kernel) listen(e *execution) {
	k.order.Lock()
	defer k.order.Unlock()
	for _, r := range k.raw {
		r.drain(k)
		r.rest = nil
	}
	k.hear(e)
}

func (k *kernel) unlisten() { k.hear(nil) }

func (k *kernel) hear(e *execution) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = e
}

// deliver is called with order held. Without a listener, as between cells, what
// is said is lost; so the output of a background job never blocks it.
func (k *kernel) deliver(m *message) {
	k.mu.Lock()
	e := k.current
	k.mu.Unlock()
	if e == nil {
		return
	}
	if m.Type == typeDone {
		k.unlisten()
		close(e.finished)
		return
	}
	select {
	case e.messages <- m:
	case <-e.gone:
	}
}

// read delivers all the kernel says until it has ended.
func (k *kernel) read() {
	var readers sync.WaitGroup
	for _, r := range k.raw {
		readers.Go(func() { r.pump(k) })
	}
	readers.Go(k.speech.listen)
	go func() {
		<-k.process.Done()
		limit := time.Now().Add(pipeGrace)
		for _, r := range k.raw {
			_ = r.file.SetReadDeadline(limit)
		}
		k.speech.hurry()
		readers.Wait()
		k.raw[0].file.Close()
		k.raw[1].file.Close()
		k.speech.close()
		close(k.ended)
	}()
}

// tell delivers a message, after what was printed before it: that is in the
// pipes by now.
func (k *kernel) tell(m *message) {
	k.order.Lock()
	defer k.order.Unlock()
	for _, r := range k.raw {
		r.drain(k)
		if m.Type == typeDone {
			r.finish(k)
		}
	}
	k.deliver(m)
}

// mute is for a kernel that tells itself what it and its children print, and
// prints it besides.
func (k *kernel) mute() {
	k.order.Lock()
	defer k.order.Unlock()
	k.muted = true
}

// rawOutput is what a kernel's process and its children write past it.
type rawOutput struct {
	file *os.File
	kind string
	rest []byte // the beginning of a character; guarded by kernel.order
}

// pump delivers the output until its end. It reads only with the lock held, so
// that whoever has the lock knows that nothing is on its way.
func (r *rawOutput) pump(k *kernel) {
	conn, err := r.file.SyscallConn()
	if err != nil {
		return
	}
	ended := false
	for !ended {
		err := conn.Read(func(fd uintptr) bool {
			k.order.Lock()
			defer k.order.Unlock()
			n, err := r.readOnce(fd, k)
			ended = n <= 0 && err != unix.EAGAIN
			return n > 0 || ended
		})
		if err != nil {
			return
		}
	}
}

// drain delivers what the pipe holds; order is held.
func (r *rawOutput) drain(k *kernel) {
	conn, err := r.file.SyscallConn()
	if err != nil {
		return
	}
	// No conn.Read: the pump waits in one, and they exclude each other.
	_ = conn.Control(func(fd uintptr) {
		for total := 0; total < maxMessage; {
			n, _ := r.readOnce(fd, k)
			if n <= 0 {
				return
			}
			total += n
		}
	})
}

func (r *rawOutput) readOnce(fd uintptr, k *kernel) (int, error) {
	buf := make([]byte, rawChunk)
	for {
		n, err := unix.Read(int(fd), buf)
		if err == unix.EINTR {
			continue
		}
		if n > 0 {
			r.publish(append(r.rest, buf[:n]...), k)
		}
		return n, err
	}
}

// publish keeps the beginning of a character for the next time.
func (r *rawOutput) publish(data []byte, k *kernel) {
	cut := len(data) - halfRune(data)
	r.rest = bytes.Clone(data[cut:])
	if cut > 0 && !k.muted {
		k.deliver(&message{Type: r.kind, Text: string(data[:cut])})
	}
}

// finish delivers what was kept, at the end of a cell.
func (r *rawOutput) finish(k *kernel) {
	if len(r.rest) > 0 && !k.muted {
		k.deliver(&message{Type: r.kind, Text: string(r.rest)})
	}
	r.rest = nil
}

// halfRune is the length of the incomplete character at the end of data.
func halfRune(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
