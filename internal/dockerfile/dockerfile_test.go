package dockerfile

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drowse-dev/drowse/client"
)

// directory makes a directory of files. A name that ends with a slash is a directory,
// and what begins with -> is a link.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(to, at)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(at, 0o755)
		} else {
			err = os.WriteFile(at, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func contextOf(t *testing.T, files map[string]string) *Context {
	t.Helper()
	dir := directory(t, files)
	c, err := OpenContext(dir, filepath.Join(dir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// says is a step in one line, with the files of a copy.
func says(t *testing.T, s client.BuildStep) string {
	t.Helper()
	text := s.Kind + " " + strings.Join(s.Args, " | ")
	if s.Files != nil {
		text += " " + fmt.Sprint(archived(t, s.Files))
	}
	return text
}

// archived lists what the files of a step are.
func archived(t *testing.T, f *client.BuildFiles) (list []string) {
	t.Helper()
	data, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	in := tar.NewReader(data)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s is of %d:%d (%s), want root", h.Name, h.Uid, h.Gid, h.Uname)
		}
		list = append(list, h.Name+"="+string(text)+h.Linkname)
	}
}

// TestRead: what Dockerfiles say, in steps.
func TestRead(t *testing.T) {
	files := map[string]string{
		"a.txt": "A", "b.txt": "B", "src/x": "X", "src/deep/y": "Y", "src/link": "->x", "empty/": "", "secret": "S", ".dockerignore": "secret\n**/*.log\n", "src/z.log": "Z",
	}
	for _, tt := range []struct {
		name, file string
		args       map[string]string
		target     string
		from       string
		steps      []string // but for the first, USER root
		start      string
		notes      []string
	}{
		{name: "shell and exec", file: "FROM python:3.12\nRUN echo $HOME && \\\n  ls\nRUN [\"echo\", \"it's $HOME\"]",
			from: "python:3.12", steps: []string{"RUN echo $HOME &&   ls", `RUN echo 'it'\''s $HOME'`}},
		{name: "ARG before FROM", file: "ARG V=3.11\nFROM python:$V\nARG V\nRUN echo $V", args: map[string]string{"V": "3.13"},
			from: "python:3.13", steps: []string{"RUN export V=3.13\necho $V"}},
		{name: "ARG default, and ENV wins", file: "FROM a\nARG A=1 B\nENV A=2\nRUN true", from: "a", steps: []string{"ENV A | 2", "RUN export B=''\ntrue"}},
		{name: "ENV", file: "FROM a\nENV A=1 B=\"x y\" C='q'\nENV D=$A/$B E=${F:-f}\nENV PATH=/x:$PATH A=$A", from: "a",
			steps: []string{"ENV A | 1 | B | x y | C | q", "ENV E | ${F:-f} | D | 1/x y", "ENV PATH | /x:$PATH | A | 1"}},
		{name: "WORKDIR, USER and variables", file: "FROM a\nENV D=/srv\nWORKDIR $D/app\nUSER ${U:-app}", from: "a", steps: []string{"ENV D | /srv", "WORKDIR /srv/app", "USER app"}},
		{name: "COPY a file", file: "FROM a\nCOPY a.txt /etc/conf\nCOPY --chown=app:app --chmod=600 a.txt dir/", from: "a",
			steps: []string{"COPY files/a.txt | /etc/conf | root:root [files/= files/a.txt=A]", "COPY files | dir/ | app:app | 600 [files/= files/a.txt=A]"}},
		{name: "COPY a directory", file: "FROM a\nCOPY src /app\nCOPY empty /e", from: "a",
			steps: []string{"COPY files | /app | root:root [files/= files/deep/= files/deep/y=Y files/link=x files/x=X]", "COPY files | /e | root:root [files/=]"}},
		{name: "COPY patterns and several", file: "FROM a\nCOPY *.txt src/deep /d/", from: "a", steps: []string{"COPY files | /d/ | root:root [files/= files/a.txt=A files/b.txt=B files/y=Y]"}},
		{name: "COPY a text", file: "FROM a\nENV N=you\nCOPY <<one <<'two' /d/\nhello $N\none\nliteral $N\ntwo\n", from: "a",
			steps: []string{"ENV N | you", "COPY files | /d/ | root:root [files/= files/one=hello you\n files/two=literal $N\n]"}},
		{name: "RUN a text", file: "FROM a\nRUN <<EOF\nset -e\necho one\nEOF\nRUN python3 <<EOF\nprint(1)\nEOF\n", from: "a",
			steps: []string{"RUN set -e\necho one\n", "RUN python3 <<EOF\nprint(1)\nEOF"}},
		{name: "RUN a text without its tabs", file: "FROM a\nRUN <<-EOF\n\techo one\n\tEOF\n", from: "a", steps: []string{"RUN echo one\n"}},
		{name: "ARG of the platform", file: "FROM a\nARG TARGETARCH\nRUN true", args: map[string]string{"TARGETARCH": "amd64"}, from: "a", steps: []string{"RUN export TARGETARCH=amd64\ntrue"}},
		{name: "SHELL", file: "FROM a\nSHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\nRUN false | true", from: "a", steps: []string{"RUN /bin/bash -o pipefail -c 'false | true'"}},
		{name: "stages", file: "FROM a AS one\nRUN one\nFROM b\nRUN other\nFROM one\nRUN two", from: "a", steps: []string{"RUN one", "RUN two"}},
		{name: "a target", file: "FROM a AS one\nRUN one\nFROM b\nRUN other", target: "one", from: "a", steps: []string{"RUN one"}},
		{name: "start", file: "FROM a\nENTRYPOINT [\"python3\", \"-m\"]\nCMD [\"http.server\", \"80 80\"]", from: "a", start: "python3 -m http.server '80 80'"},
		{name: "start of a shell", file: "FROM a\nENTRYPOINT exec serve\nCMD [\"ignored\"]", from: "a", start: "exec serve"},
		{name: "no effect", file: "FROM a\nLABEL a=b\nEXPOSE 80\nVOLUME /v\nHEALTHCHECK CMD true\nRUN --mount=type=cache,target=/root/.cache pip install x", from: "a",
			steps: []string{"RUN pip install x"},
			notes: []string{"4: VOLUME has no effect on a template", "5: HEALTHCHECK has no effect on a template", "6: the cache at /root/.cache is not kept: a step whose result is known is not run again"}},
		{name: "another escape", file: "# escape=`\nFROM a\nRUN echo `\n x", from: "a", steps: []string{"RUN echo  x"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Read(strings.NewReader(tt.file), Options{Args: tt.args, Target: tt.target, Context: contextOf(t, files)})
			if err != nil {
				t.Fatal(err)
			}
			var steps, notes []string
			for _, s := range r.Steps {
				steps = append(steps, says(t, s.BuildStep))
			}
			for _, n := range r.Notes {
				notes = append(notes, fmt.Sprintf("%d: %s", n.Line, n.Text))
			}
			if r.From != tt.from || r.Start != tt.start || !slices.Equal(notes, tt.notes) || !slices.Equal(steps, append([]string{"USER root"}, tt.steps...)) {
				t.Errorf("from %q, start %q, notes %q, steps\n%q\nwant from %q, start %q, notes %q, and\n%q", r.From, r.Start, notes, steps, tt.from, tt.start, tt.notes, tt.steps)
			}
		})
	}
}

// TestRefused: what cannot be built is refused, by its line.
func TestRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"a": "A", "b": "B", "out": "->" + outside, "up": "->../x", "x.tgz": "\x1f\x8b\x08", "secret": "S", ".dockerignore": "secret", "od[d": "O"}
	for file, want := range map[string]string{
		"":                                       "file with no instructions",
		"RUN true":                               "line 1: no build stage in current context",
		"FROM a\nRUNN true":                      "line 2: unknown instruction: RUNN",
		"FROM a\nENV A":                          "line 2: ",
		"FROM scratch":                           "line 1: a template cannot begin with nothing",
		"ARG V\nFROM $V":                         "line 2: FROM $V names nothing",
		"FROM python:$V":                         "line 1: nothing in the Dockerfile has set V",
		"FROM a\nWORKDIR $HOME/app":              "line 2: nothing in the Dockerfile has set HOME",
		"FROM a\n\nENV A='$5'":                   "line 3: ENV A has a $ that stands for itself",
		"FROM a\nENV A=$B\\$":                    "line 2: ENV A has a $ that stands for itself",
		"FROM a\nARG TARGETARCH":                 "line 2: ARG TARGETARCH has no value",
		"FROM a\nUSER a:b":                       "line 2: USER with a group",
		"FROM a\nONBUILD RUN true":               "line 2: ONBUILD is not supported",
		"FROM a\nRUN --mount=type=secret,id=x y": "line 2: RUN --mount=type=secret is not supported",
		"FROM a\nRUN --network=none y":           "line 2: RUN --network is not supported",
		"FROM a\nRUN <<E\n#!/usr/bin/perl\nE":    "line 2: a script with a #! line",
		"FROM a AS b\nFROM c\nCOPY --from=b x y": "line 3: COPY --from is not supported",
		"FROM a\nCOPY missing /":                 "line 2: the context has no missing",
		"FROM a\nCOPY *.none /":                  "line 2: the context has no *.none",
		"FROM a\nCOPY secret /":                  "line 2: secret is excluded by .dockerignore",
		"FROM a\nCOPY a b /x":                    `line 2: "/x" must be a directory`,
		"FROM a\nCOPY out /x":                    "line 2: out: path escapes from parent",
		"FROM a\nCOPY ../../etc/passwd /x":       "line 2: the context has no ../../etc/passwd",
		"FROM a\nCOPY --chmod=u+x a /x":          `line 2: the mode "u+x" is not octal`,
		"FROM a\nCOPY od[d /x":                   "line 2: the name of od[d has a character of a pattern",
		"FROM a\nADD https://example.com/a /x":   "line 2: ADD of https://example.com/a is not supported",
		"FROM a\nCOPY --exclude=*.o . /x/":       "line 2: COPY --exclude is not supported",
		"FROM a\nADD --exclude=*.o . /x/":        "line 2: ADD --exclude is not supported",
		"FROM a\nADD x.tgz /x/":                  "line 2: ADD would unpack x.tgz",
	} {
		_, err := Read(strings.NewReader(file), Options{Context: contextOf(t, files)})
		if e, ok := errors.AsType[*Error](err); !ok || !strings.HasPrefix(e.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
	for _, o := range []Options{{Target: "none"}, {Args: map[string]string{"X": "1"}}} {
		if _, err := Read(strings.NewReader("FROM a"), o); err == nil || !strings.Contains(err.Error(), "the Dockerfile has no") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Read(strings.NewReader("FROM a\nCOPY a /"), Options{}); err == nil || !strings.Contains(err.Error(), "there are no files to copy") {
		t.Errorf("without a directory: %v", err)
	}
}

// TestHash: the hash is of what is copied, and of nothing else.
func TestHash(t *testing.T) {
	hash := func(files map[string]string, mode os.FileMode) string {
		dir := directory(t, files)
		if err := os.Chmod(filepath.Join(dir, "f"), mode); err != nil {
			t.Fatal(err)
		}
		c, err := OpenContext(dir, filepath.Join(dir, "Dockerfile"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r, err := Read(strings.NewReader("FROM a\nCOPY f d /x/"), Options{Context: c})
		if err != nil {
			t.Fatal(err)
		}
		return r.Steps[1].Files.Hash
	}
	first := hash(map[string]string{"f": "1", "d/g": "2"}, 0o644)
	if again := hash(map[string]string{"f": "1", "d/g": "2", "other": "3"}, 0o644); again != first {
		t.Error("the hash changes with the time, or with another file")
	}
	for name, other := range map[string]string{
		"contents": hash(map[string]string{"f": "3", "d/g": "2"}, 0o644),
		"a name":   hash(map[string]string{"f": "1", "d/h": "2"}, 0o644),
		"a mode":   hash(map[string]string{"f": "1", "d/g": "2"}, 0o755),
		"a link":   hash(map[string]string{"f": "1", "d/g": "2", "d/l": "->g"}, 0o644),
	} {
		if other == first || len(other) != 64 {
			t.Errorf("the hash with another %s: %s, and before %s", name, other, first)
		}
	}
}

// TestChangedMeanwhile: a file that changes its size while it is sent is an error,
// and not half a file.
func TestChangedMeanwhile(t *testing.T) {
	dir := directory(t, map[string]string{"f": "1234"})
	c, err := OpenContext(dir, filepath.Join(dir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := Read(strings.NewReader("FROM a\nCOPY f /x/"), Options{Context: c})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"12", "123456"} {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		data, err := r.Steps[1].Files.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, data); err == nil || !strings.Contains(err.Error(), "f has changed") {
			t.Errorf("with %q: %v", text, err)
		}
	}
}

// TestOwnIgnoreFile: one that is called like the Dockerfile counts alone.
func TestOwnIgnoreFile(t *testing.T) {
	dir := directory(t, map[string]string{"a": "A", "b": "B", "dir/c": "C", "dir/d": "D", ".dockerignore": "a", "my.Dockerfile.dockerignore": "*\n!b\n!dir/d\n"})
	c, err := OpenContext(dir, filepath.Join(dir, "my.Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := Read(strings.NewReader("FROM x\nCOPY . /x/"), Options{Context: c})
	if err != nil {
		t.Fatal(err)
	}
	if got := archived(t, r.Steps[1].Files); !slices.Equal(got, []string{"files/=", "files/b=B", "files/dir/d=D"}) {
		t.Errorf("copied %q", got)
	}
}

// FuzzRead: no Dockerfile makes a panic, and each is read or refused.
func FuzzRead(f *testing.F) {
	f.Add("FROM a\nRUN <<E\nx\nE\nCOPY . /")
	f.Add("ARG A=${B:-c}\nFROM $A AS b\nENV A=$A B=\"$C\"\nFROM b\nADD a b c/")
	c, err := OpenContext(f.TempDir(), "Dockerfile")
	if err != nil {
		f.Fatal(err)
	}
	defer c.Close()
	f.Fuzz(func(t *testing.T, text string) {
		_, err := Read(strings.NewReader(text), Options{Context: c})
		if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Text == "") {
			t.Errorf("%v is no error of a Dockerfile", err)
		}
	})
}
