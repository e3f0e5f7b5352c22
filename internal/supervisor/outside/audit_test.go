package outside

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/egress/inject"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// TestAudit logs the first use before it happens, and how many followed, so that
// no program writes more than some entries in a minute.
func TestAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of the two; the rest of the test runs when nobody else does
		var entries []string
		var broken error
		a := newAudit(func(e lifecycle.Entry) error {
			mu.Lock()
			defer mu.Unlock()
			if broken == nil {
				entries = append(entries, string(e.Type)+" "+e.Detail)
			}
			return broken
		}, slog.New(slog.DiscardHandler))
		use := inject.Use{Secrets: []string{"a", "b"}, Host: "x.test", Method: "GET"}
		want := func(list ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(entries, list) {
				t.Errorf("the log has %q, want %q", entries, list)
			}
			entries = nil
		}

		broken = errors.New("the disk is full")
		if err := a.Used(use); !errors.Is(err, broken) {
			t.Errorf("what cannot be logged: %v", err)
		}
		broken = nil
		for range 5 {
			if err := a.Used(use); err != nil {
				t.Fatal(err)
			}
		}
		a.Refused("x.test", egress.ReasonPlain)
		want("secret.used a for GET x.test", "secret.used b for GET x.test", "secret.refused not TLS for x.test")
		time.Sleep(window)
		synctest.Wait()
		mu.Lock()
		slices.Sort(entries)
		mu.Unlock()
		want("secret.used a for x.test, 4 more times in 1m0s", "secret.used b for x.test, 4 more times in 1m0s")
		time.Sleep(window)
		want()

		var err error
		for n := range 1000 {
			err = errors.Join(err, a.Used(inject.Use{Secrets: []string{"a"}, Host: fmt.Sprint(n, ".test"), Method: "GET"}))
		}
		if n := len(entries); n != maxGathered || !errors.Is(err, errCrowded) {
			t.Errorf("1000 hosts at once made %d entries, %v", n, errors.Is(err, errCrowded))
		}
		time.Sleep(window)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.gathered) != 0 {
			t.Errorf("%d kinds are gathered for ever", len(a.gathered))
		}
	})
}

// TestAuditOfABurst: requests to many hosts at once all saw room for one more entry,
// and each made a commit.
func TestAuditOfABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		written, broken := 0, errors.New("the disk is full")
		slow := make(chan error)
		a := newAudit(func(lifecycle.Entry) error {
			mu.Lock()
			written++
			mu.Unlock()
			return <-slow
		}, slog.New(slog.DiscardHandler))
		const hosts, each = 500, 3
		outcomes := make(chan error, hosts*each)
		for n := range hosts * each {
			go func() {
				outcomes <- a.Used(inject.Use{Secrets: []string{"a"}, Host: fmt.Sprint(n%hosts, ".test"), Method: "GET"})
			}()
		}
		synctest.Wait()
		if written != maxGathered {
			t.Errorf("%d uses at once began %d entries, want %d", hosts*each, written, maxGathered)
		}
		if n := len(outcomes); n != (hosts-maxGathered)*each {
			t.Errorf("%d uses were answered before their entries were written, want those that are refused", n)
		}
		for range len(outcomes) {
			if err := <-outcomes; !errors.Is(err, errCrowded) {
				t.Errorf("a use without an entry: %v", err)
			}
		}
		slow <- broken
		close(slow)
		synctest.Wait()
		failed := 0
		for range maxGathered * each {
			if err := <-outcomes; errors.Is(err, broken) {
				failed++
			} else if err != nil {
				t.Error(err)
			}
		}
		if failed != each {
			t.Errorf("%d uses failed with their entry, want %d", failed, each)
		}
		if err := a.Used(inject.Use{Secrets: []string{"a"}, Host: "new.test", Method: "GET"}); err != nil {
			t.Errorf("in the place of the entry that failed: %v", err)
		}
		time.Sleep(2 * window)
	})
}
