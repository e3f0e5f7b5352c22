package blobstest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// Role gives the credentials of a gateway to a container that has a role, when it gives
// any.
type Role struct {
	gives atomic.Bool
	url   string
}

// NewRole starts a role that gives no credentials yet, and ends with the test. What uses
// it needs Env.
func NewRole(t testing.TB) *Role {
	t.Helper()
	r := &Role{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !r.gives.Load() {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"Code": "Success", "AccessKeyId": %q, "SecretAccessKey": %q, "Expiration": %q}`,
			AccessKey, SecretKey, time.Now().Add(time.Hour).Format(time.RFC3339))
	}))
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

// Env is what the environment of a program has that has the role, and no other credentials.
func (r *Role) Env() []string {
	return []string{"AWS_CONTAINER_CREDENTIALS_FULL_URI=" + r.url, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=", "AWS_WEB_IDENTITY_TOKEN_FILE=",
		"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_SESSION_TOKEN=", "AWS_SHARED_CREDENTIALS_FILE=/nowhere"}
}

// Give has it give credentials from now on.
func (r *Role) Give() { r.gives.Store(true) }
