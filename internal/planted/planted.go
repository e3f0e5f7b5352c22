// Package planted holds bugs that a build with the tag plant can have, to see
// that tests find them. [Catalogue] says which test finds which; TestPlantedBugs
// holds it to that. In any other build the bugs compile to nothing.
package planted

// Bug names a bug.
type Bug string

// Env is the environment variable that names the bug to have.
const Env = "DROWSE_PLANTED_BUG"

// The bugs. What each is, [Catalogue] says.
const (
	DroppedBarrier   Bug = "dropped-barrier"
	ReusedGeneration Bug = "reused-generation"
	EarlyPause       Bug = "early-pause"
	EarlyResume      Bug = "early-resume"
	EarlyKill        Bug = "early-kill"

	UnsyncedCommit Bug = "unsynced-commit"
	EarlyAnswer    Bug = "early-answer"
	UnsyncedImage  Bug = "unsynced-image"
	UnsyncedNames  Bug = "unsynced-names"
	UnsyncedLayer  Bug = "unsynced-layer"
	UnsyncedBase   Bug = "unsynced-base"
	EarlyDrop      Bug = "early-drop"

	UncheckedImage Bug = "unchecked-image"
	UncheckedLayer Bug = "unchecked-layer"
	UncheckedChunk Bug = "unchecked-chunk"

	NoIndex       Bug = "no-index"
	PartedNames   Bug = "parted-names"
	LinkingMerge  Bug = "linking-merge"
	ForgottenLink Bug = "forgotten-link"

	UncomparedPage    Bug = "uncompared-page"
	DroppedPack       Bug = "dropped-pack"
	UnsyncedPackNames Bug = "unsynced-pack-names"
	EndlessChain      Bug = "endless-chain"

	SharedTop  Bug = "shared-top"
	UntoldThaw Bug = "untold-thaw"

	NoGrace       Bug = "no-grace"
	NoWatermark   Bug = "no-watermark"
	ForgottenThaw Bug = "forgotten-thaw"
	FleetingEnd   Bug = "fleeting-end"
	DeafKill      Bug = "deaf-kill"

	Unfenced Bug = "unfenced"

	DeafReturn   Bug = "deaf-return"
	EagerTake    Bug = "eager-take"
	EarlyPromise Bug = "early-promise"
	OpenLapse    Bug = "open-lapse"
)

// Planted is a bug and the test that finds it.
type Planted struct {
	Bug     Bug
	What    string
	Package string // below internal
	Test    string
	Args    []string // of the test binary, so that the test is quick
}

// Catalogue lists every bug.
func Catalogue() []Planted {
	histories := func(b Bug, what string) Planted {
		return Planted{b, what, "supervisor", "TestHistories", []string{"-history.count", "200"}}
	}
	ofServers := func(b Bug, what string) Planted {
		return Planted{b, what, "supervisor", "TestHistoriesOfServers", []string{"-history.count", "400"}}
	}
	powerCut := func(b Bug, pkg, what string) Planted { return Planted{b, what, pkg, "TestPowerCut", nil} }
	found := func(b Bug, pkg, test, what string) Planted { return Planted{b, what, pkg, test, nil} }
	return []Planted{
		histories(DroppedBarrier, "accesses are let through while a pause is under way"),
		histories(ReusedGeneration, "a resume serves under the number of the generation that was paused"),
		histories(EarlyPause, "a pause is answered before anything of it is committed"),
		histories(EarlyResume, "a resume is answered before anything of it is committed"),
		histories(EarlyKill, "a kill is answered before anything of it is committed"),

		found(NoIndex, "layer", "TestTreeStaysTheSame", "overlays are mounted without an index"),
		found(PartedNames, "layer", "TestTreeStaysTheSame", "a top is frozen without names that its files have in lower layers"),
		found(LinkingMerge, "layer", "TestTreeStaysTheSame", "a merge gives files another name in place of a copy"),
		found(ForgottenLink, "layer", "TestTreeStaysTheSame", "a merge makes a file of each name that a file has"),

		powerCut(UnsyncedCommit, "store", "a commit returns before the log is synced"),
		powerCut(EarlyAnswer, "store", "who writes together with others is answered before the commit"),
		powerCut(UnsyncedImage, "layer", "the files of an image are not synced"),
		powerCut(UnsyncedNames, "layer", "the directories of an image are not synced"),
		powerCut(UnsyncedLayer, "supervisor", "a pause is committed before its layer is durable"),
		powerCut(UnsyncedBase, "template", "a template gets its name before it is durable"),
		powerCut(EarlyDrop, "supervisor", "the previous checkpoint is removed before the new one is committed"),

		found(UncheckedImage, "layer", "TestEveryFlippedByteIsFound", "the checksums of an image are not compared"),
		found(UncheckedLayer, "layer", "TestEveryFlippedByteIsFound", "a layer is not compared with its listing"),
		found(UncheckedChunk, "runtime/gvisor/imageserver", "TestServeFindsDamage", "a part of an image is handed to the sentry without a look at its checksum"),

		found(UncomparedPage, "runtime/gvisor/imageserver", "TestReceive", "a page that the image before has is taken for the same"),
		found(DroppedPack, "layer", "TestSharedPacks", "a pack that an image shares with the one before is removed although it is needed"),
		found(UnsyncedPackNames, "layer", "TestPowerCutOfPacks", "the names of the packs that an image shares are not synced"),
		found(EndlessChain, "pagemap", "TestWorth", "an image goes on using all packs of the one before"),

		found(SharedTop, "supervisor", "TestLightSleepIsNeverTheOnlyCopy", "a runtime that stays goes on writing to a layer of the checkpoint"),
		found(UntoldThaw, "supervisor", "TestLightSleep$", "the agent of a runtime that goes on is told nothing"),

		found(NoGrace, "supervisor", "TestStrangersHaveTime", "what no record knows is removed at once"),
		found(NoWatermark, "supervisor", "TestLittleSpace", "nobody looks how full the disk is"),
		found(ForgottenThaw, "supervisor", "TestThawIsTriedAgain", "a runtime stays frozen after a pause that failed"),
		{FleetingEnd, "a new deadline is kept in memory alone", "supervisor", "TestSimulation", []string{"-sim.seeds", "100"}},
		found(Unfenced, "supervisor", "TestFenced", "a process writes although another has claimed its server"),
		ofServers(DeafReturn, "a server that is back keeps what others have taken over, and the store lets it"),
		ofServers(EagerTake, "the store does not look whether a server is gone before another takes what it has"),
		ofServers(EarlyPromise, "a pause that promises a copy is answered before that is complete"),
		ofServers(OpenLapse, "a server serves on when its lease has lapsed"),
		histories(DeafKill, "a kill during a resume is answered, and nothing is done"),
	}
}
