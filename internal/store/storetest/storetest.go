// Package storetest is the contract of [store.Store] as tests, for every
// implementation alike.
package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// harness opens stores for the cases.
type harness struct {
	open   func(t *testing.T) store.Store
	reopen func(t *testing.T, s store.Store) store.Store
	share  func(t *testing.T, s store.Store) store.Store
}

// Run runs the suite. open returns an empty store, and reopen what a new
// process would find of s: it closes s and opens what it left. share returns what
// another process would find of s while s stays open. All see to it that the store
// is closed when t ends.
func Run(t *testing.T, open func(t *testing.T) store.Store, reopen, share func(t *testing.T, s store.Store) store.Store) {
	h := harness{open: open, reopen: reopen, share: share}
	for _, c := range []struct {
		name string
		test func(*testing.T, harness)
	}{
		{"Empty", testEmpty},
		{"CommitReplaces", testCommitReplaces},
		{"CommitKeepsEveryField", testEveryField},
		{"CommitKeepsZeroValues", testZeroValues},
		{"CommitReturnsNetworkAsItWas", testNetwork},
		{"CommitCopies", testCommitCopies},
		{"CommitIsAtomic", testAtomic},
		{"CommitCanceled", testCommitCanceled},
		{"TimesComeBackInUTC", testUTC},
		{"EventsCursor", testEventsCursor},
		{"EventsUnknownSandbox", testEventsUnknown},
		{"EventsOfKey", testEventsOfKey},
		{"LastEvents", testLastEvents},
		{"EventsBefore", testEventsBefore},
		{"SeqIncreasesAfterForget", testSeq},
		{"Forget", testForget},
		{"ForgetUnknown", testForgetUnknown},
		{"ForgetRefusesTheLiving", testForgetLiving},
		{"Keys", testKeys},
		{"KeyExists", testKeyExists},
		{"KeysUsed", testKeysUsed},
		{"UpdateKey", testUpdateKey},
		{"UpdateKeyTogether", testUpdateKeyTogether},
		{"RemoveKey", testRemoveKey},
		{"LastAdmin", testLastAdmin},
		{"SSHKeys", testSSHKeys},
		{"UsedSecrets", testUsedSecrets},
		{"BoundsOfServers", testBoundsOfServers},
		{"Volumes", testVolumes},
		{"VolumeExists", testVolumeExists},
		{"RemoveVolume", testRemoveVolume},
		{"Snapshots", testSnapshots},
		{"SnapshotExists", testSnapshotExists},
		{"SnapshotReplaces", testSnapshotReplaces},
		{"SnapshotUndo", testSnapshotUndo},
		{"SnapshotRetention", testSnapshotRetention},
		{"Parts", testParts},
		{"Adoption", testAdoption},
		{"AdoptionWriters", testAdoptionWriters},
		{"Templates", testTemplates},
		{"TemplateWriters", testTemplateWriters},
		{"OpenBuilds", testOpenBuilds},
		{"TemplateOrSnapshot", testTemplateOrSnapshot},
		{"Results", testResults},
		{"LateResult", testLateResult},
		{"TemplateSettings", testTemplateSettings},
		{"TemplateSettingsWriters", testTemplateSettingsWriters},
		{"CodeContexts", testContexts},
		{"CodeContextWriters", testContextWriters},
		{"Tombstones", testTombstones},
		{"TombstonesOfServers", testTombstonesOfServers},
		{"TombstoneWriters", testTombstoneWriters},
		{"Webhooks", testWebhooks},
		{"Secret", testSecret},
		{"SecretConcurrent", testSecretConcurrent},
		{"Concurrent", testConcurrent},
		{"Revisions", testRevisions},
		{"SandboxExists", testSandboxExists},
		{"Names", testNames},
		{"IdempotencyKeys", testIdempotencyKeys},
		{"KeyLimits", testKeyLimits},
		{"SnapshotLimits", testSnapshotLimits},
		{"Claims", testClaims},
		{"TwoServers", testTwoServers},
		{"Fenced", testFenced},
		{"LeaseWriters", testLeaseWriters},
		{"Owners", testOwners},
		{"Pages", testPages},
		{"PagesMeanwhile", testPagesMeanwhile},
		{"UseOfOthers", testUseOfOthers},
		{"PartsOfServers", testPartsOfServers},
		{"Elsewhere", testElsewhere},
		{"OverServers", testOverServers},
		{"Changes", testChanges},
		{"Elect", testElect},
		{"Resign", testResign},
		{"Ownerless", testOwnerless},
		{"Address", testAddress},
		{"Replicas", testReplicas},
		{"ReplicaEnds", testReplicaEnds},
		{"Take", testTake},
		{"TakeRefused", testTakeRefused},
		{"Offer", testOffer},
		{"TakeLost", testTakeLost},
		{"TakeEnded", testTakeEnded},
		{"TakeAfterAnOutage", testTakeAfterAnOutage},
		{"TakeTogether", testTakeTogether},
		{"SnapshotReplicas", testSnapshotReplicas},
		{"TakeSnapshot", testTakeSnapshot},
		{"TakeSnapshotRefused", testTakeSnapshotRefused},
		{"TakeTemplate", testTakeTemplate},
		{"TakeTemplateRefused", testTakeTemplateRefused},
		{"TakeWaitingTemplate", testTakeWaitingTemplate},
		{"TakeTemplateTogether", testTakeTemplateTogether},
		{"TakeTemplateDrained", testTakeTemplateDrained},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
}

func testEmpty(t *testing.T, h harness) {
	s := h.open(t)
	if got := sandboxes(t, s); len(got) != 0 {
		t.Errorf("Sandboxes = %v, want none", got)
	}
	if got := events(t, s, "", 0, 10); len(got) != 0 {
		t.Errorf("Events = %v, want none", got)
	}
	if got := keys(t, s); len(got) != 0 {
		t.Errorf("Keys = %v, want none", got)
	}
}

func testCommitReplaces(t *testing.T, h harness) {
	s := h.open(t)
	commit(t, s, sandbox("a", 1), entry(1))
	commit(t, s, sandbox("b", 1))
	commit(t, s, sandbox("a", 2), entry(2))

	for _, when := range []string{"before", "after"} {
		want := []store.Sandbox{sandbox("a", 2), sandbox("b", 1)}
		if got := sorted(sandboxes(t, s)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s reopen: Sandboxes = %+v, want %+v", when, got, want)
		}
		if got, want := generations(events(t, s, "a", 0, 10)), []int64{1, 2}; !slices.Equal(got, want) {
			t.Errorf("%s reopen: entries of a = %v, want %v", when, got, want)
		}
		s = h.reopen(t, s)
	}
}

// testEveryField catches a field that somebody adds and no store keeps.
func testEveryField(t *testing.T, h harness) {
	s := h.open(t)
	var sb store.Sandbox
	var line lifecycle.Entry
	var key store.Key
	fill(t, &sb, utc)
	fill(t, &line, utc)
	fill(t, &key, utc)
	var vol store.Volume
	fill(t, &vol, utc)

	standingBy := sb
	standingBy.Light, standingBy.Durability, standingBy.Unreplicated = true, store.Local, "full" // which are not stored
	commitFilled(t, s, standingBy, line)
	if err := s.AddKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	addVolume(t, s, vol)
	var snap store.Snapshot
	fill(t, &snap, utc)
	source := store.Sandbox{ID: "source"}
	if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, source), nil); err != nil {
		t.Fatal(err)
	}
	s = h.reopen(t, s)

	diff(t, "snapshot", only(t, snapshots(t, s)), snap)
	diff(t, "volume", only(t, volumes(t, s)), vol)
	diff(t, "sandbox", sandboxes(t, s)[slices.IndexFunc(sandboxes(t, s), func(x store.Sandbox) bool { return x.ID == sb.ID })], sb)
	diff(t, "key", only(t, keys(t, s)), key)
	got := only(t, events(t, s, "", 0, 10))
	diff(t, "event", got, store.Event{Seq: got.Seq, Sandbox: sb.ID, Key: sb.Config.Key, Entry: line})
}

