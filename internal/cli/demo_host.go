package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// hostUse is what a sandbox's processes take of the host.
type hostUse struct {
	count int
	bytes int64 // proportional set size, as far as it may be read
}

func (u hostUse) String() string {
	switch u.count {
	case 0:
		return "no process, 0 MiB"
	case 1:
		return fmt.Sprintf("1 process, %.1f MiB", float64(u.bytes)/(1<<20))
	}
	return fmt.Sprintf("%d processes, %.1f MiB", u.count, float64(u.bytes)/(1<<20))
}

// hostProcesses adds up the processes of this machine whose command line
// mentions a sandbox, or a runtime that was made before it became its.
func hostProcesses(id string) (hostUse, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return hostUse{}, fmt.Errorf("look at the host's processes: %w", err)
	}
	var use hostUse
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(cmdline, []byte(id)) && !madeAheadFor(id, cmdline) {
			continue // it ended meanwhile, or is another's
		}
		use.count++
		use.bytes += pss(filepath.Join(dir, "smaps_rollup"))
	}
	return use, nil
}

// madeAhead is the directory that a runtime had, by its command line, while it
// waited to be used.
var madeAhead = lazyregexp.New(`(/[^\x00=]*)/waiting/(warm-[^\x00/]*)`)

// madeAheadFor reports whether a runtime was made ahead and is sandbox id's now:
// what it is called on its command line is written down in its new directory.
func madeAheadFor(id string, cmdline []byte) bool {
	m := madeAhead.FindSubmatch(cmdline)
	if m == nil {
		return false
	}
	now, err := filepath.Glob(filepath.Join(string(m[1]), "bundles", id+"*", "container-id"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(now, func(file string) bool {
		known, err := os.ReadFile(file)
		return err == nil && bytes.Equal(known, m[2])
	})
}

// pss reads the proportional set size, 0 where that is not allowed.
func pss(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		var kib int64
		if n, _ := fmt.Sscanf(string(line), "Pss: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

// mountsBelow returns what is mounted in a directory. Removing it would reach
// through.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) > 4 && bytes.HasPrefix(append(fields[4], '/'), []byte(dir+"/")) {
			found = append(found, string(fields[4]))
		}
	}
	return found, lines.Err()
}
