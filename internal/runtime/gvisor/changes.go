package gvisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	sentrycontrol "gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/pagemap"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/runtime/gvisor/imageserver"
)

// A capture of changes goes through an image server as well, one that writes. It has
// the files of the new image open, and the map and the digests of the image before. It
// ends when this server has its answer, or when the sentry lets go of it. Where this
// server dies, the sentry ends the capture as if nothing had happened, into files that
// the next server removes: a sentry whose capture is cut off is more in danger.

// imageTakerName tells Handover what to become.
const imageTakerName = "runsc-image-taker"

// What it inherits, besides a taking on its standard input.
const (
	takerSocket = 3 + iota
	takerState
	takerMeta
	takerPack
	takerMap
	takerSums
	takerBaseMap // if there is a base
	takerBaseSums
)

// taking is what an image taker is told.
type taking struct {
	Pack string   `json:"pack"`
	Most int64    `json:"most"`
	Base bool     `json:"base"`
	Keep []string `json:"keep"`
}

// taken is what it answers when an image is complete, or cannot be.
type taken struct {
	Error   string              `json:"error,omitempty"`
	Written imageserver.Written `json:"written"`
}

// answerWithin is how long a taker may need to say that an image is complete, after the
// sentry has said so: it has been told before.
const answerWithin = 30 * time.Second

// CapturesChanges implements runtime.ChangeDriver. Without the edits a sentry dies when
// its image taker does as the capture begins, and the sandbox is back at its last
// checkpoint.
func (d *Driver) CapturesChanges() bool { return edits != "" && forAll() }

// CapturesChanges implements runtime.ChangeCapturer. A runtime of another build with the
// same gVisor may have been built without the edits.
func (i *instance) CapturesChanges() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, ok := i.c.(local)
	if i.peer != nil {
		return ok && i.peer.edited && forAll()
	}
	return ok && i.d.CapturesChanges()
}

// CheckpointChanges implements runtime.ChangeCapturer.
func (i *instance) CheckpointChanges(_ context.Context, dir string, c runtime.Changes) error {
	return i.capture(dir, func() error {
		l, ok := i.c.(local)
		if !ok {
			return errors.New("internal error: another build captures whole images")
		}
		written, err := l.checkpointChanges(i.group, dir, c, mostImage(i.memoryLimit()))
		if err == nil && i.d.log != nil {
			i.d.log.Debug("memory captured", "runtime", i.id, "pages", written.Pages, "zeros", written.Zeros, "kept", written.Kept)
		}
		return err
	})
}

// mostImage bounds the image of a runtime with a limit on its memory, generously: that
// may be swapped out, and the state of its kernel is beside it.
func mostImage(memory int64) int64 { return 4*memory + 1<<30 }

// checkpointChanges is checkpoint with an image taker, in the cgroup of the runtime.
func (l local) checkpointChanges(g group, dir string, c runtime.Changes, most int64) (w imageserver.Written, err error) {
	t, err := l.startTaker(g, dir, c, most)
	if err != nil {
		return w, fmt.Errorf("start image taker: %w", err)
	}
	defer t.end()
	if err := failpoint.Fail(failpoint.TakerStarted); err != nil {
		return w, err
	}
	conn, err := l.dial()
	if err != nil {
		return w, err
	}
	defer conn.Close()
	opts := sentrycontrol.SaveOpts{
		Metadata:           statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile:      true,
		Resume:             true, // see checkpoint
		UseCheckpointGofer: true,
		FilePayload:        urpc.FilePayload{Files: []*os.File{t.sentrys}},
	}
	err = conn.Call(boot.ContMgrCheckpoint, &opts, nil)
	if err != nil {
		// The taker knows more of it, if it is still there.
		return w, errors.Join(err, t.complaint())
	}
	return t.await()
}

// taker is an image taker that runs.
type taker struct {
	sentrys *os.File // the other end of its socket
	process *os.Process
	answers chan taken // closed when there will be none any more
}

