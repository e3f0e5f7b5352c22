package powercut

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Recording is what a process did to a directory.
type Recording struct {
	before *disk
	calls  []call
}

// call is a system call that took effect.
type call struct {
	began   int      // how many calls had returned when it began
	changes []change // what it did
	synced  *node    // what it made durable
	all     bool     // it made everything durable
	said    string   // what it wrote to the standard output
}

func (c call) String() string {
	switch {
	case c.all:
		return "sync of everything"
	case c.synced != nil:
		return "sync of " + c.synced.path()
	case c.said != "":
		return fmt.Sprintf("saying %q", c.said)
	case len(c.changes) > 0:
		return c.changes[len(c.changes)-1].String()
	}
	return "nothing"
}

// tracedCalls is every system call that changes files or positions in them. What
// this list lacks, Record notices in the end.
const tracedCalls = "open,openat,openat2,creat,dup,dup2,dup3,lseek,write,pwrite64,writev,pwritev,pwritev2," +
	"truncate,ftruncate,fallocate,copy_file_range,sendfile,splice,fsync,fdatasync,sync,syncfs," +
	"rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat," +
	"chmod,fchmod,fchmodat"

// Record runs child, which must succeed, and returns what it did to the files
// below dir.
func Record(t testing.TB, dir string, child *exec.Cmd) *Recording {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "calls")
	strace := exec.CommandContext(t.Context(), "strace", append([]string{
		"--follow-forks", "--seccomp-bpf", "--quiet=all", "--signal=none", "--decode-fds=path",
		"--strings-in-hex=all", "--string-limit=16777216", "--trace=" + tracedCalls, "--output=" + log, "--", child.Path,
	}, child.Args[1:]...)...)
	strace.Env, strace.Dir = child.Env, child.Dir
	var errs strings.Builder
	strace.Stderr = &errs
	if err := strace.Run(); err != nil {
		t.Fatalf("record %s: %v\n%s", child, err, &errs)
	}
	r, err := parse(log, dir, child.Dir, before)
	if err != nil {
		t.Fatalf("record %s: %v", child, err)
	}
	return r
}

// parse reads strace's log.
func parse(log, dir, cwd string, before *disk) (*Recording, error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &parser{dir: dir, cwd: cwd, now: before.clone(everything(before)), open: map[int]*position{}, begun: map[string]unfinished{}}
	if p.umask, err = umask(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadString('\n')
		if line == "" && err != nil {
			break
		}
		if err := p.line(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, err
		}
	}
	after, err := load(dir)
	if err != nil {
		return nil, err
	}
	if differs := p.now.differs(after); differs != "" {
		return nil, fmt.Errorf("the calls that were noted do not make the directory as it is: %s", differs)
	}
	return &Recording{before: before, calls: p.calls}, nil
}

// umask returns this process's, which its children have too.
func umask() (uint32, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "Umask:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
			return uint32(mask), err
		}
	}
	return 0, errors.New("the kernel does not tell the umask")
}

// parser makes calls of lines.
type parser struct {
	dir   string
	cwd   string // the process is not to change it
	umask uint32
	now   *disk // as the process sees it
	open  map[int]*position
	begun map[string]unfinished // by thread
	calls []call
}

// position is where the next write of an open file goes.
type position struct {
	at     int64
	append bool
}

// unfinished is a call that has not returned yet.
type unfinished struct {
	text  string
	began int
}

// line reads one line: a call, or the beginning or the end of one.
func (p *parser) line(line string) error {
	thread, text, _ := strings.Cut(line, " ")
	text = strings.TrimLeft(text, " ")
	if begin, ok := strings.CutSuffix(text, " <unfinished ...>"); ok {
		p.begun[thread] = unfinished{begin, len(p.calls)}
		return nil
	}
	began := len(p.calls)
	if rest, ok := strings.CutPrefix(text, "<... "); ok {
		_, end, _ := strings.Cut(rest, " resumed>")
		text, began = p.begun[thread].text+end, p.begun[thread].began
	}
	if strings.HasPrefix(text, "???(") || strings.HasSuffix(text, "<detached ...>") {
		return nil // of a thread that its process took with it as it ended
	}
	name, rest, _ := strings.Cut(text, "(")
	end := strings.LastIndex(rest, ") ") // in front of " = ", which may be padded
	if end < 0 {
		return fmt.Errorf("not understood: %.200s", line)
	}
	result := strings.TrimLeft(rest[end+2:], " =")
	number, _, _ := strings.Cut(result, " ")
	number, _, _ = strings.Cut(number, "<")
	value, err := strconv.ParseInt(number, 0, 64)
	if err != nil || value < 0 {
		return nil // it failed, or the process ended first
	}
	c, err := p.call(name, strings.Split(rest[:end], ", "), value)
	if err != nil {
		return fmt.Errorf("%s(%.200s: %w", name, rest, err)
	}
	c.began = began
	if c.changes != nil || c.synced != nil || c.all || c.said != "" {
		p.calls = append(p.calls, c)
	}
	for _, change := range c.changes {
		change.apply(p.now)
	}
	return nil
}

