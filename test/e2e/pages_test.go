package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mvdan.cc/sh/v3/syntax"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// unrun is a command, or a block in another language than a shell's, that TestPages
// does not run: for a reason, or because another test does.
type unrun struct {
	page   string // "" for all
	begins string // the command, without sudo; or "```" with the language of a block
	why    string
	by     string // the file of the test that does the same; it must be there
}

// unruns lists all of them.
var unruns = []unrun{
	// Builds and installations.
	{"README.md", "script/demo", "installs packages and builds", "test/newcomer.sh"},
	{"README.md", "script/test", "runs this test", ""},
	{"README.md", "make build", "script/test builds with it", "script/test"},
	{"README.md", "install bin/drowse", "the machine's own program would be another one", "test/newcomer.sh"},
	{"README.md", "drowse serve", "the test's server is there", "test/newcomer.sh"},
	{"docs/install.md", "make", "builds for minutes", "test/packages.sh"},
	{"docs/install.md", "apt install", "changes the machine", "test/packages.sh"},
	{"docs/install.md", "sh ", "changes the machine", "test/packages.sh"},
	{"docs/install.md", "podman", "there is no Podman", ""},
	{"docs/install.md", "install -m", "changes the machine", ""},
	{"docs/operating.md", "apt ", "changes the machine", "test/packages.sh"},
	{"docs/operating.md", "sh ", "changes the machine", "test/packages.sh"},
	{"", "systemctl", "there is no systemd in the test", "test/hosts/checks.go"},
	{"", "journalctl", "there is no systemd in the test", ""},
	{"", "cat /var/lib/drowse/api-key", "the server of the test has another state directory", ""},

	// What needs a server that is stopped, or a second one.
	{"docs/backup.md", "drowse backup /mnt/backups/monday --restore", "needs a server that can be stopped", "test/e2e/backup_test.go"},
	{"docs/backup.md", "ssh store 'zstdcat monday.zst' | drowse backup - --restore", "needs a server that can be stopped", "test/e2e/backup_test.go"},
	{"", "mv /var/lib/drowse", "needs a server that can be stopped", ""},
	{"", "drowse fsck", "needs a server that can be stopped", "internal/cli/testdata/fsck.txt"},
	{"", "drowse gc", "needs a server that can be stopped", "internal/cli/testdata/gc.txt"},
	{"docs/postgres.md", "-u postgres", "needs a PostgreSQL of the machine", "test/e2e/onetothree_test.go"},
	{"docs/postgres.md", "DROWSE_STORE=", "needs a server of its own", "test/e2e/onetothree_test.go"},
	{"docs/postgres.md", "export AWS", "needs a bucket", "test/e2e/takeover_test.go"},
	{"docs/postgres.md", "drowse move", "needs several servers", "test/e2e/moves_test.go"},
	{"docs/postgres.md", "drowse drain", "needs several servers", "test/e2e/drainserver_test.go"},
	{"docs/design/delta-pauses.md", "drowse serve", "needs a server of its own", "test/e2e/deltas_test.go"},
	{"docs/design/early-wake.md", "drowse serve", "needs a server of its own", "test/e2e/early_test.go"},
	{"docs/design/light-sleep.md", "drowse serve", "needs a server of its own", "internal/cli/testdata/server.txt"},
	{"docs/design/limits.md", "drowse serve", "needs a server of its own", "test/hosts/diskrate.go"},
	{"docs/howto.md", "drowse import", "needs a second server", "test/e2e/move_test.go"},

	// What the network of the test does not have.
	{"", "claude", "is another vendor's program", ""},
	{"docs/templates.md", "drowse template pull", "fetches from a registry", "test/e2e/images_test.go"},
	{"docs/templates.md", "drowse create --template python:3.12", "needs an image of a registry", "test/e2e/images_test.go"},
	{"docs/templates.md", "drowse template set base python:3.12", "needs an image of a registry", "test/e2e/images_test.go"},
	{"docs/templates.md", "drowse template inspect python:3.12", "needs an image of a registry", ""},
	{"docs/templates.md", "drowse template rm python:3.12", "needs an image of a registry", "test/e2e/images_test.go"},
	{"docs/templates.md", "drowse template load", "needs an image of Docker's", "test/e2e/images_test.go"},
	{"docs/templates.md", "docker", "there is no Docker", ""},
	{"docs/templates.md", "apt-get", "fetches packages", ""},
	{"docs/templates.md", "pip", "fetches packages", ""},
	{"docs/templates.md", "npm", "fetches packages", ""},
	{"docs/templates.md", "drowse snapshot push", "needs a registry", "test/e2e/publish_test.go"},
	{"docs/templates.md", "drowse snapshot save", "packs all of the machine's /usr, for minutes", "test/e2e/publish_test.go"},
	{"docs/templates.md", "drowse exec ID -- /app/server", "is a program of the reader's", ""},
	{"docs/templates.md", "drowse template build tools:v2", "is a Dockerfile of the reader's", "test/e2e/dockerfile_test.go"},
	{"docs/templates.md", "drowse template build web", "is a Dockerfile of the reader's", "test/e2e/dockerfile_test.go"},
	{"docs/templates.md", "e2b template create", "is of E2B's command line", "test/conformance/cli/cli.test.js"},
	{"docs/proxy.md", "certbot", "asks an authority and a DNS provider", ""},
	{"docs/proxy.md", "drowse run --url https", "needs a domain", "test/e2e/domain_test.go"},
	{"docs/secrets.md", "drowse exec $ID -- curl", "asks a host outside", "test/e2e/secrets_test.go"},
	{"docs/ui.md", "ssh", "needs another machine", ""},
	{"docs/ssh.md", "ssh -p 2222", "needs a server with SSH", "test/e2e/ssh_test.go"},
	{"docs/ssh.md", "ssh", "changes the user's configuration of SSH", "test/e2e/sshclient_test.go"},
	{"docs/ssh.md", "scp", "changes the user's configuration of SSH", "test/e2e/ssh_test.go"},
	{"docs/ssh.md", "rsync", "changes the user's configuration of SSH", "test/e2e/ssh_test.go"},
	{"docs/ssh.md", "git", "changes the user's configuration of SSH", "test/e2e/ssh_test.go"},
	{"docs/terminals.md", "drowse attach $id 17", "stands for a process of the reader's", "test/e2e/terminals_test.go"},
	{"docs/operating.md", "drowse keys rotate", "would take the test's key away", "test/e2e/tls_test.go"},

	// Other languages.
	{"README.md", "```python", "runs with E2B's SDKs", "test/conformance/python/test_readme.py"},
	{"README.md", "```js", "runs with E2B's SDK", "test/conformance/js/test/readme.test.js"},
	{"docs/templates.md", "```python", "runs with E2B's SDK", "test/conformance/python/test_readme.py"},
	{"docs/sdk.md", "```python", "runs with drowse's SDK", "test/sdk/python/test_examples.py"},
	{"docs/sdk.md", "```ts", "runs with drowse's SDK", "test/sdk/run.sh"},
	{"docs/migrate.md", "```python", "needs a sandbox at E2B; its syntax is checked", ""},
	{"docs/works-with.md", "```python", "is one line for the reader's program; its syntax is checked", ""},
	{"docs/works-with.md", "```js", "is one line for the reader's program", ""},
	{"docs/proxy.md", "```nginx", "runs with nginx", "test/e2e/infront_test.go"},
	{"docs/proxy.md", "```haproxy", "runs with HAProxy", "test/e2e/infront_test.go"},
	{"docs/proxy.md", "```caddy", "runs with Caddy", "test/e2e/infront_test.go"},
	{"docs/monitor.md", "```yaml", "is Prometheus's configuration, and the tests have no parser of YAML", ""},
	{"", "```mermaid", "is a drawing", ""},
	{"", "```text", "is text", ""},
	{"", "```", "is text", ""},
}

