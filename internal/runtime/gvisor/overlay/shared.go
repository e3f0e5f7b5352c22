package main

// sharedFiles is of the files of a mount that others change as well.
const sharedFiles = `package gofer

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fsutil"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/hostfd"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// What is open on a shared mount may be gone from its path: somebody else has removed,
// renamed or replaced it, while the guest ran or while it was saved.

// maxGone is how much content of such files is saved with a mount. Who shares it may
// have made them as large as they are.
const maxGone = 32 << 20

// lost is the value of dentry.deleted where the content is gone as well.
const lost = 2

// stale returns ESTALE for a file whose content is gone.
func (d *dentry) stale() error {
	if d.deleted.Load() == lost {
		return linuxerr.ESTALE
	}
	return nil
}

// shared reports whether others may change the files of fs.
func (fs *filesystem) shared() bool {
	return fs.opts.interop == InteropModeShared
}

// identity is what tells a file from one that was made later. The number of the device
// may change when the host starts again. That of a file is given again.
type identity struct {
	ino        uint64
	fileType   uint32
	btime      int64
	btimeValid bool
}

func (i *inode) identity() identity {
	return identity{i.inoKey.ino, i.fileType(), i.btime.Load(), i.btimeValid.Load()}
}

func (a identity) is(stat *unix.Statx_t) bool {
	return stat.Ino == a.ino && a.isType(stat) &&
		(!a.btimeValid || stat.Mask&unix.STATX_BTIME == 0 || dentryTimestampFromUnix(stat.Btime) == a.btime)
}

func (a identity) isType(stat *unix.Statx_t) bool {
	return uint32(stat.Mode)&unix.S_IFMT == a.fileType
}

const statxMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// gone looks for what is gone below the root of a shared mount.
type gone struct {
	// moved is that the mount is another directory than it was, such as a copy.
	moved bool
	// byName reports whether a file of the same type is taken for one that is gone.
	byName func(*dentry) bool
	here   func(*dentry) bool
	gone   func(d *dentry, top bool) // top if its directory is not gone
	err    error
}

// walk calls here for each file below d, and gone for those that are not where they
// were or for which here returns false, and for all that is below those.
//
// Preconditions: fs.renameMu is locked, and nothing else runs.
func (g *gone) walk(d *dentry, dirGone bool) {
	d.childrenMu.Lock()
	children := make([]*dentry, 0, len(d.children))
	for _, child := range d.children {
		if child != nil && !child.inode.isSynthetic() {
			children = append(children, child)
		}
	}
	d.childrenMu.Unlock()
	for _, child := range children {
		here := !dirGone && g.find(d, child) && g.here(child)
		if !here {
			g.gone(child, !dirGone)
		}
		g.walk(child, !here)
	}
}

// find reports whether a child is in its directory, and has it be where it is there.
func (g *gone) find(parent, child *dentry) bool {
	dir, was := parent.inode.impl.(*directfsInode), child.inode.identity()
	if g.at(dir, child.name, was.is) {
		return true
	}
	name := g.renamed(parent, was)
	if name == "" {
		return g.byName != nil && g.byName(child) && g.at(dir, child.name, was.isType)
	}
	parent.childrenMu.Lock()
	defer parent.childrenMu.Unlock()
	delete(parent.children, child.name)
	parent.children[name] = child
	child.name = name
	return true
}

// renamed returns the name that a file has in its directory, where no dentry has it.
func (g *gone) renamed(parent *dentry, was identity) (name string) {
	if g.moved {
		return ""
	}
	dir := parent.inode.impl.(*directfsInode)
	fd, err := unix.Openat(dir.controlFD, ".", unix.O_RDONLY|unix.O_DIRECTORY|hostOpenFlags, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	_ = fsutil.ForEachDirent(fd, func(ino uint64, _ int64, _ uint8, at string, _ uint16) {
		if ino == was.ino && g.at(dir, at, was.is) {
			name = at
		}
	})
	parent.childrenMu.Lock()
	defer parent.childrenMu.Unlock()
	if _, ok := parent.children[name]; ok {
		return ""
	}
	return name
}

func (g *gone) at(dir *directfsInode, name string, is func(*unix.Statx_t) bool) bool {
	there, err := at(dir.controlFD, name, is)
	switch err {
	case nil, unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ESTALE:
	default: // such as no more descriptors
		g.err = err
	}
	return there
}

// at reports whether what has a name in a directory is what is looked for.
func at(dir int, name string, is func(*unix.Statx_t) bool) (bool, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|hostOpenFlags, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, statxMask, &stat); err != nil {
		return false, err
	}
	return is(&stat), nil
}

// prepareSaveGone saves what is open and gone.
func (fs *filesystem) prepareSaveGone(ctx context.Context) {
	var ds *[]*dentry
	fs.renameMu.RLock()
	defer fs.renameMuRUnlockAndCheckCaching(ctx, &ds)
	fs.savedDeletedOpenDentries = make(map[*dentry]struct{})
	here := make(map[*inode]struct{})
	g := gone{
		here: func(d *dentry) bool { here[d.inode] = struct{}{}; return true },
		gone: func(d *dentry, _ bool) { fs.savedDeletedOpenDentries[d] = struct{}{} },
	}
	g.walk(fs.root, false)
	fs.syncMu.Lock()
	for sd := fs.syncableDentries.Front(); sd != nil; sd = sd.Next() {
		if sd.d.vfsd.IsDead() {
			fs.savedDeletedOpenDentries[sd.d] = struct{}{}
		}
	}
	fs.syncMu.Unlock()
	left := uint64(maxGone)
	for d := range fs.savedDeletedOpenDentries {
		parent := d.parent.Load()
		if _, ok := here[parent.inode]; (ok || parent == fs.root) && d.vfsd.IsDead() && !d.isDir() {
			if name := g.renamed(parent, d.inode.identity()); name != "" {
				// Its inode is found there, and restored with the other dentry.
				parent.opMu.RLock()
				if other, err := fs.getRemoteChildLocked(ctx, parent, name, true, &ds); err == nil {
					here[other.inode] = struct{}{}
				}
				parent.opMu.RUnlock()
			}
		}
		if _, ok := here[d.inode]; ok || d.inode.savedDeletedData != nil {
			continue // it has another name
		}
		if err := d.inode.impl.(*directfsInode).saveContent(ctx, &left); err != nil {
			log.Warningf("Content of %q, which is gone, is not saved: %v", genericDebugPathname(fs, d), err)
		}
	}
}

func (i *directfsInode) saveContent(ctx context.Context, left *uint64) error {
	if i.isSymlink() {
		target, err := i.readlink()
		i.savedDeletedData = []byte(target)
		return err
	}
	if !i.isRegularFile() {
		return nil
	}
	if err := i.updateMetadata(ctx); err != nil {
		return err
	}
	if i.size.Load() > *left {
		return linuxerr.EFBIG
	}
	i.handleMu.RLock()
	defer i.handleMu.RUnlock()
	h := handle{fd: int32(i.controlFD)}
	if i.isReadHandleOk() {
		h = i.readHandle()
	}
	data, done := make([]byte, i.size.Load()), 0
	for done < len(data) {
		n, err := h.readToBlocksAt(ctx, safemem.BlockSeqOf(safemem.BlockFromSafeSlice(data[done:])), uint64(done))
		if n == 0 || err != nil {
			break // somebody else has made it shorter
		}
		done += int(n)
	}
	i.savedDeletedData = data[:done]
	*left -= uint64(done)
	return nil
}

// restoreShared restores what is below the root of a shared mount. rootWas is what the
// root was when it was saved.
func (fs *filesystem) restoreShared(ctx context.Context, opts *vfs.CompleteRestoreOptions, rootWas identity) error {
	var ds *[]*dentry
	fs.renameMu.RLock()
	defer fs.renameMuRUnlockAndCheckCaching(ctx, &ds)
	is := fs.root.inode.identity()
	g := gone{moved: is.ino != rootWas.ino || is.btimeValid && rootWas.btimeValid && is.btime != rootWas.btime}
	var dead, tops []*dentry
	saved := fs.savedDeletedOpenDentries
	fs.savedDeletedOpenDentries = nil
	g.byName = func(d *dentry) bool {
		// A program would go on with parts of the one and parts of the other.
		_, before := saved[d]
		return !before && (g.moved || d.inode.mappings.IsEmpty())
	}
	g.here = func(d *dentry) bool {
		err := d.restoreFile(ctx, opts)
		if err != nil && g.err == nil {
			g.err = err
		}
		return err == nil
	}
	g.gone = func(d *dentry, top bool) {
		if _, ok := saved[d]; !ok {
			d.inode.savedDeletedData = nil
			d.deleted.Store(lost)
			dead = append(dead, d)
		}
		if top {
			tops = append(tops, d)
		}
	}
	g.walk(fs.root, false)
	if g.err != nil {
		return g.err
	}
	for d := range saved {
		if d.inode.impl.(*directfsInode).controlFD < 0 || d.vfsd.IsDead() {
			dead = append(dead, d)
		}
	}
	made := make(map[*inode]uint32)
	for _, d := range dead {
		i := d.inode.impl.(*directfsInode)
		if i.controlFD < 0 {
			if err := i.restoreGone(ctx, d); err != nil {
				return fmt.Errorf("failed to restore %q, which is gone: %w", genericDebugPathname(fs, d), err)
			}
			made[d.inode] = max(d.deleted.Load(), 1)
		}
		if as, ok := made[d.inode]; ok {
			d.deleted.Store(as)
		}
	}
	for _, d := range tops {
		d.invalidate(ctx, fs.vfsfs.VirtualFilesystem(), &ds)
	}
	for i := range made {
		i.savedDeletedData = nil
	}
	return nil
}

// restoreGone makes a file or directory without a name.
func (i *directfsInode) restoreGone(ctx context.Context, d *dentry) error {
	root := i.fs.root.inode.impl.(*directfsInode).controlFD
	name := randomNameForDeleted("")
	fd, err := -1, error(nil)
	switch {
	case i.isRegularFile():
		fd, err = unix.Openat(root, ".", unix.O_TMPFILE|unix.O_RDWR|hostOpenFlags, 0o600)
		if err != nil {
			return err
		}
		data := i.savedDeletedData
		if len(data) == 0 && i.size.Load() != 0 {
			d.deleted.Store(lost)
		}
		for done := 0; done < len(data); {
			n, err := unix.Pwrite(fd, data[done:], int64(done))
			if err != nil {
				log.Warningf("Content of %q, which is gone, is not restored: %v", genericDebugPathname(i.fs, d), err)
				_ = unix.Ftruncate(fd, 0)
				d.deleted.Store(lost)
				break
			}
			done += n
		}
		h, err := unix.Dup(fd)
		if err != nil {
			_ = unix.Close(fd)
			return err
		}
		i.readFD.Store(int32(h))
		i.writeFD.Store(int32(h))
		i.mmapFD.Store(int32(h))
		i.mmapFile.SetFD(h)
	case d.isDir():
		if err := unix.Mkdirat(root, name, 0o700); err != nil {
			return err
		}
		fd, err = unix.Openat(root, name, unix.O_RDONLY|unix.O_DIRECTORY|hostOpenFlags, 0)
		if err == nil {
			var h int
			if h, err = unix.Openat(root, name, unix.O_RDONLY|unix.O_DIRECTORY|hostOpenFlags, 0); err == nil {
				i.readFD.Store(int32(h))
			}
		}
		_ = unix.Unlinkat(root, name, unix.AT_REMOVEDIR)
	default:
		if i.isSymlink() {
			err = unix.Symlinkat(string(append(i.savedDeletedData, ".."[min(len(i.savedDeletedData), 2):]...)), root, name)
		} else {
			err = unix.Mknodat(root, name, i.fileType()|0o600, 0)
		}
		if err == nil {
			fd, err = unix.Openat(root, name, unix.O_PATH|hostOpenFlags, 0)
		}
		_ = unix.Unlinkat(root, name, 0)
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return err
	}
	i.controlFD = fd
	if err := fchown(fd, auth.KUID(i.uid.Load()), auth.KGID(i.gid.Load())); err != nil {
		log.Warningf("Owner of %q, which is gone, is not restored: %v", genericDebugPathname(i.fs, d), err)
	}
	if i.isRegularFile() || d.isDir() {
		_ = unix.Fchmod(fd, i.mode.Load()&^linux.FileTypeMask)
		_ = i.utimensat(ctx, &linux.Statx{
			Mask:  linux.STATX_ATIME | linux.STATX_MTIME,
			Atime: linux.NsecToStatxTimestamp(i.atime.Load()),
			Mtime: linux.NsecToStatxTimestamp(i.mtime.Load()),
		}, d)
	}
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, statxMask, &stat); err != nil {
		return err
	}
	i.inoKey = inoKeyFromUnixStatx(&stat)
	i.metadataMu.Lock()
	defer i.metadataMu.Unlock()
	i.updateMetadataFromStatxLocked(&stat)
	return nil
}

// appender writes to where a file of the host ends at that moment. Others may append to
// it as well.
type appender struct {
	ctx context.Context
	i   *inode
	end int64 // of what was written
}

// WriteFromBlocks implements safemem.Writer.
//
// Preconditions: i.metadataMu is locked, which nobody else moves the offset of writeFD
// without.
func (a *appender) WriteFromBlocks(srcs safemem.BlockSeq) (uint64, error) {
	if srcs.IsEmpty() {
		return 0, nil
	}
	a.i.handleMu.RLock()
	defer a.i.handleMu.RUnlock()
	fd := a.i.writeHandle().fd
	a.ctx.UninterruptibleSleepStart()
	n, err := hostfd.Pwritev2(fd, srcs, -1, unix.RWF_APPEND)
	a.ctx.UninterruptibleSleepFinish()
	if n == 0 {
		return 0, err
	}
	if end, err := unix.Seek(int(fd), 0, unix.SEEK_CUR); err == nil {
		a.end = end
	}
	a.i.dataMu.Lock()
	defer a.i.dataMu.Unlock()
	if uint64(a.end) > a.i.size.Load() {
		a.i.size.Store(uint64(a.end))
	}
	return n, err
}

// owned is how long a file that was made belongs to root at most, until whoever makes it
// has given it to its owner. No call waits much longer.
const owned = 100 * time.Millisecond

// awaitOwner waits for a file of a shared mount to have its owner, if that may be why
// creds are refused: another sandbox has just made it.
//
// Preconditions: d.inode.metadataMu is not locked.
func (d *dentry) awaitOwner(creds *auth.Credentials, ats vfs.AccessTypes) {
	i := d.inode
	for wait := owned / 2048; wait < owned; wait *= 2 {
		if !i.fs.shared() || i.isSynthetic() || i.uid.Load() != 0 || !i.isNew() {
			return
		}
		if vfs.GenericCheckPermissions(creds, ats, linux.FileMode(i.mode.Load()), nil, 0, auth.KGID(i.gid.Load())) == nil {
			return
		}
		time.Sleep(wait)
		if i.updateMetadata(context.Background()) != nil {
			return
		}
	}
}

// isNew reports whether a file was made so little ago that it may not have its owner yet.
func (i *inode) isNew() bool {
	made := i.ctime.Load()
	if i.btimeValid.Load() {
		made = i.btime.Load()
	}
	return time.Since(time.Unix(0, made)).Abs() < owned
}
`
