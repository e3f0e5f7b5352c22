package agent

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseSudo(t *testing.T) {
	tests := []struct{ args, want string }{
		{"ls -la", "cmd=[ls -la]"},
		{"-u bob ls", "user=bob cmd=[ls]"},
		{"-ubob -g staff ls", "user=bob group=staff cmd=[ls]"},
		{"--user=bob --group staff -- -x", "user=bob group=staff cmd=[-x]"},
		{"-nEHu bob ls", "user=bob E H cmd=[ls]"},
		{"-S -p prompt ls", "cmd=[ls]"},
		{"A=1 -n B=2 ls C=3", "set=[A=1 B=2] cmd=[ls C=3]"},
		{"-- A=1 ls", "set=[A=1] cmd=[ls]"},
		{"/opt/a=b x", "cmd=[/opt/a=b x]"},
		{"-i", "login cmd=[]"},
		{"-su bob", "user=bob shell cmd=[]"},
		{"--preserve-env=A,B --preserve-env=C ls", "keep=[A B C] cmd=[ls]"},
		{"--preserve-env ls", "E cmd=[ls]"},
		{"--login --non-interactive", "login cmd=[]"},
		{"-k", "forget cmd=[]"},
		{"-D /tmp pwd", "dir=/tmp cmd=[pwd]"},
		{"-u", "error"},
		{"-x ls", "error"},
		{"--nope ls", "error"},
		{"--login=x", "error"},
		{"-i -s", "error"},
		{"-iE", "error"},
		{"-b ls", "background cmd=[ls]"},
		{"--edit a b", "edit cmd=[a b]"},
		{"-e", "error"},
		{"-be a", "error"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			o, err := parseSudo(strings.Fields(tt.args))
			if got := describeSudo(o, err); got != tt.want {
				t.Errorf("= %s, want %s", got, tt.want)
			}
		})
	}
}

