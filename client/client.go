// Package client talks to a drowse server: it makes sandboxes, puts them to
// sleep, wakes them, and runs commands and moves files inside them.
//
// # Which server, and which key?
//
// [New] takes the server's URL and an API key. The server writes its first key
// to the file api-key in its state directory, readable by root:
//
//	c, err := client.New(client.Options{URL: "http://127.0.0.1:3000", APIKey: key})
//
// # How do I get a sandbox?
//
// [Client.Create] makes one and returns when it takes commands.
// [Client.Open] gives a handle to one that exists and leaves it as it is,
// asleep or not. [Client.Connect] wakes it if it sleeps and makes sure that it
// has time left.
//
// # When does it sleep, and when does it end?
//
// Four clocks can put it to sleep or end it: a timeout, which begins anew at
// each start; an idle timeout, which runs while no work is going on; a lifetime;
// and how long it may stay asleep. None has a limit unless [CreateOptions] or a
// [Client.Patch] sets one. Asleep it keeps its memory, processes and files, and
// with CreateOptions.AutoResume the first request to it, also one made through
// this package, wakes it again. [Client.SetTimeout] moves the deadline of a
// running sandbox either way. [Client.Hold] counts it as busy for a while,
// whatever can be seen of it.
//
// [Client.Explain] tells why a sandbox is as it is and what happens next,
// [Client.Events] what has happened, and [Client.Follow] what happens.
//
// # What is left of one that has ended?
//
// For a month its [Tombstone], which says why it ended, when and by whom:
// [Client.Find] has it. All other calls then fail with [ErrNotFound] and that
// reason.
//
// # How do I run something?
//
// [Sandbox.Run] runs a command to its end, as [os/exec.Cmd.Run] does.
// [Sandbox.Start] returns once it runs, and the [Process] tells the rest.
// [Sandbox.Shell] is the same on a terminal. [Sandbox.ReadFile] and
// [Sandbox.WriteFile] move files, and [Sandbox.ListFiles] lists them.
// [Sandbox.RunCode] runs a cell as a notebook does. [Sandbox.Request] builds a
// plain HTTP request to a server inside, and [Client.CreatePreview] makes a link
// to one for people who have no key.
//
// # How do others get in?
//
// [Client.CreateKey] makes an API key of a role, with limits on what its
// sandboxes take together, and [Client.RevokeKey] ends it. Only an admin key
// may.
//
// # What do errors tell?
//
// An answer of the server that is a refusal is an [*Error] with the status, a
// stable code, what happened and what to do. Branch on
// the classes with errors.Is: [ErrNotFound], [ErrUnauthorized], [ErrForbidden],
// [ErrConflict], [ErrInvalid], [ErrLimit], [ErrNotRunning], [ErrUnavailable].
// [ErrUnreachable] says that no server answered, and nothing was done.
// [ErrInterrupted] says that a connection into a sandbox was cut, because the
// sandbox was paused or killed or the server went away. A command that ends
// with a non-zero code is no error: it is in [Exit].
//
// # What of time limits and concurrency?
//
// No call has a time limit of its own; the context decides. All methods are
// safe for concurrent use, except that [Process.Wait] is called once.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// DefaultURL is where a server listens unless told otherwise.
const DefaultURL = "http://127.0.0.1:3000"

// maxAnswer bounds what is read of an answer that is decoded in memory.
const maxAnswer = 32 << 20

const userAgent = "drowse-go"

// Options says which server to talk to.
type Options struct {
	// URL is the server's address; empty means DefaultURL.
	URL string
	// SandboxURL is where requests into sandboxes go if they do not go to URL.
	// Sandbox and port travel as headers where the host of that URL is localhost,
	// an address or sandbox.*, and else in the path: a server with a domain takes
	// them so under each of its names.
	SandboxURL string
	// APIKey is sent with every call to the server, never into a sandbox.
	APIKey string
	// HTTPClient makes the requests; nil means one with the transport's
	// defaults. Its Timeout bounds whole commands, so leave it zero.
	// Redirects are not followed: they would carry the key elsewhere.
	HTTPClient *http.Client
}

