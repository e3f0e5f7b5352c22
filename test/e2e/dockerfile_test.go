package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// buildDockerfile builds one with the command line, and returns what that said, and
// whether it succeeded.
func (s *server) buildDockerfile(ctx context.Context, text string, args ...string) (said string, ok bool) {
	s.t.Helper()
	cmd := exec.CommandContext(ctx, drowseBinary, append([]string{"template", "build", "-f", "-"}, args...)...)
	cmd.Env = []string{"DROWSE_URL=http://" + s.addr, "DROWSE_API_KEY=" + apiKey}
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// TestDockerfile builds a template of a Dockerfile by the command line: a sandbox of it
// is as the Dockerfile says, the same steps are not run again, and the step that fails
// is named by its line.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"app/main.py": "print('hi')", "app/debug.log": "", ".dockerignore": "**/*.log"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const file = `
ARG BASE
FROM $BASE
ARG VERSION=1
ENV APP=/srv/app PATH=/opt/tool:$PATH
WORKDIR $APP
COPY app .
COPY --chmod=755 <<tool /opt/tool/tool
#!/bin/sh
echo "a tool of \$APP"
tool
RUN id -un >who && echo $VERSION >version && tool >>version
USER user
`
	if said, ok := s.buildDockerfile(ctx, file, "tools:v1", dir, "--build-arg", "BASE=base", "--build-arg", "VERSION=7"); !ok {
		t.Fatal(said)
	}
	sb, err := s.client.Create(ctx, client.CreateOptions{Template: "tools:v1"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "user /srv/app main.py version who root 7 a tool of /srv/app a tool of /srv/app"
	if exit, out := run(ctx, t, sb, "sh", "-c", "id -un; pwd; ls; cat who version; tool"); exit.Code != 0 || strings.Join(strings.Fields(out), " ") != want {
		t.Errorf("a sandbox of the template has %q (%s), want %q", out, exit.Status, want)
	}
	said, ok := s.buildDockerfile(ctx, file+"RUN echo why; exit 3\n", "tools:v1", dir, "--build-arg", "BASE=base", "--build-arg", "VERSION=7")
	if ok || strings.Count(said, "CACHED") != 7 || !strings.Contains(said, "] why\n") || !strings.Contains(said, "stdin:14: RUN echo why; exit 3: the command ended with exit status 3") {
		t.Errorf("with a step more, that fails:\n%s", said)
	}
	if said, ok := s.buildDockerfile(ctx, "FROM base\nCOPY --from=base /a /b\n", "tools:v1", dir); ok || !strings.Contains(said, "stdin: line 2: COPY --from is not supported") {
		t.Errorf("with what is not supported:\n%s", said)
	}
}
