package main

// While the pages of a restored guest are still being loaded, gVisor waits for
// those that a task touches. But a system call that has a buffer, and the copy of a
// page that two processes share since a fork, get their mappings for the whole area
// of memory that holds it. With a large heap that means to wait for all of it, and
// the guest is no sooner there than if everything had been loaded first. A page fault
// waits for the 32 MiB around it: a program that touches one page here and one there
// waits for all of its memory as well.
//
// The edits have these places ask for the range that they need, and page faults for
// the 64 KiB around it, as long as pages are being loaded. What is used meanwhile is
// written down, and loaded first at the next restore (loading.go). Nothing changes for a
// guest whose pages are all there.
//
// When the other end of the socket that a capture goes through dies while the files of
// the image are being opened, gVisor closes a file that is not there, and the sentry
// dies of it. With the edits the capture fails, and the guest goes on.
//
// A relative sleep on CLOCK_REALTIME, which is what sleep(1) and sleep(3) are with
// glibc, goes by the clock that the host may set: with the host's clock put back by
// three hours, every such sleep takes three hours more. Linux takes CLOCK_MONOTONIC
// for them, and with the edit gVisor does.
//
// gVisor has times of its own for files that were written, and the host has others,
// which a program sees when gVisor has forgotten the file, and after a pause. With the
// edits gVisor tells the host before it forgets, and at a sync, of which a capture is
// one. An open file without a name has no links, not one. A directory has one, as on
// btrfs, and the size of a page: on the host both depend on how many layers it is in.
//
// Linux shields the first process of a PID namespace from the signals of the others;
// gVisor does not, and everything inside ends with that process. With the edits the
// first process gets no signal that another process inside sends. Nor can another
// process trace it, write into its memory, or set its limits. Signals of its own,
// signals of the host, and those that say that a child has ended arrive.
//
// A file that is open inside takes two descriptors of gVisor's process, and each process
// inside one. Where none is left, gVisor panics when a process starts, no program is
// found, and no pause ends. With the edits one process may have as many descriptors as a
// quarter of those, which getrlimit says. Where half of them are taken, it gets more only
// while it has few. Watches count as well. Files take seven eighths: who opens another
// then gets ENFILE.
//
// statfs says what the host's file system has. What the server limits is less: with the
// edits it is asked, and statfs waits for the answer a moment.
//
// Others may remove, rename or replace a file of a shared mount while it is open inside.
// gVisor then saves nothing, or restores nothing. With the edits such a file is saved and
// restored as a deleted one, and a watch of it ends. Appended is where the file of the
// host ends, not where gVisor has last seen its end. gVisor makes a file as root and then
// gives it to its owner; who opens it in between is not refused, but waits for that.
//
// gVisor saves open files that were deleted, but no symbolic links, and the content byte
// by byte as objects: a file of 100 MiB takes gigabytes, and gVisor dies of it, when it
// is saved or when it is restored. With the edits bytes are saved as they are, links are
// saved too, and a file that takes more memory than there is left fails the capture. What
// fails it is named, with the process that holds it.
// A file that was opened by a name that is gone, and has another, is parted from that by a
// restore; with the edits it is restored by it (named.go).
//
// All that runs inside has one priority on the host. Among fifty loops, what is asked of
// the first process gets a fiftieth of the processor. With the edits threads that have run
// for a second run by turns, few at once, and others beside them. Those of the first
// process are always such others.
//
// gVisor forgets that a terminal was at its end (^D) if there is more text behind it,
// and whoever polls is not told of the end. A terminal whose other side nobody has opened
// yet hangs up, of which screen dies. With the edits both are as on Linux.
//
// A restore opens again what was open for writing, and the host's overlayfs copies each
// such file up when it is opened for that. With the edits a file is opened to be read, and
// for writing when it is first written, truncated or mapped writable (later.go).
//
// Who writes to a page that is not its own yet gets a copy of up to 2 MiB around it. gVisor
// also copies what lies beside in another mapping of the same file, and lets it be written,
// although it is read-only. Read-only data of the agent was 2 MiB of each guest's memory for
// that. Likewise the child of a fork that is the last to have its memory. With the edits
// what is copied and what is let be written is of the one mapping alone.
//
// A save reads each page of the guest's memory that may have been written, to leave out
// those of zeros. To read one that was never written makes the host's kernel give it a
// page, which gVisor then gives back: some milliseconds for each 1,000. With the edit
// gVisor asks the kernel first where there are pages at all (holes.go).
//
// A thread of the sentry waits for the end of the file server. To Go's scheduler it is in
// a short system call, and one of the two or so places in which goroutines run stays its
// own until that is noticed, after 10 to 20 ms. A restore begins that wait right before it
// starts the tasks, and stood still with them. With the edit the place is free at once.
//
// In a network namespace that a program makes, gVisor's loopback has its address at once.
// bubblewrap gives it that address, and ends where it cannot. With the edit it can.
//
// gVisor takes the limit of its cgroup for the guest's memory. The guest is told of what
// was asked for, without what is added for gVisor (memoryOverhead).

// edit is what is changed in a file of gVisor.
type edit struct {
	file    string // in the module
	sha256  string // of the file that the changes are for
	changes []change
}

// change replaces a text that occurs once.
type change struct{ old, new string }