// interrupted are the commands that go on until they are interrupted.
var interrupted = []string{"drowse events -f", "drowse stats -w", "drowse logs ID -f", "drowse mcp --http"}

// onTerminal are those that want a terminal, with what is typed there at their end. The
// first that fits counts.
var onTerminal = []struct{ begins, keys string }{
	{"drowse top", "q"},
	{"drowse shell --detachable", `\034`}, // leaves it
	{"drowse shell", `exit\n`},
	{"drowse attach", `exit\n`},
}

// fence is a block of a page.
type fence struct {
	page, language, text string
	line                 int
}

// fences returns the blocks of a page.
func fences(t testing.TB, page string) (list []fence) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	var in *fence
	for n, line := range strings.Split(string(text), "\n") {
		language, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fenced && in == nil:
			in = &fence{page: page, language: language, line: n + 1}
		case fenced:
			list, in = append(list, *in), nil
		case in != nil:
			in.text += line + "\n"
		}
	}
	if in != nil {
		t.Errorf("%s:%d: the block does not end", page, in.line)
	}
	return list
}

// pagesOfReaders are README and the pages that people write.
func pagesOfReaders(t testing.TB) []string {
	t.Helper()
	pages := []string{"README.md"}
	for _, below := range []string{"docs/*.md", "docs/design/*.md"} {
		for _, path := range glob(filepath.Join("../..", below)) {
			page, err := filepath.Rel("../..", path)
			if err != nil {
				t.Fatal(err)
			}
			if page != "docs/cli.md" { // generated
				pages = append(pages, page)
			}
		}
	}
	return pages
}

