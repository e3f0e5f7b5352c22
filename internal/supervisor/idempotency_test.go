package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// onceAs is a create under an idempotency key of an API key.
func onceAs(apiKey, key, request string) CreateRequest {
	return CreateRequest{
		Template: "test", Settings: lifecycle.Settings{Timeout: 100 * time.Hour, OnTimeout: lifecycle.Kill, OnIdle: lifecycle.Kill},
		Config: store.Config{Key: apiKey, Idempotency: &store.Idempotency{Key: key, Request: request}},
	}
}

// unnamed is a create without a key.
func unnamed() CreateRequest {
	req := underKey("")
	req.Config.Idempotency = nil
	return req
}

func underKey(key string) CreateRequest { return onceAs("k1", key, "r1") }

// made is a sandbox that a create returned.
func made(t *testing.T, s *Supervisor, req CreateRequest) store.Sandbox {
	t.Helper()
	sb, err := s.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func sandboxes(t *testing.T, s *Supervisor) int {
	t.Helper()
	all, err := s.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestCreateOnce holds what a second create under an idempotency key gets. Time
// is virtual.
func TestCreateOnce(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, s *Supervisor){
		"the same create": func(t *testing.T, s *Supervisor) {
			first := made(t, s, underKey("a"))
			if again := made(t, s, underKey("a")); again.ID != first.ID || sandboxes(t, s) != 1 {
				t.Errorf("the second create made %s beside %s", again.ID, first.ID)
			}
			if sb, known, err := s.Made(t.Context(), underKey("a").Config); sb.ID != first.ID || !known || err != nil {
				t.Errorf("the key has made %q, %t, %v", sb.ID, known, err)
			}
			if sb, known, err := s.Made(t.Context(), underKey("b").Config); known || err != nil {
				t.Errorf("a key that made nothing has made %q, %t, %v", sb.ID, known, err)
			}
		},
		"asleep": func(t *testing.T, s *Supervisor) {
			first := made(t, s, underKey("a"))
			if err := s.Pause(t.Context(), first.ID, PauseRequest{}); err != nil {
				t.Fatal(err)
			}
			if again := made(t, s, underKey("a")); again.ID != first.ID || again.Record.State != lifecycle.Paused {
				t.Errorf("got %s, %s; want %s as it sleeps", again.ID, again.Record.State, first.ID)
			}
		},
		"another body": func(t *testing.T, s *Supervisor) {
			made(t, s, underKey("a"))
			_, err := s.Create(t.Context(), onceAs("k1", "a", "r2"))
			if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "idempotency_key_reused" || sandboxes(t, s) != 1 {
				t.Errorf("got %v and %d sandboxes", err, sandboxes(t, s))
			}
		},
		"another API key": func(t *testing.T, s *Supervisor) {
			first := made(t, s, underKey("a"))
			if other := made(t, s, onceAs("k2", "a", "r2")); other.ID == first.ID {
				t.Error("an API key got the sandbox of another")
			}
		},
		"another idempotency key": func(t *testing.T, s *Supervisor) {
			first := made(t, s, underKey("a"))
			if other := made(t, s, underKey("b")); other.ID == first.ID {
				t.Error("two keys made one sandbox")
			}
		},
		"ended": func(t *testing.T, s *Supervisor) {
			first := made(t, s, underKey("a"))
			if err := s.Kill(t.Context(), first.ID, ""); err != nil {
				t.Fatal(err)
			}
			_, err := s.Create(t.Context(), underKey("a"))
			if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "idempotency_sandbox_ended" || e.Context["sandbox"] != first.ID || sandboxes(t, s) != 1 {
				t.Errorf("got %v and %d sandboxes", err, sandboxes(t, s))
			}
		},
		"a day later": func(t *testing.T, s *Supervisor) {
			first := made(t, s, underKey("a"))
			time.Sleep(store.IdempotencyLife - time.Second)
			if again := made(t, s, underKey("a")); again.ID != first.ID {
				t.Error("the key was free too early")
			}
			time.Sleep(time.Second)
			if again := made(t, s, underKey("a")); again.ID == first.ID {
				t.Error("the key is bound for ever")
			}
		},
		"refused, then allowed": func(t *testing.T, s *Supervisor) {
			bad := underKey("a")
			bad.Template = "unknown"
			if _, err := s.Create(t.Context(), bad); err == nil {
				t.Fatal("there is no such template")
			}
			made(t, s, underKey("a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				srv := w.mustOpen(t)
				defer w.powerOff()
				defer srv.s.Stop(context.Background())
				test(t, srv.s)
			})
		})
	}
}

