package cli

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/human"
)

// templateCommands are the commands about what sandboxes start from.
type templateCommands struct{ *app }

func (a templateCommands) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template COMMAND",
		Short: "fetch, build, list, name and remove what sandboxes start from",
		Long: `A template is what a sandbox starts from: the host's own system, an OCI image, or
what was built of a Dockerfile, here or by E2B's SDKs. The server fetches images
itself, without Docker, and with the credentials that docker login has left for the
user that it runs as. Images share layers.

Without a template, a sandbox starts from base. That is the host's own system,
which is also called host, until you give the name another meaning.`,
		Example: `  drowse template pull python:3.12
  drowse create --template python:3.12
  docker save my-image | drowse template load --name mine -
  drowse template build tools ./dir-with-dockerfile
  drowse template set base python:3.12
  drowse template set base host
  drowse template ls
  drowse template rm python:3.12`,
		Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, c := range []*cobra.Command{a.pullCommand(), a.loadCommand(), a.buildCommand(), a.listCommand(), a.inspectCommand(), a.setCommand(), a.removeCommand()} {
		c.DisableFlagsInUseLine = true
		cmd.AddCommand(c)
	}
	return cmd
}

func (a templateCommands) pullCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "pull IMAGE [flags]",
		Short: "fetch an image from its registry",
		Long: `Fetch an image from its registry and make a template of it. Layers that the
server has are not fetched again. A tag that has moved gives a new template; the
sandboxes that exist keep the old one.`,
		Example: `  drowse template pull python:3.12
  drowse template pull --name tools ghcr.io/owner/tools@sha256:...`,
		Args: exactArgs("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				t, err := a.pull(ctx, c, args[0], name)
				if err != nil {
					return err
				}
				return a.printMade(t)
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what the template is to be called (default: the image's `name` and tag)")
	return cmd
}

// pull fetches an image, and shows how far it is where a person looks.
func (a templateCommands) pull(ctx context.Context, c *client.Client, image, name string) (client.Template, error) {
	show := a.newProgress()
	defer show.clear()
	return client.NewTemplates(c).Pull(ctx, client.PullOptions{Image: image, Name: name, Progress: show.update})
}

func (a templateCommands) printMade(t client.Template) error {
	return a.print(t, func(w io.Writer) {
		for _, name := range t.Names {
			_, _ = fmt.Fprintln(w, cell(name))
		}
	})
}

func (a templateCommands) loadCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "load FILE|DIR|- [flags]",
		Short: "make a template of an image in a file or directory",
		Long: `Make a template of an image in a file, as docker save or podman save writes it, or
in an OCI image layout, which may be a tar or a directory. Tars may be compressed
by gzip or zstd. With - the tar is read from stdin. There must be one image for
the server's platform in it.`,
		Example: `  docker save my-image > my-image.tar
  drowse template load my-image.tar
  drowse template load --name mine ./layout`,
		Args: exactArgs("FILE|DIR|-"),
		RunE: func(cmd *cobra.Command, args []string) error {
			archive, err := a.openArchive(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = archive.Close() }()
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				show := a.newProgress()
				t, err := client.NewTemplates(c).Load(ctx, archive, name, show.update)
				show.clear()
				if err != nil {
					return err
				}
				return a.printMade(t)
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what the template is to be called (default: the `name` that the archive has for the image)")
	return cmd
}

// openArchive opens a tar, or makes one of a directory as it is read.
func (a templateCommands) openArchive(path string) (io.ReadCloser, error) {
	if path == "-" {
		if isTerminal(a.Stdin) {
			return nil, hint(usagef("load: stdin is a terminal"), "give it a file: drowse template load FILE")
		}
		return io.NopCloser(a.Stdin), nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("load: %s: %w", path, errors.Unwrap(err))
	}
	if !info.IsDir() {
		return os.Open(path)
	}
	if _, err := os.Stat(filepath.Join(path, "oci-layout")); err != nil {
		return nil, hint(usagef("load: %s is no OCI image layout: %v", path, err), "give it the directory that has the file oci-layout")
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarOf(w, path)) }()
	return r, nil
}

// tarOf writes a directory as a tar.
func tarOf(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	if err := out.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return out.Close()
}

func (a templateCommands) listCommand() *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "list what sandboxes can start from",
		Long: `List what sandboxes can start from. Of many names of one template some are shown;
drowse template inspect has all, and so has --wide. A template without a name has its
id instead.`,
		Args: exactArgs(),
	}
	wideVar(cmd, &wide)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			all, err := client.NewTemplates(c).List(ctx)
			if err != nil {
				return err
			}
			return a.print(all, func(w io.Writer) { tableOfTemplates(w, all, time.Now(), wide) })
		})
	}
	return cmd
}

func tableOfTemplates(w io.Writer, all []client.Template, now time.Time, wide bool) {
	narrow(w, wide)
	rows := [][]string{{"NAMES", "IMAGE", "SIZE", "MADE"}}
	if wide {
		rows[0] = []string{"NAMES", "ID", "IMAGE", "SIZE", "MADE"}
	}
	for _, t := range all {
		ref, size := "the host's own system", "-"
		switch {
		case t.Image != nil:
			ref, size = imageText(*t.Image), human.Bytes(imageBytes(*t.Image))
		case t.Build != nil:
			ref = builtText(t)
		}
		if wide {
			rows = append(rows, []string{cmp.Or(strings.Join(t.Names, ","), "-"), t.ID, ref, size, clock(t.MadeAt, now)})
			continue
		}
		made := "-"
		if !t.MadeAt.IsZero() {
			made = age(now.Sub(t.MadeAt)) + " ago"
		}
		rows = append(rows, []string{cmp.Or(someOf(t.Names), t.ID), cut(familiar.Replace(ref), maxImage), size, made})
	}
	table(w, rows)
}

