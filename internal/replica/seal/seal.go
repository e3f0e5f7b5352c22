// Package seal encrypts copies of checkpoints.
//
// A blob is known by a digest of its content that only the key can make, and encrypted with
// AES-256-GCM by a key of its own, which is derived from the place where it is: its name, with
// that digest, and all that is above it. So no two blobs that differ are ever encrypted by one
// key, whoever writes them and however often, and none can be read at the place of another.
// Whoever has no key learns how large blobs are, and nothing of what is in them.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

const (
	// Overhead is by how many bytes what is encrypted is longer.
	Overhead = 16

	size = 32
)

// Key encrypts the copies of one sandbox or snapshot. With an empty one nothing is encrypted,
// and digests are those of the content alone: that is how copies were before. It is in the
// database, and is printed and encoded nowhere.
type Key string

// New returns a random key.
func New() Key {
	key := make([]byte, size)
	_, _ = rand.Read(key) // which never fails
	return Key(key)
}

const hidden = "(a key)"

// Format implements [fmt.Formatter], for all verbs.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalText implements [encoding.TextMarshaler].
func (k Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Digest returns what tells data from all other, in hex. Who has no key cannot tell whether it
// is that of some data.
func (k Key) Digest(data []byte) string {
	if k == "" {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	mac := hmac.New(sha256.New, k.derive("digests"))
	_, _ = mac.Write(data)
	return hex.EncodeToString(mac.Sum(nil))
}

// Seal encrypts data for a place, whose name has the digest of data. It uses the space of
// data, if that has room for Overhead.
func (k Key) Seal(place string, data []byte) []byte {
	if k == "" {
		return data
	}
	return k.at(place).Seal(data[:0], make([]byte, nonceSize), data, nil)
}

// Open returns what was sealed for a place, in the space of sealed; an error for anything
// else.
func (k Key) Open(place string, sealed []byte) ([]byte, error) {
	if k == "" {
		return sealed, nil
	}
	return k.at(place).Open(sealed[:0], make([]byte, nonceSize), sealed, nil)
}

// nonceSize is that of GCM. All nonces are zero: each key encrypts one content alone.
const nonceSize = 12

// at returns the cipher of a place.
func (k Key) at(place string) cipher.AEAD {
	block, err := aes.NewCipher(k.derive("blob " + place))
	if err == nil {
		var gcm cipher.AEAD
		if gcm, err = cipher.NewGCM(block); err == nil {
			return gcm
		}
	}
	panic("internal error: " + err.Error())
}

// derive returns the key for one use. None tells anything of another.
func (k Key) derive(use string) []byte {
	key, err := hkdf.Expand(sha256.New, []byte(k), "copy of a checkpoint: "+use, size)
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return key
}
