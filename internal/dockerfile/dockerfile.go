// Package dockerfile reads Dockerfiles as the steps that make a template.
//
// BuildKit's parser reads them, so that what is a Dockerfile for Docker is one here.
// What a step cannot do is refused by its line, before anything is done: mounts, files
// of other stages, files from addresses. What has no effect on a template, such as
// CMD, is noted.
//
// The package runs where the command line does. What the image sets is not known
// there: variables of the image can be used in RUN, where a shell knows them, and in
// ENV, which the server completes, and nowhere else.
package dockerfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// Recipe is what a Dockerfile says.
type Recipe struct {
	From  string // the image or template that it begins with
	Steps []Step
	Start string // what ENTRYPOINT and CMD would run; empty for nothing
	Notes []Note
}

// Step is a step, and where the Dockerfile has it.
type Step struct {
	client.BuildStep
	Line int    // from 1
	Code string // the first line of the instruction
}

// Note is about an instruction that has no effect on a template.
type Note struct {
	Line int
	Text string
}

// Error is what is wrong with a Dockerfile, or cannot be done.
type Error struct {
	Line   int // from 1; 0 if it is no line's
	Text   string
	Remedy string // the next step; empty if the text says all
}

// Error implements error.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Text)
}

// Options say how a Dockerfile is read.
type Options struct {
	Args    map[string]string // values of its ARGs
	Target  string            // the stage that is wanted; empty for the last
	Context *Context          // where COPY finds its files; nil if there is nothing
}

// Read reads a Dockerfile. A Dockerfile that cannot be built here is an *[Error].
func Read(file io.Reader, o Options) (Recipe, error) {
	parsed, err := parser.Parse(file)
	if err != nil {
		return Recipe{}, located(err)
	}
	stages, args, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return Recipe{}, located(err)
	}
	r := &reader{options: o, lex: shell.NewLex(parsed.EscapeToken), given: map[string]bool{}, before: map[string]string{}}
	for _, a := range args {
		if err := r.arg(&a, r.before, nil); err != nil {
			return Recipe{}, err
		}
	}
	chain, err := r.chain(stages)
	if err != nil {
		return Recipe{}, err
	}
	r.env = map[string]string{}
	// Commands run as root until USER says otherwise, as in Docker.
	r.add(chain[0].Location, "USER root", client.BuildStep{Kind: "USER", Args: []string{"root"}})
	for _, s := range chain {
		r.args = map[string]string{} // ARGs end with their stage
		for _, c := range s.Commands {
			if err := r.command(c); err != nil {
				return Recipe{}, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Args)) {
		if !r.given[name] {
			return Recipe{}, &Error{Text: fmt.Sprintf("the Dockerfile has no ARG %s", name), Remedy: "leave its value out, or declare it in the stage that uses it"}
		}
	}
	r.recipe.Start = r.start()
	return r.recipe, nil
}

// located makes an *Error of one of the parser's.
func located(err error) error {
	e := &Error{Text: err.Error()}
	if at, ok := errors.AsType[*parser.LocationError](err); ok && len(at.Locations) > 0 {
		e.Line = lineOf(at.Locations[0])
		for inner := errors.Unwrap(error(at)); inner != nil; inner = errors.Unwrap(inner) {
			e.Text = inner.Error()
		}
	}
	return e
}

func lineOf(at []parser.Range) int {
	if len(at) == 0 {
		return 0
	}
	return at[0].Start.Line
}

// reader is a Dockerfile that is being read.
type reader struct {
	options Options
	lex     *shell.Lex
	recipe  Recipe

	before map[string]string // ARGs before the first FROM
	args   map[string]string // ARGs of the stage
	env    map[string]string // what ENV has set, as far as it is known here
	given  map[string]bool   // ARGs for which there was a value

	shell      []string // of SHELL; nil for the usual one
	entrypoint *instructions.EntrypointCommand
	cmd        *instructions.CmdCommand
}

