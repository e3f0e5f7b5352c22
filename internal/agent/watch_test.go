package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	fspb "github.com/drowse-dev/drowse/client/agentpb/filesystem"
	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// watching is an armed stream of events.
type watching struct {
	t      *testing.T
	stream *connect.ServerStreamForClient[fspb.WatchDirResponse]
}

func (s *server) watch(req *fspb.WatchDirRequest) *watching {
	s.t.Helper()
	stream, err := s.files.WatchDir(s.t.Context(), basic("user", req))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stream.Close() })
	if !stream.Receive() || stream.Msg().GetStart() == nil {
		s.t.Fatalf("no start event: %v, %v", stream.Msg(), stream.Err())
	}
	return &watching{s.t, stream}
}

// next returns the next event.
func (w *watching) next() *fspb.FilesystemEvent {
	w.t.Helper()
	for w.stream.Receive() {
		if e := w.stream.Msg().GetFilesystem(); e != nil {
			return e
		}
	}
	w.t.Fatalf("the stream ended: %v", w.stream.Err())
	return nil
}

// until reads events up to one.
func (w *watching) until(last string) []string {
	w.t.Helper()
	var all []string
	for {
		all = append(all, eventText(w.next()))
		if all[len(all)-1] == last {
			return all
		}
	}
}

// eventText is an event as it is written in tests: "CREATE a/b".
func eventText(e *fspb.FilesystemEvent) string {
	return strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_") + " " + e.GetName()
}

// must panics, which is enough for what does not fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func touch(path string) { must(os.WriteFile(path, nil, 0o644)) }

func put(path, content string) { must(os.WriteFile(path, []byte(content), 0o644)) }

func TestWatchTellsOfChanges(t *testing.T) {
	s := newServer(t)
	tests := []struct {
		name      string
		recursive bool
		before    func(dir string)
		change    func(dir string)
		want      []string // in this order; the last one ends the test
	}{
		{"create", false, nil, func(d string) { touch(d + "/a") }, []string{"CREATE a"}},
		{"write", false, nil, func(d string) { put(d+"/a", "x") }, []string{"CREATE a", "WRITE a"}},
		{"overwrite", false, func(d string) { put(d+"/a", "x") }, func(d string) { put(d+"/a", "y") }, []string{"WRITE a"}},
		{"chmod", false, func(d string) { touch(d + "/a") }, func(d string) { must(os.Chmod(d+"/a", 0o600)) }, []string{"CHMOD a"}},
		{"remove", false, func(d string) { touch(d + "/a") }, func(d string) { must(os.Remove(d + "/a")) }, []string{"REMOVE a"}},
		{"rename", false, func(d string) { touch(d + "/a") }, func(d string) { must(os.Rename(d+"/a", d+"/b")) }, []string{"RENAME a", "CREATE b"}},
		{"moved away", false, func(d string) { touch(d + "/a") }, func(d string) { must(os.Rename(d+"/a", d+"-a")) }, []string{"RENAME a"}},
		{"moved in", false, func(d string) { touch(d + "-b") }, func(d string) { must(os.Rename(d+"-b", d+"/b")) }, []string{"CREATE b"}},
		{"link", false, nil, func(d string) { must(os.Symlink("nowhere", d+"/l")) }, []string{"CREATE l"}},
		{"odd names", false, nil, func(d string) { touch(d + "/a\nb"); touch(d + "/\xff") }, []string{"CREATE a\nb", "CREATE \uFFFD"}},
		{"not below", false, func(d string) { must(os.Mkdir(d+"/s", 0o755)) }, func(d string) { touch(d + "/s/deep"); touch(d + "/a") }, []string{"CREATE a"}},
		{"below", true, func(d string) { must(os.MkdirAll(d+"/s/t", 0o755)) }, func(d string) { put(d+"/s/t/deep", "x") }, []string{"CREATE s/t/deep", "WRITE s/t/deep"}},
		{"the directory itself", false, nil, func(d string) { must(os.Chmod(d, 0o700)) }, []string{"CHMOD ."}},
		{"a new tree", true, nil, func(d string) {
			must(os.MkdirAll(d+"/n/m", 0o755))
			put(d+"/n/m/f", "x")
		}, []string{"CREATE n", "CREATE n/m", "CREATE n/m/f", "WRITE n/m/f"}},
		{"a tree moved in", true, func(d string) {
			must(os.MkdirAll(d+"-n/m", 0o755))
			put(d+"-n/m/f", "x")
		}, func(d string) { must(os.Rename(d+"-n", d+"/n")) }, []string{"CREATE n", "CREATE n/m", "CREATE n/m/f", "WRITE n/m/f"}},
		{"a tree moved within", true, func(d string) { must(os.MkdirAll(d+"/n/m", 0o755)) }, func(d string) {
			must(os.Rename(d+"/n", d+"/o"))
			touch(d + "/o/m/f")
		}, []string{"RENAME n", "CREATE o", "CREATE o/m/f"}},
		{"a tree moved away", true, func(d string) { must(os.MkdirAll(d+"/n/m", 0o755)) }, func(d string) {
			must(os.Rename(d+"/n", d+"-o"))
			touch(d + "-o/m/f")
			touch(d + "/a")
		}, []string{"RENAME n", "CREATE a"}},
		{"a tree removed and made again", true, func(d string) { must(os.MkdirAll(d+"/n/m", 0o755)) }, func(d string) {
			must(os.RemoveAll(d + "/n"))
			must(os.MkdirAll(d+"/n/m", 0o755))
			touch(d + "/n/m/f")
		}, []string{"REMOVE n/m", "REMOVE n", "CREATE n", "CREATE n/m", "CREATE n/m/f"}},
		{"behind a link", true, func(d string) { must(os.Mkdir(d+"-t", 0o755)); must(os.Symlink(d+"-t", d+"/l")) },
			func(d string) { touch(d + "-t/f"); touch(d + "/a") }, []string{"CREATE a"}},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := fmt.Sprint("w", i)
			dir := filepath.Join(s.home, name)
			mkdir(t, dir, userUID)
			if tt.before != nil {
				tt.before(dir)
			}
			w := s.watch(&fspb.WatchDirRequest{Path: name, Recursive: tt.recursive})
			tt.change(dir)
			got := w.until(tt.want[len(tt.want)-1])
			for _, want := range tt.want {
				at := slices.Index(got, want)
				if at < 0 {
					t.Fatalf("no %q, or not there, in %q", want, got)
				}
				if strings.HasPrefix(want, "CREATE") && slices.Contains(got[at+1:], want) {
					t.Errorf("%q twice in %q", want, got)
				}
			}
			for _, e := range got {
				if !slices.Contains(tt.want, e) && !strings.HasPrefix(e, "WRITE") && !strings.HasPrefix(e, "CHMOD") {
					t.Errorf("%q was told", e)
				}
			}
		})
	}
}

