package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

// HostKey returns the private key in a file, which the first call makes.
func HostKey(file string) (ssh.Signer, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		data, err = makeHostKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("host key of SSH: %w", err)
	}
	key, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("host key of SSH %s: %w", file, err)
	}
	return key, nil
}

// makeHostKey makes a key, and returns the one that is in the file then, which
// another process may have made meanwhile.
func makeHostKey(file string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "drowse")
	if err != nil {
		return nil, err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), ".ssh_host_key-*") // of mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(pem.EncodeToMemory(block))
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(temp.Name(), file); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.ReadFile(file)
}
