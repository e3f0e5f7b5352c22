package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	processpb "github.com/drowse-dev/drowse/client/agentpb/process"
)

// defaultPath is what children get if the agent was started without PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command is a process about to be started, everything resolved.
type command struct {
	path string
	argv []string
	env  []string
	dir  string
	user *account
	// quiet says that its end is not the end of work.
	quiet bool
}

// plumbing is the parent's side of a child's standard files; what the child
// does not have is nil.
type plumbing struct {
	stdin, stdout, stderr *os.File
	tty                   *os.File
}

// prepare resolves the request of a client into a command of user.
func (a *Agent) prepare(config *processpb.ProcessConfig, user *account) (*command, error) {
	if config.GetCmd() == "" {
		return nil, faultf(invalid, "process.cmd is empty")
	}
	dir, err := a.directory(config.GetCwd(), user)
	if err != nil {
		return nil, err
	}
	env := a.environment(user, config.GetEnvs())
	name, err := shellFor(config.GetCmd(), executable)
	if err != nil {
		return nil, err
	}
	path, err := lookCommand(name, env["PATH"], dir)
	if err != nil {
		return nil, err
	}
	return &command{
		path: path,
		argv: append([]string{name}, config.GetArgs()...),
		env:  envList(env),
		dir:  dir,
		user: user,
	}, nil
}

// directory resolves the working directory that a child of user is to have.
func (a *Agent) directory(cwd string, user *account) (string, error) {
	dir, err := resolvePath(cwd, user.home, a.settings.workdir())
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(dir); err != nil {
		return "", faultf(invalid, "cwd '%s' does not exist", dir)
	} else if !info.IsDir() {
		return "", faultf(invalid, "cwd '%s' is not a directory", dir)
	}
	return dir, nil
}

// environment is all a child gets: nothing of the agent's own but PATH.
func (a *Agent) environment(user *account, request map[string]string) map[string]string {
	env := map[string]string{
		"PATH":    a.path,
		"HOME":    user.home,
		"USER":    user.name,
		"LOGNAME": user.name,
	}
	for _, more := range []map[string]string{a.settings.env(), request} {
		for k, v := range more {
			env[k] = v
		}
	}
	if env["LANG"] == "" && env["LC_ALL"] == "" && env["LC_CTYPE"] == "" && hasUTF8(a.options.Root) {
		env["LANG"] = "C.UTF-8"
	}
	return env
}

// hasUTF8 reports whether the system has a locale of no country with UTF-8. musl
// needs none for that. Of one that is not there, programs such as Perl complain.
func hasUTF8(root string) bool {
	for _, name := range []string{"C.utf8", "C.UTF-8"} {
		if _, err := os.Stat(filepath.Join(root, "/usr/lib/locale", name)); err == nil {
			return true
		}
	}
	return false
}

func envList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		if k != "" && !strings.Contains(k, "=") {
			list = append(list, k+"="+v)
		}
	}
	sort.Strings(list)
	return list
}

// Shells. Clients of E2B run every command by bash, which many images lack.
const (
	askedShell = "/bin/bash"
	plainShell = "/bin/sh"
)

// shellFor returns the program to run for the one that a client asks for: the
// plain shell if that is bash and there is none.
func shellFor(name string, there func(path string) bool) (string, error) {
	switch {
	case name != askedShell || there(askedShell):
		return name, nil
	case there(plainShell):
		return plainShell, nil
	}
	return "", faultf(invalid, "the template of this sandbox has no shell, neither %s nor %s, and the command needs one: run a program by its path instead", askedShell, plainShell)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// lookCommand finds a command without slash in path, as a shell would.
func lookCommand(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		file := filepath.Join(d, name)
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if executable(file) {
			return file, nil
		}
	}
	return "", faultf(noCommand, "command '%s' not found in PATH", name)
}

// spawn starts cmd with pipes, and with /dev/null for stdin unless wanted.
func (r *reaper) spawn(cmd *command, stdin bool) (*child, *plumbing, error) {
	var files childFiles
	defer files.close()
	p := &plumbing{}
	var err error
	if stdin {
		p.stdin, err = files.pipe(0, cmd.user.uid)
	} else {
		err = files.null(0)
	}
	if err == nil {
		p.stdout, err = files.pipe(1, cmd.user.uid)
	}
	if err == nil {
		p.stderr, err = files.pipe(2, cmd.user.uid)
	}
	if err != nil {
		p.close()
		return nil, nil, err
	}
	c, err := r.fork(cmd, files.fds(), false)
	if err != nil {
		p.close()
		return nil, nil, err
	}
	return c, p, nil
}

// spawnPTY starts cmd as the leader of a terminal.
func (r *reaper) spawnPTY(cmd *command, size *processpb.PTY_Size) (*child, *plumbing, error) {
	master, slave, err := openPTY(cmd.user.uid)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(slave)
	if size != nil {
		err = resizePTY(master, size)
	}
	var c *child
	if err == nil {
		fd := uintptr(slave)
		c, err = r.fork(cmd, []uintptr{fd, fd, fd}, true)
	}
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	return c, &plumbing{tty: master}, nil
}

