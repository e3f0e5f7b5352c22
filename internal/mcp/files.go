package mcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"io"
	"strings"

	"github.com/drowse-dev/drowse/client"
)

const (
	defaultRead = 64 << 10
	maxRead     = 1 << 20
	maxListed   = 1000
)

// The ways in which the bytes of a file travel.
const (
	asText   = "text"
	asBase64 = "base64"
)

type readIn struct {
	named
	Path     string `json:"path" jsonschema:"absolute, or below the user's home directory"`
	Offset   int64  `json:"offset,omitempty" jsonschema:"bytes to leave out at the beginning"`
	MaxBytes int    `json:"max_bytes,omitempty" jsonschema:"how much to read; left out: 65536"`
	Encoding string `json:"encoding,omitempty" jsonschema:"text removes control characters; base64 is exact; left out: text"`
	User     string `json:"user,omitempty" jsonschema:"read as this user, such as root; left out: the template's"`
}

type readOut struct {
	Path       string `json:"path"`
	Content    string `json:"content"`
	Encoding   string `json:"encoding" jsonschema:"of content: text or base64"`
	Bytes      int    `json:"bytes" jsonschema:"how many bytes of the file content stands for"`
	NextOffset int64  `json:"next_offset,omitempty" jsonschema:"there is more: read on from here"`
	Altered    bool   `json:"altered" jsonschema:"content is not exact: control characters were removed or it is no UTF-8; read it as base64 for exact bytes"`
}

type writeIn struct {
	named
	Path     string `json:"path" jsonschema:"absolute, or below the user's home directory; directories on the way are made"`
	Content  string `json:"content" jsonschema:"the whole file"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of content; left out: text"`
	User     string `json:"user,omitempty" jsonschema:"write as this user, such as root; left out: the template's"`
}

type writeOut struct {
	Path  string `json:"path"`
	Bytes int    `json:"bytes"`
}

type listFilesIn struct {
	named
	Path  string `json:"path" jsonschema:"a directory: absolute, or below the user's home directory; . is the home directory"`
	Depth int    `json:"depth,omitempty" jsonschema:"how many levels down; left out: 1"`
	User  string `json:"user,omitempty" jsonschema:"list as this user, such as root; left out: the template's"`
}

type listFilesOut struct {
	Entries []fileView `json:"entries"`
	Left    int        `json:"left_out" jsonschema:"how many more there are"`
}

type fileView struct {
	Path        string `json:"path"`
	Type        string `json:"type" jsonschema:"file, directory, symlink that leads nowhere, or other"`
	Size        int64  `json:"size"`
	Permissions string `json:"permissions"`
	Modified    string `json:"modified"`
	Target      string `json:"target,omitempty" jsonschema:"of a symbolic link"`
}

// addFiles adds the tools for files.
func addFiles(s *Server) {
	words := map[string][]string{"encoding": {asText, asBase64}}
	add(s, tool{
		name: "read_file", title: "Read a file", reads: true, words: words,
		about: "Read a file in a sandbox, or a part of it. Wakes a sandbox that sleeps.",
		least: map[string]float64{"offset": 0, "max_bytes": 0}, most: map[string]float64{"max_bytes": maxRead},
	}, readFile)
	add(s, tool{
		name: "write_file", title: "Write a file", destroys: true, repeats: true, words: words,
		about: "Make or replace a file in a sandbox. Wakes a sandbox that sleeps.",
	}, writeFile)
	add(s, tool{
		name: "list_files", title: "List files", reads: true,
		about: "List a directory in a sandbox. Wakes a sandbox that sleeps.",
		least: map[string]float64{"depth": 0}, most: map[string]float64{"depth": 10},
	}, listFiles)
}

func readFile(ctx context.Context, c call, in readIn) (readOut, error) {
	sb, _, err := c.open(ctx, in.Sandbox)
	if err != nil {
		return readOut{}, err
	}
	body, err := sb.As(in.User).ReadFile(ctx, in.Path)
	if err != nil {
		return readOut{}, err
	}
	defer func() { _ = body.Close() }()
	if _, err := io.CopyN(io.Discard, body, in.Offset); err != nil && err != io.EOF {
		return readOut{}, err
	}
	most := cmp.Or(in.MaxBytes, defaultRead)
	data, err := io.ReadAll(io.LimitReader(body, int64(most)+1))
	if err != nil {
		return readOut{}, err
	}
	more := len(data) > most
	data = data[:min(len(data), most)]
	out := readOut{Path: in.Path, Encoding: cmp.Or(in.Encoding, asText)}
	if out.Encoding == asBase64 {
		out.Content = base64.StdEncoding.EncodeToString(data)
	} else {
		if more && len(whole(data)) > 0 {
			data = whole(data)
		}
		out.Content = plain(string(data))
		out.Altered = out.Content != string(data)
	}
	if out.Bytes = len(data); more {
		out.NextOffset = in.Offset + int64(len(data))
	}
	return out, nil
}

func writeFile(ctx context.Context, c call, in writeIn) (writeOut, error) {
	content := in.Content
	if in.Encoding == asBase64 {
		data, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return writeOut{}, refused("nothing was written; encode the content again", "the content is no base64: %v", err)
		}
		content = string(data)
	}
	sb, _, err := c.open(ctx, in.Sandbox)
	if err != nil {
		return writeOut{}, err
	}
	return writeOut{in.Path, len(content)}, sb.As(in.User).WriteFile(ctx, in.Path, strings.NewReader(content))
}

func listFiles(ctx context.Context, c call, in listFilesIn) (listFilesOut, error) {
	sb, _, err := c.open(ctx, in.Sandbox)
	if err != nil {
		return listFilesOut{}, err
	}
	all, err := sb.As(in.User).ListFiles(ctx, in.Path, in.Depth)
	if err != nil {
		return listFilesOut{}, err
	}
	shown := all[:min(len(all), maxListed)]
	out := listFilesOut{Entries: []fileView{}, Left: len(all) - len(shown)}
	for _, f := range shown {
		out.Entries = append(out.Entries, fileView{
			Path: short(f.Path), Type: cmp.Or(string(f.Type), "other"), Size: f.Size, Permissions: short(f.Permissions), Modified: instant(f.Modified), Target: short(f.Target),
		})
	}
	return out, nil
}

// open returns a handle to a sandbox that runs, or wakes for a request, and what it
// was like before.
func (c call) open(ctx context.Context, id string) (*client.Sandbox, client.Info, error) {
	sb, info, err := c.Open(ctx, id)
	if err == nil && info.State == client.Paused && !info.Settings.AutoResume {
		return nil, info, &failure{
			Message: "sandbox " + info.ID + " is paused, and calls do not wake it", Code: "not_resumable",
			State: stateOf(info), Next: "call resume first",
		}
	}
	return sb, info, err
}
