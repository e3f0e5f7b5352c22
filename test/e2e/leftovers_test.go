package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestNothingIsLeft creates and kills 50 sandboxes, in different ways, and
// compares the host before and after.
func TestNothingIsLeft(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	// The first sandbox makes what all of them share.
	first := s.create(ctx, client.CreateOptions{})
	if err := s.client.Kill(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	s.waitGone(first.ID)
	s.waitWarm(1)
	before := settledState(t, s)

	const sandboxes = 50
	ids := make([]string, sandboxes)
	begin := time.Now()
	each(sandboxes, 5, func(i int) {
		sb, err := s.client.Create(ctx, client.CreateOptions{Timeout: 10 * time.Minute})
		if err != nil {
			t.Error(err)
			return
		}
		ids[i] = sb.ID
		if i%2 == 0 {
			p, err := sb.Start(ctx, client.Command{Args: []string{"sh", "-c", "echo x >file; (sleep 1000 & sleep 1000) & exec sleep 1000"}})
			if err != nil {
				t.Error(err)
				return
			}
			p.Detach()
		}
		if i%3 == 0 {
			if err := s.client.Pause(ctx, sb.ID); err != nil {
				t.Error(err)
			}
		}
		if i%6 == 0 {
			if _, err := s.client.Connect(ctx, sb.ID, 10*time.Minute); err != nil {
				t.Error(err)
			}
		}
		if i%10 == 7 && i%3 > 0 { // by its timeout
			if err := s.client.SetTimeout(ctx, sb.ID, 0); err != nil {
				t.Error(err)
			}
			return
		}
		if err := s.client.Kill(ctx, sb.ID); err != nil {
			t.Error(err)
		}
	})
	took := time.Since(begin)

	httpClient.CloseIdleConnections()
	var lost, added []string
	settled := eventually(t, 10*time.Second, "the host is as it was", func() error {
		lost, added = difference(before, hostState(t, s))
		if len(lost)+len(added) > 0 {
			return fmt.Errorf("added %q, lost %q", added, lost)
		}
		return nil
	})
	for _, id := range ids {
		if id == "" {
			continue
		}
		if err := s.left(id, true); err != nil {
			t.Error(err)
		}
	}
	list, err := s.client.List(ctx, client.ListOptions{})
	if err != nil || len(list) > 0 {
		t.Errorf("list: %v, %v; want nothing", list, err)
	}
	t.Logf("%d sandboxes in %s, clean %s later; compared %d things", sandboxes, took.Round(time.Millisecond), settled.Round(time.Millisecond), len(before))
}

// TestKillWhileWaking kills sandboxes at many moments of a resume. Nothing may
// be left of them, nor come into being afterwards.
func TestKillWhileWaking(t *testing.T) {
	t.Parallel()
	const sandboxes = 16
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	each(sandboxes, 4, func(i int) {
		sb, err := s.client.Create(ctx, sleeper)
		if err != nil {
			t.Error(err)
			return
		}
		s.mu.Lock()
		s.ids = append(s.ids, sb.ID)
		s.mu.Unlock()
		if err := s.client.Pause(ctx, sb.ID); err != nil {
			t.Error(err)
		}
	})
	for i, id := range s.ids {
		waking := make(chan error, 1)
		go func() {
			_, err := s.client.Connect(ctx, id, time.Minute)
			waking <- err
		}()
		time.Sleep(time.Duration(8*i) * time.Millisecond) // the moment that is tried
		if err := s.client.Kill(ctx, id); err != nil {
			t.Errorf("kill %d ms into a resume: %v", 8*i, err)
		}
		// It may have been quicker than the kill.
		if err := <-waking; err != nil && !errors.Is(err, client.ErrNotFound) {
			t.Errorf("connect overtaken by a kill %d ms later: %v", 8*i, err)
		}
	}
	// A start that was told to stop may still be at work.
	eventually(t, 10*time.Second, "no process but the server", func() error {
		for _, m := range s.each() {
			all := slices.DeleteFunc(processes(m.home, m.home), func(p string) bool { return waits(m.home, p) })
			if len(all) > 1 {
				return fmt.Errorf("%q", all)
			}
		}
		return nil
	})
	for i, id := range s.ids {
		if err := poll(goneWithin, func() error { return s.left(id, true) }); err != nil {
			t.Errorf("killed %d ms into a resume: %v", 8*i, err)
		}
	}
}
