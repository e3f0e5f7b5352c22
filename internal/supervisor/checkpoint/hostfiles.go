package checkpoint

import (
	"context"
	"fmt"
	"strings"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
)

// Programs in a memory image go on reading files of the host that the template
// shows. A restored runtime opens them again by their paths. So a capture notes
// which files of the host are open, and what they are like; a wake compares.

// Manifest begins the manifest of the memory image that a capture of a runtime
// will make, and has the program stay that can read it.
func (x Reader) Manifest(ctx context.Context, sb store.Sandbox, cp lifecycle.Checkpoint, inst runtime.Instance) (m layer.Manifest, err error) {
	if cp.Mode != lifecycle.Memory {
		return m, nil
	}
	t, err := x.Templates.Resolve(sb.Config.Template)
	if err != nil {
		return m, err
	}
	system, err := x.Templates.System(ctx, t)
	build := x.build(sb, inst)
	return layer.Manifest{ID: cp.ID, Runtime: build.Version, Build: build.Digest, System: &system}, err
}

// build returns the build that a runtime runs. A pause does not fail because
// there is no room for the program: it is wanted only after an upgrade.
func (x Reader) build(sb store.Sandbox, inst runtime.Instance) runtime.Build {
	built, ok := inst.(runtime.Built)
	if !ok {
		return runtime.Build{Version: x.Driver.Capabilities().Version}
	}
	b, err := built.Build()
	if err != nil {
		x.Log.Warn("the program that can read a memory image is not kept: after an upgrade the sandbox may not wake", "sandbox", sb.ID, "build", b.Digest, "err", err)
	}
	return b
}

// HostFiles returns the files of the host that a frozen runtime holds open, and
// not the sandbox's own files, which are in its layers. It returns nil where
// that is not known: a wake then compares all that the template shows.
func (x Reader) HostFiles(inst runtime.Instance, sb store.Sandbox) []layer.HostFile {
	holder, ok := inst.(runtime.FileHolder)
	if !ok {
		return nil
	}
	open, err := holder.OpenFiles()
	if err != nil {
		x.Log.Warn("open files are not known", "sandbox", sb.ID, "runtime", inst.ID(), "err", err)
	}
	t, resolved := x.Templates.Resolve(sb.Config.Template)
	if err != nil || resolved != nil || open == nil {
		return nil
	}
	lowers, _ := sb.Record.Lowers()
	layers := append(lowers, inst.ID())
	files := []layer.HostFile{}
	for _, f := range open {
		if strings.Contains(f.Path, "/"+template.PythonCache+"/") {
			continue // Python reads such a file at once, and makes it anew whenever it likes
		}
		_, tree, rel, ok := x.Templates.HostFile(t, f.Path)
		if ok && !x.Layers.Has(layers, tree, rel) {
			files = append(files, layer.HostFile{Path: f.Path, Size: f.Size, Modified: f.Modified})
		}
	}
	return files
}

// overChanged returns why a memory image must not be restored over the files that
// there are now; nil for no reason.
func (x Reader) overChanged(ctx context.Context, m layer.Manifest, t template.Template) error {
	if m.HostFiles != nil {
		if text := x.replaced(m.HostFiles, t); text != "" {
			return unreadable("%s", text)
		}
		return nil
	}
	if m.System == nil {
		return nil
	}
	now, err := x.Templates.System(ctx, t)
	if err != nil || *m.System == now {
		return err
	}
	return unreadable("files in the host's system directories, which its programs run from, have changed since it was paused, as by an upgrade of packages")
}

// replaced says which of the files that programs in an image have open are not
// what they were; "" for none.
func (x Reader) replaced(files []layer.HostFile, t template.Template) string {
	var first string
	n := 0
	for _, f := range files {
		info, _, _, ok := x.Templates.HostFile(t, f.Path)
		if ok && info.Size() == f.Size && info.ModTime().Equal(f.Modified) {
			continue
		}
		if n++; n == 1 {
			first = f.Path
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s, which a program of it has open, has changed on the host since, as by an upgrade of packages", first)
	}
	return fmt.Sprintf("%s and %d more files, which programs of it have open, have changed on the host since, as by an upgrade of packages", first, n-1)
}
