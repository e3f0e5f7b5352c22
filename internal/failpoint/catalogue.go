package failpoint

// Point is a step at which a fault can strike. Where it says "before", an error
// there means that the step is not taken; otherwise it has been taken, and whoever
// took it is told that it failed.
type Point string

// The points, by package. What each is, [Catalogue] says.
const (
	CommitBegin Point = "store/commit-begin"
	Commit      Point = "store/commit"
	Committed   Point = "store/committed"

	VolumeAdd      Point = "store/volume-add"
	VolumeAdded    Point = "store/volume-added"
	VolumeStrike   Point = "store/volume-strike"
	VolumeStricken Point = "store/volume-stricken"

	SnapshotStrike   Point = "store/snapshot-strike"
	SnapshotStricken Point = "store/snapshot-stricken"

	Mount        Point = "layer/mount"
	Mounted      Point = "layer/mounted"
	Unmount      Point = "layer/unmount"
	LayerSync    Point = "layer/sync"
	LayerSynced  Point = "layer/synced"
	LayerCopy    Point = "layer/copy"
	ImageMake    Point = "layer/image-make"
	ImageLink    Point = "layer/image-link"
	ImageUnlink  Point = "layer/image-unlink"
	ImageFile    Point = "layer/image-file"
	Manifest     Point = "layer/manifest"
	ManifestSync Point = "layer/manifest-sync"
	NamesSync    Point = "layer/names-sync"
	Sealed       Point = "layer/sealed"
	Verify       Point = "layer/verify"
	Merge        Point = "layer/merge"
	MergeSync    Point = "layer/merge-sync"
	Merged       Point = "layer/merged"
	Doom         Point = "layer/doom"
	Doomed       Point = "layer/doomed"
	ImportMake   Point = "layer/import-make"
	ImportEntry  Point = "layer/import-entry"
	ImportPlace  Point = "layer/import-place"
	ImportPlaced Point = "layer/import-placed"

	VolumeMake       Point = "volume/make"
	VolumeMade       Point = "volume/made"
	VolumeDiscard    Point = "volume/discard"
	VolumeDiscarded  Point = "volume/discarded"
	VolumeRecall     Point = "volume/recall"
	VolumeRemove     Point = "volume/remove"
	VolumeWrite      Point = "volume/write"
	VolumeDir        Point = "volume/dir"
	VolumeWriteSync  Point = "volume/write-sync"
	VolumeWritePlace Point = "volume/write-place"
	VolumeWritten    Point = "volume/written"
	VolumeFileRemove Point = "volume/file-remove"

	NetworkMake     Point = "gvisor/network-make"
	NetworkMade     Point = "gvisor/network-made"
	Created         Point = "gvisor/created"
	WarmRoot        Point = "gvisor/warm-root"
	WarmMove        Point = "gvisor/warm-move"
	WarmMoved       Point = "gvisor/warm-moved"
	Started         Point = "gvisor/started"
	NetworkAttached Point = "gvisor/network-attached"
	StateKept       Point = "gvisor/state-kept"
	Adopt           Point = "gvisor/adopt"
	FreezeMark      Point = "gvisor/freeze-mark"
	Freeze          Point = "gvisor/freeze"
	Frozen          Point = "gvisor/frozen"
	Checkpoint      Point = "gvisor/checkpoint"
	TakerStarted    Point = "gvisor/taker-started"
	Checkpointed    Point = "gvisor/checkpointed"
	Thaw            Point = "gvisor/thaw"
	Thawed          Point = "gvisor/thawed"
	Destroy         Point = "gvisor/destroy"
	Destroyed       Point = "gvisor/destroyed"
	Unpinned        Point = "gvisor/unpinned"

	Launch   Point = "supervisor/launch"
	Booted   Point = "supervisor/booted"
	Launched Point = "supervisor/launched"
	Drained  Point = "supervisor/drained"
	Captured Point = "supervisor/captured"
	Rested   Point = "supervisor/rested"
	GoesOn   Point = "supervisor/goes-on"
	Remove   Point = "supervisor/remove"
	KillAll  Point = "supervisor/remove-all"
	Gone     Point = "supervisor/gone"
)

// Step describes a point.
type Step struct {
	Point Point
	Where string
	// CrashOnly is set where no error can happen: what comes before cannot fail,
	// or has gone too far to.
	CrashOnly bool
}

