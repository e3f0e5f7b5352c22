package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
)

// LogLevel says how bad it is what a line tells of.
type LogLevel string

// The levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// LogLine is a line of a sandbox's log.
type LogLine struct {
	At      time.Time         `json:"at"`
	Level   LogLevel          `json:"level"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
}

const (
	// maxLog bounds the file with what the agent of a sandbox has told. Of a
	// longer one the last half is kept.
	maxLog = 256 << 10
	// logEvery is how long what an agent tells may stay with it alone.
	logEvery = time.Minute
	// maxLogEvents is how many entries of the event log are shown as lines.
	maxLogEvents = 1000
	maxLogFields = 8
	maxLogField  = 64 // bytes of a name, and of a value
)

// journal is what is known of the log that the agent keeps. The file outlives
// the server; it is not synced, so a power cut may take its last lines.
type journal struct {
	mu   sync.Mutex // held while the agent is asked
	inst runtime.Instance
	seq  int64     // of the last line that is here, in the life of inst
	last time.Time // of that line
	gone bool      // the sandbox has ended
}

func (s *Supervisor) logFile(id string) string { return filepath.Join(s.o.LogDir, id) }

// SandboxLog returns the log of a sandbox that has not ended, oldest first: what
// happened in it through the API, and what happened to it. A running one is
// asked for what is new, which is no activity; a paused one is not woken.
func (s *Supervisor) SandboxLog(ctx context.Context, id string) ([]LogLine, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	err = alive(b.sb)
	inst := b.lookableLocked()
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	b.fetchLog(ctx, inst)
	lines, err := s.readLog(id)
	if err != nil {
		return nil, err
	}
	events, err := s.o.Store.EventsBefore(ctx, id, math.MaxInt64, maxLogEvents)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(events) {
		lines = append(lines, lineOf(e))
	}
	slices.SortStableFunc(lines, func(a, b LogLine) int { return a.At.Compare(b.At) })
	return lines, nil
}

// lineOf says in a line what an entry of the event log says.
func lineOf(e store.Event) LogLine {
	l := LogLine{At: e.At, Level: LogInfo, Message: "sandbox " + string(e.Type), Fields: map[string]string{
		"event": strconv.FormatInt(e.Seq, 10), "generation": strconv.FormatInt(e.Generation, 10),
	}}
	switch e.Type {
	case lifecycle.EntryPauseFailed, lifecycle.EntryResumeFailed, lifecycle.EntryRuntimeLost:
		l.Level = LogError
	case lifecycle.EntryStalled, lifecycle.EntryExpiring:
		l.Level = LogWarn
	}
	if e.Cause != "" {
		l.Fields["cause"] = string(e.Cause)
	}
	if e.Detail != "" {
		l.Message += ": " + e.Detail
	}
	return l
}

// fetchLogSometimes is fetchLog if there may be something new that has been with
// the agent alone for long.
func (b *box) fetchLogSometimes(inst runtime.Instance) {
	b.mu.Lock()
	used := b.work.last.After(b.work.logAt) && now().Sub(b.work.logAt) > logEvery && b.lookableLocked() == inst
	b.mu.Unlock()
	if used {
		b.s.work.Go(func() { b.fetchLog(b.s.ctx, inst) })
	}
}

// fetchLastLog is fetchLog for a sandbox that is about to be frozen, unless nobody
// has used it.
func (b *box) fetchLastLog(ctx context.Context, inst runtime.Instance) {
	b.mu.Lock()
	used := !b.work.last.IsZero()
	b.mu.Unlock()
	if used {
		b.fetchLog(ctx, inst)
	}
}

// fetchLog asks the agent for what is new in its log, and stores it. What cannot
// be had is left for the next time.
func (b *box) fetchLog(ctx context.Context, inst runtime.Instance) {
	if b.s.o.LogDir == "" || inst == nil {
		return
	}
	b.mu.Lock()
	b.work.logAt = now()
	b.mu.Unlock()
	j := &b.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if j.inst != inst {
		j.inst, j.seq = inst, 0
	}
	var said logAnswer
	path := fmt.Sprintf("%s?%s=%d", agentapi.PathLog, agentapi.ParamAfter, j.seq)
	err := b.s.callAgent(ctx, inst, b.id, http.MethodGet, path, nil, &said)
	if err == nil {
		err = b.keepLog(said.Lines[:])
	}
	if err != nil {
		b.s.log.Debug("log of a sandbox could not be fetched", "sandbox", b.id, "err", err)
	}
}

// logAnswer is agentapi.Log as a hostile agent may send it: with no more in it
// than a true one has.
type logAnswer struct {
	Lines [agentapi.MaxLogLines]*agentapi.LogLine `json:"lines"`
}

// keepLog stores the lines that are new. The memory of an agent goes back to
// that of its last pause when it wakes, so that it may tell again what it has
// told: with a new runtime the times decide.
func (b *box) keepLog(lines []*agentapi.LogLine) error {
	j := &b.journal
	if j.gone {
		return nil
	}
	if j.last.IsZero() {
		kept, err := b.s.readLog(b.id)
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
	t, last, seq := now(), j.last, j.seq
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
		kept.At = later(kept.At, last)
		last = kept.At
		if err := enc.Encode(kept); err != nil {
			return err
		}
	}
	if err := appendBounded(b.s.logFile(b.id), out.Bytes(), maxLog); err != nil {
		return err
	}
	j.last, j.seq = last, seq
	return nil
}

// fit returns what an agent said, fit to be kept and shown.
func fit(l agentapi.LogLine) LogLine {
	kept := LogLine{At: l.At.UTC(), Level: LogInfo, Message: human.Line(l.Message, agentapi.MaxLogMessage)}
	if level := LogLevel(l.Level); slices.Contains([]LogLevel{LogDebug, LogWarn, LogError}, level) {
		kept.Level = level
	}
	for name, value := range l.Fields {
		if len(kept.Fields) == maxLogFields {
			break
		}
		if kept.Fields == nil {
			kept.Fields = map[string]string{}
		}
		kept.Fields[human.Line(name, maxLogField)] = human.Line(value, maxLogField)
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

// readLog returns what is stored of a sandbox's log, oldest first. A line that a
// power cut has torn is left out.
func (s *Supervisor) readLog(id string) ([]LogLine, error) {
	if s.o.LogDir == "" {
		return nil, nil
	}
	data, err := os.ReadFile(s.logFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read log of sandbox %s: %w", id, err)
	}
	var lines []LogLine
	for line := range bytes.Lines(data) {
		var l LogLine
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
	return lines, nil
}

// removeLog removes the log of a sandbox that has ended.
func (b *box) removeLog() error {
	if b.s.o.LogDir == "" {
		return nil
	}
	b.journal.mu.Lock()
	defer b.journal.mu.Unlock()
	b.journal.gone = true
	for _, path := range []string{b.s.logFile(b.id), b.s.logFile(b.id) + ".new"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
