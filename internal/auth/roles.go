package auth

import (
	"slices"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Permission is what a request asks of its key.
type Permission string

// The permissions.
const (
	// Look is to see sandboxes from outside: what they are, and what happens to
	// them. What would let somebody in, as their tokens do, is not part of it.
	Look Permission = "look"
	// LookAll is to see what is known of all sandboxes together.
	LookAll Permission = "look at all"
	// Use is to make sandboxes, to change them and to go in.
	Use Permission = "use"
	// Share is to make volumes and to have them, which are there for all sandboxes.
	Share Permission = "share"
	// Manage is to make and revoke keys, and what can reach beyond sandboxes.
	Manage Permission = "manage"
)

// granted is what each role may do.
var granted = map[store.Role][]Permission{
	store.RoleAdmin: {Look, LookAll, Use, Share, Manage},
	store.RoleFull:  {Look, LookAll, Use, Share},
	store.RoleOwn:   {Look, Use},
	store.RoleRead:  {Look, LookAll},
}

// roles are in the order in which people are told of them.
var roles = []store.Role{store.RoleAdmin, store.RoleFull, store.RoleOwn, store.RoleRead}

// May reports whether a key has a permission.
func May(k store.Key, p Permission) bool { return slices.Contains(granted[k.Role], p) }

// Require returns an errdef.Forbidden unless the key has the permission.
func Require(k store.Key, p Permission) error {
	if May(k, p) {
		return nil
	}
	enough := Roles(p)
	return errdef.New(errdef.Forbidden, "role_insufficient", "this needs an API key of another role: the one used has %q", k.Role).
		WithRemedy("use a key of the role %s", strings.Join(enough, " or ")).
		With("role", k.Role).With("allowed", enough)
}

// Roles returns the roles that have a permission.
func Roles(p Permission) []string {
	var with []string
	for _, role := range roles {
		if slices.Contains(granted[role], p) {
			with = append(with, string(role))
		}
	}
	return with
}

// SeesAll reports whether for a key there are all sandboxes, whoever has made
// them.
func SeesAll(k store.Key) bool { return k.Role != store.RoleOwn }

// Sees reports whether for a key there is a sandbox that the key of the id maker
// has made.
func Sees(k store.Key, maker string) bool { return SeesAll(k) || maker == k.ID }