// Catalogue lists every point, those of one package in the order in which an
// operation comes to them.
func Catalogue() []Step {
	return []Step{
		{Point: CommitBegin, Where: "the transaction of a change has begun, before anything is written"},
		{Point: Commit, Where: "record and log entries are written, before COMMIT"},
		{Point: Committed, Where: "the change is durable, and nobody has been told", CrashOnly: true},

		{Point: VolumeAdd, Where: "a volume's record is written, before COMMIT"},
		{Point: VolumeAdded, Where: "the volume is in the store, and nobody has been told", CrashOnly: true},
		{Point: VolumeStrike, Where: "a volume's record is deleted, before COMMIT"},
		{Point: VolumeStricken, Where: "the volume is not in the store any more, and its files are there", CrashOnly: true},

		{Point: SnapshotStrike, Where: "a snapshot's record is deleted, before COMMIT"},
		{Point: SnapshotStricken, Where: "the snapshot is not in the store any more, and its files are there", CrashOnly: true},

		{Point: Mount, Where: "before one overlay of a root is mounted"},
		{Point: Mounted, Where: "all overlays of a root are mounted"},
		{Point: Unmount, Where: "before a mount is taken away"},
		{Point: LayerSync, Where: "before a frozen layer is synced"},
		{Point: LayerSynced, Where: "a frozen layer is durable"},
		{Point: LayerCopy, Where: "before a top is copied, for a snapshot or a light sleep, while the guest is frozen"},
		{Point: ImageMake, Where: "before the directory of an image is made"},
		{Point: ImageLink, Where: "before a pack of the image before is linked into a new one"},
		{Point: ImageUnlink, Where: "before the packs are taken out of a new image that it does not need"},
		{Point: ImageFile, Where: "before a file of an image is synced"},
		{Point: Manifest, Where: "the manifest's file is made and empty"},
		{Point: ManifestSync, Where: "the manifest is written and not synced"},
		{Point: NamesSync, Where: "before the directories of an image are synced"},
		{Point: Sealed, Where: "an image is durable"},
		{Point: Verify, Where: "before an image is verified"},
		{Point: Merge, Where: "before anything of a merged layer is made"},
		{Point: MergeSync, Where: "a merged layer has all its files, before its listing is written"},
		{Point: Merged, Where: "a merged layer is durable, and not in the stack"},
		{Point: Doom, Where: "before a layer or image is moved out of the way"},
		{Point: Doomed, Where: "it is moved out of the way, before it is deleted"},
		{Point: ImportMake, Where: "before the directory of an import is made"},
		{Point: ImportEntry, Where: "before something of an imported layer is made"},
		{Point: ImportPlace, Where: "an import is whole and durable, before it gets its place"},
		{Point: ImportPlaced, Where: "it has its place, and no record names it yet"},

		{Point: VolumeMake, Where: "before the directory of a volume is made"},
		{Point: VolumeMade, Where: "it is durable, and in no record"},
		{Point: VolumeDiscard, Where: "before the directory of a volume is put aside"},
		{Point: VolumeDiscarded, Where: "it is put aside, and still in the store"},
		{Point: VolumeRecall, Where: "before it is put back, because it stays in the store"},
		{Point: VolumeRemove, Where: "before the files of a deleted volume are removed"},
		{Point: VolumeWrite, Where: "before a file is written for a volume"},
		{Point: VolumeDir, Where: "a directory is made in a volume, before that is synced"},
		{Point: VolumeWriteSync, Where: "a file for a volume is written outside of it, before it is synced"},
		{Point: VolumeWritePlace, Where: "it is durable, before it gets its place"},
		{Point: VolumeWritten, Where: "it has its place, before that is synced"},
		{Point: VolumeFileRemove, Where: "before something in a volume is removed"},

		{Point: NetworkMake, Where: "before a network namespace is made"},
		{Point: NetworkMade, Where: "the namespace is pinned, with its interfaces"},
		{Point: Created, Where: "gVisor's processes are there, before they run anything"},
		{Point: WarmRoot, Where: "before a runtime that waited gets its root"},
		{Point: WarmMove, Where: "it has its root, before it gets its name"},
		{Point: WarmMoved, Where: "it has its name", CrashOnly: true},
		{Point: Started, Where: "the guest was started or restored"},
		{Point: NetworkAttached, Where: "the host's end of the network has its address"},
		{Point: StateKept, Where: "gVisor's state is copied"},
		{Point: Adopt, Where: "before a runtime is looked for after a restart"},
		{Point: FreezeMark, Where: "before the mark that a runtime may be frozen"},
		{Point: Freeze, Where: "the mark is there, before the freeze"},
		{Point: Frozen, Where: "the runtime is frozen"},
		{Point: Checkpoint, Where: "before the memory is written"},
		{Point: TakerStarted, Where: "the image taker of a delta pause waits, before the sentry is told"},
		{Point: Checkpointed, Where: "the memory is written, and not synced"},
		{Point: Thaw, Where: "before the thaw"},
		{Point: Thawed, Where: "the runtime runs on, and the mark is still there"},
		{Point: Destroy, Where: "before a runtime's processes are ended"},
		{Point: Destroyed, Where: "they are gone, before its cgroups and network are"},
		{Point: Unpinned, Where: "cgroups and network are gone, before its directory is"},

		{Point: Launch, Where: "before anything of a start is done"},
		{Point: Booted, Where: "the runtime runs, before its agent is told who it is"},
		{Point: Launched, Where: "the sandbox could serve, before that is committed"},
		{Point: Drained, Where: "no connection is left, before the freeze"},
		{Point: Captured, Where: "the checkpoint is complete, before it is committed"},
		{Point: Rested, Where: "the pause is committed, before its runtime stays frozen or is released", CrashOnly: true},
		{Point: GoesOn, Where: "a runtime that has stayed frozen goes on, and its agent may not have been told yet"},
		{Point: Remove, Where: "before a runtime is released, or the rest of a failed one"},
		{Point: KillAll, Where: "the end is committed, before anything is removed"},
		{Point: Gone, Where: "nothing is left, before that is committed", CrashOnly: true},
	}
}
