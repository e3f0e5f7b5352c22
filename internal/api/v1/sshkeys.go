package v1

import (
	"net/http"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/api/httpapi"
	"github.com/drowse-dev/drowse/internal/store"
)

// sshKeyView is the public key of an SSH client.
type sshKeyView struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	PublicKey   string            `json:"publicKey"`
	Fingerprint string            `json:"fingerprint" doc:"As ssh-keygen -l prints it."`
	CreatedAt   httpapi.Timestamp `json:"createdAt"`
}

type sshKeysView struct {
	SSHKeys []sshKeyView `json:"sshKeys"`
}

func viewSSHKey(k store.SSHKey) sshKeyView {
	v := sshKeyView{ID: k.ID, Name: k.Name, PublicKey: k.PublicKey, CreatedAt: httpapi.Timestamp(k.CreatedAt)}
	if public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(k.PublicKey)); err == nil {
		v.Fingerprint = ssh.FingerprintSHA256(public)
	}
	return v
}

func addSSHKey(s *server, c *call) (reply, error) {
	name, _ := c.words["name"].Value.(string)
	k, err := s.SSHKeys.Add(c.r.Context(), c.key.ID, name, c.words["publicKey"].Value.(string))
	if err != nil {
		return reply{}, err
	}
	v := viewSSHKey(k)
	s.Log.Info("SSH key added", "key", k.ID, "fingerprint", v.Fingerprint, "actor", c.actor)
	return reply{Status: http.StatusCreated, Body: v}, nil
}

func listSSHKeys(s *server, c *call) (reply, error) {
	v := sshKeysView{SSHKeys: []sshKeyView{}}
	for _, k := range s.SSHKeys.Of(c.key.ID) {
		v.SSHKeys = append(v.SSHKeys, viewSSHKey(k))
	}
	return ok(v)
}

func removeSSHKey(s *server, c *call) (reply, error) {
	id := c.params[sshKeyParam]
	if err := s.SSHKeys.Remove(c.r.Context(), c.key.ID, id); err != nil {
		return reply{}, err
	}
	s.Log.Info("SSH key removed", "key", id, "actor", c.actor)
	return reply{Status: http.StatusNoContent}, nil
}
