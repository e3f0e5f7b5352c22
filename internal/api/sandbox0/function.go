package sandbox0

import (
	"bytes"
	"cmp"
	"compress/zlib"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
)

// functionServer is a program that serves one function: its name, how many requests
// it may have at a time and its code are the arguments. A function is called with a
// request and returns an answer as sandbox0 has them; it lives from one request to
// the next.
//
//go:embed function.py
var functionServer string

// functionLoader is that program in less than half of its size, because it is kept
// with every sandbox that has a function. It is made when it is asked for: each process
// of a runtime is this program, and would make it at its start.
var functionLoader = sync.OnceValue(func() string {
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	_, _ = w.Write([]byte(functionServer)) // memory takes everything
	_ = w.Close()
	return fmt.Sprintf("import base64, zlib; exec(zlib.decompress(base64.b64decode('%s')))", base64.StdEncoding.EncodeToString(packed.Bytes()))
})

// The arguments of the command of a function, after those that start its server.
const (
	handlerArg = iota + 4
	mostArg
	codeArg
	functionArgs
)

// callFunction returns the command that serves a function.
func callFunction(handler string, most int, code string) []string {
	return []string{"python3", "-u", "-c", functionLoader(), cmp.Or(handler, "handler"), strconv.Itoa(most), code}
}

// functionOf returns what callFunction was told.
func functionOf(command []string) (handler string, most int, code string, ok bool) {
	if len(command) != functionArgs {
		return "", 0, "", false
	}
	most, err := strconv.Atoi(command[mostArg])
	return command[handlerArg], most, command[codeArg], err == nil
}
