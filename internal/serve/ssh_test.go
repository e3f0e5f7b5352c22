package serve

import (
	"crypto/ed25519"
	"testing"

	"golang.org/x/crypto/ssh"
)

// TestSSHKeysOfOtherServers: what other servers have changed is waited for where a key is not
// known, and once where it is, when the client has shown to have it.
func TestSSHKeysOfOtherServers(t *testing.T) {
	w := newWorld(t)
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	var added string
	n, change := 0, func() error { return nil }
	holder := w.parts.keys.List()[0].ID
	l := sshLogins{keys: w.parts.keys, sshKeys: w.parts.sshKeys, calls: w.parts.calls, catchUp: func() {
		n++
		if err := change(); err != nil {
			t.Error(err)
		}
	}}
	if l.known(key) || n != 1 {
		t.Errorf("an unknown key is known, or was looked for %d times", n)
	}
	change = func() error {
		k, err := w.parts.sshKeys.Add(t.Context(), holder, "laptop", string(ssh.MarshalAuthorizedKey(key)))
		added = k.ID
		return err
	}
	if !l.known(key) || n != 2 {
		t.Errorf("a key that was just added is not known after %d looks", n)
	}
	if !l.known(key) || n != 2 {
		t.Errorf("a known key is not known, or was looked for %d times", n-2)
	}
	change = func() error { return w.parts.sshKeys.Remove(t.Context(), holder, added) }
	if _, err := l.login(t.Context(), sshClient{}, key); err == nil || n != 3 {
		t.Errorf("a key that was just removed lets in, after %d looks", n-2)
	}
}

// sshClient is a client that logs in.
type sshClient struct{ ssh.ConnMetadata }

func (sshClient) User() string { return "ione" }