var errNotModelled = errors.New("not modelled")

// call returns what a call did.
func (p *parser) call(name string, args []string, result int64) (c call, err error) {
	switch name {
	case "sync", "syncfs":
		return call{all: true}, nil
	case "open":
		return p.opens(p.below("", args[0]), args[1:], int(result)), nil
	case "openat":
		return p.opens(p.below(args[0], args[1]), args[2:], int(result)), nil
	case "openat2":
		flags, ok := strings.CutPrefix(args[2], "{flags=")
		if !ok || strings.Contains(flags, "O_CREAT") {
			return c, errNotModelled
		}
		return p.opens(p.below(args[0], args[1]), []string{flags}, int(result)), nil
	case "creat":
		return c, errNotModelled
	case "mkdir":
		return p.makes(p.below("", args[0]), &node{kind: fs.ModeDir, mode: p.mode(args[1])}), nil
	case "mkdirat":
		return p.makes(p.below(args[0], args[1]), &node{kind: fs.ModeDir, mode: p.mode(args[2])}), nil
	case "link":
		return p.links(p.below("", args[0]), p.below("", args[1]))
	case "linkat":
		return p.links(p.below(args[0], args[1]), p.below(args[2], args[3]))
	case "symlinkat":
		return p.makes(p.below(args[1], args[2]), &node{kind: fs.ModeSymlink, mode: 0o777, target: text(args[0])}), nil
	case "unlink", "rmdir":
		return p.removes(p.below("", args[0])), nil
	case "unlinkat":
		return p.removes(p.below(args[0], args[1])), nil
	case "rename":
		return p.renames(p.below("", args[0]), p.below("", args[1]), "")
	case "renameat":
		return p.renames(p.below(args[0], args[1]), p.below(args[2], args[3]), "")
	case "renameat2":
		return p.renames(p.below(args[0], args[1]), p.below(args[2], args[3]), args[4])
	case "truncate":
		return p.truncates(p.below("", args[0]), args[1])
	case "chmod":
		return p.chmods(p.below("", args[0]), args[1]), nil
	case "fchmodat":
		return p.chmods(p.below(args[0], args[1]), args[2]), nil
	}
	return p.descriptor(name, args, result)
}

// descriptor is call for what is done through a file descriptor.
func (p *parser) descriptor(name string, args []string, result int64) (c call, err error) {
	fd, path := descriptor(args[0])
	if name == "write" && fd == 1 {
		return call{said: text(args[1])}, nil
	}
	rel, ok := p.inside(path)
	if !ok {
		return c, nil
	}
	n := p.now.find(rel)
	if n == nil {
		return c, nil // it has no name any more: nobody will find it after the cut
	}
	switch name {
	case "lseek":
		if pos := p.open[fd]; pos != nil {
			pos.at = result
		}
	case "fsync", "fdatasync":
		c.synced = n
	case "fchmod":
		c.changes = []change{chmod{n, mode(args[1])}}
	case "ftruncate":
		return p.truncates(path, args[1])
	case "pwrite64":
		at, err := strconv.ParseInt(args[3], 0, 64)
		return call{changes: []change{write{n, at, []byte(text(args[1]))[:result]}}}, err
	case "write":
		pos := p.open[fd]
		if pos == nil {
			return c, fmt.Errorf("descriptor %d is not known to be open", fd)
		}
		if pos.append {
			pos.at = int64(len(p.now.files[n]))
		}
		c.changes = []change{write{n, pos.at, []byte(text(args[1]))[:result]}}
		pos.at += result
	default:
		return c, errNotModelled
	}
	return c, nil
}

// opens is the opening of a file, with flags and, where it may be new, a mode.
func (p *parser) opens(path string, args []string, fd int) (c call) {
	rel, ok := p.inside(path)
	if !ok {
		return c
	}
	flags := strings.Split(args[0], "|")
	has := func(flag string) bool { return slices.Contains(flags, flag) }
	p.open[fd] = &position{append: has("O_APPEND")}
	n := p.now.find(rel)
	switch {
	case n == nil && has("O_CREAT"):
		return p.makes(path, &node{mode: p.mode(args[1])})
	case n != nil && has("O_TRUNC"):
		c.changes = []change{resize{n, 0}}
	}
	return c
}

