package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/failpoint"
)

// volumeState is what there is of the volume that faults strike.
type volumeState string

// A directory of its own for the file is nothing that is told apart.
const (
	noVolume    volumeState = "not there"
	emptyVolume volumeState = "without the file"
	oldVolume   volumeState = "with the old file"
	newVolume   volumeState = "with the new file"
)

const (
	faultyVolume = "tried"
	faultyFile   = "/dir/below/file"
)

// What the file has: more than one write.
var oldText, newText = strings.Repeat("old ", 50_000), strings.Repeat("new ", 60_000)

func (f *faults) createVolume(string) error {
	_, err := f.s.client.CreateVolume(f.ctx, faultyVolume)
	return err
}

func (f *faults) deleteVolume(string) error { return f.s.client.DeleteVolume(f.ctx, f.volume.ID) }

func (f *faults) failingDelete(id string) error {
	if err := f.deleteVolume(id); err == nil {
		return errors.New("the deletion did not fail")
	}
	return nil
}

func (f *faults) writeVolume(string) error { return f.changeVolume("PUT", "file", newText) }
func (f *faults) clearVolume(string) error { return f.changeVolume("DELETE", "path", "") }

func (f *faults) createWithVolume(string) error {
	_, err := f.s.client.Create(f.ctx, client.CreateOptions{Timeout: time.Hour, Volumes: map[string]string{"/mnt/data": faultyVolume}})
	return err
}

// changeVolume makes a request for the file, and returns what is wrong with the
// answer as a client would.
func (f *faults) changeVolume(method, what, body string) error {
	target := fmt.Sprintf("/volumecontent/%s/%s?path=%s", f.volume.ID, what, faultyFile)
	if method != http.MethodDelete {
		target += "&force=true"
	}
	got, err := f.s.raw(f.ctx, method, target, http.Header{"Authorization": {"Bearer " + f.volume.Token}}, strings.NewReader(body))
	if err != nil {
		return err
	}
	if got.status >= 300 {
		_, code, _ := strings.Cut(string(got.body), `"code":"`)
		code, _, _ = strings.Cut(code, `"`)
		return &client.Error{Status: got.status, Code: code, Message: string(got.body)}
	}
	return nil
}

// overtaken reports whether something else can overtake an operation that is
// held: nobody can name a volume that is being made, and two deletions wait for
// each other.
func (o operation) overtaken() bool {
	return o.on != shared || o.was != noVolume && o.is != noVolume && o.also == ""
}

// overtake ends what an operation is on.
func (f *faults) overtake(o operation, id string) error {
	if o.on == shared {
		return f.deleteVolume("")
	}
	return f.kill(id)
}

// volumeIs looks for the volume, which f.volume is then, and its file.
func (f *faults) volumeIs() volumeState {
	t := f.t
	t.Helper()
	all, err := f.s.client.Volumes(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return noVolume
	}
	if len(all) > 1 || all[0].Name != faultyVolume {
		t.Fatalf("there are %+v", all)
	}
	if f.volume, err = f.s.client.Volume(f.ctx, all[0].ID); err != nil {
		t.Fatal(err)
	}
	got := f.s.content(f.ctx, f.volume, "GET", "file", faultyFile, "")
	switch text := string(got.body); {
	case got.status == http.StatusNotFound:
		list := f.s.content(f.ctx, f.volume, "GET", "dir", "/", "")
		if text := string(list.body); list.status != http.StatusOK || text != "[]" && !strings.Contains(text, `"path":"/dir"`) {
			t.Errorf("the volume cannot be listed: %d %s", list.status, text)
		}
		return emptyVolume
	case text == oldText:
		return oldVolume
	case text == newText:
		return newVolume
	default:
		return volumeState(fmt.Sprintf("torn: %d, %d bytes, %.40q", got.status, len(text), text))
	}
}

func (f *faults) wantVolume(tr trial, want volumeState) {
	f.t.Helper()
	if got := f.volumeIs(); got != want {
		f.t.Errorf("after %s: the volume is %s, want %s", tr, got, want)
	}
}

// bringVolume makes the volume anew.
func (f *faults) bringVolume(to volumeState) {
	t := f.t
	t.Helper()
	if f.volumeIs() != noVolume {
		if err := f.deleteVolume(""); err != nil {
			t.Fatalf("delete the volume: %v", err)
		}
	}
	if to == noVolume {
		return
	}
	if err := f.createVolume(""); err != nil {
		t.Fatal(err)
	}
	f.volumeIs()
	if to == oldVolume {
		if err := f.changeVolume("PUT", "file", oldText); err != nil {
			t.Fatal(err)
		}
	}
}

// tryVolume lets a fault strike an operation on the volume, and holds that it is
// as before or as after, as the caller was told.
func (f *faults) tryVolume(tr trial) row {
	t, o := f.t, tr.op
	t.Helper()
	f.ready(o)
	f.arm(append(o.extra(), failpoint.Armed{Point: tr.point, Fault: tr.fault, Nth: tr.nth})...)
	answer := make(chan error, 1)
	go func() { answer <- o.begin(f, "") }()
	err := f.await(tr, "", answer)
	f.disarm()
	if f.s.cmd == nil {
		f.s.start()
	}
	f.settle(tr.String(), "", o)
	is := f.volumeIs()
	switch {
	case tr.fault == failpoint.Hold:
		if is != noVolume {
			t.Errorf("after %s: the volume is %s, and it was deleted", tr, is)
		}
	case tr.fault == failpoint.Crash && (is == o.was || is == o.is), err == nil && is == o.is, err != nil && is == o.was:
	default:
		t.Errorf("after %s: the answer is %v, and the volume is %s", tr, err, is)
	}
	if is == o.was && is != o.is && !t.Failed() {
		if err := o.begin(f, ""); err != nil {
			t.Errorf("after %s: again: %v", tr, err)
		}
		f.settle(tr.String()+", and again", "", o)
		f.wantVolume(tr, o.is)
	}
	return row{trial: tr, answer: tr.answer(err), state: string(is)}
}