// TestWatchLosesNothing makes trees as quickly as it can. Each file and
// directory in them is told of, once.
func TestWatchLosesNothing(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/top", userUID)
	w := s.watch(&fspb.WatchDirRequest{Path: "top", Recursive: true})
	const trees = 300
	var want []string
	for i := range trees {
		for _, name := range []string{"%d", "%d/a", "%d/a/b", "%d/a/b/f", "%d/a/g", "%d/h"} {
			want = append(want, "CREATE "+fmt.Sprintf(name, i))
		}
	}
	go func() {
		for i := range trees {
			dir := fmt.Sprintf("%s/top/%d", s.home, i)
			must(os.MkdirAll(dir+"/a/b", 0o755))
			touch(dir + "/a/b/f")
			touch(dir + "/a/g")
			touch(dir + "/h")
		}
		touch(s.home + "/top/last")
	}()
	got := slices.DeleteFunc(w.until("CREATE last"), func(e string) bool { return !strings.HasPrefix(e, "CREATE") })
	want = append(want, "CREATE last")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d creations are told of, want %d", len(got), len(want))
	}
}

// TestWatchLongStream reads more events than are ever kept for a client.
func TestWatchLongStream(t *testing.T) {
	s := newServer(t)
	const files = 20_000
	mkdir(t, s.home+"/many", userUID)
	w := s.watch(&fspb.WatchDirRequest{Path: "many"})
	fillDir(t, s.home+"/many", files)
	for i := range files {
		want := fmt.Sprintf("CREATE %06d\n\uFFFD", i)
		if got := eventText(w.next()); got != want {
			t.Fatalf("event %d is %q, want %q", i, got, want)
		}
	}
}

