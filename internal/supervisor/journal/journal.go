// Package journal keeps what the agents of sandboxes log, in one bounded file for
// each sandbox. The guest is hostile: what is kept is bounded and fit to be shown.
package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/runtime"
)

// Level says how bad it is what a line tells of.
type Level string

// The levels.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Line is a line of a sandbox's log.
type Line struct {
	At      time.Time         `json:"at"`
	Level   Level             `json:"level"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
	// Event is the place in the event log of a line that tells of an entry of it; 0 in
	// lines of the agent, whatever their fields say.
	Event int64 `json:"-"`
}

const (
	// maxFile bounds the file with what the agent of a sandbox has told. Of a
	// longer one the last half is kept.
	maxFile   = 256 << 10
	maxFields = 8
	maxField  = 64 // bytes of a name, and of a value
)

// Dir is the directory with the journals of all sandboxes; empty for none, which
// keeps nothing.
type Dir string

func (d Dir) file(id string) string { return filepath.Join(string(d), id) }

// Journal is what is known of the log that one agent keeps. The file outlives
// the server; it is not synced, so a power cut may take its last lines.
type Journal struct {
	asked atomic.Int64 // when the agent was asked last, in microseconds

	mu   sync.Mutex // held while the agent is asked
	inst runtime.Instance
	seq  int64     // of the last line that is here, in the life of inst
	last time.Time // of that line
	gone bool      // the sandbox has ended
}

const (
	// every is how long what an agent tells may stay with it alone, and within how long it may
	// take to tell.
	every, within = time.Minute, 2 * time.Second
)

// Due reports whether there may be lines that have been with the agent alone for long, of a
// sandbox that was last used at a time.
func (j *Journal) Due(used, now time.Time) bool {
	asked := time.UnixMicro(j.asked.Load())
	return used.After(asked) && now.Sub(asked) > every
}

// Fetch asks the agent of a runtime, if there is one, for its lines after one of them, and keeps
// what is new of them. There may be nils among them.
func (j *Journal) Fetch(ctx context.Context, d Dir, id string, inst runtime.Instance, ask func(ctx context.Context, after int64) ([]*agentapi.LogLine, error)) error {
	if d == "" || inst == nil {
		return nil
	}
	j.asked.Store(time.Now().UnixMicro())
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.inst != inst {
		j.inst, j.seq = inst, 0
	}
	lines, err := ask(ctx, j.seq)
	if err != nil {
		return err
	}
	return j.keep(d, id, lines)
}

// keep stores the lines that are new. The memory of an agent goes back to
// that of its last pause when it wakes, so that it may tell again what it has
// told: with a new runtime the times decide.
func (j *Journal) keep(d Dir, id string, lines []*agentapi.LogLine) error {
	if j.gone {
		return nil
	}
	if j.last.IsZero() {
		kept, err := d.Read(id)
		if err != nil {
			return err
		}
		if len(kept) > 0 {
			j.last = kept[len(kept)-1].At
		}
	}
	fresh := j.seq == 0
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	t, last, seq := time.Now().UTC().Truncate(time.Microsecond), j.last, j.seq
	for _, l := range lines {
		if l == nil || l.Seq <= seq {
			continue
		}
		seq = l.Seq
		if fresh && !l.At.After(j.last) {
			continue
		}
		kept := fit(*l)
		if kept.At.After(t) {
			kept.At = t // the guest is hostile: nothing happened in the future
		}
		if kept.At.Before(last) {
			kept.At = last
		}
		last = kept.At
		if err := enc.Encode(kept); err != nil {
			return err
		}
	}
	if err := appendBounded(d.file(id), out.Bytes(), maxFile); err != nil {
		return err
	}
	j.last, j.seq = last, seq
	return nil
}

// fit returns what an agent said, fit to be kept and shown.
func fit(l agentapi.LogLine) Line {
	kept := Line{At: l.At.UTC(), Level: Info, Message: human.Line(l.Message, agentapi.MaxLogMessage)}
	if level := Level(l.Level); slices.Contains([]Level{Debug, Warn, Error}, level) {
		kept.Level = level
	}
	for name, value := range l.Fields {
		if len(kept.Fields) == maxFields {
			break
		}
		if kept.Fields == nil {
			kept.Fields = map[string]string{}
		}
		kept.Fields[human.Line(name, maxField)] = human.Line(value, maxField)
	}
	return kept
}

// appendBounded appends lines to a file. One that gets too long loses its first
// half.
func appendBounded(path string, lines []byte, most int) error {
	if len(lines) == 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	info, serr := f.Stat()
	if err := errors.Join(err, serr, f.Close()); err != nil || info.Size() <= int64(most) {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data = data[len(data)-most/2:]
	_, data, _ = bytes.Cut(data, []byte("\n"))
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Size returns how many bytes are kept of a sandbox.
func (d Dir) Size(id string) int64 {
	if d == "" {
		return 0
	}
	info, err := os.Lstat(d.file(id))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Read returns what is stored of a sandbox's log, oldest first. A line that a
// power cut has torn is left out.
func (d Dir) Read(id string) ([]Line, error) {
	if d == "" {
		return nil, nil
	}
	data, err := os.ReadFile(d.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read log of sandbox %s: %w", id, err)
	}
	var lines []Line
	for line := range bytes.Lines(data) {
		var l Line
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines, nil
}

// Remove removes the journal of a sandbox that has ended.
func (j *Journal) Remove(d Dir, id string) error {
	if d == "" {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = true
	for _, path := range []string{d.file(id), d.file(id) + ".new"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