// What of a template fits 80 characters.
const (
	maxNames = 30
	maxImage = 28
)

// familiar is how people write images.
var familiar = strings.NewReplacer("index.docker.io/library/", "", "index.docker.io/", "", "@sha256:", "@")

// someOf returns names while there is room, and how many there are besides.
func someOf(names []string) string {
	if all := strings.Join(names, ","); utf8.RuneCountInString(all) <= maxNames {
		return all
	}
	text := ""
	for i, name := range names {
		if i > 0 && utf8.RuneCountInString(text)+1+utf8.RuneCountInString(name) > maxNames-len(" +99") {
			return fmt.Sprintf("%s +%d", text, len(names)-i)
		}
		if i > 0 {
			text += ","
		}
		text += name
	}
	return text
}

// builtText is a template in a list that was built. Where its names do not tell what its
// key calls it, this does.
func builtText(t client.Template) string {
	text := "built of steps"
	if !slices.Contains(t.Names, t.Build.Name) {
		text = "built as " + t.Build.Name
	}
	if t.Build.Status != "ready" {
		text += "; build: " + t.Build.Status
	}
	return text
}

// imageText is an image in a list.
func imageText(i client.Image) string {
	if i.Ref != "" {
		return i.Ref
	}
	return i.Digest
}

func imageBytes(i client.Image) (n int64) {
	for _, l := range i.Layers {
		n += l.Bytes
	}
	return n
}

func (a templateCommands) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NAME [flags]",
		Short: "show what a template was made of",
		Args:  exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				t, err := client.NewTemplates(c).Get(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(t, func(w io.Writer) { describeTemplate(w, t, time.Now()) })
			})
		},
	}
}

func describeTemplate(w io.Writer, t client.Template, now time.Time) {
	rows := [][]string{}
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	row("id", t.ID)
	row("names", strings.Join(t.Names, ", "))
	row("made", clock(t.MadeAt, now))
	row("user", t.User)
	if i := t.Image; i != nil {
		row("image", i.Ref)
		row("digest", i.Digest)
		row("platform", i.Platform)
		row("workdir", i.WorkingDir)
		row("entrypoint", strings.Join(i.Entrypoint, " "))
		row("command", strings.Join(i.Cmd, " "))
		row("ports", strings.Join(i.ExposedPorts, ", "))
		for _, v := range i.Env {
			row("env", v)
		}
		for _, l := range i.Layers {
			row("layer", fmt.Sprintf("%s  %s, %d entries", l.Digest, human.Bytes(l.Bytes), l.Entries))
		}
	} else if b := t.Build; b != nil {
		row("image", "none: built of steps")
		row("built as", b.Name)
		row("last build", b.Status)
		row("failed", b.Reason)
		row("key", b.Key)
	} else {
		row("image", "none: the host's own system")
	}
	table(w, rows)
}

func (a templateCommands) setCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME TEMPLATE|IMAGE [flags]",
		Short: "make a name stand for a template, such as base for python:3.12",
		Long: `Make a name stand for a template. An image that the server has not got is pulled.
Sandboxes that exist keep what they started from.

What base stands for, sandboxes start from by default; E2B's code interpreter
clients ask for code-interpreter-v1. With host as the template, these two are the
host's own system again.`,
		Example: `  drowse template set base python:3.12
  drowse template set base host`,
		Args: exactArgs("NAME", "TEMPLATE|IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.transfer(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all := client.NewTemplates(c)
				if _, err := all.Get(ctx, args[1]); errors.Is(err, client.ErrNotFound) {
					if _, err := a.pull(ctx, c, args[1], ""); err != nil {
						return err
					}
				}
				t, err := all.Set(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				return a.print(t, func(w io.Writer) {
					what := "the host's own system"
					if t.Image != nil {
						what = imageText(*t.Image)
					}
					_, _ = fmt.Fprintf(w, "%s is %s\n", cell(args[0]), cell(what))
				})
			})
		},
	}
}

func (a templateCommands) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME... [flags]",
		Short: "remove templates, and layers that no other has",
		Long: `Take names of templates away. A template that has no other name is removed, with
the layers that no other image has. One that a sandbox started from is left as it
is, also if the sandbox sleeps.`,
		Args: minArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				for _, name := range args {
					if err := client.NewTemplates(c).Remove(ctx, name); err != nil {
						return err
					}
				}
				return a.print(map[string][]string{"removed": args}, func(w io.Writer) {
					for _, name := range args {
						_, _ = fmt.Fprintf(w, "%s is removed\n", cell(name))
					}
				})
			})
		},
	}
}

// pullProgress is a line on stderr that tells how far the layers of an image are
// that comes or leaves.
// It is shown on a terminal only.
type pullProgress struct {
	w      io.Writer
	layers map[string]client.LayerProgress
	shown  bool
}

func (a templateCommands) newProgress() *pullProgress {
	p := &pullProgress{layers: map[string]client.LayerProgress{}}
	if isTerminal(a.Stderr) {
		p.w = a.Stderr
	}
	return p
}

func (p *pullProgress) update(l client.LayerProgress) {
	p.layers[l.Layer] = l
	if p.w == nil {
		return
	}
	var ready int
	var done, size int64
	for _, l := range p.layers {
		if l.State != "fetching" && l.State != "packing" && l.State != "sending" {
			ready++
		}
		done, size = done+l.Done, size+max(l.Size, l.Done)
	}
	p.shown = true
	_, _ = fmt.Fprintf(p.w, "\r\x1b[K%d of %d layers, %s of %s", ready, len(p.layers), human.Bytes(done), human.Bytes(size))
}

// clear takes the line away.
func (p *pullProgress) clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.shown = false
}
