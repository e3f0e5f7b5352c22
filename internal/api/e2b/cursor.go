package e2b

import (
	"cmp"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
)

// order is the direction of a list, by start.
type order string

const (
	ascending  order = "asc"
	descending order = "desc"
)

// cursor is a place in a list: after the sandbox with this start and id. As a
// place, not a count, it stays right when sandboxes come and go between pages.
type cursor struct {
	order     order
	startedAt int64 // Unix microseconds
	id        string
}

func cursorAt(o order, sb *store.Sandbox) cursor {
	return cursor{order: o, startedAt: micros(sb.Record.StartedAt), id: sb.ID}
}

// compare orders cursors of one list; ties of the start go by ascending id in
// both orders.
func (c cursor) compare(d cursor) int {
	byStart := cmp.Compare(c.startedAt, d.startedAt)
	if c.order == descending {
		byStart = -byStart
	}
	return cmp.Or(byStart, cmp.Compare(c.id, d.id))
}

// ofStore returns the order of a list of sandboxes.
func (o order) ofStore() store.Order {
	if o == ascending {
		return store.EarliestStart
	}
	return store.LatestStart
}

// token returns the cursor as clients carry it.
func (c cursor) token() string {
	text := string(c.order) + " " + strconv.FormatInt(c.startedAt, 10) + " " + c.id
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// parseToken accepts exactly what token returns, for a list of the same order.
func parseToken(token string, o order) (cursor, error) {
	text, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return cursor{}, badToken()
	}
	fields := strings.Split(string(text), " ")
	if len(fields) != 3 {
		return cursor{}, badToken()
	}
	c := cursor{order: order(fields[0]), id: fields[2]}
	c.startedAt, err = strconv.ParseInt(fields[1], 10, 64)
	if err != nil || c.token() != token || c.order != ascending && c.order != descending {
		return cursor{}, badToken()
	}
	if c.order != o {
		return cursor{}, badRequest(`"nextToken" is of a list with order %q, not %q: begin again without it`, c.order, o)
	}
	return c, nil
}

func badToken() error {
	return badRequest(`"nextToken" is not one that this server gave: begin again without it`)
}

// micros returns a time at the precision that clients see.
func micros(t time.Time) int64 { return t.UnixMicro() }