func testZeroValues(t *testing.T, h harness) {
	s := h.open(t)
	no := false
	sb := store.Sandbox{ID: "zero", Config: store.Config{AllowInternet: &no}}
	sb.Record.Op = &lifecycle.Operation{}
	sb.Record.Checkpoint = &lifecycle.Checkpoint{}
	sb.Record.Tombstone = &lifecycle.Tombstone{}
	commit(t, s, sb, lifecycle.Entry{})
	s = h.reopen(t, s)
	diff(t, "sandbox", only(t, sandboxes(t, s)), sb)
	diff(t, "entry", only(t, events(t, s, "zero", 0, 10)).Entry, lifecycle.Entry{})
}

// testNetwork allows a store to drop white space, and nothing else.
func testNetwork(t *testing.T, h harness) {
	s := h.open(t)
	asked := `{"z": [1.50, 1e2, 12345678901234567890], "a": "<&>\u00e9", "z": null}`
	want := `{"z":[1.50,1e2,12345678901234567890],"a":"<&>\u00e9","z":null}`
	sb := sandbox("a", 1)
	sb.Config.Network = json.RawMessage(asked)
	commit(t, s, sb)

	var got bytes.Buffer
	if err := json.Compact(&got, only(t, sandboxes(t, s)).Config.Network); err != nil {
		t.Fatal(err)
	}
	if got.String() != want {
		t.Errorf("Network = %s, want %s", got.String(), want)
	}
}

// testCommitCopies changes what was committed and what was read, through every
// map, slice and pointer.
func testCommitCopies(t *testing.T, h harness) {
	s := h.open(t)
	var sb, want store.Sandbox
	fill(t, &sb, utc)
	fill(t, &want, utc)
	commitFilled(t, s, sb)
	scramble(sb)
	diff(t, "after changing what was committed", only(t, sandboxes(t, s)), want)
	scramble(only(t, sandboxes(t, s)))
	diff(t, "after changing what was read", only(t, sandboxes(t, s)), want)
}

func scramble(sb store.Sandbox) {
	sb.Config.Env["new"] = "x"
	sb.Config.Network[0] = 'x'
	*sb.Config.AllowInternet = !*sb.Config.AllowInternet
	sb.Record.Op.ID = "x"
	sb.Record.Checkpoint.Stack[0] = "x"
	sb.Record.Tombstone.Detail = "x"
}

// testAtomic commits an entry that cannot be stored, a time beyond the year
// 9999, after one that can.
func testAtomic(t *testing.T, h harness) {
	s := h.open(t)
	commit(t, s, sandbox("a", 1), entry(1))
	bad := entry(2)
	bad.At = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := s.Commit(t.Context(), latest(t, s, sandbox("a", 2)), []lifecycle.Entry{entry(2), bad}); err == nil {
		t.Skip("this store accepts every entry")
	}
	for _, when := range []string{"before", "after"} {
		if got := only(t, sandboxes(t, s)); got.Record.Generation != 1 {
			t.Errorf("%s reopen: the record of the failed commit is there: %+v", when, got)
		}
		if got, want := generations(events(t, s, "a", 0, 10)), []int64{1}; !slices.Equal(got, want) {
			t.Errorf("%s reopen: entries %v, want %v", when, got, want)
		}
		s = h.reopen(t, s)
	}
}

