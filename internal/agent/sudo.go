package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sudoVersion is shown by -V; scripts look at the first line only.
const sudoVersion = "Sudo version 1.9.0 (drowse-agent)"

const sudoUsage = `usage: sudo -h | -K | -k | -V
usage: sudo -v | -l [-nS]
usage: sudo [-bEHnPS] [-g group] [-u user] [-D directory] [VAR=value] [-i | -s] [command [arg ...]]
usage: sudo -e [-nS] [-g group] [-u user] file ...
`

// Sudo is the sandbox's sudo: any user may become any other, without a
// password, since the sandbox and not the user is the boundary. It returns an
// exit status, or not at all when the command has taken its place.
func Sudo(args []string) int {
	if syscall.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "sudo: must be owned by uid 0 and have the set-uid bit set")
		return 1
	}
	s := &sudo{
		accounts: readAccounts("/etc/passwd", "/etc/group"),
		uid:      uint32(syscall.Getuid()),
		gid:      uint32(syscall.Getgid()),
		environ:  os.Environ(),
		stdout:   os.Stdout,
	}
	cmd, err := s.plan(args)
	if err == nil && cmd == nil {
		return 0
	}
	if err == nil {
		err = cmd.run()
	}
	if err == nil { // it runs in the background
		return 0
	}
	fmt.Fprintln(os.Stderr, "sudo:", err)
	if errors.Is(err, errSudoUsage) {
		fmt.Fprint(os.Stderr, sudoUsage)
	}
	return 1
}

// sudo is who calls, with what environment.
type sudo struct {
	accounts *accounts
	uid, gid uint32
	environ  []string
	stdout   io.Writer
}

// sudoOptions is a parsed command line.
type sudoOptions struct {
	user, group, dir         string
	preserveEnv, keepGroups  bool
	preserve                 []string
	setHome, login, shell    bool
	list, validate, forget   bool
	help, version            bool
	background, edit         bool
	assignments, commandLine []string
}

// sudoCommand is what is to replace this process.
type sudoCommand struct {
	path     string
	argv     []string
	env      []string
	dir      string // empty: stay
	uid, gid int
	groups   []int

	background bool
}

var errSudoUsage = errors.New("invalid usage")

func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errSudoUsage, fmt.Sprintf(format, args...))
}

// plan answers by itself, returning nil, or says what to run.
func (s *sudo) plan(args []string) (*sudoCommand, error) {
	o, err := parseSudo(args)
	if err != nil {
		return nil, err
	}
	caller := s.account(s.uid, s.gid)
	target, err := s.target(o, caller)
	if err != nil {
		return nil, err
	}
	runs := len(o.commandLine) > 0 || o.login || o.shell
	switch {
	case o.help:
		fmt.Fprint(s.stdout, sudoUsage)
		return nil, nil
	case o.version:
		fmt.Fprintln(s.stdout, sudoVersion)
		return nil, nil
	case o.list:
		return nil, s.list(o, caller)
	case o.validate, o.forget && !runs:
		return nil, nil
	case o.edit:
		return nil, s.edit(o, target)
	case !runs:
		return nil, usagef("no command")
	}
	return s.command(o, caller, target)
}

// account returns the user of an id, or a nameless one.
func (s *sudo) account(uid, gid uint32) *account {
	if a := s.accounts.byName[s.accounts.owner(uid)]; a != nil {
		return a
	}
	return &account{
		name: "#" + strconv.FormatUint(uint64(uid), 10), uid: uid, gid: gid,
		home: "/", shell: "/bin/sh", groups: []uint32{gid},
	}
}

// target is a copy, for -g changes it. With -g alone the user stays.
func (s *sudo) target(o *sudoOptions, caller *account) (*account, error) {
	t := s.accounts.byName["root"]
	switch {
	case strings.HasPrefix(o.user, "#"):
		uid, err := strconv.ParseUint(o.user[1:], 10, 32)
		if err != nil || uid == 1<<32-1 {
			return nil, fmt.Errorf("unknown user %s", o.user)
		}
		t = s.account(uint32(uid), uint32(uid))
	case o.user != "":
		t = s.accounts.byName[o.user]
	case o.group != "":
		t = caller
	}
	if t == nil {
		return nil, fmt.Errorf("unknown user %s", o.user)
	}
	target := *t
	if o.group == "" {
		return &target, nil
	}
	gid, ok := s.accounts.groupIDs[o.group]
	if number, isNumber := strings.CutPrefix(o.group, "#"); isNumber && !ok {
		id, err := strconv.ParseUint(number, 10, 32)
		gid, ok = uint32(id), err == nil && id != 1<<32-1
	}
	if !ok {
		return nil, fmt.Errorf("unknown group %s", o.group)
	}
	target.gid = gid
	target.groups = append([]uint32{gid}, t.groups...)
	return &target, nil
}

// list says what may be run, or where the named command is.
func (s *sudo) list(o *sudoOptions, caller *account) error {
	if len(o.commandLine) == 0 {
		host, _ := os.Hostname()
		fmt.Fprintf(s.stdout, "User %s may run the following commands on %s:\n    (ALL : ALL) NOPASSWD: ALL\n", caller.name, host)
		return nil
	}
	path, err := lookSudo(o.commandLine[0])
	if err != nil {
		return err
	}
	fmt.Fprintln(s.stdout, strings.Join(append([]string{path}, o.commandLine[1:]...), " "))
	return nil
}

