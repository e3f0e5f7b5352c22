package agentapi

import (
	"maps"
	"slices"
)

// Where the agent puts the certificate that a sandbox is to trust, and all that
// its system trusts together with it.
const (
	AuthorityFile = "/run/drowse/authority.pem"
	TrustedFile   = "/run/drowse/trusted.pem"
)

// trustVariables are by which programs learn whom to trust, with the file that
// each is to name: some take it instead of the system's, others in addition.
var trustVariables = map[string]string{
	"SSL_CERT_FILE":       TrustedFile, // OpenSSL, Go, Ruby, rustls
	"CURL_CA_BUNDLE":      TrustedFile,
	"REQUESTS_CA_BUNDLE":  TrustedFile, // Python's requests, which has its own
	"GIT_SSL_CAINFO":      TrustedFile,
	"PIP_CERT":            TrustedFile,
	"AWS_CA_BUNDLE":       TrustedFile,
	"CARGO_HTTP_CAINFO":   TrustedFile,
	"NIX_SSL_CERT_FILE":   TrustedFile,
	"NODE_EXTRA_CA_CERTS": AuthorityFile,
	"DENO_CERT":           AuthorityFile,
}

// Trust returns the variables that make programs trust the sandbox's authority.
func Trust() map[string]string { return maps.Clone(trustVariables) }

// TrustVariables returns their names.
func TrustVariables() []string { return slices.Sorted(maps.Keys(trustVariables)) }
