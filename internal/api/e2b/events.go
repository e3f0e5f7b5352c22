package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// eventPrefix begins the types of all events.
const eventPrefix = "sandbox.lifecycle."

// eventLabels are the types of events without the prefix, with what each is
// called as something that is done. E2B has no forks and restores: those two types
// are of our own, in words of the event log.
var eventLabels = map[string]string{
	"created": "create", "killed": "kill", "paused": "pause", "resumed": "resume", "updated": "update", "checkpointed": "checkpoint",
	"forked": "fork", "restored": "restore",
}

// eventKind returns the type, without the prefix, under which an entry of the
// event log is an event here, and "" for one that is none: what is only on its
// way, or failed, or is no concern of this dialect. A runtime that is lost with
// a checkpoint to go back to is a sandbox that sleeps from then on.
func eventKind(e lifecycle.Entry) string {
	checkpoint := e.Cause.GoesOn()
	switch e.Type {
	case lifecycle.EntryRunning, lifecycle.EntryImported:
		return "created"
	case lifecycle.EntryPaused:
		if checkpoint {
			return "checkpointed"
		}
		return "paused"
	case lifecycle.EntrySnapshotted:
		return "checkpointed"
	case lifecycle.EntryRuntimeLost:
		return "paused"
	case lifecycle.EntryResumed:
		if checkpoint {
			return "" // it never slept
		}
		return "resumed"
	case lifecycle.EntryTimeoutSet, lifecycle.EntryUpdated:
		return "updated"
	case lifecycle.EntryTerminated:
		return "killed"
	case lifecycle.EntryForked:
		return "forked"
	case lifecycle.EntryRestored:
		return "restored"
	}
	return ""
}

// eventView is an event, in a list and as the body of a delivery.
type eventView struct {
	ID          string            `json:"id"`
	Version     string            `json:"version"`
	Type        string            `json:"type"`
	Timestamp   httpapi.Timestamp `json:"timestamp"`
	Category    string            `json:"event_category"`
	Label       string            `json:"event_label"`
	Data        *eventData        `json:"event_data"`
	SandboxID   string            `json:"sandbox_id"`
	ExecutionID string            `json:"sandbox_execution_id"`
	TemplateID  string            `json:"sandbox_template_id"`
	BuildID     string            `json:"sandbox_build_id"`
	TeamID      string            `json:"sandbox_team_id"`
}

type eventData struct {
	Execution  *executionView   `json:"execution,omitempty"`
	KillReason lifecycle.Reason `json:"kill_reason,omitempty"`
	Detail     string           `json:"detail,omitempty"` // of our own types: the children, or the snapshot
}

// executionView is a time awake that has ended.
type executionView struct {
	StartedAt     httpapi.Timestamp `json:"started_at"`
	VCPUCount     int               `json:"vcpu_count"`
	MemoryMB      int               `json:"memory_mb"`
	ExecutionTime int64             `json:"execution_time"` // milliseconds
}

// viewEvent returns an event of a sandbox in words of this dialect; false if it
// is none. A sandbox that is not known any more may be the zero one.
func viewEvent(e store.Event, sb store.Sandbox) (eventView, bool) {
	kind := eventKind(e.Entry)
	if kind == "" {
		return eventView{}, false
	}
	v := eventView{
		ID: eventID(e.Sandbox, e.Seq), Version: "v2", Type: eventPrefix + kind, Timestamp: httpapi.Timestamp(e.At),
		Category: "lifecycle", Label: eventLabels[kind],
		SandboxID: e.Sandbox, ExecutionID: uuidOf("execution", e.Sandbox, strconv.FormatInt(e.Generation, 10)),
		TemplateID: sb.Config.TemplateID(), BuildID: uuidOf("build", sb.Config.TemplateID()), TeamID: teamID,
	}
	switch kind {
	case "killed":
		v.Data = &eventData{KillReason: lifecycle.ReasonOf(e.Detail)}
	case "paused":
		v.Data = &eventData{}
	case "forked", "restored":
		v.Data = &eventData{Detail: e.Detail}
	}
	if v.Data != nil && !e.StartedAt.IsZero() {
		v.Data.Execution = &executionView{
			httpapi.Timestamp(e.StartedAt), sb.Config.Limits.VCPUs(), sb.Config.Limits.MemoryMiB, e.At.Sub(e.StartedAt).Milliseconds(),
		}
	}
	return v, true
}

// EncodeEvent returns an event of a sandbox as the body of a delivery, with its
// type and its id; the type is empty if it is no event of this dialect.
func EncodeEvent(e store.Event, sb store.Sandbox) (kind, id string, body []byte, err error) {
	v, ok := viewEvent(e, sb)
	if !ok {
		return "", "", nil, nil
	}
	body, err = json.Marshal(v)
	return v.Type, v.ID, body, err
}

