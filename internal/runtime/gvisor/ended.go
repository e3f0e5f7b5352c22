package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Logs beside the description of a runtime: what gVisor's own process says, which is
// how it failed or how the first process ended, and what the tool that made it and then
// the first process say.
const (
	sentryLog = "sentry.log"
	createLog = "create.log"
)

// firstHow begins the line that says how that ended.
const firstHow = "its first process "

func howEnded(s unix.WaitStatus) string {
	if s.Signaled() {
		return fmt.Sprintf("was ended by signal %d (%s)", s.Signal(), s.Signal())
	}
	return fmt.Sprintf("exited with status %d", s.ExitStatus())
}

// maxLog is as much of a log as is read.
const maxLog = 64 << 10

// lastWords returns how a runtime ended, or nothing.
func lastWords(bundle string) string {
	said := logged(filepath.Join(bundle, sentryLog), io.SeekStart) // a dump of all its goroutines follows
	_, how, first := strings.Cut("\n"+said, "\n"+firstHow)
	words := reason(said)
	switch {
	case first:
		words = firstHow + strings.TrimSpace(how)
		if why := reason(logged(filepath.Join(bundle, createLog), io.SeekEnd)); why != "" {
			words += ": " + why
		}
	case words != "":
		words = "its runtime failed: " + words
	}
	return human.Line(words, maxError)
}

// logged returns the beginning or the end of a log; what cannot be read is empty.
func logged(name string, whence int) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if whence == io.SeekEnd {
		_, _ = f.Seek(-maxLog, whence) // a shorter one is read from its beginning
	}
	data, _ := io.ReadAll(io.LimitReader(f, maxLog))
	return string(data)
}

// reason returns the line by which a Go program says why it ends: the last that begins
// as those of a panic do, or else the last.
func reason(log string) (line string) {
	panicked := false
	for l := range strings.Lines(log) {
		l = strings.TrimSpace(l)
		begins := slices.ContainsFunc([]string{"panic: ", "fatal error: ", "SIG"}, func(s string) bool { return strings.HasPrefix(l, s) })
		if begins || l != "" && !panicked {
			line = l
		}
		panicked = panicked || begins
	}
	return line
}

// EndedBy implements runtime.Witness.
func (i *instance) EndedBy() (runtime.Ending, error) {
	end := runtime.Ending{Words: lastWords(i.d.bundle(i.id))}
	if i.tookTooMuch.Load() {
		end.Limit = runtime.MemoryLimit
		return end, nil
	}
	var err error
	if end.Limit, err = limitOf(i.group); err != nil {
		err = fmt.Errorf("end of runtime %s: %w", i.id, err)
	}
	return end, err
}

// limitOf returns the limit of its cgroup that a runtime ended of. Whichever of its
// processes the kernel kills for want of memory, gVisor ends the others; and gVisor's
// own process gives up where it gets no thread. So the whole runtime has ended of it.
func limitOf(g group) (runtime.Limit, error) {
	if kills, err := oomKills(g); err != nil {
		return "", err
	} else if kills > 0 {
		return runtime.MemoryLimit, nil
	}
	if refused, err := refusedTasks(g); err != nil {
		return "", err
	} else if refused > 0 {
		return runtime.PIDsLimit, nil
	}
	return "", nil
}

// oomKills returns how many processes of a runtime the kernel killed because
// its cgroup was out of memory.
func oomKills(g group) (int64, error) {
	for _, events := range g.files("memory", "memory.oom_control", "memory.events") {
		if n, ok := counter(events, "oom_kill"); ok {
			return n, nil
		}
	}
	return 0, errors.New("no cgroup counts kills for want of memory")
}

// refusedTasks returns how often a runtime was refused a process or thread
// because its cgroup had as many as it may have.
func refusedTasks(g group) (int64, error) {
	for _, events := range g.files("pids", "pids.events", "pids.events") {
		if n, ok := counter(events, "max"); ok {
			return n, nil
		}
	}
	return 0, errors.New("no cgroup counts refused processes")
}

// counter returns the number in the line of a file that begins with a name.
func counter(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
