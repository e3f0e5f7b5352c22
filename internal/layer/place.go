package layer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links a path may lead through, as for the kernel.
const maxLinks = 40

// ErrNoPlace says that nothing can be mounted at a path of a tree.
var ErrNoPlace = errors.New("nothing can be mounted there")

// Place is where a path of a tree leads.
type Place struct {
	// Path has no link on the way to it. What is not there yet has none.
	Path string
	// Trail is every directory in which a part of the path was looked up.
	Trail []string
}

// ResolvePlace finds where an absolute path leads in the tree that is mounted at a
// directory, as it does for a program in a sandbox: no link leads out. Nothing is
// opened and nothing is made on the way. At a directory of opaque the search ends,
// because something else will be there: the rest of the path is taken as it is.
func ResolvePlace(at, name string, opaque []string) (Place, error) {
	top, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Place{}, fmt.Errorf("open %s: %w", at, err)
	}
	defer unix.Close(top)
	p := Place{Path: "/"}
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		p.Trail = append(p.Trail, p.Path)
		switch part {
		case "", ".":
			continue
		case "..":
			p.Path = path.Dir(p.Path)
			continue
		}
		next := path.Join(p.Path, part)
		if slices.Contains(opaque, next) {
			return p.beyond(next, rest)
		}
		link, err := readLink(top, next[1:])
		switch {
		case errors.Is(err, unix.ENOENT):
			return p.beyond(next, rest)
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG):
			return Place{}, fmt.Errorf("%w: %.200s: %w", ErrNoPlace, next, err)
		case err != nil:
			return Place{}, fmt.Errorf("find %.200s: %w", next, err)
		case link == "":
			p.Path = next
			continue
		}
		if links++; links > maxLinks {
			return Place{}, fmt.Errorf("%w: %.200s leads through more than %d links", ErrNoPlace, name, maxLinks)
		}
		if path.IsAbs(link) {
			p.Path = "/"
		}
		rest = append(strings.Split(link, "/"), rest...)
	}
	return p, nil
}

// beyond ends a search at a directory that is not there or is not looked into.
func (p Place) beyond(at string, rest []string) (Place, error) {
	if slices.Contains(rest, "..") {
		return Place{}, fmt.Errorf("%w: it leads through %.200s, and back", ErrNoPlace, at)
	}
	p.Path = path.Join(append([]string{at}, rest...)...)
	return p, nil
}

// readLink returns what a link says; empty for a directory.
func readLink(top int, name string) (string, error) {
	fd, err := unix.Openat2(top, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "", nil
	case unix.S_IFLNK:
	default:
		return "", unix.ENOTDIR
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return "", err
	}
	if n == 0 || n == len(text) {
		return "", unix.ENAMETOOLONG
	}
	return string(text[:n]), nil
}
