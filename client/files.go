package client

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/drowse-dev/drowse/client/agentpb"
	pb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
)

// File is an entry of a directory in a sandbox.
type File struct {
	Name        string
	Path        string // absolute
	Type        FileType
	Size        int64
	Permissions string // as ls -l prints them: "-rw-r--r--"
	Owner       string
	Modified    time.Time
	Target      string // of a symbolic link; Type and Size are those of what it leads to
}

// FileType says what a file is.
type FileType string

// The types. A Symlink leads nowhere; what is none of them, such as a device, has
// an empty type.
const (
	Regular   FileType = "file"
	Directory FileType = "directory"
	Symlink   FileType = "symlink"
)

// ListFiles returns what is in a directory of the sandbox, down to depth levels;
// zero means one. A relative path is below the user's home directory. Links are
// not followed below it.
func (s *Sandbox) ListFiles(ctx context.Context, path string, depth int) ([]File, error) {
	base, routing := s.inside(agentpb.Port)
	rpc := filesystemconnect.NewFilesystemClient(doer{s, routing}, base.String(), agentpb.Bounded(agentpb.MaxListing))
	resp, err := rpc.ListDir(ctx, connect.NewRequest(&pb.ListDirRequest{Path: path, Depth: uint32(max(depth, 1))}))
	if err != nil {
		return nil, fmt.Errorf("list %s in sandbox %s: %w", path, s.ID, rpcError(err))
	}
	list := make([]File, len(resp.Msg.GetEntries()))
	for i, e := range resp.Msg.GetEntries() {
		list[i] = File{
			Name: e.GetName(), Path: e.GetPath(), Size: e.GetSize(), Permissions: e.GetPermissions(),
			Owner: e.GetOwner(), Modified: e.GetModifiedTime().AsTime(), Target: e.GetSymlinkTarget(),
		}
		switch e.GetType() {
		case pb.FileType_FILE_TYPE_FILE:
			list[i].Type = Regular
		case pb.FileType_FILE_TYPE_DIRECTORY:
			list[i].Type = Directory
		case pb.FileType_FILE_TYPE_SYMLINK:
			list[i].Type = Symlink
		}
	}
	return list, nil
}
