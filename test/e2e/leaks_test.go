package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

var leaksSandboxes = flag.Int("leaks.sandboxes", 200, "how many sandboxes TestLeaks creates and kills")

// What the server may have more at the end of TestLeaks than after its first
// sandboxes, however many there were: connections and their goroutines come and
// go, and a heap that has just been used is not given back at once.
const (
	leaksGoroutines  = 10
	leaksDescriptors = 10
	leaksMemory      = 64 << 20

	// leaksRecord is what the database keeps of a sandbox that has ended.
	leaksRecord = 32 << 10
)

// TestLeaks creates and kills sandboxes, 20 at a time, and compares the server
// and the host with what they were after the first of them. "make soak" does it
// with thousands.
func TestLeaks(t *testing.T) {
	const width = 20
	ctx := deadline(t, 3*time.Minute+time.Duration(*leaksSandboxes)*2*time.Second)
	s := startServer(t)
	s.createAndKill(ctx, 2*width, width)
	s.waitWarm(1)
	host, before := settledState(t, s), s.usage(ctx)
	t.Logf("before: %s", before)

	begin := time.Now()
	s.createAndKill(ctx, *leaksSandboxes, width)
	took := since(begin)
	var after usage
	settled := eventually(t, time.Minute, "the server and the host are as they were", func() error {
		httpClient.CloseIdleConnections()
		after = s.usage(ctx)
		lost, added := difference(host, hostState(t, s))
		if len(lost)+len(added) > 0 {
			return fmt.Errorf("added %q, lost %q", added, lost)
		}
		return before.grown(after, *leaksSandboxes)
	})
	t.Logf("after %d sandboxes in %s and %s more: %s", *leaksSandboxes, took, settled.Round(time.Millisecond), after)
	if list, err := s.client.List(ctx, client.ListOptions{}); err != nil || len(list) > 0 {
		t.Errorf("list: %v, %v; want nothing", list, err)
	}
}

// createAndKill creates and kills so many sandboxes, so many at a time. Some
// have run a command and written a file, some have slept.
func (s *server) createAndKill(ctx context.Context, n, width int) {
	s.t.Helper()
	each(n, width, func(i int) {
		sb, err := s.client.Create(ctx, sleeper)
		if err != nil {
			s.t.Error(err)
			return
		}
		if i%2 == 0 {
			if err := sb.WriteFile(ctx, "file", strings.NewReader("x")); err != nil {
				s.t.Error(err)
			}
		}
		if i%4 == 0 {
			_, err := sb.Run(ctx, client.Command{Args: []string{"true"}})
			if err != nil {
				s.t.Error(err)
			}
		}
		if i%8 == 0 {
			if err := s.client.Pause(ctx, sb.ID); err != nil {
				s.t.Error(err)
			}
		}
		if err := s.client.Kill(ctx, sb.ID); err != nil {
			s.t.Error(err)
		}
	})
}

// usage is what a server takes.
type usage struct {
	memory, heap            int64
	goroutines, descriptors int64
	files, database         int64 // bytes in the state directory; the audit log counts as database
}

func (u usage) String() string {
	return fmt.Sprintf("%d MiB resident, heap of %d MiB, %d goroutines, %d descriptors, %d bytes of files, database of %d KiB",
		u.memory>>20, u.heap>>20, u.goroutines, u.descriptors, u.files, u.database>>10)
}

// grown returns an error if after is more than u, beyond what so many sandboxes
// may leave.
func (u usage) grown(after usage, sandboxes int) error {
	var errs []error
	for _, c := range []struct {
		what                string
		before, after, most int64
	}{
		{"bytes of memory", u.memory, after.memory, leaksMemory},
		{"goroutines", u.goroutines, after.goroutines, leaksGoroutines},
		{"descriptors", u.descriptors, after.descriptors, leaksDescriptors},
		{"bytes of files", u.files, after.files, 0},
		{"bytes of the database", u.database, after.database, int64(sandboxes)*leaksRecord + 8<<20},
	} {
		if c.after-c.before > c.most {
			errs = append(errs, fmt.Errorf("%d %s became %d", c.before, c.what, c.after))
		}
	}
	return errors.Join(errs...)
}

// usage asks the server what it takes, and looks at its state directory.
func (s *server) usage(ctx context.Context) usage {
	s.t.Helper()
	m := s.metrics(ctx)
	u := usage{
		memory: int64(m["process_resident_memory_bytes"]), heap: int64(m["go_memstats_heap_alloc_bytes"]),
		goroutines: int64(m["go_goroutines"]), descriptors: int64(m["process_open_fds"]),
	}
	err := filepath.WalkDir(s.dir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it was removed just now
		}
		info, err := d.Info()
		switch {
		case err != nil || !info.Mode().IsRegular():
		case databaseFile(path), filepath.Dir(path) == filepath.Join(s.dir(), "audit"): // both have an entry for each call
			u.database += info.Size()
		case !waits(s.dir(), path):
			u.files += info.Size()
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return u
}

// metrics returns what the server counts without labels, by name.
func (s *server) metrics(ctx context.Context) map[string]float64 {
	s.t.Helper()
	got, err := s.raw(ctx, http.MethodGet, "/metrics", http.Header{"X-Api-Key": {apiKey}}, nil)
	if err != nil || got.status != http.StatusOK {
		s.t.Fatalf("metrics: status %d, %v", got.status, err)
	}
	all := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(string(got.body))); lines.Scan(); {
		if name, text, ok := strings.Cut(lines.Text(), " "); ok {
			if value, err := strconv.ParseFloat(text, 64); err == nil {
				all[name] = value
			}
		}
	}
	return all
}
