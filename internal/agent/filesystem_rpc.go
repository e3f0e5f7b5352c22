package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
)

// filesystemService is the filesystem.Filesystem service.
type filesystemService struct{ agent *Agent }

// maxEntries and maxListing, the bytes of their paths, bound a listing: all of
// it is in memory, several times over, before it is sent.
const (
	maxEntries = 250_000
	maxListing = 32 << 20
)

// resolve returns the absolute path and the user that a request means.
func (s filesystemService) resolve(ctx context.Context, path string) (string, *account, error) {
	user, err := s.agent.rpcUser(ctx)
	if err != nil {
		return "", nil, err
	}
	path, err = resolvePath(path, user.home, s.agent.settings.workdir())
	return path, user, err
}

func (s filesystemService) Stat(ctx context.Context, req *connect.Request[fspb.StatRequest]) (*connect.Response[fspb.StatResponse], error) {
	path, _, err := s.resolve(ctx, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	entry, err := s.agent.accounts().describe(path)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&fspb.StatResponse{Entry: entry}), nil
}

func (s filesystemService) MakeDir(ctx context.Context, req *connect.Request[fspb.MakeDirRequest]) (*connect.Response[fspb.MakeDirResponse], error) {
	path, user, err := s.resolve(ctx, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	if err := makeDir(path, user); err != nil {
		return nil, rpcError(err)
	}
	entry, err := s.agent.accounts().describe(path)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&fspb.MakeDirResponse{Entry: entry}), nil
}

func makeDir(path string, user *account) error {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return faultf(invalid, "path '%s' exists and is not a directory", path)
		}
		return faultf(exists, "directory '%s' already exists", path)
	}
	err = makeDirs(filepath.Clean(path), user)
	if errors.Is(err, syscall.ENOTDIR) {
		return faultf(invalid, "create directory '%s': a parent is not a directory", path)
	}
	if err != nil {
		return pathFault(path, err)
	}
	return nil
}

func (s filesystemService) Move(ctx context.Context, req *connect.Request[fspb.MoveRequest]) (*connect.Response[fspb.MoveResponse], error) {
	source, user, err := s.resolve(ctx, req.Msg.GetSource())
	if err != nil {
		return nil, rpcError(err)
	}
	destination, _, err := s.resolve(ctx, req.Msg.GetDestination())
	if err != nil {
		return nil, rpcError(err)
	}
	if err := move(ctx, source, destination, user); err != nil {
		return nil, rpcError(err)
	}
	entry, err := s.agent.accounts().describe(destination)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&fspb.MoveResponse{Entry: entry}), nil
}

func (s filesystemService) Remove(ctx context.Context, req *connect.Request[fspb.RemoveRequest]) (*connect.Response[fspb.RemoveResponse], error) {
	path, _, err := s.resolve(ctx, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	if filepath.Clean(path) == "/" {
		return nil, rpcError(faultf(invalid, "the root directory cannot be removed"))
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, rpcError(pathFault(path, err))
	}
	return connect.NewResponse(&fspb.RemoveResponse{}), nil
}

func (s filesystemService) ListDir(ctx context.Context, req *connect.Request[fspb.ListDirRequest]) (*connect.Response[fspb.ListDirResponse], error) {
	path, _, err := s.resolve(ctx, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	l := &listing{ctx: ctx, accounts: s.agent.accounts()}
	if err := l.list(path, max(req.Msg.GetDepth(), 1)); err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&fspb.ListDirResponse{Entries: l.entries}), nil
}

type listing struct {
	ctx      context.Context
	accounts *accounts
	entries  []*fspb.EntryInfo
	bytes    int // of their paths
}

// list follows path itself, but no link below it.
func (l *listing) list(path string, depth uint32) error {
	info, err := os.Stat(path)
	if err != nil {
		return pathFault(path, err)
	}
	if !info.IsDir() {
		return faultf(invalid, "path '%s' is not a directory", path)
	}
	children, err := l.read(path)
	if err != nil {
		return pathFault(path, err)
	}
	return l.add(path, children, depth)
}

// read returns the entries of a directory in order. It reads no more of them
// than there is room for.
func (l *listing) read(dir string) ([]fs.DirEntry, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	room := maxEntries - len(l.entries)
	children, err := f.ReadDir(room + 1)
	if len(children) > room {
		return nil, errTooMany
	}
	slices.SortFunc(children, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	if err == io.EOF {
		err = nil
	}
	return children, err
}

var errTooMany = faultf(exhausted, "more than %d entries, or paths of more than %d MiB: list fewer levels at a time", maxEntries, maxListing>>20)

// add appends the children in order, each directory right before its own.
// What vanishes meanwhile is left out.
func (l *listing) add(dir string, children []fs.DirEntry, depth uint32) error {
	for _, child := range children {
		if err := l.ctx.Err(); err != nil {
			return contextError(l.ctx)
		}
		path := filepath.Join(dir, child.Name())
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if l.bytes += len(path); len(l.entries) == maxEntries || l.bytes > maxListing {
			return errTooMany
		}
		l.entries = append(l.entries, l.accounts.entry(path, info))
		if depth == 1 || !info.IsDir() {
			continue
		}
		// What another error leaves is a directory that was read in part or not
		// at all, which is what a race, or a dying process in /proc, looks like.
		grandchildren, err := l.read(path)
		if err == errTooMany {
			return err
		}
		if err := l.add(path, grandchildren, depth-1); err != nil {
			return err
		}
	}
	return nil
}
