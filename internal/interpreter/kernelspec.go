package interpreter

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxSpec bounds a kernel.json.
const maxSpec = 1 << 20

// kernelSpec is a Jupyter kernel that is installed.
type kernelSpec struct {
	Argv          []string          `json:"argv"`
	Language      string            `json:"language"`
	Env           map[string]string `json:"env"`
	InterruptMode string            `json:"interrupt_mode"`

	name string // of its directory
	dir  string
}

// JupyterDirs returns where Jupyter keeps its kernels, in the order in which it
// looks: what JUPYTER_PATH says, the user's, those beside the programs in PATH
// (a virtual environment's are there), the system's.
func JupyterDirs(env map[string]string) []string {
	var dirs []string
	add := func(data string) {
		if dir := filepath.Join(data, "kernels"); filepath.IsAbs(data) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, data := range filepath.SplitList(env["JUPYTER_PATH"]) {
		add(data)
	}
	share := cmp.Or(env["XDG_DATA_HOME"], filepath.Join(env["HOME"], ".local/share"))
	add(cmp.Or(env["JUPYTER_DATA_DIR"], filepath.Join(share, "jupyter")))
	for _, bin := range filepath.SplitList(env["PATH"]) {
		if filepath.Base(bin) == "bin" {
			add(filepath.Join(filepath.Dir(bin), "share/jupyter"))
		}
	}
	add("/usr/local/share/jupyter")
	add("/usr/share/jupyter")
	return dirs
}

// specs returns the kernels in dirs. Of two with one name the first counts, as
// in Jupyter; one that cannot be read is none.
func specs(dirs []string) []*kernelSpec {
	var all []*kernelSpec
	seen := map[string]bool{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			name := strings.ToLower(entry.Name())
			if spec := readSpec(filepath.Join(dir, entry.Name())); spec != nil && !seen[name] {
				seen[name] = true
				spec.name = name
				all = append(all, spec)
			}
		}
	}
	return all
}

func readSpec(dir string) *kernelSpec {
	// A pipe must not hold up who opens it.
	f, err := os.OpenFile(filepath.Join(dir, "kernel.json"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSpec))
	spec := &kernelSpec{dir: dir}
	if err != nil || json.Unmarshal(data, spec) != nil || len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return nil
	}
	spec.Language = strings.ToLower(spec.Language)
	return spec
}

// usual is the kernel that is preferred to others of its language.
var usual = map[string]string{"python": "python3"}

// findSpec returns the kernel for a language, or the one of that name, or nil.
func findSpec(dirs []string, name string) *kernelSpec {
	var found *kernelSpec
	for _, spec := range specs(dirs) {
		switch {
		case spec.Language == name && spec.name == usual[name]:
			return spec
		case found == nil && (spec.Language == name || spec.name == name):
			found = spec
		case found != nil && found.Language != name && spec.Language == name:
			found = spec
		}
	}
	return found
}

// program returns the path of the kernel's program. What pip installs names no
// path, and means the interpreter of the environment it was installed in.
func (s *kernelSpec) program(host Host) (string, error) {
	names := []string{s.Argv[0]}
	if names[0] == "python" {
		names = append(names, "python3")
	}
	for _, name := range names {
		if prefix, ok := strings.CutSuffix(filepath.Dir(s.dir), "/share/jupyter/kernels"); ok && !strings.Contains(name, "/") {
			if path, ok := host.Look(filepath.Join(prefix, "bin", name)); ok {
				return path, nil
			}
		}
		if path, ok := host.Look(name); ok {
			return path, nil
		}
	}
	return "", failf(http.StatusInternalServerError, "it needs %s, which is not installed here", s.Argv[0])
}

// command is how the kernel is started, its connection file described by info.
func (s *kernelSpec) command(path string, info []byte, env map[string]string, dir string) Command {
	c := Command{Path: path, Env: map[string]string{}, Dir: dir, Secret: true}
	c.File, c.FileName = info, "connection-"+newID()+".json"
	for _, arg := range s.Argv[1:] {
		c.Args = append(c.Args, strings.ReplaceAll(arg, "{resource_dir}", s.dir))
	}
	for name, value := range env {
		c.Env[name] = value
	}
	for name, value := range s.Env {
		c.Env[name] = os.Expand(value, func(other string) string {
			if known, ok := env[other]; ok {
				return known
			}
			return fmt.Sprintf("${%s}", other)
		})
	}
	return c
}
