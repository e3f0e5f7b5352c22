package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// Order is the order of a list of sandboxes. Times count in microseconds, as clients see
// them; sandboxes of the same time go by ascending id.
type Order string

// The orders of lists.
const (
	Newest        Order = "newest" // the youngest sandbox comes first
	Oldest        Order = "oldest"
	LatestStart   Order = "latest start" // the one that was started last comes first
	EarliestStart Order = "earliest start"
)

// Place is a place in a list: that of the sandbox with this time and id. As a place, not a
// count, it stays right when sandboxes come and go.
type Place struct {
	At int64 // Unix microseconds
	ID string
}

// PlaceOf returns the place of a sandbox in a list.
func (o Order) PlaceOf(sb *Sandbox) Place {
	at := sb.Record.CreatedAt
	if o.byStart() {
		at = sb.Record.StartedAt
	}
	return Place{at.UnixMicro(), sb.ID}
}

// Compare is below zero if a comes before b.
func (o Order) Compare(a, b Place) int {
	byTime := cmp.Compare(a.At, b.At)
	if o.descends() {
		byTime = -byTime
	}
	return cmp.Or(byTime, strings.Compare(a.ID, b.ID))
}

func (o Order) byStart() bool  { return o == LatestStart || o == EarliestStart }
func (o Order) descends() bool { return o != Oldest && o != EarliestStart }

// Outline is what a list shows and counts of a record's state.
type Outline struct {
	State lifecycle.State
	Phase lifecycle.Phase // of the operation in flight; empty for none
	Cause lifecycle.Cause // of it
}

// OutlineOf returns the outline of a record.
func OutlineOf(r lifecycle.Record) Outline {
	if r.Op == nil {
		return Outline{State: r.State}
	}
	return Outline{r.State, r.Op.Phase, r.Op.Cause}
}

// Record returns a record with the outline, and nothing else.
func (o Outline) Record() lifecycle.Record {
	r := lifecycle.Record{State: o.State}
	if o.Phase != "" {
		r.Op = &lifecycle.Operation{Phase: o.Phase, Cause: o.Cause}
	}
	return r
}

// text returns the outline as a column holds it, and outlineIn what a column holds.
func (o Outline) text() string {
	if o.Phase == "" {
		return string(o.State)
	}
	return string(o.State) + " " + string(o.Phase) + " " + string(o.Cause)
}

func outlineIn(text string) Outline {
	state, op, _ := strings.Cut(text, " ")
	phase, cause, _ := strings.Cut(op, " ")
	return Outline{lifecycle.State(state), lifecycle.Phase(phase), lifecycle.Cause(cause)}
}

// Alive is the Status of sandboxes that run or are paused.
func Alive(r lifecycle.Record) bool {
	return r.State == lifecycle.Running || r.State == lifecycle.Paused
}

// NotEnded is the Status of those, and of sandboxes that are being created.
func NotEnded(r lifecycle.Record) bool { return r.State != lifecycle.Terminated }

// Labels are keys and values that metadata must have.
type Labels [][2]string

// Hold reports whether metadata has all of them.
func (l Labels) Hold(metadata map[string]string) bool {
	return !slices.ContainsFunc(l, func(want [2]string) bool {
		has, ok := metadata[want[0]]
		return !ok || has != want[1]
	})
}

// Selection is what a list asks for. Fields that are zero select all.
type Selection struct {
	Others      bool   // only sandboxes of other servers
	Owner       string // only those of this server
	Key         string
	Holds       string // the name that the sandbox has now; goes with Key
	Name        string // the name that it has, or had when it ended; goes with Key
	Idempotency string // the key that has made it, and is bound to it; goes with Key
	Template    string // as [Config.IsOf] has it
	Metadata    Labels
	IDs         []string // nil for all
	StartedFrom *int64   // Unix microseconds, inclusive
	// Status chooses by the [Outline] of a record, which may be all that the record has.
	Status func(lifecycle.Record) bool

	Order Order
	After *Place // nil for the first page
	Skip  int    // so many of those after it
	Limit int    // of the page; 0 for all
}