// Client is a connection to one server.
type Client struct {
	caller
	data *url.URL
}

// caller makes calls to the control plane of a server.
type caller struct {
	api  *url.URL
	key  string
	http *http.Client
}

// New returns a client. It makes no request.
func New(o Options) (*Client, error) {
	api, err := parseBase(o.URL, DefaultURL)
	if err != nil {
		return nil, err
	}
	data, err := parseBase(o.SandboxURL, api.String())
	if err != nil {
		return nil, err
	}
	var hc http.Client
	if o.HTTPClient != nil {
		hc = *o.HTTPClient
	}
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{caller{api, o.APIKey, &hc}, data}, nil
}

func parseBase(text, fallback string) (*url.URL, error) {
	if text == "" {
		text = fallback
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("server URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("server URL %q: want http://host:port or https://host", text)
	}
	return u, nil
}

// byHeader reports whether a server takes requests for a host into the sandbox
// that headers name. Under any other name only the host or the path can name one.
func byHeader(u *url.URL) bool {
	host := strings.ToLower(u.Hostname())
	return host == "localhost" || strings.HasPrefix(host, "sandbox.") || net.ParseIP(host) != nil
}

// URL returns the server's address.
func (c *Client) URL() string { return c.api.String() }

// Health returns nil if a server answers and says that it is well.
func (c *Client) Health(ctx context.Context) error {
	if err := c.call(ctx, http.MethodGet, "/health", nil, nil, nil); err != nil {
		return fmt.Errorf("ask for the server's health: %w", err)
	}
	return nil
}

// call makes one request to the control plane. in, if not nil, is sent as
// JSON; out, if not nil, receives the answer. An answer other than 2xx is an
// *Error.
func (c *caller) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	return c.callOnce(ctx, method, path, query, "", in, out)
}

// callOnce is call with an idempotency key; empty for none.
func (c *caller) callOnce(ctx context.Context, method, path string, query url.Values, key string, in, out any) error {
	req, err := c.request(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set(headerIdempotency, key)
	}
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode(resp.Body, out)
}

// request builds a request to the control plane, with the key.
func (c *caller) request(ctx context.Context, method, path string, query url.Values, in any) (*http.Request, error) {
	u := c.api.JoinPath(path)
	u.RawQuery = query.Encode()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	if c.key != "" {
		req.Header.Set("X-API-Key", c.key)
	}
	return req, nil
}

func decode(body io.Reader, out any) error {
	body = io.LimitReader(body, maxAnswer)
	if out == nil {
		_, _ = io.Copy(io.Discard, body) // so that the connection can be used again
		return nil
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("understand the server's answer: %w", err)
	}
	return nil
}

// send makes a request and turns everything but a 2xx answer into an error.
func (c *caller) send(req *http.Request) (*http.Response, error) {
	req.Header.Set("User-Agent", userAgent)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, transportError(req.URL, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	return nil, errorOf(resp)
}

const headerIdempotency = "Idempotency-Key"

const sandboxesPath = "/v1/sandboxes"

// sandboxID is an id, or the historical composite of it and a client id.
// Checking here keeps other text out of paths and headers.
var sandboxID = regexp.MustCompile(`^([a-z0-9]+)(-[a-z0-9]+)?$`)

// sandboxPath returns the path of a call on one sandbox.
func sandboxPath(id string) (string, error) {
	m := sandboxID.FindStringSubmatch(id)
	if m == nil {
		return "", invalid("invalid_sandbox_id", "%q is not a sandbox id: want lower-case letters and digits", id)
	}
	return sandboxesPath + "/" + m[1], nil
}

func invalid(code, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: code, Message: fmt.Sprintf(format, args...)}
}

// isContext reports whether err is the context's doing.
func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