func TestWatchEntries(t *testing.T) {
	s := newServer(t)
	mkdir(t, s.home+"/e", userUID)
	w := s.watch(&fspb.WatchDirRequest{Path: s.home + "/e", IncludeEntry: true})
	put(s.home+"/e/a", "content")
	e := w.next()
	if e.Entry == nil || e.Entry.Path != s.home+"/e/a" || e.Entry.Owner != "root" {
		t.Errorf("entry %v", e.Entry)
	}
	must(os.Remove(s.home + "/e/a"))
	for e.Type != fspb.EventType_EVENT_TYPE_REMOVE {
		e = w.next()
	}
	if e.Entry != nil {
		t.Errorf("what is gone has the entry %v", e.Entry)
	}
}

// What is written beside its place is told of when it is there.
func TestWatchOfUploads(t *testing.T) {
	for _, recursive := range []bool{false, true} {
		s := newServer(t)
		dir := s.home + "/w"
		mkdir(t, dir, userUID)
		w := s.watch(&fspb.WatchDirRequest{Path: dir, Recursive: recursive})
		for _, content := range []string{"1", "2"} {
			if res, text := s.upload(query("path", dir+"/a"), strings.NewReader(content), octets); res.StatusCode != 200 {
				t.Fatalf("got %d %s", res.StatusCode, text)
			}
		}
		other := s.dir + "/other"
		tmpfs(t, other, "1m")
		mkdir(t, other+"/tree", userUID)
		put(other+"/tree/f", "x")
		if _, err := s.files.Move(testContext(t), basic("user", &fspb.MoveRequest{Source: other + "/tree", Destination: dir + "/tree"})); err != nil {
			t.Fatal(err)
		}
		touch(dir + "/last")
		want := []string{"CREATE a", "WRITE a", "WRITE a", "CREATE tree", "CREATE last"}
		if recursive {
			want = slices.Insert(want, 4, "CREATE tree/f", "WRITE tree/f")
		}
		if got := w.until("CREATE last"); !slices.Equal(got, want) {
			t.Errorf("recursive %t: %q, want %q", recursive, got, want)
		}
	}
}

func TestWatchRefused(t *testing.T) {
	s := newServer(t)
	writeFile(t, s.home+"/file", "")
	for _, tt := range []struct {
		name, user, path string
		want             connect.Code
	}{
		{"missing", "user", "none", connect.CodeNotFound},
		{"file", "user", "file", connect.CodeInvalidArgument},
		{"below a file", "user", "file/x", connect.CodeNotFound},
		{"NUL", "user", "a\x00b", connect.CodeInvalidArgument},
		{"unknown user", "mallory", "", connect.CodeUnauthenticated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := s.files.WatchDir(testContext(t), basic(tt.user, &fspb.WatchDirRequest{Path: tt.path}))
			if err == nil {
				defer stream.Close()
				if stream.Receive() {
					t.Errorf("got %v", stream.Msg())
				}
				err = stream.Err()
			}
			wantCode(t, err, tt.want)
			_, err = s.files.CreateWatcher(testContext(t), basic(tt.user, &fspb.CreateWatcherRequest{Path: tt.path}))
			wantCode(t, err, tt.want)
		})
	}
}

func TestWatchKeepalive(t *testing.T) {
	s := newServer(t)
	req := basic("user", &fspb.WatchDirRequest{Path: s.home})
	req.Header().Set(agentapi.HeaderKeepalive, "1")
	stream, err := s.files.WatchDir(testContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() && stream.Msg().GetKeepalive() == nil {
	}
	if err := stream.Err(); err != nil {
		t.Error(err)
	}
}

func (s *server) watcher(path string, recursive bool) string {
	s.t.Helper()
	res, err := s.files.CreateWatcher(testContext(s.t), basic("user", &fspb.CreateWatcherRequest{Path: path, Recursive: recursive}))
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Msg.GetWatcherId()
}

func (s *server) poll(id string) ([]string, error) {
	res, err := s.files.GetWatcherEvents(s.t.Context(), connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: id}))
	if err != nil {
		return nil, err
	}
	var events []string
	for _, e := range res.Msg.GetEvents() {
		events = append(events, eventText(e))
	}
	return events, nil
}

func (s *server) removeWatcher(id string) error {
	_, err := s.files.RemoveWatcher(s.t.Context(), connect.NewRequest(&fspb.RemoveWatcherRequest{WatcherId: id}))
	return err
}