// Page is what a list has of a Selection.
type Page struct {
	Sandboxes []Sandbox
	More      bool // there are more after them
	// Counts is how many there are on all pages, whatever their Status.
	Counts map[Outline]int
}

// Count returns how many sandboxes there are, on all pages, with a status.
func (p Page) Count(status func(lifecycle.Record) bool) (n int) {
	for outline, has := range p.Counts {
		if status(outline.Record()) {
			n += has
		}
	}
	return n
}

// selects reports whether a sandbox is counted.
func (q *Selection) selects(sb *Sandbox) bool {
	c := &sb.Config
	switch {
	case q.Owner != "" && q.Owner != sb.Owner,
		q.Key != "" && q.Key != c.Key,
		q.Holds != "" && q.Holds != sb.named(),
		q.Name != "" && q.Name != c.Name,
		q.Idempotency != "" && (c.Idempotency == nil || c.Idempotency.Key != q.Idempotency || sb.Failed()),
		q.Template != "" && !c.IsOf(q.Template),
		q.IDs != nil && !slices.Contains(q.IDs, sb.ID),
		q.StartedFrom != nil && sb.Record.StartedAt.UnixMicro() < *q.StartedFrom:
		return false
	}
	return q.Metadata.Hold(c.Metadata)
}

// lists reports whether a sandbox that is counted is on this page or a later one.
func (q *Selection) lists(sb *Sandbox) bool {
	return (q.Status == nil || q.Status(sb.Record)) && (q.After == nil || q.Order.Compare(q.Order.PlaceOf(sb), *q.After) > 0)
}

// Replaces reports whether a sandbox, as its server sees it now, can stand in a list where a
// record of it is.
func (q Selection) Replaces(sb, record *Sandbox) bool {
	return q.selects(sb) && q.lists(sb) && q.Order.PlaceOf(sb) == q.Order.PlaceOf(record)
}

// Sort puts sandboxes into the order of the list.
func (q Selection) Sort(list []Sandbox) {
	slices.SortFunc(list, func(a, b Sandbox) int { return q.Order.Compare(q.Order.PlaceOf(&a), q.Order.PlaceOf(&b)) })
}

// From returns the page of all sandboxes that there are. Others is for the caller to see to.
func (q Selection) From(all []Sandbox) Page {
	p := Page{Counts: map[Outline]int{}}
	var found []*Sandbox
	for i := range all {
		if sb := &all[i]; q.selects(sb) {
			p.Counts[OutlineOf(sb.Record)]++
			if q.lists(sb) {
				found = append(found, sb)
			}
		}
	}
	slices.SortFunc(found, func(a, b *Sandbox) int { return q.Order.Compare(q.Order.PlaceOf(a), q.Order.PlaceOf(b)) })
	found = found[min(q.Skip, len(found)):]
	if p.More = q.Limit > 0 && len(found) > q.Limit; p.More {
		found = found[:q.Limit]
	}
	for _, sb := range found {
		p.Sandboxes = append(p.Sandboxes, *sb)
	}
	return p
}

// listed are the columns of a record by which lists find it and count it.
func listed(r lifecycle.Record) []any { return []any{OutlineOf(r).text(), stamp(r.StartedAt)} }