// TestCreateOnceConcurrently holds that of many creates at once one makes the
// sandbox and all return it, when it serves and not before.
func TestCreateOnceConcurrently(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		w.meddle = func(ctx context.Context, _ *server, at point, _ string) error {
			if at == atStart {
				time.Sleep(2 * time.Second)
			}
			return nil
		}
		srv := w.mustOpen(t)
		defer w.powerOff()
		defer srv.s.Stop(context.Background())
		began := time.Now()
		var ids sync.Map
		var calls sync.WaitGroup
		for n := range 20 {
			calls.Go(func() {
				time.Sleep(time.Duration(n) * 10 * time.Millisecond)
				sb, err := srv.s.Create(t.Context(), underKey("a"))
				if err != nil {
					t.Error(err)
					return
				}
				if sb.Record.State != lifecycle.Running || time.Since(began) < 2*time.Second {
					t.Errorf("it is %s after %s", sb.Record.State, time.Since(began))
				}
				ids.Store(sb.ID, true)
			})
		}
		calls.Wait()
		made := 0
		ids.Range(func(any, any) bool { made++; return true })
		if made != 1 || sandboxes(t, srv.s) != 1 {
			t.Errorf("%d sandboxes were returned, and there are %d", made, sandboxes(t, srv.s))
		}
	})
}

// TestCreateOnceFailed holds that a create which never came up does not keep its
// key: who waits for it gets its error, and who tries again a sandbox.
func TestCreateOnceFailed(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		w.meddle = func(_ context.Context, _ *server, at point, _ string) error {
			if at == atStart && broken.Load() {
				time.Sleep(time.Second)
				return errors.New("a fault")
			}
			return nil
		}
		srv := w.mustOpen(t)
		defer w.powerOff()
		defer srv.s.Stop(context.Background())
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				if _, err := srv.s.Create(t.Context(), underKey("a")); !errdef.Is(err, errdef.Unavailable) {
					t.Errorf("got %v, want the error of the create", err)
				}
			})
		}
		calls.Wait()
		broken.Store(false)
		made(t, srv.s, underKey("a"))
	})
}

