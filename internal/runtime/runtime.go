// Package runtime defines what drowse needs of the thing that runs sandboxes:
// a driver starts, freezes, captures and restores process trees behind an
// isolation boundary.
//
// Drivers know nothing of sandboxes, stores or HTTP. A runtime is named by an
// id that is never reused. Runtimes are processes of their own and outlive the
// server, which finds them again by id. The contract suite in drivertest says
// what every driver must do.
package runtime

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
)

// Resolver is the address at which every runtime finds the one that answers its
// questions for names.
const Resolver = "169.254.77.1"

// Spec says what to start.
type Spec struct {
	ID       string // unique for ever, of a fixed length
	Owner    string // whoever it is for: owners share fairly what the driver has made ahead; empty for the server itself
	Rootfs   string // a mounted root file system
	Args     []string
	Env      []string
	Hostname string
	Limits   Limits
	Network  Network // what it reaches outside; nil for nothing
	Mounts   []Mount // none lies in another
	Disk     Disk    // see DiskTeller
	Sharers  int     // see Sharer; 0 is 1
	// Build is the digest of the build that restores a memory image, as the Reader
	// of a Builder gives it; empty for the driver's own. What starts afresh is of
	// that in any case.
	Build string
	// Unread is for a restore by an EarlyRestorer: the files of the memory image,
	// which nobody has verified. nil if all are what was written.
	Unread []ImageFile
	// AllFirst has the runtime run only when all of Unread has been read. Every driver
	// that is a ChangeCapturer can restore so.
	AllFirst bool
	// Late brings the pages of Unread, which are not all there yet; nil if they are. It is for
	// a driver that restores early, and without AllFirst.
	Late Late
}

// Late brings the pages of a memory image. Until all of them are there, their file is where
// layer.LatePath says.
type Late interface {
	// Await returns when the part with an offset is there, and from where to where that
	// goes. An error says why it will not come; or it is that of ctx.
	Await(ctx context.Context, off int64) (start, end int64, err error)
	// WhenWhole calls f once with how many bytes there are, when all of them are: at once if they
	// are already. After stop it is not called any more.
	WhenWhole(f func(size int64)) (stop func())
}

// ImageFile is what is known of a file of a memory image.
type ImageFile struct {
	Name   string   `json:"name"`
	Size   int64    `json:"size"`
	Chunk  int64    `json:"chunk"`  // bytes that one checksum covers
	CRC32C []uint32 `json:"crc32c"` // of each chunk, the last one shorter
}

// Mount is a directory of the host that a runtime shares with others. What one
// of them has written, all of them see.
type Mount struct {
	Source string // the directory
	Path   string // where it is inside: absolute and clean
}

// Network is where the connections go that leave a runtime.
type Network interface {
	// Open returns the addresses that can be connected to now. Connections to
	// others are refused at once, and without any there is no resolver either.
	Open() []egress.Range
	// Serve takes over what leaves the runtime: connections whose local address
	// is the one that was connected to, and questions for names. If syns is not
	// nil, a connection comes after its SYN has been answered. It returns some time
	// after all have been closed.
	Serve(conns net.Listener, names net.PacketConn, syns egress.SYNs)
}

// Limits bound a runtime on the host.
type Limits struct {
	CPUs      float64 // to the hundredth
	MemoryMiB int
	PIDs      int // host tasks
}

// Capabilities is what a driver can do, as data.
type Capabilities struct {
	Isolation   string `json:"isolation"` // "gvisor", "vm", "none"
	MemoryPause bool   `json:"memoryPause"`
	Version     string `json:"version"` // of what writes and reads memory images
	// Edits names what was changed in the runtime's code for this build; empty for
	// none. It does not matter to a memory image.
	Edits string `json:"edits,omitempty"`
	// CPU names the features of the processor that programs in a memory image
	// may have found, and need to find where it is restored.
	CPU []string `json:"cpu,omitempty"`
}

// Build is one state of the program that runs runtimes.
type Build struct {
	Digest  string // SHA-256 of the program in hex; empty where no program could be kept
	Version string // of what it writes memory images with, and reads: as in Capabilities
}

// Builder is a Driver whose runtimes go on with the program that they were
// started with, and whose memory images are read by the build that wrote them.
type Builder interface {
	// Reader returns the build to restore a memory image with, given the build that
	// wrote it: digest is empty where that is not known. Where there is none, the
	// error is an errdef.Unavailable with code "checkpoint_unreadable" and says what
	// is missing.
	Reader(digest, version string) (Build, error)
	// Keep has the program of a build that Reader gave stay for as long as a memory
	// image may need it.
	Keep(digest string) error
}