func refuse(at []parser.Range, remedy, format string, args ...any) error {
	return &Error{Line: lineOf(at), Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

func (r *reader) note(at []parser.Range, format string, args ...any) {
	r.recipe.Notes = append(r.recipe.Notes, Note{lineOf(at), fmt.Sprintf(format, args...)})
}

func (r *reader) add(at []parser.Range, code string, s client.BuildStep) {
	code, _, _ = strings.Cut(code, "\n")
	r.recipe.Steps = append(r.recipe.Steps, Step{s, lineOf(at), code})
}

// chain returns the stages that lead to the wanted one, which begin with an image.
func (r *reader) chain(stages []instructions.Stage) ([]instructions.Stage, error) {
	if len(stages) == 0 {
		return nil, &Error{Text: "the Dockerfile has no FROM"}
	}
	i := len(stages) - 1
	if want := r.options.Target; want != "" {
		var ok bool
		if i, ok = instructions.HasStage(stages, want); !ok {
			return nil, &Error{Text: fmt.Sprintf("the Dockerfile has no stage %q", want)}
		}
	}
	var chain []instructions.Stage
	for {
		s := stages[i]
		chain = append([]instructions.Stage{s}, chain...)
		from, err := r.word(s.Location, s.BaseName, r.before)
		if err != nil {
			return nil, err
		}
		if from == "" {
			return nil, refuse(s.Location, "give the ARG a default, or a value by --build-arg", "FROM %s names nothing", s.BaseName)
		}
		if from == "scratch" {
			return nil, refuse(s.Location, "begin with an image that has a shell", "a template cannot begin with nothing")
		}
		earlier, ok := instructions.HasStage(stages[:i], from)
		if !ok {
			r.recipe.From = from
			return chain, nil
		}
		i = earlier
	}
}

// variables are what a word may name.
type variables []map[string]string

// Get implements shell.EnvGetter.
func (v variables) Get(name string) (string, bool) {
	for _, m := range v {
		if value, ok := m[name]; ok {
			return value, true
		}
	}
	return "", false
}

// Keys implements shell.EnvGetter.
func (v variables) Keys() (names []string) {
	for _, m := range v {
		names = append(names, slices.Collect(maps.Keys(m))...)
	}
	return names
}

// word puts variables in. One that nothing has set is refused: the image may set it.
func (r *reader) word(at []parser.Range, text string, in ...map[string]string) (string, error) {
	got, err := r.lex.ProcessWordWithMatches(text, variables(in))
	if err != nil {
		return "", refuse(at, "", "%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(got.Unmatched)) {
		if !withDefault(text, name) {
			return "", refuse(at, "write it out, or set it by ENV or ARG before", "nothing in the Dockerfile has set %s, and what the image sets is not known when it is read", name)
		}
	}
	return got.Result, nil
}

// withDefault reports whether a text says what an unset variable stands for.
func withDefault(text, name string) bool {
	return regexp.MustCompile(`\$\{` + regexp.QuoteMeta(name) + `:?[-+]`).MatchString(text)
}

// expand puts variables into an instruction.
func (r *reader) expand(c instructions.Command) error {
	x, ok := c.(instructions.SupportsSingleWordExpansion)
	if !ok {
		return nil
	}
	err := x.Expand(func(text string) (string, error) { return r.word(c.Location(), text, r.env, r.args) })
	if err == nil {
		return nil
	}
	if _, ours := errors.AsType[*Error](err); ours {
		return err
	}
	return refuse(c.Location(), "", "%v", err)
}

// command takes one instruction.
func (r *reader) command(c instructions.Command) error {
	at := c.Location()
	switch c := c.(type) {
	case *instructions.EnvCommand:
		return r.setEnv(c)
	case *instructions.ArgCommand:
		return r.arg(c, r.args, r.before)
	case *instructions.OnbuildCommand:
		return refuse(at, "put the instruction into the Dockerfile that builds on this one", "ONBUILD is not supported")
	}
	if err := r.expand(c); err != nil {
		return err
	}
	switch c := c.(type) {
	case *instructions.RunCommand:
		return r.run(c)
	case *instructions.CopyCommand:
		return r.copy(c)
	case *instructions.AddCommand:
		return r.addFiles(c)
	case *instructions.WorkdirCommand:
		r.add(at, c.String(), client.BuildStep{Kind: "WORKDIR", Args: []string{c.Path}})
	case *instructions.UserCommand:
		if strings.Contains(c.User, ":") {
			return refuse(at, "name the user alone, and give it the group by RUN usermod", "USER with a group is not supported")
		}
		r.add(at, c.String(), client.BuildStep{Kind: "USER", Args: []string{c.User}})
	case *instructions.ShellCommand:
		r.shell = c.Shell
	case *instructions.CmdCommand:
		r.cmd = c
	case *instructions.EntrypointCommand:
		r.entrypoint, r.cmd = c, nil
	case *instructions.HealthCheckCommand, *instructions.StopSignalCommand, *instructions.VolumeCommand:
		r.note(at, "%s has no effect on a template", strings.ToUpper(c.Name()))
	case *instructions.LabelCommand, *instructions.MaintainerCommand, *instructions.ExposeCommand: // nobody reads them
	default:
		return refuse(at, "", "%s is not supported", strings.ToUpper(c.Name()))
	}
	return nil
}

// arg declares ARGs. One without a default has the value that one before FROM has.
func (r *reader) arg(c *instructions.ArgCommand, in, outer map[string]string) error {
	for _, a := range c.Args {
		if value, ok := r.options.Args[a.Key]; ok {
			r.given[a.Key] = true
			in[a.Key] = value
			continue
		}
		if a.Value != nil {
			value, err := r.word(c.Location(), *a.Value, r.env, in)
			if err != nil {
				return err
			}
			in[a.Key] = value
		} else if value, ok := outer[a.Key]; ok {
			in[a.Key] = value
		} else if such, ok := platformArgs[a.Key]; ok {
			return refuse(c.Location(), "give it one by --build-arg, such as "+a.Key+"="+such, "ARG %s has no value: the server's platform is not known when the Dockerfile is read", a.Key)
		} else {
			in[a.Key] = "" // Docker's RUN would not have it either
		}
	}
	return nil
}

// platformArgs are the ARGs to which Docker gives values by itself, with some.
var platformArgs = map[string]string{
	"TARGETPLATFORM": "linux/amd64", "TARGETOS": "linux", "TARGETARCH": "amd64", "TARGETVARIANT": "v1",
	"BUILDPLATFORM": "linux/amd64", "BUILDOS": "linux", "BUILDARCH": "amd64", "BUILDVARIANT": "v1",
}

// setEnv adds variables. What a value names of the image's variables is left for the
// server to put in. All values are of before the instruction, so those that the
// server completes come first.
func (r *reader) setEnv(c *instructions.EnvCommand) error {
	known, open := []string{}, []string{}
	set := map[string]string{}
	r.lex.SkipUnsetEnv = true
	defer func() { r.lex.SkipUnsetEnv = false }()
	for _, pair := range c.Env {
		got, err := r.lex.ProcessWordWithMatches(pair.Value, variables{r.env, r.args})
		if err != nil {
			return refuse(c.Location(), "", "%v", err)
		}
		if strings.Count(got.Result, "$") != references(got.Result, got.Unmatched) {
			return refuse(c.Location(), "set it in a command, or in a file that the shell reads", "ENV %s has a $ that stands for itself, which is not supported", pair.Key)
		}
		if len(got.Unmatched) == 0 {
			known = append(known, pair.Key, got.Result)
			set[pair.Key] = got.Result
		} else {
			open = append(open, pair.Key, got.Result)
			delete(set, pair.Key)
			delete(r.env, pair.Key)
			delete(r.args, pair.Key)
		}
	}
	maps.Copy(r.env, set)
	r.add(c.Location(), c.String(), client.BuildStep{Kind: "ENV", Args: append(open, known...)})
	return nil
}

// references counts where a text names one of these variables.
func references(text string, names map[string]struct{}) (n int) {
	for name := range names {
		n += len(regexp.MustCompile(`\$\{?`+regexp.QuoteMeta(name)+`\b`).FindAllString(text, -1))
	}
	return n
}

// run adds a command.
func (r *reader) run(c *instructions.RunCommand) error {
	for _, m := range instructions.GetMounts(c) {
		if m.Type != instructions.MountTypeCache {
			return refuse(c.Location(), "copy the files that it needs", "RUN --mount=type=%s is not supported", m.Type)
		}
		r.note(c.Location(), "the cache at %s is not kept: a step whose result is known is not run again", m.Target)
	}
	for _, flag := range c.FlagsUsed {
		if flag != "mount" {
			return refuse(c.Location(), "leave it out", "RUN --%s is not supported", flag)
		}
	}
	text, err := r.script(c.Location(), c.ShellDependantCmdLine)
	if err != nil {
		return err
	}
	// ARGs are variables of the command, unless ENV has set them.
	var exports strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.args)) {
		if _, set := r.env[name]; !set {
			fmt.Fprintf(&exports, "export %s=%s\n", name, quote(r.args[name]))
		}
	}
	r.add(c.Location(), c.String(), client.BuildStep{Kind: "RUN", Args: []string{exports.String() + text}})
	return nil
}

// script returns a command line as a shell takes it.
func (r *reader) script(at []parser.Range, c instructions.ShellDependantCmdLine) (string, error) {
	if !c.PrependShell {
		return quoteAll(c.CmdLine), nil
	}
	text := strings.Join(c.CmdLine, " ")
	if len(c.Files) == 1 && heredocAlone.MatchString(text) {
		text = c.Files[0].Data
		if c.Files[0].Chomp {
			text = parser.ChompHeredocContent(text)
		}
		if strings.HasPrefix(text, "#!") {
			return "", refuse(at, "copy the script, and run it", "a script with a #! line is not supported in RUN")
		}
	} else {
		for _, f := range c.Files {
			text += "\n" + f.Data + f.Name
		}
	}
	if r.shell != nil {
		return quoteAll(append(slices.Clone(r.shell), text)), nil
	}
	return text, nil
}

// heredocAlone matches a command that is nothing but what follows it.
var heredocAlone = lazyregexp.New(`^\s*\d*<<-?\s*["']?\w+["']?\s*$`)

// start returns what ENTRYPOINT and CMD would run.
func (r *reader) start() string {
	line := func(c instructions.ShellDependantCmdLine) string {
		if c.PrependShell {
			return strings.Join(c.CmdLine, " ")
		}
		return quoteAll(c.CmdLine)
	}
	var parts []string
	if r.entrypoint != nil {
		parts = append(parts, line(r.entrypoint.ShellDependantCmdLine))
	}
	if r.cmd != nil && (r.entrypoint == nil || !r.entrypoint.PrependShell) {
		parts = append(parts, line(r.cmd.ShellDependantCmdLine))
	}
	return strings.Join(parts, " ")
}

// plain matches what a shell takes as it is.
var plain = lazyregexp.New(`^[\w@%+=:,./-]+$`)

// quote returns a text as one word of a shell.
func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}