// enlist fills in these columns of the records that were written before there were any, some
// at a time. What cannot be read is for its reader to refuse.
func (s *SQL) enlist(ctx context.Context) error {
	const atOnce = 500
	for n := atOnce; n == atOnce; {
		err := s.write(ctx, noKey, func(ctx context.Context, tx *sql.Tx) error {
			rows, err := collect(ctx, tx, func(rows *sql.Rows) (row []any, err error) {
				var sb Sandbox
				var version int
				var data sql.RawBytes
				if err = rows.Scan(&sb.ID, &sb.Record.State, &version, &data); err != nil {
					return nil, err
				}
				id, state := sb.ID, sb.Record.State
				if decode("", version, data, &sb) != nil {
					sb.Record = lifecycle.Record{State: state}
				}
				return append(listed(sb.Record), id), nil
			}, `SELECT id, state, version, data FROM sandboxes WHERE outline = '' AND state <> '' LIMIT ?`, atOnce)
			n = len(rows)
			for _, row := range rows {
				if err == nil {
					_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET outline = ?, started_at = ? WHERE id = ?`, row...)
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// The times by which lists are in order, in microseconds, as expressions that have indexes.
const (
	bornAt    = `substr(created_at, 1, 26)`
	startedAt = `substr(started_at, 1, 26)`
)

// micros returns a time as those expressions do. A client may have made it up.
func micros(at int64) string {
	first, last := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	return stamp(time.UnixMicro(min(max(at, first.UnixMicro()), last.UnixMicro())))[:26]
}

// condition is a WHERE clause that is being made.
type condition struct {
	text string
	args []any
}

func (c *condition) and(text string, args ...any) {
	if c.text == "" {
		c.text = ` WHERE ` + text
	} else {
		c.text += ` AND ` + text
	}
	c.args = append(c.args, args...)
}

// among has a column be one of some values. Statements are kept, so there are few lengths.
func (c *condition) among(column string, values []string) {
	if len(values) == 0 {
		c.and(`1 = 0`)
		return
	}
	n := 1
	for n < len(values) {
		n *= 2
	}
	args := make([]any, n)
	for i := range args {
		args[i] = values[min(i, len(values)-1)]
	}
	c.and(column+` IN (?`+strings.Repeat(`, ?`, n-1)+`)`, args...)
}

// having is true of rows whose data has a text.
const having = `replace(data, ?, '') <> data`

// where returns the condition of what a Selection counts. If it is not exact, more rows than
// those have it.
func (q *Selection) where(self string) (c condition, exact bool) {
	if q.Others {
		c.and(`owner <> ?`, self)
	}
	if q.Owner != "" {
		c.and(`owner = ?`, q.Owner)
	}
	if q.Key != "" {
		c.and(`key = ?`, q.Key)
	}
	if q.Holds != "" {
		c.and(`name = ?`, q.Holds)
	}
	if q.Idempotency != "" {
		c.and(`idempotency = ?`, q.Idempotency)
	}
	if q.IDs != nil {
		c.among(`id`, q.IDs)
	}
	if q.StartedFrom != nil {
		c.and(startedAt+` >= ?`, micros(*q.StartedFrom))
	}
	exact = true
	has := func(text ...string) {
		exact = false
		if found, ok := jsonOf(text...); ok {
			c.and(having, found)
		}
	}
	if found, ok := jsonOf("name", q.Name); q.Name != "" && ok {
		c.and(`(name = ? OR name IS NULL AND `+having+`)`, q.Name, found)
		exact = false
	}
	if q.Template != "" {
		has(q.Template)
	}
	for _, l := range q.Metadata {
		has(l[0], l[1])
	}
	return c, exact && q.Name == ""
}

// jsonOf returns how JSON has a text, or a member of an object; ok is false for what it can
// have in several ways.
func jsonOf(text ...string) (found string, ok bool) {
	for _, t := range text {
		if strings.ContainsFunc(t, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) }) {
			return "", false
		}
	}
	return `"` + strings.Join(text, `":"`) + `"`, true
}

// inOrder adds the condition that rows are on this page or a later one, and returns their
// order.
func (q *Selection) inOrder(c *condition) (orderBy string) {
	column, before, direction := bornAt, `<`, ` DESC`
	if q.Order.byStart() {
		column = startedAt
	}
	if !q.Order.descends() {
		before, direction = `>`, ``
	}
	if q.After != nil {
		at := micros(q.After.At)
		c.and(column+` `+before+`= ? AND (`+column+` `+before+` ? OR id > ?)`, at, at, q.After.ID)
	}
	return ` ORDER BY ` + column + direction + `, id`
}

// Page implements [Store]. All that it reads is of one moment: a sandbox that goes from one
// server to another meanwhile is there once.
func (x *owners) Page(ctx context.Context, q Selection) (p Page, err error) {
	tx, err := x.s.reader.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err == nil {
		defer func() { _ = tx.Rollback() }() // nothing is written
		c, exact := q.where(x.Self())
		read := q.filter
		if exact {
			read = q.read
		}
		p, err = read(ctx, tx, c)
	}
	return p, x.s.explain(err, "read a list of sandboxes")
}

// read returns a page where the database can tell what is on it.
func (q *Selection) read(ctx context.Context, tx *sql.Tx, c condition) (p Page, err error) {
	p.Counts = map[Outline]int{}
	var wanted []string
	_, err = collect(ctx, tx, func(rows *sql.Rows) (text string, err error) {
		var n int
		err = rows.Scan(&text, &n)
		outline := outlineIn(text)
		if p.Counts[outline] = n; q.Status == nil || q.Status(outline.Record()) {
			wanted = append(wanted, text)
		}
		return text, err
	}, `SELECT outline, count(*) FROM sandboxes`+c.text+` GROUP BY outline`, c.args...)
	if err != nil || len(wanted) == 0 {
		return p, err
	}
	if len(wanted) < len(p.Counts) {
		c.among(`outline`, wanted)
	}
	orderBy := q.inOrder(&c)
	query := selectSandboxes + c.text + orderBy
	if q.Limit > 0 {
		query += ` LIMIT ? OFFSET ?`
		c.args = append(c.args, q.Limit+1, q.Skip)
	}
	p.Sandboxes, err = collect(ctx, tx, scanSandbox, query, c.args...)
	if p.More = q.Limit > 0 && len(p.Sandboxes) > q.Limit; p.More {
		p.Sandboxes = p.Sandboxes[:q.Limit]
	}
	return p, err
}

// filter returns a page of those among some rows that are selected. It has one of the others in
// memory at a time.
func (q *Selection) filter(ctx context.Context, tx *sql.Tx, c condition) (p Page, err error) {
	p.Counts = map[Outline]int{}
	every := Selection{Order: q.Order} // they are counted on all pages
	orderBy, skip := every.inOrder(&c), q.Skip
	_, err = collect(ctx, tx, func(rows *sql.Rows) (none struct{}, err error) {
		sb, err := scanSandbox(rows)
		if err != nil || !q.selects(&sb) {
			return none, err
		}
		p.Counts[OutlineOf(sb.Record)]++
		switch {
		case !q.lists(&sb):
		case skip > 0:
			skip--
		case q.Limit > 0 && len(p.Sandboxes) == q.Limit:
			p.More = true
		default:
			p.Sandboxes = append(p.Sandboxes, sb)
		}
		return none, nil
	}, selectSandboxes+c.text+orderBy, c.args...)
	return p, err
}

// UseOfOthers implements [Store].
func (x *owners) UseOfOthers(ctx context.Context) (map[string]Use, error) {
	all := map[string]Use{}
	_, err := collect(ctx, x.s.reader, func(rows *sql.Rows) (key string, err error) {
		var u Use
		err = rows.Scan(&key, &u.Running, &u.Sandboxes, &u.MemoryMiB, &u.DiskMiB)
		all[key] = u
		return key, err
	}, `SELECT key, sum(running), count(*), sum(memory_mib), sum(disk_mib) FROM sandboxes WHERE present = 1 AND owner <> ? GROUP BY key`, x.Self())
	return all, x.s.explain(err, "read what API keys use on other servers")
}
