// Package treetest makes directory trees as a hostile tenant could make them with
// an ordinary file system: for the tests of all that goes through what a sandbox
// has written.
package treetest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
)

// Shape says how large a hostile tree is.
type Shape struct {
	Deep     int  // directories below each other, with short names
	Long     int  // directories below each other, with names of 250 bytes
	Links    int  // names of one file, at the end of the long path
	Wide     int  // names in one directory
	Portable bool // leaves out what cannot be exported: sockets and FIFOs
}

// Hostile is a shape at which whoever goes by paths, recursion or whole lists
// fails, and which is made in a second or two.
var Hostile = Shape{Deep: 2200, Long: 18, Links: 1000, Wide: 1500}

// Make makes a hostile tree in a directory, which exists.
func Make(t testing.TB, dir string, s Shape) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	at := int(d.Fd())
	for _, err := range []error{
		chain(at, "deep", "d", s.Deep, func(at int) error { return write(at, "bottom", "bottom") }),
		chain(at, "long", strings.Repeat("n", 250), s.Long, func(at int) error { return links(at, s.Links) }),
		in(at, "wide", func(at int) error { return wide(at, s.Wide) }),
		in(at, "odd", odd),
		in(at, "special", func(at int) error { return special(at, s.Portable) }),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Bottom opens the deepest directory of a tree that was made in dir, for as long as the
// test runs.
func (s Shape) Bottom(t testing.TB, dir string) *os.File {
	t.Helper()
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	bottom, err := tree.OpenBelow(top, "deep"+strings.Repeat("/d", s.Deep), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bottom.Close() })
	return bottom
}

// in makes a directory and calls f with it.
func in(at int, name string, f func(at int) error) error {
	if err := unix.Mkdirat(at, name, 0o755); err != nil {
		return fmt.Errorf("mkdir %.20q: %w", name, err)
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %.20q: %w", name, err)
	}
	defer unix.Close(fd)
	return f(fd)
}

// chain makes directories below each other, and calls f with the last one.
func chain(at int, first, name string, n int, f func(at int) error) error {
	return in(at, first, func(at int) error {
		at, err := unix.Dup(at)
		for range n {
			if err != nil {
				return err
			}
			if err = unix.Mkdirat(at, name, 0o755); err != nil {
				break
			}
			var next int
			if next, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
				_ = unix.Close(at)
				at = next
			}
		}
		defer unix.Close(at)
		if err != nil {
			return err
		}
		return f(at)
	})
}

func write(at int, name, text string) error {
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return fmt.Errorf("make %.20q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func links(at, n int) error {
	if err := write(at, "linked", "one file"); err != nil {
		return err
	}
	for i := range n {
		if err := unix.Linkat(at, "linked", at, fmt.Sprintf("link%06d", i), 0); err != nil {
			return err
		}
	}
	return nil
}

func wide(at, n int) error {
	for i := range n {
		if err := unix.Symlinkat("x", at, fmt.Sprintf("w%06d", i)); err != nil {
			return err
		}
	}
	return nil
}

// Odd names are legal, and none of them is what it looks like.
var oddNames = []string{
	"\n", "a\nb", "\"", "\\", "`", "$(reboot)", "\x1b[2J", "\xff\xfe", " ", "-rf", "...", ".listing", ".work", ".wh.x", "a:b", "a,b", "a=b",
	"\u202etxt.exe", "removed-1", strings.Repeat("x", 255), strings.Repeat("\x01", 255), "0 \"x\" 100644 0:0", "%s%n",
}

func odd(at int) error {
	for i, name := range oddNames {
		var err error
		if i%2 == 0 {
			err = write(at, name, name)
		} else {
			err = in(at, name, func(at int) error { return write(at, name, "") })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// special makes what is no ordinary file, or looks as if it were huge.
func special(at int, portable bool) error {
	if err := write(at, "sparse", "begins"); err != nil {
		return err
	}
	fd, err := unix.Openat(at, "sparse", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Ftruncate(fd, 1<<40), unix.Close(fd))
	err = errors.Join(err, unix.Symlinkat("/etc/passwd", at, "out"), unix.Symlinkat("loop", at, "loop"), unix.Symlinkat(strings.Repeat("../", 1300)+"etc", at, "up"))
	err = errors.Join(err, in(at, "closed", func(at int) error { return errors.Join(write(at, "x", "x"), unix.Fchmod(at, 0)) }))
	err = errors.Join(err, in(at, "sticky", func(at int) error { return unix.Fchmod(at, 0o7777) }))
	if portable {
		return err
	}
	return errors.Join(err, unix.Mknodat(at, "fifo", unix.S_IFIFO|0o666, 0), unix.Mknodat(at, "socket", unix.S_IFSOCK|0o666, 0))
}
