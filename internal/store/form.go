package store

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// formVersion numbers the JSON form of records and log entries, and stands in
// every row. It rises with a change that a program made for the old form would
// misread; a new optional field is not one. Then the reader of the old form
// stays, beside the new.
const formVersion = 1

// stampLayout is RFC 3339 with all nine decimals. With trailing zeros trimmed,
// as time.RFC3339Nano does, text would not sort by time: "…00.5Z" < "…00Z".
const stampLayout = "2006-01-02T15:04:05.000000000Z07:00"

// stamp returns t as a column holds it.
func stamp(t time.Time) string { return t.UTC().Format(stampLayout) }

// encodeCommit returns the column values of a record and of its log entries.
func encodeCommit(sb Sandbox, entries []lifecycle.Entry) (record []any, events [][]any, err error) {
	data, err := encode(inUTC(sb))
	if err != nil {
		return nil, nil, fmt.Errorf("encode record: %w", err)
	}
	record = append([]any{sb.ID, sb.Config.Key, formVersion, string(sb.Record.State), stamp(sb.Record.CreatedAt), data}, claims(sb, len(data))...)
	record = append(record, listed(sb.Record)...)
	for _, entry := range entries {
		toUTC(&entry.At, &entry.StartedAt)
		data, err := encode(formOfEntry(entry))
		if err != nil {
			return nil, nil, fmt.Errorf("encode log entry %s: %w", entry.Type, err)
		}
		events = append(events, []any{sb.ID, sb.Config.Key, formVersion, string(entry.Type), stamp(entry.At), data})
	}
	return record, events, nil
}

// entryForm is an entry of the event log as it is stored. It is apart from the
// core's type, so that a field that is added there is stored on purpose. The
// file in testdata holds it.
type entryForm struct {
	Type       string        `json:"type"`
	At         time.Time     `json:"at"`
	Generation int64         `json:"generation"`
	From       string        `json:"from"`
	To         string        `json:"to"`
	Op         string        `json:"op,omitempty"`
	Cause      string        `json:"cause,omitempty"`
	Actor      string        `json:"actor,omitempty"`
	Duration   time.Duration `json:"duration,omitempty"`
	Bytes      int64         `json:"bytes,omitempty"`
	Freed      int64         `json:"freed,omitempty"`
	StartedAt  time.Time     `json:"startedAt,omitzero"`
	Detail     string        `json:"detail,omitempty"`
	Damaged    bool          `json:"damaged,omitempty"`
	Unreadable bool          `json:"unreadable,omitempty"`
}

func formOfEntry(e lifecycle.Entry) entryForm {
	return entryForm{
		Type: string(e.Type), At: e.At, Generation: e.Generation, From: string(e.From), To: string(e.To), Op: e.Op,
		Cause: string(e.Cause), Actor: e.Actor, Duration: e.Duration, Bytes: e.Bytes, Freed: e.Freed,
		StartedAt: e.StartedAt, Detail: e.Detail, Damaged: e.Damaged, Unreadable: e.Unreadable,
	}
}

func (f entryForm) entry() lifecycle.Entry {
	return lifecycle.Entry{
		Type: lifecycle.EntryType(f.Type), At: f.At, Generation: f.Generation, From: lifecycle.Situation(f.From), To: lifecycle.Situation(f.To), Op: f.Op,
		Cause: lifecycle.Cause(f.Cause), Actor: f.Actor, Duration: f.Duration, Bytes: f.Bytes, Freed: f.Freed,
		StartedAt: f.StartedAt, Detail: f.Detail, Damaged: f.Damaged, Unreadable: f.Unreadable,
	}
}

// encode returns v as JSON. HTML stays as it is: json.Marshal would also
// rewrite it inside of json.RawMessage, which is to be returned as it was.
func encode(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// inUTC returns sb with its times in UTC, sharing nothing that it changed.
func inUTC(sb Sandbox) Sandbox {
	toUTC(&sb.ActiveAt, &sb.RequestedAt)
	r := &sb.Record // of the copy
	toUTC(&r.CreatedAt, &r.StartedAt, &r.EndAt, &r.EndSetAt, &r.Announced, &r.PausedAt, &r.PauseRetryAt, &r.LeaseEndedAt)
	r.Leases, r.Moves = leasesInUTC(r.Leases), carryInUTC(r.Moves)
	sb.Config.Previews = slices.Clone(sb.Config.Previews)
	for i := range sb.Config.Previews {
		toUTC(&sb.Config.Previews[i].CreatedAt, &sb.Config.Previews[i].ExpiresAt)
	}
	sb.Config.Lineage = slices.Clone(sb.Config.Lineage)
	for i := range sb.Config.Lineage {
		toUTC(&sb.Config.Lineage[i].At)
	}
	if r.Restored != nil {
		restored := *r.Restored
		toUTC(&restored.At)
		r.Restored = &restored
	}
	if as := sb.Config.Idempotency; as != nil {
		in := *as
		toUTC(&in.At)
		sb.Config.Idempotency = &in
	}
	if r.Op != nil {
		op := *r.Op
		toUTC(&op.StartedAt, &op.Deadline)
		op.Carry = carryInUTC(op.Carry)
		r.Op = &op
	}
	if r.Tombstone != nil {
		tombstone := *r.Tombstone
		toUTC(&tombstone.At)
		r.Tombstone = &tombstone
	}
	return sb
}

func leasesInUTC(leases []lifecycle.Lease) []lifecycle.Lease {
	leases = slices.Clone(leases)
	for i := range leases {
		toUTC(&leases[i].Since, &leases[i].Until)
	}
	return leases
}

func carryInUTC(c *lifecycle.Carry) *lifecycle.Carry {
	if c == nil {
		return nil
	}
	carry := *c
	toUTC(&carry.EndAt)
	carry.Leases = leasesInUTC(carry.Leases)
	return &carry
}

func toUTC(times ...*time.Time) {
	for _, t := range times {
		*t = t.UTC()
	}
}

// decode reads data, written in the given form, into v. what names it in
// errors.
func decode(what string, version int, data []byte, v any) error {
	if version != formVersion {
		return errdef.New(errdef.Unsupported, "form_unknown",
			"%s is stored in form %d and this drowse reads form %d", what, version, formVersion).
			WithRemedy("use the drowse that wrote it, or a newer one")
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	return nil
}

// selectSandboxes has the columns that scanSandbox reads.
const selectSandboxes = `SELECT id, version, data, rev, owner FROM sandboxes`

func scanSandbox(rows *sql.Rows) (Sandbox, error) {
	var (
		id      string
		version int
		data    sql.RawBytes
		sb      Sandbox
	)
	if err := rows.Scan(&id, &version, &data, &sb.Rev, &sb.Owner); err != nil {
		return Sandbox{}, err
	}
	err := decode("sandbox "+id, version, data, &sb)
	return sb, err
}

func scanEvent(rows *sql.Rows) (Event, error) {
	var (
		version int
		data    sql.RawBytes
		event   Event
	)
	if err := rows.Scan(&event.Seq, &event.Sandbox, &event.Key, &version, &data); err != nil {
		return Event{}, err
	}
	what := fmt.Sprintf("log entry %d of sandbox %s", event.Seq, event.Sandbox)
	var form entryForm
	err := decode(what, version, data, &form)
	event.Entry = form.entry()
	return event, err
}
