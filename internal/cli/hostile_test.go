package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli"
	"github.com/drowse-dev/drowse/internal/cli/fakeserver"
)

// hostileText is what a tenant would like to do to the terminal of who reads it:
// clear it, set its title, colour it with a character of C1, turn the writing
// round, hide in tags, end the line and begin a cell or a line of its own.
const hostileText = "\x1b[2J\x1b]0;title\x07\u009b31m\u202e\u2066\U000e0041\u2028\r\b\x7f\nFORGED line\tcell"

// chosenByServer are the fields of answers that no tenant has a say in and the
// client understands.
var chosenByServer = regexp.MustCompile(`(?i)(id|url|token|state|phase|mode|onTimeout|onIdle|domain|key|role|version|policy|type|kind|from|to)$`)

// withHostileText puts hostile text into every text of a JSON value that a tenant
// could have had a say in.
func withHostileText(name string, v any) any {
	switch v := v.(type) {
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil || chosenByServer.MatchString(name) {
			return v
		}
		return v + hostileText
	case []any:
		for i := range v {
			v[i] = withHostileText(name, v[i])
		}
	case map[string]any:
		for _, k := range slices.Collect(maps.Keys(v)) {
			v[k] = withHostileText(k, v[k])
		}
		if name == "metadata" {
			v["name"+hostileText] = hostileText
		}
	}
	return v
}

// hostileServer answers like a fake server, with hostile text.
func hostileServer(t *testing.T) *httptest.Server {
	fake := fakeserver.New(key, t.TempDir())
	t.Cleanup(fake.Close)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said := httptest.NewRecorder()
		fake.ServeHTTP(said, r)
		body := said.Body.Bytes()
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		var v any
		if strings.HasPrefix(said.Header().Get("Content-Type"), "application/json") && dec.Decode(&v) == nil {
			body, _ = json.Marshal(withHostileText("", v))
		}
		maps.Copy(w.Header(), said.Header())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(said.Code)
		_, _ = w.Write(body)
	}))
	t.Cleanup(srv.Close)
	return srv
}

// hostileUpkeep is doctor, fsck and gc over a directory in which a tenant has
// chosen a name.
func hostileUpkeep(w io.Writer, asJSON bool) (bool, error) {
	if asJSON {
		return true, json.NewEncoder(w).Encode(map[string]string{"what": hostileText})
	}
	_, err := fmt.Fprintf(w, "ok  %s\n", strings.ReplaceAll(hostileText, "\n", ""))
	return true, err
}

