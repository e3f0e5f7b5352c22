//go:build linux

package cli_test

import (
	"context"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestUIOpensABrowser: on a desktop drowse ui opens a browser, which gets the link by
// a file that no other user can read; elsewhere it prints the link alone.
func TestUIOpensABrowser(t *testing.T) {
	d := sitDown(t)
	home := filepath.Join(t.TempDir(), "a #home 100%")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	bin, said := t.TempDir(), filepath.Join(t.TempDir(), "said")
	opens := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "xdg-open"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	opens("printf %s \"$*\" >" + said + ".new; mv " + said + ".new " + said)
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

	ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
	defer interrupt()
	type outcome struct {
		code            int
		out, complaints string
	}
	ended := make(chan outcome, 1)
	go func() {
		code, out, complaints := d.onUntil(ctx, 0, "ui")
		ended <- outcome{code, out, complaints}
	}()
	var given []byte
	for given == nil && ctx.Err() == nil {
		given, _ = os.ReadFile(said)
		time.Sleep(10 * time.Millisecond)
	}
	u, err := url.Parse(string(given))
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme != "file" || filepath.Dir(filepath.Dir(u.Path)) != home || strings.Contains(u.Path, "/.") {
		t.Errorf("the browser is given %q", given)
	} else {
		for path, want := range map[string]os.FileMode{u.Path: 0o600, filepath.Dir(u.Path): os.ModeDir | 0o700} {
			if i, err := os.Stat(path); err != nil || i.Mode() != want {
				t.Errorf("%s: %v, %v, want %s", path, i, err, want)
			}
		}
	}
	page, _ := os.ReadFile(u.Path)
	interrupt()
	got := <-ended
	if got.code != 0 || !link.MatchString(got.out) {
		t.Fatalf("on a desktop: code %d, %q, %s", got.code, got.out, got.complaints)
	}
	to := html.EscapeString(strings.TrimSpace(got.out))
	if n := strings.Count(string(page), `url=`+to+`"`) + strings.Count(string(page), `href="`+to+`"`); n != 2 {
		t.Errorf("the page is %s, want it to lead to %s", page, to)
	}
	nothingLeft := func() {
		t.Helper()
		if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
			t.Errorf("it leaves %v, %v", left, err)
		}
	}
	nothingLeft()

	opens("exit 3\n")
	if code, out, complaints := d.onUntil(t.Context(), 0, "ui"); code != 0 || !link.MatchString(out) || !strings.Contains(complaints, "no browser was opened") || !strings.Contains(complaints, "open the link yourself") {
		t.Errorf("a browser that does not start: code %d, %q, %s", code, out, complaints)
	}
	nothingLeft()
}
