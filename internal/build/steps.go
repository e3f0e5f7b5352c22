package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
)

func invalid(format string, args ...any) error {
	return errdef.New(errdef.Invalid, "build_step_invalid", format, args...)
}

// check judges a recipe before anything is done.
func (r Recipe) check() error {
	if (r.Base.Template == "") == (r.Base.Image == "") {
		return invalid("a build begins with either a template or an image")
	}
	if len(r.Steps) > mostSteps {
		return invalid("the build has %d steps, and may have %d", len(r.Steps), mostSteps)
	}
	for i, s := range r.Steps {
		if err := s.check(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	for _, text := range []string{r.Start, r.Ready} {
		if strings.ContainsRune(text, 0) {
			return invalid("a command has a NUL in it")
		}
	}
	return nil
}

func (s Step) check() error {
	for _, arg := range s.Args {
		if strings.ContainsRune(arg, 0) {
			return invalid("%s has a NUL in it", s.Kind)
		}
	}
	least, most := 1, 1
	switch s.Kind {
	case Run:
		most = 2
	case Copy:
		least, most = 2, 4
	case Env:
		most = 2 * mostSteps
	case Workdir:
	case User:
		most = 2
	default:
		return invalid("%.40q is no kind of step that this server knows: it has COPY, RUN, ENV, WORKDIR and USER", s.Kind)
	}
	switch {
	case len(s.Args) < least || len(s.Args) > most || s.Args[0] == "":
		return invalid("%s has %d arguments, and needs %d to %d", s.Kind, len(s.Args), least, most)
	case s.Kind == Env && len(s.Args)%2 != 0:
		return invalid("ENV needs a value for each name")
	case s.Kind == Copy && !hashForm.MatchString(s.Files):
		return invalid("COPY needs the hash of its files: 64 hexadecimal digits")
	case s.Kind == Copy && len(s.Args) > 3 && strings.Trim(s.Args[3], "01234567") != "":
		return invalid("%.40q is no octal mode", s.Args[3])
	case s.Kind == User && len(s.Args) > 1 && s.Args[1] == "true":
		return invalid("USER cannot make a user an administrator: run the commands for that as root")
	}
	if s.Kind == Env {
		for i := 0; i < len(s.Args); i += 2 {
			if s.Args[i] == "" || strings.ContainsAny(s.Args[i], "=") {
				return invalid("%.100q cannot be the name of a variable", s.Args[i])
			}
		}
	}
	return nil
}

// take does what a step says, and returns the state after it, and whether it may
// have changed files.
func (m *making) take(ctx context.Context, s Step) (after State, files bool, err error) {
	state := m.at.State
	switch s.Kind {
	case Env:
		after, err = m.setEnv(ctx, state, s.Args)
		return after, false, err
	case Run:
		as := state
		if len(s.Args) > 1 && s.Args[1] != "" {
			as.User = s.Args[1]
		}
		return state, true, m.run(ctx, s.Args[0], as)
	case Copy:
		return state, true, m.copy(ctx, s)
	case User:
		after = state
		after.User = s.Args[0]
		return after, true, m.script(ctx, userScript, s.Args[0])
	}
	after = state
	if after.Workdir = s.Args[0]; !path.IsAbs(after.Workdir) {
		after.Workdir = path.Join("/", state.Workdir, after.Workdir)
	}
	after.Workdir = path.Clean(after.Workdir)
	return after, true, m.script(ctx, workdirScript, after.Workdir, m.user())
}

// user returns as whom the steps run now.
func (m *making) user() string {
	if m.at.State.User == "" {
		return "user"
	}
	return m.at.State.User
}

// setEnv adds variables. What a value names of other variables is put in by the
// shell, which knows them.
func (m *making) setEnv(ctx context.Context, state State, args []string) (State, error) {
	for i := 0; i < len(args); i += 2 {
		value := args[i+1]
		if strings.ContainsRune(value, '$') {
			if err := m.ready(ctx); err != nil {
				return state, err
			}
			var said strings.Builder
			quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$(", `\$(`).Replace(value)
			err := m.b.o.Workshop.Run(ctx, m.sandbox, shell(`printf %s "`+quoted+`"`, state), func(text string) {
				if said.Len() < mostLine*4 {
					said.WriteString(text)
				}
			})
			if err != nil {
				return state, err
			}
			value = said.String()
		}
		if state = with(state, args[i], value); sizeOf(state) > mostEnv {
			return state, invalid("the variables have more than %d KiB", mostEnv>>10)
		}
	}
	return state, nil
}

// shell returns the command that runs a text as E2B's clients run commands. What a
// login shell starts with sets PATH, but not in place of the one of the steps.
func shell(text string, as State) Command {
	if path, ok := as.Env["PATH"]; ok {
		text = "export PATH='" + strings.ReplaceAll(path, "'", `'\''`) + "'\n" + text
	}
	return Command{Path: "/bin/bash", Args: []string{"-l", "-c", text}, State: as}
}

// run runs a command of the recipe.
func (m *making) run(ctx context.Context, text string, as State) error {
	err := m.command(ctx, shell(text, as), m.output)
	if e, ok := errors.AsType[*UserError](err); ok {
		return fmt.Errorf("failed to run command '%s': command failed: %w", text, e)
	}
	return err
}

// command runs a command, line by line.
func (m *making) command(ctx context.Context, c Command, say func(string)) error {
	if err := m.ready(ctx); err != nil {
		return err
	}
	s := &speaker{say: say}
	defer s.end()
	return m.b.o.Workshop.Run(ctx, m.sandbox, c, s.write)
}

// script runs one of our own scripts as root. What it says last is why it failed.
func (m *making) script(ctx context.Context, text string, args ...string) error {
	last := ""
	c := Command{Path: "/bin/sh", Args: append([]string{"-c", text, "sh"}, args...), State: State{User: "root", Workdir: "/"}}
	err := m.command(ctx, c, func(text string) {
		last = text
		m.log.add(Debug, m.step, text)
	})
	if _, failed := errors.AsType[*ExitError](err); failed && last != "" {
		return fmt.Errorf("%s: %w", last, err)
	}
	return err
}

// unpackDir is where the files of a copy are before they get their places.
const unpackDir = "/var/tmp/drowse-build"

// copy puts uploaded files into their places. The guest unpacks them: the server
// never does.
func (m *making) copy(ctx context.Context, s Step) error {
	if err := m.ready(ctx); err != nil {
		return err
	}
	archive, err := m.b.files.open(m.t.ID, s.Files)
	if err != nil {
		return err
	}
	defer archive.Close()
	how := "-xf"
	if zipped(archive) { // not every tar finds that out
		how = "-xzf"
	}
	at := unpackDir + "/" + s.Files
	if err := m.b.o.Workshop.Put(ctx, m.sandbox, at+".tar", archive); err != nil {
		return fmt.Errorf("send the files into the sandbox: %w", err)
	}
	owner, mode := "", ""
	if len(s.Args) > 2 {
		owner = s.Args[2]
	}
	if len(s.Args) > 3 {
		mode = s.Args[3]
	}
	if owner == "" {
		owner = m.user()
	}
	if !strings.Contains(owner, ":") {
		owner += ":" + owner
	}
	return m.script(ctx, copyScript, at, fixedPart(s.Args[0]), s.Args[1], owner, mode, m.at.State.Workdir, m.user(), how)
}

// zipped reports whether an archive is compressed by gzip.
func zipped(archive io.ReaderAt) bool {
	var magic [2]byte
	_, err := archive.ReadAt(magic[:], 0)
	return err == nil && magic == [2]byte{0x1f, 0x8b}
}

// fixedPart returns what of a source is no pattern: what matches lies below it.
func fixedPart(source string) string {
	var fixed []string
	for part := range strings.SplitSeq(path.Clean(source), "/") {
		if strings.ContainsAny(part, "*?[{") {
			break
		}
		fixed = append(fixed, part)
	}
	return path.Join(append([]string{"."}, fixed...)...)
}

// copyScript unpacks the archive $1.tar, in which $2 is what is to be copied, and
// puts it at $3. A target that ends with a slash is a directory. What is there
// already stays, unless the archive has it.
const copyScript = `
at=$1 source=$2 target=$3 owner=$4 mode=$5 workdir=$6 user=$7 how=$8
fail() { echo "$1" >&2; rm -rf "$at" "$at.tar"; exit 1; }
command -v tar >/dev/null 2>&1 || fail "the image has no tar, which COPY needs"
mkdir -p "$at" && tar "$how" "$at.tar" -C "$at" || fail "the files could not be unpacked"
rm -f "$at.tar"
case $target in
/*) ;;
*)
	[ -n "$workdir" ] || workdir=$(eval "echo ~$user")
	target=$workdir/$target ;;
esac
from=$at/$source
[ -e "$from" ] || [ -L "$from" ] || fail "$source is not among the files that were uploaded"
chown -R -h "$owner" "$from" || fail "the files cannot belong to $owner"
if [ -n "$mode" ] && [ ! -L "$from" ]; then chmod -R "$mode" "$from" || fail "the files cannot have mode $mode"; fi
made() {
	new= dir=$1
	while [ ! -d "$dir" ]; do new=$dir; dir=$(dirname "$dir"); done
	[ -z "$new" ] || { mkdir -p "$1" && chown -R "$owner" "$new"; } || fail "$1 cannot be made"
}
if [ -d "$from" ] && [ ! -L "$from" ]; then
	if [ -d "$target" ]; then
		set -- "$from"/* "$from"/.[!.]* "$from"/..?*
		for one; do
			[ -e "$one" ] || [ -L "$one" ] || continue
			cp -a "$one" "$target/" || fail "$one could not be copied"
		done
	else
		made "$(dirname "$target")"
		cp -a "$from" "$target" || fail "the directory could not be copied"
	fi
else
	case $target in
	*/) made "$target" ;;
	*) made "$(dirname "$target")" ;;
	esac
	cp -a "$from" "$target" || fail "the file could not be copied"
fi
rm -rf "$at"
rmdir "${at%/*}" 2>/dev/null
exit 0
`

// /tmp is in memory, and a step ends with the processes and the memory of its
// sandbox. What is there goes with the files, so that a step finds in /tmp what those
// before it have left, as in Docker. keepTmp copies it unless the copy is the same:
// each step is a layer.
const (
	tmpDir  = "/var/tmp/drowse-tmp"
	keepTmp = `
kept=` + tmpDir + `
if [ -z "$(ls -A /tmp)" ]; then rm -rf "$kept"; exit 0; fi
rights() { cd "$1" 2>/dev/null && find . ! -name . -exec stat -c "%a %u %g %n" {} + | sort; }
now=$(rights /tmp) before=$(rights "$kept")
[ -z "$now" ] || [ "$now" != "$before" ] || ! diff -r --no-dereference /tmp "$kept" >/dev/null 2>&1 || exit 0
rm -rf "$kept" && mkdir -p "$kept" && chmod 700 "$kept" && cp -a /tmp/. "$kept" || echo "not all of /tmp can be kept for the next step"
chmod 700 "$kept"
`
	putTmp = `
kept=` + tmpDir + `
[ ! -d "$kept" ] || { cp -a "$kept/." /tmp && chmod 1777 /tmp; } || { echo "what earlier steps left in /tmp does not fit there" >&2; exit 1; }
`
	dropTmp = `
rm -rf "$kept"
`
)

// workdirScript makes the directory $1, for the user $2 where it is new.
const workdirScript = `
[ ! -d "$1" ] || exit 0
dir=$1 new=
while [ ! -d "$dir" ]; do new=$dir; dir=$(dirname "$dir"); done
mkdir -p "$1" && chown -R "$2" "$new" || { echo "the directory $1 could not be made" >&2; exit 1; }
`

// userScript makes the user $1, unless there is one.
const userScript = `
! id -u "$1" >/dev/null 2>&1 || exit 0
if command -v useradd >/dev/null 2>&1; then useradd -m -s "$(command -v bash || echo /bin/sh)" "$1"
else adduser -D "$1"; fi || { echo "there is no user $1, and it could not be made" >&2; exit 1; }
`
