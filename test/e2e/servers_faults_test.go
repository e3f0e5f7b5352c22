package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/store/lease"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// failOver has the primary of the database crash, and its stand-by be promoted. In every second
// round the old primary is up again then, and would take writes. In the end it is the stand-by.
func (f *fleet) failOver(_ context.Context, r *round) {
	old, next := f.postgres[0], f.postgres[1]
	old.Crash(f.t)
	time.Sleep(testmode.N(r.rng, lease.Life))
	next.Promote(f.t)
	if r.rng.IntN(2) == 0 {
		f.t.Log("the old primary is up again")
		old.Up(f.t)
		old.Alone(f.t)
		for range 3 {
			time.Sleep(testmode.N(r.rng, 2*time.Second))
			for _, m := range f.members {
				for _, db := range m.dbs {
					db.Cut()
				}
			}
		}
		old.Crash(f.t)
	}
	old.Follow(f.t, next)
	f.postgres[0], f.postgres[1] = next, old
	timeline := pgtest.SQL(f.t, next.Admin(), "select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int")[0]
	for _, m := range f.members {
		eventually(f.t, healWithin, "each server knows the database after its fail-over", func() error {
			kept, err := os.ReadFile(filepath.Join(m.dir(), "drowse.db"))
			if err == nil && !strings.Contains(string(kept), fmt.Sprintf(`"timeline":%s}`, timeline)) {
				err = fmt.Errorf("%s, want timeline %s", kept, timeline)
			}
			return err
		})
	}
}

// slowRule is the file of a cgroup by which the kernel slows a disk down, for all that belongs to
// no other cgroup: also what programs wrote and the kernel writes back.
const slowRule = "/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device"

// slowDisk has the disk of a server sync in 0.3 s to some seconds for a while. It keeps its lease.
func (f *fleet) slowDisk(ctx context.Context, r *round) {
	v, others := f.victim(ctx, r)
	if _, err := os.Stat(slowRule); err != nil {
		f.t.Logf("no disk is slow: %v", err)
		return
	}
	slow := func(writes int) {
		var st unix.Stat_t
		err := unix.Stat(v.dir(), &st)
		if err == nil {
			err = os.WriteFile(slowRule, fmt.Appendf(nil, "%d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), writes), 0)
		}
		if err != nil {
			f.t.Errorf("slow the disk of %s down: %v", v.dir(), err)
		}
	}
	slow(15 + r.rng.IntN(30))
	defer slow(0)
	for end := time.Now().Add(10*time.Second + testmode.N(r.rng, 15*time.Second)); time.Now().Before(end); time.Sleep(time.Second) {
		ctx, cancel := context.WithTimeout(ctx, historyPatience)
		all, err := client.Servers(ctx, f.servers[others[0]].client)
		cancel()
		if err != nil {
			f.t.Errorf("while the disk of %s is slow: %v", v.id, err)
		}
		for _, srv := range all {
			if !srv.Alive {
				f.t.Errorf("the lease of %s is over while the disk of %s is slow", srv.ID, v.id)
			}
		}
	}
	began := time.Now()
	if err := os.WriteFile(filepath.Join(v.dir(), "slow"), []byte("x"), 0o600); err == nil {
		syncFile(f.t, filepath.Join(v.dir(), "slow"))
	}
	f.t.Logf("a sync of the slow disk took %s", since(began))
}

// syncFile syncs a file, and removes it.
func syncFile(t testing.TB, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	defer file.Close()
	if err := file.Sync(); err != nil {
		t.Error(err)
	}
}
