package main

// writeLater is of files that were open for writing when they were saved.
const writeLater = `package gofer

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
)

// restoreReadable opens a file that was open for writing to be read, if it can be opened
// for writing later, and reports whether it has. To open it for writing makes the host's
// overlayfs copy it up, and most files are not written between a restore and the next
// save.
//
// It is opened by its name then. So a file with other names, which may be gone, is opened
// for writing now, and openLaterLocked opens one before it loses its name. What is mapped
// writable is written without a call.
//
// Preconditions: as of restoreFile, which has stat.
func (i *directfsInode) restoreReadable(ctx context.Context, d *dentry, stat *unix.Statx_t) bool {
	if i.fs.opts.interop != InteropModeExclusive || !i.isRegularFile() || d.vfsd.IsDead() ||
		stat.Nlink != 1 || i.refs.ReadRefs() != 1 || i.mappedWritable() {
		return false
	}
	if d.ensureSharedHandle(ctx, true /* read */, false /* write */, false /* trunc */) != nil {
		return false
	}
	i.writeLater.Store(true)
	return true
}

func (i *inode) mappedWritable() bool {
	i.mapsMu.Lock()
	defer i.mapsMu.Unlock()
	for seg := i.mappings.FirstSegment(); seg.Ok(); seg = seg.NextSegment() {
		for m := range seg.Value() {
			if m.Writable {
				return true
			}
		}
	}
	return false
}

// openLater opens a file for writing that a restore has left readable. Whoever writes
// through an open file calls it first.
//
// Preconditions: neither d.inode.fs.renameMu nor d.inode.metadataMu is locked.
func (d *dentry) openLater(ctx context.Context) error {
	if !d.inode.writeLater.Load() {
		return nil
	}
	d.inode.fs.renameMu.RLock()
	defer d.inode.fs.renameMu.RUnlock()
	return d.openLaterLocked(ctx)
}

// openLaterLocked is the same for a file that is about to lose its name. One that nobody
// has open needs no handle.
//
// Preconditions: d.inode.fs.renameMu is locked, d.inode.metadataMu is not.
func (d *dentry) openLaterLocked(ctx context.Context) error {
	if !d.inode.writeLater.Load() || d.refs.Load() == 0 {
		return nil
	}
	// Others who write wait until mappings are of the new handle as well.
	d.inode.metadataMu.Lock()
	defer d.inode.metadataMu.Unlock()
	if err := d.ensureSharedHandle(ctx, false /* read */, true /* write */, false /* trunc */); err != nil {
		return err
	}
	d.inode.writeLater.Store(false)
	return nil
}
`
