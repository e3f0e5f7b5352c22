package cli_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli"
)

// wideDoctor says what the doctor of a server says, in lines as long as some of its.
func wideDoctor(_ context.Context, w io.Writer, _ bool, _ string) (bool, error) {
	_, err := fmt.Fprintf(w, "%-5s %-16s %s\n", "note", "disk rates", "--disk-read-rate and --disk-write-rate cannot be used: "+strings.Repeat("the state directory is on a file system without a disk ", 3))
	return true, err
}

// on runs a command on a terminal of so many columns.
func (d desk) on(columns int, args ...string) string {
	d.t.Helper()
	code, out, complaints := d.onUntil(context.Background(), columns, args...)
	if code != 0 {
		d.t.Errorf("%q: code %d, %s", args, code, complaints)
	}
	return out
}

// onUntil runs a command on a terminal until ctx ends, and returns its code and what
// it printed on the terminal and beside it.
func (d desk) onUntil(ctx context.Context, columns int, args ...string) (int, string, string) {
	d.t.Helper()
	ours, theirs, err := pty.Open()
	if err != nil {
		d.t.Fatal(err)
	}
	defer ours.Close()
	if err := pty.Setsize(theirs, &pty.Winsize{Cols: uint16(columns), Rows: 24}); err != nil {
		d.t.Fatal(err)
	}
	shown := make(chan string)
	go func() {
		var out strings.Builder
		_, _ = io.Copy(&out, ours) // it ends with an error when the other end is closed
		shown <- out.String()
	}()
	var complaints strings.Builder
	o := d.options(cli.Options{Stdin: strings.NewReader(""), Stdout: theirs, Stderr: &complaints, Doctor: wideDoctor})
	code := cli.Main(ctx, args, o)
	theirs.Close()
	return code, strings.ReplaceAll(<-shown, "\r\n", "\n"), complaints.String()
}

// TestFitsTheTerminal: nothing that is listed or explained is wider than a terminal of 80
// columns, and no id is cut.
func TestFitsTheTerminal(t *testing.T) {
	d := sitDown(t)
	made := func(args ...string) string {
		t.Helper()
		code, out := d.run(args...)
		if code != 0 {
			t.Fatalf("%q: %s", args, out)
		}
		return strings.Fields(out)[0]
	}
	long := strings.Repeat("long-name-", 6)
	short := made("create", "--name", "app", "--timeout", "1h", "--on-timeout", "pause", "--auto-resume")
	id := made("create", "--name", long+"box", "--timeout", "1h", "--metadata", "what="+strings.Repeat("many words ", 10), "--allow-out", "registry-of-packages.example.com", "--allow-out", "another-registry-of-packages.example.com", "--deny-out", "0.0.0.0/0", "--service", "web,port=8000:python3 -m http.server 8000 --directory /home/user/"+long)
	made("hold", id, "--for", "1h", "--reason", "a build of the night that takes until the morning comes at last")
	snap := made("snapshot", "create", id, "--name", long+"snapshot")
	made("keys", "create", "a name of a key "+strings.Repeat("that is long ", 5))
	volume := made("volumes", "create", long)
	made("template", "pull", "--name", long+"made", "tools")
	c, err := client.New(client.Options{URL: d.url, APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.NewSecrets(c).Set(t.Context(), "TOKEN_OF_"+long, client.SecretOptions{Hosts: []string{"api.one.example.com", "api.two.example.com", "api.three.example.com"}, Value: "a-value"}); err != nil {
		t.Fatal(err)
	}
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer away.Close()
	made("webhooks", "add", away.URL+"/deliveries/of/"+long, "--name", long+"hook")
	made("pause", short)
	made("resume", short)
	hooks, err := client.NewWebhooks(c).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for tried := []client.Delivery(nil); len(tried) == 0; time.Sleep(10 * time.Millisecond) {
		if tried, err = client.NewWebhooks(c).Deliveries(t.Context(), hooks[0].ID, 0); err != nil {
			t.Fatal(err)
		}
	}
	made("preview", id, "8000")
	for _, tt := range []struct {
		args []string
		ids  []string // which stay whole
	}{
		{args: []string{"ls"}, ids: []string{id, short, long + "box"}},
		{args: []string{"get", id}, ids: []string{id, long + "box"}},
		{args: []string{"why", id}, ids: []string{id}},
		{args: []string{"why", short}, ids: []string{short}},
		{args: []string{"trace", id}},
		{args: []string{"stats"}, ids: []string{id, short}},
		{args: []string{"events"}, ids: []string{id, short}},
		{args: []string{"events", id}},
		{args: []string{"hold", id, "--list"}},
		{args: []string{"preview", id, "--list"}},
		{args: []string{"keys", "ls"}},
		{args: []string{"keys", "ls", "--cost"}},
		{args: []string{"volumes", "ls"}, ids: []string{volume}},
		{args: []string{"snapshot", "ls"}, ids: []string{snap}},
		{args: []string{"template", "ls"}},
		{args: []string{"template", "inspect", long + "made"}},
		{args: []string{"secret", "ls"}},
		{args: []string{"service", "ls", id}},
		{args: []string{"ssh-keys", "ls"}},
		{args: []string{"webhooks", "ls"}, ids: []string{hooks[0].ID}},
		{args: []string{"webhooks", "deliveries", hooks[0].ID}},
		{args: []string{"audit"}},
		{args: []string{"servers"}},
		{args: []string{"audit", "--all"}},
		{args: []string{"doctor"}},
		{args: []string{"version"}},
	} {
		text := d.on(80, tt.args...)
		t.Logf("%q\n%s", tt.args, text)
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			if n := utf8.RuneCountInString(line); n > 80 && strings.ContainsRune(strings.TrimSpace(line), ' ') {
				t.Errorf("%q has a line of %d columns:\n%s", tt.args, n, text)
				break
			}
		}
		for _, id := range tt.ids {
			if !strings.Contains(text, id) {
				t.Errorf("%q lacks %s:\n%s", tt.args, id, text)
			}
		}
	}
}
