package ownthread

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// fromMain is what TestMain saw: what runs on the main goroutine is what a program's
// first thread is likeliest to take over, as soon as that goroutine waits.
var fromMain struct {
	first bool // a function got the first thread
	err   error
}

func TestMain(m *testing.M) {
	for range 20 {
		fromMain.err = errors.Join(fromMain.err, Run(func() error {
			fromMain.first = fromMain.first || unix.Gettid() == unix.Getpid()
			// What any user may do, and undo for no thread but one that ends.
			return unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
		}))
	}
	os.Exit(m.Run())
}

func TestRunKeepsTheFirstThread(t *testing.T) {
	if fromMain.first || fromMain.err != nil {
		t.Errorf("on the first thread: %t; %v", fromMain.first, fromMain.err)
	}
	testmode.Eventually(t, "all threads have one priority", func() bool {
		all, err := priorities()
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1
	})
}

func TestRunReturnsTheError(t *testing.T) {
	want := errors.New("no")
	if got := Run(func() error { return want }); got != want {
		t.Errorf("%v", got)
	}
}

// priorities are those that threads of this process have.
func priorities() (all []int, err error) {
	tasks, err := filepath.Glob("/proc/self/task/*")
	for _, task := range tasks {
		var tid int
		if _, err := fmt.Sscan(filepath.Base(task), &tid); err != nil {
			return nil, err
		}
		p, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	slices.Sort(all)
	return slices.Compact(all), err
}
