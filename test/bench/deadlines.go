package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Deadlines are those of sandboxes that sleep and are to end. No guest is
// needed for them.
const (
	deadlinesArmed = 100_000
	deadlinesDue   = 1_000            // of them, while it is measured
	dueAfter       = 10 * time.Second // from when each of these is set
	lifetime       = 1000 * time.Hour // of the others
)

// deadlines measures a server with many armed deadlines: how late they fire,
// how long it takes to come up, what it holds and uses.
func (b *bench) deadlines(ctx context.Context) (err error) {
	armed := deadlinesArmed
	if b.o.few {
		armed /= 10
	}
	dir := filepath.Join(b.o.work, "d")
	if err := errors.Join(os.Mkdir(dir, 0o700), b.server.stop()); err != nil {
		return err
	}
	if err := armDeadlines(ctx, dir, armed); err != nil {
		return err
	}
	if b.server, err = startServer(ctx, b.o.drowse, dir, b.serverLog()); err != nil {
		return err
	}
	late, err := b.lateness(ctx)
	if err != nil {
		return err
	}
	idle, err := b.idleCPU(ctx)
	if err != nil {
		return err
	}
	rss, err := residentSet(b.server.cmd.Process.Pid)
	if err != nil {
		return err
	}
	with := fmt.Sprintf("%d armed deadlines", armed)
	b.report.single("B15", fmt.Sprintf("lateness of a deadline's decision, p99, %s", with),
		"ms", len(late), quantile(late, 0.99), 20)
	b.report.single("B15", "server start → first answer, "+with, "ms", 1, milliseconds(b.server.ready), 3000)
	b.report.single("B18", "resident set of the server, "+with, "MiB", 1, mebibytes(rss), 0)
	b.report.single("B18", "CPU time of the idle server, of a core, "+with, "%", 1, idle, 1)
	if err := errors.Join(b.server.stop(), os.RemoveAll(dir)); err != nil {
		return err
	}
	b.server, err = startServer(ctx, b.o.drowse, b.stateDir(), b.serverLog())
	return err
}

// armDeadlines makes the database of a server with so many sandboxes. It is
// made in memory, where a commit does not wait for a disk, and then copied.
func armDeadlines(ctx context.Context, dir string, armed int) (err error) {
	scratch, err := os.MkdirTemp("/dev/shm", "drowse-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	const name = "drowse.db"
	st, err := store.Open(ctx, filepath.Join(scratch, name))
	if err != nil {
		return err
	}
	for i := range armed {
		if err := st.Commit(ctx, asleep(i), nil); err != nil {
			return errors.Join(err, st.Close())
		}
	}
	if err := st.Close(); err != nil {
		return err
	}
	return os.CopyFS(dir, os.DirFS(scratch))
}

func deadlineID(n int) string { return fmt.Sprintf("i%020d", n) }

// asleep is a paused sandbox whose lifetime has begun now.
func asleep(n int) store.Sandbox {
	born := time.Now().UTC().Truncate(time.Microsecond)
	return store.Sandbox{ID: deadlineID(n), Config: store.Config{Template: "base", Secure: true}, Record: lifecycle.Record{
		State: lifecycle.Paused, Generation: 1, Launch: 1, Launches: 1, CreatedAt: born, StartedAt: born, PausedAt: born,
		Settings:   lifecycle.Settings{OnTimeout: lifecycle.Pause, AutoResume: true, MaxLifetime: lifetime},
		Checkpoint: &lifecycle.Checkpoint{ID: fmt.Sprintf("%016d", n), Mode: lifecycle.Memory},
	}}
}

// lateness moves some deadlines near and returns by how many milliseconds each
// was late.
func (b *bench) lateness(ctx context.Context) (late []float64, err error) {
	due := map[string]time.Time{}
	for i := range deadlinesDue {
		id := deadlineID(i)
		info, err := b.server.client.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		life := time.Since(info.CreatedAt).Round(time.Millisecond) + dueAfter
		if _, err := b.server.client.Patch(ctx, id, client.PatchOptions{MaxLifetime: &life}); err != nil {
			return nil, err
		}
		due[id] = info.CreatedAt.Add(life)
	}
	if err := sleep(ctx, dueAfter+time.Second); err != nil {
		return nil, err
	}
	var o client.EventOptions
	for {
		page, err := b.server.client.Events(ctx, o)
		if err != nil {
			return nil, err
		}
		if len(page.Events) == 0 {
			break
		}
		for _, e := range page.Events {
			o.After = e.ID
			if e.Type == client.EventTerminated {
				late = append(late, milliseconds(e.Time.Sub(due[e.Sandbox])))
			}
		}
	}
	if len(late) != len(due) {
		return nil, fmt.Errorf("%d of %d deadlines fired", len(late), len(due))
	}
	return late, nil
}

// idleCPU returns the server's CPU time while nothing happens, in per cent of a
// core.
func (b *bench) idleCPU(ctx context.Context) (float64, error) {
	server := []process{{pid: b.server.cmd.Process.Pid}}
	before, err := cpuOf(server)
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, idleWindow); err != nil {
		return 0, err
	}
	after, err := cpuOf(server)
	return 100 * float64(after-before) / float64(idleWindow), err
}

// residentSet returns how much memory of a process is in RAM.
func residentSet(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d has no resident set", pid)
}