// TestHostileText runs every command against a server whose tenants have put all
// that acts on a terminal into whatever they can choose. Nothing of it arrives.
func TestHostileText(t *testing.T) {
	srv := hostileServer(t)
	run := func(args ...string) (out, complaints string, code int) {
		var stdout, stderr bytes.Buffer
		code = cli.Main(context.Background(), args, cli.Options{
			Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
			Getenv: func(name string) string {
				return map[string]string{"DROWSE_URL": srv.URL, "DROWSE_API_KEY": key, "DROWSE_STATE_DIR": t.TempDir()}[name]
			},
			Doctor: func(_ context.Context, w io.Writer, asJSON bool, _ string) (bool, error) {
				return hostileUpkeep(w, asJSON)
			},
			Fsck: func(_ context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
				return hostileUpkeep(w, o.JSON)
			},
			Backup: func(_ context.Context, w io.Writer, o cli.UpkeepOptions) error {
				_, err := hostileUpkeep(w, o.JSON)
				return err
			},
			GC: func(_ context.Context, w io.Writer, o cli.UpkeepOptions) (bool, error) {
				return hostileUpkeep(w, o.JSON)
			},
		})
		return stdout.String(), stderr.String(), code
	}
	made := func(args ...string) string {
		t.Helper()
		out, complaints, code := run(args...)
		if code != 0 {
			t.Fatalf("%q: %d %s", args, code, complaints)
		}
		return strings.Fields(out)[0]
	}
	hostile := []string{"create", "--timeout", "1h", "--on-timeout", "pause", "--metadata", "team=red" + hostileText}
	id, ended := made(hostile...), made(hostile...)
	made("kill", ended)
	hold := made("hold", id, "--for", "1h", "--reason", "nightly")
	made("keys", "create", "ci", "--role", "own")
	made("volumes", "create", "data")
	c, err := client.New(client.Options{URL: srv.URL, APIKey: key})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.NewSecrets(c).Set(t.Context(), "token", client.SecretOptions{Hosts: []string{"api.example.com"}, Value: "a-value"}); err != nil {
		t.Fatal(err)
	}
	made("webhooks", "add", "http://127.0.0.1:1/")
	hooks, err := client.NewWebhooks(c).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hook := hooks[0].ID
	made("pause", id)
	made("resume", id)
	for tried := []client.Delivery(nil); len(tried) == 0; time.Sleep(10 * time.Millisecond) {
		if tried, err = client.NewWebhooks(c).Deliveries(t.Context(), hook, 0); err != nil {
			t.Fatal(err)
		}
	}
	made("template", "pull", "--name", "made", "tools")
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, []byte("an image"), 0o600); err != nil {
		t.Fatal(err)
	}

	commands := map[string][][]string{
		"create":              {hostile},
		"set":                 {{"set", id, "--idle-timeout", "1h"}},
		"get":                 {{"get", id}, {"get", ended}},
		"ls":                  {{"ls"}, {"ls", "--all"}},
		"why":                 {{"why", id}, {"why", ended}},
		"trace":               {{"trace", id}, {"trace", ended}},
		"events":              {{"events"}, {"events", id}, {"events", ended, "-f"}},
		"hold":                {{"hold", id, "--list"}, {"hold", id, "--release", hold}, {"hold", "inobody", "--list"}},
		"preview":             {{"preview", id, "8000"}, {"preview", id, "--list"}},
		"keys":                {{"keys", "ls"}},
		"keys create":         {{"keys", "create", "x"}},
		"keys limit":          {{"keys", "limit", "nobody" + hostileText, "--max-rate", "1"}},
		"keys ls":             {{"keys", "ls"}, {"keys", "ls", "--cost"}},
		"logs":                {{"logs", id}, {"logs", id, "-n", "2"}, {"logs", ended, "-f"}},
		"stats":               {{"stats"}, {"stats", id}, {"stats", "inobody"}},
		"keys rename":         {{"keys", "rename", "nobody" + hostileText, "name"}},
		"webhooks":            {{"webhooks", "ls"}},
		"webhooks ls":         {{"webhooks", "ls"}},
		"webhooks add":        {{"webhooks", "add", "http://127.0.0.1:1/", "--name", "n" + hostileText}},
		"webhooks rm":         {{"webhooks", "rm", "nothing" + hostileText}},
		"webhooks enable":     {{"webhooks", "enable", "nothing" + hostileText}},
		"webhooks disable":    {{"webhooks", "disable", "nothing" + hostileText}},
		"webhooks deliveries": {{"webhooks", "deliveries", hook}},
		"webhooks retry":      {{"webhooks", "retry", hook}},
		"keys revoke":         {{"keys", "revoke", "nobody"}},
		"keys rotate":         {{"keys", "rotate", "nobody" + hostileText}},
		"volumes":             {{"volumes", "ls"}},
		"volumes create":      {{"volumes", "create", "other"}, {"volumes", "create", "data"}},
		"volumes ls":          {{"volumes", "ls"}},
		"volumes rm":          {{"volumes", "rm", "nothing"}, {"volumes", "rm", "other"}},
		"template":            {{"template", "ls"}},
		"template pull":       {{"template", "pull", "tools"}, {"template", "pull", "missing" + hostileText}},
		"template load":       {{"template", "load", "--name", "filed", archive}, {"template", "load", "nothing" + hostileText}},
		"template build":      {{"template", "build", "x" + hostileText, t.TempDir()}, {"template", "build", "x" + hostileText, "nothing" + hostileText}},
		"template ls":         {{"template", "ls"}},
		"template inspect":    {{"template", "inspect", "base"}, {"template", "inspect", "made"}, {"template", "inspect", "nothing" + hostileText}},
		"template set":        {{"template", "set", "named", "made"}, {"template", "set", "named", "missing" + hostileText}},
		"template rm":         {{"template", "rm", "other" + hostileText}, {"template", "rm", "filed"}},
		"snapshot":            {{"snapshot", "ls"}},
		"snapshot push":       {{"snapshot", "push", "nothing" + hostileText, "x:1"}},
		"snapshot save":       {{"snapshot", "save", "nothing" + hostileText}},
		"snapshot create":     {{"snapshot", "create", id}, {"snapshot", "create", "inobody"}},
		"snapshot ls":         {{"snapshot", "ls"}, {"snapshot", "ls", "--sandbox", id}},
		"snapshot set":        {{"snapshot", "set", "nothing" + hostileText, "--pin"}},
		"snapshot rm":         {{"snapshot", "rm", "nothing" + hostileText}},
		"restore":             {{"restore", id, "nothing" + hostileText}, {"restore", id, "--undo"}},
		"fork":                {{"fork", id}, {"fork", "inobody"}},
		"timeout":             {{"timeout", id, "2h"}, {"timeout", id, "none"}},
		"cp":                  {{"cp", id + ":/nothing" + hostileText, "-"}},
		"exec":                {{"exec", id, "--user", "nobody" + hostileText, "--", "nothing" + hostileText}},
		"run":                 {{"run", "--template", "no" + hostileText, "--", "true"}},
		"shell":               {{"shell", "inobody"}},
		"attach":              {{"attach", "inobody"}},
		"secret":              {{"secret", "ls"}},
		"secret set":          {{"secret", "set", "token", "--keep", "--host", "api.example.org"}, {"secret", "set", "no" + hostileText, "--keep", "--host", "a.test"}},
		"secret rotate":       {{"secret", "rotate", "nothing" + hostileText}},
		"secret ls":           {{"secret", "ls"}},
		"secret rm":           {{"secret", "rm", "nothing" + hostileText}},
		"service":             {{"service", "ls", id}},
		"service add":         {{"service", "add", id, "web", "--", "echo " + hostileText}, {"service", "add", id, "nothing" + hostileText, "--", "serve"}},
		"service ls":          {{"service", "ls", id}},
		"service logs":        {{"service", "logs", id, "nothing" + hostileText}},
		"service restart":     {{"service", "restart", id, "nothing" + hostileText}},
		"service rm":          {{"service", "rm", id, "nothing" + hostileText}},
		"ssh-keys":            {{"ssh-keys", "ls"}},
		"ssh-keys add":        {{"ssh-keys", "add", "nothing" + hostileText}},
		"ssh-keys ls":         {{"ssh-keys", "ls"}},
		"ssh-keys rm":         {{"ssh-keys", "rm", "nothing" + hostileText}},
		"ssh-proxy":           {{"ssh-proxy", "inobody"}},
		"export":              {{"export", "inobody"}},
		"import":              {{"import"}},
		"pause":               {{"pause", id}},
		"resume":              {{"resume", id}},
		"kill":                {{"kill", id, "inobody"}},
		"doctor":              {{"doctor"}},
		"fsck":                {{"fsck"}},
		"gc":                  {{"gc"}},
		"backup":              {{"backup", "there"}},
		"version":             {{"version"}},
		"ui":                  {{"ui"}},
		"audit":               {{"audit"}, {"audit", "--all"}},
		"servers":             {{"servers"}},
		"move":                {{"move", "inobody"}},
		"drain":               {{"drain", "srv_nobody"}},
	}
	// These speak with nobody's text: a server of their own, and the server itself. mcp
	// has TestMCPHostileText, and top the TestHostileText of its package.
	without := []string{"demo", "serve", "mcp", "top"}
	reference, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, heading := range regexp.MustCompile(`(?m)^### drowse (.+)$`).FindAllStringSubmatch(string(reference), -1) {
		if _, ok := commands[heading[1]]; !ok && !slices.Contains(without, heading[1]) {
			t.Errorf("drowse %s is not tried with hostile text", heading[1])
		}
	}
	seen := 0
	order := slices.Sorted(maps.Keys(commands))
	// Those that end it come last.
	last := []string{"pause", "resume", "kill"}
	order = append(slices.DeleteFunc(order, func(name string) bool { return slices.Contains(last, name) }), last...)
	for _, name := range order {
		for _, args := range commands[name] {
			for _, format := range []string{"text", "json"} {
				all := append([]string{"-o", format}, args...)
				out, complaints, code := run(all...)
				if code == 2 && name != "import" && name != "shell" && name != "attach" && name != "ssh-keys add" && name != "secret set" && name != "service add" {
					t.Errorf("%q is wrong usage: %s", all, complaints)
				}
				for _, text := range []string{out, complaints} {
					harmlessOutput(t, all, text)
					if strings.Contains(text, "FORGED") {
						seen++
					}
				}
				if format == "json" && code == 0 && strings.HasPrefix(out, "{") && !meansHostile(out) {
					t.Errorf("%q does not print the text that was meant: %.500s", all, out)
				}
			}
		}
	}
	t.Logf("%d outputs had hostile text to show", seen)
	if seen < 40 {
		t.Errorf("only %d outputs had hostile text to show", seen)
	}
}

// harmlessOutput fails if a text acts on a terminal, or has a line that it should
// not have.
func harmlessOutput(t *testing.T, args []string, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)) {
			t.Errorf("%q prints %U: %.500q", args, r, text)
			return
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "FORGED") {
			t.Errorf("%q prints a line of a tenant's: %.500s", args, text)
			return
		}
	}
}

// meansHostile reports whether JSON that has something of the hostile text has
// all of it, once it is decoded.
func meansHostile(out string) bool {
	dec := json.NewDecoder(strings.NewReader(out))
	for {
		var v any
		if err := dec.Decode(&v); err != nil {
			return err == io.EOF
		}
		if text := fmt.Sprint(v); strings.Contains(text, "FORGED") && !strings.Contains(text, hostileText) {
			return false
		}
	}
}
