package interpreter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
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
	// Script is written to a file of the name ScriptName, whose path comes
	// after Args.
	Script     []byte
	ScriptName string
}

// Process is a kernel that was started.
type Process interface {
	// Interrupt sends SIGINT to the whole group, Kill ends it.
	Interrupt()
	Kill()
	// Done is closed when the kernel has ended, and Status says how.
	Done() <-chan struct{}
	Status() string
}

// kernel is one process that runs cells.
type kernel struct {
	process  Process
	language *language
	env      map[string]string
	requests *os.File
	taken    *os.File      // tells the kernel that a result was delivered
	ended    chan struct{} // closed when all it said has been delivered

	// order is held while something the kernel said is delivered, so that
	// output is in its place among the messages.
	order sync.Mutex
	raw   [2]*rawOutput

	mu      sync.Mutex
	current *execution // nil: nobody listens
	end     ending     // why it was taken away, if it was
}

// startKernel returns a kernel that is ready. A program that does not get
// there fails with what it printed.
func startKernel(ctx context.Context, host Host, l *language, dir string) (*kernel, error) {
	path, ok := host.Look(l.program)
	if !ok {
		return nil, failf(http.StatusInternalServerError, "language '%s' needs %s, which is not installed here", l.name, l.program)
	}
	env, err := host.Environment()
	if err != nil {
		return nil, err
	}
	pipes, err := newKernelPipes()
	if err != nil {
		return nil, err
	}
	process, err := host.Start(Command{
		Path: path, Args: l.options, Env: env, Dir: dir,
		Files: pipes.theirs[:], Script: l.script, ScriptName: l.file,
	})
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return nil, failf(http.StatusInternalServerError, "start the %s kernel: %v", l.name, err)
	}
	k := &kernel{
		process: process, language: l, env: env, requests: pipes.requests, taken: pipes.taken,
		ended: make(chan struct{}),
		raw:   [2]*rawOutput{{file: pipes.stdout, kind: typeStdout}, {file: pipes.stderr, kind: typeStderr}},
	}
	first := newExecution()
	k.listen(first)
	k.read(pipes.messages)
	if err := k.awaitReady(ctx, first); err != nil {
		k.process.Kill()
		return nil, err
	}
	return k, nil
}

// awaitReady listens to the kernel's first words.
func (k *kernel) awaitReady(ctx context.Context, first *execution) error {
	limit := time.NewTimer(startLimit)
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
			return failf(http.StatusInternalServerError, "the %s kernel ended at its start (%s): %s",
				k.language.name, k.process.Status(), strings.TrimSpace(words.String()))
		case <-limit.C:
			return failf(http.StatusInternalServerError, "the %s kernel was not ready after %s", k.language.name, startLimit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *kernel) check(ready *message) error {
	if k.language.typed && !ready.TypeScript {
		return failf(http.StatusInternalServerError,
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

func (k *kernel) listen(e *execution) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = e
}

func (k *kernel) unlisten() { k.listen(nil) }

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
func (k *kernel) read(messages *os.File) {
	var readers sync.WaitGroup
	for _, r := range k.raw {
		readers.Go(func() { r.pump(k) })
	}
	readers.Go(func() { k.readMessages(messages) })
	go func() {
		<-k.process.Done()
		limit := time.Now().Add(pipeGrace)
		for _, f := range []*os.File{k.raw[0].file, k.raw[1].file, messages} {
			_ = f.SetReadDeadline(limit)
		}
		readers.Wait()
		k.raw[0].file.Close()
		k.raw[1].file.Close()
		messages.Close()
		k.requests.Close()
		k.taken.Close()
		close(k.ended)
	}()
}

func (k *kernel) readMessages(from *os.File) {
	lines := bufio.NewReaderSize(from, rawChunk)
	for {
		line, err := readLine(lines)
		if err != nil {
			// A kernel that closes its descriptor, or says what is no message,
			// is of no more use.
			k.process.Kill()
			return
		}
		m := &message{}
		if json.Unmarshal(line, m) != nil {
			continue
		}
		k.order.Lock()
		// What was printed before the message is in the pipes by now.
		for _, r := range k.raw {
			r.drain(k)
			if m.Type == typeDone {
				r.finish(k)
			}
		}
		k.deliver(m)
		k.order.Unlock()
		if m.Type == typeResult {
			k.tellTaken()
		}
	}
}

// tellTaken never blocks: a kernel that does not listen forgoes the order.
func (k *kernel) tellTaken() {
	if conn, err := k.taken.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), []byte{0}) })
	}
}

var errTooLong = errors.New("a message of a kernel is too long")

func readLine(from *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		if len(line)+len(part) > maxMessage {
			return nil, errTooLong
		}
		line = append(line, part...)
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
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
	if cut > 0 {
		k.deliver(&message{Type: r.kind, Text: string(data[:cut])})
	}
}

// finish delivers what was kept, at the end of a cell.
func (r *rawOutput) finish(k *kernel) {
	if len(r.rest) > 0 {
		k.deliver(&message{Type: r.kind, Text: string(r.rest)})
		r.rest = nil
	}
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

// send hands a cell over. It may block while the kernel does not read, until
// its end.
func (k *kernel) send(r request) error {
	data, err := k.language.encode(r)
	if err != nil {
		return err
	}
	if _, err := k.requests.Write(data); err != nil && !errors.Is(err, io.ErrClosedPipe) && k.alive() {
		return err
	}
	return nil
}

// kernelPipes are the two sides of a kernel's descriptors.
type kernelPipes struct {
	theirs                                    [6]*os.File
	requests, stdout, stderr, messages, taken *os.File
}

func newKernelPipes() (*kernelPipes, error) {
	p := &kernelPipes{}
	var err error
	if p.theirs[0], err = os.Open(os.DevNull); err != nil {
		return nil, err
	}
	pipe := func(theirs int, ours **os.File, toKernel bool) {
		if err != nil {
			return
		}
		var ends [2]int
		if err = unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return
		}
		mine, other := ends[0], ends[1]
		if toKernel {
			mine, other = other, mine
		}
		// Non-blocking puts our end, not the kernel's, under the runtime's
		// poller.
		_ = unix.SetNonblock(mine, true)
		*ours, p.theirs[theirs] = os.NewFile(uintptr(mine), "pipe"), os.NewFile(uintptr(other), "pipe")
	}
	pipe(1, &p.stdout, false)
	pipe(2, &p.stderr, false)
	pipe(3, &p.requests, true)
	pipe(4, &p.messages, false)
	pipe(5, &p.taken, true)
	if err != nil {
		p.closeTheirs()
		p.closeOurs()
		return nil, err
	}
	return p, nil
}

func (p *kernelPipes) closeTheirs() { closeAll(p.theirs[:]...) }

func (p *kernelPipes) closeOurs() { closeAll(p.requests, p.stdout, p.stderr, p.messages, p.taken) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
