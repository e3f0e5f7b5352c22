package v1

import (
	"net/http"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/auth"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

const alicesKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPu4Wk/k3E7S5MrpnAX/vW7U2XRJpjdtx1FTYmvlXeCV"

// TestSSHKeysBelongToTheirAPIKey: each sees and removes its own, and who has one
// gets in for as long as its API key is good.
func TestSSHKeysBelongToTheirAPIKey(t *testing.T) {
	st := memstore.Open(memstore.NewData(), memstore.Hooks{})
	keys, err := auth.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	sshKeys, err := auth.LoadSSHKeys(t.Context(), st, keys)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(o *Options) { o.Auth, o.Keys, o.SSHKeys = keys, keys, sshKeys })
	as := map[store.Role]string{}
	ids := map[store.Role]string{}
	for _, role := range []store.Role{store.RoleAdmin, store.RoleFull, store.RoleOwn, store.RoleRead} {
		key, text, err := keys.Create(t.Context(), auth.Request{Name: string(role), Role: role})
		if err != nil {
			t.Fatal(err)
		}
		as[role], ids[role] = text, key.ID
	}
	do := func(role store.Role, method, target, body string) answer {
		t.Helper()
		return w.doAs(as[role], method, target, body)
	}
	const body = `{"publicKey":"` + alicesKey + ` alice"}`
	full := do(store.RoleFull, "POST", "/v1/ssh-keys", body).Is(http.StatusCreated).Object()
	do(store.RoleFull, "POST", "/v1/ssh-keys", body).fails(http.StatusConflict, "ssh_key_exists", "already")
	do(store.RoleOwn, "POST", "/v1/ssh-keys", body).Is(http.StatusCreated)
	do(store.RoleRead, "POST", "/v1/ssh-keys", body).fails(http.StatusForbidden, "role_insufficient", "read")
	if got := list(do(store.RoleAdmin, "GET", "/v1/ssh-keys", "").Is(http.StatusOK).Object()["sshKeys"]); len(got) != 0 {
		t.Errorf("the admin, who has none, sees %v", got)
	}
	target := "/v1/ssh-keys/" + full["id"].(string)
	do(store.RoleOwn, "DELETE", target, "").fails(http.StatusNotFound, "ssh_key_not_found", "no SSH key")

	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(alicesKey))
	if err != nil {
		t.Fatal(err)
	}
	holders := sshKeys.Holders(public)
	if len(holders) != 2 || holders[0].Key.ID != ids[store.RoleFull] || holders[1].Key.ID != ids[store.RoleOwn] {
		t.Fatalf("she gets in as %v", holders)
	}
	do(store.RoleFull, "DELETE", target, "").Is(http.StatusNoContent)
	if err := keys.Revoke(t.Context(), ids[store.RoleOwn]); err != nil {
		t.Fatal(err)
	}
	if holders[0].Life.Err() == nil {
		t.Error("what goes on by a key that was removed does not end")
	}
	if holders := sshKeys.Holders(public); len(holders) != 0 {
		t.Errorf("she still gets in as %v", holders)
	}
	if left, err := st.SSHKeys(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("stored are %v, %v", left, err)
	}
}
