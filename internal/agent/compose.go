package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
)

// composeRequest is the body of POST /files/compose.
type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

func (a *Agent) handleCompose(w http.ResponseWriter, r *http.Request) {
	var req composeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&req); err != nil {
		writeError(w, faultf(invalid, "body: %w", err))
		return
	}
	user, err := a.user(req.Username)
	if err != nil {
		writeError(w, err)
		return
	}
	file, err := a.compose(r.Context(), &req, user)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, file)
}

// maxSources is more than an upload of the largest file in parts needs.
const maxSources = 10_000

// compose concatenates the sources into the destination. The sources are
// deleted only once all of it is written, so a failure loses none of them.
func (a *Agent) compose(ctx context.Context, req *composeRequest, user *account) (*uploaded, error) {
	if n := len(req.SourcePaths); n == 0 || n > maxSources {
		return nil, faultf(invalid, "source_paths has %d entries: 1 to %d are allowed", n, maxSources)
	}
	if req.Destination == "" {
		return nil, faultf(invalid, "destination is empty")
	}
	destination, err := resolvePath(req.Destination, user.home, a.settings.workdir())
	if err != nil {
		return nil, err
	}
	sources := make([]string, len(req.SourcePaths))
	for i, path := range req.SourcePaths {
		if sources[i], err = resolvePath(path, user.home, a.settings.workdir()); err != nil {
			return nil, err
		}
	}
	if err := checkSources(sources, destination); err != nil {
		return nil, err
	}
	if err := concatenate(ctx, sources, destination, user); err != nil {
		return nil, err
	}
	for _, path := range sources {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, pathFault(path, err)
		}
	}
	return &uploaded{
		Name: wireText(filepath.Base(destination)), Path: wireText(destination), Type: "file",
		Metadata: fileMetadata(destination),
	}, nil
}

// checkSources refuses, before anything is touched, a source that is no
// regular file or that the destination would truncate.
func checkSources(sources []string, destination string) error {
	target, _ := os.Stat(destination)
	for _, path := range sources {
		info, err := os.Stat(path)
		if err == nil {
			err = requireRegular(path, info)
		}
		if err != nil {
			return pathFault(path, err)
		}
		if target != nil && os.SameFile(info, target) {
			return faultf(invalid, "path '%s' is both a source and the destination", path)
		}
	}
	return nil
}

func concatenate(ctx context.Context, sources []string, destination string, user *account) error {
	out, err := openTarget(destination, user)
	if err != nil {
		return err
	}
	defer out.drop()
	for _, path := range sources {
		if err := appendFile(ctx, out.File, path); err != nil {
			return writeFault(destination, err)
		}
	}
	if err := out.commit(ctx); err != nil {
		return writeFault(destination, err)
	}
	return nil
}

// appendFile ends with ctx: a sparse file can be larger than any disk.
func appendFile(ctx context.Context, out *os.File, path string) error {
	in, _, err := openRegular(path)
	if err != nil {
		return err
	}
	defer in.Close()
	return appendAll(ctx, out, in)
}

func appendAll(ctx context.Context, out, in *os.File) error {
	for {
		if err := ctx.Err(); err != nil {
			return contextError(ctx)
		}
		if _, err := io.CopyN(out, in, appendStep); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// appendStep is how much is copied between looks at whether anybody waits.
const appendStep = 16 << 20
