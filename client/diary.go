package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Diary is what a sandbox logged and used. To read it neither wakes the sandbox nor
// keeps it awake.
type Diary struct {
	c       *Client
	sandbox string
}

// NewDiary returns the diary of a sandbox.
func NewDiary(c *Client, sandbox string) Diary { return Diary{c, sandbox} }

// LogLine is a line of a sandbox's log: a command that began or ended in it, or an
// event of the sandbox itself.
type LogLine struct {
	At      time.Time         `json:"at"`
	Level   string            `json:"level"` // debug, info, warn or error
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
}

// LogPage is a part of a log, oldest line first.
type LogPage struct {
	Lines []LogLine `json:"lines"`
	Next  string    `json:"next"` // where the lines that follow begin: after, in Log
}

// Log returns lines of the log of a sandbox that has not ended, most of them at most;
// 0 is as many as the server gives. With an empty after they are the last, else the
// first of those that follow.
func (d Diary) Log(ctx context.Context, after string, most int) (LogPage, error) {
	query := url.Values{}
	if after != "" {
		query.Set("after", after)
	}
	if most > 0 {
		query.Set("lines", strconv.Itoa(most))
	}
	var page LogPage
	path, err := sandboxPath(d.sandbox)
	if err == nil {
		err = d.c.call(ctx, http.MethodGet, path+"/log", query, nil, &page)
	}
	if err != nil {
		return LogPage{}, fmt.Errorf("read the log of sandbox %s: %w", d.sandbox, err)
	}
	return page, nil
}

// Sample is what a sandbox used at a time.
type Sample struct {
	At               time.Time `json:"at"`
	CPUPercent       float64   `json:"cpuPercent"`  // of all CPUs that it may use
	MemoryBytes      int64     `json:"memoryBytes"` // with what its runtime takes for itself
	MemoryLimitBytes int64     `json:"memoryLimitBytes"`
	CacheBytes       int64     `json:"cacheBytes"` // of the memory
	DiskBytes        int64     `json:"diskBytes"`  // when it was last measured
	DiskLimitBytes   int64     `json:"diskLimitBytes"`
}

// Samples returns what a sandbox that has not ended used, oldest first, since the
// server's start: one for every 5 seconds, and fewer of what is longer ago.
func (d Diary) Samples(ctx context.Context) ([]Sample, error) {
	var out struct {
		Samples []Sample `json:"samples"`
	}
	path, err := sandboxPath(d.sandbox)
	if err == nil {
		err = d.c.call(ctx, http.MethodGet, path+"/usage", nil, nil, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read what sandbox %s uses: %w", d.sandbox, err)
	}
	return out.Samples, nil
}

// Usage is a sandbox with what it used last.
type Usage struct {
	Sandbox string  `json:"sandbox"`
	Name    string  `json:"name,omitempty"`
	State   State   `json:"state"`
	CPUs    float64 `json:"cpus"`           // that it may use
	Last    *Sample `json:"last,omitempty"` // before its pause, if it sleeps; nil if there is none since the server's start
}

// UsageOf returns what sandboxes used last, newest sandbox first; without ids, of all
// that the client's key sees. Those that have ended are left out.
func UsageOf(ctx context.Context, c *Client, ids ...string) ([]Usage, error) {
	query := url.Values{}
	if len(ids) > 0 {
		query.Set("id", strings.Join(ids, ","))
	}
	var out struct {
		Sandboxes []Usage `json:"sandboxes"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/usage", query, nil, &out); err != nil {
		return nil, fmt.Errorf("read what sandboxes use: %w", err)
	}
	return out.Sandboxes, nil
}
