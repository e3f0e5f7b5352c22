package store_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

func TestWakePolicy(t *testing.T) {
	c := store.Config{Ports: store.Ports{
		"8000":             lifecycle.Keep,
		"8000/healthz":     lifecycle.Ignore,
		"8000/api":         lifecycle.Ignore,
		"8000/api/jobs":    lifecycle.Wake,
		"8000/ü x":         lifecycle.Ignore,
		"9000/metrics":     lifecycle.Ignore,
		"80":               lifecycle.Ignore,
		"80/only/this/way": lifecycle.Wake,
	}}
	for _, tt := range []struct {
		port int
		path string
		want lifecycle.WakePolicy
	}{
		{8000, "/", lifecycle.Keep},
		{8000, "", lifecycle.Keep},
		{8000, "*", lifecycle.Keep}, // as in OPTIONS *
		{8000, "/other", lifecycle.Keep},
		{8000, "/healthz", lifecycle.Ignore},
		{8000, "/healthz/", lifecycle.Ignore},
		{8000, "/healthz/live", lifecycle.Ignore},
		{8000, "/healthzzz", lifecycle.Keep},
		{8000, "/health", lifecycle.Keep},
		{8000, "/HEALTHZ", lifecycle.Keep},
		{8000, "//healthz", lifecycle.Ignore},
		{8000, "/./healthz", lifecycle.Ignore},
		{8000, "/x/../healthz", lifecycle.Ignore},
		{8000, "/healthz/../x", lifecycle.Keep},
		{8000, "/healthz/%2e%2e/x", lifecycle.Keep},
		{8000, "/../../healthz", lifecycle.Ignore},
		{8000, "/%68ealthz", lifecycle.Ignore},
		{8000, "/healthz%2Flive", lifecycle.Ignore},
		{8000, "/%2568ealthz", lifecycle.Keep}, // decoded once, as a server would
		{8000, "/%zzhealthz", lifecycle.Keep},
		{8000, "/api", lifecycle.Ignore},
		{8000, "/api/x", lifecycle.Ignore},
		{8000, "/api/jobs", lifecycle.Wake},
		{8000, "/api/jobs/7", lifecycle.Wake},
		{8000, "/api/jobs/..", lifecycle.Ignore},
		{8000, "/api/jobsx", lifecycle.Ignore},
		{8000, "/%C3%BC%20x/1", lifecycle.Ignore},
		{9000, "/metrics", lifecycle.Ignore},
		{9000, "/", lifecycle.Wake},
		{80, "/only/this", lifecycle.Ignore},
		{80, "/only/this/way", lifecycle.Wake},
		{800, "/", lifecycle.Wake},
		{1, "/healthz", lifecycle.Wake},
	} {
		if got := c.WakePolicy(tt.port, tt.path); got != tt.want {
			t.Errorf("%d%s: %s, want %s", tt.port, tt.path, got, tt.want)
		}
	}
	if got := (store.Config{}).WakePolicy(8000, "/"); got != lifecycle.Wake {
		t.Errorf("without rules: %s", got)
	}
}

func TestParsePortRule(t *testing.T) {
	for text, want := range map[string]string{
		"1": "1", "65535": "65535", "80/": "80", "80/a": "80/a", "80/a/": "80/a", "80/a/b": "80/a/b", "80/ü x": "80/ü x", "80/.well-known": "80/.well-known",
	} {
		got, err := store.ParsePortRule(text)
		if err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
		if again, err := store.ParsePortRule(got); err != nil || again != got {
			t.Errorf("%q again is %q, %v", got, again, err)
		}
	}
	for text, remedy := range map[string]string{
		"": "65535", "0": "65535", "080": "65535", "65536": "65535", "-1": "65535", "+1": "65535", "a": "65535", "/healthz": "65535", "80healthz": "65535", "80 /x": "65535",
		"80/a?b": "query", "80/a#b": "query", "80/%61": "percent", "80/\x00": "plain",
		"80//": "80/", "80//a": "80/a", "80/a//b": "80/a/b", "80/./a": "80/a", "80/a/../b": "80/b", "80/..": "80/",
		"80/" + strings.Repeat("a", 2000): "1024",
	} {
		_, err := store.ParsePortRule(text)
		if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "port_invalid" || !strings.Contains(e.Remedy, remedy) {
			t.Errorf("%q: %v, want port_invalid with a remedy that has %q", text, err, remedy)
		}
	}
}

// TestPortsOfOldRecords: before there were paths, the keys were numbers.
func TestPortsOfOldRecords(t *testing.T) {
	old, err := json.Marshal(map[string]any{"ports": map[int]lifecycle.WakePolicy{8000: lifecycle.Ignore}})
	if err != nil {
		t.Fatal(err)
	}
	var c store.Config
	if err := json.Unmarshal(old, &c); err != nil || c.WakePolicy(8000, "/x") != lifecycle.Ignore {
		t.Errorf("%s is read as %v, %v", old, c.Ports, err)
	}
}
