package interpreter

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestJavaScriptCells(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct {
		name, code string
		stdout     string
		text       any
	}{
		{"printing", "console.log(1)", "1\n", nil},
		{"declaration", "const a = 1", "", nil},
		{"declared again", "const a = 2; let b = a; b", "", "2"},
		{"function and class", "function f() { return b } class C { m() { return f() + 1 } }; new C().m()", "", "3"},
		{"string", "'it'", "", "it"},
		{"object", "({ a: { b: [1] } })", "", "{ a: { b: [ 1 ] } }"},
		{"big integer", "10n", "", "10n"},
		{"not a number", "NaN", "", "NaN"},
		{"null", "null", "", "null"},
		{"undefined", "undefined", "", nil},
		{"await", "const got = await new Promise((done) => setTimeout(done, 10, 'waited')); got", "", "waited"},
		{"promise", "Promise.resolve(5)", "", "5"},
		{"static import", "import fs from 'fs'\nimport { join as j, sep } from 'node:path'\nimport * as os from 'os'\n[typeof fs.readFileSync, j('a', 'b'), typeof os.cpus]",
			"", "[ 'function', 'a/b', 'function' ]"},
		{"import in text", "const text = `\nimport fs from 'fs'\n`; text.length + typeof import('fs').then", "", "21function"},
		{"dynamic import", "(await import('path')).sep", "", "/"},
		{"require", "require('path').sep", "", "/"},
		{"a child's output", "require('child_process').execSync('echo child', { stdio: 'inherit' }); console.log('after')", "child\nafter\n", nil},
		{"unicode", "console.log('é😀')", "é😀\n", nil},
		{"no arguments of the kernel", "process.execArgv.length + process.argv.length", "", "1"},
	} {
		o := s.run("js", c.code)
		equal(t, c.name+": stdout", strings.Join(o.stdout, ""), c.stdout)
		equal(t, c.name+": text", o.text(), c.text)
		if len(o.errors) > 0 || len(o.stderr) > 0 {
			t.Errorf("%s: errors %v, stderr %q", c.name, o.errors, o.stderr)
		}
	}
}

func TestJavaScriptErrors(t *testing.T) {
	s := newServer(t)
	s.wantFailures("javascript", []failingCell{
		{"thrown", "function g() { null.x }\ng()", "TypeError", "Cannot read properties of null (reading 'x')",
			"TypeError: Cannot read properties of null (reading 'x')\n    at g (<anonymous>:1:21)\n    at <anonymous>:2:1"},
		{"thrown later", "await (async () => { await null; throw new RangeError('late') })()", "RangeError", "late",
			"RangeError: late\n    at <anonymous>:1:40"},
		{"rejected", "Promise.reject(new Error('no'))", "Error", "no", "Error: no\n    at <anonymous>:1:16"},
		{"no error thrown", "throw 'text'", "Error", "'text'", "Uncaught 'text'"},
		{"syntax", "let z = ", "SyntaxError", "Unexpected end of input", "SyntaxError: Unexpected end of input\n    at <anonymous>:1:9"},
		{"module that is not there", "await import('nothing-here')", "Error", "", "Error: Cannot find module 'nothing-here'"},
	}, strings.HasPrefix)
}

func TestJavaScriptResults(t *testing.T) {
	s := newServer(t)
	o := s.run("javascript", `
display({ _toHtml: () => '<b>', _toPng: () => Buffer.from('png'), _toMime: () => ({ 'text/plain': 'shown', 'a/b': 1 }) });
console.log('between');
({ [Symbol.for('Jupyter.display')]: () => ({ 'text/plain': 'own', 'application/json': { a: 1 } }) })`)
	equal(t, "order", o.types, []string{typeCount, typeResult, typeStdout, typeResult, typeEnd})
	equal(t, "displayed", o.results[0], object{
		"type": "result", "is_main_result": false, "text": "shown", "html": "<b>", "png": "cG5n", "extra": map[string]any{"a/b": 1.0}})
	equal(t, "value", o.main, object{
		"type": "result", "is_main_result": true, "text": "own", "json": map[string]any{"a": 1.0}})
}

// What fails after its cell ends neither the kernel nor the next cell.
func TestJavaScriptFailureInBackground(t *testing.T) {
	s := newServer(t)
	o := s.run("javascript", "setTimeout(() => { throw new Error('later') }, 0); await new Promise((done) => setTimeout(done, 200)); 1")
	equal(t, "text", o.text(), any("1"))
	if !strings.Contains(strings.Join(o.stderr, ""), "Error: later") {
		t.Errorf("stderr %q", o.stderr)
	}
	equal(t, "next", s.run("javascript", "2").text(), any("2"))

	o = s.run("javascript", "Promise.reject(new Error('rejected')); 3")
	equal(t, "text", o.text(), any("3"))
	if !strings.Contains(strings.Join(o.stderr, ""), "Uncaught Error: rejected") {
		t.Errorf("stderr %q", o.stderr)
	}
	s.run("javascript", "setTimeout(() => Promise.reject(new Error('between')), 0); 4")
	deadline := time.Now().Add(10 * time.Second)
	for said := ""; !strings.Contains(said, "Uncaught Error: between"); {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was said of a failure between cells: %q", said)
		}
		said += strings.Join(s.run("javascript", "5").stderr, "")
	}
}

// TypeScript is what the installed Node makes of it: since 22.13 it runs.
func TestTypeScript(t *testing.T) {
	s := newServer(t)
	version, err := exec.Command("node", "-p", "typeof require('module').stripTypeScriptTypes").Output()
	if err != nil {
		t.Fatal(err)
	}
	const code = "interface P { x: number }\nenum E { A = 7 }\nconst p: P = { x: await Promise.resolve(E.A) }\np.x as number"
	if strings.TrimSpace(string(version)) == "function" {
		o := s.run("ts", code)
		equal(t, "text", o.text(), any("7"))
		equal(t, "stderr", o.stderr, []string(nil))
		return
	}
	status, body := s.call("POST", "/execute", object{"code": code, "language": "ts"})
	equal(t, "status", status, 400)
	if !strings.HasPrefix(body, "language 'typescript' needs Node.js 22.13 or later, and here is v") {
		t.Errorf("body %q", body)
	}
}
