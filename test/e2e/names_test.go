package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestNamesOfFiles does the same random things to a directory in a sandbox and to one
// of the host: files get more names, are written through any of them, renamed and
// removed. The sandbox sleeps in between, is snapshotted, and its fork goes on. Its
// directory must be what the host's is. Before and after each sleep, a program must see
// the same times as well.
func TestNamesOfFiles(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	sb := s.create(ctx, sleeper)
	rng := rand.New(rand.NewPCG(28, 1))
	host := t.TempDir()
	steps := nameSteps{rng: rng}
	for round := range testmode.Choose(6, 25) {
		script := steps.script(60)
		want := onHost(ctx, t, host, script+listing)
		if got := inSandbox(ctx, t, sb, script+listing); got != want {
			t.Fatalf("round %d: the sandbox has\n%s\nwant\n%s\nafter\n%s", round, got, want, script)
		}
		before := inSandbox(ctx, t, sb, timesOf)
		if round%3 == 2 {
			children, err := client.NewSnapshots(s.client).Fork(ctx, sb.ID, client.ForkOptions{Count: 1})
			if err != nil || children[0].Err != nil {
				t.Fatalf("%v, %+v", err, children)
			}
			if after := inSandbox(ctx, t, sb, timesOf); after != before {
				t.Errorf("round %d: after a snapshot there is\n%s\nbefore\n%s", round, after, before)
			}
			s.kill(ctx, t, sb.ID)
			sb = children[0].Sandbox
			s.mu.Lock()
			s.ids = append(s.ids, sb.ID)
			s.mu.Unlock()
		} else {
			s.pause(ctx, sb.ID)
		}
		if got := inSandbox(ctx, t, sb, listing); got != want {
			t.Fatalf("round %d: it woke with\n%s\nwant\n%s\nafter\n%s", round, got, want, script)
		}
		if after := inSandbox(ctx, t, sb, timesOf); after != before {
			t.Fatalf("round %d: it woke with\n%s\nbefore\n%s\nafter\n%s", round, after, before, script)
		}
	}
}

// listing says all of a directory but times, and which names are of one file: those
// that have the same first name.
const listing = `
find . ! -type d -printf '%i %P\n' | sort -k 2 | awk '{ if (!($1 in first)) first[$1] = $2; print $2, first[$1] }'
find . -type d -printf '%P %m\n' | sort
find . ! -type d -printf '%P %y %m %n %s %l\n' | sort
find . -type f | sort | xargs -r -d '\n' cksum
`

// timesOf also says when each was modified.
const timesOf = "find . -printf '%P %y %m %n %s %T@\\n' | sort"

// nameSteps makes random steps as a script. What is not possible fails, in the sandbox
// and on the host.
type nameSteps struct {
	rng *rand.Rand
	n   int
}

func (n *nameSteps) script(steps int) string {
	var b strings.Builder
	b.WriteString("exec 2>/dev/null\n")
	for range steps {
		n.n++
		file, other, dir := n.path(), n.path(), fmt.Sprintf("d%d", n.rng.IntN(3))
		fmt.Fprintln(&b, []string{
			fmt.Sprintf("mkdir %s", dir),
			fmt.Sprintf("echo made %d >%s", n.n, file),
			fmt.Sprintf("ln %s %s", file, other),
			fmt.Sprintf("ln %s %s", other, file),
			fmt.Sprintf("[ ! -f %s ] || echo more %d >>%s", file, n.n, file),
			fmt.Sprintf("[ ! -f %s ] || printf %d | dd of=%s bs=1 seek=%d conv=notrunc", file, n.n, file, n.rng.IntN(9000)),
			fmt.Sprintf("[ ! -f %s ] || sed -i s/made/MADE/ %s", file, file),
			fmt.Sprintf("[ ! -f %s ] || truncate -s %d %s", file, n.rng.IntN(5000), file),
			fmt.Sprintf("[ -d %s ] || mv -T %s %s", other, file, other),
			fmt.Sprintf("[ -e %s ] || mv -T %s %s", dir+"x", dir, dir+"x"),
			fmt.Sprintf("[ -e %s ] || mv -T %s %s", dir, dir+"x", dir),
			fmt.Sprintf("rm -f %s", file),
			fmt.Sprintf("chmod %o %s", 0o600|n.rng.IntN(64), file),
			fmt.Sprintf("[ -e %s ] || cp -al %s %s", dir+"y", dir, dir+"y"),
			fmt.Sprintf("rm -rf %sy", dir),
			fmt.Sprintf("ln -s %d %s", n.n, file),
		}[n.rng.IntN(16)])
	}
	return b.String()
}

func (n *nameSteps) path() string {
	name := fmt.Sprintf("f%d", n.rng.IntN(7))
	if d := n.rng.IntN(6); d < 3 {
		return fmt.Sprintf("d%d/%s", d, name)
	}
	return name
}

func onHost(ctx context.Context, t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, "sh", "-c", "umask 022; cd "+dir+" && "+script)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func inSandbox(ctx context.Context, t *testing.T, sb *client.Sandbox, script string) string {
	t.Helper()
	exit, out := run(ctx, t, sb, "sh", "-c", "umask 022; mkdir -p ~/names; cd ~/names && "+script)
	if exit.Code != 0 {
		t.Fatalf("exit %d: %s", exit.Code, out)
	}
	return out
}
