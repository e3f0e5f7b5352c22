package gvisor

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

func TestExplain(t *testing.T) {
	tool := func(text string) error { return fmt.Errorf("%w: %s", &exec.ExitError{}, text) }
	for name, tt := range map[string]struct {
		explain func(error) error
		err     error
		code    string // "" if nothing is known of it
		remedy  string // a part of it
	}{
		"no veth":           {explainNetwork, fmt.Errorf("add veth: %w", unix.EOPNOTSUPP), "no_veth", "modprobe veth"},
		"too many networks": {explainNetwork, fmt.Errorf("unshare: %w", unix.ENOSPC), "namespaces_exhausted", "user.max_net_namespaces"},
		"no privilege":      {explainNetwork, fmt.Errorf("unshare: %w", unix.EPERM), "not_privileged", "--privileged"},
		"disk full":         {explainNetwork, fmt.Errorf("pin: %w", unix.ENOSPC), "", ""},
		"no processes":      {explainCreate, tool("creating container: fork/exec /proc/self/exe: resource temporarily unavailable"), "processes_exhausted", "TasksMax"},
		"no descriptors":    {explainCreate, tool("open /dev/null: too many open files"), "descriptors_exhausted", "LimitNOFILE"},
		"no user namespace": {explainCreate, tool("fork/exec /proc/self/exe: no space left on device"), "namespaces_exhausted", "max_user_namespaces"},
		"disk full in tool": {explainCreate, tool("write state: no space left on device"), "", ""},
		"anything else":     {explainCreate, errors.New("no such file or directory"), "", ""},
		"known already":     {explainCreate, errdef.New(errdef.Unavailable, "disk_full", "full"), "disk_full", ""},
	} {
		err := tt.explain(tt.err)
		e, _ := errors.AsType[*errdef.Error](err)
		switch {
		case e == nil && tt.code != "" || e != nil && e.Code != tt.code:
			t.Errorf("%s: %v; want code %q", name, err, tt.code)
		case e != nil && !strings.Contains(e.Remedy, tt.remedy):
			t.Errorf("%s: remedy %q; want %q in it", name, e.Remedy, tt.remedy)
		case !errors.Is(err, tt.err) && !strings.Contains(err.Error(), tt.err.Error()):
			t.Errorf("%s: the cause is lost: %v", name, err)
		}
	}
}

// TestNeedsLibraries: a drowse of a plain "go build" said only that it could not read
// a sync file.
func TestNeedsLibraries(t *testing.T) {
	needStatic(t)
	for path, want := range map[string]bool{"/proc/self/exe": false, "/bin/sh": true, "/etc/passwd": false, "/nonexistent": false} {
		if got := needsLibraries(path); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}