// commands returns the commands of a block: its statements as a shell sees them, or
// those behind a prompt.
func (f fence) commands(t testing.TB) (list []string) {
	t.Helper()
	text := f.text
	if f.language == "console" && strings.HasPrefix(text, "$ ") {
		text = ""
		more := false
		for line := range strings.Lines(f.text) {
			if command, prompt := strings.CutPrefix(line, "$ "); prompt || more {
				text += command
				more = strings.HasSuffix(command, "\\\n")
			}
		}
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(text), f.page)
	if err != nil {
		t.Fatalf("%s:%d: %v", f.page, f.line, err)
	}
	if strings.HasPrefix(text, "#!") {
		return nil // a program for the reader to keep, of which the syntax is checked
	}
	for _, statement := range file.Stmts {
		var b bytes.Buffer
		if err := syntax.NewPrinter(syntax.SingleLine(true)).Print(&b, statement); err != nil {
			t.Fatal(err)
		}
		list = append(list, strings.TrimPrefix(b.String(), "sudo "))
	}
	return list
}

func (f fence) isShell() bool { return f.language == "sh" || f.language == "console" }

// isOfSeveralServers reports whether TestOneServerToThree runs a block.
func (f fence) isOfSeveralServers() bool { return strings.Contains(f.text, "--peer-listen") }

// listed says why something of a page is not run: the place in unruns, or -1.
func listed(page, what string) int {
	return slices.IndexFunc(unruns, func(u unrun) bool {
		if strings.HasPrefix(u.begins, "```") {
			return what == u.begins && (u.page == "" || u.page == page)
		}
		return strings.HasPrefix(what, u.begins) && (u.page == "" || u.page == page)
	})
}

// TestUnruns holds the list of what is not run to the pages: it names nothing that is
// not there, and each test that it names runs, or is itself, something of a page.
func TestUnruns(t *testing.T) {
	used := map[int]bool{}
	for _, page := range pagesOfReaders(t) {
		for _, f := range fences(t, page) {
			if !f.isShell() {
				at := listed(page, "```"+f.language)
				used[at] = true
				f.check(t, at >= 0)
				continue
			}
			for _, command := range f.commands(t) {
				used[listed(page, command)] = true
			}
		}
	}
	for n, u := range unruns {
		if !used[n] {
			t.Errorf("no page has what is listed: %s %q", u.page, u.begins)
		}
		if u.by == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", u.by))
		if err != nil {
			t.Errorf("%q: %v", u.begins, err)
		} else if strings.HasPrefix(u.begins, "```") && !bytes.Contains(text, []byte(filepath.Base(u.page))) {
			t.Errorf("%s does not name %s", u.by, u.page)
		}
	}
}