// TestCreateUnlearned: of a create of which its client cannot be told whether it was committed, nothing
// stays, and another try waits until that is so. An import is there, or not. Time is virtual.
func TestCreateUnlearned(t *testing.T) {
	for _, happened := range []bool{true, false} {
		for name, try := range map[string]func(t *testing.T, s *Supervisor, file []byte) (store.Sandbox, error){
			"create": func(t *testing.T, s *Supervisor, _ []byte) (store.Sandbox, error) {
				return s.Create(t.Context(), unnamed())
			},
			"create under key": func(t *testing.T, s *Supervisor, _ []byte) (store.Sandbox, error) {
				return s.Create(t.Context(), underKey("a"))
			},
			"child asleep": func(t *testing.T, s *Supervisor, _ []byte) (store.Sandbox, error) {
				return s.Create(t.Context(), CreateRequest{Snapshot: s.AllSnapshots()[0].ID, inherit: true, asleep: true, Settings: unnamed().Settings, Config: store.Config{Key: "k1"}})
			},
			"import": func(t *testing.T, s *Supervisor, file []byte) (store.Sandbox, error) {
				return s.Import(t.Context(), bytes.NewReader(file), ImportRequest{Key: "k1", NewID: true, Idempotency: &store.Idempotency{Key: "i", Request: "r"}})
			},
		} {
			t.Run(fmt.Sprintf("%s, committed: %t", name, happened), func(t *testing.T) {
				w := newWorld(t)
				synctest.Test(t, func(t *testing.T) {
					var broken atomic.Bool
					lost := func(memstore.Commit) error {
						if broken.Load() {
							return store.ErrUnlearned(errors.New("no answer"))
						}
						return nil
					}
					w.hooks = func(*server) memstore.Hooks {
						if happened {
							return memstore.Hooks{After: lost}
						}
						return memstore.Hooks{Before: lost}
					}
					srv := w.mustOpen(t)
					defer w.powerOff()
					defer srv.s.Stop(context.Background())
					first := made(t, srv.s, unnamed())
					if err := srv.s.Pause(t.Context(), first.ID, PauseRequest{}); err != nil {
						t.Fatal(err)
					}
					file := exportOf(t, srv.s, first.ID)
					if _, err := srv.s.TakeSnapshot(t.Context(), first.ID, SnapshotRequest{Key: "k1"}); err != nil {
						t.Fatal(err)
					}
					broken.Store(true)
					if sb, err := try(t, srv.s, file); err == nil {
						t.Fatalf("it made %s", sb.ID)
					}
					time.Sleep(10 * time.Second)
					broken.Store(false)
					again, err := try(t, srv.s, file)
					if err != nil {
						t.Fatalf("another try: %v", err)
					}
					time.Sleep(time.Minute)
					live := map[string]bool{first.ID: true}
					srv.s.each(func(b *box) {
						if sb := b.snapshot(); !sb.Ended() {
							live[sb.ID] = true
						} else if sb.Record.Op != nil {
							t.Errorf("%s is %s", sb.ID, sb.Record.Situation())
						}
					})
					if len(live) != 2 || !live[again.ID] {
						t.Errorf("%v live, and one more than before should: %s", live, again.ID)
					}
					stored, err := srv.s.o.Store.Sandboxes(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, sb := range stored {
						if !srv.s.Knows(sb.ID) || sb.Ended() == live[sb.ID] {
							t.Errorf("the store has %s, which is %s; the server knows it: %t", sb.ID, sb.Record.Situation(), srv.s.Knows(sb.ID))
						}
					}
					if got, err := srv.s.Connect(t.Context(), again.ID, WakeRequest{Timeout: time.Hour}); err != nil || got.Sandbox.Record.State != lifecycle.Running {
						t.Errorf("what is there does not run: %v", err)
					}
				})
			})
		}
	}
}

// TestCreateOnceOverCrash crashes the server at each commit and each step of a
// create, and lets the client ask the next server again: it gets a sandbox that
// runs, and there is no other.
func TestCreateOnceOverCrash(t *testing.T) {
	at := map[string]func(w *world){
		"before the commit": func(w *world) {
			w.hooks = func(srv *server) memstore.Hooks {
				return memstore.Hooks{Before: func(memstore.Commit) error {
					if srv.number == 1 {
						srv.crash()
					}
					return nil
				}}
			}
		},
		"the answer is lost": nil,
	}
	for _, p := range []point{atStart, atBooted} {
		at["at "+string(p)] = func(w *world) {
			w.meddle = func(_ context.Context, srv *server, at point, _ string) error {
				if srv.number == 1 && at == p {
					srv.crash()
				}
				return nil
			}
		}
	}
	for name, crash := range at {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			synctest.Test(t, func(t *testing.T) {
				if crash != nil {
					crash(w)
				}
				srv := w.mustOpen(t)
				lost, _ := srv.s.Create(srv.ctx, underKey("a"))
				srv.crash()
				_ = srv.s.Stop(context.Background())
				next := w.mustOpen(t)
				defer w.powerOff()
				defer next.s.Stop(context.Background())
				got := made(t, next.s, underKey("a"))
				if crash == nil && got.ID != lost.ID {
					t.Errorf("a second sandbox: %s after %s", got.ID, lost.ID)
				}
				running := 0
				next.s.each(func(b *box) {
					if b.snapshot().Record.State == lifecycle.Running {
						running++
					}
				})
				if running != 1 {
					t.Errorf("%d sandboxes run", running)
				}
				if again := made(t, next.s, underKey("a")); again.ID != got.ID {
					t.Errorf("and a third: %s", again.ID)
				}
			})
		})
	}
}
