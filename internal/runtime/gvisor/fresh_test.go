package gvisor

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/drivertest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// fresh is what must differ in each runtime that starts from one image.
type fresh struct {
	Device  []byte // from /dev/urandom, opened before the image was taken
	Opened  []byte // from /dev/urandom, opened now
	Syscall []byte // from getrandom(2)
	Now     time.Time
}

// serveFresh answers with fresh values of the guest's kernel.
func serveFresh() http.HandlerFunc {
	device, err := os.Open("/dev/urandom")
	if err != nil {
		panic(err)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		f := fresh{Device: make([]byte, 16), Opened: make([]byte, 16), Syscall: make([]byte, 16), Now: time.Now()}
		again, err := os.Open("/dev/urandom")
		if err == nil {
			defer again.Close()
			_, err = io.ReadFull(again, f.Opened)
		}
		if err == nil {
			_, err = io.ReadFull(device, f.Device)
		}
		if err == nil {
			_, err = unix.Getrandom(f.Syscall, 0)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(f)
	}
}

// guestClient returns a client whose every request goes to the guest.
func guestClient(inst runtime.Instance) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return inst.Dial(ctx, drivertest.GuestPort)
		},
	}}
}

// askFresh asks the guest, which may not listen yet.
func askFresh(t *testing.T, inst runtime.Instance) (f fresh, asked time.Time) {
	t.Helper()
	c := guestClient(inst)
	c.Timeout = testmode.Patience() // one that is stopped takes connections
	for deadline := time.Now().Add(testmode.Patience()); ; time.Sleep(2 * time.Millisecond) {
		asked = time.Now()
		resp, err := c.Get("http://guest/fresh")
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&f)
			resp.Body.Close()
		}
		if err == nil {
			return f, asked
		}
		if time.Now().After(deadline) {
			t.Fatalf("the guest does not answer: %v", err)
		}
	}
}

// TestRestoredTwinsDiffer restores one image eight times. The kernel of each
// twin has randomness of its own from its first answer on, and the host's time.
func TestRestoredTwinsDiffer(t *testing.T) {
	const twins = 8
	r := newRig(t)
	d, first := r.reopen(t), r.newSpec(t)
	remove := func(id string) {
		if err := d.Remove(context.Background(), id); err != nil {
			t.Errorf("remove %s: %v", id, err)
		}
	}
	inst, err := d.Start(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(first.ID) })
	askFresh(t, inst)
	image := r.capture(t, inst)
	remove(first.ID)

	var seen [][]byte
	for n := range twins {
		spec := r.again(t, first)
		inst, err := d.Restore(t.Context(), spec, image)
		if err != nil {
			t.Fatalf("restore %d: %v", n+1, err)
		}
		t.Cleanup(func() { remove(spec.ID) })
		f, asked := askFresh(t, inst)
		for _, value := range [][]byte{f.Device, f.Opened, f.Syscall} {
			if slices.ContainsFunc(seen, func(old []byte) bool { return slices.Equal(old, value) }) {
				t.Errorf("twin %d got random bytes that were given before: %x", n+1, value)
			}
			seen = append(seen, value)
		}
		if off := f.Now.Sub(asked); off < -500*time.Millisecond || f.Now.After(time.Now().Add(500*time.Millisecond)) {
			t.Errorf("twin %d: its clock is %s after the host's", n+1, off)
		}
		remove(spec.ID)
	}
}