// check reads a block of another language, as far as it can, and fails if nothing is
// known about it.
func (f fence) check(t *testing.T, known bool) {
	t.Helper()
	run := func(args ...string) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(f.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s:%d: %v: %s", f.page, f.line, err, out)
		}
	}
	switch {
	case f.language == "json":
		if !json.Valid([]byte(f.text)) {
			t.Errorf("%s:%d is no JSON", f.page, f.line)
		}
	case f.language == "toml":
		run("python3", "-c", "import sys, tomllib; tomllib.load(sys.stdin.buffer)")
	case f.language == "" && prompt.MatchString(f.text):
		t.Errorf("%s:%d: a block with commands is in no language", f.page, f.line)
	case !known:
		t.Errorf("%s:%d: a block in %q is neither run nor listed", f.page, f.line, f.language)
	case f.language == "python":
		run("python3", "-c", "import ast, sys; ast.parse(sys.stdin.read())")
	}
}

// prompt begins what is a command rather than text.
var prompt = regexp.MustCompile(`(?m)^(\$|sudo|drowse) `)

// TestPages runs the commands of README in order, as they stand there, and with
// DROWSE_TEST_ALL those of all pages.
func TestPages(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 15*time.Minute)
	s := newServer(t, stateDir(t))
	// The pages name this address, and no other test takes it.
	s.addr = "127.0.0.1:3000"
	var err error
	if s.client, err = client.New(client.Options{URL: "http://" + s.addr, APIKey: apiKey, HTTPClient: httpClient}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.cleanUp)
	s.start()
	for _, page := range testmode.Choose([]string{"README.md"}, pagesOfReaders(t)) {
		t.Run(page, func(t *testing.T) { runPage(ctx, t, s, page) })
	}
}

// programs of a reader's machine, for the pages. A page's sandbox is the one that was
// created last.
var readersPrograms = map[string]string{
	"sudo": `exec "$@"`,
	"ssh":  `shift; exec sh -c "$*"`,
	"last": `cat "$LAST"`,
	"drowse": `[ "$1" = create ] || exec "$DROWSE" "$@"
out=$("$DROWSE" "$@") || exit
echo "$out" | tee "$LAST"`,
	"preview": `drowse preview "$(last)" --list | awk 'NR == 2 { print $1 }'`,
}

// readersFiles are what pages expect in the directory where their reader is.
var readersFiles = map[string]string{
	"token": "secret-1", "new-token": "secret-2", "key": "secret-3", "login.txt": "user:password",
	"Dockerfile":  "FROM base\nRUN echo built >/home/user/built\n",
	"evaluate.sh": "#!/bin/sh\necho evaluated\n",
	"go.mod":      "module example.com/reader\n\ngo 1.26.3\n",
	"main.go":     "package main\n\nimport \"github.com/drowse-dev/drowse/client\"\n\nfunc main() { _, _ = client.New(client.Options{}) }\n",
}

var (
	idAlone   = regexp.MustCompile(`(^|\s)ID($|[\s:.])`)
	replacing = strings.NewReplacer("i0abc", "$(last)", "imy5oa785fakgpl07udrd", "$(last)", "e2b_…", apiKey, "pv1x2y3z", "$(preview)",
		"/etc/prometheus", "etc", "/data/drowse", "$PWD/state", "/mnt/backups", "$PWD/backups", "keys revoke ID", "keys revoke spare", "--http 127.0.0.1:3001", "--http 127.0.0.1:0")
)

