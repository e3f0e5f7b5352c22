package interpreter

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPythonCells(t *testing.T) { withEach(t, testPythonCells) }

func testPythonCells(t *testing.T, s *interpreterServer) {
	for _, c := range []struct {
		name, code string
		stdout     string
		text       any // of the cell's value; nil for none
	}{
		{"printing", "print(1)", "1\n", nil},
		{"lines of one call stay together", `print("a\nb")`, "a\nb\n", nil},
		{"part of a line", `print("no end", end="")`, "no end", nil},
		{"assignment", "x = 1", "", nil},
		{"state", "x += 1; x", "", "2"},
		{"quotes of a string", "'a'", "", "a"},
		{"an apostrophe inside", `"it's"`, "", "it's"},
		{"None", "None", "", nil},
		{"semicolon", "5;", "", nil},
		{"await", "import asyncio\nawait asyncio.sleep(0.01, 'slept')", "", "slept"},
		{"unicode", "print('é😀'); 'é😀'", "é😀\n", "é😀"},
		{"shell line", "!echo shell", "shell\n", nil},
		{"shell line with a value", "got = !printf 'a\\nb'\ngot", "", "['a', 'b']"},
		{"shell line in a block", "if True:\n    !echo inner", "inner\n", nil},
		{"%env", "%env MAGIC=1", "env: MAGIC=1\n", nil},
		{"%env of one name", "%env MAGIC", "", "1"},
		{"%cd", "%cd /usr", "/usr\n", nil},
		{"%%bash", "%%bash\nfor i in 1 2; do echo $i; done", "1\n2\n", nil},
		{"percent and exclamation in Python", "5 % 3 != 2", "", "False"},
		{"no module but the user's", "__name__, 'json' in globals()", "", "('__main__', False)"},
		{"indented as a whole", "\n    indented = 1\n    if indented:\n        print(indented)\n\n    indented + 1\n    ", "1\n", "2"},
		{"indented with tabs", "\tx = 'a'\n\tx", "", "a"},
		{"indented, with a shell line", "    !echo indented", "indented\n", nil},
		{"pickling", "import pickle\nclass P: pass\ntype(pickle.loads(pickle.dumps(P()))) is P", "", "True"},
		{"multiprocessing", "from multiprocessing import get_context\ndef three(q): q.put(3)\n" +
			"c = get_context('fork'); q = c.Queue(); p = c.Process(target=three, args=(q,)); p.start(); v = q.get(); p.join(); v", "", "3"},
	} {
		o := s.run("python", c.code)
		// IPython gives what !command runs a terminal.
		stdout := strings.ReplaceAll(strings.Join(o.stdout, ""), "\r\n", "\n")
		equal(t, c.name+": stdout", stdout, c.stdout)
		equal(t, c.name+": text", o.text(), c.text)
		if len(o.errors) > 0 || len(o.stderr) > 0 {
			t.Errorf("%s: errors %v, stderr %q", c.name, o.errors, o.stderr)
		}
	}
}

// A child writes to the kernel's own descriptor. A thread of IPython's reads what comes
// there, at the same time as the cell prints on: all of it arrives, in any order.
func TestChildsOutput(t *testing.T) {
	withEach(t, func(t *testing.T, s *interpreterServer) {
		o := s.run("python", "import os\nprint('before', flush=True)\nos.system('echo child')\nprint('after')")
		got, want := []byte(strings.Join(o.stdout, "")), []byte("before\nchild\nafter\n")
		if s.host.jupyter != nil {
			slices.Sort(got)
			slices.Sort(want)
		}
		equal(t, "stdout", string(got), string(want))

		// Each cell has what its own children wrote, also what comes in pieces, and with
		// what no text has in it.
		for i := range 20 {
			o := s.run("python", fmt.Sprintf("_ = os.system('seq %d00 %d99; printf \"end\\\\0\"; echo bad >&2')", i+1, i+1))
			var want strings.Builder
			for n := range 100 {
				fmt.Fprintln(&want, (i+1)*100+n)
			}
			equal(t, fmt.Sprintf("stdout of cell %d", i), strings.Join(o.stdout, ""), want.String()+"end\x00")
			equal(t, fmt.Sprintf("stderr of cell %d", i), strings.Join(o.stderr, ""), "bad\n")
		}
		if s.host.jupyter == nil {
			return
		}
		// IPython prints without the descriptor, which may be another when a cell ends.
		o = s.run("python", "kept = os.dup(1)\n_ = os.dup2(os.open('/dev/null', os.O_WRONLY), 1), os.system('echo nowhere')\nprint('printed')")
		equal(t, "with another descriptor", strings.Join(o.stdout, ""), "printed\n")
		o = s.run("python", "_ = os.dup2(kept, 1)\nos.system('echo again')\nNone")
		equal(t, "with the descriptor back", strings.Join(o.stdout, ""), "again\n")
	})
}

// What IPython does not do, or in another way.
func TestOwnPythonCells(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct{ name, code, stdout, text string }{
		{"an event loop of one's own", "import asyncio\nasync def two(): return 2\nasyncio.run(two())", "", "2"},
		{"raw bytes", "import sys\n_ = sys.stdout.buffer.write(b'raw\\n')", "raw\n", ""},
	} {
		o := s.run("python", c.code)
		equal(t, c.name+": stdout", strings.Join(o.stdout, ""), c.stdout)
		if c.text != "" {
			equal(t, c.name+": text", o.text(), any(c.text))
		}
	}
}

