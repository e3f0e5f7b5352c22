package interpreter

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed kernels/charts.py
var charts []byte

//go:embed kernels/modules.py
var modules []byte

//go:embed kernels/reseed.py
var reseed []byte

//go:embed kernels/kernel.py
var kernelPython []byte

//go:embed kernels/ipython.py
var ipython []byte

var pythonKernel = slices.Concat(charts, modules, reseed, kernelPython)

// lesson returns the code that a kernel of Jupyter's runs first, if its language has
// some. It is made when it is asked for: each process of a runtime is this program, and
// would make it at its start.
func lesson(language string) string {
	if language != "python" {
		return ""
	}
	return pythonLesson()
}

var pythonLesson = sync.OnceValue(func() string {
	// In a namespace of its own: the user's stays empty.
	return fmt.Sprintf(`exec(compile(%s, "<drowse>", "exec"), {"__name__": "drowse"})`,
		quoted(string(slices.Concat(charts, modules, ipython))))
})

//go:embed kernels/kernel.js
var javascriptKernel []byte

//go:embed kernels/kernel.sh
var bashKernel []byte

// language is one that there is a kernel for. The rest of it is about ours.
type language struct {
	name    string
	program string // found in PATH; empty if there is only one of Jupyter's
	options []string
	script  []byte
	file    string // what the script is called
	encode  func(request) ([]byte, error)
	// typed needs a kernel that says it takes types.
	typed bool
}

var languages = map[string]*language{
	"python":     {name: "python", program: "python3", options: []string{"-u"}, script: pythonKernel, file: "kernel.py", encode: asJSON},
	"javascript": {name: "javascript", program: "node", options: nodeOptions, script: javascriptKernel, file: "kernel.js", encode: asJSON},
	"typescript": {name: "typescript", program: "node", options: nodeOptions, script: javascriptKernel, file: "kernel.js", encode: asJSON, typed: true},
	"bash":       {name: "bash", program: "bash", options: []string{"--norc", "--noprofile"}, script: bashKernel, file: "kernel.sh", encode: asWords},
}

// nodeOptions let the kernel use Node's own parser, and keep warnings about
// what the kernel itself uses from the user.
var nodeOptions = []string{"--expose-internals", "--no-warnings"}

var shortNames = map[string]string{"js": "javascript", "ts": "typescript"}

// notHere are languages of E2B's own templates that need what ours has not.
var notHere = map[string]string{
	"r":    "R with IRkernel",
	"java": "a JDK with a Java kernel",
}

// languageOf returns a language that there is a kernel for: one of ours, or one
// of Jupyter's, which may be asked for by its own name too.
func languageOf(host Host, text string) (*language, error) {
	name := strings.ToLower(strings.TrimSpace(text))
	if long, ok := shortNames[name]; ok {
		name = long
	}
	if l := languages[name]; l != nil {
		return l, nil
	}
	dirs := host.JupyterDirs()
	if findSpec(dirs, name) != nil {
		return &language{name: name}, nil
	}
	there := languagesThere(dirs)
	if needs := notHere[name]; needs != "" {
		return nil, failf(http.StatusInternalServerError,
			"language '%s' is not supported here: it needs %s; there are %s", name, needs, listed(there, "and"))
	}
	return nil, failf(http.StatusInternalServerError, "there is no kernel '%s': use %s", name, listed(there, "or"))
}

// languagesThere are those of our own kernels, and then of Jupyter's.
func languagesThere(dirs []string) []string {
	there := []string{"python", "javascript", "typescript", "bash"}
	for _, spec := range specs(dirs) {
		if name := cmp.Or(spec.Language, spec.name); !slices.Contains(there, name) {
			there = append(there, name)
		}
	}
	return there
}

func listed(names []string, word string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

// startKernel returns a kernel that is ready: Jupyter's if there is one, else
// ours, which also takes the place of one that does not start.
func startKernel(ctx context.Context, host Host, logf func(string, ...any), l *language, dir string) (*kernel, error) {
	spec := findSpec(host.JupyterDirs(), l.name)
	if spec == nil {
		return startOwn(ctx, host, l, dir)
	}
	if l.program == "" {
		return startJupyter(ctx, host, logf, l, spec, dir, startLimit)
	}
	k, err := startJupyter(ctx, host, logf, l, spec, dir, jupyterLimit)
	if err == nil || ctx.Err() != nil {
		return k, err
	}
	if _, ok := host.Look(l.program); !ok {
		return nil, err
	}
	logf("a Jupyter kernel does not start, and a kernel of ours takes its place: %s: %v", spec.dir, err)
	return startOwn(ctx, host, l, dir)
}

// request is one cell as kernels get it.
type request struct {
	Code  string            `json:"code"`
	Count int               `json:"count"`
	Env   map[string]string `json:"env"`
	// Restore is what the variables in Env are afterwards; nil is unset.
	Restore map[string]*string `json:"restore"`
	// Reseed is for a kernel whose generators of random numbers are copies of those
	// of another sandbox.
	Reseed bool `json:"reseed"`
}

func asJSON(r request) ([]byte, error) {
	data, err := json.Marshal(r)
	return append(data, '\n'), err
}

// asWords is for bash, which reads no JSON.
func asWords(r request) ([]byte, error) {
	if strings.Contains(r.Code, "\x00") {
		return nil, errors.New("bash code cannot contain a NUL byte")
	}
	var b bytes.Buffer
	words := func(words ...string) {
		for _, word := range words {
			b.WriteString(word)
			b.WriteByte(0)
		}
	}
	if r.Reseed {
		words("reseed", seed())
	}
	for name, value := range r.Env {
		words("set", name, value)
	}
	words("run", strconv.Itoa(len(r.Code)))
	b.WriteString(r.Code)
	for name, value := range r.Restore {
		if value == nil {
			words("unset", name)
		} else {
			words("set", name, *value)
		}
	}
	return b.Bytes(), nil
}
