package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestLogs: what ran in a sandbox, and what happened to it, can be read while it
// sleeps and after a crash of the server, without a wake and without secrets.
func TestLogs(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 2*time.Minute)
	s := startServer(t)
	variable := "value-of-a-variable"
	sb := s.create(ctx, client.CreateOptions{Env: map[string]string{"SETTING": variable}})
	if end, out := run(ctx, t, sb, "/bin/sh", "-c", "echo "+variable+"; exit 3"); end.Code != 3 {
		t.Fatalf("exit %+v: %s", end, out)
	}
	s.pause(ctx, sb.ID)
	s.crash()
	s.start()
	var log struct {
		Logs []struct{ Level, Message string }
	}
	s.call(ctx, "GET", "/v2/sandboxes/"+sb.ID+"/logs?direction=forward", "", &log)
	var text strings.Builder
	for _, l := range log.Logs {
		text.WriteString(l.Level + " " + l.Message + "\n")
	}
	at := 0
	for _, want := range []string{
		"info sandbox running\n", "info process started: /bin/sh -c echo ***; exit 3\n", "warn process ended: exit status 3\n", "info sandbox paused\n",
	} {
		n := strings.Index(text.String()[at:], want)
		if n < 0 {
			t.Fatalf("the log has no %q there:\n%s", want, text.String())
		}
		at += n
	}
	if strings.Contains(text.String(), variable) {
		t.Errorf("the value of a variable is in the log:\n%s", text.String())
	}
	var state string
	if err := json.Unmarshal(s.details(ctx, sb.ID)["state"], &state); err != nil || state != "paused" {
		t.Errorf("after its log was read it is %s, %v", state, err)
	}
}
