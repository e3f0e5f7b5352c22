//go:build linux

package cli_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestUIOpensABrowser: on a desktop drowse ui opens a browser, which gets the link by
// an address that is good once; elsewhere it prints the link alone.
func TestUIOpensABrowser(t *testing.T) {
	d := sitDown(t)
	bin, said := t.TempDir(), filepath.Join(t.TempDir(), "said")
	// It asks twice, as another user of the machine might.
	opener := "#!/bin/sh\necho \"$1\" >" + said + "\nfor n in 1 2; do curl -s -o /dev/null -w '%{http_code} %{redirect_url}\\n' \"$1\" >>" + said + ".new; done\ncurl -s -o /dev/null -w '%{http_code}\\n' \"${1%/*}/\" >>" + said + ".new\nmv " + said + ".new " + said + ".done\n"
	if err := os.WriteFile(filepath.Join(bin, "xdg-open"), []byte(opener), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	link := regexp.MustCompile(`^http://127\.0\.0\.1:\d+/ui/link#[\w-]{43}\n$`)

	t.Setenv("DISPLAY", "")
	t.Setenv("WAYLAND_DISPLAY", "")
	if out := d.on(0, "ui"); !link.MatchString(out) {
		t.Errorf("without a desktop it prints %q", out)
	}
	t.Setenv("DISPLAY", ":0")
	for _, args := range [][]string{{"ui", "--no-open"}, {"ui", "-o", "json"}} {
		_ = d.on(0, args...)
	}
	_, _ = d.run("ui") // into a pipe
	if _, err := os.Stat(said); err == nil {
		t.Fatal("a browser is opened that nobody asked for")
	}
	out := d.on(0, "ui")
	if !link.MatchString(out) {
		t.Fatalf("on a desktop it prints %q", out)
	}
	var got []byte
	for end := time.Now().Add(time.Minute); got == nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got, _ = os.ReadFile(said + ".done")
	}
	address, err := os.ReadFile(said)
	if err != nil || strings.Contains(string(address), "/ui/link") {
		t.Errorf("the browser is given %s, %v", address, err)
	}
	answers := strings.Split(string(got), "\n")
	if answers[0] != "303 "+strings.TrimSpace(out) || strings.Contains(strings.Join(answers[1:], "\n"), "/ui/link") {
		t.Errorf("it is answered %q, want one redirect to %s", answers, out)
	}
	if resp, err := http.Get(strings.TrimSpace(string(address))); err == nil { //nolint:noctx // it is to be refused
		resp.Body.Close()
		t.Errorf("the address goes on to answer: %s", resp.Status)
	}
}
