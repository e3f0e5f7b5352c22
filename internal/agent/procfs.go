package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
)

// tick is the unit of times in /proc, the same on every architecture Go runs
// on.
const tick = 10 * time.Millisecond

// maxPages bounds what a process is taken to hold.
const maxPages = 1 << 40

// procStat is what is needed of /proc/PID/stat.
type procStat struct {
	pid     int
	name    string
	state   byte
	parent  int
	session int
	ticks   uint64 // of CPU, with those of children that were waited for
	threads int
	start   uint64 // in ticks since boot
	memory  int64  // bytes of it that are in memory
}

// gone is true of a process that only waits to be reaped. A leader whose other
// threads run on looks like one.
func (s *procStat) gone() bool {
	return s.state == 'X' || s.state == 'Z' && s.threads <= 1
}

// procIO is what is needed of /proc/PID/io; zero where there is none.
type procIO struct{ bytesRead, bytesWritten, reads, writes uint64 }

// procReader reads many small files of /proc. It uses system calls directly:
// package os would stat every file and offer it to the poller, and a look at
// fifty processes would take twice as long.
type procReader struct {
	dir *os.File // /proc; nil between looks
	buf [4096]byte
}

func (r *procReader) open() (err error) {
	r.dir, err = os.Open("/proc")
	return err
}

func (r *procReader) close() {
	r.dir.Close()
	r.dir = nil
}

// pids lists the processes there are.
func (r *procReader) pids() ([]int, error) {
	names, err := r.dir.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// file returns what is at the beginning of a file of a process. The bytes are
// good until the next call.
func (r *procReader) file(pid int, name string) ([]byte, error) {
	path := strconv.Itoa(pid) + "/" + name
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(int(r.dir.Fd()), path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, r.buf[:]) })
	return r.buf[:max(n, 0)], err
}

func (r *procReader) stat(pid int) (procStat, bool) {
	text, err := r.file(pid, "stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(pid, text)
}

// parseStat reads "pid (name) state ppid group session ..."; the name may
// contain anything.
func parseStat(pid int, text []byte) (procStat, bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return procStat{}, false
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 22 {
		return procStat{}, false
	}
	number := func(i int) uint64 {
		n, _ := strconv.ParseUint(string(fields[i]), 10, 64)
		return n
	}
	return procStat{
		pid:     pid,
		name:    string(text[open+1 : end]),
		state:   fields[0][0],
		parent:  int(number(1)),
		session: int(number(3)),
		ticks:   number(11) + number(12) + number(13) + number(14),
		threads: int(number(17)),
		start:   number(19),
		memory:  int64(min(number(21), maxPages)) * int64(os.Getpagesize()),
	}, true
}

func (r *procReader) io(pid int) procIO {
	text, err := r.file(pid, "io")
	if err != nil {
		return procIO{}
	}
	return parseIO(text)
}

func parseIO(text []byte) procIO {
	var io procIO
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
		if err != nil {
			continue
		}
		switch string(key) {
		case "rchar":
			io.bytesRead = n
		case "wchar":
			io.bytesWritten = n
		case "syscr":
			io.reads = n
		case "syscw":
			io.writes = n
		}
	}
	return io
}

// commandLine is argv joined, or the name of a process that has none.
func (r *procReader) commandLine(pid int, name string) (line string, none bool) {
	text, err := r.file(pid, "cmdline")
	text = bytes.TrimRight(text, "\x00 ")
	if err != nil || len(text) == 0 {
		return human.Line("["+name+"]", agentapi.MaxCommand), true
	}
	return human.Line(strings.ReplaceAll(string(text), "\x00", " "), agentapi.MaxCommand), false
}

// bootTime is what start times in /proc count from.
func bootTime(now time.Time) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(ts.Nano()))
}