func TestWatcher(t *testing.T) {
	s := newServer(t)
	id, other := s.watcher("", true), s.watcher("", true)
	put(s.home+"/a", "x")
	must(os.Mkdir(s.home+"/d", 0o755))
	touch(s.home + "/d/f")
	all := func(id string) (got []string) {
		t.Helper()
		for !slices.Contains(got, "CREATE d/f") {
			events, err := s.poll(id)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, events...)
		}
		return slices.Compact(got)
	}
	want := []string{"CREATE a", "WRITE a", "CREATE d", "CREATE d/f"}
	if got := all(id); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	must(s.removeWatcher(id))
	_, err := s.poll(id)
	wantCode(t, err, connect.CodeNotFound)
	wantCode(t, s.removeWatcher(id), connect.CodeNotFound)
	if got := all(other); !slices.Equal(got, want) { // which sees it in its own time
		t.Errorf("the other one has %q, want %q", got, want)
	}
}

// A watcher that was not asked for too long says so, once, after what it has.
func TestWatcherOverflow(t *testing.T) {
	w := &watcher{watch: &watch{done: make(chan struct{})}, events: newSubscriber[*fspb.FilesystemEvent]()}
	const more = queueLimit/eventCost + 1
	for range more {
		w.keep(&fspb.FilesystemEvent{Name: "x"})
	}
	if events, err := w.drain(); err != nil || len(events) == 0 || len(events) >= more {
		t.Fatalf("%d events, %v", len(events), err)
	}
	w.keep(&fspb.FilesystemEvent{Name: "after a gap that is not known yet"})
	if _, err := w.drain(); err != errEventsLost {
		t.Errorf("got %v, want %v", err, errEventsLost)
	}
	w.keep(&fspb.FilesystemEvent{Name: "after it"})
	if events, err := w.drain(); err != nil || len(events) != 1 || events[0].Name != "after it" {
		t.Errorf("got %v, %v", events, err)
	}
}

func TestWatcherIsRemovedWhenNobodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newWatches()
		all.open.Add(1)
		ended := make(chan struct{})
		close(ended)
		all.add("id", &watcher{watch: &watch{done: ended}})
		for range 3 {
			time.Sleep(watcherIdle - time.Minute)
			if _, err := all.find("id"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(watcherIdle + time.Minute)
		if _, err := all.find("id"); err == nil || all.open.Load() != 0 {
			t.Errorf("it is still there: %v, %d open", err, all.open.Load())
		}
	})
}

// Watches are limited, and give back what they took however they end.
func TestWatchesAreLimited(t *testing.T) {
	s := newServer(t)
	must(os.MkdirAll(s.home+"/a/b/c", 0o755))
	for round := range 2 {
		var ids []string
		for range maxWatches - 1 {
			ids = append(ids, s.watcher("", true))
		}
		ctx, leave := context.WithCancel(t.Context())
		stream, err := s.files.WatchDir(ctx, basic("user", &fspb.WatchDirRequest{Path: "", Recursive: true}))
		if err != nil || !stream.Receive() {
			t.Fatalf("round %d: %v", round, err)
		}
		_, err = s.files.CreateWatcher(testContext(t), basic("user", &fspb.CreateWatcherRequest{}))
		wantCode(t, err, connect.CodeResourceExhausted)
		if dirs := s.agent.watches.dirs.Load(); dirs != 4*maxWatches {
			t.Errorf("%d directories are watched, want %d", dirs, 4*maxWatches)
		}
		leave()
		stream.Close()
		for _, id := range ids {
			must(s.removeWatcher(id))
		}
		for s.agent.watches.open.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
		if dirs := s.agent.watches.dirs.Load(); dirs != 0 {
			t.Errorf("%d directories are watched by nobody", dirs)
		}
	}
}

func TestWatchedDirectoriesAreLimited(t *testing.T) {
	s := newServer(t)
	must(os.MkdirAll(s.home+"/a/b/c", 0o755))
	s.agent.watches.dirs.Store(maxWatchedDirs - 4)
	id := s.watcher("", true)
	_, err := s.files.CreateWatcher(testContext(t), basic("user", &fspb.CreateWatcherRequest{}))
	wantCode(t, err, connect.CodeResourceExhausted)
	must(os.Mkdir(s.home+"/too-many", 0o755))
	for err = nil; err == nil; _, err = s.poll(id) {
	}
	wantCode(t, err, connect.CodeResourceExhausted)
	must(s.removeWatcher(id))
	if dirs := s.agent.watches.dirs.Load(); dirs != maxWatchedDirs-4 {
		t.Errorf("%d directories are watched, want as many as before, %d", dirs, maxWatchedDirs-4)
	}
}
