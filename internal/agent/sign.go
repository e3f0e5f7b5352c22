package agent

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
)

// authorizeFile lets a request to /files through by token header or, if that
// is absent, by the signature in its URL. A wrong header is not saved by a
// good signature.
func (a *Agent) authorizeFile(r *http.Request, query url.Values, operation string) error {
	token := a.settings.accessToken()
	if token == "" {
		return nil
	}
	if len(r.Header.Values(agentapi.HeaderAccessToken)) > 0 {
		if !a.tokenMatches(r) {
			return faultf(unauthenticated, "the %s header is wrong", agentapi.HeaderAccessToken)
		}
		return nil
	}
	return checkSignature(query, operation, token, time.Now())
}

func checkSignature(query url.Values, operation, token string, now time.Time) error {
	if !query.Has("signature") {
		return faultf(unauthenticated, "missing signature query parameter")
	}
	user := query.Get("username")
	if strings.Contains(user, ":") {
		// The signed text joins its fields by colons: with one more, a
		// signature for one path would hold for another.
		return faultf(unauthenticated, "invalid username")
	}
	var expiration *int64
	if query.Has("signature_expiration") {
		seconds, err := strconv.ParseInt(query.Get("signature_expiration"), 10, 64)
		if err != nil {
			return faultf(unauthenticated, "invalid signature_expiration")
		}
		expiration = &seconds
	}
	want := agentapi.Sign(query.Get("path"), operation, user, token, expiration)
	if !equalSecret(query.Get("signature"), want) {
		return faultf(unauthenticated, "invalid signature")
	}
	if expiration != nil && *expiration < now.Unix() {
		return faultf(unauthenticated, "signature is already expired")
	}
	return nil
}

// fileRequest is what both directions of /files begin with: the query, an
// authorised client, and the user it acts as.
func (a *Agent) fileRequest(r *http.Request, operation string) (url.Values, *account, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, faultf(invalid, "malformed query: %w", err)
	}
	if err := a.authorizeFile(r, query, operation); err != nil {
		return nil, nil, err
	}
	user, err := a.user(query.Get("username"))
	if err != nil {
		return nil, nil, err
	}
	return query, user, nil
}