func describeSudo(o *sudoOptions, err error) string {
	if err != nil {
		return "error"
	}
	var parts []string
	add := func(on bool, format string, args ...any) {
		if on {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(o.user != "", "user=%s", o.user)
	add(o.group != "", "group=%s", o.group)
	add(o.dir != "", "dir=%s", o.dir)
	add(o.preserveEnv, "E")
	add(o.preserve != nil, "keep=%v", o.preserve)
	add(o.setHome, "H")
	add(o.login, "login")
	add(o.shell, "shell")
	add(o.forget, "forget")
	add(o.background, "background")
	add(o.edit, "edit")
	add(o.assignments != nil, "set=%v", o.assignments)
	add(true, "cmd=%v", o.commandLine)
	return strings.Join(parts, " ")
}

func newSudo(t *testing.T, out io.Writer, environ ...string) *sudo {
	dir := t.TempDir()
	passwd := writeFile(t, dir+"/passwd", "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/bash\n")
	group := writeFile(t, dir+"/group", "root:x:0:\nuser:x:1000:\nstaff:x:50:bob\n")
	return &sudo{accounts: readAccounts(passwd, group), uid: 1000, gid: 1000, environ: environ, stdout: out}
}

func TestSudoPlan(t *testing.T) {
	tests := []struct {
		args            []string
		path            string
		argv            string
		uid, gid        int
		groups          string
		dir             string
		env, absentVars []string
	}{
		{args: []string{"env"}, path: "/usr/bin/env", argv: "[env]", groups: "[0]",
			env:        []string{"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "PATH=" + defaultPath, "SUDO_USER=user", "SUDO_UID=1000", "SUDO_GID=1000", "SUDO_COMMAND=/usr/bin/env", "TERM=xterm", "LC_ALL=C"},
			absentVars: []string{"SECRET"}},
		{args: []string{"-E", "env"}, path: "/usr/bin/env", argv: "[env]", groups: "[0]",
			env: []string{"SECRET=1", "HOME=/home/user", "USER=root", "PATH=" + defaultPath}},
		{args: []string{"-EH", "env"}, path: "/usr/bin/env", argv: "[env]", groups: "[0]", env: []string{"SECRET=1", "HOME=/root"}},
		{args: []string{"--preserve-env=SECRET,PATH", "env"}, path: "/usr/bin/env", argv: "[env]", groups: "[0]", env: []string{"SECRET=1", "PATH=/caller/bin"}},
		{args: []string{"A=1", "PATH=/x", "env"}, path: "/usr/bin/env", argv: "[env]", groups: "[0]", env: []string{"A=1", "PATH=/x"}},
		{args: []string{"-u", "bob", "id", "-u"}, path: "/usr/bin/id", argv: "[id -u]", uid: 1001, gid: 1001, groups: "[1001 50]", env: []string{"HOME=/home/bob", "USER=bob"}},
		{args: []string{"-u", "#4321", "id"}, path: "/usr/bin/id", argv: "[id]", uid: 4321, gid: 4321, groups: "[4321]", env: []string{"USER=#4321"}},
		{args: []string{"-g", "staff", "id"}, path: "/usr/bin/id", argv: "[id]", uid: 1000, gid: 50, groups: "[50 1000]", env: []string{"USER=user"}},
		{args: []string{"-g", "#77", "-u", "bob", "id"}, path: "/usr/bin/id", argv: "[id]", uid: 1001, gid: 77, groups: "[77 1001 50]"},
		{args: []string{"-i"}, path: "/bin/bash", argv: "[-bash]", groups: "[0]", dir: "/root", env: []string{"HOME=/root"}, absentVars: []string{"SECRET"}},
		{args: []string{"-i", "-u", "bob", "echo", "a b", "$HOME"}, path: "/bin/bash", argv: `[-bash -c echo a\ b $HOME]`, uid: 1001, gid: 1001, groups: "[1001 50]", dir: "/home/bob"},
		{args: []string{"-s"}, path: "/bin/sh", argv: "[/bin/sh]", groups: "[0]"},
		{args: []string{"-s", "ls;x"}, path: "/bin/sh", argv: `[/bin/sh -c ls\;x]`, groups: "[0]"},
		{args: []string{"-P", "id"}, path: "/usr/bin/id", argv: "[id]", groups: "[]"},
		{args: []string{"-k", "id"}, path: "/usr/bin/id", argv: "[id]", groups: "[0]"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			s := newSudo(t, io.Discard, "TERM=xterm", "LC_ALL=C", "SECRET=1", "HOME=/home/user", "PATH=/caller/bin", "USER=user")
			cmd, err := s.plan(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			if cmd.path != tt.path || fmt.Sprint(cmd.argv) != tt.argv || cmd.uid != tt.uid || cmd.gid != tt.gid || fmt.Sprint(cmd.groups) != tt.groups || cmd.dir != tt.dir {
				t.Errorf("plan = %+v", cmd)
			}
			env := "\n" + strings.Join(cmd.env, "\n") + "\n"
			for _, want := range tt.env {
				if !strings.Contains(env, "\n"+want+"\n") {
					t.Errorf("%s is not in %s", want, env)
				}
			}
			for _, name := range tt.absentVars {
				if strings.Contains(env, "\n"+name+"=") {
					t.Errorf("%s is in %s", name, env)
				}
			}
		})
	}
}

func TestSudoAnswers(t *testing.T) {
	tests := []struct{ args, want string }{
		{"-v", ""},
		{"-k", ""},
		{"-K", ""},
		{"-V", "Sudo version"},
		{"-h", "usage:"},
		{"-l", "NOPASSWD: ALL"},
		{"-n -l ls -x", "/usr/bin/ls -x"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var out bytes.Buffer
			cmd, err := newSudo(t, &out).plan(strings.Fields(tt.args))
			if cmd != nil || err != nil || !strings.Contains(out.String(), tt.want) {
				t.Errorf("plan = %v, %v, printed %q", cmd, err, out.String())
			}
		})
	}
}

func TestSudoRefuses(t *testing.T) {
	for _, args := range []string{"", "-n", "-u", "-u nobody-here id", "-u #x id", "-u #4294967295 id", "-g none id", "no-such-command", "/etc", "-Z"} {
		t.Run(args, func(t *testing.T) {
			if cmd, err := newSudo(t, io.Discard).plan(strings.Fields(args)); err == nil {
				t.Errorf("plan = %+v", cmd)
			}
		})
	}
}

// The real thing: a set-uid copy of this program, called by an ordinary user.
func TestSudoSetUID(t *testing.T) {
	s := newServer(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, "sudo")
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, command string
		mode          os.FileMode
		stdout        string
		code          int32
	}{
		{"root", "sudo -n id -u; sudo id -ru; sudo -- sh -c 'echo $HOME $SUDO_UID'", 0o4755, "0\n0\n/root 65534\n", 0},
		{"status", "sudo sh -c 'exit 7'", 0o4755, "", 7},
		{"stdin", "echo data | sudo -S tr a-z A-Z", 0o4755, "DATA\n", 0},
		{"other user", "sudo -u '#1234' sh -c 'id -u; id -g; id -G'", 0o4755, "1234\n1234\n1234\n", 0},
		{"assignment", "sudo X=y printenv X", 0o4755, "y\n", 0},
		{"background", "sudo -b sh -c 'id -u >bg.new; mv bg.new bg'; until [ -s bg ]; do sleep 0.01; done; cat bg", 0o4755, "0\n", 0},
		{"edit", "sudo sh -c 'echo one >f; chmod 600 f'; EDITOR='sed -i s/one/two/' sudo -e f && sudo cat f && stat -c %a%u f && ! ls /var/tmp | grep sudoedit", 0o4755, "two\n6000\n", 0},
		{"edit a new file", "EDITOR='cp /proc/version' sudo --edit g && stat -c %u%a g", 0o4755, "0644\n", 0},
		{"edit as another", "EDITOR='cp /proc/version' sudo -u '#1234' -e not-mine || ls not-mine; rm -r /var/tmp/sudoedit-*; ls not-mine", 0o4755, "", 2},
		{"editor fails", "echo one >h; EDITOR=false sudo -e h || cat h", 0o4755, "one\n", 0},
		{"unknown option", "sudo -Z id", 0o4755, "", 1},
		{"unknown command", "sudo no-such-command", 0o4755, "", 1},
		{"not set-uid", "sudo id -u", 0o755, "", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.Chmod(path, tt.mode&0o777|os.ModeSetuid&setuidOf(tt.mode)); err != nil {
				t.Fatal(err)
			}
			req := shell(tt.command)
			req.Process.Envs = map[string]string{"PATH": s.dir + ":" + defaultPath}
			r := s.run("user", req)
			if r.stdout != tt.stdout || r.end.GetExitCode() != tt.code || tt.code == 1 && !strings.HasPrefix(r.stderr, "sudo: ") {
				t.Errorf("stdout %q, stderr %q, end %v", r.stdout, r.stderr, r.end)
			}
		})
	}
}

func setuidOf(mode os.FileMode) os.FileMode {
	if mode&0o4000 != 0 {
		return os.ModeSetuid
	}
	return 0
}
