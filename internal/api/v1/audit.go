package v1

import (
	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/audit"
)

// Audit is the server's audit log.
type Audit interface {
	// Read returns entries, oldest first.
	Read(q audit.Query) ([]audit.Entry, error)
}

type auditEntryView struct {
	Seq      int64             `json:"seq" doc:"Counts entries, from 1."`
	At       httpapi.Timestamp `json:"at" doc:"When the answer began."`
	Key      *auditKeyView     `json:"key" doc:"Null if the call had no good key."`
	Address  string            `json:"address" doc:"Of the client."`
	Method   string            `json:"method"`
	Path     string            `json:"path" doc:"Without the query; cut at 512 bytes."`
	Sandbox  *string           `json:"sandbox" doc:"The id of the sandbox that the call was about, or made."`
	Status   *int              `json:"status" doc:"Of the answer; null if the client had none."`
	Unlogged int               `json:"unlogged" doc:"How many calls of the same key since its last entry are in no entry, because they were too many."`
}

type auditKeyView struct {
	ID   string `json:"id"`
	Name string `json:"name" doc:"That it had then."`
	Role string `json:"role"`
}

type auditView struct {
	Entries []auditEntryView `json:"entries" doc:"Oldest first."`
	Next    int64            `json:"next" doc:"What to give as after for the entries that follow."`
}

// maxAudit is how many entries one answer has.
const maxAudit = 1000

var auditQuery = []param{
	{"after", "query", "Only entries after this one (seq), the first ones; without it the last ones.", schema{"type": "integer", "minimum": 0}},
	{"limit", "query", "Maximum number of entries (default: 100).", schema{"type": "integer", "minimum": 1, "maximum": maxAudit}},
	{"key", "query", "Only calls with the API key of this id.", schema{"type": "string"}},
	{"sandbox", "query", "Only calls about the sandbox of this id.", schema{"type": "string"}},
}

func listAudit(s *server, c *call) (reply, error) {
	q := c.query()
	most, err := q.number("limit", 100, 1, maxAudit)
	if err != nil {
		return reply{}, err
	}
	after, err := q.number("after", -1, 0, 1<<53)
	if err != nil {
		return reply{}, err
	}
	entries, err := s.Audit.Read(audit.Query{First: after >= 0, After: max(0, after), Most: int(most), Key: q.Get("key"), Sandbox: q.Get("sandbox")})
	if err != nil {
		return reply{}, err
	}
	v := auditView{Entries: make([]auditEntryView, len(entries)), Next: max(0, after)}
	for i, e := range entries {
		v.Entries[i] = viewAudit(e)
		v.Next = e.Seq
	}
	return ok(v)
}

func viewAudit(e audit.Entry) auditEntryView {
	v := auditEntryView{
		Seq: e.Seq, At: httpapi.Timestamp(e.At), Address: e.Address, Method: e.Method, Path: e.Path,
		Sandbox: orNull(e.Sandbox), Unlogged: e.Unlogged,
	}
	if e.Key != nil {
		v.Key = &auditKeyView{ID: e.Key.ID, Name: e.Key.Name, Role: e.Key.Role}
	}
	if e.Status != 0 {
		v.Status = &e.Status
	}
	return v
}
