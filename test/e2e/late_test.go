package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
)

// pacer stands before an object storage, and lets through as many reads of large blobs, pieces
// of memory, as a test grants.
type pacer struct {
	mu      sync.Mutex
	changed *sync.Cond
	granted int
	served  int
	free    bool // grants all
}

func newPacer() *pacer {
	p := &pacer{free: true}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// grant lets so many more through, and returns how many have come through.
func (p *pacer) grant(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.granted += n
	p.changed.Broadcast()
	return p.served
}

// set begins to count anew, or lets all through.
func (p *pacer) set(free bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free, p.granted, p.served = free, 0, 0
	p.changed.Broadcast()
}

// pass waits for its turn.
func (p *pacer) pass(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.free && p.granted == 0 && ctx.Err() == nil {
		p.changed.Wait()
	}
	if !p.free && ctx.Err() == nil {
		p.granted--
		p.served++
	}
}

// start returns the URL of what stands before a storage.
func (p *pacer) start(t *testing.T, storage string) string {
	t.Helper()
	to, err := url.Parse(storage)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		// The request is signed for the name by which it came.
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && r.ContentLength > 4<<20 { // a whole piece, encrypted
				p.pass(r.Request.Context())
			}
			return nil
		},
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	t.Cleanup(func() { p.set(true) })
	return s.URL
}

// TestWakeBeforeMemoryIsHere: a sandbox that another server has taken over answers while most of
// its memory is still in object storage. What it sees of its memory is what it was, also when
// the server crashes in the middle, and when it sleeps again.
func TestWakeBeforeMemoryIsHere(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	gateway := blobstest.NewGateway(t)
	p := newPacer()
	bucket := strings.Replace(gateway.URL(), "http://"+gateway.Addr, p.start(t, "http://"+gateway.Addr), 1)
	all := startClusterIn(t, 2, gateway.Env(), "--blobs", bucket, "--durability", "replicated")
	a, b := all[0], all[1]
	g := a.startGuest(ctx, client.CreateOptions{Timeout: time.Hour, OnTimeout: client.Pause, AutoResume: new(true)})
	if exit, out := run(ctx, t, g.sb, "sh", "-c", "head -c 192M /dev/urandom >/dev/shm/noise"); exit.Code != 0 {
		t.Fatalf("fill memory: %+v: %s", exit, out)
	}
	viaB := g.through(ctx, b)
	digest := func(ctx context.Context) (string, error) {
		var out bytes.Buffer
		exit, err := viaB.sb.Run(ctx, client.Command{Args: []string{"sha256sum", "/dev/shm/noise"}, Stdout: &out, Stderr: &out})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("exit %+v: %s", exit, out.String())
		}
		return out.String(), err
	}
	want, err := digest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a.pause(ctx, g.sb.ID)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}

	// paced does something while pieces come one after the other, and returns how many had.
	paced := func(what string, f func() error) (served int) {
		t.Helper()
		p.set(false)
		done := make(chan error, 1)
		go func() { done <- f() }()
		for {
			select {
			case err := <-done:
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				return p.grant(0)
			case <-time.After(100 * time.Millisecond):
				p.grant(2)
			}
		}
	}
	// movedBy moves it, once the other server has said that it has room.
	movedBy := func(ctx context.Context, s *server) (err error) {
		for ctx.Err() == nil {
			if _, err = client.Move(ctx, s.client, g.sb.ID, ""); err == nil || !strings.Contains(err.Error(), "no other server that has room") {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		return err
	}
	late := func(s *server) string {
		paths, _ := filepath.Glob(filepath.Join(s.dir(), "images", "*", "pages.img.late"))
		return strings.Join(paths, " ")
	}
	const pieces = 192 / 4
	if n := paced("taken over", func() (err error) {
		for {
			if _, err = viaB.report(ctx); err == nil || ctx.Err() != nil {
				return err
			}
		}
	}); n >= pieces || late(b) == "" {
		t.Errorf("it answered when %d pieces had come, of at least %d; late is %q", n, pieces, late(b))
	}

	b.crash()
	b.start()
	if late(b) == "" {
		t.Error("all of its memory is here after a crash")
	}
	eventually(t, time.Minute, "what cannot go on without its memory is back at its checkpoint, and the rest is there", func() error {
		p.set(true)
		got, err := digest(ctx)
		if err == nil && got != want {
			t.Fatalf("the digest of its memory is %q; was %q", got, want)
		}
		return err
	})
	viaB.same(g.first, viaB.ask(ctx))
	eventually(t, time.Minute, "its memory image is whole", func() error {
		if path := late(b); path != "" {
			return errors.New(path)
		}
		return nil
	})
	b.pause(ctx, g.sb.ID)
	viaB.same(g.first, viaB.ask(ctx))
	if got, err := digest(ctx); err != nil || got != want {
		t.Errorf("after a pause the digest of its memory is %q, %v; was %q", got, err, want)
	}

	// It moves back while it runs. A snapshot and a pause wait for the memory that is not here.
	a.start()
	viaB.ask(ctx)
	paced("move", func() error {
		return movedBy(ctx, b)
	})
	if late(a) == "" {
		t.Error("it had to wait for all of its memory to move")
	}
	took, slept := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.NewSnapshots(a.client).Create(ctx, g.sb.ID, client.SnapshotOptions{})
		took <- err
		slept <- a.client.Pause(ctx, g.sb.ID)
	}()
	select {
	case err := <-took:
		t.Errorf("a snapshot has memory that is not here: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	p.set(true)
	if err := errors.Join(<-took, <-slept); err != nil {
		t.Errorf("a snapshot and a pause: %v", err)
	}
	if got, err := digest(ctx); err != nil || got != want {
		t.Errorf("moved back the digest of its memory is %q, %v; was %q", got, err, want)
	}
	viaB.same(g.first, viaB.ask(ctx))

	// A server that is stopped reads the rest first, and its sandbox runs on.
	running, err := a.client.Get(ctx, g.sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	paced("move once more", func() error {
		return movedBy(ctx, a)
	})
	p.set(true)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	b.start()
	if got, err := digest(ctx); err != nil || got != want {
		t.Errorf("after a stop the digest of its memory is %q, %v; was %q", got, err, want)
	}
	if is, err := b.client.Get(ctx, g.sb.ID); err != nil || is.Generation != running.Generation+1 || is.LastError != "" {
		t.Errorf("after a stop it is %+v, %v; it was %+v", is, err, running)
	}
}
