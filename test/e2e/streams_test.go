package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
)

var streamsSandboxes = flag.Int("streams.sandboxes", testmode.Choose(5, 12), "how many sandboxes TestStreams has")

// So many commands run in each sandbox of TestStreams, and so many lines does
// each of them say, of output and of errors.
const (
	streamsEach = 20
	streamLines = 20
)

// streamScript says where it runs and what it was told, many times. Nothing of
// it is a program of its own.
const streamScript = `read -r told
for ((n = 0; n < %d; n++)); do
	echo "out $E2B_SANDBOX_ID $told $n"
	echo "err $E2B_SANDBOX_ID $told $n" >&2
done`

// speaker is a command under way, which says its word once it is told that.
type speaker struct {
	sandbox     string
	word        string
	out, errors bytes.Buffer
	process     *client.Process
}

// gate is an input that nothing comes from before it is opened.
type gate struct {
	opened <-chan struct{}
	io.Reader
}

func (g gate) Read(b []byte) (int, error) {
	<-g.opened
	return g.Reader.Read(b)
}

// start has the command wait for its word.
func (s *speaker) start(ctx context.Context, sb *client.Sandbox, opened <-chan struct{}) error {
	var err error
	s.process, err = sb.Start(ctx, client.Command{
		Args:   []string{"/bin/bash", "-c", fmt.Sprintf(streamScript, streamLines)},
		Stdin:  gate{opened, strings.NewReader(s.word + "\n")},
		Stdout: &s.out,
		Stderr: &s.errors,
	})
	return err
}

// finish reads all of the output and compares it with what the command was to
// say.
func (s *speaker) finish() error {
	exit, err := s.process.Wait()
	// An error with an end that is known is about the input, of which what the
	// command says tells more.
	if exit.Code != 0 || exit.Status == "" {
		return fmt.Errorf("%s in %s: ended with %v, %v", s.word, s.sandbox, exit, err)
	}
	return errors.Join(s.compare("out", s.out.String()), s.compare("err", s.errors.String()))
}

func (s *speaker) compare(kind, got string) error {
	var b strings.Builder
	for n := range streamLines {
		fmt.Fprintf(&b, "%s %s %s %d\n", kind, s.sandbox, s.word, n)
	}
	want := b.String()
	if got == want {
		return nil
	}
	same := 0
	for same < len(got) && same < len(want) && got[same] == want[same] {
		same++
	}
	return fmt.Errorf("%s of %s in %s: got %d bytes, want %d; different from byte %d on: %.200q",
		kind, s.word, s.sandbox, len(got), len(want), same, got[same:])
}

// TestStreams has 20 commands run at once in each of its sandboxes. All of them
// are told a word of their own at the same time, and say it many times: nothing
// of it may be lost, or be told to somebody else. With -streams.sandboxes 50 it
// is a thousand streams, and takes a minute.
func TestStreams(t *testing.T) {
	t.Parallel()
	ctx := deadline(t, 5*time.Minute)
	s := startServer(t)
	begin := time.Now()
	sandboxes := s.createMany(ctx, *streamsSandboxes)
	t.Logf("%d sandboxes made in %s", len(sandboxes), since(begin))

	begin = time.Now()
	open := make(chan struct{})
	speakers := startSpeakers(ctx, t, sandboxes, open)
	t.Logf("%d commands started in %s", len(speakers), since(begin))

	begin = time.Now()
	close(open)
	var finished errgroup.Group
	for _, sp := range speakers {
		finished.Go(sp.finish)
	}
	if err := finished.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d lines of each were read in %s", 2*streamLines, since(begin))
}

// createMany makes sandboxes, a few at a time.
func (s *server) createMany(ctx context.Context, n int) []*client.Sandbox {
	s.t.Helper()
	sandboxes := make([]*client.Sandbox, n)
	var made errgroup.Group
	made.SetLimit(4)
	for i := range sandboxes {
		made.Go(func() error {
			var err error
			sandboxes[i], err = s.client.Create(ctx, client.CreateOptions{Timeout: 10 * time.Minute})
			return err
		})
	}
	if err := made.Wait(); err != nil {
		s.t.Fatal(err)
	}
	return sandboxes
}

// startSpeakers starts all the commands, which wait until opened is closed.
func startSpeakers(ctx context.Context, t *testing.T, sandboxes []*client.Sandbox, opened <-chan struct{}) []*speaker {
	t.Helper()
	var speakers []*speaker
	var started errgroup.Group
	started.SetLimit(16)
	for n := range streamsEach {
		for _, sb := range sandboxes {
			sp := &speaker{sandbox: sb.ID, word: fmt.Sprintf("word-%d-of-%s", n, sb.ID)}
			speakers = append(speakers, sp)
			started.Go(func() error { return sp.start(ctx, sb, opened) })
		}
	}
	if err := started.Wait(); err != nil {
		t.Fatal(err)
	}
	return speakers
}
