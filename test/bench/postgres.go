package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/store/pgtest"
)

// startPostgres starts PostgreSQL with its data on the disk that the others work on.
func (b *bench) startPostgres() (*pgtest.Server, error) {
	dir := filepath.Join(b.o.work, "p")
	if err := errors.Join(os.Chmod(b.o.work, 0o711), os.MkdirAll(dir, 0o755)); err != nil { // it is another user
		return nil, err
	}
	before, was := os.LookupEnv("TMPDIR")
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return nil, err
	}
	pg, err := pgtest.Open()
	if was {
		return pg, errors.Join(err, os.Setenv("TMPDIR", before))
	}
	return pg, errors.Join(err, os.Unsetenv("TMPDIR"))
}

// sharer is a server of several that share a database. It can be stopped and started.
type sharer struct {
	*server
	b    *bench
	n    int
	args []string
}

// shareDatabase starts servers with one database.
func (b *bench) shareDatabase(ctx context.Context, url string, n int, args ...string) (all []*sharer, err error) {
	for i := range n {
		s := &sharer{b: b, n: i, args: append([]string{"--store", url, "--peer-listen", fmt.Sprintf("127.0.0.1:%d", 3500+i)}, args...)}
		if err := s.start(ctx); err != nil {
			return all, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (s *sharer) start(ctx context.Context) (err error) {
	s.server, err = startServerAt(ctx, s.addr(), s.b.o.drowse, s.dir(), s.b.serverLog()+fmt.Sprint(s.n), s.args...)
	return err
}

func (s *sharer) addr() string { return fmt.Sprintf("127.0.0.1:%d", 3001+s.n) }

func (s *sharer) dir() string { return filepath.Join(s.b.o.work, fmt.Sprintf("s%d", s.n)) }

// end stops servers for good.
func end(all []*sharer) (err error) {
	for _, s := range all {
		if s.server != nil {
			err = errors.Join(err, s.stop())
		}
		err = errors.Join(err, os.RemoveAll(s.dir()))
	}
	return err
}

// postgres measures a server with its records in PostgreSQL beside the one with SQLite, and
// what it costs that a sandbox is on another server than the one that is asked.
func (b *bench) postgres(ctx context.Context) (err error) {
	pg, err := b.startPostgres()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	_, alone, err := pg.Create()
	if err != nil {
		return err
	}
	one := &sharer{b: b, args: []string{"--store", alone}}
	if err := one.start(ctx); err != nil {
		return err
	}
	err = b.transitions(ctx, one.server)
	if err := errors.Join(err, end([]*sharer{one})); err != nil {
		return err
	}
	_, shared, err := pg.Create()
	if err != nil {
		return err
	}
	copies := filepath.Join(b.o.work, "blobs")
	if err := os.Mkdir(copies, 0o700); err != nil {
		return err
	}
	all, err := b.shareDatabase(ctx, shared, 2, "--blobs", copies, "--durability", "replicated")
	defer func() { err = errors.Join(err, end(all)) }()
	if err != nil {
		return err
	}
	for _, holds := range b.sizes(size{}, size{memory: 64}, size{memory: 512}) {
		if err := b.elsewhere(ctx, all, holds); err != nil {
			return err
		}
	}
	return nil
}

// transitions compares each transition of a sandbox on two servers.
func (b *bench) transitions(ctx context.Context, on *server) error {
	names := []string{"create", "pause", "resume", "kill"}
	list := make([]comparison, len(names))
	for i := -warmup; i < b.runs(50); i++ {
		ours, err := b.life(ctx, on)
		if err != nil {
			return err
		}
		raw, err := b.life(ctx, b.server)
		if err != nil {
			return err
		}
		for j := range names {
			if i >= 0 {
				list[j].add(turn{ours[j], raw[j]})
			}
		}
	}
	for j, name := range names {
		b.report.compared("–", name+", with PostgreSQL", "the same with SQLite", list[j], 0, 0)
	}
	return nil
}

// life makes a sandbox, has it sleep and wake, and ends it.
func (b *bench) life(ctx context.Context, s *server) (list []sample, err error) {
	var id string
	for _, step := range []func() error{
		func() error {
			box, err := s.client.Create(ctx, client.CreateOptions{Timeout: guestTimeout, OnTimeout: client.Pause})
			if err == nil {
				id = box.ID
			}
			return err
		},
		func() error { return s.client.Pause(ctx, id) },
		func() error { _, err := s.client.Connect(ctx, id, guestTimeout); return err },
		func() error { return s.client.Kill(ctx, id) },
	} {
		one, err := b.timed(ctx, smallOperation, func() (time.Duration, error) {
			start := time.Now()
			err := step()
			return time.Since(start), err
		})
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, awaitGone(ctx, id)
}

// elsewhere compares a guest that is asked through another server, and one whose server has
// gone, with one that is asked through its own.
func (b *bench) elsewhere(ctx context.Context, all []*sharer, holds size) (err error) {
	p, err := newSandboxSleeper(ctx, all[0].server, b.o.guest, b.memory, holds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()
	through := func(s *sharer) (time.Duration, error) {
		box, _, err := s.client.Open(ctx, p.box.ID)
		if err != nil {
			return 0, err
		}
		p.server, p.box = s.server, box
		return p.wake(ctx)
	}
	own, other := all[0], all[1]

	wake := func(s *sharer) (sample, error) {
		if _, err := p.pause(ctx); err != nil {
			return sample{}, err
		}
		return b.timed(ctx, smallOperation, func() (time.Duration, error) { return through(s) })
	}
	var wakes comparison
	for i := -warmup; i < b.runs(30); i++ {
		var t turn
		if t.ours, err = wake(other); err != nil {
			return err
		}
		if t.raw, err = wake(own); err != nil {
			return err
		}
		if i >= 0 {
			wakes.add(t)
		}
	}
	b.report.compared("–", fmt.Sprintf("wake through another server → first byte of an HTTP answer, %s", holds), "through its own server", wakes, 0, 0)
	if holds == (size{}) {
		awake := func(s *sharer) func() (time.Duration, error) {
			return func() (time.Duration, error) { return through(s) }
		}
		requests, err := b.compare(ctx, b.runs(100), awake(other), awake(own))
		if err != nil {
			return err
		}
		b.report.compared("–", "request through another server → first byte of an HTTP answer", "through its own server", requests, 0, 0)
	}

	var takes comparison
	for i := -warmup; i < b.runs(30); i++ {
		var t turn
		if t.raw, err = wake(own); err != nil {
			return err
		}
		if _, err := p.pause(ctx); err != nil {
			return err
		}
		if err := own.stop(); err != nil {
			return err
		}
		own.server = nil
		t.ours, err = b.timed(ctx, smallOperation, func() (time.Duration, error) { return through(other) })
		if err := errors.Join(err, own.start(ctx)); err != nil {
			return err
		}
		own, other = other, own
		if i >= 0 {
			takes.add(t)
		}
	}
	b.report.compared("–", fmt.Sprintf("wake on another server, where its own was stopped → first byte of an HTTP answer, %s", holds), "wake on its own server", takes, 0, 0)
	return nil
}

// lists compares lists of many sandboxes, whose records are in PostgreSQL, with that of a
// server with SQLite.
func (b *bench) lists(ctx context.Context) (err error) {
	n := deadlinesArmed
	if b.o.few {
		n /= 10
	}
	pg, err := b.startPostgres()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	_, url, err := pg.Create()
	if err != nil {
		return err
	}
	// The first server moves what it finds into the database.
	dirs := []string{filepath.Join(b.o.work, "d"), filepath.Join(b.o.work, "s0")}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := armDeadlines(ctx, dirs[0], n); err != nil {
		return err
	}
	if err := os.CopyFS(dirs[1], os.DirFS(dirs[0])); err != nil {
		return err
	}
	all, err := b.shareDatabase(ctx, url, 2)
	defer func() { err = errors.Join(err, end(all)) }()
	if err != nil {
		return err
	}
	const sqliteAddr = "127.0.0.1:3009"
	sqlite, err := startServerAt(ctx, sqliteAddr, b.o.drowse, dirs[0], b.serverLog()+"9")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlite.stop(), os.RemoveAll(dirs[0])) }()
	const page = 100
	half, err := sqlite.client.Get(ctx, deadlineID(n/2))
	if err != nil {
		return err
	}
	middle := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", half.CreatedAt.UnixMicro(), half.ID))
	list := func(addr, after string) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/v1/sandboxes?limit=%d&after=%s", addr, page, after), nil)
			if err != nil {
				return 0, err
			}
			req.Header.Set("X-API-Key", serverKey)
			start := time.Now()
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			var found struct{ Sandboxes []json.RawMessage }
			if err = json.NewDecoder(resp.Body).Decode(&found); err == nil && len(found.Sandboxes) != page {
				err = fmt.Errorf("listed are %d sandboxes, %s", len(found.Sandboxes), resp.Status)
			}
			return time.Since(start), err
		}
	}
	for _, on := range []struct {
		what string
		s    *sharer
	}{{"their own server", all[0]}, {"another server", all[1]}} {
		for _, at := range []struct{ what, after string }{{"the first page", ""}, {"a page in the middle", middle}} {
			c, err := b.compare(ctx, b.runs(30), list(on.s.addr(), at.after), list(sqliteAddr, at.after))
			if err != nil {
				return err
			}
			b.report.compared("–", fmt.Sprintf("%s of the list of %d sandboxes, with PostgreSQL, by %s", at.what, n, on.what), "the same with SQLite", c, 0, 0)
		}
	}
	return nil
}
