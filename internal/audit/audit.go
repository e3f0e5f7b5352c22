// Package audit keeps the audit log of a server: who called its control plane from
// where, for what, and with which result.
//
// Calls that do no more than look are not logged, unless they are refused. An entry is
// written when the answer begins, and is a line of JSON in a file that is only appended
// to. What is logged survives the server's end, however it ends; a power cut can cost
// the last second. Bodies, queries and headers are never logged.
//
// The log is bounded: the oldest file goes when there are too many. So that no tenant
// can push out what others did by calling often, each key has a share of entries, and
// callers without a good key have one together. Calls beyond it are counted, and the
// next entry of the same key has the count.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/drowse-dev/drowse/internal/durable"
)

// Bounds of the log.
const (
	maxFile  = 4 << 20
	maxFiles = 16
	// maxText bounds a path and a method in an entry, in bytes.
	maxText = 512
	// A key may be logged as often: so many at once, and so many per second.
	burst, perSecond = 1000, 10
	// The same for all together that have no good key.
	strangersBurst, strangersPerSecond = 100, 1
	// syncEvery is what a power cut can cost.
	syncEvery = time.Second
)

// Actor is the API key of a call. The zero Actor has none.
type Actor struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Role string `json:"role"`
}

// Entry is a call.
type Entry struct {
	Seq     int64     `json:"seq"` // counts entries, from 1
	At      time.Time `json:"at"`
	Key     *Actor    `json:"key,omitempty"` // nil if the call had no good key
	Address string    `json:"address"`       // of the client, without its port
	Method  string    `json:"method"`
	Path    string    `json:"path"`
	Sandbox string    `json:"sandbox,omitempty"` // the id of the one that the call was about, or made
	Status  int       `json:"status,omitempty"`  // of the answer; 0 if the client had none
	// Unlogged is how many calls of the same key since its last entry are in no
	// entry of their own, because they were too many.
	Unlogged int `json:"unlogged,omitempty"`
}

// Log is an open audit log. It is safe for concurrent use.
type Log struct {
	dir   string
	log   *slog.Logger
	mu    sync.Mutex
	files []int64 // the first seq of each, oldest first; guarded by mu, as all below
	file  *os.File
	size  int64
	next  int64
	dirty bool // what was written is not synced
	// syncs are under way: calls must not wait for the disk.
	syncs sync.WaitGroup
	// broken is that the last write failed, which the server's log is told once.
	broken bool
	shares map[string]*share // by the id of a key
}

// share is how often a key may be logged.
type share struct {
	*rate.Limiter
	unlogged int
}

// Open opens the log in a directory, and makes it if it is not there. An entry that
// a power cut left incomplete is removed.
func Open(dir string, log *slog.Logger) (*Log, error) {
	l := &Log{dir: dir, log: log, next: 1, shares: map[string]*share{}}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	return l, nil
}

func (l *Log) open() error {
	if err := os.Mkdir(l.dir, 0o700); err == nil {
		if err := durable.Sync(filepath.Dir(l.dir)); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	names, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if first, ok := parseName(n.Name()); ok {
			l.files = append(l.files, first)
		}
	}
	slices.Sort(l.files)
	if len(l.files) == 0 {
		return l.begin()
	}
	return l.goOn()
}

// goOn opens the newest file, behind its last whole entry.
func (l *Log) goOn() error {
	first := l.files[len(l.files)-1]
	data, err := os.ReadFile(l.path(first))
	if err != nil {
		return err
	}
	l.next = first
	whole := bytes.LastIndexByte(data, '\n') + 1
	for line := range bytes.Lines(data[:whole]) {
		var e Entry
		if json.Unmarshal(line, &e) == nil { // else a reader will say so
			l.next = e.Seq + 1
		}
	}
	f, err := os.OpenFile(l.path(first), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if err := f.Truncate(int64(whole)); err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, int64(whole)
	return nil
}

// begin begins a new file, and removes the oldest if there are too many.
func (l *Log) begin() error {
	f, err := os.OpenFile(l.path(l.next), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := durable.Sync(l.dir); err != nil {
		f.Close()
		return err
	}
	if old := l.file; old != nil {
		l.syncs.Go(func() { l.told(errors.Join(old.Sync(), old.Close())) })
	}
	l.file, l.size = f, 0
	l.files = append(l.files, l.next)
	for len(l.files) > maxFiles {
		err = errors.Join(err, os.Remove(l.path(l.files[0])))
		l.files = l.files[1:]
	}
	return err
}

// path returns the path of the file whose first entry has that number.
func (l *Log) path(first int64) string {
	return filepath.Join(l.dir, fmt.Sprintf("%016d.jsonl", first))
}

func parseName(name string) (first int64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".jsonl")
	first, err := strconv.ParseInt(digits, 10, 64)
	return first, ok && err == nil && len(digits) == 16
}

// add writes an entry, or counts it if there were too many of its key. An entry
// that cannot be written is lost: the server's log says so, once, and calls go on.
func (l *Log) add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shareOf(e.Key)
	if !s.AllowN(e.At, 1) {
		s.unlogged++
		return
	}
	e.Unlogged = s.unlogged
	if err := l.write(e); err != nil {
		if !l.broken {
			l.log.Error("calls are not in the audit log until it can be written again", "err", err)
		}
		l.broken = true
		s.unlogged++
		return
	}
	l.broken, s.unlogged = false, 0
}