// uuidOf returns an id in the form of a UUID, always the same for the same
// words.
func uuidOf(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, ":")))
	return formatUUID([16]byte(sum[:16]))
}

// formatUUID marks the bytes as a UUID of a form of our own.
func formatUUID(b [16]byte) string {
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// eventID returns the id of an event. Its last 48 bits are the place in the log,
// so that it is found by its id.
func eventID(sandbox string, seq int64) string {
	sum := sha256.Sum256([]byte("event:" + sandbox))
	b := [16]byte(sum[:16])
	var place [8]byte
	binary.BigEndian.PutUint64(place[:], uint64(seq))
	copy(b[10:], place[2:])
	return formatUUID(b)
}

// eventQuery is what a list of events is asked for.
type eventQuery struct {
	offset, limit int
	ascending     bool
	types         []string // with the prefix; empty for all
}

// maxEventOffset bounds how far a list is looked through for one answer.
const maxEventOffset = 100_000

func parseEventQuery(params url.Values) (q eventQuery, err error) {
	if q.offset, err = parseCount(params, "offset", 0, 0, maxEventOffset); err != nil {
		return q, err
	}
	if q.limit, err = parseCount(params, "limit", 10, 1, maxPage); err != nil {
		return q, err
	}
	switch text := params.Get("orderAsc"); text {
	case "", "false":
	case "true":
		q.ascending = true
	default:
		return q, badRequest(`"orderAsc" must be true or false`)
	}
	for _, list := range params["types"] {
		for kind := range strings.SplitSeq(list, ",") {
			if kind == "" {
				continue
			}
			if err := checkEventType(kind); err != nil {
				return q, err
			}
			q.types = append(q.types, kind)
		}
	}
	return q, nil
}

// checkEventType refuses what is no type of event.
func checkEventType(kind string) error {
	name, ok := strings.CutPrefix(kind, eventPrefix)
	if _, known := eventLabels[name]; !ok || !known {
		return badRequest("%.100q is no type of event: use %s followed by created, killed, paused, resumed, updated, checkpointed, forked or restored", kind, eventPrefix)
	}
	return nil
}

func (s *server) events(c *call) (reply, error) { return s.listEvents(c, "") }

func (s *server) sandboxEvents(c *call) (reply, error) {
	id, err := parseSandboxID(c.params[eventsParam])
	if err != nil {
		return reply{}, err
	}
	if _, err := s.Sandboxes.Find(c.r.Context(), id); errdef.Is(err, errdef.NotFound) {
		return reply{}, sandboxNotFound(id, errdef.New(errdef.NotFound, codeSandboxNotFound, "it is not known"))
	} else if err != nil {
		return reply{}, err
	}
	return s.listEvents(c, id)
}

func (s *server) listEvents(c *call, sandbox string) (reply, error) {
	q, err := parseEventQuery(c.query)
	if err != nil {
		return reply{}, err
	}
	views, err := s.findEvents(c.r.Context(), sandbox, q)
	return reply{Status: http.StatusOK, Body: views}, err
}

// logPage is how many entries of the log are read at once.
const logPage = 500

// walkEvents visits the events of one sandbox, or of all, from one end of the log
// until a visit returns false.
func walkEvents(ctx context.Context, log EventLog, sandbox string, ascending bool, visit func(e store.Event, kind string) (bool, error)) error {
	read, cursor := log.EventsBefore, int64(math.MaxInt64)
	if ascending {
		read, cursor = log.Events, 0
	}
	for {
		page, err := read(ctx, sandbox, cursor, logPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			cursor = e.Seq
			kind := eventKind(e.Entry)
			if kind == "" {
				continue
			}
			if more, err := visit(e, kind); err != nil || !more {
				return err
			}
		}
		if len(page) < logPage {
			return nil
		}
	}
}

func (s *server) findEvents(ctx context.Context, sandbox string, q eventQuery) ([]eventView, error) {
	views, skip := make([]eventView, 0, q.limit), q.offset
	err := walkEvents(ctx, s.Sandboxes, sandbox, q.ascending, func(e store.Event, kind string) (bool, error) {
		if len(q.types) > 0 && !slices.Contains(q.types, eventPrefix+kind) {
			return true, nil
		}
		if skip > 0 {
			skip--
			return true, nil
		}
		sb, err := s.Sandboxes.Find(ctx, e.Sandbox)
		if err != nil && !errdef.Is(err, errdef.NotFound) { // it may have been forgotten just now
			return false, err
		}
		v, _ := viewEvent(e, sb)
		views = append(views, v)
		return len(views) < q.limit, nil
	})
	return views, err
}
