package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// browser is a Chromium without a window, driven by the WebDriver protocol.
type browser struct {
	t   *testing.T
	url string // of the session
}

// startBrowser starts a browser that ends with the test.
func startBrowser(ctx context.Context, t *testing.T) *browser {
	t.Helper()
	for _, name := range []string{"chromium", "chromedriver"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: script/deps test installs it", err)
		}
	}
	home, err := os.MkdirTemp("", "dwchrome")
	if err != nil {
		t.Fatal(err)
	}
	addr := freeAddress(t)
	_, port := splitAddress(t, addr)
	driver := exec.Command("chromedriver", "--port="+port)
	driver.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	driver.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var log logBuffer
	driver.Stdout, driver.Stderr = &log, &log
	driver.WaitDelay = time.Second
	if err := startCommand(driver); err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, url: "http://" + addr}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of chromedriver:\n%s", log.tail(30))
		}
		_ = syscall.Kill(-driver.Process.Pid, syscall.SIGKILL) // the browser is in its group
		_ = driver.Wait()
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	eventually(t, startWithin, "chromedriver answers", func() error { return b.call(ctx, http.MethodGet, "/status", nil, nil) })
	var session struct {
		SessionID string `json:"sessionId"`
	}
	err = b.call(ctx, http.MethodPost, "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"goog:chromeOptions": map[string]any{"args": []string{
			"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--no-proxy-server",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir=" + home + "/data",
		}},
	}}}, &session)
	if err != nil {
		t.Fatal(err)
	}
	b.url += "/session/" + session.SessionID
	t.Cleanup(func() {
		if err := b.call(context.WithoutCancel(ctx), http.MethodDelete, "", nil, nil); err != nil {
			t.Error(err)
		}
	})
	return b
}

// call makes one call of the protocol.
func (b *browser) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, body)
	if err != nil {
		return err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %.500s", method, path, resp.Status, data)
	}
	return json.Unmarshal(data, &struct{ Value any }{out})
}

// open goes to a page and waits until it is loaded, whatever it is.
func (b *browser) open(ctx context.Context, url string) {
	b.t.Helper()
	if err := b.call(ctx, http.MethodPost, "/url", map[string]string{"url": url}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns what JavaScript in the page says. It fails while the page is
// being replaced by another.
func (b *browser) eval(ctx context.Context, script string, out any) error {
	return b.call(ctx, http.MethodPost, "/execute/sync", map[string]any{"script": "return " + script, "args": []any{}}, out)
}

// text returns all that can be read on the page.
func (b *browser) text(ctx context.Context) string {
	b.t.Helper()
	var text string
	if err := b.eval(ctx, "document.title + '\\n' + document.body.innerText", &text); err != nil {
		b.t.Fatal(err)
	}
	return text
}

// address is where the browser is now.
func (b *browser) address(ctx context.Context) string {
	b.t.Helper()
	var url string
	if err := b.call(ctx, http.MethodGet, "/url", nil, &url); err != nil {
		b.t.Fatal(err)
	}
	return url
}

// cookie is one that the browser would send to the page's address.
type cookie struct {
	Name, Value, Path, Domain, SameSite string
	HTTPOnly                            bool `json:"httpOnly"`
}

func (b *browser) cookies(ctx context.Context) []cookie {
	b.t.Helper()
	var all []cookie
	if err := b.call(ctx, http.MethodGet, "/cookie", nil, &all); err != nil {
		b.t.Fatal(err)
	}
	return all
}