// Built is an Instance that tells its build.
type Built interface {
	// Build has the program stay, as Keep does. With an error that was not
	// possible; the Build is right all the same.
	Build() (Build, error)
}

// Driver runs runtimes of one kind.
type Driver interface {
	Capabilities() Capabilities
	// Start boots a new runtime and returns when its first process runs.
	Start(ctx context.Context, spec Spec) (Instance, error)
	// Restore starts a runtime from the memory image in the directory image,
	// over the same files that the captured one had. The image is not changed.
	Restore(ctx context.Context, spec Spec, image string) (Instance, error)
	// Adopt finds a runtime that an earlier server started. It returns an
	// errdef.NotFound if it is not running.
	Adopt(ctx context.Context, id string) (Instance, error)
	// List returns the ids of all runtimes that exist in any state, even half
	// made ones.
	List(ctx context.Context) ([]string, error)
	// Remove destroys what is left of a runtime: processes, network, files. It
	// is idempotent and works on half made ones. The root file system is the
	// caller's.
	Remove(ctx context.Context, id string) error
	// Close releases what the driver itself holds. Runtimes go on.
	Close() error
}

// EarlyRestorer is a Driver that can have a runtime run before all of its memory
// image has been read. It verifies each part of a file before anything inside sees
// it. A damaged part fails the restore with the code "checkpoint_damaged", or later
// ends the runtime, which is a DamageWitness. The image stays as it is until Exited,
// or until the next Checkpoint.
type EarlyRestorer interface {
	// RestoresEarly reports whether it can with a build, as Spec has it.
	RestoresEarly(build string) bool
}

// DamageWitness is an Instance that can tell, after its end, whether that came of
// a part of its memory image that is not what was written, and of which.
type DamageWitness interface {
	Damage() error
}

// ChangeDriver is a Driver of ChangeCapturers.
type ChangeDriver interface {
	// CapturesChanges reports whether a runtime of its own build can be one here.
	CapturesChanges() bool
}

// ChangeCapturer is an Instance that can leave out of a memory image the pages that an
// image before it has. Such an image is restored with Unread.
type ChangeCapturer interface {
	// CapturesChanges reports whether it can, with the build that it runs.
	CapturesChanges() bool
	// CheckpointChanges is Checkpoint, except that dir has the files of Changes.Keep.
	// It writes the files that package pagemap describes.
	CheckpointChanges(ctx context.Context, dir string, c Changes) error
}

// Changes says what need not be written again.
type Changes struct {
	Pack string   // the name of the file that takes the pages that are new
	Base string   // the directory of the image before, with a map of pages; empty to write all
	Keep []string // those of its packs that may be referred to
}

// Instance is one live runtime. Its methods are safe for concurrent use.
type Instance interface {
	ID() string
	// Dial connects to a TCP port inside. A port that nobody listens on is an
	// error that wraps syscall.ECONNREFUSED.
	Dial(ctx context.Context, port int) (net.Conn, error)
	// Freeze stops every process inside until Thaw.
	Freeze(ctx context.Context) error
	// Thaw lets a frozen runtime go on.
	Thaw(ctx context.Context) error
	// Checkpoint writes the memory image of a frozen runtime into the empty
	// directory dir. The runtime stays frozen whatever the outcome. Nothing is
	// synced. What something inside makes impossible is an error of NotCapturable.
	Checkpoint(ctx context.Context, dir string) error
	// Exited is closed when the runtime is gone.
	Exited() <-chan struct{}
}

// ErrExited is that a runtime is gone.
var ErrExited = errors.New("the runtime exited")

// pollEvery is how often a port that nobody listens on yet is tried again.
const pollEvery = 2 * time.Millisecond

