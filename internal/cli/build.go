package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/dockerfile"
)

// buildFlags are those of template build.
type buildFlags struct {
	file, target, start, ready string
	args, tags                 []string
	cpus                       float64
	memory                     int
	force                      bool
}

// name is what messages call the Dockerfile.
func (f buildFlags) name() string {
	if f.file == "-" {
		return "stdin"
	}
	return f.file
}

func (a templateCommands) buildCommand() *cobra.Command {
	var f buildFlags
	cmd := &cobra.Command{
		Use:   "build NAME [DIR] [flags]",
		Short: "make a template of a Dockerfile",
		Long: `Make a template of a Dockerfile and of the files in a directory, by default the one
that you are in. Steps whose result the server knows are not run again.

FROM is a template of the server, if it has one of that name, and else an image from
its registry. As in Docker, commands run as root until USER says otherwise. Files of
other stages, addresses in ADD, and mounts other than caches are refused. CMD and
ENTRYPOINT run nothing: what --start-cmd says runs in every sandbox of the template,
which then starts with it running.`,
		Example: `  drowse template build tools
  drowse template build tools:v2 ./app -f ./app/prod.Dockerfile --build-arg VERSION=2
  drowse template build web . --start-cmd 'python3 app.py' --ready-cmd 'curl -sf localhost:8000'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactArgs("NAME")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 2 {
				dir = args[1]
			}
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.build(ctx, c, args[0], dir, f)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "the Dockerfile, or - for stdin (default: Dockerfile in the directory)")
	flags.StringVar(&f.target, "target", "", "the `stage` to build (default: the last one)")
	flags.StringArrayVar(&f.args, "build-arg", nil, "a value for an ARG, as `NAME=VALUE`; can be given several times")
	flags.StringArrayVar(&f.tags, "tag", nil, "another `tag` for the result; can be given several times")
	flags.StringVar(&f.start, "start-cmd", "", "a `command` that runs in every sandbox of the template")
	flags.StringVar(&f.ready, "ready-cmd", "", "a `command` that succeeds when the template is ready (default: 20 seconds after --start-cmd)")
	flags.Var(cpusFlag{&f.cpus}, "cpus", "`CPUs` of its sandboxes (default: the server's own)")
	mibVar(flags, &f.memory, "memory", 0, "memory of its sandboxes, in MiB or as a `size` such as 2g (default: the server's own)")
	flags.BoolVar(&f.force, "no-cache", false, "run all steps, although the server knows what they led to")
	return cmd
}

// build reads a Dockerfile, and builds it.
func (a templateCommands) build(ctx context.Context, c *client.Client, name, dir string, f buildFlags) error {
	if f.file == "" {
		f.file = filepath.Join(dir, "Dockerfile")
	}
	files, err := dockerfile.OpenContext(dir, f.file)
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	defer func() { _ = files.Close() }() // they are read when they are sent
	recipe, err := a.readDockerfile(files, f)
	if err != nil {
		return err
	}
	o := client.BuildOptions{Name: name, Tags: f.tags, Image: recipe.From, Start: f.start, Ready: f.ready, CPUs: f.cpus, MemoryMiB: f.memory, Force: f.force}
	for _, s := range recipe.Steps {
		o.Steps = append(o.Steps, s.BuildStep)
	}
	o.Progress = func(l client.BuildLine) {
		if l.Level != "debug" && l.Level != "error" { // the last line is why it failed
			_, _ = fmt.Fprintf(a.Stderr, "%s%s\n", stepText(l.Step, len(recipe.Steps)), cell(l.Text))
		}
	}
	made, err := client.NewTemplates(c).Build(ctx, o)
	if failed, ok := errors.AsType[*client.BuildError](err); ok && failed.Step > 0 && failed.Step <= len(recipe.Steps) {
		s := recipe.Steps[failed.Step-1]
		return hint(fmt.Errorf("%s:%d: %s: %s", f.name(), s.Line, s.Code, failed.Reason), "change that step, and build again: those before it are not run again")
	}
	if err != nil {
		return err
	}
	return a.printMade(made)
}

// stepText is what stands before a line of a step.
func stepText(step string, of int) string {
	if step == "" || strings.Trim(step, "0123456789") != "" {
		return ""
	}
	return fmt.Sprintf("[%s/%d] ", step, of)
}

// readDockerfile reads the Dockerfile that the flags name.
func (a templateCommands) readDockerfile(files *dockerfile.Context, f buildFlags) (recipe dockerfile.Recipe, err error) {
	args := map[string]string{}
	for _, text := range f.args {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return recipe, usagef("build: --build-arg %q is not NAME=VALUE", text)
		}
		args[name] = value
	}
	var in io.ReadCloser = io.NopCloser(a.Stdin)
	if f.file != "-" {
		if in, err = os.Open(f.file); err != nil {
			return recipe, hint(fmt.Errorf("build: %s: %w", f.file, errors.Unwrap(err)), "name the Dockerfile with -f")
		}
	}
	defer func() { _ = in.Close() }()
	recipe, err = dockerfile.Read(in, dockerfile.Options{Args: args, Target: f.target, Context: files})
	if e, ok := errors.AsType[*dockerfile.Error](err); ok {
		err = usagef("%s: %w", f.name(), e)
		if e.Remedy != "" {
			err = hint(err, "%s", e.Remedy)
		}
	}
	if err != nil {
		return recipe, err
	}
	for _, n := range recipe.Notes {
		_, _ = fmt.Fprintf(a.Stderr, "note: %s:%d: %s\n", cell(f.name()), n.Line, cell(n.Text))
	}
	if recipe.Start != "" && f.start == "" {
		_, _ = fmt.Fprintf(a.Stderr, "note: %s: what CMD and ENTRYPOINT say is not run; to run it in every sandbox: --start-cmd %q\n", cell(f.name()), cell(recipe.Start))
	}
	return recipe, nil
}