func testCommitCanceled(t *testing.T, h harness) {
	s := h.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Commit(ctx, sandbox("a", 1), []lifecycle.Entry{entry(1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit = %v, want %v", err, context.Canceled)
	}
	if got := sandboxes(t, s); len(got) != 0 {
		t.Errorf("a commit that never began left %+v", got)
	}
}

func testUTC(t *testing.T, h harness) {
	s := h.open(t)
	var given, want store.Sandbox
	var line, wantLine lifecycle.Entry
	var key, wantKey store.Key
	fill(t, &given, elsewhere)
	fill(t, &want, utc)
	fill(t, &line, elsewhere)
	fill(t, &wantLine, utc)
	fill(t, &key, elsewhere)
	fill(t, &wantKey, utc)

	commitFilled(t, s, given, line)
	if err := s.AddKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	diff(t, "sandbox", only(t, sandboxes(t, s)), want)
	diff(t, "entry", only(t, events(t, s, "", 0, 10)).Entry, wantLine)
	diff(t, "key", only(t, keys(t, s)), wantKey)

	var untouched store.Sandbox
	fill(t, &untouched, elsewhere)
	diff(t, "the caller's own", given, untouched)
}

func testEventsCursor(t *testing.T, h harness) {
	s := h.open(t)
	for i := range int64(10) { // a holds 0 2 4 …, b 1 3 5 …, two at a time
		id := []string{"a", "b"}[i%2]
		commit(t, s, sandbox(id, i), entry(i), entry(i+100))
	}
	all := events(t, s, "", 0, 1000)
	if len(all) != 20 {
		t.Fatalf("%d entries, want 20", len(all))
	}
	ofA := slices.DeleteFunc(slices.Clone(all), func(e store.Event) bool { return e.Sandbox != "a" })

	for _, c := range []struct {
		name    string
		sandbox string
		after   int64
		limit   int
		want    []store.Event
	}{
		{"all", "", 0, 20, all},
		{"a page", "", 0, 3, all[:3]},
		{"the next page", "", all[2].Seq, 3, all[3:6]},
		{"the last page", "", all[17].Seq, 3, all[18:]},
		{"past the end", "", all[19].Seq, 3, nil},
		{"before the beginning", "", -5, 2, all[:2]},
		{"nothing asked for", "", 0, 0, nil},
		{"fewer than nothing", "", 0, -1, nil},
		{"one sandbox", "a", 0, 1000, ofA},
		{"one sandbox, a page", "a", ofA[1].Seq, 3, ofA[2:5]},
		{"one sandbox, after another's entry", "a", all[2].Seq, 2, ofA[2:4]},
		{"one sandbox, past the end", "a", ofA[9].Seq, 3, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := events(t, s, c.sandbox, c.after, c.limit); !slices.Equal(got, c.want) {
				t.Errorf("Events(%q, %d, %d) = %+v, want %+v", c.sandbox, c.after, c.limit, got, c.want)
			}
		})
	}
}

func testEventsOfKey(t *testing.T, h harness) {
	s := h.open(t)
	for i := range int64(8) { // a and c belong to one key, b and d to others
		sb := sandbox([]string{"a", "b", "c", "d"}[i%4], i)
		sb.Config.Key = []string{"one", "two", "one", ""}[i%4]
		commit(t, s, sb, entry(i), entry(i+100))
	}
	all := events(t, s, "", 0, 1000)
	ofOne := slices.DeleteFunc(slices.Clone(all), func(e store.Event) bool { return e.Sandbox != "a" && e.Sandbox != "c" })
	s = h.reopen(t, s)
	for _, c := range []struct {
		key   string
		after int64
		limit int
		want  []store.Event
	}{
		{"one", 0, 1000, ofOne},
		{"one", ofOne[1].Seq, 3, ofOne[2:5]},
		{"one", all[2].Seq, 1, ofOne[2:3]},
		{"one", ofOne[7].Seq, 3, nil},
		{"one", 0, 0, nil},
		{"one", 0, -1, nil},
		{"three", 0, 10, nil},
	} {
		got, err := s.EventsOfKey(t.Context(), c.key, c.after, c.limit)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("EventsOfKey(%q, %d, %d) = %+v, %v; want %+v", c.key, c.after, c.limit, got, err, c.want)
		}
	}
}

func testLastEvents(t *testing.T, h harness) {
	s := h.open(t)
	if got, err := s.LastEvents(t.Context(), "", 1); err != nil || len(got) != 0 {
		t.Errorf("LastEvents of nothing = %+v, %v", got, err)
	}
	for i := range int64(5) {
		commit(t, s, sandbox("a", i), entry(i), entry(i+10))
		commit(t, s, sandbox("b", i), entry(i))
	}
	for _, id := range []string{"a", ""} {
		newestFirst := events(t, s, id, 0, 100)
		slices.Reverse(newestFirst)
		for _, n := range []int{-1, 0, 1, 3, 10, 11, 15, 16} {
			got, err := s.LastEvents(t.Context(), id, n)
			if want := newestFirst[:min(max(n, 0), len(newestFirst))]; err != nil || !slices.Equal(got, want) {
				t.Errorf("LastEvents(%q, %d) = %+v, %v; want %+v", id, n, got, err, want)
			}
		}
	}
	wantClass(t, errdef.NotFound, func() error {
		_, err := s.LastEvents(t.Context(), "nobody", 1)
		return err
	})
}

func testEventsUnknown(t *testing.T, h harness) {
	s := h.open(t)
	commit(t, s, sandbox("ab", 1), entry(1))
	wantClass(t, errdef.NotFound, func() error {
		_, err := s.Events(t.Context(), "a", 0, 10)
		return err
	})
	commit(t, s, sandbox("a", 1))
	if got := events(t, s, "a", 0, 10); len(got) != 0 {
		t.Errorf("Events of a sandbox without any = %+v", got)
	}
}

