package main

// findNames is of open files that have lost the name by which they were opened, and have
// another.
const findNames = `package gofer

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/fsutil"
)

const (
	// mostNames is how many names a save looks at, in search of those of such files.
	mostNames = 200_000
	// mostDeep is how many directories below each other it opens.
	mostDeep = 64
	// mostNamed is how many such files it looks for. Fewer than dentries are cached for
	// each mount: nobody else has them open by the name that is found.
	mostNamed = 256
)

// linksLeft returns how many names something deleted has. gVisor does not see each one
// that is removed, and the host's overlayfs counts what is hidden in a lower layer.
func (d *dentry) linksLeft() uint32 {
	n := d.inode.nlink.Load()
	switch i, ok := d.inode.impl.(*directfsInode); {
	case d.isDir():
		return 0
	case ok && n > 0:
		var stat unix.Statx_t
		if unix.Statx(i.controlFD, "", unix.AT_EMPTY_PATH, unix.STATX_NLINK, &stat) == nil {
			n = min(n, stat.Nlink)
		}
	}
	return n
}

// prepareSaveNamed looks for other names of open files that have lost theirs, and returns
// the inodes of those that have one. Each has a dentry there, and is restored with that:
// what a program writes to it later goes where the name is. Others are saved as files
// without a name.
func (fs *filesystem) prepareSaveNamed(ctx context.Context) map[*inode]struct{} {
	var ds *[]*dentry
	fs.renameMu.RLock()
	defer fs.renameMuRUnlockAndCheckCaching(ctx, &ds)
	named := make(map[*inode]struct{})
	var dead []*dentry
	fs.syncMu.Lock()
	for sd := fs.syncableDentries.Front(); sd != nil; sd = sd.Next() {
		if !sd.d.vfsd.IsDead() {
			named[sd.d.inode] = struct{}{}
		} else if sd.d.inode.isRegularFile() {
			dead = append(dead, sd.d)
		}
	}
	fs.syncMu.Unlock()
	s := nameSearch{wanted: make(map[inoKey]struct{}), inos: make(map[uint64]struct{})}
	var lost []*dentry // one of each file that is wanted
	for _, d := range dead {
		key := d.inode.inoKey
		if _, ok := named[d.inode]; ok || len(lost) == mostNamed || d.linksLeft() == 0 {
			continue
		}
		if _, ok := s.wanted[key]; !ok {
			s.wanted[key], s.inos[key.ino] = struct{}{}, struct{}{}
			lost = append(lost, d)
		}
	}
	// Most likely it is in the same directory; else near, and not in what is mounted there.
	for _, s.deep = range []bool{false, true} {
		s.walked, s.left = make(map[[2]uint64]struct{}), mostNames
		for _, d := range lost {
			s.mount = 0
			for dir := d.parent.Load(); dir != nil && s.left > 0; dir = dir.parent.Load() {
				s.left--
				if _, ok := s.wanted[d.inode.inoKey]; !ok {
					break
				}
				i, ok := dir.inode.impl.(*directfsInode)
				if !ok || dir.vfsd.IsDead() {
					continue
				}
				s.found = func(path []string, key inoKey) bool {
					other := fs.lookUp(ctx, dir, path, &ds)
					if other == nil || other.inode.inoKey != key {
						return false
					}
					named[other.inode] = struct{}{}
					return true
				}
				s.walk(i.controlFD, ".", nil)
				if !s.deep {
					break
				}
			}
		}
	}
	return named
}

// nameSearch looks for files in directories. It reads each once.
type nameSearch struct {
	wanted map[inoKey]struct{}
	inos   map[uint64]struct{}    // of those
	walked map[[2]uint64]struct{} // mounts and inodes of directories
	mount  uint64                 // where it looks; 0 for that of the first directory
	left   int                    // how many names it may still look at
	deep   bool                   // also in the directories of a directory
	found  func(path []string, key inoKey) bool
	buf    [8192]byte
}

// walk looks in a directory, and in those in it. The path is that from where it began.
func (s *nameSearch) walk(at int, name string, path []string) {
	if s.left <= 0 || len(s.wanted) == 0 || len(path) > mostDeep {
		return
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|hostOpenFlags, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !s.enter(fd) {
		return
	}
	var dirs []string
	for s.left > 0 {
		n, err := unix.Getdents(fd, s.buf[:])
		if err != nil || n <= 0 {
			break
		}
		fsutil.ParseDirents(s.buf[:n], func(ino uint64, _ int64, kind uint8, name string, _ uint16) {
			s.left--
			if kind == unix.DT_DIR && s.deep {
				dirs = append(dirs, name)
			} else if _, ok := s.inos[ino]; ok {
				s.look(fd, name, path)
			}
		})
	}
	for _, name := range dirs {
		s.walk(fd, name, append(path[:len(path):len(path)], name))
	}
}

// enter reports whether a directory is in the mount, and was not walked yet.
func (s *nameSearch) enter(dir int) bool {
	var stat unix.Statx_t
	if unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &stat) != nil {
		return false
	}
	if s.mount == 0 {
		s.mount = stat.Mnt_id
	}
	dirKey := [2]uint64{stat.Mnt_id, stat.Ino}
	if _, ok := s.walked[dirKey]; ok || stat.Mnt_id != s.mount {
		return false
	}
	s.walked[dirKey] = struct{}{}
	return true
}

func (s *nameSearch) look(dir int, name string, path []string) {
	var key inoKey
	is, _ := at(dir, name, func(stat *unix.Statx_t) bool {
		key = inoKeyFromUnixStatx(stat)
		_, ok := s.wanted[key]
		return ok
	})
	if is && s.found(append(path[:len(path):len(path)], name), key) {
		delete(s.wanted, key)
	}
}

// lookUp returns the dentry of a path below a directory; nil if it is not there.
//
// Preconditions: fs.renameMu is locked.
func (fs *filesystem) lookUp(ctx context.Context, dir *dentry, path []string, ds **[]*dentry) *dentry {
	for _, name := range path {
		dir.opMu.Lock()
		child, err := fs.getChildLocked(ctx, dir, name, ds)
		dir.opMu.Unlock()
		if err != nil {
			return nil
		}
		dir = child
	}
	return dir
}
`
