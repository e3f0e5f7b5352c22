// Package drivertest is the contract suite that every runtime driver passes.
package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// GuestPort is where the guest program serves.
const GuestPort = 8123

// State is what the guest program answers to GET /.
type State struct {
	PID   int `json:"pid"`
	Count int `json:"count"` // requests answered so far, this one included
}

// Guest is the program that runs inside: it counts requests in memory.
func Guest() http.Handler {
	count := 0
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count++
		_ = json.NewEncoder(w).Encode(State{PID: os.Getpid(), Count: count})
	})
}

// Env is what the suite needs of a driver under test.
type Env struct {
	// Reopen returns a driver over the same state, as a restarted server would.
	Reopen func(t *testing.T) runtime.Driver
	// NewSpec returns a spec with a new id that starts the guest program.
	NewSpec func(t *testing.T) runtime.Spec
	// Again returns the spec for the next runtime over the same files.
	Again func(t *testing.T, spec runtime.Spec) runtime.Spec
	// Hinder has the guest hold something that cannot be saved with its memory.
	Hinder func(t *testing.T, inst runtime.Instance)
}

// Run runs the suite.
func Run(t *testing.T, env Env) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Env)
	}{
		{"StartServes", testStart},
		{"FreezeThaw", testFreeze},
		{"CheckpointLeavesFrozenAndIntact", testCheckpoint},
		{"WhatCannotBeSavedIsToldApart", testNotCapturable},
		{"RestoreContinues", testRestore},
		{"AdoptAfterRestart", testAdopt},
		{"AdoptFrozen", testAdoptFrozen},
		{"ExitedWhenRemoved", testExited},
		{"RemoveIsIdempotent", testRemove},
		{"ClosedPortIsRefused", testRefused},
		{"UsageGrows", testUsage},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, env) })
	}
}

func start(t *testing.T, env Env) (runtime.Driver, runtime.Spec, runtime.Instance) {
	t.Helper()
	d, spec := env.Reopen(t), env.NewSpec(t)
	inst, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { remove(t, d, spec.ID) })
	return d, spec, inst
}

func remove(t *testing.T, d runtime.Driver, id string) {
	t.Helper()
	if err := d.Remove(context.Background(), id); err != nil {
		t.Errorf("remove %s: %v", id, err)
	}
}

