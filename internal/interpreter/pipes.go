package interpreter

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipeSpeech is how one of our own kernels is spoken with: over pipes.
type pipeSpeech struct {
	k        *kernel
	requests *os.File
	messages *os.File
	taken    *os.File // tells the kernel that a result was delivered
}

// run may block while the kernel does not read.
func (p *pipeSpeech) run(r request) error {
	data, err := p.k.language.encode(r)
	if err != nil {
		return err
	}
	if _, err := p.requests.Write(data); err != nil && !errors.Is(err, io.ErrClosedPipe) && p.k.alive() {
		return err
	}
	return nil
}

func (p *pipeSpeech) interrupt() { p.k.process.Interrupt() }

func (p *pipeSpeech) listen() {
	lines := bufio.NewReaderSize(p.messages, rawChunk)
	for {
		line, err := readLine(lines)
		if err != nil {
			// A kernel that closes its descriptor, or says what is no message,
			// is of no more use.
			p.k.process.Kill()
			return
		}
		m := &message{}
		if json.Unmarshal(line, m) != nil {
			continue
		}
		p.k.tell(m)
		if m.Type == typeResult {
			p.tellTaken()
		}
	}
}

func (p *pipeSpeech) hurry() { _ = p.messages.SetReadDeadline(time.Now().Add(pipeGrace)) }

func (p *pipeSpeech) close() { closeAll(p.requests, p.messages, p.taken) }

// tellTaken never blocks: a kernel that does not listen forgoes the order.
func (p *pipeSpeech) tellTaken() {
	if conn, err := p.taken.SyscallConn(); err == nil {
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

// kernelPipes are the two sides of a kernel's descriptors.
type kernelPipes struct {
	theirs                                    []*os.File
	requests, stdout, stderr, messages, taken *os.File
}

// open makes the standard ones: nothing to read, and two pipes.
func (p *kernelPipes) open() error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	p.theirs = append(p.theirs, null)
	return p.add(fromKernel(&p.stdout), fromKernel(&p.stderr))
}

// openAll makes those of our own kernels.
func (p *kernelPipes) openAll() error {
	if err := p.open(); err != nil {
		return err
	}
	return p.add(toKernel(&p.requests), fromKernel(&p.messages), toKernel(&p.taken))
}

// end says where our end of a pipe goes, and which it is.
type end struct {
	ours     **os.File
	toKernel bool
}

func fromKernel(ours **os.File) end { return end{ours, false} }
func toKernel(ours **os.File) end   { return end{ours, true} }

// add makes more pipes. Without success there are none at all afterwards.
func (p *kernelPipes) add(ends ...end) error {
	for _, e := range ends {
		var pair [2]int
		if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
			p.closeTheirs()
			p.closeOurs()
			return err
		}
		mine, other := pair[0], pair[1]
		if e.toKernel {
			mine, other = other, mine
		}
		// Non-blocking puts our end, not the kernel's, under the runtime's
		// poller.
		_ = unix.SetNonblock(mine, true)
		*e.ours = os.NewFile(uintptr(mine), "pipe")
		p.theirs = append(p.theirs, os.NewFile(uintptr(other), "pipe"))
	}
	return nil
}

func (p *kernelPipes) closeTheirs() { closeAll(p.theirs...) }

func (p *kernelPipes) closeOurs() { closeAll(p.requests, p.stdout, p.stderr, p.messages, p.taken) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