// startTaker starts the image taker, with the files that the image will be.
func (l local) startTaker(g group, dir string, c runtime.Changes, most int64) (_ *taker, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t := &taker{sentrys: os.NewFile(uintptr(pair[0]), "sentry"), answers: make(chan taken, 1)}
	files := []*os.File{os.NewFile(uintptr(pair[1]), "image taker")}
	defer func() {
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			t.sentrys.Close()
		}
	}()
	for _, name := range []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, c.Pack, pagemap.Name, pagemap.SumsName} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if c.Base != "" {
		for _, name := range []string{pagemap.Name, pagemap.SumsName} {
			f, err := os.Open(filepath.Join(c.Base, name))
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	cmd := imageCommand(imageTakerName)
	cmd.ExtraFiles = files
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.process = cmd.Process
	go func() {
		defer close(t.answers)
		var a taken
		if json.NewDecoder(io.LimitReader(stdout, 1<<16)).Decode(&a) == nil {
			t.answers <- a
		}
		_ = cmd.Wait()
	}()
	err = g.join(cmd.Process.Pid)
	if err == nil {
		err = json.NewEncoder(stdin).Encode(taking{Pack: c.Pack, Most: most, Base: c.Base != "", Keep: c.Keep})
	}
	if err := errors.Join(err, stdin.Close()); err != nil {
		t.end()
		return nil, err
	}
	return t, nil
}

// end ends the taker, and waits for that: nothing is written to the image afterwards.
func (t *taker) end() {
	_ = t.process.Kill()
	for range t.answers {
	}
	t.sentrys.Close()
}

var errTakerDied = errors.New("what writes its memory image has died")

// await waits for the answer of the taker.
func (t *taker) await() (imageserver.Written, error) {
	select {
	case a, ok := <-t.answers:
		switch {
		case !ok:
			return a.Written, errTakerDied
		case a.Error != "":
			return a.Written, errors.New(a.Error)
		}
		return a.Written, nil
	case <-time.After(answerWithin):
		return imageserver.Written{}, errors.New("the sentry says that its image is complete, and it is not")
	}
}

// complaint returns why the taker failed, if it said so.
func (t *taker) complaint() error {
	select {
	case a, ok := <-t.answers:
		switch {
		case !ok:
			return errTakerDied
		case a.Error != "":
			return errors.New(a.Error)
		}
	default:
	}
	return nil
}

// beImageTaker takes the image that it was started for. It returns the exit code.
func beImageTaker() int {
	ignorePipes()
	if err := imageserver.Confine(); err != nil {
		return 1
	}
	to := json.NewEncoder(os.Stdout)
	err := takeImage(func(w imageserver.Written) { _ = to.Encode(taken{Written: w}) })
	if err != nil {
		_ = to.Encode(taken{Error: err.Error()})
		return 1
	}
	return 0
}

func takeImage(done func(imageserver.Written)) error {
	var t taking
	if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&t); err != nil {
		return err
	}
	c := imageserver.Capture{
		State: os.NewFile(takerState, "state"), Meta: os.NewFile(takerMeta, "meta"), Pack: os.NewFile(takerPack, t.Pack),
		Map: os.NewFile(takerMap, pagemap.Name), Sums: os.NewFile(takerSums, pagemap.SumsName), PackName: t.Pack, Most: t.Most,
	}
	if t.Base {
		data, err := io.ReadAll(os.NewFile(takerBaseMap, pagemap.Name))
		if err != nil {
			return err
		}
		m, err := pagemap.Decode(data)
		if err != nil {
			return err
		}
		c.Base = &imageserver.Base{Map: m, Sums: os.NewFile(takerBaseSums, pagemap.SumsName), Keep: t.Keep}
	}
	return imageserver.Receive(takerSocket, c, done)
}

// assemble makes an image whose pages are in one file of one with a map, for a build
// that knows no maps, or where nobody but root may run this program. It is in the
// bundle, so that it goes with the runtime at the latest.
func (d *Driver) assemble(id, image string, files []runtime.ImageFile) (dir string, err error) {
	dir = filepath.Join(d.bundle(id), "whole")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	var all []imageserver.File
	for _, f := range files {
		from, err := os.Open(filepath.Join(image, f.Name))
		if err != nil {
			return "", err
		}
		defer from.Close()
		all = append(all, imageserver.File{ImageFile: f, From: from})
	}
	for _, name := range imageserver.Asked {
		if err := assembleFile(all, filepath.Join(dir, name), name); err != nil {
			if damage, ok := errors.AsType[*imageserver.Damage](err); ok {
				err = errdef.New(errdef.Unavailable, codeDamaged, "its memory image is damaged: %w", damage)
			}
			return "", err
		}
	}
	return dir, nil
}

func assembleFile(all []imageserver.File, path, name string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(imageserver.Assemble(all, name, f), f.Close())
}
