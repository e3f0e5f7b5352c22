package v1

import "context"

// Doctor returns what the server finds of its host now, in bounded time.
type Doctor func(ctx context.Context) []Finding

// Finding is one thing that the server has looked at.
type Finding struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required" doc:"Without it no sandbox runs."`
	Detail   string `json:"detail" doc:"What was found."`
	Remedy   string `json:"remedy,omitempty" doc:"What to do if it is not ok."`
}

type doctorView struct {
	OK       bool      `json:"ok" doc:"Whether all that is required is ok."`
	Findings []Finding `json:"findings"`
}

func examine(s *server, c *call) (reply, error) {
	v := doctorView{OK: true, Findings: append([]Finding{}, s.Doctor(c.r.Context())...)}
	for _, f := range v.Findings {
		v.OK = v.OK && (f.OK || !f.Required)
	}
	return ok(v)
}