// fork starts cmd in a session, so also a process group, of its own: a kill
// of the group then takes what the command started, and nothing of ours.
func (r *reaper) fork(cmd *command, files []uintptr, tty bool) (*child, error) {
	attr := &syscall.ProcAttr{
		Dir:   cmd.dir,
		Env:   cmd.env,
		Files: files,
		Sys: &syscall.SysProcAttr{
			Setsid:  true,
			Setctty: tty,
			Credential: &syscall.Credential{
				Uid:    cmd.user.uid,
				Gid:    cmd.user.gid,
				Groups: cmd.user.groups,
			},
		},
	}
	c, err := r.start(func() (int, error) {
		return syscall.ForkExec(cmd.path, cmd.argv, attr)
	}, cmd.quiet)
	if err != nil {
		return nil, startFault(cmd, err)
	}
	return c, nil
}

// mostArg is what the kernel takes of one argument or variable, its NUL aside.
const mostArg = 32*4096 - 1

// startFault blames the request unless the sandbox is out of something.
func startFault(cmd *command, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return faultf(exhausted, "start '%s': %w", cmd.path, err)
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENAMETOOLONG) && len(cmd.path) < unix.PathMax:
		return tooLong(cmd, err)
	case errors.Is(err, syscall.EACCES) && !mayEnter(cmd.dir, cmd.user):
		return faultf(invalid, "cwd '%s' cannot be entered by user %s: %w", cmd.dir, cmd.user.name, err)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return faultf(noCommand, "start '%s': %w", cmd.path, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC):
		return faultf(notExecutable, "start '%s': %w", cmd.path, err)
	}
	return faultf(invalid, "start '%s': %w", cmd.path, err)
}

// tooLong says which part of a command the kernel does not take. gVisor's answer is
// that a file name is too long.
func tooLong(cmd *command, err error) error {
	total := 0
	for _, text := range slices.Concat(cmd.argv, cmd.env) {
		total += len(text) + 1
	}
	for i, arg := range cmd.argv {
		if len(arg) > mostArg {
			return faultf(invalid, "argument %d of the command has %d bytes, and one may have %d: put it into a file, or send it as input", i, len(arg), mostArg)
		}
	}
	for _, v := range cmd.env {
		if name, _, _ := strings.Cut(v, "="); len(v) > mostArg {
			return faultf(invalid, "the variable %.100s has %d bytes with its name, and may have %d: put it into a file", name, len(v), mostArg)
		}
	}
	return faultf(invalid, "start '%s': the arguments and variables of the command have %d bytes: %w", cmd.path, total, err)
}

// mayEnter reports whether a user may have a directory as working directory, as far as
// the modes on the way there tell.
func mayEnter(dir string, user *account) bool {
	for ; ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return false
		}
		need := uint32(0o001)
		switch {
		case user.uid == st.Uid:
			need = 0o100
		case slices.Contains(user.groups, st.Gid):
			need = 0o010
		}
		if user.uid != 0 && st.Mode&need == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

func (p *plumbing) close() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr, p.tty} {
		if f != nil {
			f.Close()
		}
	}
}

// childFiles holds the child's ends of its standard files until the fork.
type childFiles struct {
	fd   [3]int
	open int
}

func (c *childFiles) add(n, fd int) { c.fd[n], c.open = fd, n+1 }

// null gives the child /dev/null.
func (c *childFiles) null(n int) error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return faultf(internal, "open /dev/null: %w", err)
	}
	c.add(n, fd)
	return nil
}

// pipe gives the child the end of a pipe that fits n and returns the other
// one. The pipe belongs to the user: otherwise a non-root command could not
// open /dev/stdin or /dev/stderr, which lead to it by name.
func (c *childFiles) pipe(n int, uid uint32) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, faultf(exhausted, "pipe: %w", err)
	}
	theirs, ours := ends[1], ends[0]
	if n == 0 {
		theirs, ours = ours, theirs
	}
	_ = unix.Fchown(theirs, int(uid), -1)
	// Non-blocking puts our end, not the child's, under the runtime's poller:
	// no thread is spent on waiting for output.
	_, _ = unix.FcntlInt(uintptr(ours), unix.F_SETFL, unix.O_NONBLOCK)
	c.add(n, theirs)
	return os.NewFile(uintptr(ours), "pipe"), nil
}

func (c *childFiles) fds() []uintptr {
	return []uintptr{uintptr(c.fd[0]), uintptr(c.fd[1]), uintptr(c.fd[2])}
}

func (c *childFiles) close() {
	for _, fd := range c.fd[:c.open] {
		unix.Close(fd)
	}
}