func TestPythonErrors(t *testing.T) {
	s := newServer(t)
	s.wantFailures("python", []failingCell{
		{"thrown", "def f(x):\n    return 1 / x\nf(0)", "ZeroDivisionError", "division by zero",
			"Traceback (most recent call last):\n" +
				"  File \"Cell In[1]\", line 3, in <module>\n    f(0)\n" +
				"  File \"Cell In[1]\", line 2, in f\n    return 1 / x\n"},
		{"syntax", "if x", "SyntaxError", "", "  File \"Cell In[2]\", line 1\n    if x\n"},
		{"input", "input('name?')", "StdinNotImplementedError", "input() is not supported here: nobody is there to answer", "line 1, in <module>"},
		{"exit", "import sys\nsys.exit(3)", "SystemExit", "3", "line 2, in <module>"},
		{"unknown magic", "%nothing", "UsageError", "the magic %nothing is not supported here: there are !command, %cd, %env, %pip and %pwd", "line 1"},
		{"cause", "try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('second') from e", "ValueError", "second", "ZeroDivisionError: division by zero"},
		{"too large a result", "'x' * (13 << 20)", "ValueError", "", "is too large"},
	}, func(got, want string) bool { return strings.Contains(got, want) && !strings.Contains(got, "kernel.py") })
}

func TestIPythonErrors(t *testing.T) {
	s := newJupyterServer(t)
	s.wantFailures("python", []failingCell{
		{"thrown", "def f(x):\n    return 1 / x\nf(0)", "ZeroDivisionError", "division by zero", "Cell In[1], line 2, in f(x)\n"},
		{"syntax", "if x", "SyntaxError", "", "Cell In[2], line 1\n    if x\n"},
		{"input", "input('name?')", "StdinNotImplementedError", "", "Cell In[3], line 1\n"},
		{"exit", "import sys\nsys.exit(3)", "SystemExit", "3", "SystemExit: 3"},
		{"unknown magic", "%nothing", "UsageError", "", ""},
		{"cause", "try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('second') from e", "ValueError", "second", "ZeroDivisionError: division by zero"},
		{"too large a result", "display({'text/plain': 'x' * (65 << 20)}, raw=True)", "ValueError", "", ""},
	}, func(got, want string) bool { return strings.Contains(got, want) && !strings.Contains(got, "\x1b") })
}

func TestPythonResults(t *testing.T) { withEach(t, testPythonResults) }

func testPythonResults(t *testing.T, s *interpreterServer) {
	o := s.run("python", `
class Rich:
    def __repr__(self): return "<rich>"
    def _repr_html_(self): return "<b>é</b>"
    def _repr_markdown_(self): return "*m*"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"png"
    def _repr_jpeg_(self): return b"jpeg", {"width": 1}
    def _repr_pdf_(self): return b"pdf"
    def _repr_latex_(self): return "$x$"
    def _repr_json_(self): return {"a": [1]}
    def _repr_javascript_(self): return "alert()"
    def _repr_mimebundle_(self, include=None, exclude=None): return {"application/x-own": "own", "e2b/chart": {"type": "bar"}}
display(1, "two")
Rich()`)
	equal(t, "results", len(o.results), 3)
	equal(t, "displayed", o.results[0], object{"type": "result", "is_main_result": false, "text": "1"})
	equal(t, "displayed", o.results[1], object{"type": "result", "is_main_result": false, "text": "two"})
	equal(t, "value", o.main, object{
		"type": "result", "is_main_result": true,
		"text": "<rich>", "html": "<b>é</b>", "markdown": "*m*", "svg": "<svg/>",
		"png": "cG5n", "jpeg": "anBlZw==", "pdf": "cGRm", "latex": "$x$",
		"json": map[string]any{"a": []any{1.0}}, "javascript": "alert()",
		"chart": map[string]any{"type": "bar"}, "extra": map[string]any{"application/x-own": "own"},
	})

	o = s.run("python", "print('a')\ndisplay('b')\nprint('c')")
	equal(t, "order", o.types, []string{typeCount, typeStdout, typeResult, typeStdout, typeEnd})
}

// Code that was written for a notebook runs also where IPython is not installed.
func TestDisplayOfIPython(t *testing.T) {
	withEach(t, testDisplayOfIPython)
	t.Run("own, without IPython", func(t *testing.T) {
		s := newServer(t)
		o := s.run("python", "import sys\nsys.path[:] = [p for p in sys.path if 'packages' not in p]\ndir(__import__('IPython'))")
		if text, _ := o.main["text"].(string); len(o.errors) > 0 || strings.Contains(text, "InteractiveShell") {
			t.Fatalf("IPython is there: %s %v", text, o.errors)
		}
		testDisplayOfIPython(t, s)
		equal(t, "shell", s.run("python", "from IPython import get_ipython\nget_ipython()").text(), nil)
	})
}

func testDisplayOfIPython(t *testing.T, s *interpreterServer) {
	for _, c := range []struct{ name, code string }{
		{"imported by name", "from IPython.display import display\ndisplay('b')"},
		{"imported as a package", "import IPython.display\nIPython.display.display('b')"},
		{"of the package itself", "from IPython import display\ndisplay.display('b')"},
	} {
		o := s.run("python", "print('a')\n"+c.code+"\nprint('c')")
		equal(t, c.name+": order", o.types, []string{typeCount, typeStdout, typeResult, typeStdout, typeEnd})
		equal(t, c.name+": errors", o.errors, []object(nil))
	}
}

func TestBrokenRepresentation(t *testing.T) {
	s := newServer(t)
	o := s.run("python", `
class Broken:
    def __repr__(self): return "<broken>"
    def _repr_html_(self): raise RuntimeError("no html")
Broken()`)
	equal(t, "with a broken representation", o.main, object{"type": "result", "is_main_result": true, "text": "<broken>"})
	if !strings.Contains(strings.Join(o.stderr, ""), "RuntimeError: no html") {
		t.Errorf("stderr %q", o.stderr)
	}
}
