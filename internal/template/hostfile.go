package template

import (
	"os"
	"path/filepath"

	"github.com/drowse-dev/drowse/internal/layer"
)

// HostFile finds the file of the host that a template shows at a path inside.
// It returns the template's tree and the path in it, for whoever has layers
// above. There is none, and ok is false, where the template itself made what is
// there, or where nothing is.
func (s *Store) HostFile(t Template, path string) (info os.FileInfo, tree layer.Tree, rel string, ok bool) {
	for _, candidate := range t.Trees {
		if r, err := filepath.Rel(candidate.Path, path); err == nil && filepath.IsLocal(r) && len(candidate.Path) > len(tree.Path) {
			tree, rel = candidate, r
		}
	}
	generated := len(tree.Lowers) - s.shared(tree)
	for i, lower := range tree.Lowers {
		info, err := os.Lstat(filepath.Join(lower, rel))
		if err == nil {
			return info, tree, rel, i >= generated && info.Mode().IsRegular()
		}
	}
	return nil, tree, rel, false
}
