package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxPath is the longest path that the kernel takes.
const maxPath = 4095

// resolvePath turns a client's path into an absolute one: empty is the working
// directory, or home if none is set; "~" is home; an absolute path stays as it
// is, unclean too, since cleaning would change what it means behind a symbolic
// link; anything else is below home.
//
// A name that is not valid UTF-8 is meant by what clients are told in its place.
func resolvePath(path, home, workdir string) (string, error) {
	path, err := absolutePath(path, home, workdir)
	if err != nil || !strings.Contains(path, replacement) {
		return path, err
	}
	return toldPath(path)
}

func absolutePath(path, home, workdir string) (string, error) {
	if len(path) > maxPath {
		return "", faultf(invalid, "a path of %d bytes: at most %d are allowed", len(path), maxPath)
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", faultf(invalid, "path %q contains a NUL byte", path)
	}
	if path == "" {
		path = workdir
	}
	switch {
	case path == "" || path == "~":
		return absolute(home), nil
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(absolute(home), path[2:]), nil
	case path[0] == '~':
		return "", faultf(invalid, "path '%s': the home of another user cannot be named with ~", path)
	case path[0] == '/':
		return path, nil
	}
	return filepath.Join(absolute(home), path), nil
}

// absolute guards against a passwd file with a relative home.
func absolute(home string) string {
	if strings.HasPrefix(home, "/") {
		return home
	}
	return "/" + home
}

// toldPath returns the path of which a client was told path, where wireText replaced
// what is not valid UTF-8. A name that is there as it was told means itself; one that
// is not there at all is a new one.
func toldPath(path string) (string, error) {
	at, rest := "", path
	for rest != "" {
		i := len(rest) - len(strings.TrimLeft(rest, "/"))
		at, rest = at+rest[:i], rest[i:]
		if i = strings.IndexByte(rest, '/'); i < 0 {
			i = len(rest)
		}
		name, err := toldName(at, rest[:i])
		if err != nil {
			return "", err
		}
		at, rest = at+name, rest[i:]
	}
	return at, nil
}

func toldName(dir, told string) (string, error) {
	if !strings.Contains(told, replacement) {
		return told, nil
	}
	if _, err := os.Lstat(dir + told); err == nil {
		return told, nil
	}
	names, err := readNames(dir)
	if err != nil {
		return told, nil // what is wrong with it, whoever uses the path says
	}
	found := slices.DeleteFunc(names, func(name string) bool { return wireText(name) != told })
	switch len(found) {
	case 0:
		return told, nil
	case 1:
		return found[0], nil
	}
	return "", faultf(invalid, "path '%s' means %d files, whose names are not UTF-8 and look the same: rename them with a command, by a pattern", dir+told, len(found))
}

func readNames(dir string) ([]string, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