// DialPatiently connects to a port that will be listened on soon, as the agent's after a
// start. The error is ErrExited if the runtime is gone before.
func DialPatiently(ctx context.Context, inst Instance, port int) (net.Conn, error) {
	for {
		conn, err := inst.Dial(ctx, port)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-inst.Exited():
			return nil, ErrExited
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// CodeNotCapturable is the code of NotCapturable.
const CodeNotCapturable = "memory_not_capturable"

// NotCapturable is the error of a Checkpoint that no retry cures. what is one line that
// names what is open inside and cannot be saved, and the process that holds it if that
// is known.
func NotCapturable(what string) error {
	return errdef.New(errdef.WrongState, CodeNotCapturable, "%s", what)
}

// IsNotCapturable reports whether an error is one of NotCapturable.
func IsNotCapturable(err error) bool {
	return errdef.CodeOf(err) == CodeNotCapturable
}

// Named is an Instance whose host name can be given to it while it runs: a restored
// one has that of the runtime it was captured of.
type Named interface {
	SetHostname(ctx context.Context, name string) error
}

// Networked is an Instance whose way out can be given to it, and change.
type Networked interface {
	// SetNetwork makes n what the runtime reaches outside. It is called again
	// when what is open has changed.
	SetNetwork(n Network) error
}

// Sharer is an Instance that can be given less of the CPU time of a busy host,
// because its owner has other runtimes there: 1/n of what a single one would get.
type Sharer interface {
	ShareAmong(n int) error
}

// Confiner is an Instance that can be made to step back, because its owner would
// take nearly all of the host's processors.
type Confiner interface {
	// CPUTime is what the runtime has used since its start.
	CPUTime() (time.Duration, error)
	// Confine has it run on n of the processors that it could run on at first, at
	// most; 0 is all of them.
	Confine(n int) error
	// Yield has it run only while no runtime that does not yield wants to run. A
	// kernel that cannot do that leaves it as it is.
	Yield(yield bool) error
}

// MemoryWatcher is an Instance that notices when the programs inside take more
// memory than they may, before that ends the runtime.
type MemoryWatcher interface {
	// WatchMemory calls relieve, which is to make processes inside give back so
	// many bytes, until the runtime takes no more than it may. A runtime that
	// takes more for long is ended. It returns when ctx or the runtime has ended.
	WatchMemory(ctx context.Context, relieve func(ctx context.Context, bytes int64) error)
}

// Limit names one of the Limits.
type Limit string

// The limits whose excess ends a runtime.
const (
	MemoryLimit Limit = "memory"
	PIDsLimit   Limit = "pids"
)

// Ending is what a runtime ended of.
type Ending struct {
	Limit Limit  // empty if it was none of them
	Words string // one line with words of its guest; empty if nothing is known
}

// Witness is an Instance that can tell, from its end until its removal, what it ended
// of. With an error it tells as much as it knows.
type Witness interface {
	EndedBy() (Ending, error)
}

// DiskLimited is an Instance whose use of the disk is slowed down where it is too
// fast.
type DiskLimited interface {
	// LiftDiskRates lets it use the disk as fast as it can until the next Thaw, as
	// Freeze does. It is for what must be on the disk before a capture.
	LiftDiskRates()
}

// LiftDiskRates lifts the disk rates of an Instance that may have some.
func LiftDiskRates(i Instance) {
	if d, ok := i.(DiskLimited); ok {
		d.LiftDiskRates()
	}
}

// DiskMeter is an Instance that can tell what it takes of the host's disk and
// has no name there any more, in bytes: files that are open inside and removed.
type DiskMeter interface {
	Unlinked() (int64, error)
}

// Disk is how much of a disk may be taken, and how much is. The zero value is a disk
// without a limit of its own.
type Disk struct{ Limit, Taken layer.Usage }

// DiskTeller is an Instance in which programs can be told of the disk. What it was
// before is told until one asks, and then what asked returns, until ctx ends or the
// runtime has. Before that they are told what the Spec says.
type DiskTeller interface {
	TellDisk(ctx context.Context, before Disk, asked func(context.Context) Disk) error
}

// OpenFile is a regular file that a runtime holds open.
type OpenFile struct {
	Path     string // inside
	Size     int64
	Modified time.Time
}

// FileHolder is an Instance that can tell which files of its root file system it
// holds open, for programs that have opened or mapped them, or lately had. nil
// without an error means that it is not known.
type FileHolder interface {
	OpenFiles() ([]OpenFile, error)
}

// Usage is what a runtime uses of the machine.
type Usage struct {
	CPU    time.Duration // spent so far
	Memory int64         // bytes that its end would give back
	Cache  int64         // bytes of files that the machine keeps in memory for it
}

// UsageMeter is an Instance that can tell what it uses, without a part of it
// having to run for that.
type UsageMeter interface {
	Usage() (Usage, error)
}
