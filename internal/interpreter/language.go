package interpreter

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
)

//go:embed kernels/kernel.py
var pythonKernel []byte

//go:embed kernels/kernel.js
var javascriptKernel []byte

//go:embed kernels/kernel.sh
var bashKernel []byte

// language is one that there is a kernel for.
type language struct {
	name    string
	program string // found in PATH
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

func languageOf(text string) (*language, error) {
	name := strings.ToLower(strings.TrimSpace(text))
	if long, ok := shortNames[name]; ok {
		name = long
	}
	if l := languages[name]; l != nil {
		return l, nil
	}
	if needs := notHere[name]; needs != "" {
		return nil, failf(http.StatusInternalServerError,
			"language '%s' is not supported here: it needs %s; there are python, javascript, typescript and bash", name, needs)
	}
	return nil, failf(http.StatusInternalServerError,
		"there is no kernel '%s': use python, javascript, typescript or bash", name)
}

// request is one cell as kernels get it.
type request struct {
	Code  string            `json:"code"`
	Count int               `json:"count"`
	Env   map[string]string `json:"env"`
	// Restore is what the variables in Env are afterwards; nil is unset.
	Restore map[string]*string `json:"restore"`
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
