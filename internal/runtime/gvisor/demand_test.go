package gvisor

import (
	"fmt"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/runtime"
)

func sized(mebibytes int) runtime.Spec {
	return runtime.Spec{Limits: runtime.Limits{MemoryMiB: mebibytes}}
}

// TestDemand has one owner launch all the time, and others now and then: these find a
// runtime that waits, and it is made for them.
func TestDemand(t *testing.T) {
	d, now := demand{}, time.Unix(1e9, 0)
	d.launched("", sized(128), now) // the server itself, which tries whether it can
	launch := func(owner string, mebibytes int) bool {
		d.launched(owner, sized(mebibytes), now)
		return d.mayTakeLast(owner, now)
	}
	for i := range 100 {
		now = now.Add(100 * time.Millisecond)
		if !launch("busy", 256) {
			t.Fatalf("alone, it may not take the last one after %d launches", i)
		}
	}
	if d.several() {
		t.Error("one owner is several")
	}
	for i := range 300 {
		now = now.Add(100 * time.Millisecond)
		if i%10 == 0 && !launch("modest", 512) {
			t.Errorf("launch %d of the modest owner may not take the last one", i)
		}
		if launch("busy", 256) {
			t.Errorf("launch %d of the busy owner may take the last one", i)
		}
		if first := d.shapes(now)[0]; first.Limits.MemoryMiB != 512 {
			t.Fatalf("what is made next has %d MiB", first.Limits.MemoryMiB)
		}
	}
	if !d.several() || len(d.shapes(now)) != 2 {
		t.Errorf("%d owners", len(d))
	}
	for range 620 { // a minute and more
		now = now.Add(100 * time.Millisecond)
		d.launched("busy", sized(256), now)
	}
	if !d.mayTakeLast("busy", now) || d.several() {
		t.Error("it leaves the last one to who has not come for long")
	}
}

// TestDemandOfPeers: owners who launch about as much as each other take what there is.
func TestDemandOfPeers(t *testing.T) {
	d, now := demand{}, time.Unix(1e9, 0)
	for i := range 200 {
		now = now.Add(300 * time.Millisecond)
		owner := fmt.Sprint("owner-", i%3)
		d.launched(owner, sized(256), now)
		if !d.mayTakeLast(owner, now) {
			t.Fatalf("launch %d: %s may not take the last one", i, owner)
		}
	}
}