func (s *sudo) command(o *sudoOptions, caller, target *account) (*sudoCommand, error) {
	argv := o.commandLine
	if o.login || o.shell {
		argv = s.shellCommand(o, caller, target)
	}
	path, err := lookSudo(argv[0])
	if err != nil {
		return nil, err
	}
	cmd := &sudoCommand{
		path: path,
		argv: append([]string{argv[0]}, argv[1:]...),
		dir:  o.dir,
		uid:  int(target.uid),
		gid:  int(target.gid),

		background: o.background,
	}
	cmd.env = s.environment(o, caller, target, strings.Join(append([]string{path}, argv[1:]...), " "))
	if o.login {
		cmd.argv[0] = "-" + filepath.Base(path)
		if cmd.dir == "" {
			cmd.dir = target.home
		}
	}
	if !o.keepGroups {
		for _, g := range target.groups {
			cmd.groups = append(cmd.groups, int(g))
		}
	}
	return cmd, nil
}

// shellCommand wraps the command line for -i and -s: the shell gets it as one
// word, in which everything unusual is escaped.
func (s *sudo) shellCommand(o *sudoOptions, caller, target *account) []string {
	shell := target.shell
	if !o.login {
		shell = caller.shell
		if own := lookEnv(s.environ, "SHELL"); own != "" {
			shell = own
		}
	}
	if len(o.commandLine) == 0 {
		return []string{shell}
	}
	words := make([]string, len(o.commandLine))
	for i, word := range o.commandLine {
		words[i] = escapeWord(word)
	}
	return []string{shell, "-c", strings.Join(words, " ")}
}

// escapeWord does as sudo does; $ is left to the shell on purpose.
func escapeWord(word string) string {
	var b strings.Builder
	for _, r := range word {
		ordinary := r == '_' || r == '-' || r == '$' || r > 127 ||
			'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !ordinary {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// sudoKeeps are the variables that pass without -E: what sudo keeps by itself,
// and what package managers in a sandbox need to get anywhere.
var sudoKeeps = map[string]bool{
	"TERM": true, "COLORTERM": true, "DISPLAY": true, "XAUTHORITY": true, "TZ": true,
	"LANG": true, "LANGUAGE": true, "LS_COLORS": true, "NO_COLOR": true,
	"http_proxy": true, "https_proxy": true, "no_proxy": true,
	"HTTP_PROXY": true, "HTTPS_PROXY": true, "NO_PROXY": true,
	"DEBIAN_FRONTEND": true,
}

func (s *sudo) environment(o *sudoOptions, caller, target *account, commandText string) []string {
	preserve := map[string]bool{}
	for _, name := range o.preserve {
		preserve[name] = true
	}
	env := map[string]string{}
	for _, entry := range s.environ {
		name, value, _ := strings.Cut(entry, "=")
		if o.preserveEnv && !o.login || preserve[name] || sudoKeeps[name] || strings.HasPrefix(name, "LC_") {
			env[name] = value
		}
	}
	if !preserve["PATH"] {
		env["PATH"] = defaultPath
	}
	if _, kept := env["HOME"]; !kept || o.setHome || o.login {
		env["HOME"] = target.home
	}
	env["USER"], env["LOGNAME"] = target.name, target.name
	env["MAIL"] = "/var/mail/" + target.name
	if _, kept := env["SHELL"]; !kept || o.login {
		env["SHELL"] = target.shell
	}
	env["SUDO_USER"] = caller.name
	env["SUDO_UID"] = strconv.FormatUint(uint64(s.uid), 10)
	env["SUDO_GID"] = strconv.FormatUint(uint64(s.gid), 10)
	env["SUDO_COMMAND"] = commandText
	for _, assignment := range o.assignments {
		name, value, _ := strings.Cut(assignment, "=")
		env[name] = value
	}
	return envList(env)
}

func lookEnv(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// lookSudo looks in the usual places only, whatever the caller's PATH.
func lookSudo(name string) (string, error) {
	if strings.Contains(name, "/") {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() {
			return "", fmt.Errorf("%s: command not found", name)
		}
		return name, nil
	}
	path, err := lookCommand(name, defaultPath, "/")
	if err != nil {
		return "", fmt.Errorf("%s: command not found", name)
	}
	return path, nil
}

// run becomes the command, or starts it in the background. It returns nil only then.
func (c *sudoCommand) run() error {
	if c.groups != nil {
		if err := syscall.Setgroups(c.groups); err != nil {
			return fmt.Errorf("set groups: %w", err)
		}
	}
	if err := syscall.Setresgid(c.gid, c.gid, c.gid); err != nil {
		return fmt.Errorf("set group id %d: %w", c.gid, err)
	}
	if err := syscall.Setresuid(c.uid, c.uid, c.uid); err != nil {
		return fmt.Errorf("set user id %d: %w", c.uid, err)
	}
	if c.dir != "" {
		if err := os.Chdir(c.dir); err != nil {
			return err
		}
	}
	var err error
	if c.background {
		_, err = syscall.ForkExec(c.path, c.argv, &syscall.ProcAttr{
			Env: c.env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
		})
	} else {
		err = syscall.Exec(c.path, c.argv, c.env)
	}
	if err != nil {
		return fmt.Errorf("unable to execute %s: %w", c.path, err)
	}
	return nil
}
