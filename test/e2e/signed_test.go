package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestSignedURLs reads and writes files by signed URLs that say nothing of the
// sandbox, with curl, awake and asleep.
func TestSignedURLs(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, time.Minute)
	s := startServer(t)
	first, sb := s.create(ctx, sleeper), s.create(ctx, sleeper)
	if err := sb.WriteFile(ctx, "/home/user/known", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	req, err := sb.Request(ctx, http.MethodGet, agentPort, "/files", nil)
	if err != nil {
		t.Fatal(err)
	}
	token := req.Header.Get("X-Access-Token")
	signed := func(operation, path string, end time.Time) string {
		q := url.Values{"path": {path}, "signature": {sign(path, operation, "", token, end)}}
		if !end.IsZero() {
			q.Set("signature_expiration", fmt.Sprint(end.Unix()))
		}
		return "/files?" + q.Encode()
	}
	anyone := &curl{ctx: ctx, s: s}
	later := time.Now().Add(time.Hour)
	read := signed("read", "/home/user/known", later)
	for _, asleep := range []bool{false, true} {
		if asleep {
			s.pause(ctx, sb.ID)
		}
		for name, bad := range map[string]string{
			"another path":       strings.Replace(read, "known", "other", 1),
			"another signature":  signed("write", "/home/user/known", later),
			"a signature's end":  signed("read", "/home/user/known", time.Now().Add(-time.Second)),
			"an end put forward": strings.Replace(read, fmt.Sprint(later.Unix()), fmt.Sprint(later.Unix()+1), 1),
		} {
			if status, out := anyone.do(bad); status < 400 || status >= 500 || strings.Contains(out, "content") {
				t.Errorf("%s: status %d %q", name, status, out)
			}
		}
		if asleep {
			if err := s.is(ctx, sb.ID, client.Paused); err != nil {
				t.Fatalf("a bad signature woke it: %v", err)
			}
		}
		if status, out := anyone.do(read); out != "content" || status != http.StatusOK {
			t.Errorf("read, asleep %t: status %d %q", asleep, status, out)
		}
		if asleep {
			s.pause(ctx, sb.ID)
		}
		written := fmt.Sprintf("/home/user/written-%t", asleep)
		if status, out := anyone.do(signed("write", written, time.Time{}), "--form", "file=written by curl;filename=x"); status != http.StatusOK {
			t.Errorf("write, asleep %t: status %d %q", asleep, status, out)
		}
		if got, err := sb.ReadFile(ctx, written); err != nil {
			t.Error(err)
		} else {
			data, err := io.ReadAll(got)
			got.Close()
			if string(data) != "written by curl" {
				t.Errorf("what was written is %q, %v", data, err)
			}
		}
	}
	if _, err := first.ReadFile(ctx, "/home/user/known"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the other sandbox's file: %v", err)
	}
}

// sign makes the signature of a file URL as SDKs do; without an end, it is good
// for ever.
func sign(path, operation, user, token string, end time.Time) string {
	text := strings.Join([]string{path, operation, user, token}, ":")
	if !end.IsZero() {
		text += fmt.Sprintf(":%d", end.Unix())
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
