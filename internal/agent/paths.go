package agent

import (
	"path/filepath"
	"strings"
)

// maxPath is the longest path that the kernel takes.
const maxPath = 4095

// resolvePath turns a client's path into an absolute one: empty is the working
// directory, or home if none is set; "~" is home; an absolute path stays as it
// is, unclean too, since cleaning would change what it means behind a symbolic
// link; anything else is below home.
func resolvePath(path, home, workdir string) (string, error) {
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
