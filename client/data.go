package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/drowse-dev/drowse/client/agentpb"
)

// Headers that route a request into a sandbox and let it in.
const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerTraffic = "E2b-Traffic-Access-Token"
)

// inside returns the URL of a port of the sandbox, and the headers that go with
// it.
func (s *Sandbox) inside(port int) (*url.URL, http.Header) {
	number := strconv.Itoa(port)
	if byHeader(s.client.data) {
		return s.client.data, http.Header{headerSandbox: {s.ID}, headerPort: {number}}
	}
	return s.client.data.JoinPath("s", s.ID, number), nil
}

// Request returns a plain HTTP request to a port inside the sandbox, to be sent
// with any [http.Client]. target is a path with an optional query. The request
// carries what lets it in, so send it nowhere else.
func (s *Sandbox) Request(ctx context.Context, method string, port int, target string, body io.Reader) (*http.Request, error) {
	ref, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("request to port %d of sandbox %s: %w", port, s.ID, err)
	}
	base, routing := s.inside(port)
	path := (&url.URL{Path: "/"}).JoinPath(ref.EscapedPath()) // its dots lead out of nothing but itself
	u := base.JoinPath(path.EscapedPath())
	u.RawQuery = ref.RawQuery
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("request to port %d of sandbox %s: %w", port, s.ID, err)
	}
	maps.Copy(req.Header, routing)
	if s.traffic != "" {
		req.Header.Set(headerTraffic, s.traffic)
	}
	if port == agentpb.Port && s.token != "" {
		req.Header.Set(agentpb.HeaderAccessToken, s.token)
	}
	return req, nil
}

// ReadFile opens a file in the sandbox for reading. A relative path is below
// the user's home directory. The caller closes what it gets.
func (s *Sandbox) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := s.fileRequest(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // compressing costs more than it saves this near
	resp, err := s.client.send(req)
	if err != nil {
		return nil, fmt.Errorf("read %s in sandbox %s: %w", path, s.ID, err)
	}
	return &fileBody{ReadCloser: resp.Body}, nil
}

// WriteFile makes or replaces a file in the sandbox with what r holds. Missing
// directories on the way are made. A relative path is below the user's home
// directory.
func (s *Sandbox) WriteFile(ctx context.Context, path string, r io.Reader) error {
	req, err := s.fileRequest(ctx, http.MethodPost, path, r)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := s.client.send(req)
	if err != nil {
		return fmt.Errorf("write %s in sandbox %s: %w", path, s.ID, err)
	}
	defer func() { _ = resp.Body.Close() }()
	return decode(resp.Body, nil)
}

func (s *Sandbox) fileRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	q := url.Values{"path": {path}}
	if s.user != "" {
		q.Set("username", s.user)
	}
	return s.Request(ctx, method, agentpb.Port, "/files?"+q.Encode(), body)
}

// fileBody names what it means when a download breaks off.
type fileBody struct{ io.ReadCloser }

func (b *fileBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !isContext(err) {
		err = interrupted(err)
	}
	return n, err
}

// doer sends the agent's RPCs. It adds what routes them and lets them in, and
// gives the answers of the proxy, which connect would reduce to a status, their
// own text.
type doer struct {
	sandbox *Sandbox
	routing http.Header
}

func (d doer) Do(req *http.Request) (*http.Response, error) {
	s := d.sandbox
	maps.Copy(req.Header, d.routing)
	req.Header.Set("User-Agent", userAgent)
	if s.token != "" {
		req.Header.Set(agentpb.HeaderAccessToken, s.token)
	}
	if s.user != "" {
		req.SetBasicAuth(s.user, "") // selects the user inside; proves nothing
	}
	resp, err := s.client.http.Do(req)
	if err != nil {
		return nil, transportError(req.URL, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	return passRPCError(resp)
}

// passRPCError returns the answer as it is if its body is an error of the
// Connect protocol, whose code is a string, and else the error that it is.
func passRPCError(resp *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") && hasStringCode(body) {
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return resp, nil
	}
	return nil, parseError(resp.StatusCode, body)
}

func hasStringCode(body []byte) bool {
	var wire struct {
		Code string `json:"code"`
	}
	return json.Unmarshal(body, &wire) == nil && wire.Code != ""
}
