package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// maxAnswer bounds what is read of an answer of the API.
const maxAnswer = 32 << 20

// api is the server, as the API key of a session may use it.
type api struct {
	*client.Client
	base string
	key  string
	http *http.Client
}

// way tells the server how the browser came, for the addresses that it makes.
type way struct {
	http.RoundTripper
	secure bool
}

// RoundTrip implements http.RoundTripper.
func (w way) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.secure {
		r = r.Clone(r.Context())
		r.Header.Set("X-Forwarded-Proto", "https")
	}
	return w.RoundTripper.RoundTrip(r)
}

// api returns the server as the session sees it.
func (v *visit) api() (api, error) {
	hc := &http.Client{Transport: way{v.session.http.Transport, v.secure()}}
	base := "http://" + v.r.Host
	c, err := client.New(client.Options{URL: base, APIKey: v.session.key, HTTPClient: hc})
	if err != nil {
		return api{}, refusal{http.StatusBadRequest, "this server cannot be reached by that name", "use its address, or localhost"}
	}
	return api{Client: c, base: base, key: v.session.key, http: hc}, nil
}

// send makes one call of the API. The caller closes the answer's body.
func (a api) send(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-API-Key", a.key)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask the server: %w", err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refused(resp)
}

// refused reads the error of an answer, of either dialect.
func refused(resp *http.Response) error {
	type words struct {
		Code        any    `json:"code"`
		ErrorCode   string `json:"error_code"`
		Message     string `json:"message"`
		Remediation string `json:"remediation"`
		Remedy      string `json:"remedy"`
	}
	var said struct {
		words
		Error *words `json:"error"`
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_ = json.Unmarshal(b, &said)
	w := said.words
	if said.Error != nil {
		w = *said.Error
	}
	code, _ := w.Code.(string)
	if code == "" {
		code = w.ErrorCode
	}
	step := w.Remediation
	if step == "" {
		step = w.Remedy
	}
	return &client.Error{Status: resp.StatusCode, Code: code, Message: w.Message, Remediation: step}
}

// call makes a call whose answer is JSON; out may be nil.
func (a api) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	resp, err := a.send(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("understand the answer to %s %s: %w", method, path, err)
	}
	return nil
}

// sample is what a sandbox used at a time.
type sample struct {
	At        time.Time `json:"timestamp"`
	CPUs      float64   `json:"cpuCount"`
	CPU       float64   `json:"cpuUsedPct"`
	Memory    int64     `json:"memUsed"`
	MemoryMax int64     `json:"memTotal"`
	Disk      int64     `json:"diskUsed"`
	DiskMax   int64     `json:"diskTotal"`
}

// logLine is a line that a sandbox's programs, or its hooks, have written.
type logLine struct {
	At      time.Time         `json:"timestamp"`
	Message string            `json:"message"`
	Level   string            `json:"level"`
	Fields  map[string]string `json:"fields"`
}

// events passes the stream of events on, until the browser goes or the session ends.
func events(v *visit) error {
	a, err := v.api()
	if err != nil {
		return err
	}
	path := "/v1/events"
	if id := v.r.URL.Query().Get("sandbox"); id != "" {
		path = "/v1/sandboxes/" + url.PathEscape(id) + "/events"
	}
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(v.session.ctx, cancel)()
	resp, err := a.send(ctx, http.MethodGet, path, url.Values{"after": {"now"}, "follow": {"true"}}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	v.w.Header().Set("Content-Type", "text/event-stream")
	v.w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(v.w)
	buf := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			_ = out.SetWriteDeadline(time.Now().Add(30 * time.Second))
			if _, err := v.w.Write(buf[:n]); err != nil || out.Flush() != nil {
				return nil
			}
		}
		if err != nil {
			return nil // the browser asks again
		}
	}
}
