package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
)

// place is an argument of cp: a file in a sandbox or, without id, a local one.
type place struct{ id, path string }

func parsePlace(text string) place {
	id, p, ok := strings.Cut(text, ":")
	if drive := runtime.GOOS == "windows" && len(id) == 1; !ok || drive || !shortID.MatchString(id) && !sandboxName.MatchString(id) {
		return place{"", text}
	}
	return place{id, p}
}

func (p place) String() string {
	if p.id == "" {
		return p.path
	}
	return p.id + ":" + p.path
}

func (a *app) cpCommand() *cobra.Command {
	var user string
	var recursive bool
	cmd := &cobra.Command{
		Use:   "cp SRC DST [flags]",
		Short: "copy a file, or a directory, into or out of a sandbox",
		Long: `Copy one file. One of SRC and DST is ID:PATH; the other is a local path, or - for
stdin or stdout. A relative PATH is below the user's home directory. Only the
content is copied, not owner or mode. Write a local name with a colon as ./a:b.

With -r, copy a directory with all that is in it, its modes and its links. It
becomes DST, or goes into DST if that ends in a slash or is a local directory.
The sandbox needs tar. Links that lead out of the directory are not copied out of
a sandbox.`,
		Example: `  drowse cp data.csv i0abc:work/
  drowse cp i0abc:/tmp/result.json .
  drowse cp -r src i0abc:work/`,
		Args: exactArgs("SRC", "DST"),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory")
	cmd.Flags().StringVar(&user, "user", "", "read and write as this `user` (default: the template's)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		src, dst := parsePlace(args[0]), parsePlace(args[1])
		if (src.id == "") == (dst.id == "") {
			return usagef("cp: one of %s and %s must be ID:PATH, the other local", args[0], args[1])
		}
		id := []string{src.id + dst.id}
		if err := wholeIDs(cmd.Context(), a, id, nil); err != nil {
			return err
		}
		if src.id != "" {
			src.id = id[0]
		} else {
			dst.id = id[0]
		}
		sb, err := a.open(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		up, down := a.upload, a.download
		if recursive && src.path != "-" && dst.path != "-" {
			up, down = treeCopies(a)
		}
		if dst.id != "" {
			return up(cmd.Context(), sb.As(user), src, dst)
		}
		return down(cmd.Context(), sb.As(user), src, dst)
	}
	return cmd
}

// copied is the JSON of cp.
type copied struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Bytes int64  `json:"bytes"`
}

func (a *app) printCopied(src, dst place, n int64) error {
	return a.print(copied{src.String(), dst.String(), n}, func(io.Writer) {}) // as quiet as cp
}

func (a *app) upload(ctx context.Context, sb *client.Sandbox, src, dst place) error {
	dst.path = intoDirectory(dst.path, src.path)
	from, err := a.openLocal(src.path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	counted := &counter{r: from}
	if err := sb.WriteFile(ctx, dst.path, counted); err != nil {
		return err
	}
	return a.printCopied(src, dst, counted.n)
}

// intoDirectory completes the path of a directory in a sandbox, which ends in a
// slash or is empty, with the name of what is copied there.
func intoDirectory(dst, src string) string {
	if (dst == "" || strings.HasSuffix(dst, "/")) && src != "-" {
		return dst + filepath.Base(src)
	}
	return dst
}

func (a *app) openLocal(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.Stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close()
		return nil, hint(usagef("cp: %s is a directory", name), "copy it with: drowse cp -r")
	}
	return f, nil
}

func (a *app) download(ctx context.Context, sb *client.Sandbox, src, dst place) error {
	from, err := sb.ReadFile(ctx, src.path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if dst.path == "-" {
		_, err := io.Copy(a.Stdout, from)
		return err
	}
	if info, err := os.Stat(dst.path); err == nil && info.IsDir() {
		dst.path = filepath.Join(dst.path, path.Base(src.path))
	}
	n, err := save(dst.path, from)
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", src, dst, err)
	}
	return a.printCopied(src, dst, n)
}

// save writes a local file. What it made and could not fill, it removes.
func save(name string, r io.Reader) (int64, error) {
	_, statErr := os.Lstat(name)
	f, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, r)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil && os.IsNotExist(statErr) {
		_ = os.Remove(name)
	}
	return n, err
}

// counter counts what is read through it.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