// testEventsBefore reads the log backwards, in pages.
func testEventsBefore(t *testing.T, h harness) {
	s := h.open(t)
	for n := int64(1); n <= 6; n++ {
		commit(t, s, sandbox([]string{"a", "b"}[n%2], n), entry(n))
	}
	for _, c := range []struct {
		of    string
		limit int
		want  []int64
	}{
		{"", 4, []int64{6, 5, 4, 3, 2, 1}},
		{"a", 2, []int64{6, 4, 2}},
		{"b", 9, []int64{5, 3, 1}},
	} {
		var got []int64
		for before := int64(math.MaxInt64); ; {
			page, err := s.EventsBefore(t.Context(), c.of, before, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			if len(page) > c.limit {
				t.Errorf("of %q: %d entries, want %d at most", c.of, len(page), c.limit)
			}
			got = append(got, generations(page)...)
			before = page[len(page)-1].Seq
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("of %q: %v, want %v", c.of, got, c.want)
		}
	}
	for _, limit := range []int{0, -1} {
		if got, err := s.EventsBefore(t.Context(), "", math.MaxInt64, limit); err != nil || len(got) != 0 {
			t.Errorf("a limit of %d: %v, %v", limit, got, err)
		}
	}
	wantClass(t, errdef.NotFound, func() error { _, err := s.EventsBefore(t.Context(), "nobody", math.MaxInt64, 1); return err })
}

func testSeq(t *testing.T, h harness) {
	s := h.open(t)
	var last int64
	for round := range 3 {
		commit(t, s, terminated("a"), entry(1), entry(2))
		all := events(t, s, "a", 0, 10)
		if len(all) != 2 || all[0].Seq <= last || all[1].Seq <= all[0].Seq {
			t.Fatalf("round %d: after seq %d came %+v", round, last, all)
		}
		last = all[1].Seq
		forget(t, s, "a") // and with it the highest numbers
		if round > 0 {
			s = h.reopen(t, s)
		}
	}
}

func testForget(t *testing.T, h harness) {
	s := h.open(t)
	commit(t, s, terminated("a"), entry(1))
	commit(t, s, sandbox("b", 1), entry(2))
	forget(t, s, "a")
	for range 2 {
		if got := only(t, sandboxes(t, s)); got.ID != "b" {
			t.Errorf("left: %+v, want b", got)
		}
		if got := only(t, events(t, s, "", 0, 10)); got.Sandbox != "b" {
			t.Errorf("left: %+v, want b's entry", got)
		}
		wantClass(t, errdef.NotFound, func() error { return s.Forget(t.Context(), "a") })
		s = h.reopen(t, s)
	}
}

func testForgetUnknown(t *testing.T, h harness) {
	s := h.open(t)
	wantClass(t, errdef.NotFound, func() error { return s.Forget(t.Context(), "nobody") })
	wantClass(t, errdef.NotFound, func() error { return s.Forget(t.Context(), "") })
}

func testForgetLiving(t *testing.T, h harness) {
	s := h.open(t)
	for _, state := range []lifecycle.State{lifecycle.Pending, lifecycle.Running, lifecycle.Paused} {
		sb := sandbox("a", 1)
		sb.Record.State = state
		commit(t, s, sb)
		wantClass(t, errdef.WrongState, func() error { return s.Forget(t.Context(), "a") })
		diff(t, "sandbox", only(t, sandboxes(t, s)), sb)
	}
}

func testKeys(t *testing.T, h harness) {
	s := h.open(t)
	// Added out of order, and close to a whole second: as text with trailing
	// zeros trimmed these would not sort by time.
	var want []store.Key
	for i, at := range []time.Duration{0, 500 * time.Millisecond, 1 * time.Second} {
		want = append(want, key(byte(i), epoch.Add(at)))
	}
	for _, i := range []int{1, 2, 0} {
		addKey(t, s, want[i])
	}
	for range 2 {
		if got := keys(t, s); !slices.Equal(got, want) {
			t.Errorf("Keys = %+v, want %+v", got, want)
		}
		s = h.reopen(t, s)
	}
}

func testKeyExists(t *testing.T, h harness) {
	s := h.open(t)
	first := key(1, epoch)
	addKey(t, s, first)
	sameHash, sameID := key(2, epoch), key(2, epoch)
	sameHash.Hash = first.Hash
	sameID.ID = first.ID
	wantClass(t, errdef.Exists, func() error { return s.AddKey(t.Context(), sameHash) })
	wantClass(t, errdef.Exists, func() error { return s.AddKey(t.Context(), sameID) })
	if got := only(t, keys(t, s)); got != first {
		t.Errorf("the first key became %+v", got)
	}
	sameName := key(3, epoch)
	sameName.Name = first.Name
	wantClass(t, errdef.Exists, func() error { return s.AddKey(t.Context(), sameName) })
	if got := only(t, keys(t, s)); got != first {
		t.Errorf("the first key became %+v", got)
	}
	if err := s.RemoveKey(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	addKey(t, s, sameName) // the name is free again
}

func testKeysUsed(t *testing.T, h harness) {
	s := h.open(t)
	used, idle := key(1, epoch), key(2, epoch)
	addKey(t, s, used)
	addKey(t, s, idle)
	latest := 0
	for _, n := range []int{0, 2, 1} { // another server may be late
		at := map[string]time.Time{used.ID: elsewhere(n), "gone": utc(n)}
		if err := s.KeysUsed(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		latest = max(latest, n)
		used.LastUsedAt = utc(latest)
		s = h.reopen(t, s)
		if got, want := keys(t, s), []store.Key{used, idle}; !slices.Equal(got, want) {
			t.Errorf("Keys = %+v, want %+v", got, want)
		}
	}
}

func testUpdateKey(t *testing.T, h harness) {
	s := h.open(t)
	other, changed := key(1, epoch), key(2, epoch)
	addKey(t, s, other)
	addKey(t, s, changed)
	changed.Name = "another name; with 'quotes'"
	next := key(3, epoch)
	changed.Hash, changed.Prefix, changed.Suffix = next.Hash, "e2b_ff", "ffff"
	changed.Limits = store.KeyLimits{Running: 1, Sandboxes: 2, MemoryMiB: 3, DiskMiB: 4, Rate: 5}
	for _, update := range []store.KeyChange{
		{Limits: toLimits(changed.Limits)},
		{Name: changed.Name},
		{Hash: changed.Hash, Prefix: changed.Prefix, Suffix: changed.Suffix},
	} {
		got, err := s.UpdateKey(t.Context(), changed.ID, update)
		if err != nil {
			t.Fatal(err)
		}
		if all := keys(t, s); got != all[1] {
			t.Errorf("UpdateKey = %+v, and stored is %+v", got, all[1])
		}
	}
	refused := func(class errdef.Class, id string, c store.KeyChange) {
		t.Helper()
		wantClass(t, class, func() error {
			_, err := s.UpdateKey(t.Context(), id, c)
			return err
		})
	}
	no := errdef.New(errdef.Invalid, "key_invalid", "injected")
	refused(errdef.NotFound, "nobody", store.KeyChange{Name: other.Name, Limits: toLimits(store.KeyLimits{})})
	refused(errdef.Exists, other.ID, store.KeyChange{Hash: changed.Hash, Limits: toLimits(changed.Limits)})
	refused(errdef.Exists, changed.ID, store.KeyChange{Name: other.Name, Limits: toLimits(store.KeyLimits{})})
	refused(errdef.Invalid, changed.ID, store.KeyChange{Name: "free", Limits: func(l *store.KeyLimits) error {
		*l = store.KeyLimits{}
		return no
	}})
	if _, err := s.UpdateKey(t.Context(), changed.ID, store.KeyChange{Name: changed.Name}); err != nil { // as it is called already
		t.Error(err)
	}
	s = h.reopen(t, s)
	if got, want := keys(t, s), []store.Key{other, changed}; !slices.Equal(got, want) {
		t.Errorf("Keys = %+v, want %+v", got, want)
	}
	changed.Limits = store.KeyLimits{}
	if _, err := s.UpdateKey(t.Context(), changed.ID, store.KeyChange{Limits: toLimits(changed.Limits)}); err != nil {
		t.Error(err)
	}
	if got, want := keys(t, s), []store.Key{other, changed}; !slices.Equal(got, want) {
		t.Errorf("without limits, Keys = %+v, want %+v", got, want)
	}
}

// testUpdateKeyTogether: servers that change different things of a key at once lose
// nothing of each other's.
func testUpdateKeyTogether(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	want := key(1, epoch)
	addKey(t, one, want)
	const times = 20
	var all sync.WaitGroup
	for _, change := range []struct {
		s  store.Store
		do func(*store.KeyLimits)
	}{
		{one, func(l *store.KeyLimits) { l.Running++ }},
		{two, func(l *store.KeyLimits) { l.Sandboxes++ }},
	} {
		all.Go(func() {
			for range times {
				_, err := change.s.UpdateKey(t.Context(), want.ID, store.KeyChange{Limits: func(l *store.KeyLimits) error {
					change.do(l)
					return nil
				}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	want.Limits = store.KeyLimits{Running: times, Sandboxes: times}
	if got := only(t, keys(t, one)); got != want {
		t.Errorf("the key is %+v, want %+v", got, want)
	}
}

func testRemoveKey(t *testing.T, h harness) {
	s := h.open(t)
	stays, goes := key(1, epoch), key(2, epoch)
	addKey(t, s, stays)
	addKey(t, s, goes)
	if err := s.RemoveKey(t.Context(), goes.ID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.NotFound, func() error { return s.RemoveKey(t.Context(), goes.ID) })
	s = h.reopen(t, s)
	if got := only(t, keys(t, s)); got != stays {
		t.Errorf("what is left is %+v, want %+v", got, stays)
	}
	addKey(t, s, goes) // nothing of it is left in the way
}

// testLastAdmin: one admin key stays that does not expire, whichever server is told to
// remove them.
func testLastAdmin(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	admin := func(n byte) store.Key {
		k := key(n, epoch)
		k.Role = store.RoleAdmin
		addKey(t, one, k)
		return k
	}
	first := admin(1)
	brief, full := key(2, epoch), key(3, epoch)
	brief.Role, brief.ExpiresAt, full.Role = store.RoleAdmin, utc(9), store.RoleFull
	addKey(t, one, brief)
	addKey(t, one, full)
	wantCode(t, two.RemoveKey(t.Context(), first.ID), "last_admin_key")
	if got := keys(t, one); len(got) != 3 || got[0] != first {
		t.Errorf("after a refusal there are %+v", got)
	}
	for _, id := range []string{brief.ID, full.ID} { // whatever is left
		if err := two.RemoveKey(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	ids := []string{first.ID}
	for n := byte(4); n < 4+writers; n++ {
		ids = append(ids, admin(n).ID)
	}
	if err := one.RemoveKey(t.Context(), ids[writers]); err != nil {
		t.Error(err)
	}
	if won := race(t, errdef.Conflict, func(w int) error {
		return []store.Store{one, two}[w%2].RemoveKey(t.Context(), ids[w])
	}); won != writers-1 {
		t.Errorf("%d of %d admin keys were removed, want all but one", won, writers)
	}
	if left := only(t, keys(t, two)); !left.Lasting() {
		t.Errorf("what is left is %+v", left)
	}
}

func testSSHKeys(t *testing.T, h harness) {
	s := h.open(t)
	stays, goes := key(1, epoch), key(2, epoch)
	addKey(t, s, stays)
	addKey(t, s, goes)
	late := store.SSHKey{ID: "late", Key: stays.ID, Name: "laptop", PublicKey: "ssh-ed25519 AAAA", CreatedAt: utc(2)}
	early := store.SSHKey{ID: "early", Key: stays.ID, PublicKey: "ssh-ed25519 BBBB", CreatedAt: elsewhere(1)}
	others := store.SSHKey{ID: "others", Key: goes.ID, PublicKey: late.PublicKey, CreatedAt: utc(3)}
	for _, k := range []store.SSHKey{late, early, others} {
		if err := s.AddSSHKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	early.CreatedAt = utc(1)
	sameID, sameKey := early, early
	sameID.PublicKey, sameKey.ID = "ssh-ed25519 CCCC", "another"
	wantClass(t, errdef.Exists, func() error { return s.AddSSHKey(t.Context(), sameID) })
	wantClass(t, errdef.Exists, func() error { return s.AddSSHKey(t.Context(), sameKey) })
	check := func(want ...store.SSHKey) {
		t.Helper()
		for range 2 {
			if got, err := s.SSHKeys(t.Context()); err != nil || !slices.Equal(got, want) {
				t.Errorf("SSHKeys = %+v, %v, want %+v", got, err, want)
			}
			s = h.reopen(t, s)
		}
	}
	check(early, late, others)
	if err := s.RemoveKey(t.Context(), goes.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.AddSSHKey(t.Context(), others), "key_not_found") // or it stays for ever
	check(early, late)
	if err := s.RemoveSSHKey(t.Context(), early.ID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.NotFound, func() error { return s.RemoveSSHKey(t.Context(), early.ID) })
	check(late)
}

// testBoundsOfServers: what may be had a number of times is not had more often where servers add
// some at once.
func testBoundsOfServers(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	full, other := key(1, epoch), key(2, epoch)
	addKey(t, one, full)
	addKey(t, one, other)
	ctx := t.Context()
	for what, c := range map[string]struct {
		most   int
		code   string
		add    func(s store.Store, id, key string) error
		remove func(id string) error
		others bool // another key has none because of this one
	}{
		"SSH keys": {store.MostSSHKeys, "ssh_keys_limit", func(s store.Store, id, key string) error {
			return s.AddSSHKey(ctx, store.SSHKey{ID: id, Key: key, PublicKey: id, CreatedAt: epoch})
		}, func(id string) error { return one.RemoveSSHKey(ctx, id) }, false},
		"secrets": {store.MostSecrets, "secrets_limit", func(s store.Store, id, key string) error {
			return s.PutSecret(ctx, store.Secret{ID: id, Key: key, Name: id, Sealed: []byte{1}, CreatedAt: epoch, UpdatedAt: epoch})
		}, func(id string) error { return one.RemoveSecret(ctx, id) }, false},
		"webhooks": {store.MostWebhooks, "too_many_webhooks", func(s store.Store, id, _ string) error {
			return s.PutWebhook(ctx, store.Webhook{ID: id, CreatedAt: epoch})
		}, func(id string) error { return one.DeleteWebhook(ctx, id) }, true},
	} {
		t.Run(what, func(t *testing.T) {
			stores := []store.Store{one, two}
			for i := range c.most - 4 {
				if err := c.add(stores[i%2], fmt.Sprintf("first %d", i), full.ID); err != nil {
					t.Fatal(err)
				}
			}
			if done := atOnce(t, 12, errdef.Exhausted, func(i int) error { return c.add(stores[i%2], fmt.Sprintf("then %d", i), full.ID) }); done != 4 {
				t.Errorf("%d were added where 4 fit", done)
			}
			wantCode(t, c.add(two, "more", full.ID), c.code)
			if err := c.add(two, "another", other.ID); (err != nil) != c.others {
				t.Errorf("of another key: %v", err)
			}
			if err := c.remove("first 0"); err != nil {
				t.Fatal(err)
			}
			if err := c.add(two, "more", full.ID); err != nil {
				t.Errorf("where one was removed: %v", err)
			}
		})
	}
}

func testUsedSecrets(t *testing.T, h harness) {
	s := h.open(t)
	stays, goes := key(1, epoch), key(2, epoch)
	addKey(t, s, stays)
	addKey(t, s, goes)
	rule := store.SecretRule{
		Env: "TOKEN", Hosts: []string{"api.example.com", "*.example.net:8443"}, Plain: true,
		Headers: []store.Insert{{Name: "Authorization", Text: "Bearer {}"}}, Query: []store.Insert{{Name: "key", Text: "{}"}},
	}
	late := store.Secret{ID: "late", Key: stays.ID, Name: "token", Version: 1, Rule: rule, Sealed: []byte{0, 1, 255}, CreatedAt: utc(2), UpdatedAt: utc(2)}
	early := store.Secret{ID: "early", Key: stays.ID, Name: "other", Version: 7, Sealed: []byte("x"), CreatedAt: elsewhere(1), UpdatedAt: elsewhere(3)}
	others := store.Secret{ID: "others", Key: goes.ID, Name: late.Name, Version: 1, Sealed: []byte("y"), CreatedAt: utc(3), UpdatedAt: utc(3)}
	for _, x := range []store.Secret{late, early, others} {
		if err := s.PutSecret(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	early.CreatedAt, early.UpdatedAt = utc(1), utc(3)
	sameName := late
	sameName.ID = "another"
	wantClass(t, errdef.Exists, func() error { return s.PutSecret(t.Context(), sameName) })
	sameID := early
	sameID.Name, sameID.Version = "fresh", 8
	wantClass(t, errdef.Exists, func() error { return s.PutSecret(t.Context(), sameID) })
	check := func(want ...store.Secret) {
		t.Helper()
		for range 2 {
			if got, err := s.AllSecrets(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("AllSecrets = %+v, %v, want %+v", got, err, want)
			}
			s = h.reopen(t, s)
		}
	}
	check(early, late, others)
	change := func(id string, change func(*store.Secret) error) func() error {
		return func() error {
			_, err := s.ChangeSecret(t.Context(), id, change)
			return err
		}
	}
	wantClass(t, errdef.NotFound, change("none", func(*store.Secret) error { return nil }))
	wantClass(t, errdef.Invalid, change("late", func(x *store.Secret) error {
		x.Version, x.Sealed[0], x.Rule.Hosts[0], x.Rule.Headers[0].Name = 9, 9, "refused", "refused"
		return errdef.New(errdef.Invalid, "secret_invalid", "refused")
	}))
	other := errors.New("other")
	if err := change("late", func(*store.Secret) error { return other })(); !errors.Is(err, other) {
		t.Errorf("an error of the change is returned as %v", err)
	}
	check(early, late, others)
	was := late
	late.Version, late.Sealed, late.UpdatedAt, late.Rule.Hosts = 2, []byte("z"), utc(5), []string{"example.org"}
	got, err := s.ChangeSecret(t.Context(), "late", func(x *store.Secret) error {
		if !reflect.DeepEqual(*x, was) {
			t.Errorf("%+v is to be changed, want %+v", *x, was)
		}
		x.ID, x.Key, x.Name, x.CreatedAt = "other", goes.ID, "renamed", utc(9) // which stay
		x.Version, x.Sealed, x.UpdatedAt, x.Rule.Hosts = x.Version+1, late.Sealed, elsewhere(5), late.Rule.Hosts
		return nil
	})
	if err != nil || !reflect.DeepEqual(got, late) {
		t.Errorf("changed to %+v, %v, want %+v", got, err, late)
	}
	check(early, late, others)
	if err := s.RemoveKey(t.Context(), goes.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.PutSecret(t.Context(), others), "key_not_found") // or it stays for ever
	check(early, late)
	if err := s.RemoveSecret(t.Context(), early.ID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.NotFound, func() error { return s.RemoveSecret(t.Context(), early.ID) })
	check(late)
}

func testVolumes(t *testing.T, h harness) {
	s := h.open(t)
	if got := volumes(t, s); len(got) != 0 {
		t.Errorf("Volumes = %v, want none", got)
	}
	late, early := volume("late", utc(2)), volume("early", elsewhere(1))
	addVolume(t, s, late)
	addVolume(t, s, early)
	early.CreatedAt = utc(1)
	want := []store.Volume{early, late}
	for _, when := range []string{"before", "after"} {
		if got := volumes(t, s); !slices.Equal(got, want) {
			t.Errorf("%s reopen: Volumes = %+v, want %+v", when, got, want)
		}
		s = h.reopen(t, s)
	}
}

func testVolumeExists(t *testing.T, h harness) {
	s := h.open(t)
	first := volume("a", epoch)
	addVolume(t, s, first)
	sameName, sameID := volume("b", epoch), volume("c", epoch)
	sameName.Name, sameID.ID = first.Name, first.ID
	wantClass(t, errdef.Exists, func() error { return s.AddVolume(t.Context(), sameName) })
	wantClass(t, errdef.Exists, func() error { return s.AddVolume(t.Context(), sameID) })
	if got := only(t, volumes(t, s)); got != first {
		t.Errorf("the first volume became %+v", got)
	}
}

func testRemoveVolume(t *testing.T, h harness) {
	s := h.open(t)
	gone, kept := volume("a", epoch), volume("b", epoch)
	addVolume(t, s, gone)
	addVolume(t, s, kept)
	if err := s.RemoveVolume(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	s = h.reopen(t, s)
	wantClass(t, errdef.NotFound, func() error { return s.RemoveVolume(t.Context(), gone.ID) })
	if got := only(t, volumes(t, s)); got != kept {
		t.Errorf("left is %+v", got)
	}
	addVolume(t, s, store.Volume{ID: "new", Name: gone.Name, CreatedAt: epoch}) // the name is free again
}

func snapshots(t *testing.T, s store.Store) []store.Snapshot {
	t.Helper()
	all, err := s.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// testSnapshots holds that a snapshot becomes durable together with the record
// and the entries of its source, outlives that, and goes alone.
func testSnapshots(t *testing.T, h harness) {
	s := h.open(t)
	source := store.Sandbox{ID: "source", Record: lifecycle.Record{State: lifecycle.Running, Generation: 1}}
	for _, snap := range []store.Snapshot{{ID: "late", CreatedAt: utc(2)}, {ID: "early", Name: "a name", CreatedAt: elsewhere(1)}} {
		if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, source), []lifecycle.Entry{{Type: lifecycle.EntrySnapshotted}}); err != nil {
			t.Fatal(err)
		}
	}
	source.Record.State = lifecycle.Terminated
	commit(t, s, source)
	if err := s.Forget(t.Context(), source.ID); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"before", "after"} {
		got := snapshots(t, s)
		if len(got) != 2 || got[0].ID != "early" || got[0].Name != "a name" || !got[0].CreatedAt.Equal(utc(1)) || got[1].ID != "late" {
			t.Errorf("%s reopen: %+v", when, got)
		}
		s = h.reopen(t, s)
	}
	if err := s.RemoveSnapshot(t.Context(), "early"); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.NotFound, func() error { return s.RemoveSnapshot(t.Context(), "early") })
	s = h.reopen(t, s)
	if got := only(t, snapshots(t, s)); got.ID != "late" {
		t.Errorf("left is %+v", got)
	}
}

// testSnapshotExists holds that nothing is committed of a snapshot whose name is
// taken, of its source neither.
func testSnapshotExists(t *testing.T, h harness) {
	s := h.open(t)
	source := store.Sandbox{ID: "source", Record: lifecycle.Record{State: lifecycle.Running, Generation: 1}}
	add := func(id, name string, generation int64) error {
		source.Record.Generation = generation
		return s.CommitSnapshot(t.Context(), store.Snapshot{ID: id, Name: name, CreatedAt: epoch}, latest(t, s, source), []lifecycle.Entry{{Type: lifecycle.EntrySnapshotted, Generation: generation}})
	}
	if err := add("a", "name", 1); err != nil {
		t.Fatal(err)
	}
	wantClass(t, errdef.Exists, func() error { return add("b", "name", 2) })
	wantClass(t, errdef.Exists, func() error { return add("a", "other", 2) })
	if got := only(t, sandboxes(t, s)).Record.Generation; got != 1 {
		t.Errorf("the source was committed in generation %d", got)
	}
	if got := generations(events(t, s, "", 0, 10)); !slices.Equal(got, []int64{1}) {
		t.Errorf("events of generations %v", got)
	}
	theirs := store.Snapshot{ID: "e", Name: "name", Key: "another", CreatedAt: epoch}
	if err := s.CommitSnapshot(t.Context(), theirs, latest(t, s, source), nil); err != nil {
		t.Errorf("the same name of another key: %v", err)
	}
	for _, id := range []string{"c", "d"} { // without a name there can be many
		if err := add(id, "", 3); err != nil {
			t.Error(err)
		}
	}
}

// testSnapshotReplaces holds that a snapshot takes the name of the one that it
// replaces, which is gone, and of no other.
func testSnapshotReplaces(t *testing.T, h harness) {
	s := h.open(t)
	source := store.Sandbox{ID: "source", Record: lifecycle.Record{State: lifecycle.Running, Generation: 1}}
	add := func(id, name, replaces string) error {
		return s.CommitSnapshot(t.Context(), store.Snapshot{ID: id, Name: name, Replaces: replaces, CreatedAt: epoch}, latest(t, s, source), nil)
	}
	for _, name := range []string{"name", "other"} {
		if err := add(name, name, ""); err != nil {
			t.Fatal(err)
		}
	}
	wantClass(t, errdef.Exists, func() error { return add("new", "name", "other") })
	if got := len(snapshots(t, s)); got != 2 {
		t.Errorf("%d snapshots after a failure, want 2", got)
	}
	if err := add("new", "name", "name"); err != nil {
		t.Fatal(err)
	}
	s = h.reopen(t, s)
	names := map[string]string{}
	for _, snap := range snapshots(t, s) {
		names[snap.ID] = snap.Name
	}
	if want := map[string]string{"new": "name", "other": "other"}; !maps.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

func testSecret(t *testing.T, h harness) {
	s := h.open(t)
	a, b := secret(t, s, "a"), secret(t, s, "b")
	if len(a) != 32 || len(b) != 32 {
		t.Fatalf("secrets of %d and %d bytes, want 32", len(a), len(b))
	}
	if bytes.Equal(a, b) {
		t.Error("two names have one secret")
	}
	if bytes.Equal(a, secret(t, h.open(t), "a")) {
		t.Error("two stores have one secret")
	}
	want := bytes.Clone(a)
	clear(a) // the caller's copy
	for range 2 {
		if got := secret(t, s, "a"); !bytes.Equal(got, want) {
			t.Error("the secret changed")
		}
		s = h.reopen(t, s)
	}
}

func testSecretConcurrent(t *testing.T, h harness) {
	s := h.open(t)
	got := make([][]byte, 8)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i], _ = s.Secret(t.Context(), "a") })
	}
	all.Wait()
	for i := range got {
		if len(got[i]) != 32 || !bytes.Equal(got[i], got[0]) {
			t.Fatalf("caller %d has another secret than the first", i)
		}
	}
}

// testConcurrent has one writer per sandbox, as the supervisor does, beside a
// reader that follows the log. The cursor must never pass an entry that is not
// there yet, and a record never lag behind its entries.
func testConcurrent(t *testing.T, h harness) {
	const writers, commits = 4, 25
	s := h.open(t)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			id := fmt.Sprintf("w%d", w)
			for n := range int64(commits) {
				sb := sandbox(id, n+1)
				sb.Rev = n
				err := s.Commit(t.Context(), sb, []lifecycle.Entry{entry(n + 1), entry(n + 1)})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var followed []store.Event
	all.Go(func() { followed = follow(t, s, 2*writers*commits) })
	all.Wait()

	if want := events(t, s, "", 0, 10*writers*commits); !slices.Equal(followed, want) {
		t.Errorf("following saw %d entries, the log has %d, or they differ", len(followed), len(want))
	}
	for w := range writers {
		for i, g := range generations(events(t, s, fmt.Sprintf("w%d", w), 0, 1000)) {
			if g != int64(i/2+1) {
				t.Fatalf("writer %d: entry %d is of commit %d", w, i, g)
			}
		}
	}
}

// follow reads the log page by page until it has n entries.
func follow(t *testing.T, s store.Store, n int) []store.Event {
	var seen []store.Event
	var cursor int64
	for len(seen) < n && !t.Failed() {
		page, err := s.Events(t.Context(), "", cursor, 7)
		if err != nil {
			t.Error(err)
			break
		}
		if len(page) == 0 {
			continue
		}
		seen = append(seen, page...)
		last := page[len(page)-1]
		if last.Seq <= cursor {
			t.Errorf("seq %d after %d", last.Seq, cursor)
		}
		cursor = last.Seq
		records, err := s.Sandboxes(t.Context())
		if err != nil {
			t.Error(err)
			break
		}
		for _, r := range records {
			if r.ID == last.Sandbox && r.Record.Generation < last.Generation {
				t.Errorf("the record of %s is at %d and its log at %d", r.ID, r.Record.Generation, last.Generation)
			}
		}
	}
	return seen
}

// testSnapshotUndo commits what a sandbox was before a restore twice, as after a
// commit whose outcome was not known, and once more in the place of another.
func testSnapshotUndo(t *testing.T, h harness) {
	s := h.open(t)
	put := func(snap store.Snapshot, generation int64) {
		t.Helper()
		sb := store.Sandbox{ID: "source", Record: lifecycle.Record{State: lifecycle.Paused, Generation: generation}}
		if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, sb), []lifecycle.Entry{entry(generation)}); err != nil {
			t.Fatal(err)
		}
	}
	undo := store.Snapshot{ID: "one", Undo: true, Sandbox: "source", Generation: 1, CreatedAt: utc(1)}
	put(undo, 1)
	put(undo, 2)
	s = h.reopen(t, s)
	diff(t, "snapshot", only(t, snapshots(t, s)), undo)
	next := store.Snapshot{ID: "two", Undo: true, Sandbox: "source", Generation: 2, CreatedAt: utc(2), Replaces: "one"}
	put(next, 3)
	put(next, 4)
	s = h.reopen(t, s)
	diff(t, "snapshot", only(t, snapshots(t, s)), next)
	if got := only(t, sandboxes(t, s)).Record.Generation; got != 4 {
		t.Errorf("generation %d, want 4", got)
	}
}

// testSnapshotRetention holds that a snapshot takes the place of several, or of none
// if it is not committed, and that how long it is kept can change.
func testSnapshotRetention(t *testing.T, h harness) {
	s := h.open(t)
	source := store.Sandbox{ID: "source", Record: lifecycle.Record{State: lifecycle.Running, Generation: 1}}
	add := func(snap store.Snapshot) error {
		snap.CreatedAt = epoch
		return s.CommitSnapshot(t.Context(), snap, latest(t, s, source), nil)
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := add(store.Snapshot{ID: id, Name: id}); err != nil {
			t.Fatal(err)
		}
	}
	wantClass(t, errdef.Exists, func() error { return add(store.Snapshot{ID: "d", Name: "c", Drops: []string{"a", "b"}}) })
	if got := len(snapshots(t, s)); got != 3 {
		t.Errorf("%d snapshots after a failure, want 3", got)
	}
	if err := add(store.Snapshot{ID: "d", Name: "d", Drops: []string{"a", "b", "gone"}, Replaces: "c"}); err != nil {
		t.Fatal(err)
	}
	changed := only(t, snapshots(t, s))
	changed.Pinned, changed.ExpiresAt = true, elsewhere(7)
	if err := s.ChangeSnapshot(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	s = h.reopen(t, s)
	if got := only(t, snapshots(t, s)); got.ID != "d" || !got.Pinned || !got.ExpiresAt.Equal(utc(7)) {
		t.Errorf("changed: %+v", got)
	}
	wantClass(t, errdef.NotFound, func() error { return s.ChangeSnapshot(t.Context(), store.Snapshot{ID: "a"}) })
}
