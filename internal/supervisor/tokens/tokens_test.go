package tokens

import "testing"

// TestDerive holds the tokens to what they were in the versions before: sandboxes
// that sleep, and links that were handed out, go on with them.
func TestDerive(t *testing.T) {
	s := New([]byte("secret"))
	for _, c := range []struct{ got, want string }{
		{s.EnvdToken("i1"), s.Derive("envd", "i1")},
		{s.TrafficToken("i1"), s.Derive("traffic", "i1")},
		{s.AgentToken("i1"), s.Derive("init", "i1")},
		{s.Derive("envd", "i1"), "9ab24fc5c4f9c06bb557dbfba11fb4f964ce6a6215b758b421a6028976399861"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	seen := map[string]bool{}
	for _, token := range []string{s.EnvdToken("i1"), s.TrafficToken("i1"), s.AgentToken("i1"), s.EnvdToken("i2"), New([]byte("other")).EnvdToken("i1")} {
		if seen[token] {
			t.Errorf("%s is the token of two things", token)
		}
		seen[token] = true
	}
}
