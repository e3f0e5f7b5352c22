package e2b

import "github.com/drowse-dev/drowse/internal/errdef"

// refuseSecrets answers all that is asked of E2B's secrets. They do not say for
// which hosts a value is, and this server sends none out without that.
func (s *server) refuseSecrets(*call) (reply, error) {
	return reply{}, errdef.New(errdef.Forbidden, "secrets_not_supported",
		"E2B's secrets do not say for which hosts they are, and this server sends a value to no other host").
		WithRemedy("set the secret with its hosts (PUT /v1/secrets/{name}, drowse secret set), and name it in the secrets of the create")
}