// runPage runs what a page shows, each command after the one before, in one shell.
func runPage(ctx context.Context, t *testing.T, s *server, page string) {
	blocks := slices.DeleteFunc(fences(t, page), func(f fence) bool { return !f.isShell() || f.isOfSeveralServers() })
	if len(blocks) == 0 {
		return
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []string{"bin", ".ssh", "here", "here/etc", "here/src", "here/state"} {
		if err := os.Mkdir(filepath.Join(dir, made), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range readersPrograms {
		writeFile(t, filepath.Join(bin, name), "#!/bin/bash\n"+text+"\n")
	}
	for name, text := range readersFiles {
		writeFile(t, filepath.Join(dir, "here", name), text)
	}
	sb := s.create(ctx, client.CreateOptions{OnTimeout: client.Pause, AutoResume: new(true)})
	writeFile(t, filepath.Join(dir, "last"), sb.ID+"\n")
	spare, err := s.client.CreateKey(ctx, client.KeyOptions{Name: "spare"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.client.RevokeKey(context.WithoutCancel(ctx), spare.ID) // the page may have done so
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, ".ssh/id_ed25519")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := "set -eu -o pipefail -o allexport\nid=" + sb.ID + "\n"
	for _, f := range blocks {
		script += shellOf(t, f, strings.NewReplacer("/path/to/drowse", root))
	}
	writeFile(t, filepath.Join(dir, "script"), script)
	ctx, cancel := context.WithTimeout(ctx, testmode.Scaled(90*time.Second))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(dir, "script"))
	cmd.Dir = filepath.Join(dir, "here")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "DROWSE_URL=http://"+s.addr, "DROWSE_API_KEY="+apiKey, "DROWSE_STATE_DIR="+s.dir(), "DROWSE="+drowseBinary,
		"LAST="+filepath.Join(dir, "last"), "HOME="+dir, "GOMODCACHE="+goEnv(t, "GOMODCACHE"), "GOCACHE="+goEnv(t, "GOCACHE"), "GOPROXY=off", "GONOSUMDB=*", "GOFLAGS=-mod=mod", "TERM=xterm-256color", "SHELL=/bin/bash")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s\nthe script:\n%s", err, out, script)
	}
	if page == "README.md" {
		build := exec.CommandContext(ctx, "go", "build", "-o", os.DevNull, ".")
		build.Dir, build.Env = cmd.Dir, cmd.Env
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("a program with package client: %v\n%s", err, out)
		}
	}
	list, err := s.client.List(ctx, client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range list {
		if err := s.client.Kill(ctx, info.ID); err != nil {
			t.Error(err)
		}
	}
}

// shellOf is a script with the commands of a block that are run.
func shellOf(t *testing.T, f fence, more *strings.Replacer) string {
	var b strings.Builder
	exports := true
	for _, command := range f.commands(t) {
		at := listed(f.page, command)
		if setting.MatchString(command) {
			checkSettings(t, f, command)
			continue
		}
		if at >= 0 {
			continue
		}
		exports = exports && strings.HasPrefix(command, "export ")
		is := idAlone.ReplaceAllString(more.Replace(replacing.Replace(command)), "$1$$(last)$2")
		for _, begins := range interrupted {
			if strings.HasPrefix(command, begins) {
				is = fmt.Sprintf("timeout -s INT 3 bash -c %s && false || [ $? = 124 ]", quoted(t, is))
			}
		}
		if n := slices.IndexFunc(onTerminal, func(o struct{ begins, keys string }) bool { return strings.HasPrefix(command, o.begins) }); n >= 0 {
			is = fmt.Sprintf("{ sleep 2; printf '%s'; sleep 1; } | timeout 60 script -qec %s /dev/null", onTerminal[n].keys, quoted(t, is))
		}
		fmt.Fprintf(&b, "echo %s\n%s\n", quoted(t, "\n$ "+command), is)
	}
	if b.Len() > 0 && exports { // those of other clients
		return "(\n" + b.String() + ")\n"
	}
	return b.String()
}

// setting is a line of the server's environment file.
var setting = regexp.MustCompile(`^DROWSE_[A-Z_]+=[^ ]*( DROWSE_[A-Z_]+=[^ ]*)*$`)

// checkSettings holds the names of settings to those of the server's flags.
func checkSettings(t *testing.T, f fence, command string) {
	reference, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`DROWSE_([A-Z_]+)=`).FindAllStringSubmatch(command, -1) {
		flag := "--" + strings.ToLower(strings.ReplaceAll(m[1], "_", "-")) + " "
		if !bytes.Contains(reference, []byte(flag)) {
			t.Errorf("%s:%d: %s is no setting", f.page, f.line, m[0])
		}
	}
}

func quoted(t testing.TB, text string) string {
	t.Helper()
	q, err := syntax.Quote(text, syntax.LangBash)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func goEnv(t testing.TB, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