// shareOf returns the share of a key. Keys that were revoked keep theirs: they are
// no more than an administrator made since the start.
func (l *Log) shareOf(key *Actor) *share {
	id, most, often := "", strangersBurst, rate.Limit(strangersPerSecond)
	if key != nil {
		id, most, often = key.ID, burst, perSecond
	}
	s := l.shares[id]
	if s == nil {
		s = &share{Limiter: rate.NewLimiter(often, most)}
		l.shares[id] = s
	}
	return s
}

func (l *Log) write(e Entry) error {
	if l.file == nil {
		return os.ErrClosed
	}
	e.Seq = l.next
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if l.size > 0 && l.size+int64(len(line)) > maxFile {
		if err := l.begin(); err != nil {
			return err
		}
	}
	if n, err := l.file.Write(line); err != nil {
		if n > 0 { // the disk is full: no half entry stays
			err = errors.Join(err, l.file.Truncate(l.size))
		}
		return err
	}
	l.size += int64(len(line))
	l.next++
	if !l.dirty {
		l.dirty = true
		time.AfterFunc(syncEvery, l.sync)
	}
	return nil
}

// sync makes durable what was written.
func (l *Log) sync() {
	l.mu.Lock()
	f := l.file
	l.dirty = false
	if f != nil {
		l.syncs.Go(func() { l.told(f.Sync()) })
	}
	l.mu.Unlock()
}

// told logs why the log is not durable. A file that another sync has closed is.
func (l *Log) told(err error) {
	if err != nil && !errors.Is(err, os.ErrClosed) {
		l.log.Error("the audit log could not be made durable", "err", err)
	}
}

// Close makes the log durable, and closes it. What comes later is not logged.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	l.syncs.Wait()
	err := errors.Join(l.file.Sync(), l.file.Close())
	l.file = nil
	return err
}

// Query says which entries to read.
type Query struct {
	First   bool   // the first ones, not the last ones
	After   int64  // only entries with a greater Seq
	Most    int    // how many at most
	Key     string // only of the key of this id
	Sandbox string // only about the sandbox of this id
}

func (q Query) wants(e Entry) bool {
	return e.Seq > q.After && (q.Key == "" || e.Key != nil && e.Key.ID == q.Key) && (q.Sandbox == "" || e.Sandbox == q.Sandbox)
}

// Read returns entries, oldest first.
func (l *Log) Read(q Query) ([]Entry, error) {
	l.mu.Lock()
	files := slices.Clone(l.files)
	l.mu.Unlock()
	found := []Entry{}
	if q.First {
		// The first that can have one is the last that begins no later.
		i, exact := slices.BinarySearch(files, q.After+1)
		if !exact && i > 0 {
			i--
		}
		for _, first := range files[i:] {
			if len(found) >= q.Most {
				break
			}
			some, err := l.read(first, q)
			if err != nil {
				return nil, err
			}
			found = append(found, some...)
		}
		return found[:min(len(found), q.Most)], nil
	}
	for _, first := range slices.Backward(files) {
		if len(found) >= q.Most {
			break
		}
		some, err := l.read(first, q)
		if err != nil {
			return nil, err
		}
		found = append(some, found...)
	}
	return found[max(0, len(found)-q.Most):], nil
}

// read returns what one file has. One that has just been removed has nothing.
func (l *Log) read(first int64, q Query) ([]Entry, error) {
	data, err := os.ReadFile(l.path(first))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var found []Entry
	for line := range bytes.Lines(data) {
		var e Entry
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read the audit log: %s has a line that is no entry: %w", filepath.Base(l.path(first)), err)
		}
		if q.wants(e) {
			found = append(found, e)
		}
	}
	return found, nil
}
