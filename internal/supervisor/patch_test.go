package supervisor

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// TestConnectWithSettings: a connect that changes settings is one step. Where it
// is refused, where the resume fails and where the server dies in the middle,
// the sandbox is as it was, in memory and on disk.
func TestConnectWithSettings(t *testing.T) {
	was := CreateRequest{
		Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, IdleTimeout: 2 * time.Hour, OnIdle: lifecycle.Pause},
		Config:   store.Config{Metadata: map[string]string{"a": "old"}},
	}
	idle, none := 3*time.Hour, false
	change := Patch{
		Settings: lifecycle.Patch{IdleTimeout: &idle}, Metadata: map[string]string{"a": "new"}, AllowInternet: &none,
		DenyOut: []string{"192.0.2.0/24"}, Ports: store.Ports{"80": lifecycle.Keep},
	}
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		booting := make(chan struct{}, 10)
		w.meddle = func(ctx context.Context, srv *server, at point, _ string) error {
			if at != atRestore || !broken.Load() {
				return nil
			}
			booting <- struct{}{}
			time.Sleep(time.Second)
			return errors.New("a fault")
		}
		var full atomic.Bool
		var commits atomic.Int64
		w.hooks = func(*server) memstore.Hooks {
			return memstore.Hooks{Before: func(memstore.Commit) error {
				commits.Add(1)
				if full.Load() {
					return errors.New("no room")
				}
				return nil
			}}
		}
		srv := w.mustOpen(t)
		defer func() { w.powerOff() }()
		id := create(t, srv.s, was)
		made, err := srv.s.Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		was.Settings, was.Config = made.Record.Settings, made.Config
		want := func(when string, state lifecycle.State, changed bool) {
			t.Helper()
			synctest.Wait()
			list, err := srv.store.Sandboxes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			live, err := srv.s.Find(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			expected := was.Config
			settings := was.Settings
			if changed {
				expected, settings.IdleTimeout = change.On(expected), idle
			}
			for _, sb := range append(list, live) {
				if sb.ID != id {
					continue
				}
				if sb.Record.State != state || sb.Record.Settings != settings || sb.Config.Before != nil || !reflect.DeepEqual(sb.Config.Changeable(), expected.Changeable()) {
					t.Errorf("%s: %s, %+v, %+v; want changed: %v", when, sb.Record.State, sb.Record.Settings, sb.Config.Changeable(), changed)
				}
			}
			box, _ := srv.s.box(id)
			if reaches := len(box.gate.Open()) > 0; reaches == changed {
				t.Errorf("%s: it reaches the internet: %v", when, reaches)
			}
		}
		connect := func(d time.Duration, p Patch) error {
			_, err := srv.s.Connect(t.Context(), id, WakeRequest{Timeout: d, Change: p})
			return err
		}
		pause := func() {
			t.Helper()
			if err := srv.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
		}

		full.Store(true)
		if err := connect(2*time.Hour, change); err == nil {
			t.Error("it was committed to a store without room")
		}
		full.Store(false)
		want("not committed", lifecycle.Running, false)

		kill, on := lifecycle.Kill, true
		refused := change
		refused.Settings = lifecycle.Patch{OnTimeout: &kill, OnIdle: &kill, AutoResume: &on}
		for _, state := range []lifecycle.State{lifecycle.Running, lifecycle.Paused} {
			if state == lifecycle.Paused {
				pause()
			}
			if err := connect(2*time.Hour, refused); code(err) != "auto_resume_needs_pause" {
				t.Errorf("%s: %v", state, err)
			}
			want("refused", state, false)
		}
		broken.Store(true)
		if err := connect(2*time.Hour, change); code(err) != "resume_failed" {
			t.Errorf("a resume that fails: %v", err)
		}
		want("after a resume that failed", lifecycle.Paused, false)

		for len(booting) > 0 {
			<-booting
		}
		go func() { _ = connect(2*time.Hour, change) }()
		<-booting
		srv.crash()
		_ = srv.s.Stop(context.Background())
		broken.Store(false)
		srv = w.mustOpen(t)
		want("after a crash", lifecycle.Paused, false)

		if err := connect(2*time.Hour, change); err != nil {
			t.Fatal(err)
		}
		want("resumed", lifecycle.Running, true)

		// One that runs is changed and extended by one commit.
		idle++
		before, end := commits.Load(), time.Now().Add(5*time.Hour)
		if err := connect(5*time.Hour, change); err != nil {
			t.Fatal(err)
		}
		if n, at := commits.Load()-before, record(t, srv.s, id).EndAt; n != 1 || at.Sub(end).Abs() > time.Second {
			t.Errorf("extended in %d commits, to %s; want one, and %s", n, at, end)
		}
		want("extended", lifecycle.Running, true)
		_ = srv.s.Stop(context.Background())
	})
}
