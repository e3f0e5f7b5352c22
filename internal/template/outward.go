package template

import (
	"path"
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/layer"
)

// Outward is a template as it leaves this server: what every server adds to a
// template of its own accord stays here.
type Outward struct {
	// Below are the trees of the first layer: the image, or the host's system.
	Below []layer.Tree
	// Added are the directories with what the server has put over an image, for the
	// first tree, which belong to the second layer; nil for the host's system.
	Added []string
	// own are paths that only this server's own files have.
	own []string
}

// Outward returns how a template leaves.
func (t Template) Outward() Outward {
	o := Outward{own: []string{
		path.Dir(AgentPath[1:]), path.Dir(strings.TrimPrefix(t.AgentAt(), "/")), "usr/bin/sudo", "usr/bin/sudoedit", "usr/bin/drowse-hold", "etc/hosts", "etc/resolv.conf",
	}}
	for name := range etcLinks {
		o.own = append(o.own, "etc/"+name)
	}
	for _, tree := range t.Trees {
		if t.Image != nil {
			o.Added = append(o.Added, tree.Lowers[0])
			tree.Lowers = slices.Clone(tree.Lowers[1:])
		}
		o.Below = append(o.Below, tree)
	}
	return o
}

// Omits reports whether what is at a path of a sandbox, without the first slash, is
// the server's own. changed reports whether the sandbox has changed a path.
func (o Outward) Omits(p string, changed func(path string) bool) bool {
	return slices.Contains(o.own, p) && (!strings.HasPrefix(p, "usr/bin/") || !changed(p))
}
