package e2b

import "github.com/drowse-dev/drowse/internal/errdef"

// refuseSecrets answers all that is asked of E2B's secrets, which sandboxes never
// see and which are put into what they send. That takes reading what they send
// over TLS, with certificates made for it, and is not what this server does.
func (s *server) refuseSecrets(*call) (reply, error) {
	return reply{}, errdef.New(errdef.Forbidden, "secrets_not_supported",
		"this server keeps no secrets: to put them into requests it would have to read what sandboxes send over TLS").
		WithRemedy("give the sandbox an environment variable, or have it ask a proxy of yours that adds the secret")
}
