package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// behind returns a store whose connections go through a proxy.
func behind(t *testing.T) (*pgtest.Server, *pgtest.Proxy, connected) {
	t.Helper()
	server := pgtest.Start(t)
	proxy := server.Proxy(t)
	s := connect(t, proxy.URL(server.NewDatabase(t)))
	if _, err := s.Claim(t.Context(), store.Server{ID: "one", Place: "here"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	return server, proxy, s
}

// TestAnswerIsLost: a commit that happened has succeeded, also if its answer was lost, and
// one that did not has not.
func TestAnswerIsLost(t *testing.T) {
	_, proxy, s := behind(t)
	commit(t, s, record("a", 1), lines(1, "one"))

	done := proxy.LoseAnswer()
	second := record("a", 2)
	second.Rev = 1
	if err := s.Commit(t.Context(), second, lines(2, "two")); err != nil {
		t.Errorf("a commit whose answer was lost: %v", err)
	}
	<-done
	wantGenerations(t, s, "a", 2, 1, 2)

	done = proxy.LoseCommit()
	third := record("a", 3)
	third.Rev = 2
	err := s.Commit(t.Context(), third, lines(3, "three"))
	wantError(t, err, errdef.Unavailable, "store_unavailable", "commit sandbox a")
	<-done
	wantGenerations(t, s, "a", 2, 1, 2)
	commit(t, s, record("a", 4), lines(4, "four"))
	wantGenerations(t, s, "a", 4, 1, 2, 4)
}

// TestAnswerToManyIsLost: those who share a transaction share what became of it.
func TestAnswerToManyIsLost(t *testing.T) {
	_, proxy, s := behind(t)
	for _, lose := range []func() <-chan struct{}{proxy.LoseAnswer, proxy.LoseCommit} {
		done := lose()
		var all sync.WaitGroup
		var mu sync.Mutex
		committed := map[string]bool{}
		for n := range 40 {
			all.Go(func() {
				id := fmt.Sprintf("%p-%d", done, n)
				err := s.Commit(t.Context(), record(id, 1), nil)
				mu.Lock()
				defer mu.Unlock()
				committed[id] = err == nil
			})
		}
		all.Wait()
		<-done
		boxes, err := s.Sandboxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, sb := range boxes {
			found[sb.ID] = true
		}
		for id, said := range committed {
			if said != found[id] {
				t.Errorf("commit of %s succeeded: %v; it is there: %v", id, said, found[id])
			}
		}
	}
}

// TestPostgresIsGone: without a database, all fails as what may work later, and works again
// when it is back, by the same store.
func TestPostgresIsGone(t *testing.T) {
	server, proxy, s := behind(t)
	commit(t, s, record("a", 1), nil)
	for round := range 3 {
		server.Crash(t)
		next := record("a", int64(round+2))
		next.Rev = int64(round + 1)
		wantError(t, s.Commit(t.Context(), next, nil), errdef.Unavailable, "store_unavailable", "PostgreSQL")
		_, err := s.Sandboxes(t.Context())
		wantError(t, err, errdef.Unavailable, "store_unavailable", "PostgreSQL")
		server.Up(t)
		commit(t, s, next, nil)
		proxy.Cut() // and what is idle breaks unnoticed
		if err := s.PutWebhook(t.Context(), store.Webhook{ID: "w"}); err != nil {
			t.Errorf("a write after idle connections broke: %v", err)
		}
		if _, err := s.Webhooks(t.Context()); err != nil {
			t.Errorf("a read after idle connections broke: %v", err)
		}
	}
}

// TestPostgresIsSilent: where no answer comes, a write fails in a bounded time.
func TestPostgresIsSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for connections to be given up")
	}
	t.Parallel()
	_, proxy, s := behind(t)
	commit(t, s, record("a", 1), nil)
	proxy.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), testmode.Patience())
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- s.Commit(ctx, record("b", 1), nil) }()
	go func() {
		_, err := s.Events(ctx, "", 0, 1)
		ended <- err
	}()
	for range 2 {
		select {
		case err := <-ended:
			wantError(t, err, errdef.Unavailable, "store_unavailable", "PostgreSQL")
		case <-ctx.Done():
			t.Fatal("a call still waits")
		}
	}
	proxy.Release()
	commit(t, s, record("c", 1), nil)
}

// TestCrashIsNoCommit: a transaction that PostgreSQL lost in a crash is not taken for
// another one that came to the same number afterwards.
func TestCrashIsNoCommit(t *testing.T) {
	server, proxy, s := behind(t)
	commit(t, s, record("a", 1), nil)
	done := proxy.LoseCommit()
	next := record("a", 2)
	next.Rev = 1
	ended := make(chan error, 1)
	go func() { ended <- s.Commit(t.Context(), next, nil) }()
	<-done
	server.Crash(t)
	server.Up(t)
	for range 20 {
		pgtest.SQL(t, server.Admin(), "create table if not exists x (n int); insert into x values (1)")
	}
	wantError(t, <-ended, errdef.Unavailable, "store_unavailable")
	wantGenerations(t, s, "a", 1)
}

// TestStandbyIsMissed: what a stand-by does not have that a commit waits for is not said to
// be committed.
func TestStandbyIsMissed(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a stand-by that there is not")
	}
	t.Parallel()
	server, _, s := behind(t)
	commit(t, s, record("a", 1), nil)
	alone := func(names string) {
		pgtest.SQL(t, server.Admin(), "alter system set synchronous_standby_names = '"+names+"'")
		pgtest.SQL(t, server.Admin(), "select pg_reload_conf()")
	}
	alone("nobody")
	generation, err := int64(1), error(nil)
	for end := time.Now().Add(30 * time.Second); err == nil && time.Now().Before(end); { // it may not have been told yet
		generation++
		next := record("a", generation)
		next.Rev = generation - 1
		err = s.Commit(t.Context(), next, nil)
	}
	wantError(t, err, errdef.Unavailable, "store_unavailable", "could not be learned")
	if !store.IsUnlearned(err) {
		t.Errorf("nobody is told that it may have happened: %v", err)
	}
	server.Restart(t) // or it waits on
	alone("")
	commit(t, s, record("a", generation+1), nil)
	wantGenerations(t, s, "a", generation+1)
}

// TestLongSSHKey: a key that is longer than an index of PostgreSQL takes is stored, once.
func TestLongSSHKey(t *testing.T) {
	s := connect(t, pgtest.Shared(t).NewDatabase(t))
	if err := s.AddKey(t.Context(), store.Key{ID: "k", Name: "k", CreatedAt: at}); err != nil {
		t.Fatal(err)
	}
	k := store.SSHKey{ID: "one", Key: "k", PublicKey: "ssh-rsa " + strings.Repeat("A", 15<<10)}
	if err := s.AddSSHKey(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	k.ID = "two"
	wantError(t, s.AddSSHKey(t.Context(), k), errdef.Exists, "ssh_key_exists")
}

// TestPasswordIsNotShown: no error has the password of the store's URL.
func TestPasswordIsNotShown(t *testing.T) {
	for _, password := range []string{"secret", "12#secret", "?secret", "sec%2Fret", "secret@x"} {
		_, err := store.Connect(t.Context(), "postgres://u:"+password+"@127.0.0.1:1/db?connect_timeout=1")
		if err == nil || strings.Contains(strings.ReplaceAll(err.Error(), "%2F", ""), "secret") {
			t.Errorf("with the password %s: %v", password, err)
		}
	}
}
