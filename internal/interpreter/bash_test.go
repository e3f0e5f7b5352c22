package interpreter

import (
	"strings"
	"testing"
)

func TestBashCells(t *testing.T) {
	s := newServer(t)
	s.wantShell([]shellCell{
		{"printing", "echo hi; x=3", "hi\n", ""},
		{"variables and directory", "echo $x; cd /usr; declare y=4", "3\n", ""},
		{"directory kept", "pwd; echo $y", "/usr\n4\n", ""},
		{"functions", "f() { local z=5; echo $z; return 6; }; f", "5\n", "exit status 6"},
		{"functions kept", "f || true", "5\n", ""},
		{"no input", "cat; read line; echo read", "read\n", ""},
		{"background", "sleep 0.01 & wait; echo waited", "waited\n", ""},
		{"long code", "echo " + strings.Repeat("x", 100_000) + " | wc -c", "100001\n", ""},
		{"end of the kernel", "exit 3", "", "The kernel has ended (exit status 3); the next execution starts a new one"},
		{"a new kernel", "echo [$x]", "[]\n", ""},
	})
	o := s.run("bash", "if then")
	if len(o.errors) != 1 || !strings.Contains(strings.Join(o.stderr, ""), "syntax error near unexpected token") {
		t.Errorf("syntax error: stderr %q, errors %v", o.stderr, o.errors)
	}
}