// makes is a new node at a path.
func (p *parser) makes(path string, n *node) call {
	rel, ok := p.inside(path)
	if !ok {
		return call{}
	}
	n.first = rel
	return p.names(rel, map[string]*node{filepath.Base(rel): n}, "new "+filepath.Base(rel))
}

func (p *parser) removes(path string) call {
	rel, ok := p.inside(path)
	if !ok {
		return call{}
	}
	return p.names(rel, map[string]*node{filepath.Base(rel): nil}, "removal of "+filepath.Base(rel))
}

// renames is a new name of something, or an exchange of two. Where it goes to
// another directory, each of the two is made durable for itself.
func (p *parser) renames(from, to, flags string) (c call, err error) {
	relFrom, okFrom := p.inside(from)
	relTo, okTo := p.inside(to)
	if !okFrom && !okTo {
		return c, nil
	}
	if !okFrom || !okTo {
		return c, errNotModelled
	}
	var left *node
	if flags == "RENAME_EXCHANGE" {
		left = p.now.find(relTo)
	}
	old, name := filepath.Base(relFrom), filepath.Base(relTo)
	moved, what := p.now.find(relFrom), fmt.Sprintf("new name %s of %s", name, old)
	if filepath.Dir(relFrom) == filepath.Dir(relTo) {
		return p.names(relTo, map[string]*node{old: left, name: moved}, what), nil
	}
	c = p.names(relFrom, map[string]*node{old: left}, "going of "+old)
	c.changes = append(c.changes, p.names(relTo, map[string]*node{name: moved}, what).changes...)
	return c, nil
}

// links is another name of a file, which is durable once its own directory is.
func (p *parser) links(from, to string) (c call, err error) {
	relFrom, okFrom := p.inside(from)
	relTo, okTo := p.inside(to)
	if !okFrom && !okTo {
		return c, nil
	}
	if !okFrom || !okTo {
		return c, errNotModelled
	}
	name := filepath.Base(relTo)
	return p.names(relTo, map[string]*node{name: p.now.find(relFrom)}, fmt.Sprintf("link %s to %s", name, relFrom)), nil
}

// names is a change of names in the directory of rel. A directory that is not
// known lies in something that is mounted there, and is not on this disk; if it
// is, Record notices in the end.
func (p *parser) names(rel string, entries map[string]*node, what string) call {
	dir := p.now.find(filepath.Dir(rel))
	if dir == nil {
		return call{}
	}
	return call{changes: []change{naming{dir, entries, what}}}
}

func (p *parser) truncates(path, arg string) (c call, err error) {
	rel, ok := p.inside(path)
	if !ok {
		return c, nil
	}
	size, err := strconv.ParseInt(arg, 0, 64)
	return call{changes: []change{resize{p.now.find(rel), size}}}, err
}

func (p *parser) chmods(path, arg string) (c call) {
	rel, ok := p.inside(path)
	if !ok {
		return c
	}
	return call{changes: []change{chmod{p.now.find(rel), mode(arg)}}}
}

// below returns the path that a call names relative to a directory's descriptor,
// or without one to the current directory.
func (p *parser) below(dir, path string) string {
	if path = text(path); filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	at := p.cwd
	if dir != "" {
		_, at = descriptor(dir)
	}
	return filepath.Join(at, path)
}

// inside returns the part of a path below the directory that is recorded.
func (p *parser) inside(path string) (rel string, ok bool) {
	if path == p.dir {
		return ".", true
	}
	return strings.CutPrefix(path, p.dir+"/")
}

func (p *parser) mode(arg string) uint32 { return mode(arg) &^ p.umask }

func mode(arg string) uint32 {
	bits, err := strconv.ParseUint(arg, 8, 32)
	if err != nil {
		panic("internal error: powercut: no mode: " + arg)
	}
	return uint32(bits)
}

// text returns the string that an argument is in strace's log: each byte is
// written as \x and two digits.
func text(arg string) string {
	data, err := hex.DecodeString(strings.ReplaceAll(strings.Trim(arg, `"`), `\x`, ""))
	if err != nil {
		panic("internal error: powercut: no string: " + arg)
	}
	return string(data)
}

// descriptor splits what strace writes for an open file, 5<path>. One without a
// name any more is 5<path>(deleted).
func descriptor(arg string) (fd int, path string) {
	number, rest, _ := strings.Cut(arg, "<")
	fd, _ = strconv.Atoi(number)
	if name, ok := strings.CutSuffix(rest, ">"); ok && strings.HasPrefix(name, `\x`) {
		path = text(name)
	}
	return fd, path
}
