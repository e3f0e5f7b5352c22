package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
)

// describe returns the entry at path, the link itself if it is one.
func (as *accounts) describe(path string) (*fspb.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, pathFault(path, err)
	}
	return as.entry(path, info), nil
}

func (as *accounts) entry(path string, info fs.FileInfo) *fspb.EntryInfo {
	e := &fspb.EntryInfo{
		Name:         wireText(filepath.Base(path)),
		Path:         wireText(path),
		Type:         fileType(info.Mode()),
		Size:         info.Size(),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		ModifiedTime: timestamppb.New(info.ModTime()),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = wireText(as.owner(st.Uid)), wireText(as.group(st.Gid))
	}
	if info.IsDir() && e.Size == 0 {
		// Some file systems say 0; clients take that for a lack of an answer.
		e.Size = 4096
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		followLink(path, e)
	} else if info.IsDir() || info.Mode().IsRegular() {
		// Linux has user attributes on nothing else.
		e.Metadata = fileMetadata(path)
	}
	return e
}

// followLink gives the entry of a link the type and mode of its target.
func followLink(path string, e *fspb.EntryInfo) {
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		if info, err := os.Stat(target); err == nil {
			e.Type, e.Mode = fileType(info.Mode()), uint32(info.Mode().Perm())
		}
		e.SymlinkTarget = proto.String(wireText(target))
		return
	}
	// Dangling: what the link says is all there is.
	if text, err := os.Readlink(path); err == nil {
		if !filepath.IsAbs(text) {
			text = filepath.Join(filepath.Dir(path), text)
		}
		e.SymlinkTarget = proto.String(wireText(text))
	}
}

func fileType(mode fs.FileMode) fspb.FileType {
	switch {
	case mode.IsRegular():
		return fspb.FileType_FILE_TYPE_FILE
	case mode.IsDir():
		return fspb.FileType_FILE_TYPE_DIRECTORY
	case mode&fs.ModeSymlink != 0:
		return fspb.FileType_FILE_TYPE_SYMLINK
	}
	return fspb.FileType_FILE_TYPE_UNSPECIFIED
}
