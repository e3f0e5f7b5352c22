package gvisor

import (
	"errors"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/runtime"
)

// TestWhatCannotBeSavedIsToldApart: by gVisor's words, of which a tenant gets no more
// than a line about what is inside.
func TestWhatCannotBeSavedIsToldApart(t *testing.T) {
	const dump = "\ngoroutine 109 [running]:\ngvisor.dev/gvisor/pkg/state.safely.func1()\n\tgvisor.dev/gvisor@v0/pkg/state/state.go:309"
	for _, c := range []struct {
		said, told string
		never      bool
	}{
		{`held: process 9 (python3) holds /dev/net/tun: encoding error: /dev/net/tun does not support save/restore when a device is associated with it.:` + dump,
			"process 9 (python3) holds /dev/net/tun: /dev/net/tun does not support save/restore when a device is associated with it.", true},
		{`checkpointing container "warm-x": encoding error: struct channel.queue does not implement SaverLoader:` + dump,
			"struct channel.queue does not implement SaverLoader", true},
		{`checkpointing container "warm-x": held: process 10 (sh) holds /home/user/big (deleted): gofer.dentry("home/user/big"): a deleted file of 2 bytes cannot be saved, there is memory for 1`,
			"process 10 (sh) holds /home/user/big (deleted): a deleted file of 2 bytes cannot be saved, there is memory for 1", true},
		{`gofer.dentry("home/user/x").prepareSaveDead: invalidated dentries can't be saved`, "invalidated dentries can't be saved", true},
		{"the image taker has ended:" + dump, "the image taker has ended", false},
		{"encoding error: write: no space left on device:" + dump, unix.ENOSPC.Error(), false},
	} {
		err := explainCapture(errors.New(c.said))
		if runtime.IsNotCapturable(err) != c.never || err.Error() != c.told {
			t.Errorf("%q is told as %q, and that it never succeeds: %v", c.said, err, runtime.IsNotCapturable(err))
		}
	}
}

// serveHinder has the guest hold a deleted file, of which there are two that cannot be
// saved: without the edits a link, and with them what no memory holds.
func serveHinder() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		const link, file = "/hinder-link", "/hinder-file"
		if err := hinderBy(link, file, r.URL.Query().Has("large")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func hinderBy(link, file string, large bool) error {
	if !large {
		if err := os.Symlink("/", link); err != nil {
			return err
		}
		_, err := unix.Open(link, unix.O_PATH|unix.O_NOFOLLOW, 0)
		return errors.Join(err, os.Remove(link))
	}
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(unix.Ftruncate(fd, 1<<40), os.Remove(file))
}

func hinder(t *testing.T, inst runtime.Instance) {
	url := "http://guest/hinder"
	if edits != "" {
		url += "?large"
	}
	resp, err := guestClient(inst.(*instance)).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
}
