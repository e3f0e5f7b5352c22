package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
)

// To start a process takes as long as to read some ten MiB. So image servers wait for
// their image, started and confined, as runtimes wait for their root. Each has a socket,
// over which it gets all it needs in one message, and ends if it gets none.

// imageControl is that socket, in an image server.
const imageControl = 3

// What an image server gets as open files.
const (
	imageSocket = iota // to the sentry
	imageReport
	imageFiles // the first
)

const (
	// maxImageFiles bounds them: an image has a few files, and its packs.
	maxImageFiles = 64
	// handOverWithin is how long an image server may take to take over its image.
	handOverWithin = 10 * time.Second
	// mostImageServers is how many wait: of more, few would be used at once.
	mostImageServers = 2
)

// imageProcess is an image server that has no image yet.
type imageProcess struct {
	cmd     *exec.Cmd // not waited for until it has an image: no other process gets its id
	control *net.UnixConn
}

func (p *imageProcess) pid() int { return p.cmd.Process.Pid }

// serving is what an image server is told, with its open files.
type serving struct {
	Files    []runtime.ImageFile `json:"files"`
	AllFirst bool                `json:"allFirst"`
	Late     bool                `json:"late,omitempty"` // pages are asked for over a socket, which comes after the files
}

// imageCommand is the command of an image server or taker.
func imageCommand(name string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{name}
	cmd.Env = []string{"GOMAXPROCS=2", "GOMEMLIMIT=40MiB"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

// startImageServer starts one that waits.
func startImageServer() (_ *imageProcess, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, its := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer its.Close()
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		return nil, err
	}
	cmd := imageCommand(imageServerName)
	cmd.ExtraFiles = []*os.File{its}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	return &imageProcess{cmd, conn.(*net.UnixConn)}, nil
}

// serve hands an image over. After an error the process is to be ended.
func (p *imageProcess) serve(what serving, files []*os.File) error {
	data, err := json.Marshal(what)
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := p.control.SetDeadline(time.Now().Add(handOverWithin)); err != nil {
		return err
	}
	// The files come along with the first byte.
	if _, _, err := p.control.WriteMsgUnix(data[:1], unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	if _, err := p.control.Write(data[1:]); err != nil {
		return err
	}
	p.letGo()
	return nil
}

// letGo leaves the process to itself. Its report says what became of it.
func (p *imageProcess) letGo() {
	p.control.Close()
	go func() { _ = p.cmd.Wait() }()
}

// end ends one that has no image, or was not to get it.
func (p *imageProcess) end() {
	_ = p.cmd.Process.Kill()
	p.letGo()
}

// awaitImage waits for an image. Without one, because the server has ended, it is io.EOF.
func awaitImage(control int) (what serving, files []int, err error) {
	first, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxImageFiles))
	var n, rn int
	for {
		if n, rn, _, _, err = unix.Recvmsg(control, first, rights, unix.MSG_CMSG_CLOEXEC); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return what, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil || len(messages) != 1 {
		return what, nil, errors.Join(err, errors.New("an image without files"))
	}
	if files, err = unix.ParseUnixRights(&messages[0]); err != nil {
		return what, nil, err
	}
	rest := len(files) - imageFiles
	conn := os.NewFile(uintptr(control), "control")
	defer conn.Close()
	if err := json.NewDecoder(io.MultiReader(bytes.NewReader(first), conn)).Decode(&what); err != nil {
		return what, nil, err
	}
	if what.Late {
		rest--
	}
	if rest != len(what.Files) {
		return what, nil, fmt.Errorf("%d open files for an image of %d", len(files), len(what.Files))
	}
	return what, files, nil
}

// beImageServer serves the image that it gets, whose files are read by what reads
// returns. It returns the exit code.
func beImageServer(reads func(*os.File) io.ReaderAt) int {
	ignorePipes()
	if err := imageserver.Confine(); err != nil {
		return 1
	}
	what, fds, err := awaitImage(imageControl)
	if errors.Is(err, io.EOF) {
		return 0
	}
	if err != nil {
		return 2
	}
	var files []imageserver.File
	for i, f := range what.Files {
		from := reads(os.NewFile(uintptr(fds[imageFiles+i]), f.Name))
		if what.Late && f.Name == pagemap.Stream {
			from = imageserver.Awaiting(from, f.Size, fds[imageFiles+len(what.Files)], os.Exit)
		}
		files = append(files, imageserver.File{ImageFile: f, From: from})
	}
	to := json.NewEncoder(os.NewFile(uintptr(fds[imageReport]), loadingFile))
	err = imageserver.Serve(fds[imageSocket], files, what.AllFirst, func(d *imageserver.Damage) { _ = to.Encode(report{Damage: d}) })
	if err == nil {
		err = to.Encode(report{Done: true})
	}
	if err != nil {
		return 1
	}
	return 0
}

// imagePool has image servers wait, once one was needed.
type imagePool struct {
	mu      sync.Mutex
	size    int // of those that wait
	waiting []*imageProcess
}

// take returns an image server. It starts one where none waits.
func (p *imagePool) take(most int) (*imageProcess, error) {
	p.mu.Lock()
	p.size = min(most, mostImageServers)
	for len(p.waiting) > 0 {
		s := p.waiting[0]
		p.waiting = p.waiting[1:]
		if !exited(s.pid()) {
			p.mu.Unlock()
			return s, nil
		}
		s.end()
	}
	p.mu.Unlock()
	return startImageServer()
}

// takeImageServer returns an image server.
func (d *Driver) takeImageServer() (*imageProcess, error) {
	if d.pool == nil { // this is a tool
		return startImageServer()
	}
	return d.pool.images.take(d.pool.size)
}

// ignorePipes has a write to who has gone fail, and not end the process.
func ignorePipes() { signal.Ignore(unix.SIGPIPE) }

// lacks reports whether another should wait.
func (p *imagePool) lacks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) < p.size
}

// fill has another wait.
func (p *imagePool) fill(context.Context) error {
	s, err := startImageServer()
	if err != nil {
		return fmt.Errorf("start image server: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, s)
	return nil
}

// close ends those that wait.
func (p *imagePool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size = 0
	for _, s := range p.waiting {
		s.end()
	}
	p.waiting = nil
}
