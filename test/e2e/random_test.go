package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// draws are cells that say random numbers, one a line, by language. What they draw
// from is in memory.
var draws = map[string]string{
	"python": `import random, ssl, tempfile, uuid
print(random.random(), ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names()), uuid.uuid4(), sep="\n")`,
	"javascript": `const { randomBytes, randomInt } = require('crypto')
console.log([Math.random(), crypto.randomUUID(), randomBytes(8).toString('hex'), randomInt(2 ** 47), crypto.getRandomValues(new Uint32Array(2)).join()].join('\n'))`,
	"bash": `echo $RANDOM $RANDOM`,
}

// TestKernelsOfCopies has the kernels of forks, and of a sandbox that goes back to a
// snapshot twice, draw numbers of their own. After a plain wake what was seeded goes on.
func TestKernelsOfCopies(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 4*time.Minute)
	s := startServer(t)
	source := s.create(ctx, sleeper)
	code := func(sb *client.Sandbox, language, code string) string {
		t.Helper()
		c := s.runCode(ctx, sb, language, code)
		if len(c.errors) > 0 {
			t.Fatalf("%s: %v", language, c.errors)
		}
		return c.stdout
	}
	seen := map[string]string{}
	draw := func(of string, sb *client.Sandbox) {
		t.Helper()
		for language, cell := range draws {
			for _, number := range strings.Fields(strings.ReplaceAll(code(sb, language, cell), " ", ",")) {
				if before, twice := seen[number]; twice {
					t.Errorf("%s: %s drew %s, as %s did", language, of, number, before)
				}
				seen[number] = of
			}
		}
	}
	draw("the source", source)

	code(source, "python", "random.seed(7); random.random()")
	s.pause(ctx, source.ID)
	if got := code(source, "python", "same = random.Random(7); same.random(); print(random.random() == same.random())"); got != "True\n" {
		t.Errorf("after a wake the numbers of a seed do not go on: %s", got)
	}

	snaps := client.NewSnapshots(s.client)
	if _, err := snaps.Create(ctx, source.ID, client.SnapshotOptions{Name: "drawn"}); err != nil {
		t.Fatal(err)
	}
	children, err := snaps.Fork(ctx, source.ID, client.ForkOptions{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range children {
		if c.Err != nil {
			t.Fatalf("child %d: %v", i, c.Err)
		}
		s.mu.Lock()
		s.ids = append(s.ids, c.Sandbox.ID)
		s.mu.Unlock()
		draw(fmt.Sprint("child ", i), c.Sandbox)
	}
	draw("the source, forked", source)
	for _, time := range []string{"once", "twice"} {
		if _, err := snaps.Restore(ctx, source.ID, client.RestoreOptions{Snapshot: "drawn", Discard: true}); err != nil {
			t.Fatal(err)
		}
		draw("the source, restored "+time, source)
	}
}
