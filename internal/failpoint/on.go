//go:build failpoint

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Fail returns the error that is to happen at p, or does not return.
func Fail(p Point) error {
	switch a := strike(p); a.Fault {
	case Crash:
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case Error:
		return fmt.Errorf("fault at %s", p)
	case DiskFull:
		return fmt.Errorf("fault at %s: %w", p, unix.ENOSPC)
	case Hold:
		for slices.Contains(armed(), a) {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// Pass marks p where nothing can fail any more, but a crash can come.
func Pass(p Point) { _ = Fail(p) }

var (
	dir = os.Getenv(EnvDir)

	mu     sync.Mutex
	passes = map[Armed]int{} // of the point since it was armed
)

// strike notes that p is passed, and returns what strikes there.
func strike(p Point) Armed {
	if dir == "" {
		return Armed{}
	}
	mu.Lock()
	defer mu.Unlock()
	add(ReachedFile, string(p)+"\n")
	for _, a := range armed() {
		if a.Point != p {
			continue
		}
		passes[a]++
		if passes[a] < a.Nth || passes[a] > a.Nth && a.Fault != DiskFull {
			continue
		}
		add(StruckFile, a.String())
		return a
	}
	return Armed{}
}

// armed returns what is armed.
func armed() []Armed {
	data, err := os.ReadFile(filepath.Join(dir, ArmedFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(err)
	var all []Armed
	for line := range strings.Lines(string(data)) {
		var a Armed
		_, err := fmt.Sscanf(line, armedFormat, &a.Point, &a.Fault, &a.Nth, &a.Serial)
		must(err)
		all = append(all, a)
	}
	return all
}

// add appends a line to a file.
func add(name, line string) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	must(err)
	defer f.Close()
	_, err = f.WriteString(line)
	must(err)
}

// must ends a server whose test would otherwise wait in vain.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("failpoint: %v", err))
	}
}
