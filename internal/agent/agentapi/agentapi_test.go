package agentapi

import (
	"encoding/json"
	"testing"
)

func TestSignVectors(t *testing.T) {
	expiration := int64(1795223990)
	tests := []struct {
		name, path, operation, user, token string
		expiration                         *int64
		want                               string
	}{
		{"user", "hello.txt", OperationRead, "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", nil,
			"v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"},
		{"no user, expiration", "hello.txt", OperationRead, "", "tok", &expiration,
			"v1_+NL7B5xxfTNqzuBsge/yItTf0CFAetWsJhkfBflj56s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Sign(tt.path, tt.operation, tt.user, tt.token, tt.expiration)
			if got != tt.want {
				t.Errorf("Sign = %s, want %s", got, tt.want)
			}
		})
	}
}

// Absent and empty differ in the JSON of /init, so the host can say both.
func TestInitRequestAbsentAndEmpty(t *testing.T) {
	empty := ""
	tests := []struct {
		name string
		req  InitRequest
		want string
	}{
		{"nothing", InitRequest{}, `{}`},
		{"cleared", InitRequest{EnvVars: map[string]string{}, AccessToken: &empty}, `{"envVars":{},"accessToken":""}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(tt.req)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("JSON = %s, want %s", got, tt.want)
			}
		})
	}
}
