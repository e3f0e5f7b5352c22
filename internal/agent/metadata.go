package agent

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

const (
	// xattrPrefix is the namespace of file metadata.
	xattrPrefix = userPrefix + "e2b."
	userPrefix  = "user."

	// maxMetadataKey leaves room for the prefix in what Linux allows a name.
	maxMetadataKey   = 246
	maxMetadataTotal = 4096
)

// requestMetadata reads the metadata that the headers of an upload set.
func requestMetadata(h http.Header) (map[string]string, error) {
	metadata := map[string]string{}
	total := 0
	for name, values := range h {
		if len(name) < len(agentapi.HeaderMetadataPrefix) || !strings.EqualFold(name[:len(agentapi.HeaderMetadataPrefix)], agentapi.HeaderMetadataPrefix) {
			continue
		}
		key, value := strings.ToLower(name[len(agentapi.HeaderMetadataPrefix):]), values[0]
		if key == "" || len(key) > maxMetadataKey || !isToken(key) {
			return nil, faultf(invalid, "metadata key %q: 1 to %d characters of a header name are allowed", key, maxMetadataKey)
		}
		if !isPrintable(value) {
			return nil, faultf(invalid, "metadata %s: the value is not printable ASCII", key)
		}
		metadata[key] = value
		total += len(key) + len(value)
	}
	if total > maxMetadataTotal {
		return nil, faultf(invalid, "metadata of %d bytes: at most %d are allowed", total, maxMetadataTotal)
	}
	return metadata, nil
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return true
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// replaceMetadata makes metadata the whole set of the file. A file system
// without extended attributes is fine for the empty set.
func replaceMetadata(fd int, metadata map[string]string) error {
	names, err := listAttributes(xattrPrefix, func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) })
	if err != nil && len(metadata) == 0 {
		return nil
	}
	for _, name := range names {
		if _, keep := metadata[strings.TrimPrefix(name, xattrPrefix)]; !keep {
			if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
				return faultf(internal, "clear metadata: %w", err)
			}
		}
	}
	for key, value := range metadata {
		switch err := unix.Fsetxattr(fd, xattrPrefix+key, []byte(value), 0); {
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM):
			return faultf(internal, "the file system does not support metadata: %w", err)
		case err != nil:
			return faultf(classOf(err), "set metadata %s: %w", key, err)
		}
	}
	return nil
}

// fileMetadata returns what is set on path, nil if nothing is. Failing to
// read it is the same: an entry without its metadata is worth more than none.
func fileMetadata(path string) map[string]string {
	names, err := listAttributes(xattrPrefix, func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) })
	if err != nil || len(names) == 0 {
		return nil
	}
	metadata := map[string]string{}
	for _, name := range names {
		value, err := readAttribute(1<<10, func(buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) })
		if err == nil {
			metadata[wireText(strings.TrimPrefix(name, xattrPrefix))] = wireText(string(value))
		}
	}
	return metadata
}

// mirrorAttributes makes the user attributes of a file the same as those of another.
func mirrorAttributes(to, from int) error {
	want, err := listAttributes(userPrefix, func(buf []byte) (int, error) { return unix.Flistxattr(from, buf) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil // the file system has none
	}
	if err != nil {
		return err
	}
	have, err := listAttributes(userPrefix, func(buf []byte) (int, error) { return unix.Flistxattr(to, buf) })
	if err != nil {
		return err
	}
	for _, name := range have {
		if !slices.Contains(want, name) {
			if err := unix.Fremovexattr(to, name); err != nil {
				return err
			}
		}
	}
	for _, name := range want {
		value, err := readAttribute(1<<10, func(buf []byte) (int, error) { return unix.Fgetxattr(from, name, buf) })
		if err == nil {
			err = unix.Fsetxattr(to, name, value, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listAttributes returns the names that begin with prefix.
func listAttributes(prefix string, list func([]byte) (int, error)) ([]string, error) {
	all, err := readAttribute(512, list)
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range bytes.SplitSeq(all, []byte{0}) {
		if strings.HasPrefix(string(name), prefix) {
			names = append(names, string(name))
		}
	}
	return names, nil
}

// readAttribute reads what is probably no longer than size.
func readAttribute(size int, read func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, size)
	n, err := read(buf)
	if errors.Is(err, syscall.ERANGE) {
		buf = make([]byte, 64<<10) // the most Linux allows a list, or a value
		n, err = read(buf)
	}
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
