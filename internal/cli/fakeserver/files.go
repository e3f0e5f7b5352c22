package fakeserver

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/client/agentpb/filesystem/filesystemconnect"
)

// files is the filesystem service, of which there is ListDir alone.
type files struct {
	filesystemconnect.UnimplementedFilesystemHandler
	agent *agent
}

// ListDir implements filesystemconnect.FilesystemHandler.
func (f files) ListDir(_ context.Context, req *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	dir := f.agent.place(req.Msg.GetPath())
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("path '%s' does not exist", req.Msg.GetPath()))
	case !info.IsDir():
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path '%s' is not a directory", req.Msg.GetPath()))
	}
	out := &pb.ListDirResponse{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		below := strings.TrimPrefix(path, dir+"/")
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := &pb.EntryInfo{
			Name: d.Name(), Path: "/" + strings.TrimPrefix(path, f.agent.root+"/"), Size: info.Size(), Type: pb.FileType_FILE_TYPE_FILE,
			Permissions: info.Mode().String(), Owner: "user", ModifiedTime: timestamppb.New(info.ModTime()),
		}
		switch {
		case d.IsDir():
			e.Type = pb.FileType_FILE_TYPE_DIRECTORY
		case d.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			e.Type, e.SymlinkTarget = pb.FileType_FILE_TYPE_SYMLINK, &target
		}
		out.Entries = append(out.Entries, e)
		if d.IsDir() && uint32(strings.Count(below, "/"))+1 >= max(req.Msg.GetDepth(), 1) {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(out), nil
}