var edits = []edit{
	{
		file:   "pkg/sentry/kernel/task_sched.go",
		sha256: "9d9f63523218bbb4381e3e5e4e741b9fdb58eef8e0643bb75d2add1eee69456c",
		changes: []change{
			{
				old: `	"gvisor.dev/gvisor/pkg/sentry/ktime"
`,
				new: `	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/platform"
`,
			},
			{ // runCPUClockTicker
				old: `		incTasks = make([]*Task, k.applicationCores)
`,
				new: `		incTasks = make([]*Task, k.applicationCores)
		inApp    []platform.Context
`,
			},
			{
				old: `			if state == TaskGoroutineRunningApp {
				runningAppTasks++
`,
				new: `			if state == TaskGoroutineRunningApp {
				runningAppTasks++
				if t.tg != k.globalInit {
					inApp = append(inApp, t.p)
				}
`,
			},
			{
				old: `		preempt := runningAppTasks > concurrencyCount
`,
				new: `		if p, ok := k.Platform.(interface{ Tick([]platform.Context, int) }); ok {
			p.Tick(inApp, int(k.applicationCores))
		}
		clear(inApp)
		inApp = inApp[:0]
		preempt := runningAppTasks > concurrencyCount
`,
			},
		},
	},
	{
		file:   "pkg/sentry/platform/systrap/systrap.go",
		sha256: "d794a78bdb62177d685523ba4cde05c1ba2d80b431c2d6e9dc485429d9d77b19",
		changes: []change{
			{ // platformContext
				old: `	// needRestoreFPState indicates`,
				new: `	turn turn

	// needRestoreFPState indicates`,
			},
			{ // Switch
				old: `restart:
	isSyscall,`,
				new: `	if c.await() {
		c.signalInfo = linux.SignalInfo{Signo: int32(platform.SignalInterrupt)}
		return &c.signalInfo, hostarch.NoAccess, platform.ErrContextSignal
	}

restart:
	isSyscall,`,
			},
			{ // PrepareSleep
				old: `	if !ctx.sleeping {
		ctx.sleeping = true
`,
				new: `	c.endTurn()
	if !ctx.sleeping {
		ctx.sleeping = true
`,
			},
			{ // NewContext
				old: `	return &platformContext{
		needRestoreFPState:  true,
		needToPullFullState: false,
	}
`,
				new: `	return newContext()
`,
			},
			{
				old: `func (*platformContext) PrepareExit() {}
`,
				new: `func (c *platformContext) PrepareExit() { c.endTurn() }
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/devpts/line_discipline.go",
		sha256: "816f6de4f3b4dff6f7fe07ed29f634c064188c4fcf7db75c5a78788ce3142d37",
		changes: []change{
			{
				old: `		terminal: terminal,
	}
	ld.inQueue`,
				new: `		terminal: terminal,

		numReplicas: -1, // none yet
	}
	ld.inQueue`,
			},
			{ // replicaOpen
				old: `	l.numReplicas++
`,
				new: `	l.numReplicas = max(l.numReplicas, 0) + 1
`,
			},
			{ // inputQueueRead: what was readable without a byte was the end
				old: `	if !pushed && isCanon {
		return 0, nil // EOF
`,
				new: `	if isCanon {
		if pushed {
			l.replicaWaiter.Notify(waiter.ReadableEvents)
		}
		return 0, nil // EOF
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/devpts/queue.go",
		sha256: "3499e8f4e221778faa56085fecf2695dba607a49a23858b5a96400451e9455c0",
		changes: []change{
			{
				old: `	if len(q.readBuf) > 0 && q.readable {
`,
				new: `	if q.readable { // perhaps the end alone
`,
			},
		},
	},
	{
		file:   "pkg/sentry/socket/netlink/route/protocol.go",
		sha256: "59e588474a19e38935f2a1dd70a7d3fc99a0fbbb9fd11e0594baa0b3c1a6b36c",
		changes: []change{
			{ // newAddr
				old: `				if flags&linux.NLM_F_EXCL != 0 {
					return syserr.ErrExists
`,
				new: `				if flags&linux.NLM_F_EXCL != 0 && string(value) != "\x7f\x00\x00\x01" {
					return syserr.ErrExists
`,
			},
		},
	},
	{
		file:   "runsc/sandbox/sandbox.go",
		sha256: "5bb26b649bbe2bbfd5c61de1cbbadb4eb537ff5d5e6b610bac2e9dd11979198e",
		changes: []change{
			{
				old: `		if memLimit < mem {
			mem = memLimit
`,
				new: `		if memLimit < mem {
			mem = memLimit
			if own := uint64(64 << 20); mem > own {
				mem -= own
			}
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/gofer/save_restore.go",
		sha256: "f731eae80337969f2c2cb9f84d35ca84fe47cc248e9aa03f7de71a7714cccbc4",
		changes: []change{
			{ // PrepareSave
				old: `	// Save file data for deleted regular files which are still accessible via
`,
				new: `	left := fs.memoryForDeleted()
	fs.syncMu.Unlock()
	var named map[*inode]struct{}
	if fs.shared() {
		fs.prepareSaveGone(ctx)
	} else {
		named = fs.prepareSaveNamed(ctx)
	}
	fs.syncMu.Lock()
	// Save file data for deleted regular files which are still accessible via
`,
			},
			{
				old: `		if sd.d.vfsd.IsDead() {
`,
				new: `		if sd.d.vfsd.IsDead() && !fs.shared() {
`,
			},
			{
				old: `			if err := sd.d.prepareSaveDead(ctx); err != nil {
`,
				new: `			if err := sd.d.prepareSaveDead(ctx, &left, named); err != nil {
`,
			},
			{ // prepareSaveDead
				old: `func (d *dentry) prepareSaveDead(ctx context.Context) error {
	if !d.inode.isRegularFile() && !d.isDir() {
`,
				new: `func (d *dentry) prepareSaveDead(ctx context.Context, left *uint64, named map[*inode]struct{}) error {
	if i, ok := d.inode.impl.(*directfsInode); ok && !d.inode.isRegularFile() && !d.isDir() {
		if err := i.saveContent(ctx, left); err != nil {
			return err
		}
	} else if !d.inode.isRegularFile() && !d.isDir() {
`,
			},
			{
				old: `		if err := d.prepareSaveDeletedRegularFile(ctx); err != nil {
`,
				new: `		if _, ok := named[d.inode]; ok {
			// Its content is where the other name is.
		} else if err := d.prepareSaveContent(ctx, left); err != nil {
`,
			},
			{ // prepareSaveRecursive
				old: `	d.childrenMu.Lock()
	defer d.childrenMu.Unlock()
	for childName, child := range d.children {
`,
				new: `	if d.inode.writeLater.Load() {
		d.inode.fs.savedDentryRW[d] = savedDentryRW{read: true, write: true}
	}
	d.childrenMu.Lock()
	defer d.childrenMu.Unlock()
	for childName, child := range d.children {
`,
			},
			{ // restoreDeleted
				old: `		return d.restoreDeletedRegularFile(`,
				new: `		if i, ok := d.inode.impl.(*directfsInode); ok && i.controlFD >= 0 {
			i.savedDeletedData = nil
			delete(d.inode.fs.savedDeletedOpenDentries, d)
			return nil // it has another name
		}
		return d.restoreDeletedRegularFile(`,
			},
			{
				old: `	default:
		return fmt.Errorf("gofer.dentry(%q).restoreDeleted: invalid`,
				new: `	default:
		if i, ok := d.inode.impl.(*directfsInode); ok {
			delete(d.inode.fs.savedDeletedOpenDentries, d)
			var err error
			if i.controlFD < 0 { // else it has another name
				err = i.restoreGone(ctx, d)
			}
			i.savedDeletedData = nil
			return err
		}
		return fmt.Errorf("gofer.dentry(%q).restoreDeleted: invalid`,
			},
			{ // CompleteRestore, which has opened it by a name that it has no more
				old: `failed to clean up recreated deleted file %q: %v", genericDebugPathname(fs, leafD), err)
		}
`,
				new: `failed to clean up recreated deleted file %q: %v", genericDebugPathname(fs, leafD), err)
		}
		leafD.decLinks()
`,
			},
			{ // beforeSave: a synthetic dentry is in memory
				old: `	if d.vfsd.IsDead() {
		if _, ok`,
				new: `	if d.vfsd.IsDead() && !d.inode.isSynthetic() {
		if _, ok`,
			},
			{ // CompleteRestore
				old: `	if err := fs.restoreRoot(ctx, &opts); err != nil {
`,
				new: `	rootWas := fs.root.inode.identity()
	if err := fs.restoreRoot(ctx, &opts); err != nil {
`,
			},
			{
				old: `	if err := fs.root.restoreDescendantsRecursive(ctx, &opts); err != nil {
`,
				new: `	if fs.shared() {
		if err := fs.restoreShared(ctx, &opts, rootWas); err != nil {
			return err
		}
	} else if err := fs.root.restoreDescendantsRecursive(ctx, &opts); err != nil {
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/gofer/revalidate.go",
		sha256: "1d52125197585138a1acc61c58cc6568457cce29cb6c39eb05c39a773d02a077",
		changes: []change{
			{ // invalidate
				old: `		rcs := vfsObj.InvalidateDentry(ctx, &d.vfsd)
`,
				new: `		d.inode.watches.HandleDeletion(ctx)
		rcs := vfsObj.InvalidateDentry(ctx, &d.vfsd)
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/gofer/regular_file.go",
		sha256: "461044dc7a308cfaefee5b97c9361508dbecb3ceb178d7b8be1c73a9a0f7720c",
		changes: []change{
			{ // Allocate
				old: `	d := fd.dentry()
	return d.doAllocate(`,
				new: `	d := fd.dentry()
	if err := d.openLater(ctx); err != nil {
		return err
	}
	return d.doAllocate(`,
			},
			{ // ConfigureMMap
				old: `	d := fd.dentry()
	// Force sentry page caching at your own risk.
`,
				new: `	d := fd.dentry()
	if !opts.Private && opts.MaxPerms.Write {
		if err := d.openLater(ctx); err != nil {
			return err
		}
	}
	// Force sentry page caching at your own risk.
`,
			},
			{ // PRead
				old: `	if offset < 0 {
		return 0, linuxerr.EINVAL
	}

	// Check that flags`,
				new: `	if offset < 0 {
		return 0, linuxerr.EINVAL
	}
	if err := d.stale(); err != nil {
		return 0, err
	}

	// Check that flags`,
			},
			{ // pwrite
				old: `	d := fd.dentry()

	d.inode.metadataMu.Lock()
`,
				new: `	d := fd.dentry()
	if err := d.stale(); err != nil {
		return 0, offset, err
	}
	if err := d.openLater(ctx); err != nil {
		return 0, offset, err
	}

	d.inode.metadataMu.Lock()
`,
			},
			{
				old: `	n, err := src.CopyInTo(ctx, rw)
	if err != nil {
		return n, offset + n, err
	}
	if n > 0 &&`,
				new: `	var w safemem.Writer = rw
	var a *appender
	if fd.vfsfd.StatusFlags()&linux.O_APPEND != 0 && d.inode.fs.shared() {
		a = &appender{ctx: ctx, i: d.inode}
		w = a
	}
	n, err := src.CopyInTo(ctx, w)
	if a != nil && n > 0 {
		offset = a.end - n
	}
	if err != nil {
		return n, offset + n, err
	}
	if n > 0 &&`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/overlay/regular_file.go",
		sha256: "5b99bd11c8b516ec911f6866ba07eb5bc6accace3eb3bff3269c6934c61d669b",
		changes: []change{
			{ // ensureMappable: the file below has to know of who will write (later.go)
				old: `	// Fast path if we already have a Mappable for the current top layer.
	if d.isMappable.Load() != 0 {
`,
				new: `	// Fast path if we already have a Mappable for the current top layer.
	writes := !opts.Private && opts.MaxPerms.Write
	if d.isMappable.Load() != 0 && !writes {
`,
			},
			{
				old: `	defer d.copyMu.RUnlock()
	if d.isMappable.Load() != 0 {
`,
				new: `	defer d.copyMu.RUnlock()
	if d.isMappable.Load() != 0 && !writes {
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/gofer/filesystem.go",
		sha256: "f6a28c0cbf64660fb136bc0b7d16cd0203588165d153c623ae65add043a0cbda",
		changes: []change{
			{ // StatFSAt
				old: `	var ds *[]*dentry
	fs.renameMu.RLock()
	defer fs.renameMuRUnlockAndCheckCaching(ctx, &ds)
	d, err := fs.resolveLocked(ctx, rp, &ds)
	if err != nil {
		return linux.Statfs{}, err
	}
	// If d is synthetic`,
				new: `	disk := fs.askDisk()
	var ds *[]*dentry
	fs.renameMu.RLock()
	defer fs.renameMuRUnlockAndCheckCaching(ctx, &ds)
	d, err := fs.resolveLocked(ctx, rp, &ds)
	if err != nil {
		return linux.Statfs{}, err
	}
	// If d is synthetic`,
			},
			{
				old: `	if statfs.NameLength == 0 ||`,
				new: `	disk.Show(&statfs)
	if statfs.NameLength == 0 ||`,
			},
			{ // unlinkAt
				old: `		child.childrenMu.Lock()
		defer child.childrenMu.Unlock()
		if err := vfsObj.PrepareDeleteDentry(`,
				new: `		if err := child.openLaterLocked(ctx); err != nil {
			return err
		}
		child.childrenMu.Lock()
		defer child.childrenMu.Unlock()
		if err := vfsObj.PrepareDeleteDentry(`,
			},
			{ // RenameAt
				old: `	if oldParent == newParent && oldName == newName {
		return nil
	}
`,
				new: `	if oldParent == newParent && oldName == newName {
		return nil
	}
	if replaced != nil && replaced.inode == renamed.inode {
		return nil // as Linux: two names of a file stay
	}
	if replaced != nil && !exchange {
		if err := replaced.openLaterLocked(ctx); err != nil {
			return err
		}
	}
`,
			},
			{
				old: `		replaced.setDeleted()
`,
				new: `		replaced.setDeleted()
		replaced.decLinks()
`,
			},
			{ // Sync
				old: `			if retErr == nil {
				retErr = err
			}
		}
	}

	// Sync special files`,
				new: `			if retErr == nil {
				retErr = err
			}
		}
		d.writeBackTimes(ctx)
	}

	// Sync special files`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/gofer/gofer.go",
		sha256: "ddb5fdefc892447851a3bae81862d75627cb1c09c7b17cba838f8947e62266b1",
		changes: []change{
			{ // inode
				old: `	// refs is the reference count of the inode. A dentry holds`,
				new: `	// writeLater is that it has been open for writing since before a restore, and has
	// only a readable handle until it is written.
	writeLater atomicbitops.Bool ` + "`state:\"nosave\"`" + `

	// refs is the reference count of the inode. A dentry holds`,
			},
			{ // statTo
				old: `	stat.Blocks = (stat.Size + 511) / 512
`,
				new: `	if d.isDir() {
		stat.Size = hostarch.PageSize
	}
	stat.Blocks = (stat.Size + 511) / 512
`,
			},
			{
				old: `	if stat.Nlink == 0 {
`,
				new: `	if d.isDeleted() {
		stat.Nlink = d.linksLeft()
	} else if stat.Nlink == 0 || d.isDir() {
`,
			},
			{
				old: `func (d *dentry) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
`,
				new: `func (d *dentry) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
	d.awaitOwner(creds, ats)
`,
			},
			{ // checkCachingLocked
				old: `		if d.isDeleted() {
			d.inode.watches.HandleDeletion(ctx)
`,
				new: `		if d.isDeleted() || d.inode.fs.shared() {
			d.inode.watches.HandleDeletion(ctx)
`,
			},
			{ // destroyDisconnected
				old: `	if destroyInode {
		d.inode.destroy(ctx, d)
`,
				new: `	if destroyInode {
		d.writeBackTimes(ctx)
		d.inode.destroy(ctx, d)
`,
			},
			{
				old: `// destroyDisconnected destroys an uncached, unparented dentry.`,
				new: `// writeBackTimes gives a file or directory that was changed the times on the host
// that programs have seen here.
func (d *dentry) writeBackTimes(ctx context.Context) {
	i, ok := d.inode.impl.(*directfsInode)
	if !ok || !i.cachedMetadataAuthoritative() || i.mtimeDirty.Load() == 0 {
		return
	}
	i.metadataMu.Lock()
	defer i.metadataMu.Unlock()
	i.handleMu.RLock()
	defer i.handleMu.RUnlock()
	if !d.isDir() && i.writeFD.RacyLoad() < 0 {
		return
	}
	stat := linux.Statx{
		Mask:  linux.STATX_ATIME | linux.STATX_MTIME,
		Atime: linux.NsecToStatxTimestamp(i.atime.Load()),
		Mtime: linux.NsecToStatxTimestamp(i.mtime.Load()),
	}
	if err := i.utimensat(ctx, &stat, d); err != nil {
		log.Warningf("gofer.dentry.writeBackTimes: %q: %v", genericDebugPathname(i.fs, d), err)
		return
	}
	i.atimeDirty.Store(0)
	i.mtimeDirty.Store(0)
}

// destroyDisconnected destroys an uncached, unparented dentry.`,
			},
		},
	},
	{
		file:   "pkg/sentry/control/state.go",
		sha256: "0f9d02d756721346a06decdd4b648f1e94b033286b0cba2913dd3241a4d1b3f5",
		changes: []change{ // setSaveOptsForCheckpointGofer: a nil pointer in an interface is not nil
			{
				old: `		return fmt.Errorf("failed to buffer state file: %w", err)
`,
				new: `		saveOpts.Destination = nil
		return fmt.Errorf("failed to buffer state file: %w", err)
`,
			},
			{
				old: `			return fmt.Errorf("failed to buffer pages metadata file: %w", err)
`,
				new: `			saveOpts.PagesMetadata = nil
			return fmt.Errorf("failed to buffer pages metadata file: %w", err)
`,
			},
			{
				old: `			return fmt.Errorf("failed to open pages file: %w", err)
`,
				new: `			saveOpts.PagesFile = nil
			return fmt.Errorf("failed to open pages file: %w", err)
`,
			},
			{ // SaveWithOpts
				old: `	if err := saveOpts.Save(s.Kernel.SupervisorContext(), s.Kernel, s.Watchdog); err != nil {
		return err
	}
`,
				new: `	if err := saveOpts.Save(s.Kernel.SupervisorContext(), s.Kernel, s.Watchdog); err != nil {
		return sayHolder(s.Kernel, err)
	}
`,
			},
		},
	},
	{
		file:   "pkg/state/encode.go",
		sha256: "176f4e687b3fd4549cc9149ebd8cd9ccff3af077fc3cf8ebe303a27012df093e",
		changes: []change{
			{ // encodeArray
				old: `	l := obj.Len()
	a := &wire.Array{
`,
				new: `	l := obj.Len()
	if l >= wholeBytes && obj.CanAddr() && obj.Type().Elem() == byteType {
		s := wire.String(gohacks.StringFromImmutableBytes(obj.Bytes()))
		*dest = &s
		return
	}
	a := &wire.Array{
`,
			},
			{
				old: `	"gvisor.dev/gvisor/pkg/state/wire"
)
`,
				new: `	"gvisor.dev/gvisor/pkg/gohacks"
	"gvisor.dev/gvisor/pkg/state/wire"
)

// wholeBytes is from how many bytes on an array of them is written as one object.
const wholeBytes = 4096

var byteType = reflect.TypeOf(byte(0))
`,
			},
		},
	},
	{
		file:   "pkg/state/decode.go",
		sha256: "90fc8363c5c0e20df3c4053a66be3aae6d8f99599f0eb3a30d90529a5eeefeaf",
		changes: []change{
			{ // decodeObject
				old: `	case *wire.String:
		obj.SetString(string(*x))
`,
				new: `	case *wire.String:
		if obj.Kind() == reflect.Array {
			if len(*x) != obj.Len() {
				Failf("mismatching array length expect=%d, actual=%d", obj.Len(), len(*x))
			}
			copy(obj.Bytes(), *x)
			return
		}
		obj.SetString(string(*x))
`,
			},
		},
	},
	{
		file:   "pkg/sentry/fsimpl/gofer/directfs_inode.go",
		sha256: "618938112b6aeb9dbfa7f9d4633c554223cebb5bb0cfe17c50922ec3f814d034",
		changes: []change{ // not where a restore opens what was open
			{ // updateMetadataFromStatxLocked: an open may have met another file than the walk
				old: `		panic(fmt.Sprintf("directfsInode file type changed from %#o to %#o", want, got))
`,
				new: `		log.Warningf("directfsInode file type changed from %#o to %#o", want, got)
		return
`,
			},
			{ // restoreFile
				old: `	if rw, ok := i.fs.savedDentryRW[d]; ok {
`,
				new: `	if rw, ok := i.fs.savedDentryRW[d]; ok && !(rw.write && i.restoreReadable(ctx, d, &stat)) {
`,
			},
			{ // getHostChild
				old: `		return unix.Openat(i.controlFD, name, flags, 0)
`,
				new: `		return ofGuest(unix.Openat(i.controlFD, name, flags, 0))
`,
			},
			{ // getCreatedChild
				old: `		return unix.Openat(i.controlFD, name, flags|extraOpenFlags, 0)
`,
				new: `		return ofGuest(unix.Openat(i.controlFD, name, flags|extraOpenFlags, 0))
`,
			},
			{ // openCreate
				old: `	if err != nil {
		return nil, noHandle, err
	}

	child, err := i.getCreatedChild(`,
				new: `	if err != nil {
		return nil, noHandle, err
	}
	if childHandleFD, err = ofGuest(childHandleFD, nil); err != nil {
		_ = unix.Unlinkat(i.controlFD, name, 0)
		return nil, noHandle, err
	}

	child, err := i.getCreatedChild(`,
			},
		},
	},
	{
		file:   "pkg/sentry/kernel/fasync/fasync.go",
		sha256: "35b109899592aa9ac636d601bbf32c70755991f23f680cd7ef5a9a11f4c6680e",
		changes: []change{
			{ // Callback: whom F_SETOWN names, and with which signal F_SETSIG
				old: `	if t == nil {
		// No recipient has been registered.
`,
				new: `	if t == nil || t.ThreadGroup() == t.Kernel().GlobalInit() {
		// No recipient has been registered.
`,
			},
		},
	},
	{
		file:   "pkg/sentry/kernel/fd_table.go",
		sha256: "b13ca7a398110c22355bfe6ddb1248e6a3abc9192a885bf5b2fe3a7d4e22dde8",
		changes: []change{
			{ // NewFDs
				old: `	// Ensure we don't get past the provided limit.
`,
				new: `	if limits.FewFDs() {
		end = min(end, limits.FewForOne())
	}

	// Ensure we don't get past the provided limit.
`,
			},
		},
	},
	{
		file:   "pkg/sentry/kernel/ptrace.go",
		sha256: "8e491c80823b0a3f22609f3a5794944e9f4aaf6837c20cb17ecc4cda5d91009e",
		changes: []change{
			{ // canTraceStandard, which is not asked within a thread group
				old: `	callerCreds := t.Credentials()
	targetCreds := target.Credentials()
	if callerCreds.HasCapabilityIn(`,
				new: `	if attach && target.tg == t.k.globalInit {
		return false
	}
	callerCreds := t.Credentials()
	targetCreds := target.Credentials()
	if callerCreds.HasCapabilityIn(`,
			},
		},
	},
	{
		file:   "pkg/sentry/kernel/task_signals.go",
		sha256: "14dd5ab4227d14d5a93b45264092feb115abcc4d8ba4c03ad730895868c29329",
		changes: []change{
			{ // sendSignalTimerLocked
				old: `	// Signal side effects apply even if the signal is ultimately discarded.
`,
				new: `	if t.tg == t.k.globalInit && timer == nil && sentByAnother(info) {
		t.Debugf("Discarding signal %d to the first process", sig)
		return nil
	}

	// Signal side effects apply even if the signal is ultimately discarded.
`,
			},
		},
	},
	{
		file:   "pkg/sentry/limits/limits.go",
		sha256: "a4acb49459d047b697cfbe149a87f50a3dd3a71e6004952a44a722dd4bc514cf",
		changes: []change{
			{ // Get
				old: `	s, ok := l.data[t]
	if !ok {
		return Limit{Cur: Infinity, Max: Infinity}
	}
	return s
`,
				new: `	s, ok := l.data[t]
	if !ok {
		s = Limit{Cur: Infinity, Max: Infinity}
	}
	if t == NumberOfFiles {
		s = Limit{Cur: min(s.Cur, hostFDs/4), Max: min(s.Max, hostFDs/4)}
	}
	return s
`,
			},
		},
	},
	{
		file:   "pkg/lisafs/client.go",
		sha256: "886b7497afaa42e2f28f449cf9e7df1a34daf85ece32a9151f5d5973e850594a",
		changes: []change{
			{
				old: `	"gvisor.dev/gvisor/pkg/log"
`,
				new: `	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/rawfile"
`,
			},
			{ // watchdog
				old: `	events := []unix.PollFd{
		{
			Fd:     int32(c.sockComm.FD()),
`,
				new: `	events := []rawfile.PollEvent{
		{
			FD:     int32(c.sockComm.FD()),
`,
			},
			{
				old: `		n, err := unix.Ppoll(events, nil, nil)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
`,
				new: `		n, err := rawfile.BlockingPoll(&events[0], 1, nil)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != 0 {
`,
			},
		},
	},
	{
		file:   "pkg/sentry/pgalloc/save_restore.go",
		sha256: "61d955f945895c20708d36fdcf981b5f2675f854901ed48eff37cc195466dc81",
		changes: []change{
			{ // SaveTo, which looks for pages of zeros
				old: `	unscannedStart := uint64(0)
	for maseg.Ok() {
		ma := maseg.ValuePtr()
`,
				new: `	unscannedStart := uint64(0)
	finder := dataFinder{fd: int(f.file.Fd())}
	for maseg.Ok() {
		ma := maseg.ValuePtr()
`,
			},
			{
				old: `			for pgoff := 0; pgoff < len(bs); pgoff += hostarch.PageSize {
				pg := bs[pgoff : pgoff+hostarch.PageSize]
				off := chunkFR.Start + uint64(pgoff)
				isZeroed := bytes.Equal(pg, zeroPage)
				if isZeroed {
					if !wasCommitted {
						alreadyUncommittedBytes += hostarch.PageSize
						decommitAddPage(off)
`,
				new: `			for pgoff := 0; pgoff < len(bs); pgoff += hostarch.PageSize {
				pg := bs[pgoff : pgoff+hostarch.PageSize]
				off := chunkFR.Start + uint64(pgoff)
				hole := !finder.at(off)
				isZeroed := hole || bytes.Equal(pg, zeroPage)
				if isZeroed {
					if !wasCommitted {
						alreadyUncommittedBytes += hostarch.PageSize
						if !hole {
							decommitAddPage(off)
						}
`,
			},
			{ // AsyncPagesFileLoad
				old: `	timeline     *timing.Timeline // immutable
	doneCallback func(error)      // immutable

	// ar is the pages file. ar is immutable.
	ar stateio.AsyncReader
`,
				new: `	timeline     *timing.Timeline // immutable
	doneCallback func(error)      // immutable

	// first is what to load before the rest. These are protected by amflsMu.
	begun, early bool
	first        []uint32

	// around is what to load then, the last one first. It is protected by mu.
	around []uint64

	// ar is the pages file. ar is immutable.
	ar stateio.AsyncReader
`,
			},
			{ // asyncMemoryFileLoad
				old: `	df           stateio.DestinationFile
	doneCallback func(error)
`,
				new: `	df           stateio.DestinationFile
	main         bool // has the guest's memory
	doneCallback func(error)
`,
			},
			{ // LoadFrom
				old: `		amfl.pf.amfls.PushBack(amfl)
`,
				new: `		amfl.pf.beginLocked(amfl)
`,
			},
			{
				old: `			amfl.lfDone = true
`,
				new: `			amfl.lfDone = true
			amfl.pf.lfStatus.Notify(aplLFPending)
`,
			},
			{ // awaitLoad
				old: `		apfl.numWaiters++
		apfl.totalWaiters++
`,
				new: `		apfl.numWaiters++
		apfl.totalWaiters++
		apfl.wantAround(amfl, fr)
`,
			},
			{ // main
				old: `		if apfl.canEnqueue() {
			apfl.amflsMu.Lock()
			// Unawaited`,
				new: `		if apfl.canEnqueue() && apfl.loadFirst() {
			apfl.amflsMu.Lock()
			// Unawaited`,
			},
			{
				old: `					amfl.f.incRefLocked(ulFR)
					if !apfl.canEnqueue() {
`,
				new: `					amfl.f.incRefLocked(ulFR)
					if !apfl.mayLoadRest() {
`,
			},
		},
	},
	{
		file:   "pkg/sentry/mm/address_space.go",
		sha256: "b37c78a29eb5e890054d85123e054823ab28014287e7aaaeefc7569761b64269",
		changes: []change{
			{ // mapASLocked
				old: `		setMapUnit(32 << 20)
`,
				new: `		mapAR = pseg.loadingWindow(mf, ar)
`,
			},
		},
	},
	{
		file:   "pkg/sentry/mm/io.go",
		sha256: "5e2cf0fd9f1a2fed12228bdae64e81154f064d12e9c39de07c1b79d72e8e456d",
		changes: []change{
			{ // getIOMappingsLocked
				old: `		if err := pseg.getInternalMappingsLocked(); err != nil {
			if _, ok := err.(memmap.BufferedIOFallbackErr); ok {
				goto slowPath
			}
`,
				new: `		if ims, ok, err := pseg.loadingMappingsLocked(ar); ok {
			return ims, nil, err
		}
		if err := pseg.getInternalMappingsLocked(); err != nil {
			if _, ok := err.(memmap.BufferedIOFallbackErr); ok {
				goto slowPath
			}
`,
			},
			{ // getIOMappingsTrackedLocked
				old: `		if err := pseg.getInternalMappingsLocked(); err == nil {
			// Iterate the subset`,
				new: `		if pims, ok, err := pseg.loadingMappingsLocked(pmaAR); ok {
			if err != nil {
				return ims, t, unbufBytes, err
			}
			for ; !pims.IsEmpty(); pims = pims.Tail() {
				ims = append(ims, pims.Head())
			}
			unbufBytes += uint64(pmaAR.Length())
		} else if err := pseg.getInternalMappingsLocked(); err == nil {
			// Iterate the subset`,
			},
		},
	},
	{
		file:   "pkg/sentry/mm/pma.go",
		sha256: "d98d08ca948d065297219e2ea4be7684ee38395ebd065b02b48783bc48d51267",
		changes: []change{
			{ // getPMAsInternalLocked, which breaks copy-on-write: a pma may be of two vmas
				old: `					// Get internal mappings from the pma to copy from.
					if err := pseg.getInternalMappingsLocked(); err != nil {
						return pstart, pseg.PrevGap(), err
					}
					// Copy contents.
`,
				new: `					copyAR = copyAR.Intersect(vseg.Range())
					// Get internal mappings from the pma to copy from.
					copyIMs, loading, err := pseg.loadingMappingsLocked(copyAR)
					if !loading {
						if err = pseg.getInternalMappingsLocked(); err == nil {
							copyIMs = mm.internalMappingsLocked(pseg, copyAR)
						}
					}
					if err != nil {
						return pstart, pseg.PrevGap(), err
					}
					// Copy contents.
`,
			},
			{
				old: `					reader := safemem.BlockSeqReader{Blocks: mm.internalMappingsLocked(pseg, copyAR)}
`,
				new: `					reader := safemem.BlockSeqReader{Blocks: copyIMs}
`,
			},
			{ // isPMACopyOnWriteLocked
				old: `	if mm.mf.HasUniqueRef(pseg.fileRange()) {
		pma.needCOW = false
`,
				new: `	if vseg.Range().IsSupersetOf(pseg.Range()) && mm.mf.HasUniqueRef(pseg.fileRange()) {
		pma.needCOW = false
`,
			},
		},
	},
	{
		file:   "pkg/sentry/syscalls/linux/sys_inotify.go",
		sha256: "00ca0a346a189506f1c397580414f90c3fd16d801ba831f87405bb9c574c45d0",
		changes: []change{
			{
				old: `	"gvisor.dev/gvisor/pkg/sentry/kernel"
`,
				new: `	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/limits"
`,
			},
			{ // InotifyAddWatch
				old: `	return uintptr(ino.AddWatch(d.Dentry(), mask)), nil, nil
`,
				new: `	if !limits.MayWatch(ino.Watches()) {
		return 0, nil, linuxerr.ENOSPC
	}
	return uintptr(ino.AddWatch(d.Dentry(), mask)), nil, nil
`,
			},
		},
	},
	{
		file:   "pkg/sentry/syscalls/linux/sys_rlimit.go",
		sha256: "2f588d4e784cd43fafe9a8a6f0bcb72cc2b909e41cba9ea45f624967035ad580",
		changes: []change{
			{ // Prlimit64
				old: `	// "To set or get the resources of a process other than itself, the caller
`,
				new: `	if tg := ot.ThreadGroup(); newLim != nil && tg != t.ThreadGroup() && tg == t.Kernel().GlobalInit() {
		return 0, nil, linuxerr.EPERM
	}

	// "To set or get the resources of a process other than itself, the caller
`,
			},
		},
	},
	{
		file:   "pkg/sentry/syscalls/linux/sys_time.go",
		sha256: "c777351ba28c5d07982ee3d40ed2e9a3408004c72fdfbb833de99b0162bf731f",
		changes: []change{
			{ // ClockNanosleep
				old: `	dur := time.Duration(req.ToNsecCapped()) * time.Nanosecond
`,
				new: `	if clockID == linux.CLOCK_REALTIME {
		c = t.Kernel().MonotonicClock()
	}
	dur := time.Duration(req.ToNsecCapped()) * time.Nanosecond
`,
			},
		},
	},
}

// added is the files that gVisor does not have.
var added = map[string]string{
	"pkg/sentry/platform/systrap/drowse_turns.go": busyTurns,
	"pkg/sentry/pgalloc/drowse_holes.go":          findHoles,
	"pkg/sentry/kernel/drowse_first.go": `package kernel

import "gvisor.dev/gvisor/pkg/abi/linux"

// sentByAnother reports whether a signal to the first process is of another process
// inside. What the host sends is of process 0. The kernel lets no process use the
// codes that are above 0 for a signal to another.
func sentByAnother(info *linux.SignalInfo) bool {
	switch info.Code {
	case linux.SI_USER, linux.SI_TKILL:
		return info.PID() != 0 && info.PID() != int32(initTID)
	}
	return info.Code < 0
}
`,
	"pkg/sentry/control/drowse_holder.go": `package control

import (
	"fmt"
	"path"
	"strings"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// sayHolder adds to an error of a save which process holds what it is about.
func sayHolder(k *kernel.Kernel, err error) error {
	said, _, _ := strings.Cut(err.Error(), "\n")
	ctx := k.SupervisorContext()
	root := k.TaskSet().Root
	for _, tg := range root.ThreadGroups() {
		t := tg.Leader()
		if t == nil {
			continue
		}
		var fds *kernel.FDTable
		t.WithMuLocked(func(t *kernel.Task) { // the name of a file may ask for the lock
			if fds = t.FDTable(); fds != nil {
				fds.IncRef()
			}
		})
		if fds == nil {
			continue
		}
		held := ""
		fds.ForEach(ctx, func(_ int32, file *vfs.FileDescription, _ kernel.FDFlags) bool {
			if name := file.MappedName(ctx); isAbout(said, file, name) {
				held = name
			}
			return held == ""
		})
		fds.DecRef(ctx)
		if held != "" {
			return fmt.Errorf("held: process %d (%s) holds %s: %s", root.IDOfThreadGroup(tg), t.Name(), held, said)
		}
	}
	return err
}

func isAbout(said string, file *vfs.FileDescription, name string) bool {
	switch kind := fmt.Sprintf("%T", file.Impl()); {
	case kind == "*tundev.tunFD":
		return strings.Contains(said, "/dev/net/tun") || strings.Contains(said, "channel.queue")
	case file.Dentry().IsDead():
		return strings.Contains(said, path.Base(strings.TrimSuffix(name, " (deleted)"))+"\"")
	}
	return false
}
`,
	"pkg/sentry/fsimpl/gofer/drowse_deleted.go": `package gofer

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// mostDeleted is how much content of deleted files is saved where nobody says how much
// memory there is.
const mostDeleted = 256 << 20

// memoryForDeleted returns how many bytes of deleted files can be saved. It takes that
// much memory here and twice as much when they are restored, beside what is taken.
func (fs *filesystem) memoryForDeleted() uint64 {
	all := usage.MaximumTotalMemoryBytes
	used, err := fs.mf.TotalUsage()
	switch {
	case all == 0 || err != nil:
		return mostDeleted
	case used >= all:
		return 0
	}
	return (all - used) / 3
}

// prepareSaveContent saves the content of a deleted file. left is what there is memory for.
func (d *dentry) prepareSaveContent(ctx context.Context, left *uint64) error {
	size := d.inode.size.Load()
	if size > *left {
		return fmt.Errorf("gofer.dentry(%q): a deleted file of %d bytes cannot be saved, there is memory for %d", genericDebugPathname(d.inode.fs, d), size, *left)
	}
	*left -= size
	return d.prepareSaveDeletedRegularFile(ctx)
}
`,
	"pkg/sentry/fsimpl/gofer/drowse_later.go":  writeLater,
	"pkg/sentry/fsimpl/gofer/drowse_named.go":  findNames,
	"pkg/sentry/fsimpl/gofer/drowse_shared.go": sharedFiles,
	"pkg/sentry/fsimpl/gofer/drowse_descriptors.go": `package gofer

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/limits"
)

// ofGuest refuses a descriptor for a file of the guest where too few are left.
func ofGuest(fd int, err error) (int, error) {
	if err == nil && !limits.TakeFD(fd) {
		_ = unix.Close(fd)
		return -1, unix.ENFILE
	}
	return fd, err
}
`,
	"pkg/sentry/fsimpl/gofer/drowse_disk.go": `package gofer

import "gvisor.dev/gvisor/pkg/sentry/limits"

// askDisk returns what statfs is to say of what is mounted here.
func (fs *filesystem) askDisk() *limits.Disk { return limits.AskDisk(fs.iopts.UniqueID.Path) }
`,
	"pkg/sentry/limits/drowse_descriptors.go": `package limits

import (
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// hostFDs is how many descriptors this process may have.
var hostFDs = func() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return l.Cur
}()

// FewForOne is how many descriptors a process may have while there are few.
func FewForOne() int32 { return int32(max(hostFDs/64, 64)) }

// lastFD is the descriptor that a file of the guest got last. The lowest that is free is
// taken, so it says how many are in use.
var lastFD atomic.Int64

// TakeFD reports whether a file of the guest may have a descriptor. An eighth is for
// its processes and for captures.
func TakeFD(fd int) bool {
	lastFD.Store(int64(fd))
	return uint64(fd) < hostFDs-hostFDs/8
}

// MayWatch reports whether one that watches so many files may watch another. Each keeps
// a descriptor.
func MayWatch(files int) bool {
	return files < int(hostFDs/4) && (files < int(FewForOne()) || !FewFDs())
}

// FewFDs reports whether half of them are taken.
func FewFDs() bool {
	few := int64(hostFDs / 2)
	if lastFD.Load() < few {
		return false
	}
	// Some may have been given back since.
	fd, err := unix.Dup(int(os.Stderr.Fd()))
	if err != nil {
		return true
	}
	_ = unix.Close(fd)
	lastFD.Store(int64(fd))
	return int64(fd) >= few
}
`,
	"pkg/sentry/control/drowse_disk.go": `package control

import (
	"errors"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/urpc"
)

// DiskOpts is what is told of a disk. With a file, an eventfd, it is asked for again.
type DiskOpts struct {
	urpc.FilePayload
	Disk limits.Disk
}

// TellDisk tells what statfs is to say.
func (*Usage) TellDisk(o *DiskOpts, _ *struct{}) error {
	ask := -1
	if len(o.Files) > 0 {
		raw, err := o.Files[0].SyscallConn()
		if err != nil {
			return err
		}
		var dup error
		err = raw.Control(func(fd uintptr) { ask, dup = unix.Dup(int(fd)) })
		if err := errors.Join(err, dup); err != nil {
			return err
		}
	}
	limits.TellDisk(o.Disk, ask)
	return nil
}
`,
	"pkg/sentry/control/drowse_loading.go": `package control

import "gvisor.dev/gvisor/pkg/sentry/pgalloc"

// Blocks are those of a guest's memory that are loaded first.
type Blocks struct{ Blocks []byte }

// LoadFirst tells, before a restore, what to load first.
func (*Usage) LoadFirst(b *Blocks, _ *struct{}) error {
	pgalloc.LoadFirst(b.Blocks)
	return nil
}

// FirstUsed tells what was used first after the restore.
func (*Usage) FirstUsed(_, b *Blocks) error {
	b.Blocks = pgalloc.FirstUsed()
	return nil
}
`,
	"pkg/sentry/pgalloc/drowse_first.go": firstUse,
	"pkg/sentry/limits/drowse_disk.go": `package limits

import (
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

// Disk is how much there may be in what is mounted at a path, and how much there is.
type Disk struct {
	Path                    string
	Bytes, Files            uint64
	TakenBytes, TakenFiles  uint64
}

const (
	diskFresh    = 10 * time.Millisecond  // for how long an answer is good
	diskPatience = 500 * time.Millisecond // how long one is waited for
)

type toldDisk struct {
	Disk
	at     time.Time
	ask    int           // an eventfd; -1 for none
	silent bool          // the last question was not answered in time
	next   chan struct{} // closed by the next answer
}

var (
	disksMu sync.Mutex
	disks   = map[string]*toldDisk{}
)

// TellDisk has statfs say so. What ask is, if it is not -1, is asked from now on.
func TellDisk(d Disk, ask int) {
	disksMu.Lock()
	defer disksMu.Unlock()
	t := disks[d.Path]
	if t == nil {
		t = &toldDisk{ask: -1}
		disks[d.Path] = t
	} else {
		close(t.next)
	}
	if ask >= 0 {
		if t.ask >= 0 {
			_ = unix.Close(t.ask)
		}
		t.ask = ask
	} else if t.ask >= 0 { // it is an answer
		t.at = time.Now()
	}
	t.Disk, t.silent, t.next = d, false, make(chan struct{})
}

// AskDisk returns what there is at a path; nil if nothing is to be said of it.
func AskDisk(path string) *Disk {
	disksMu.Lock()
	defer disksMu.Unlock()
	t := disks[path]
	if t == nil {
		return nil
	}
	if t.ask >= 0 && time.Since(t.at) > diskFresh {
		_, _ = unix.Write(t.ask, binary.NativeEndian.AppendUint64(nil, 1))
		if next := t.next; !t.silent {
			disksMu.Unlock()
			select {
			case <-next:
			case <-time.After(diskPatience):
			}
			disksMu.Lock()
			t.silent = next == t.next
		}
	}
	d := t.Disk
	return &d
}

// Show puts it into what the host says.
func (d *Disk) Show(s *linux.Statfs) {
	if d == nil || s.BlockSize <= 0 {
		return
	}
	block := uint64(s.BlockSize)
	s.Blocks, s.BlocksFree = d.Bytes/block, (d.Bytes-min(d.TakenBytes, d.Bytes))/block
	s.BlocksAvailable = min(s.BlocksAvailable, s.BlocksFree)
	free := d.Files - min(d.TakenFiles, d.Files)
	if s.Files > 0 { // Btrfs does not count them
		free = min(free, s.FilesFree)
	}
	s.Files, s.FilesFree = d.Files, free
}
`,
	"pkg/sentry/mm/drowse_loading.go": `package mm

import (
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// loadingMappingsLocked returns internal mappings of ar alone if pseg's file is
// still being loaded; otherwise it returns false. It waits for the pages of ar. The
// mappings are not kept.
//
// Preconditions:
//   - mm.activeMu must be locked for writing.
//   - pseg.Range().IsSupersetOf(ar).
//   - ar.Length() != 0.
func (pseg pmaIterator) loadingMappingsLocked(ar hostarch.AddrRange) (safemem.BlockSeq, bool, error) {
	pma := pseg.ValuePtr()
	if !pma.internalMappings.IsEmpty() {
		return safemem.BlockSeq{}, false, nil
	}
	mf, ok := pma.file.(*pgalloc.MemoryFile)
	if !ok || !mf.IsAsyncLoading() {
		return safemem.BlockSeq{}, false, nil
	}
	perms := pma.maxPerms // as getInternalMappingsLocked does
	perms.Execute = false
	fr := pseg.fileRangeOf(ar)
	mf.Used(fr)
	ims, err := mf.MapInternal(fr, perms)
	return ims, true, err
}

// loadingWindow returns what to map for a use of ar while pseg's file is being loaded.
//
// Preconditions: as of mapASLocked.
func (pseg pmaIterator) loadingWindow(mf *pgalloc.MemoryFile, ar hostarch.AddrRange) hostarch.AddrRange {
	used := ar.Intersect(pseg.Range())
	if used.Length() == 0 {
		return ar
	}
	fr := pseg.fileRangeOf(used)
	window := mf.Use(fr)
	return hostarch.AddrRange{
		Start: min(ar.Start, used.Start-hostarch.Addr(min(fr.Start-window.Start, uint64(used.Start-pseg.Start())))),
		End:   max(ar.End, used.End+hostarch.Addr(min(window.End-fr.End, uint64(pseg.End()-used.End)))),
	}
}
`,
	"pkg/sentry/vfs/drowse_watches.go": `package vfs

// Watches returns how many files are watched.
func (i *Inotify) Watches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.watches)
}
`,
}

// markFile is replaced too, so that a program knows how it was built.
const markFile = "internal/runtime/gvisor/edited.go"

const mark = `package gvisor

const edits = "early access"
`