// copy adds files of the context.
func (r *reader) copy(c *instructions.CopyCommand) error {
	at := c.Location()
	switch {
	case c.From != "":
		return refuse(at, "make the files in this stage, or have them in the directory", "COPY --from is not supported")
	case c.Parents:
		return refuse(at, "copy the directories", "COPY --parents is not supported")
	}
	return r.files(c, copied{c.SourcesAndDest, c.ExcludePatterns, c.Chown, c.Chmod, false})
}

// addFiles adds files of the context by ADD, which does more for some.
func (r *reader) addFiles(c *instructions.AddCommand) error {
	for _, source := range c.SourcePaths {
		if strings.Contains(source, "://") || strings.HasPrefix(source, "git@") {
			return refuse(c.Location(), "fetch it by RUN, with curl or git", "ADD of %s is not supported: it is no file of the context", source)
		}
	}
	return r.files(c, copied{c.SourcesAndDest, c.ExcludePatterns, c.Chown, c.Chmod, c.Unpack == nil || *c.Unpack})
}

// copied is what COPY and ADD have in common.
type copied struct {
	instructions.SourcesAndDest
	exclude     []string
	owner, mode string
	unpacks     bool // archives
}

// files adds a step that copies. Docker's files are root's unless it says otherwise.
func (r *reader) files(c interface {
	instructions.Command
	fmt.Stringer
}, from copied) error {
	at := c.Location()
	if len(from.exclude) > 0 {
		return refuse(at, "use .dockerignore", "%s --exclude is not supported", strings.ToUpper(c.Name()))
	}
	if err := from.ExpandRaw(func(text string) (string, error) { return r.word(at, text, r.env, r.args) }); err != nil {
		return err
	}
	if strings.Trim(from.mode, "01234567") != "" {
		return refuse(at, "write it as 755", "the mode %q is not octal", from.mode)
	}
	into := strings.HasSuffix(from.DestPath, "/") || path.Base(from.DestPath) == "." || path.Base(from.DestPath) == ".."
	if len(from.SourcePaths)+len(from.SourceContents) > 1 && !into {
		return refuse(at, "end it with a slash", "%q must be a directory for several sources", from.DestPath)
	}
	if r.options.Context == nil && len(from.SourcePaths) > 0 {
		return refuse(at, "give the directory with the files", "there are no files to copy")
	}
	l, err := r.options.Context.layOut(from.SourcesAndDest, into, from.unpacks)
	if err != nil {
		return refuse(at, "", "%v", err)
	}
	files, err := l.files()
	if err != nil {
		return refuse(at, "", "%v", err)
	}
	args := []string{l.source(), from.DestPath, cmp.Or(from.owner, "root:root")}
	if from.mode != "" {
		args = append(args, from.mode)
	}
	r.add(at, c.String(), client.BuildStep{Kind: "COPY", Args: args, Files: files})
	return nil
}
