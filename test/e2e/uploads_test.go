package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestUploadsAreWholeOrNothing ends uploads over a file before they are whole. The file stays what it was, and nothing is left of them.
func TestUploadsAreWholeOrNothing(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	g := s.startGuest(ctx, sleeper)
	a := &attacked{t, g.sb}
	out := func(script string) string { return strings.TrimSpace(shellOut(ctx, t, g.sb, script)) }
	for _, c := range []struct {
		name, dir string
		end       func()
	}{
		{"client gone", "/home/user/d", func() {}},
		{"pause", "/home/user/d", func() { s.pause(ctx, g.sb.ID) }},
		{"pause, in memory", "/tmp/d", func() { s.pause(ctx, g.sb.ID) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, path := c.dir, c.dir+"/f"
			if status, text := a.upload(ctx, path, strings.NewReader("good")); status != http.StatusOK {
				t.Fatalf("upload: %d %s", status, text)
			}
			body, write := io.Pipe()
			gone := func() { write.CloseWithError(errors.New("gone")) }
			defer gone()
			req, err := g.sb.Request(ctx, http.MethodPost, agentPort, "/files?path="+path, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/octet-stream")
			ended := make(chan string, 1)
			go func() {
				resp, err := httpClient.Do(req)
				if err != nil {
					ended <- err.Error()
					return
				}
				resp.Body.Close()
				ended <- resp.Status
			}()
			if _, err := write.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			eventually(t, 30*time.Second, "the upload is under way", func() error {
				if now := out("ls -A " + dir + "; cat " + path); now == "f\ngood" {
					return fmt.Errorf("there is %q", now)
				}
				return nil
			})
			c.end()
			gone()
			select {
			case got := <-ended:
				if strings.HasPrefix(got, "2") {
					t.Errorf("the upload ended with %s", got)
				}
			case <-ctx.Done():
				t.Fatal("the upload goes on")
			}
			eventually(t, 30*time.Second, "nothing is left of it", func() error {
				if now := out("ls -A " + dir + "; cat " + path); now != "f\ngood" {
					return fmt.Errorf("there is %.100q", now)
				}
				return nil
			})
		})
	}
	t.Run("full", func(t *testing.T) {
		out("head -c 100G /dev/zero 2>&1 >/tmp/fill | tail -c 24")
		status, text := a.upload(ctx, "/tmp/d/f", bytes.NewReader(make([]byte, 8<<20)))
		if status != http.StatusInsufficientStorage {
			t.Errorf("upload: %d %s", status, text)
		}
		if now := out("ls -A /tmp/d; cat /tmp/d/f"); now != "f\ngood" {
			t.Errorf("there is %.100q", now)
		}
	})
}