// ask asks the guest for its state, waiting for it to come up.
func ask(t *testing.T, inst runtime.Instance) State {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		s, err := tryAsk(t.Context(), inst)
		if err == nil {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("the guest does not answer: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func tryAsk(ctx context.Context, inst runtime.Instance) (s State, err error) {
	c := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return inst.Dial(ctx, GuestPort)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/", nil)
	if err != nil {
		return s, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(data, &s)
	return s, err
}

func testStart(t *testing.T, env Env) {
	d, spec, inst := start(t, env)
	if inst.ID() != spec.ID {
		t.Errorf("id = %q, want %q", inst.ID(), spec.ID)
	}
	for want := 1; want <= 3; want++ {
		if got := ask(t, inst).Count; got != want {
			t.Errorf("count = %d, want %d", got, want)
		}
	}
	ids, err := d.List(t.Context())
	if err != nil || !slices.Contains(ids, spec.ID) {
		t.Errorf("list = %v, %v; want it to contain %s", ids, err, spec.ID)
	}
}

func testFreeze(t *testing.T, env Env) {
	_, _, inst := start(t, env)
	ask(t, inst)
	for range 2 { // freezing is idempotent
		if err := inst.Freeze(t.Context()); err != nil {
			t.Fatalf("freeze: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if s, err := tryAsk(ctx, inst); err == nil {
		t.Errorf("a frozen guest answered %+v", s)
	}
	for range 2 {
		if err := inst.Thaw(t.Context()); err != nil {
			t.Fatalf("thaw: %v", err)
		}
	}
	ask(t, inst)
}

func checkpoint(t *testing.T, inst runtime.Instance) string {
	t.Helper()
	dir := t.TempDir()
	if err := inst.Freeze(t.Context()); err != nil {
		t.Fatalf("freeze: %v", err)
	}
	if err := inst.Checkpoint(t.Context(), dir); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	return dir
}

func testCheckpoint(t *testing.T, env Env) {
	_, _, inst := start(t, env)
	before := ask(t, inst)
	checkpoint(t, inst)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if s, err := tryAsk(ctx, inst); err == nil {
		t.Errorf("the guest answered %+v after a checkpoint; want it frozen", s)
	}
	if err := inst.Thaw(t.Context()); err != nil {
		t.Fatalf("thaw: %v", err)
	}
	after := ask(t, inst)
	// The request that found it frozen may be answered late.
	if after.PID != before.PID || after.Count <= before.Count {
		t.Errorf("after the thaw the guest is %+v, was %+v", after, before)
	}
	checkpoint(t, inst) // a second one works
}

func testNotCapturable(t *testing.T, env Env) {
	_, _, inst := start(t, env)
	before := ask(t, inst)
	env.Hinder(t, inst)
	if err := inst.Freeze(t.Context()); err != nil {
		t.Fatalf("freeze: %v", err)
	}
	for range 2 {
		if err := inst.Checkpoint(t.Context(), t.TempDir()); !runtime.IsNotCapturable(err) {
			t.Fatalf("a checkpoint of what cannot be saved: %v", err)
		}
	}
	if err := inst.Thaw(t.Context()); err != nil {
		t.Fatalf("thaw: %v", err)
	}
	if after := ask(t, inst); after.PID != before.PID || after.Count <= before.Count {
		t.Errorf("after that the guest is %+v, was %+v", after, before)
	}
}

func testRestore(t *testing.T, env Env) {
	d, spec, inst := start(t, env)
	for range 4 {
		ask(t, inst)
	}
	before := ask(t, inst)
	image := checkpoint(t, inst)
	remove(t, d, spec.ID)
	for cycle := 1; cycle <= 3; cycle++ {
		spec = env.Again(t, spec)
		inst, err := d.Restore(t.Context(), spec, image)
		if err != nil {
			t.Fatalf("restore %d: %v", cycle, err)
		}
		after := ask(t, inst)
		if want := (State{PID: before.PID, Count: before.Count + 1}); after != want {
			t.Errorf("restored guest %d is %+v, want %+v", cycle, after, want)
		}
		before = after
		image = checkpoint(t, inst)
		remove(t, d, spec.ID)
	}
}

func testAdopt(t *testing.T, env Env) {
	d, spec, inst := start(t, env)
	ask(t, inst)
	again, err := env.Reopen(t).Adopt(t.Context(), spec.ID)
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	if got := ask(t, again).Count; got != 2 {
		t.Errorf("count = %d, want 2", got)
	}
	remove(t, d, spec.ID)
	wait(t, again.Exited())
	if _, err := d.Adopt(t.Context(), spec.ID); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("adopt of a removed runtime: %v, want not_found", err)
	}
}

// testAdoptFrozen finds runtimes again that were left frozen, or thawed.
func testAdoptFrozen(t *testing.T, env Env) {
	_, spec, inst := start(t, env)
	ask(t, inst)
	for _, leave := range []func() error{
		func() error { return inst.Freeze(t.Context()) },
		func() error { return inst.Thaw(t.Context()) },
		func() error { return inst.Freeze(t.Context()) },
	} {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		var err error
		if inst, err = env.Reopen(t).Adopt(t.Context(), spec.ID); err != nil {
			t.Fatalf("adopt: %v", err)
		}
	}
	if err := inst.Thaw(t.Context()); err != nil {
		t.Fatalf("thaw: %v", err)
	}
	ask(t, inst)
}

func testExited(t *testing.T, env Env) {
	d, spec, inst := start(t, env)
	select {
	case <-inst.Exited():
		t.Fatal("exited at once")
	default:
	}
	remove(t, d, spec.ID)
	wait(t, inst.Exited())
}

func wait(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatal("the runtime did not end")
	}
}

func testRemove(t *testing.T, env Env) {
	d, spec, _ := start(t, env)
	for range 2 {
		remove(t, d, spec.ID)
	}
	ids, err := d.List(t.Context())
	if err != nil || slices.Contains(ids, spec.ID) {
		t.Errorf("list = %v, %v; want it without %s", ids, err, spec.ID)
	}
	remove(t, d, fmt.Sprintf("%0*d", len(spec.ID), 0)) // never existed
}

func testUsage(t *testing.T, env Env) {
	_, _, inst := start(t, env)
	meter, ok := inst.(runtime.UsageMeter)
	if !ok {
		t.Fatalf("a %T does not tell what it uses", inst)
	}
	before, err := meter.Usage()
	if err != nil || before.Memory <= 0 || before.CPU < 0 || before.Cache < 0 {
		t.Fatalf("usage %+v, %v; want some memory", before, err)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		ask(t, inst)
		after, err := meter.Usage()
		if err != nil || time.Now().After(end) {
			t.Fatalf("usage %+v after %+v, %v; want more CPU time", after, before, err)
		}
		if after.CPU > before.CPU {
			return
		}
	}
}

func testRefused(t *testing.T, env Env) {
	_, _, inst := start(t, env)
	ask(t, inst)
	conn, err := inst.Dial(t.Context(), GuestPort+1)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial of a closed port: %v, want connection refused", err)
	}
}
